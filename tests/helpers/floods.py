"""Floods of valid announcements by a hostile trainer, and how an actor's memory and store grow under them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from round_helpers import (
    announced,
    begin,
    losing,
)

from dca_proto.crypto.sealing import Identity, digest
from dca_proto.protocol.announcement import invitation_root
from dca_proto.protocol.compute.room import NodeRoom
from dca_proto.protocol.effects import Effect, Forget, Persist, Report, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import MIB
from dca_proto.protocol.wire.codec import decode_frame, encode, sign
from dca_proto.protocol.wire.messages import (
    Announcement,
    Close,
    Contribution,
    InvitedRound,
)
from dca_proto.testing import Network, TestFederation

FLOOD = 248
COLUMNS = 400
WIDE = {
    "columns": [f"column {index}" for index in range(COLUMNS)],
    "centre": [0.0] * COLUMNS, "scale": [1.0] * COLUMNS, "bound": [1.0] * COLUMNS,
}  # fmt: skip
"""Parameters of a valid sum; with them an announcement has 16 KB."""
INVITED = tuple(sorted(digest(b"invited", index.to_bytes(4, "big"))[:16] for index in range(256)))


def flood_ids(count: int) -> list[bytes]:
    return [digest(b"flood", number.to_bytes(4, "big"))[:16] for number in range(count)]


def flood(actors: TestFederation, like: Announcement, count: int = FLOOD, **changes: Any) -> list[bytes]:
    """Return valid announcements of the trainer, each with another round id."""
    bodies = (msgspec.structs.replace(like, round_id=round_id, **changes) for round_id in flood_ids(count))
    return [encode(sign(actors.trainer_identity, actors.federation.id, body)) for body in bodies]


def invited_flood(actors: TestFederation, like: Announcement, count: int = FLOOD, **changes: Any) -> list[bytes]:
    """Return the same for Compute nodes, with the ids of 256 invited clients: 4 KB more each."""
    plain = flood(actors, like, count, invited=invitation_root(INVITED), **changes)
    return [encode(InvitedRound(decode_frame(payload), b"".join(INVITED))) for payload in plain]


def held(actor: object) -> int:
    """Return the bytes of all objects that an actor holds, other than code and the federation file."""
    total, seen, waiting = 0, set(), [actor]
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if (
            id(item) in seen
            or kind in (type, Federation, Identity)
            or (kind.__module__ == "builtins" and callable(item))
        ):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if kind in (bytes, str, int, float, bool):
            continue
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | deque):
            waiting += item
        elif hasattr(kind, "__struct_fields__"):
            waiting += [getattr(item, name) for name in kind.__struct_fields__]
        else:
            names = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
            waiting += [*getattr(item, "__dict__", {}).values(), *(getattr(item, name, None) for name in names)]
    return total


class Flooded:
    """An actor that gets a flood from the trainer: what it sends and reports, and how its memory and store grow.

    Attributes:
        facts: its reports, in order. sent: number of messages, and their bytes.
        gained: MiB that its memory has grown by, after each half of the flood. stored: MiB in its store.
    """

    def __init__(
        self,
        network: Network,
        actor: bytes,
        sender: bytes,
        payloads: Sequence[bytes],
        answer: Callable[[Send], Sequence[Effect]] = lambda send: (),
    ) -> None:
        self.network, self.actor, self.answer = network, actor, answer
        self.facts: list[Any] = []
        self.sent = 0
        self.gained: list[float] = []
        before = held(network.actors[actor])
        for number, payload in enumerate(payloads, start=1):
            self._carry_out(network.actors[actor].handle(Received(sender, payload), network.now_ms))
            if number % (len(payloads) // 2) == 0:
                self.gained.append((held(network.actors[actor]) - before) / MIB)
        self.stored = sum(len(value) for value in network.stores[actor].values()) / MIB

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist | Forget):
                self.network._carry_out(self.actor, effect)
            elif isinstance(effect, Report):
                self.facts.append(effect.fact)
            elif isinstance(effect, Send):
                self.sent += 1
                self._carry_out(self.answer(effect))

    def reported(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]


def collecting(actors: TestFederation) -> tuple[Network, Announcement]:
    """Return a network with a round that collects, and its announcement."""
    network = actors.network()
    network.tamper = losing(Contribution, Close)
    begin(actors, network, collect_s=600)
    return network, announced(network, actors).body


def recounted(network: Network, node: bytes) -> dict[str, int]:
    """Return the totals of a node's room, counted anew from its rounds."""
    room, rounds = NodeRoom(), network.actors[node]._rounds.values()
    sums = zip(*(room.amounts(current) for current in rounds), strict=True)
    return dict(zip(vars(room), map(sum, sums), strict=False))


def totals(room: object) -> dict[str, int]:
    return {name: used.total for name, used in vars(room).items()}
