"""Helpers of the protocol tests: rounds advanced to a step, opened and forged messages, and compared states.

A test acts as a hostile trainer, Compute node, client or broker. It has the keys of that role (all keys of a
`TestFederation` are known), writes any message, and checks how the production actors react.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from wiretap import opened_contribution

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import AgreementKey, Identity
from dca_proto.errors import PeerError
from dca_proto.protocol.announcement import (
    OpenedAnnouncement,
    open_announcement,
    open_answer,
    open_list,
    seal_answer,
    seal_list,
)
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Report, Send
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.facts import Dropped, RoundCompleted, RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.lists import list_hash
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, open_signed, sign
from dca_proto.protocol.wire.messages import (
    Announcement,
    Body,
    Contribution,
    Frame,
    FrozenList,
    Hello,
    Invitation,
    ListHeader,
    Sealed,
    Signed,
)
from dca_proto.testing import Envelope, Network, NoNoise, StoreContents, TestFederation, seeded

NOT_STATE = {
    "dropped", "_random", "_rows", "_agreed", "_pace", "_early", "_index", "consents", "_validated", "listed",
    "agreement", "_last_dropped",
}  # fmt: skip
"""The state that a dropped message may change: counters, caches of pure functions, and early messages."""


EASY = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=1000)
THREE_ROUNDS = msgspec.structs.replace(EASY, epsilon_per_period_max=2.0, delta_max=1e-6)
"""A budget with room for 3.59 rounds of ε = 1 at δ = 1e-6 by exact composition."""


class OneTight(TestFederation):
    """A federation whose client 0 has a budget of three rounds; the others have more than enough."""

    def client(self, index: int, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Client:
        usual = self.policy
        self.policy = THREE_ROUNDS if index == 0 else usual
        made = super().client(index, records)
        self.policy = usual
        return made


def snapshot(value: Any) -> Any:
    """Return an actor's whole state as plain values that later changes do not affect."""
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return tuple(snapshot(item) for item in value)
    if isinstance(value, OpenedAnnouncement):
        return value.hash
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Federation):
        return value  # immutable, but for a cache of lookups
    if hasattr(value, "__slots__") and hasattr(value, "stored"):  # a client's round
        return {name: snapshot(getattr(value, name)) for name in value.__slots__}
    if hasattr(value, "__dict__") and not callable(value):
        return {name: snapshot(item) for name, item in vars(value).items() if name not in NOT_STATE}
    return value


def refused(network: Network, receiver: bytes, sender: bytes, payload: bytes, code: str | None = None) -> None:
    """Assert that the receiver drops the message (for that reason), reports it, and keeps its state."""
    actor = network.actors[receiver]
    before = snapshot(actor)
    effects = actor.handle(Received(sender, payload), network.now_ms)
    assert [type(effect) for effect in effects] == [Report], effects
    assert isinstance(effects[0].fact, Dropped), effects
    assert code in (None, effects[0].fact.code), effects[0].fact
    after = snapshot(actor)
    assert after == before, [name for name in before if before[name] != after[name]]


def ignored(network: Network, receiver: bytes, sender: bytes, payload: bytes) -> None:
    """Assert that nothing happens, because the receiver already knows the message."""
    actor = network.actors[receiver]
    before = snapshot(actor)
    assert actor.handle(Received(sender, payload), network.now_ms) == []
    assert snapshot(actor) == before


def exact_actors(clients: int = 4, computes: int = 3, **changes: Any) -> TestFederation:
    """Return a federation without noise, whose client i has the value (i + 1) / 16, so that sums are known."""
    rows = [np.array([[(index + 1) / 16]]) for index in range(clients)]
    return TestFederation(clients, computes, **{"rows": rows, "mechanism": NoNoise(), **changes})


def exact_sum(clients: Iterable[int]) -> float:
    """Return the sum of the clients of `exact_actors` with these indices."""
    return sum((index + 1) / 16 for index in clients)


def begin(actors: TestFederation, network: Network | None = None, **changes: Any) -> tuple[Network, OpenRound]:
    """Start a round, and deliver everything until the trainer knows of all contributions."""
    network = network or actors.network()
    network.deliver()
    request = actors.request(**changes)
    network.command(actors.trainer_identity.id, request)
    network.advance(network.now_ms + actors.timing.progress_ms)
    return network, request


def until_the_end(network: Network, hours: float = 3) -> None:
    network.advance(network.now_ms + int(hours * 3600 * 1000))


