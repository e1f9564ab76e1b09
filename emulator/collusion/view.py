"""What the coalition's machines hold, and what passes the broker: written down while the actors run.

A Compute node that colludes shows its disk (rosters, opened shares, charge numbers) and what its peers tell it; a
trainer shows its own (the answers that were sealed to it, one partial sum of each node). Of the broker there is who
sent what, to whom, when, and how long it was: it can read the signed frames, and opens nothing that is sealed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dca_proto.core.charges import TABLE as CHARGES
from dca_proto.core.charges import WINDOW
from dca_proto.core.codec import decode_body, decode_frame
from dca_proto.core.compute import SHARES
from dca_proto.core.effects import Persist, Send, Write
from dca_proto.core.fixedpoint import ring_from_bytes
from dca_proto.core.messages import Frozen, FrozenList, Join, PartialSum, Roster, Signed
from dca_proto.core.records import decoded
from dca_proto.core.sealing import ID_BYTES, actor_id
from dca_proto.core.shares import RingVector, mask, vector_node
from dca_proto.core.trainer_round import ROUNDS as TRAINER_ROUNDS
from dca_proto.core.trainer_round import StoredRound
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.simulator import US, Simulator


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
        clients: ids on the roster, by position; known to nodes and trainer.
        bodies: of each colluding node, the opened share of each position.
        charges: of each client, the number of its latest charge. told: what the node's peers said, by kind.
        partials: at the trainer, the partial sum of each node.
    """

    def __init__(self) -> None:
        self.clients: tuple[bytes, ...] = ()
        self.bodies: dict[bytes, dict[int, bytes]] = {}
        self.charges: dict[bytes, int] = {}
        self.told: Counter[str] = Counter()
        self.partials: dict[bytes, RingVector] = {}

    def shares(self, client: bytes, round_id: bytes, computes: Sequence[bytes], dimension: int) -> list[RingVector]:
        """A client's shares at the colluding nodes, in the order of `computes`, seeds expanded as a node does it.

        Empty where the client is not on the roster; a node that has none of it is left out.
        """
        if client not in self.clients:
            return []
        position, full_at = self.clients.index(client), vector_node(round_id, client, len(computes))
        held = [
            (place, self.bodies[compute][position])
            for place, compute in enumerate(computes)
            if position in self.bodies.get(compute, ())
        ]
        return [ring_from_bytes(body, dimension) if place == full_at else mask(body, dimension) for place, body in held]


class View(Observer):
    """Fills `held` while a round runs.

    Args:
        computes: ids of the colluding Compute nodes. trainer: the colluding trainer's id, or None. dimension: d.
    """

    def __init__(self, computes: Sequence[bytes], trainer: bytes | None, dimension: int) -> None:
        self.held = Holdings()
        self._computes = frozenset(computes)
        self._trainer = trainer
        self._dimension = dimension

    def begin(self) -> None:
        """A new round: what was held of the last one is put aside."""
        self.held = Holdings()

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        if process.id not in self._computes:
            return
        frame = decode_frame(payload)
        if isinstance(frame, Signed):
            self._note_told(decode_body(frame.body))

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        if process.id in self._computes:
            for write in writes:
                self._note_write(process.id, write)
        elif process.id == self._trainer:
            for write in writes:
                if isinstance(write, Persist) and write.table == TRAINER_ROUNDS:
                    self._note_trainer(decoded(TRAINER_ROUNDS, write.value, StoredRound))

    def _note_told(self, body: object) -> None:
        if isinstance(body, Roster):
            self.held.clients = _clients(body)
        elif isinstance(body, Frozen | FrozenList):
            self.held.told[type(body).__name__] += 1

    def _note_write(self, compute: bytes, write: Write) -> None:
        if not isinstance(write, Persist):
            return
        if write.table == SHARES:
            position = int.from_bytes(write.key[ID_BYTES:], "big")
            self.held.bodies.setdefault(compute, {})[position] = write.value[ID_BYTES:]
        elif write.table == CHARGES:
            self.held.charges[write.key] = int.from_bytes(write.value, "big") >> WINDOW

    def _note_trainer(self, stored: StoredRound) -> None:
        if stored.roster is not None:
            roster = decode_body(stored.roster.body)
            assert isinstance(roster, Roster), "the trainer made it"
            self.held.clients = _clients(roster)
        for compute, frame in stored.partials:
            partial = decode_body(frame.body)
            assert isinstance(partial, PartialSum), "the trainer checked it"
            self.held.partials[compute] = ring_from_bytes(partial.vector, self._dimension)


def _clients(roster: Roster) -> tuple[bytes, ...]:
    joins = (decode_body(join.body) for join in roster.joins)
    return tuple(actor_id(join.certificate.client_key) for join in joins if isinstance(join, Join))
