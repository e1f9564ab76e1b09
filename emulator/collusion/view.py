"""What the coalition's machines hold, and what passes the broker: recorded while the actors run, and listed in
sentences.

A Compute node that colludes shows its disk (its keys, the contributions that it holds, lists) and what its peers tell
it; a trainer shows its own (the answers that were sealed to it, one partial sum of each node). Of the broker there is
who sent what, to whom, when, and how long it was: it can read the signed frames, and opens nothing that is sealed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from dca_proto.crypto.fixedpoint import ring_from_bytes
from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.compute.round import ANNOUNCEMENTS, CONTRIBUTIONS, LISTS, StoredList
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.effects import Persist, Send, Write
from dca_proto.protocol.facts import Declined, RoundCompleted, RoundFailed
from dca_proto.protocol.lists import clients_of
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import ROUNDS as TRAINER_ROUNDS
from dca_proto.protocol.trainer.round import StoredRound
from dca_proto.protocol.wire.codec import decode_body
from dca_proto.protocol.wire.messages import Answer, PartialSum, Sealed
from emulator.collusion.coalition import Case
from emulator.collusion.members import Party
from emulator.pairs import Pairs
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.simulator import US, Simulator
from emulator.wire import Accepted, body_of, decode_accepted


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


class View(Observer):
    """What is seen of one round.

    Args:
        simulator: where it is held. party: all actors. computes: ids of the colluding Compute nodes. dimension: d.

    Attributes:
        asked: the announcement, as a colluding node has stored it; None before.
        clients: ids of those in the lists that the nodes hold. kept: contributions that they hold, by client.
        told: how many lists and answers the nodes' peers sent.
        partials: at the trainer, by node; whether or not it belongs to the coalition.
        sent, delivered: all messages, as they are handed to the broker and as it hands them on.
        ended: how the trainer says that the round ended. declined: a client's refusal, the first.
    """

    def __init__(self, simulator: Simulator, party: Party, computes: Sequence[bytes], dimension: int) -> None:
        self._simulator = simulator
        self._pairs = Pairs(party.federation.id)
        self._computes = frozenset(computes)
        self._trainer = party.trainer_identity.id
        self._dimension = dimension
        self.begin()

    def begin(self) -> None:
        """A new round: what was seen of the last one is put aside."""
        self.asked: Accepted | None = None
        self.clients: set[bytes] = set()
        self.kept: dict[bytes, Kept] = {}
        self.told = 0
        self.partials: dict[bytes, RingVector] = {}
        self.sent: list[Passed] = []
        self.delivered: list[Passed] = []
        self.ended: RoundCompleted | RoundFailed | None = None
        self.declined: Declined | None = None

    def arrived(self, client: bytes) -> RingVector | None:
        """A client's masked vector as it came; None where another node holds it."""
        kept = self.kept.get(client)
        return None if kept is None else ring_from_bytes(kept.y, self._dimension)

    def unmasked(self, client: bytes) -> RingVector | None:
        """A client's masked vector with all masks of the coalition's nodes taken off; None where it holds none."""
        vector, asked = self.arrived(client), self.asked
        if vector is None or asked is None:
            return None
        kept, masks = self.kept[client], []
        for place, key in enumerate(asked.epochs):
            if key.compute in self._computes:
                tag = kept.tags[8 * place : 8 * place + 8]
                mask = self._pairs.mask(key, client, tag, asked.hash, kept.entry, self._dimension)
                assert mask is not None, "an honest client gives a tag under its own key"
                masks.append(ring_from_bytes(mask, self._dimension))
        return reduce(np.add, masks, vector)

    def on_send(self, process: Process, send: Send) -> None:
        self._pass(self.sent, process.id, send.to.channel.value, send.to.id, send.payload)

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        self._pass(self.delivered, sender, process.role.value, process.id, payload)
        if process.id in self._computes and isinstance(body_of(payload), Answer | Sealed):
            self.told += 1

    def on_fact(self, process: Process, fact: object) -> None:
        if isinstance(fact, RoundCompleted | RoundFailed):
            self.ended = fact
        elif isinstance(fact, Declined):
            self.declined = self.declined or fact

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        self._pairs.on_commit(process, writes)  # of the clients' keys the public part is used
        is_ours = process.id in self._computes
        for write in writes:
            match write:
                case Persist(table, _, value) if is_ours and table == ANNOUNCEMENTS:
                    self.asked = decode_accepted(value)
                case Persist(table, key, value) if is_ours and table == CONTRIBUTIONS:
                    self.kept[key[ID_BYTES:]] = Kept(value)
                    self.clients.add(key[ID_BYTES:])
                case Persist(table, _, value) if is_ours and table == LISTS:
                    self.clients.update(clients_of(decoded(LISTS, value, StoredList).entries))
                case Persist(table, _, value) if process.id == self._trainer and table == TRAINER_ROUNDS:
                    for compute, frame in decoded(TRAINER_ROUNDS, value, StoredRound).partials:
                        partial = decode_body(frame.body)
                        assert isinstance(partial, PartialSum), "the trainer checked it"
                        self.partials[compute] = ring_from_bytes(partial.vector, self._dimension)

    def _pass(self, log: list[Passed], sender: bytes, channel: str, to: bytes, payload: bytes) -> None:
        simulator = self._simulator
        at_us = simulator.now_us - simulator.start_ms * US
        log.append(Passed(at_us, simulator.processes[sender].role.value, sender, channel, to, len(payload)))


