"""Invariant 5: what any M - 1 Compute nodes and the broker see does not depend on anybody's data. And 9, repetition.

In every run: contribution ids, tags, masked vectors, nonces and the keys of noise are never used twice, and all
contributions of a round have the same size, as have all reports. Against a second run of the same seed on neighbouring
data: the same messages go between the same actors at the same times in the same sizes; and what Compute nodes keep is
the same but for the id, the tags and the masked vector of the client whose data changed, all of them pseudorandom.
Without Compute nodes nothing that the trainer keeps differs but the release of that client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.protocol.compute.round import CONTRIBUTIONS
from dca_proto.protocol.contribution import Kept, Outbound
from dca_proto.protocol.effects import Channel, Persist, Send, Write
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Contribution, Release, Sealed, Signed
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, RunLog, about, release_in
from emulator.trials.world import TrialWorld


class Passed(NamedTuple):
    """A message as the broker sees it, without its content: when (µs), from whom, to whom, about what, how long."""

    at_us: int
    sender: bytes
    channel: str
    to: bytes
    round_id: bytes
    size: int

    def __str__(self) -> str:
        return f"{self.sender.hex()[:8]} to {self.channel} {self.to.hex()[:8]}, {self.size} bytes at {self.at_us} us"


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
        now_us, to = self._simulator.now_us, send.to
        self.passed.append(Passed(now_us, process.id, to.channel.value, to.id, send.round_id, len(send.payload)))

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        for write in writes:
            of = write.key[:ID_BYTES], write.key[ID_BYTES:]
            if isinstance(write, Persist) and write.table == CONTRIBUTIONS:
                self.held[process.id, *of] = Kept(write.value)
            elif isinstance(write, Persist) and write.table == RELEASES:
                self.released[of] = decoded(RELEASES, write.value, Signed)


def neighbour(world: TrialWorld) -> bytes:
    """Give one honest client other rows; its id. To be called before anything is asked of it.

    Of another number, but where that is public: rows that are other people's are counted in a node release.
    """
    client = next(one.id for one in world.clients if one.id not in world.hostile)
    index = world.client_number(client)
    rows = -world.actors.rows[index] + 0.25
    more = 0 if world.actors.policy.rows_of_many else 1
    world.actors.rows = [*world.actors.rows]
    world.actors.rows[index] = np.vstack([rows, np.full((more, rows.shape[1]), np.nan)])
    return client


class View(Checker):
    """Sizes, ids, tags, nonces and noise keys of one run, and the comparison with its neighbour where there is one.

    Args:
        other: the transcript of the run of the same seed on neighbouring data, and whose data they are.
    """

    number, name = 5, "view independent of data"

    def __init__(self, world: TrialWorld, log: RunLog, other: tuple[Transcript, bytes] | None = None) -> None:
        super().__init__(world, log)
        self._own = Transcript(world)
        self._other = other
        if other is not None:
            world.simulator.observers.append(self._own)
        self._nonces: dict[bytes, bytes] = {}  # -> the payload that it encrypts
        self._once: dict[bytes, Key] = {}  # ids, tags and first words -> the client and the round
        self._sizes: dict[bytes, int] = {}  # by round
        self._noise_keys: dict[bytes, Key] = {}  # -> the client and the round whose noise it made

    def on_drawn(self, client: Process, round_id: bytes, made: Outbound) -> None:
        """Noise is fresh: an honest client that contributes has drawn it from a key of its own."""
        first = self._noise_keys.setdefault(self.log.draws.key, (client.id, round_id))
        self.expect(first == (client.id, round_id), f"{about(client, round_id)}: its noise was used before")

    def on_send(self, process: Process, send: Send) -> None:
        """What an honest client encrypts: its nonce or id is new unless it is a repetition, its size the others'."""
        if process.role is not Channel.CLIENT or not self.is_honest(process):
            return
        frame = decode_frame(send.payload)
        if not isinstance(frame, Contribution | Sealed):
            return
        who = about(process, send.round_id)
        unique = frame.contribution if isinstance(frame, Contribution) else frame.nonce
        first = self._nonces.setdefault(unique, send.payload)
        self.expect(first == send.payload, f"{who}: a nonce or an id is used for two ciphertexts")
        # A data node's release is left out, whose number of rows is public, and so is a message that declines.
        is_report = self.log.is_release(process.id, send.round_id, send.payload) and (
            self.log.announcements[send.round_id].mechanism in LOCAL_MECHANISMS
        )
        if isinstance(frame, Contribution) or is_report:
            size = self._sizes.setdefault(send.round_id, len(send.payload))
            self.expect(size == len(send.payload), f"{who}: it sends {len(send.payload)} bytes, others {size}")

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: Kept) -> None:
        """Masks are fresh: no two contributions have a tag alike, or begin alike."""
        if client not in self.log.dishonest:
            tags = [kept.tags[at : at + 8] for at in range(0, len(kept.tags), 8)]
            whose = client, round_id
            alike = [one for one in (*tags, kept.y[:8]) if self._once.setdefault(one, whose) != whose]
            self.expect(not alike, f"{node.name} keeps a tag or a masked word that another contribution has, too")

    def finish(self) -> None:
        """Compare with the neighbouring run."""
        if self._other is None:
            return
        (other, changed), own = self._other, self._own
        self.checked += min(len(own.passed), len(other.passed))
        for mine, theirs in zip(own.passed, other.passed, strict=False):
            if mine != theirs:
                self.fail(f"traffic depends on the data of a client: {mine}, or else {theirs}")
                break
        counts = len(own.passed), len(other.passed)
        self.expect(counts[0] == counts[1], f"traffic depends on the data of a client: {counts[0]} or {counts[1]}")
        same = own.held.keys() == other.held.keys()
        self.expect(same, "who holds whose contribution depends on the data of a client")
        for key in own.held.keys() & other.held.keys():
            (node, _, client), held, else_held = key, own.held[key], other.held[key]
            shapes = [(kept.charge, len(kept.tags), len(kept.y)) for kept in (held, else_held)]
            same = held == else_held if client != changed else shapes[0] == shapes[1]
            self.expect(same, f"compute {node.hex()[:8]} sees what client {client.hex()[:8]} holds")
        self.expect(own.released.keys() == other.released.keys(), "who releases depends on the data of a client")
        for of in own.released.keys() & other.released.keys():
            said, else_said, client = own.released[of], other.released[of], of[1]
            same = said == else_said or (client == changed and _blank(said) == _blank(else_said))
            what = f"what client {client.hex()[:8]} sends beside its release depends on the data of a client"
            self.expect(same, what)


class Repetition(Checker):
    """Invariant 9: the same seed gives the same run, byte for byte in its trace of facts.

    Args:
        digest: of another run of the same scenario; None checks nothing.
    """

    number, name = 9, "same seed, same run"

    def __init__(self, world: TrialWorld, log: RunLog, digest: str | None = None) -> None:
        super().__init__(world, log)
        self._before = digest

    def finish(self) -> None:
        if self._before is not None:
            found = self.world.simulator.trace.digest()
            self.expect(found == self._before, f"the trace has digest {found}, and had {self._before}")


def _blank(frame: Signed) -> Release:
    """With zeros for what is drawn from the client's own randomness and its value."""
    release = release_in(frame)
    zeros = {name: bytes(len(getattr(release, name))) for name in ("contribution", "receipt_key", "vector")}
    return msgspec.structs.replace(release, **zeros)
