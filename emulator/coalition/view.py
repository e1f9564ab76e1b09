"""Records what the coalition's machines store and what passes the broker, and lists it in sentences.

A colluding Compute node shares its disk (keys, contributions, lists) and the messages of its peers. A colluding trainer
shares its disk: the answers sealed to it, with a partial sum of each node. The broker knows sender, receiver, time and
length of each message. It can read signed frames, but cannot open sealed ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.compute.round import ANNOUNCEMENTS, CONTRIBUTIONS, LISTS, StoredList
from dca_proto.protocol.contribution import HeldContribution
from dca_proto.protocol.effects import Persist, Send, Write
from dca_proto.protocol.facts import Declined, RoundCompleted, RoundFailed
from dca_proto.protocol.lists import clients_of
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import ROUNDS as TRAINER_ROUNDS
from dca_proto.protocol.trainer.round import StoredTrainerRound
from dca_proto.protocol.wire.codec import decode_body
from dca_proto.protocol.wire.messages import Answer, PartialSum, Sealed
from dca_proto.wording import counted
from emulator.coalition.members import Party
from emulator.coalition.worlds import Setting
from emulator.derivations import TAG_BYTES
from emulator.pairs import Pairs
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.simulator import US, Simulator
from emulator.wire import Accepted, body_of, decode_accepted, words_in

Integers = NDArray[np.int64]


class SeenRound(msgspec.Struct, frozen=True):
    """What a coalition sees of one round, and the truth; in grid units, shape ``(dimension,)`` each.

    Attributes:
        victim: the victim's masked vector with the coalition's masks removed, in the ring; None if an honest node
            holds it. arrived: the same vector with all masks, as it arrived.
        others: as `victim`, of the other honest clients whose vectors the coalition holds. partials: the partial sums.
        total: the released sum; None if the round was aborted.
        known: sum of the contributions of the coalition's clients, with their noise.
        honest: sum of the honest clients' data, including the victim's, without noise. secret: the victim's data.
        noises: by client, of a few honest clients whose contributions were kept, others in each federation. No
            coalition knows them: they are what the holders keep, without all masks and without the data.
    """

    victim: RingVector | None
    arrived: RingVector | None
    others: list[RingVector]
    partials: list[RingVector]
    total: Integers | None
    known: Integers
    honest: Integers
    secret: Integers
    noises: dict[int, Integers]


class SeenMessage(NamedTuple):
    """A message at the broker. `at_us`: microseconds since the start. `role`: the sender's. `size`: in bytes.

    `to` is empty for a broadcast that has not been delivered.
    """

    at_us: int
    role: str
    sender: bytes
    channel: str
    to: bytes
    size: int


class RoundView(Observer):
    """The view of one round.

    Args:
        simulator: runs the round. party: all actors. computes: ids of the colluding Compute nodes. dimension: d.

    Attributes:
        announcement: as a colluding node stored it; None before.
        clients: ids of the clients in the colluding nodes' lists. kept: contributions that these nodes hold, by client.
        from_peers: how many lists and answers the colluding nodes received from others.
        partials: at the trainer, by node; recorded whether or not it colludes.
        sent, delivered: all messages, as the broker received and delivered them.
        ended: the trainer's outcome of the round. declined: the first refusal of a client.
    """

    def __init__(self, simulator: Simulator, party: Party, computes: Sequence[bytes], dimension: int) -> None:
        self._simulator = simulator
        self._pairs = Pairs(party.federation.id)
        self._computes = frozenset(computes)
        self._trainer = party.trainer_identity.id
        self._dimension = dimension
        self.begin()

    def begin(self) -> None:
        """Start a new round; forget the last one."""
        self.announcement: Accepted | None = None
        self.clients: set[bytes] = set()
        self.kept: dict[bytes, HeldContribution] = {}
        self.from_peers = 0
        self.partials: dict[bytes, RingVector] = {}
        self.sent: list[SeenMessage] = []
        self.delivered: list[SeenMessage] = []
        self.ended: RoundCompleted | RoundFailed | None = None
        self.declined: Declined | None = None

    def arrived(self, client: bytes) -> RingVector | None:
        """Return a client's masked vector as it arrived; None if an honest node holds it."""
        kept = self.kept.get(client)
        return None if kept is None else words_in(kept.y)

    def unmasked(self, client: bytes) -> RingVector | None:
        """Return a client's masked vector without the masks of the coalition's nodes; None if they do not hold it."""
        kept, announcement = self.kept.get(client), self.announcement
        if kept is None or announcement is None:
            return None
        own = [place for place, key in enumerate(announcement.epochs) if key.compute in self._computes]
        return without_masks(kept, announcement, client, own, self._pairs, self._dimension)

    def on_send(self, process: Process, send: Send) -> None:
        self._log(self.sent, process.id, send.to.channel.value, send.to.id, send.payload)

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        self._log(self.delivered, sender, process.role.value, process.id, payload)
        if process.id in self._computes and isinstance(body_of(payload), Answer | Sealed):
            self.from_peers += 1

    def on_fact(self, process: Process, fact: object) -> None:
        if isinstance(fact, RoundCompleted | RoundFailed):
            self.ended = fact
        elif isinstance(fact, Declined):
            self.declined = self.declined or fact

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        self._pairs.on_commit(process, writes)  # uses only the public part of the clients' keys
        is_ours = process.id in self._computes
        for write in writes:
            match write:
                case Persist(table, _, value) if is_ours and table == ANNOUNCEMENTS:
                    self.announcement = decode_accepted(value)
                case Persist(table, key, value) if is_ours and table == CONTRIBUTIONS:
                    self.kept[key[ID_BYTES:]] = HeldContribution(value)
                    self.clients.add(key[ID_BYTES:])
                case Persist(table, _, value) if is_ours and table == LISTS:
                    self.clients.update(clients_of(decoded(LISTS, value, StoredList).entries))
                case Persist(table, _, value) if process.id == self._trainer and table == TRAINER_ROUNDS:
                    for compute, frame in decoded(TRAINER_ROUNDS, value, StoredTrainerRound).partials:
                        partial = decode_body(frame.body)
                        assert isinstance(partial, PartialSum), "the trainer has checked it"
                        self.partials[compute] = words_in(partial.vector)

    def _log(self, log: list[SeenMessage], sender: bytes, channel: str, to: bytes, payload: bytes) -> None:
        simulator = self._simulator
        at_us = simulator.now_us - simulator.start_ms * US
        log.append(SeenMessage(at_us, simulator.processes[sender].role.value, sender, channel, to, len(payload)))


