"""The ideal functionality draws what the protocol gives: the same encoding, the same exact noise, the same metadata."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core.mechanism import DistributedDiscreteGaussian
from dca_proto.core.play import play
from dca_proto.core.trainer_round import OpenRound
from dca_proto.testing import Cast, seeded
from emulator.ideal import noisy_sum

CLIENTS, COMPUTES, REPEATS = 6, 2, 300
BY_ROUND = {"value", "round_id", "session_hash", "contributors_hash", "roster_hash"}


def request(cast: Cast) -> OpenRound:
    return cast.request(tolerated=1, epsilon=1.0, delta=1e-6)


def by_protocol(cast: Cast) -> NoisyAggregate:
    """A round of a cast's actors, started afresh: its id and all keys are new."""
    computes = [cast.compute(index) for index in range(COMPUTES)]
    clients = [cast.client(index) for index in range(CLIENTS)]
    return play(cast.trainer(), computes, clients, request(cast), 1_700_000_000_000)


def by_ideal(cast: Cast) -> NoisyAggregate:
    asked = request(cast)
    return noisy_sum(asked, cast.rows, cast.columns, frozenset(), seeded(f"noise/{asked.round_id.hex()}"))


def test_what_is_known_of_the_sum_is_the_same() -> None:
    protocol, ideal = (draw(Cast(CLIENTS, COMPUTES)) for draw in (by_protocol, by_ideal))
    for field in fields(NoisyAggregate):
        if field.name not in BY_ROUND:
            assert getattr(protocol, field.name) == getattr(ideal, field.name), field.name


class Recording(DistributedDiscreteGaussian):
    """The production mechanism, which also remembers what it drew."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, NDArray[np.int64]]] = []

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        noise = super().sample(variance, dimension, key)
        self.drawn.append((variance, noise))
        return noise


def test_the_protocols_sum_is_exactly_the_statistics_and_one_share_of_noise_of_each() -> None:
    mechanism = Recording()
    cast = Cast(CLIENTS, COMPUTES, mechanism=mechanism)
    asked = request(cast)
    computes = [cast.compute(index) for index in range(COMPUTES)]
    clients = [cast.client(index) for index in range(CLIENTS)]
    result = play(cast.trainer(), computes, clients, asked, 1_700_000_000_000)
    unit = 2.0**-asked.fraction_bits
    ((variance,), shares) = ({one for one, _ in mechanism.drawn}, [noise for _, noise in mechanism.drawn])
    assert len(shares) == CLIENTS
    assert result.value[0] == (CLIENTS * round(0.5 / unit) + int(sum(shares)[0])) * unit
    assert result.noise_variance == CLIENTS * variance * unit**2


def test_the_noise_is_the_same() -> None:
    """Mean and variance of 300 seeded rounds of each against the stated noise, within 4 standard errors: a false alarm
    of each of the four comparisons below 1e-4, and none on the seeds as they stand."""
    truth = 0.5 * CLIENTS
    for draw in (by_protocol, by_ideal):
        cast = Cast(CLIENTS, COMPUTES, name="ideal")
        results = [draw(cast) for _ in range(REPEATS)]
        assert len({one.value[0] for one in results}) == REPEATS
        errors = np.array([one.value[0] - truth for one in results]) / np.sqrt(results[0].noise_variance)
        assert abs(errors.mean()) < 4 / np.sqrt(REPEATS)
        assert abs(errors.var() - 1) < 4 * np.sqrt(2 / REPEATS)
