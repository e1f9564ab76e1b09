"""Attack 58, in long stories: p that changes while rounds run, and a node that withholds its sum again and again."""

from __future__ import annotations

import itertools
import random

import pytest
from changes import following, hand
from round_helpers import (
    EASY,
    PowerCuts,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    kind_of,
    results,
    sealed_kind,
    sent,
    the_sum,
)

from dca_proto.protocol.wire.messages import Abort, PartialSum
from dca_proto.testing import Envelope

SECONDS, HOUR_MS = 1000, 3_600_000


@pytest.mark.long
@pytest.mark.parametrize("seed", range(16))
def test_attack_58_however_p_moves_while_nodes_die_a_charge_needs_more_aborts_than_the_largest_p(seed: int) -> None:
    """The owner publishes files with other p in the midst of a round, while nodes die and come back.

    In a part of the rounds charges come back, in the others there is a result or neither.
    """
    generator = random.Random(seed)
    actors = exact_actors(4, 5, colluding=generator.choice([1, 2, 3]), policy=EASY)
    network = actors.network(PowerCuts(generator))
    network.deliver()
    network.command(actors.trainer_identity.id, actors.request(clients=5, tolerate=2))
    file, largest = actors.federation, actors.federation.p
    down = set(generator.sample(actors.computes, generator.randint(0, 2)))
    for node in down:
        network.crash(node)
    returned: set[bytes] = set()

    def check() -> None:
        """A charge that has just come back has done so against more aborts than the largest p so far."""
        aborted = {body_of(one.payload).compute for one in sent(network, Abort)}
        back = {one for one in actors.clients if any(charge.returned for charge in network.actors[one].ledger.charges)}
        assert back <= returned or len(aborted) > largest
        returned.update(back)

    deliver = network.deliver
    for _ in range(60):
        network.deliver_some(generator.randint(1, 15))
        check()
        if generator.random() < 0.2:
            file = following(actors, file, colluding=generator.choice([1, 2, 3, 4]))
            largest = max(largest, file.p)
            for member in {*actors.computes, actors.trainer_identity.id, *actors.clients} - down:
                hand(network, member, file)
        node = generator.choice(actors.computes)
        if node in down and generator.random() < 0.1:
            network.restart(node)
            hand(network, node, file)
            down.discard(node)
        elif node not in down and generator.random() < 0.05:
            network.crash(node)
            down.add(node)
        network.deliver = lambda: None
        network.advance(network.now_ms + generator.choice([0, 1, 4]) * SECONDS)
        network.deliver = deliver
    for node in down:
        network.restart(node)
    network.advance(network.now_ms + 2 * HOUR_MS)
    check()
    ends = results(network) + failures(network)
    assert len(ends) == 1
    if results(network):
        some = itertools.chain.from_iterable(itertools.combinations(range(4), size) for size in (2, 3, 4))
        assert float(the_sum(network)[0]) in map(exact_sum, some)


@pytest.mark.long
def test_attack_58_a_node_that_withholds_its_sum_burns_one_round_in_an_epoch() -> None:
    """It answers all questions. The clock passes midnight once, so it has two keys."""
    actors = exact_actors(4, 4, colluding=1, policy=EASY)
    network = actors.network()
    network.deliver()
    liar, trainer = actors.computes[2], actors.trainer_identity.id

    def tamper(envelope: Envelope) -> list[Envelope]:
        is_sum = envelope.sender == liar and envelope.to.id == trainer and kind_of(envelope) is not None
        return [] if is_sum and sealed_kind(network, actors, envelope.payload) is PartialSum else [envelope]

    network.tamper = tamper
    for _ in range(4):
        begin(actors, network)
        network.advance(network.now_ms + 2 * HOUR_MS)
    assert (len(failures(network)), len(results(network))) == (2, 2)
