"""Invariant 14: what an actor has deleted from its store is not in its memory either (DESIGN §2.2, §4.7, §4.8).

The checker reads an actor's objects, from its attributes on: records, containers, arrays and objects of this package.
It compares them with secrets that it knows from disks, messages and its own computation, never from that actor.

- After its epoch and the grace, no secret of an epoch is left, and no key of a pair that was agreed on with it.
- After a Compute node has released or aborted, no contribution, no mask, and no entry of a peer's list is left.
- After a client's receipt, its message is not left.
- After a round is forgotten, nothing names it but its repeats, and charges and declines, which the owner may read; no
  reply key is left.

To save time it reads at most `CLIENTS_MAX` clients, an actor only when it deletes something and at the end, and for
each kind of record at most `READS_MAX` times.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from dca_proto.crypto.sealing import Identity
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist
from dca_proto.protocol.events import Event
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from emulator.derivations import TAG_BYTES
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, RunLog
from emulator.trials.world import TrialWorld
from emulator.wire import ids_in

CLIENTS_MAX, READS_MAX, OBJECTS_MAX, MASKS_MAX = 3, 3, 200_000, 8
_SLACK_MS = 1_000
_SKIPPED = (int, float, str, Identity, Federation, Ledger, client_round.DeclinedRounds)
"""What is not read: it holds no bytes, or it lasts and its owner may read it."""
_ROUNDS = {
    Channel.CLIENT: client_round.ROUNDS,
    Channel.COMPUTE: node_round.ROUNDS,
    Channel.TRAINER: trainer_round.ROUNDS,
}


def held(root: object) -> bytes:
    """Return all bytes that an object holds, by itself or through others, one after another."""
    found: list[bytes] = []
    waiting, seen = deque([root]), {id(root)}
    while waiting and len(seen) < OBJECTS_MAX:
        for part in _parts(waiting.popleft()):
            if isinstance(part, bytes | bytearray):
                found.append(bytes(part))
            elif isinstance(part, np.ndarray):
                found.append(part.tobytes() if part.dtype != object else b"")
            elif part is not None and not isinstance(part, _SKIPPED) and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return b"\0".join(found)


def _parts(one: object) -> Iterator[object]:
    """Yield what an object refers to. Functions, and objects of the emulator, are not part of an actor."""
    if isinstance(one, dict):
        yield from one.keys()
        yield from one.values()
    elif isinstance(one, list | tuple | set | frozenset | deque):
        yield from one
    elif isinstance(one, msgspec.Struct):
        for name in one.__struct_fields__:
            yield getattr(one, name)
    elif any(kind.__module__.startswith("dca_proto.") for kind in type(one).__mro__):
        yield from vars(one).values() if hasattr(one, "__dict__") else ()
        for kind in type(one).__mro__:
            for name in kind.__dict__.get("__slots__", ()):
                if name != "__dict__" and hasattr(one, name):
                    yield getattr(one, name)


class MemoryChecker(Checker):
    """Reads the memory of honest actors."""

    number, name = 14, "forgets in memory, too"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        servers = [*world.computes, world.trainer]
        self._read = {process.id for process in (*servers, *world.clients[:CLIENTS_MAX])}
        self._reads: Counter[tuple[bytes, str, type]] = Counter()
        self._outbound: dict[Key, bytes] = {}
        self._reply_keys: dict[bytes, bytes] = {}

    def on_paid(self, client: Process, round_id: bytes, outbound: Any) -> None:
        self._outbound[client.id, round_id] = outbound.payload

    def on_trainer_round(self, trainer: Process, round_id: bytes, stored: trainer_round.StoredTrainerRound) -> None:
        self._reply_keys[round_id] = stored.reply_secret

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Read the actor's memory when it deletes something, or ends a round."""
        if process.id not in self._read or not self.is_honest(process):
            return
        table, memory = _ROUNDS[process.role], b""
        for effect in effects:
            if type(effect) is Persist and effect.table == table:
                read = self._of_ended
            elif type(effect) is Forget and effect.table in (table, EPOCHS):
                read = self._of_deleted
            else:
                continue
            times = process.id, effect.table, type(effect)
            needles = list(read(process, effect)) if self._reads[times] < READS_MAX else []
            if needles:
                self._reads[times] += 1
                memory = memory or held(process.actor)
                self._expect_none(process, needles, memory)

    def _expect_none(self, process: Process, needles: Iterable[tuple[str, bytes]], memory: bytes) -> None:
        for what, needle in needles:
            self.expect(needle not in memory, f"{process.name} still has {what} in its memory")

    def _of_ended(self, process: Process, write: Any) -> Iterator[tuple[str, bytes]]:
        """Yield what must be gone when a round has this new record."""
        key, name = (process.id, write.key), f"round {write.key.hex()[:8]}"
        if process.role is Channel.COMPUTE:
            stored = decoded(write.table, write.value, node_round.StoredComputeRound)
            if stored.phase in node_round.ENDS and not stored.peer_aborts:
                yield from self._of_work(key, name)
        elif process.role is Channel.CLIENT:
            phase = decoded(write.table, write.value, client_round.StoredClientRound).phase
            answered = phase in (client_round.KEPT, client_round.MISSED, client_round.RETURNED)
            if answered and key in self._outbound:
                yield f"the answered message of {name}", self._outbound[key]

    def _of_work(self, key: Key, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield a node's contributions, masks, and the entries of its peers' lists in a round."""
        accepted = self.log.accepted.get(key)
        for kept in self.log.kept[key].values():
            yield f"a contribution to {name}", kept.y
            yield f"tags of {name}", kept.tags
        own = {kept.entry for kept in self.log.kept[key].values()}
        for place, (entry, tag) in enumerate(self.log.tags[key].items()):
            if entry not in own:
                yield f"an entry of a peer's list of {name}", entry
            if accepted is not None and place < MASKS_MAX:
                node, client = accepted.epochs[accepted.computes.index(key[0])], ids_in(entry)[0]
                mask = self.log.pairs.mask(node, client, tag, accepted.hash, entry, 1)
                if mask is not None:
                    yield f"a mask of {name}", mask[:TAG_BYTES]

    def _of_deleted(self, process: Process, write: Any) -> Iterator[tuple[str, bytes]]:
        """Yield what must be gone with a deleted record: a round, or the secret of an epoch."""
        if write.table == EPOCHS:
            epoch = int.from_bytes(write.key, "big")
            yield from self.log.pairs.secrets(process.id, epoch.__eq__)
            return
        repeats = (one.repeats for one in self.log.requests.values())
        if not any(write.key in one for one in repeats):  # else the repeat names it, and lasts longer
            yield f"round {write.key.hex()[:8]}", write.key
        if process.role is Channel.TRAINER and write.key in self._reply_keys:
            yield f"the reply key of round {write.key.hex()[:8]}", self._reply_keys[write.key]

    def finish(self) -> None:
        """At the end, no actor has a secret of an epoch that is over."""
        timing = self.world.actors.timing
        for process in self.honest():
            if process.id not in self._read or process.actor is None:
                continue
            spread_ms = timing.hello_spread_ms if isinstance(process.actor, Client) else 0
            over_ms = process.now_ms - timing.epoch_grace_ms - spread_ms - _SLACK_MS - self.world.tardiness_ms(process)
            needles = list(self.log.pairs.secrets(process.id, (over_ms // timing.epoch_ms).__gt__))
            if needles:
                self._expect_none(process, needles, held(process.actor))
