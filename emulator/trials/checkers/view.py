"""Invariant 5: what any M - 1 Compute nodes and the broker see does not depend on anybody's data.

In every run: contribution ids, tags, masked vectors, nonces and the keys of noise are never used twice, and all
contributions of a round have the same size, as have all reports. Against a second run of the same seed on neighbouring
data: the same messages go between the same actors at the same times in the same sizes; and what Compute nodes keep is
the same but for the id, the tags and the masked vector of the client whose data changed, all of them pseudorandom.
Without Compute nodes nothing that the trainer keeps differs but the release of that client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.protocol.compute.round import CONTRIBUTIONS
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.effects import Channel, Effect, Persist, Send, Write
from dca_proto.protocol.events import Event
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Contribution, Release, Sealed, Signed
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.recording import Recording
from emulator.trials.checkers.witness import Witness, release_in
from emulator.wire import contributions_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class Passed(NamedTuple):
    """A message as the broker sees it, without its content: when (µs), from whom, to whom, about what, how long."""

    at_us: int
    sender: bytes
    channel: str
    to: bytes
    round_id: bytes
    size: int


class Transcript(Observer):
    """The shape of a run's traffic, and what its Compute nodes and its trainer hold.

    Attributes:
        passed: all messages, in order. held: contributions by node, round and client, as they were kept.
        released: without Compute nodes, by round and client, as the trainer keeps it.
    """

    def __init__(self, world: TrialWorld) -> None:
        self.passed: list[Passed] = []
        self.held: dict[tuple[bytes, bytes, bytes], Kept] = {}
        self.released: dict[tuple[bytes, bytes], Signed] = {}
        self._simulator = world.simulator

    def on_send(self, process: Process, send: Send) -> None:
        """Note a message."""
        to = send.to
        self.passed.append(
            Passed(self._simulator.now_us, process.id, to.channel.value, to.id, send.round_id, len(send.payload))
        )

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Note the contributions that a Compute node keeps, and the releases and reports that the trainer keeps."""
        for write in writes:
            if not isinstance(write, Persist):
                continue
            round_id, whose = write.key[:ID_BYTES], write.key[ID_BYTES:]
            if write.table == CONTRIBUTIONS:
                self.held[process.id, round_id, whose] = Kept(write.value)
            elif write.table == RELEASES:
                self.released[round_id, whose] = decoded(RELEASES, write.value, Signed)


def neighbour(world: TrialWorld) -> bytes:
    """Give one honest client other rows; its id. To be called before anything is asked of it.

    Of another number, but where that is public: rows that are other people's are counted in a node release.
    """
    client = next(one.id for one in world.clients if one.id not in world.hostile)
    index = world.client_number(client)
    rows = -world.cast.rows[index] + 0.25
    world.cast.rows = [*world.cast.rows]
    more = 0 if world.cast.policy.rows_of_many else 1
    world.cast.rows[index] = np.vstack([rows, np.full((more, rows.shape[1]), np.nan)])
    return client


