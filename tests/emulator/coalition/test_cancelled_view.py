"""A cancelled round with all partial sums but one honest node's looks uniform, whatever the data (PRIVACY.md, Lemma 2).

`dca audit` runs rounds that all nodes finish, or that all abort. This is the case between them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from round_helpers import announced, begin, forged, kind_of, losing, passing, sent, unsealed
from wiretap import opened_contribution

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import ChargeReturned, Released
from dca_proto.protocol.wire.messages import Abort, Answer, Cancel, Contribution, PartialSum, Sealed
from dca_proto.testing import TestFederation
from emulator.coalition.uniformity import bonferroni, byte_counts, byte_p_value
from emulator.wire import words_in

CLIENTS, COLUMNS, SECONDS = 5, 4096, 1000
NAMES = tuple(f"c{number}" for number in range(COLUMNS))
SCALING = {"centre": [0.0] * COLUMNS, "scale": [1.0] * COLUMNS, "bound": [1.0] * COLUMNS}
P_LEAST = 1e-6
"""Below it, a view is not uniform. Both sizes together raise a false alarm with a probability of 2e-6."""


class Seen(NamedTuple):
    """What all but one of a round's nodes, the broker and the trainer put together, in the ring."""

    released: NDArray[np.uint64]
    """The sum of all partial sums that were released."""
    completed: NDArray[np.uint64]
    """The same, with the contributions that the node which aborted holds, although it does not reveal them."""


def cancelled_round(side: int, nodes: int, colluding: int, *, cancels: bool = True) -> Seen:
    """Play a round in which the last node lacks the answers, is cancelled and aborts, and all others release."""
    rows = [np.full((1, COLUMNS), 1.0 if side else -1.0)] * CLIENTS
    actors = TestFederation(CLIENTS, nodes, columns=NAMES, rows=rows, colluding=colluding, name=f"side{side}{nodes}")
    network = actors.network()
    behind, trainer = actors.computes[-1], actors.trainer_identity
    network.tamper = losing(Answer, to=behind) if cancels else passing
    begin(actors, network, parameters={"columns": list(NAMES), **SCALING})
    opened = announced(network, actors)
    if cancels:
        cancel = forged(actors, trainer, Cancel(opened.body.round_id, opened.hash, opened.frame))
        network.handle(behind, Received(trainer.id, cancel))
        network.deliver()
        assert {one.sender for one in sent(network, Abort)} == {behind}
    assert len(network.reported(Released)) == nodes - cancels
    assert not network.reported(ChargeReturned), "one abort is not more than p"
    sealed = {one.sender: one for one in network.sent if kind_of(one) is Sealed and one.to.id == trainer.id}
    bodies = [unsealed(network, actors, one.payload) for one in sealed.values()]
    released = sum((words_in(body.vector) for body in bodies if isinstance(body, PartialSum)), np.uint64(0))
    held = np.zeros(COLUMNS, dtype=np.uint64)
    for envelope in {one.sender: one for one in sent(network, Contribution)}.values():
        client = network.actors[envelope.sender]
        assert isinstance(client, Client)
        if envelope.to.id == behind:
            held += words_in(opened_contribution(client, envelope).y)
    assert isinstance(released, np.ndarray)
    return Seen(released, released + held if cancels else released)


@pytest.mark.parametrize(("nodes", "colluding"), [(3, 2), (4, 1)])
def test_a_cancelled_round_without_one_honest_nodes_sum_looks_uniform(nodes: int, colluding: int) -> None:
    views = [view for side in (0, 1) for view in cancelled_round(side, nodes, colluding)]
    assert bonferroni(byte_p_value(byte_counts(view)) for view in views) > P_LEAST


def test_a_round_that_all_nodes_finish_does_not() -> None:
    """The check has power: without one missing sum, the masks cancel."""
    assert byte_p_value(byte_counts(cancelled_round(1, 3, 2, cancels=False).released)) < P_LEAST
