"""Invariant 5: the view of M - 1 Compute nodes and the broker does not depend on data. Invariant 9: runs repeat.

In every run, no contribution id, tag, masked vector, nonce or key of noise is used twice. All contributions of a round
have the same size, and so have all reports.

A second run of the same seed on neighbouring data has the same messages: times, senders, receivers and sizes. Compute
nodes keep the same, except the id, tags and masked vector of the client whose data changed, which are pseudorandom.
Without Compute nodes, the trainer keeps the same except that client's release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.protocol.compute.round import CONTRIBUTIONS
from dca_proto.protocol.contribution import ClientMessage, HeldContribution
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
    """A message as the broker sees it, without its content."""

    at_us: int
    sender: bytes
    channel: str
    to: bytes
    round_id: bytes
    size: int

    def __str__(self) -> str:
        return f"{self.sender.hex()[:8]} to {self.channel} {self.to.hex()[:8]}, {self.size} bytes at {self.at_us} us"


class Transcript(Observer):
    """The messages of a run without their contents, and the records of its Compute nodes and trainer.

    Attributes:
        passed: all messages, in order. held: kept contribution by node, round and client.
        released: release or report, by round and client, as the trainer keeps it.
    """

    def __init__(self, world: TrialWorld) -> None:
        self.passed: list[Passed] = []
        self.held: dict[tuple[bytes, bytes, bytes], HeldContribution] = {}
        self.released: dict[tuple[bytes, bytes], Signed] = {}
        self._simulator = world.simulator

    def on_send(self, process: Process, send: Send) -> None:
        now_us, to = self._simulator.now_us, send.to
        self.passed.append(Passed(now_us, process.id, to.channel.value, to.id, send.round_id, len(send.payload)))

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        for write in writes:
            key = write.key[:ID_BYTES], write.key[ID_BYTES:]
            if isinstance(write, Persist) and write.table == CONTRIBUTIONS:
                self.held[process.id, *key] = HeldContribution(write.value)
            elif isinstance(write, Persist) and write.table == RELEASES:
                self.released[key] = decoded(RELEASES, write.value, Signed)


def neighbour(world: TrialWorld) -> bytes:
    """Give one honest client other rows, before any round, and return its id.

    Their number changes, too, except in node releases, where it is public.
    """
    client = next(process.id for process in world.clients if process.id not in world.hostile)
    index = world.client_number(client)
    rows = -world.actors.rows[index] + 0.25
    more = 0 if world.actors.policy.rows_of_many else 1
    world.actors.rows = [*world.actors.rows]
    world.actors.rows[index] = np.vstack([rows, np.full((more, rows.shape[1]), np.nan)])
    return client


class ViewChecker(Checker):
    """Checks sizes, ids, tags, nonces and noise keys of a run, and compares it with a run on neighbouring data.

    Args:
        other: transcript of the run on neighbouring data, and the id of the client whose data differ; None to skip.
    """

    number, name = 5, "view independent of data"

    def __init__(self, world: TrialWorld, log: RunLog, other: tuple[Transcript, bytes] | None = None) -> None:
        super().__init__(world, log)
        self._own = Transcript(world)
        self._other = other
        if other is not None:
            world.simulator.observers.append(self._own)
        self._nonces: dict[bytes, bytes] = {}  # nonce or contribution id -> payload
        self._once: dict[bytes, Key] = {}  # tag or first masked word -> client and round
        self._sizes: dict[bytes, int] = {}  # by round
        self._noise_keys: dict[bytes, Key] = {}  # -> client and round

    def on_drawn(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        """Noise is fresh: no other contribution has drawn it from the same key."""
        if self.log.draws.drawn is None:
            return  # a verified sum has noise keys of its own (invariant 12)
        first = self._noise_keys.setdefault(self.log.draws.key, (client.id, round_id))
        self.expect(first == (client.id, round_id), f"{about(client, round_id)}: its noise was used before")

    def on_send(self, process: Process, send: Send) -> None:
        """An honest client's ciphertext has a new nonce or id unless it is a resend, and the size of the others."""
        if process.role is not Channel.CLIENT or not self.is_honest(process):
            return
        frame = decode_frame(send.payload)
        if not isinstance(frame, Contribution | Sealed):
            return
        who = about(process, send.round_id)
        unique = frame.contribution if isinstance(frame, Contribution) else frame.nonce
        first = self._nonces.setdefault(unique, send.payload)
        self.expect(first == send.payload, f"{who}: a nonce or an id is used for two ciphertexts")
        # Sizes of node releases (their number of rows is public) and of declines may differ.
        is_report = self.log.is_release(process.id, send.round_id, send.payload) and (
            self.log.announcements[send.round_id].kind.mechanism in LOCAL_MECHANISMS
        )
        if isinstance(frame, Contribution) or is_report:
            size = self._sizes.setdefault(send.round_id, len(send.payload))
            self.expect(size == len(send.payload), f"{who}: it sends {len(send.payload)} bytes, others {size}")

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: HeldContribution) -> None:
        """Masks are fresh: no two contributions share a tag or the first masked word."""
        if client not in self.log.dishonest:
            tags = [kept.tags[at : at + 8] for at in range(0, len(kept.tags), 8)]
            key = client, round_id
            repeated = [value for value in (*tags, kept.y[:8]) if self._once.setdefault(value, key) != key]
            self.expect(not repeated, f"{node.name} keeps a tag or a masked word of another contribution")

    def finish(self) -> None:
        """The run on neighbouring data looks the same."""
        if self._other is None:
            return
        (other, changed), own = self._other, self._own
        self.checked += min(len(own.passed), len(other.passed))
        for mine, theirs in zip(own.passed, other.passed, strict=False):
            if mine != theirs:
                self.fail(f"traffic depends on the data of a client: {mine} in one run, {theirs} in the other")
                break
        count, else_count = len(own.passed), len(other.passed)
        same = count == else_count
        self.expect(same, f"traffic depends on the data of a client: {count} or {else_count} messages")
        same = own.held.keys() == other.held.keys()
        self.expect(same, "the holders of contributions depend on the data of a client")
        for key in own.held.keys() & other.held.keys():
            (node, _, client), held, else_held = key, own.held[key], other.held[key]
            shapes = [(kept.charge, len(kept.tags), len(kept.y)) for kept in (held, else_held)]
            same = held == else_held if client != changed else shapes[0] == shapes[1]
            self.expect(same, f"what compute {node.hex()[:8]} keeps of client {client.hex()[:8]} depends on its data")
        self.expect(own.released.keys() == other.released.keys(), "the senders of releases depend on a client's data")
        for pair in own.released.keys() & other.released.keys():
            first, second, client = own.released[pair], other.released[pair], pair[1]
            same = first == second or (client == changed and _blank(first) == _blank(second))
            self.expect(same, f"what client {client.hex()[:8]} sends beside its release depends on a client's data")


class Repetition(Checker):
    """Invariant 9: the same seed gives the same run, that is, the same digest of its trace.

    Args:
        digest: of another run of the same scenario; None to skip.
    """

    number, name = 9, "same seed, same run"

    def __init__(self, world: TrialWorld, log: RunLog, digest: str | None = None) -> None:
        super().__init__(world, log)
        self._before = digest

    def finish(self) -> None:
        if self._before is not None:
            digest = self.world.simulator.trace.digest()
            self.expect(digest == self._before, f"the trace has digest {digest}; in another run it had {self._before}")


def _blank(frame: Signed) -> Release:
    """Decode a release, with zeros for all fields that depend on the client's randomness or value."""
    release = release_in(frame)
    zeros = {name: bytes(len(getattr(release, name))) for name in ("contribution", "receipt_key", "vector")}
    return msgspec.structs.replace(release, **zeros)