def results(network: Network) -> list[NoisyAggregate]:
    return [fact.aggregate for fact in network.reported(RoundCompleted)]


def failures(network: Network) -> list[RoundFailed]:
    return network.reported(RoundFailed)


def the_sum(network: Network) -> NDArray[np.float64]:
    (aggregate,) = results(network)
    return aggregate.value


# --- power failures --------------------------------------------------------------------------------------------------


class PowerCuts(Network):
    """A network with transactions that kills some actors at random points of them.

    Actors run as in `runtime.runner`: events that are ready are handled together, all their writes are one transaction,
    and messages leave after it. A seeded cut kills a victim before the transaction, after it, or between any two of its
    messages. It checks that no contribution leaves without a charge.

    Attributes:
        victims: ids of the actors that may be killed.
        kills: number of kills by their point, and of those that cut a charge.
        left: (round, contribution, charge number) of each client's contributions on the wire.
    """

    def __init__(self, generator: random.Random) -> None:
        super().__init__()
        self.generator = generator
        self.victims: set[bytes] = set()
        self.kills: defaultdict[str, int] = defaultdict(int)
        self.left: defaultdict[bytes, set[tuple[bytes, bytes, int]]] = defaultdict(set)

    def handle(self, actor_id: bytes, event: Event) -> list[Effect]:
        return self.handle_together(actor_id, [event])

    def handle_together(self, actor_id: bytes, events: Sequence[Event]) -> list[Effect]:
        """Handle one batch: all writes in one transaction, then the rest in order, unless the power fails."""
        effects = [effect for event in events for effect in self.actors[actor_id].handle(event, self.now_ms)]
        writes = [effect for effect in effects if isinstance(effect, Persist | Forget)]
        rest = [effect for effect in effects if not isinstance(effect, Persist | Forget)]
        sends = sum(isinstance(effect, Send) for effect in rest)
        charges = any(write.table == LEDGER for write in writes)
        cut = self._cut(actor_id, sends, probability=0.5 if charges else 0.2) if writes or sends else None
        if cut is not None:
            self.kills["before" if cut == "before" else "after" if cut in (0, sends) else "between"] += 1
            self.kills["of a charge"] += charges
        for effect in writes if cut != "before" else ():
            self._carry_out(actor_id, effect)
        for effect in rest if cut is None else rest[: self._up_to(rest, cut)]:
            self._carry_out(actor_id, effect)
        if cut is not None:
            self.crash(actor_id)
        return effects

    def _cut(self, actor_id: bytes, sends: int, probability: float) -> str | int | None:
        """Draw where the power fails: before the transaction, or after some messages; mostly nowhere."""
        if actor_id not in self.victims or self.generator.random() > probability:
            return None
        return self.generator.choice(["before", *range(sends + 1)])

    @staticmethod
    def _up_to(rest: Sequence[Effect], cut: str | int) -> int:
        """Return the index after message number `cut`; facts about unsent messages are not reported."""
        behind = [index + 1 for index, effect in enumerate(rest) if isinstance(effect, Send)]
        return 0 if cut == "before" or cut == 0 else behind[int(cut) - 1]

    def deliver_some(self, count: int) -> None:
        """Deliver up to `count` waiting messages, out of order, together by receiver."""
        waiting = [self._queue.popleft() for _ in range(min(count, len(self._queue)))]
        self.generator.shuffle(waiting)
        inboxes: defaultdict[bytes, list[Event]] = defaultdict(list)
        for envelope in waiting:
            if self.generator.random() < 0.05:
                continue  # lost
            if self.generator.random() < 0.05:
                self._queue.append(envelope)  # and once more, later
            for receiver in self._receivers(envelope.to):
                inboxes[receiver].append(Received(envelope.sender, envelope.payload))
        for receiver, events in inboxes.items():
            if receiver not in self.down:
                self.handle_together(receiver, events)

    def restart_some(self, share: float) -> None:
        for actor_id in sorted(self.down):
            if self.generator.random() < share:
                self.restart(actor_id)

    def _post(self, sender: bytes, send: Send) -> None:
        frame = body_of(send.payload)
        if isinstance(frame, Contribution):
            stored = self.stores[sender].get((LEDGER, send.round_id))
            assert stored is not None, "a contribution left without a durable charge"
            number = opened_contribution(self.actors[sender], send).charge
            assert msgspec.msgpack.decode(stored, type=Charge).number == number
            self.left[sender].add((send.round_id, frame.contribution, number))
        super()._post(sender, send)

    def charges(self, actor_id: bytes) -> dict[bytes, Charge]:
        """Return the charges in an actor's store now."""
        decode = msgspec.msgpack.decode
        stored = self.stores[actor_id].items()
        return {key: decode(value, type=Charge) for (table, key), value in stored if table == LEDGER}


