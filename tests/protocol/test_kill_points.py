"""The ledger under a thousand power failures: whatever left a client was charged first, once, under its own number.

Clients are killed before, after and within their transactions (`PowerCuts`), while concurrent rounds race for the
budget, messages are lost, repeated and reordered, rounds are aborted and charges come back. The Compute nodes and the
trainer stay up.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

from scene import PowerCuts, exact_cast

from dca_proto.core import accounting
from dca_proto.core.facts import ChargeReturned, Contributed, Declined, LedgerBehind, NodeAborted, Released
from dca_proto.core.policy import Policy
from dca_proto.testing import Cast

KILLS = 1000
ROUNDS, CLIENTS, COMPUTES = 4, 4, 2
POLICY = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1.0, epsilon_per_period_max=1.2)
EPSILON, DELTA = 0.8, 1e-6
MU = accounting.mu_of(EPSILON, DELTA)
SECOND_MS, HOUR_MS = 1000, 3600 * 1000


def played(seed: int) -> tuple[Cast, PowerCuts]:
    """Concurrent rounds of one small swarm under power cuts; at the end all are up, and every round has ended."""
    generator = random.Random(seed)
    cast = exact_cast(CLIENTS, COMPUTES, policy=POLICY)
    network: Any = cast.network(PowerCuts(generator))
    network.victims = set(cast.clients)
    opened = 0
    for _ in range(60):
        if opened < ROUNDS and generator.random() < 0.3:
            opened += 1
            terms = {"tolerated": generator.choice([0, 0, 1]), "clients_expected": generator.choice([0, CLIENTS])}
            network.command(cast.trainer_identity.id, cast.request(epsilon=EPSILON, delta=DELTA, **terms))
        network.deliver_some(generator.randint(1, 30))
        network.restart_some(0.3)
        if generator.random() < 0.2:
            deliver, network.deliver = network.deliver, lambda: None  # timers fire, messages wait
            network.advance(network.now_ms + generator.choice([2, 5, 70]) * SECOND_MS)
            network.deliver = deliver
    network.victims = set()
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
        spent = MU**2 * len([round_id for round_id in rounds if len(aborts[round_id]) < COMPUTES])
        recorded = math.fsum(charge.mu**2 for charge in charges.values() if not charge.returned)
        assert spent <= recorded * (1 + 1e-12), "of all that left: what the announcements asked for"
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
