"""The ledger under a thousand power failures: whatever left a client was charged first, once, under its own number.

Clients run as `net.runner` runs them: the events that are ready are handled together, all their writes are one
transaction, and messages leave after it. A seeded cut kills a client before the transaction, after it, or between any
two of its messages, while concurrent rounds race for the budget, messages are lost, repeated and reordered, rounds are
aborted and charges come back. The Compute nodes and the trainer stay up.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from scene import body_of, exact_cast

from dca_proto.core import accounting
from dca_proto.core.effects import Effect, Forget, Persist, Send
from dca_proto.core.events import Event, Received
from dca_proto.core.facts import ChargeReturned, Contributed, Declined, LedgerBehind, NodeAborted, Released
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.ledger import Charge
from dca_proto.core.messages import Share
from dca_proto.core.policy import Policy
from dca_proto.testing import Cast, Network

KILLS = 1000
ROUNDS, CLIENTS, COMPUTES = 4, 4, 2
POLICY = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1.0, epsilon_per_period_max=1.2)
SECOND_MS, HOUR_MS = 1000, 3600 * 1000


class PowerCuts(Network):
    """A network with transactions, whose clients are killed at random points of them.

    Attributes:
        kills: how many there were, by where they cut, and how many of them cut a charge.
        left: (round, contribution, charge number) of each client's shares on the wire.
    """

    def __init__(self, generator: random.Random) -> None:
        super().__init__()
        self.generator = generator
        self.clients: set[bytes] = set()
        self.kills: defaultdict[str, int] = defaultdict(int)
        self.left: defaultdict[bytes, set[tuple[bytes, bytes, int]]] = defaultdict(set)

    def handle(self, actor_id: bytes, event: Event) -> list[Effect]:
        return self.handle_together(actor_id, [event])

    def handle_together(self, actor_id: bytes, events: Sequence[Event]) -> list[Effect]:
        """One batch: all writes in one transaction, then the rest in order, unless the power fails."""
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
        """Where the power fails: before the transaction, or after so many messages; mostly nowhere."""
        if actor_id not in self.clients or self.generator.random() > probability:
            return None
        return self.generator.choice(["before", *range(sends + 1)])

    @staticmethod
    def _up_to(rest: Sequence[Effect], cut: str | int) -> int:
        """The index behind the message number `cut`; of messages that were not sent no fact is reported either."""
        behind = [index + 1 for index, effect in enumerate(rest) if isinstance(effect, Send)]
        return 0 if cut == "before" or cut == 0 else behind[int(cut) - 1]

    def deliver_some(self, count: int) -> None:
        """Deliver up to `count` waiting messages, out of order, those of one receiver together."""
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
        share = body_of(send.payload)
        if isinstance(share, Share):
            stored = self.stores[sender].get((LEDGER, send.round_id))
            assert stored is not None, "a share left without a durable charge"
            assert msgspec.msgpack.decode(stored, type=Charge).number == share.charge
            self.left[sender].add((send.round_id, share.contribution, share.charge))
        super()._post(sender, send)

    def charges(self, client: bytes) -> dict[bytes, Charge]:
        """What the client's store says, now."""
        decode = msgspec.msgpack.decode
        stored = self.stores[client].items()
        return {key: decode(value, type=Charge) for (table, key), value in stored if table == LEDGER}


def played(seed: int) -> tuple[Cast, PowerCuts]:
    """Concurrent rounds of one small swarm under power cuts; at the end all are up, and every round has ended."""
    generator = random.Random(seed)
    cast = exact_cast(CLIENTS, COMPUTES, policy=POLICY)
    network: Any = cast.network(PowerCuts(generator))
    network.clients = set(cast.clients)
    opened = 0
    for _ in range(60):
        if opened < ROUNDS and generator.random() < 0.3:
            opened += 1
            terms = {"tolerated": generator.choice([0, 0, 1]), "clients_expected": generator.choice([0, CLIENTS])}
            network.command(cast.trainer_identity.id, cast.request(epsilon=0.8, **terms))
        network.deliver_some(generator.randint(1, 30))
        network.restart_some(0.3)
        if generator.random() < 0.2:
            deliver, network.deliver = network.deliver, lambda: None  # timers fire, messages wait
            network.advance(network.now_ms + generator.choice([2, 5, 70]) * SECOND_MS)
            network.deliver = deliver
    network.clients = set()
    network.restart_some(1.0)
    network.advance(network.now_ms + 2 * HOUR_MS)
    return cast, network


def check(cast: Cast, network: PowerCuts) -> None:
    """What must hold of every client, from what was on the wire and what is in its store."""
    aborts, released = defaultdict(set), set()
    for who, fact in network.facts:
        if isinstance(fact, NodeAborted):
            aborts[fact.round_id].add(who)
        if isinstance(fact, Released):
            released.add(fact.round_id)
    for client in cast.clients:
        charges, left = network.charges(client), network.left[client]
        rounds = [round_id for round_id, _, _ in left]
        assert len(rounds) == len(set(rounds)), "one contribution a round: what is sent again is the same"
        assert len({number for _, _, number in left}) == len(left), "no number twice on the wire"
        assert len({charge.number for charge in charges.values()}) == len(charges), "nor in the ledger"
        returned = {round_id for round_id, charge in charges.items() if charge.returned}
        assert not returned & released
        assert all(len(aborts[round_id]) == COMPUTES for round_id in returned), "only against all M aborts"
        spent = math.fsum(charges[round_id].mu ** 2 for round_id in rounds if round_id not in returned)
        recorded = math.fsum(charge.mu**2 for charge in charges.values() if not charge.returned)
        assert spent <= recorded
        assert math.sqrt(recorded) <= accounting.mu_of(POLICY.epsilon_per_period_max, POLICY.delta_max)
    assert network.reported(LedgerBehind) == [], "no honest client is taken for a restored one"


def test_a_thousand_power_failures_never_spend_more_than_is_recorded() -> None:
    kills: defaultdict[str, int] = defaultdict(int)
    seen: defaultdict[str, int] = defaultdict(int)
    seed = 0
    while sum(kills[where] for where in ("before", "after", "between")) < KILLS:
        cast, network = played(seed)
        check(cast, network)
        for where, count in network.kills.items():
            kills[where] += count
        for kind in (Contributed, ChargeReturned, Declined, Released):
            seen[kind.__name__] += len(network.reported(kind))
        seed += 1
    assert min(kills.values()) >= 100, dict(kills)
    assert min(seen.values()) >= 50, "charges, returns, refusals and results all happened"