def observations(case: Case, view: View) -> Iterator[str]:
    """Everything that the coalition's members see of a round, item by item, with its figures."""
    coalition = case.coalition
    if coalition.revealing:
        yield f"{_count(coalition.revealing, 'client')}: their own data and noise, which they reveal"
    if coalition.omitting:
        yield f"{_count(coalition.omitting, 'client')}: their own data, to which they add no noise"
    if coalition.silent:
        yield f"{_count(coalition.silent, 'client')}: the announcement; they send nothing"
    if coalition.nodes:
        who = f"{coalition.nodes} of {case.setting.computes} Compute nodes"
        yield from (f"{who}: {item}" for item in _at_nodes(case, view))
    if coalition.trainer and isinstance(view.ended, RoundCompleted):
        yield f"trainer: who is in the sum: {case.contributors} clients, their ids"
        yield f"trainer: {len(view.partials)} partial sums, and so the private sum over {case.contributors} clients"
    elif coalition.trainer:
        yield "trainer: signed aborts with the number of contributions, and no sum"
    if coalition.broker:
        yield from (f"broker: {item}" for item in _at_broker(view.sent))


def _at_nodes(case: Case, view: View) -> Iterator[str]:
    nodes, kept, charges = case.coalition.nodes, len(view.kept), [one.charge for one in view.kept.values()]
    yield f"who takes part: {len(view.clients)} clients, their ids and keys"
    yield f"of those that they hold, {kept} masked vectors of {case.setting.dimension} words"
    yield f"their own masks and tags of each contribution, {nodes} of {case.setting.computes}"
    if charges:
        yield f"charge numbers, how often each client was ever charged: {_span(charges)}"
    if view.told:
        told = _count(view.told, "message")
        yield f"whose contributions the other nodes hold, and what they object to, in {told}"
    if case.has_all_nodes:
        yield "all masks of each client, hence its value with its own noise and nobody else's"


def _at_broker(sent: Sequence[Passed]) -> Iterator[str]:
    """Who sends to whom, when, and how much; in classes of sender and channel."""
    classes: dict[tuple[str, str], list[Passed]] = defaultdict(list)
    for passed in sent:
        classes[passed.role, passed.channel].append(passed)
    size, began_us = sum(passed.size for passed in sent), min(passed.at_us for passed in sent)
    yield f"{len(sent)} messages, {size:,} bytes: sender, receiver, time and length of each"
    for (role, channel), group in classes.items():
        length, time_ms = _span([one.size for one in group]), _span([(one.at_us - began_us) // US for one in group])
        yield f"{role} to {channel}: {_count(len(group), 'message')} of {length} bytes, at {time_ms} ms"
    yield "what is signed and not sealed, clients' keys among it; contributions, lists and partial sums are sealed"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
