"""Kills at every write: whatever left was stored first, once; the ledger under power failures.

Clients are killed before, after and within their transactions (`PowerCuts`), while concurrent rounds race for the
budget, messages are lost, repeated and reordered, rounds are aborted and charges come back. The Compute nodes and the
trainer stay up.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from round_helpers import PowerCuts, body_of, exact_actors, exact_sum, kind_of

from dca_proto.privacy import accounting
from dca_proto.protocol.effects import Effect, Forget, Persist, Send
from dca_proto.protocol.events import Event
from dca_proto.protocol.facts import (
    ChargeReturned,
    Contributed,
    Declined,
    LedgerReused,
    NodeAborted,
    Released,
    RoundCompleted,
)
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.messages import Answer, Contribution, Sealed
from dca_proto.testing import Network, TestFederation

ROUNDS_HELD, CLIENTS, COMPUTES = 4, 4, 2
POLICY = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1.0, epsilon_per_period_max=1.2)
WIDE = msgspec.structs.replace(POLICY, epsilon_per_period_max=20.0)
EPSILON, DELTA = 0.8, 1e-6
MU = accounting.mu_of(EPSILON, DELTA)
SECOND_MS, HOUR_MS = 1000, 3600 * 1000


def played(seed: int) -> tuple[TestFederation, PowerCuts]:
    """Concurrent rounds of one small swarm under power cuts; at the end all are up, and every round has ended."""
    generator = random.Random(seed)
    actors = exact_actors(CLIENTS, COMPUTES, policy=POLICY)
    network: Any = actors.network(PowerCuts(generator))
    network.victims = set(actors.clients)
    opened = 0
    for _ in range(60):
        if opened < ROUNDS_HELD and generator.random() < 0.3:
            opened += 1
            terms = {"tolerate": generator.choice([0, 0, 1]), "clients": CLIENTS}
            network.command(actors.trainer_identity.id, actors.request(epsilon=EPSILON, delta=DELTA, **terms))
        network.deliver_some(generator.randint(1, 30))
        network.restart_some(0.3)
        if generator.random() < 0.2:
            deliver, network.deliver = network.deliver, lambda: None  # timers fire, messages wait
            network.advance(network.now_ms + generator.choice([2, 5, 70]) * SECOND_MS)
            network.deliver = deliver
    network.victims = set()
    network.restart_some(1.0)
    network.advance(network.now_ms + 2 * HOUR_MS)
    return actors, network


def check(actors: TestFederation, network: PowerCuts) -> None:
    """What must hold of every client, from what was on the wire and what is in its store."""
    aborts, released = defaultdict(set), set()
    for who, fact in network.facts:
        if isinstance(fact, NodeAborted):
            aborts[fact.round_id].add(who)
        if isinstance(fact, Released):
            released.add(fact.round_id)
    for client in actors.clients:
        charges, left = network.charges(client), network.left[client]
        rounds = [round_id for round_id, _, _ in left]
        assert len(rounds) == len(set(rounds)), "one contribution a round: what is sent again is the same"
        assert len({number for _, _, number in left}) == len(left), "no number twice on the wire"
        assert len({charge.number for charge in charges.values()}) == len(charges), "nor in the ledger"
        returned = {round_id for round_id, charge in charges.items() if charge.returned}
        assert not returned & released
        assert all(len(aborts[round_id]) == COMPUTES for round_id in returned), "only against all M aborts"
        spent = MU**2 * len([round_id for round_id in rounds if len(aborts[round_id]) < COMPUTES])
        recorded = math.fsum(charge.mu**2 for charge in charges.values() if not charge.returned)
        assert spent <= recorded * (1 + 1e-12), "of all that left: what the announcements cost"
        assert math.sqrt(recorded) <= accounting.mu_of(POLICY.epsilon_per_period_max, POLICY.delta_max)
    assert network.reported(LedgerReused) == [], "no honest client is taken for a restored one"


@pytest.mark.long
@pytest.mark.parametrize("failures", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_power_failures_never_spend_more_than_is_recorded(failures: int) -> None:
    kills: defaultdict[str, int] = defaultdict(int)
    seen: defaultdict[str, int] = defaultdict(int)
    seed = 0
    while sum(kills[where] for where in ("before", "after", "between")) < failures:
        actors, network = played(seed)
        check(actors, network)
        for where, count in network.kills.items():
            kills[where] += count
        for kind in (Contributed, ChargeReturned, Declined, Released):
            seen[kind.__name__] += len(network.reported(kind))
        seed += 1
    assert min(kills.values()) >= failures / 20, dict(kills)
    assert min(seen.values()) >= failures / 20, "charges, returns, refusals and results all happened"


# Every write of every actor

WHERE = [("before", False), ("after", False), ("after", True), pytest.param("before", True, marks=pytest.mark.long)]
"""Where an actor is killed, and whether a contribution is lost."""


class KilledAt(Network):
    """Kills one actor once, at its n-th event with writes: before they are durable, or after, and before any message.

    A store commits the writes of an event in one transaction; torn records are another test's.

    Attributes:
        victim, at, how: who is killed, at which of its events with writes, and where. events: how many there were.
    """

    def __init__(self, victim: bytes, at: int, how: str) -> None:
        super().__init__()
        self.victim, self.at, self.how = victim, at, how
        self.events = 0
        self.killed = False

    def handle(self, actor_id: bytes, event: Event) -> list[Effect]:
        effects = self.actors[actor_id].handle(event, self.now_ms)
        writes = [effect for effect in effects if isinstance(effect, Persist | Forget)]
        if actor_id == self.victim and writes and not self.killed:
            self.events += 1
            if self.events > self.at:
                self.killed = True
                for effect in writes if self.how == "after" else ():
                    self._carry_out(actor_id, effect)
                self.crash(actor_id)
                return effects
        order = [*writes, *(effect for effect in effects if not isinstance(effect, Persist | Forget))]
        for effect in order:
            self._carry_out(actor_id, effect)
        return effects

    def _post(self, sender: bytes, send: Send) -> None:
        if isinstance(body_of(send.payload), Contribution):
            assert (LEDGER, send.round_id) in self.stores[sender], "a contribution left without a durable charge"
        super()._post(sender, send)


def killed_round(role: str, at: int, how: str, lost: bool) -> tuple[TestFederation, KilledAt]:
    """One round, and one after it; the victim starts again a second after it was killed.

    Args:
        lost: whether one contribution is lost and n_min is all, so that the nodes abort.
    """
    actors = exact_actors(CLIENTS, 3, policy=WIDE)
    victim = {"client": actors.clients[0], "node": actors.computes[0], "trainer": actors.trainer_identity.id}[role]
    network = KilledAt(victim, at, how)
    actors.network(network)
    silent = actors.clients[1] if lost else b""
    network.tamper = lambda one: [] if kind_of(one) is Contribution and one.sender == silent else [one]
    for number in range(2):
        if victim in network.down:
            network.restart(victim)
        network.deliver()
        request = actors.request(tolerate=0 if lost else 1)
        if actors.trainer_identity.id not in network.down:
            network.command(actors.trainer_identity.id, request)
        for _ in range(4):
            network.advance(network.now_ms + SECOND_MS)
            if victim in network.down:
                network.restart(victim)
        network.advance(network.now_ms + (5 * 60 * SECOND_MS if number else 30 * SECOND_MS))
    if victim in network.down:
        network.restart(victim)
    network.advance(network.now_ms + 2 * HOUR_MS)
    return actors, network


def payloads_of(network: KilledAt, kind: type) -> dict[tuple[bytes, bytes], set[bytes]]:
    """By sender and round, all different messages of a kind that left the sender."""
    found: defaultdict[tuple[bytes, bytes], set[bytes]] = defaultdict(set)
    for one in network.sent:
        if kind_of(one) is kind:
            author = getattr(body_of(one.payload), "compute", one.sender)  # nodes pass on their peers' answers
            found[author, one.round_id].add(one.payload)
    return found


def check_nodes(actors: TestFederation, network: KilledAt) -> set[bytes]:
    """No actor sends two versions of a message, and every round has ended. Return the rounds with a release."""
    released = {key for key in payloads_of(network, Sealed) if key[0] in actors.computes}
    aborted = {(who, fact.round_id) for who, fact in network.facts if isinstance(fact, NodeAborted)}
    assert not aborted & released, "released or aborted, never both"
    for kind in (Answer, Contribution):
        assert all(len(payloads) == 1 for payloads in payloads_of(network, kind).values()), (
            "what is sent again is the same"
        )
    assert all(len(payloads_of(network, Sealed)[key]) == 1 for key in released), "one partial sum, byte for byte"
    assert not any(network.actors[node]._open for node in actors.computes), "every round has ended"
    return {round_id for _, round_id in released}


def check_round(actors: TestFederation, network: KilledAt) -> None:
    """The invariants that every schedule keeps."""
    released, left = check_nodes(actors, network), payloads_of(network, Contribution)
    for client in actors.clients:
        charges = network.actors[client].ledger.charges
        assert len({charge.number for charge in charges}) == len(charges)
        assert {round_id for who, round_id in left if who == client} <= {one.round_id for one in charges}
        assert not {one.round_id for one in charges if one.returned} & released
    for fact in network.reported(RoundCompleted):
        members = network.actors[actors.trainer_identity.id].contributors(fact.round_id)
        assert fact.aggregate.value.tolist() == [exact_sum(map(actors.clients.index, members))]
    assert network.reported(LedgerReused) == []


@pytest.mark.parametrize(("how", "lost"), WHERE)
@pytest.mark.parametrize("role", ["client", "node", "trainer"])
def test_a_kill_at_any_write_keeps_every_promise(role: str, how: str, lost: bool) -> None:
    """G8: at each event of each role that writes anything, one after the other, until none is left."""
    for at in range(200):
        actors, network = killed_round(role, at, how, lost)
        check_round(actors, network)
        if not network.killed:
            assert at >= 4, "each role writes several times"
            if not lost:
                assert len({fact.round_id for fact in network.reported(RoundCompleted)}) == 2
            return
    raise AssertionError("a role writes without end")