class View(Checker):
    """Sizes, ids, tags, nonces and noise keys of one run, and the comparison with its neighbour where there is one.

    Args:
        other: the transcript of the run of the same seed on neighbouring data, and whose data they are.
    """

    number, name = 5, "view independent of data"

    def __init__(self, world: TrialWorld, witness: Witness, other: tuple[Transcript, bytes] | None = None) -> None:
        super().__init__(world, witness)
        self._own = Transcript(world)
        self._other = other
        self._nonces: dict[bytes, bytes] = {}  # -> the payload that it encrypts
        self._once: dict[bytes, tuple[bytes, bytes]] = {}  # ids, tags and first words -> the client and the round
        self._sizes: dict[bytes, int] = {}  # by round
        self._noise_keys: dict[bytes, tuple[bytes, bytes]] = {}  # -> the client and the round whose noise it made

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Noise is fresh: an honest client that contributes has drawn it from a key of its own."""
        mechanism = self.world.cast.mechanism
        if process.role is not Channel.CLIENT or not self.is_honest(process) or not isinstance(mechanism, Recording):
            return
        for round_id, _ in contributions_in(effects):
            whose = process.id, round_id
            first = self._noise_keys.setdefault(mechanism.key, whose)
            self.expect(first == whose, f"{process.name}, round {round_id.hex()[:8]}: its noise was used before")

    def on_send(self, process: Process, send: Send) -> None:
        """What an honest client encrypts: its nonce or id is new unless it is a repetition, its size the others'."""
        if self._other is not None:
            self._own.on_send(process, send)
        if process.role is not Channel.CLIENT or not self.is_honest(process):
            return
        frame = decode_frame(send.payload)
        if not isinstance(frame, Contribution | Sealed):
            return
        who = f"{process.name}, round {send.round_id.hex()[:8]}"
        unique = frame.contribution if isinstance(frame, Contribution) else frame.nonce
        first = self._nonces.setdefault(unique, send.payload)
        self.expect(first == send.payload, f"{who}: a nonce or an id is used for two ciphertexts")
        if isinstance(frame, Contribution) or self._is_report(process, send):
            size = self._sizes.setdefault(send.round_id, len(send.payload))
            self.expect(size == len(send.payload), f"{who}: it sends {len(send.payload)} bytes, others {size}")

    def _is_report(self, process: Process, send: Send) -> bool:
        """Whether a message is a report: not one that declines, nor a data node's, whose number of rows is public."""
        if not self.witness.is_release(process.id, send.round_id, send.payload):
            return False
        return self.witness.announcements[send.round_id].mechanism in LOCAL_MECHANISMS

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Masks are fresh: no two contributions have a tag alike, or begin alike."""
        if self._other is not None:
            self._own.on_commit(process, writes)
        if process.role is not Channel.COMPUTE:
            return
        for write in writes:
            if not isinstance(write, Persist) or write.table != CONTRIBUTIONS:
                continue
            whose = write.key[ID_BYTES:], write.key[:ID_BYTES]
            if whose[0] not in self.witness.dishonest:
                kept = Kept(write.value)
                tags = [kept.tags[at : at + 8] for at in range(0, len(kept.tags), 8)]
                alike = [one for one in (*tags, kept.y[:8]) if self._once.setdefault(one, whose) != whose]
                self.expect(
                    not alike, f"{process.name} keeps a tag or a masked word that another contribution has, too"
                )

    # --- two runs ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Compare with the neighbouring run."""
        if self._other is None:
            return
        other, changed = self._other
        self._compare_traffic(other)
        same = self._own.held.keys() == other.held.keys()
        self.expect(same, "who holds whose contribution depends on the data of a client")
        for key in self._own.held.keys() & other.held.keys():
            self._compare_kept(key, other.held[key], changed)
        self.expect(self._own.released.keys() == other.released.keys(), "who releases depends on the data of a client")
        for of in self._own.released.keys() & other.released.keys():
            self._compare_release(of, other.released[of], changed)

    def _compare_traffic(self, other: Transcript) -> None:
        pairs = list(zip(self._own.passed, other.passed, strict=False))
        self.checked += len(pairs)
        for mine, theirs in pairs:
            if mine != theirs:
                self.fail(f"traffic depends on the data of a client: {_shown(mine)}, or else {_shown(theirs)}")
                return
        counts = len(self._own.passed), len(other.passed)
        self.expect(counts[0] == counts[1], f"traffic depends on the data of a client: {counts[0]} or {counts[1]}")

    def _compare_kept(self, key: tuple[bytes, bytes, bytes], theirs: Kept, changed: bytes) -> None:
        """Equal, but for what is pseudorandom in the contribution of the client whose data are changed."""
        (node, _, client), mine = key, self._own.held[key]
        same = mine == theirs if client != changed else _shape(mine) == _shape(theirs)
        self.expect(same, f"compute {node.hex()[:8]} sees what client {client.hex()[:8]} holds")

    def _compare_release(self, of: tuple[bytes, bytes], theirs: Signed, changed: bytes) -> None:
        """Equal, but for the value, the id and the key in the release of the client whose data are changed."""
        mine, client = self._own.released[of], of[1]
        same = mine == theirs or (client == changed and _blank(release_in(mine)) == _blank(release_in(theirs)))
        self.expect(same, f"what client {client.hex()[:8]} says beside its release depends on the data of a client")


class Repetition(Checker):
    """Invariant 9: the same seed gives the same run, byte for byte in its trace of facts.

    Args:
        digest: of another run of the same scenario; None checks nothing.
    """

    number, name = 9, "same seed, same run"

    def __init__(self, world: TrialWorld, witness: Witness, digest: str | None = None) -> None:
        super().__init__(world, witness)
        self._before = digest

    def finish(self) -> None:
        if self._before is not None:
            found = self.world.simulator.trace.digest()
            self.expect(found == self._before, f"the trace has digest {found}, and had {self._before}")


def _shape(kept: Kept) -> tuple[int, int, int]:
    return kept.charge, len(kept.tags), len(kept.y)


def _blank(release: Release) -> Release:
    """With zeros for what is drawn from the client's own randomness and its value."""
    zeros = {name: bytes(len(getattr(release, name))) for name in ("contribution", "receipt_key", "vector")}
    return msgspec.structs.replace(release, **zeros)


def _shown(one: Passed) -> str:
    return f"{one.sender.hex()[:8]} to {one.channel} {one.to.hex()[:8]}, {one.size} bytes at {one.at_us} us"
