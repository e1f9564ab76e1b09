"""What the coalition's machines hold, and what passes the broker: written down while the actors run.

A Compute node that colludes shows its disk (its keys, the contributions that it holds, lists) and what its peers tell
it; a trainer shows its own (the answers that were sealed to it, one partial sum of each node). Of the broker there is
who sent what, to whom, when, and how long it was: it can read the signed frames, and opens nothing that is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from dca_proto.crypto.fixedpoint import ring_from_bytes
from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.compute.round import ANNOUNCEMENTS, CONTRIBUTIONS, LISTS, StoredList
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.effects import Persist, Send, Write
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.lists import clients_of
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import ROUNDS as TRAINER_ROUNDS
from dca_proto.protocol.trainer.round import StoredRound
from dca_proto.protocol.wire.codec import decode_body
from dca_proto.protocol.wire.messages import Answer, PartialSum, Sealed
from emulator.pairs import Pairs
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.simulator import US, Simulator
from emulator.wire import Asked, asked_in, body_of


class Passed(NamedTuple):
    """A message that passes the broker: when, in microseconds since the start, from whom (and its role), to whom.

    `to` is empty for a broadcast, until it is delivered. `size` is in bytes.
    """

    at_us: int
    role: str
    sender: bytes
    channel: str
    to: bytes
    size: int


class Traffic(Observer):
    """All messages, as they are handed to the broker (`sent`) and as it hands them on (`delivered`)."""

    def __init__(self, simulator: Simulator) -> None:
        self.sent: list[Passed] = []
        self.delivered: list[Passed] = []
        self._simulator = simulator

    def on_send(self, process: Process, send: Send) -> None:
        self.sent.append(self._passed(process.id, send.to.channel.value, send.to.id, send.payload))

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        self.delivered.append(self._passed(sender, process.role.value, process.id, payload))

    def clear(self) -> None:
        """Forget what was written down."""
        self.sent.clear()
        self.delivered.clear()

    def _passed(self, sender: bytes, channel: str, to: bytes, payload: bytes) -> Passed:
        simulator = self._simulator
        at_us = simulator.now_us - simulator.start_ms * US
        return Passed(at_us, simulator.processes[sender].role.value, sender, channel, to, len(payload))


class Holdings:
    """What the coalition's Compute nodes and trainer hold of one round.

    Attributes:
        asked: the announcement, as a node has stored it; None before.
        clients: ids of those in the lists that the nodes hold. kept: contributions that they hold, by client.
        told: how many lists and answers the nodes' peers sent. partials: at the trainer, by node.
    """

    def __init__(self) -> None:
        self.asked: Asked | None = None
        self.clients: set[bytes] = set()
        self.kept: dict[bytes, Kept] = {}
        self.told = 0
        self.partials: dict[bytes, RingVector] = {}

    @property
    def charges(self) -> dict[bytes, int]:
        """Of each client whose contribution is held, how often it was ever charged."""
        return {client: kept.charge for client, kept in self.kept.items()}


class View(Observer):
    """Fills `held` while a round runs.

    Args:
        computes: ids of the colluding Compute nodes. trainer: the colluding trainer's id, or None. dimension: d.
    """

    def __init__(
        self, federation: Federation, computes: Sequence[bytes], trainer: bytes | None, dimension: int
    ) -> None:
        self.held = Holdings()
        self._pairs = Pairs(federation.id)
        self._computes = frozenset(computes)
        self._trainer = trainer
        self._dimension = dimension

    def begin(self) -> None:
        """A new round: what was held of the last one is put aside."""
        self.held = Holdings()

    def arrived(self, client: bytes) -> RingVector | None:
        """A client's masked vector as it came; None where another node holds it."""
        kept = self.held.kept.get(client)
        return None if kept is None else ring_from_bytes(kept.y, self._dimension)

    def unmasked(self, client: bytes) -> RingVector | None:
        """A client's masked vector with all masks of the coalition's nodes taken off; None where it holds none."""
        kept, asked = self.held.kept.get(client), self.held.asked
        if kept is None or asked is None:
            return None
        vector = ring_from_bytes(kept.y, self._dimension)
        masks = []
        for place, key in enumerate(asked.epochs):
            if key.compute in self._computes:
                tag = kept.tags[8 * place : 8 * place + 8]
                mask = self._pairs.mask(key, client, tag, asked.hash, kept.entry, self._dimension)
                assert mask is not None, "an honest client gives a tag under its own key"
                masks.append(ring_from_bytes(mask, self._dimension))
        return reduce(np.add, masks, vector)

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        if process.id in self._computes and isinstance(body_of(payload), Answer | Sealed):
            self.held.told += 1

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        self._pairs.on_commit(process, writes)  # of the clients' keys the public part is used
        for write in writes:
            if isinstance(write, Persist) and process.id in self._computes:
                self._note_node(write)
            elif isinstance(write, Persist) and process.id == self._trainer and write.table == TRAINER_ROUNDS:
                self._note_trainer(decoded(TRAINER_ROUNDS, write.value, StoredRound))

    def _note_node(self, write: Persist) -> None:
        if write.table == ANNOUNCEMENTS:
            self.held.asked = asked_in(write.value)
        elif write.table == CONTRIBUTIONS:
            self.held.kept[write.key[ID_BYTES:]] = Kept(write.value)
            self.held.clients.add(write.key[ID_BYTES:])
        elif write.table == LISTS:
            self.held.clients.update(clients_of(decoded(LISTS, write.value, StoredList).entries))

    def _note_trainer(self, stored: StoredRound) -> None:
        for compute, frame in stored.partials:
            partial = decode_body(frame.body)
            assert isinstance(partial, PartialSum), "the trainer checked it"
            self.held.partials[compute] = ring_from_bytes(partial.vector, self._dimension)