def without_masks(
    kept: HeldContribution, announcement: Accepted, client: bytes, places: Iterable[int], pairs: Pairs, dimension: int
) -> RingVector | None:
    """Return a client's masked vector without the masks of some Compute nodes, by their places in the announcement.

    Returns None if a mask is not the one of DESIGN: `leaked_secrets` finds that.
    """
    total = words_in(kept.y)
    for place in places:
        key, tag = announcement.epochs[place], kept.tags[TAG_BYTES * place : TAG_BYTES * (place + 1)]
        mask = pairs.mask(key, client, tag, announcement.hash, kept.entry, dimension)
        if mask is None:
            return None
        total = total + words_in(mask)  # modulo 2^64
    return total


def observations(setting: Setting, view: RoundView) -> Iterator[str]:
    """Yield everything that the coalition's members see of a round, item by item, with figures."""
    coalition = setting.coalition
    if coalition.clients:
        yield f"{counted(coalition.clients, 'client')}: their own data and noise, which they reveal"
    if coalition.omitting:
        yield f"{counted(coalition.omitting, 'client')}: their own data, to which they add no noise"
    if coalition.computes:
        nodes = f"{coalition.computes} of {setting.computes} Compute nodes"
        yield from (f"{nodes}: {item}" for item in _at_nodes(setting, view))
    if coalition.trainer and isinstance(view.ended, RoundCompleted):
        yield f"trainer: who is in the sum: {setting.contributors} clients, their ids"
        yield f"trainer: {len(view.partials)} partial sums, and so the private sum over {setting.contributors} clients"
    elif coalition.trainer:
        yield "trainer: signed aborts with the number of contributions, and no sum"
    if coalition.broker:
        yield from (f"broker: {item}" for item in _at_broker(view.sent))


def _at_nodes(setting: Setting, view: RoundView) -> Iterator[str]:
    nodes, kept = setting.coalition.computes, len(view.kept)
    charges = [entry.charge for entry in view.kept.values()]
    yield f"who takes part: {len(view.clients)} clients, their ids and keys"
    yield f"{kept} masked vectors of {setting.columns} words, from the clients assigned to these nodes"
    yield f"the nodes' own masks and tags of each contribution, {nodes} of {setting.computes}"
    if charges:
        yield f"charge numbers, how often each client was ever charged: {_span(charges)}"
    if view.from_peers:
        messages = counted(view.from_peers, "message")
        yield f"which contributions the other nodes hold, and their objections, in {messages}"
    if setting.has_all_computes:
        yield "all masks of each client, hence its value with no noise but its own"


def _at_broker(sent: Sequence[SeenMessage]) -> Iterator[str]:
    """Yield who sends to whom, when, and how much; grouped by the sender's role and the channel."""
    groups: dict[tuple[str, str], list[SeenMessage]] = defaultdict(list)
    for message in sent:
        groups[message.role, message.channel].append(message)
    size, began_us = sum(message.size for message in sent), min(message.at_us for message in sent)
    yield f"{len(sent)} messages, {size:,} bytes: sender, receiver, time and length of each"
    for (role, channel), group in groups.items():
        length = _span([message.size for message in group])
        time_ms = _span([(message.at_us - began_us) // US for message in group])
        yield f"{role} to {channel}: {counted(len(group), 'message')} of {length} bytes, at {time_ms} ms"
    yield "signed messages, including clients' keys, in clear; contributions, lists and partial sums are sealed"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
