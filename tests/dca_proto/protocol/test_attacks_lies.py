"""Attack 55: one enrolled client sends numbers that its rows cannot have, to production actors in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from dca_proto.crypto.sealing import Random
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.testing import Lie, Network, TestFederation, make_lie, seeded

MS = 10 * 60_000


def words(random: Random) -> Lie:
    return lambda size: np.frombuffer(random(8 * size), dtype="<i8")


LIES: dict[str, Lie] = {
    "words": words(seeded("lies")),
    "million": lambda size: np.full(size, 10**6 << 24),
    "minus a million": lambda size: np.full(size, -(10**6) << 24),
    "least": lambda size: np.full(size, np.iinfo(np.int64).min),
    "most": lambda size: np.full(size, np.iinfo(np.int64).max),
    "nan": lambda size: np.full(size, np.nan).view(np.int64),
    "infinity": lambda size: np.full(size, np.inf).view(np.int64),
}


def after_a_round(lie: Lie) -> tuple[TestFederation, Network]:
    actors = TestFederation(6, 3)
    network = actors.network()
    make_lie(network.actors[actors.clients[2]], lie)  # type: ignore[arg-type]
    network.command(actors.trainer_identity.id, actors.request())
    network.advance(network.now_ms + MS)
    return actors, network


@pytest.mark.parametrize("lie", LIES)
def test_attack_55_a_sum_that_no_honest_clients_can_make_is_refused_and_stays_spent(lie: str) -> None:
    actors, network = after_a_round(LIES[lie])
    trainer = actors.trainer_identity.id
    assert network.reported(RoundCompleted) == []
    (failure,) = network.reported(RoundFailed)
    assert isinstance(failure, RoundFailed)
    assert failure.implausible
    assert failure.reason.startswith("at least one of the 6 contributions was outside its bounds: x is ")
    assert failure.reason.endswith(
        "; a Compute node has released its part, so the account and the clients keep the charge"
    )
    assert "and honest clients give -6 to 6, with noise of at most" in failure.reason
    actor = network.restart(trainer)
    assert isinstance(actor, Trainer)
    network.advance(network.now_ms + MS)
    assert network.reported(RoundCompleted) == []
    assert actor.ledger.is_charged(failure.round_id)
    network.command(trainer, actors.request())
    make_lie(network.actors[actors.clients[2]], lambda size: np.zeros(size, dtype=np.int64))  # type: ignore[arg-type]
    network.advance(network.now_ms + MS)
    assert len(network.reported(RoundCompleted)) == 1, "the federation goes on"


def test_a_lie_within_the_bounds_is_not_noticed() -> None:
    """Documented (SECURITY.md): a client that claims more than its bound is hidden by the others' room and by noise."""
    _, network = after_a_round(lambda size: np.full(size, 5 << 24))
    (completed,) = network.reported(RoundCompleted)
    assert isinstance(completed, RoundCompleted)
    assert completed.aggregate.doubts == ()


def test_a_result_that_an_earlier_version_completed_is_refused_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("dca_proto.protocol.release.checked", lambda aggregate: aggregate)
        actors, network = after_a_round(LIES["words"])
        assert len(network.reported(RoundCompleted)) == 1
    network.restart(actors.trainer_identity.id)
    (failure,) = network.reported(RoundFailed)
    assert isinstance(failure, RoundFailed)
    assert failure.implausible


def test_honest_rounds_have_no_doubts() -> None:
    actors = TestFederation(6, 3)
    network = actors.network()
    for _ in range(3):
        network.command(actors.trainer_identity.id, actors.request())
        network.advance(network.now_ms + MS)
    completed = network.reported(RoundCompleted, actors.trainer_identity.id)
    assert [one.aggregate.doubts for one in completed if isinstance(one, RoundCompleted)] == [()] * 3