def recompose(client: Client, **changes: Any) -> None:
    """Give a client other rows or another random generator."""
    client._composer = msgspec.structs.replace(client._composer, **changes)


# --- old copies ------------------------------------------------------------------------------------------------------


def copy_of(network: Network, actor_id: bytes) -> StoreContents:
    return dict(network.stores[actor_id])


def restore(network: Network, actor_id: bytes, copy: StoreContents) -> None:
    """Restart a device or node from an old copy of its store."""
    network.stores[actor_id] = dict(copy)
    network.restart(actor_id)


def restored_client(
    rounds: int, forgotten: int, actors: TestFederation | None = None
) -> tuple[TestFederation, Network, bytes]:
    """Return a client that took part in `rounds` rounds and was restored from a copy without the last `forgotten`."""
    actors = actors or exact_actors(4, 3)
    network = actors.network()
    victim = actors.clients[0]
    for number in range(rounds):
        if number == rounds - forgotten:
            copy = copy_of(network, victim)
        begin(actors, network)
        until_the_end(network)
    restore(network, victim, copy)
    return actors, network, victim


# --- messages --------------------------------------------------------------------------------------------------------


def body_of(payload: bytes) -> Body | Frame:
    """Return the body of a signed message, or the frame itself."""
    frame = decode_frame(payload)
    return decode_body(frame.body) if isinstance(frame, Signed) else frame


def kind_of(envelope: Envelope) -> type:
    """Return the kind of a body or frame; a message sealed to a Compute node is a list."""
    kind = type(body_of(envelope.payload))
    return FrozenList if kind is Sealed and envelope.to.channel is Channel.COMPUTE else kind


def sent(network: Network, kind: type, sender: bytes | None = None, to: bytes | None = None) -> list[Envelope]:
    """Return the messages that actors have sent, of one kind of body or frame."""
    return [
        one for one in network.sent if sender in (None, one.sender) and to in (None, one.to.id) and kind_of(one) is kind
    ]


def losing(*kinds: type, to: bytes | None = None, sender: bytes | None = None) -> Callable[[Envelope], list[Envelope]]:
    """Return a `Network.tamper` that loses all messages of these kinds (to one actor, from one actor)."""

    def tamper(envelope: Envelope) -> list[Envelope]:
        concerned = to in (None, envelope.to.id) and sender in (None, envelope.sender)
        return [] if concerned and kind_of(envelope) in kinds else [envelope]

    return tamper


def passing(envelope: Envelope) -> list[Envelope]:
    """A `Network.tamper` that changes nothing."""
    return [envelope]


def hand_over(network: Network, envelope: Envelope) -> None:
    """Deliver one withheld message, and all that it causes."""
    network.handle(envelope.to.id, Received(envelope.sender, envelope.payload))
    network.deliver()


def changed(envelope: Envelope, payload: bytes) -> Envelope:
    """Return the message with other content."""
    return Envelope(envelope.sender, Send(envelope.to, envelope.round_id, payload))


def forged(actors: TestFederation, identity: Identity, body: Body) -> bytes:
    """Return a body signed by `identity`."""
    return encode(sign(identity, actors.federation.id, body))


def resigned(actors: TestFederation, identity: Identity, payload: bytes, **changes: Any) -> bytes:
    """Return a signed message with some fields of its body changed, or of an announcement's kind, signed again."""
    return forged(actors, identity, with_fields(body_of(payload), **changes))


def with_fields(body: Any, **changes: Any) -> Any:
    """Return a body with some of its fields changed; other names are fields of an announcement's kind."""
    own = {name: changes.pop(name) for name in body.__struct_fields__ if name in changes}
    if changes:
        own["kind"] = msgspec.structs.replace(own.get("kind", body.kind), **changes)
    return msgspec.structs.replace(body, **own)


def announced(network: Network, actors: TestFederation) -> OpenedAnnouncement:
    """Return the newest announcement, opened."""
    frames = [decode_frame(one.payload) for one in network.sent if kind_of(one) in (Announcement, Invitation)]
    frame = frames[-1].announcement if isinstance(frames[-1], Invitation) else frames[-1]
    return open_announcement(frame, actors.federation, Limits())


def sealed_by(actors: TestFederation, identity: Identity, body: Body, opened: OpenedAnnouncement) -> bytes:
    """Return a body signed by `identity` and sealed to the round's trainer."""
    return seal_answer(sign(identity, actors.federation.id, body), opened, seeded("forger"))


def unsealed(network: Network, actors: TestFederation, payload: bytes) -> Body:
    """Return the content of a sealed answer to the newest announcement, as the trainer reads it."""
    opened = announced(network, actors)
    reply_key: AgreementKey = network.actors[actors.trainer_identity.id]._rounds[opened.body.round_id].reply_key
    return decode_body(open_answer(decode_frame(payload), reply_key, opened.hash).body)


def sealed_kind(network: Network, actors: TestFederation, payload: bytes) -> type | None:
    """Return the kind of body in a sealed answer; None for anything else."""
    try:
        return type(unsealed(network, actors, payload)) if isinstance(decode_frame(payload), Sealed) else None
    except PeerError:
        return None


def opened_list(network: Network, actors: TestFederation, envelope: Envelope) -> FrozenList:
    """Return the content of a list that was sealed to a peer, as the peer reads it."""
    opened, receiver = announced(network, actors), network.actors[envelope.to.id]
    key = receiver._keys.key(opened.epochs[opened.computes.index(envelope.to.id)].epoch)
    signer = actors.federation.compute(envelope.sender).key
    return open_signed(
        open_list(decode_frame(envelope.payload), key, opened.hash), signer, actors.federation.id, FrozenList
    )


def sealed_list(
    actors: TestFederation, identity: Identity, body: FrozenList, opened: OpenedAnnouncement, to: bytes
) -> bytes:
    """Return a list signed by `identity` and sealed to a peer's epoch key."""
    signed = sign(identity, actors.federation.id, body)
    public = opened.epochs[opened.computes.index(to)].public
    return seal_list(signed, opened, public, seeded("forger"))


def forged_list(network: Network, actors: TestFederation, envelope: Envelope, entries: bytes, tags: bytes) -> Envelope:
    """Replace a list by one that its sender signs correctly, with entries and tags of the test's choice."""
    identity = next(one for one in actors.compute_identities if one.id == envelope.sender)
    opened = announced(network, actors)
    hashed = list_hash(opened.hash, identity.id, entries)
    head = (opened.body.round_id,)
    header = sign(identity, actors.federation.id, ListHeader(*head, opened.hash, hashed, len(entries) // ENTRY_BYTES))
    body = FrozenList(*head, envelope.to.id, header, entries, tags)
    return changed(envelope, sealed_list(actors, identity, body, opened, envelope.to.id))


def clients_of_node(network: Network, actors: TestFederation, node: int) -> list[int]:
    """Return the indices of the clients whose contributions to the newest round a node has, in the order of ids."""
    opened = announced(network, actors)
    indices = sorted(range(len(actors.clients)), key=lambda index: actors.clients[index])
    return [index for index in indices if opened.holder(actors.clients[index]).id == actors.computes[node]]


def hello_of(network: Network, actors: TestFederation, client: int = 0) -> Envelope:
    return sent(network, Hello, sender=actors.clients[client])[0]


def other_hello(actors: TestFederation, network: Network, client: int = 0, **changes: object) -> bytes:
    """Return a changed Hello that the client signs."""
    body = msgspec.structs.replace(body_of(hello_of(network, actors, client).payload), **changes)
    return forged(actors, actors.client_identities[client], body)


def without_hello(actors: TestFederation) -> Network:
    """Return a network that loses client 0's Hello."""
    network = Network()
    network.tamper = losing(Hello, sender=actors.clients[0])
    actors.network(network)
    network.deliver()
    return network


def standing(clients: int = 4, computes: int = 3) -> tuple[TestFederation, Network]:
    """Return a network in which all sessions are established."""
    actors = exact_actors(clients, computes)
    network = actors.network()
    network.deliver()
    return actors, network


def flipped(payload: bytes, position: int) -> bytes:
    """Return the bytes with one bit changed."""
    return payload[:position] + bytes((payload[position] ^ 1,)) + payload[position + 1 :]


def sends(effects: Iterable[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]
