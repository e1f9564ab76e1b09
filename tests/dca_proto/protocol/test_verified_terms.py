"""The terms of verified sums: the grid and noise that a trainer chooses, what is refused, and what results state."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from round_helpers import (
    begin,
    results,
    until_the_end,
)  # fmt: skip

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.privacy.verified import release_cost
from dca_proto.protocol.params import Limits
from dca_proto.protocol.validation import validate_announcement
from dca_proto.protocol.verified import MECHANISM, failed_in, with_noise
from dca_proto.protocol.wire.kinds import SecureSum, VerifiedSum
from dca_proto.statistics import resolve
from dca_proto.statistics.statement import BOUNDS, BOUNDS_ALONE, BOUNDS_AND_NORM, liar_factor, proven_limit
from dca_proto.testing import NoNoise, TestFederation

SUM = VerifiedSum(tolerate=3)
BINS = {"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2 contributed, 3 were needed", 0),
        ("2 contributed, 3 were needed; the proofs of 14 failed: 012345678901, ...", 14),
        ("the proofs of 14 failed", 0),
        (f"; the proofs of {'9' * 400} failed: x", 0),
    ],
)
def test_how_many_failed_is_read_from_a_nodes_text(text: str, count: int) -> None:
    assert failed_in(text) == count


def drafted(**changes: Any) -> Any:
    actors = TestFederation(2, 3)
    return actors.request(**{"clients": 1000, "tolerate": 100, "kind": VerifiedSum(), **changes}).draft(
        actors.mechanism, Limits()
    )


def test_a_trainer_chooses_a_coarse_grid_and_enough_noise() -> None:
    body, validated = drafted()
    kind, statement = body.kind, validated.statement
    assert (kind.mechanism, body.fraction_bits % 2) == (MECHANISM, 0)
    cost = release_cost(validated.sensitivity.l2, 1, 899, kind.noises, kind.noise_bits)
    assert 0.85 * body.mu < cost.mu <= body.mu, "no more noise than a tenth of the variance too much"
    assert 2**2 < statement.noise_variance(1) < 64**2
    ideal = (validated.sensitivity_l2 / body.mu) ** 2 / 899
    assert ideal < validated.client_variance < 1.2 * ideal


@pytest.mark.parametrize(("clients", "tolerate"), [(5, 1), (30, 3), (1000, 100), (10_000, 1000)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_rounding_a_structured_statistic_hardly_costs_accuracy(clients: int, tolerate: int, epsilon: float) -> None:
    """A mean with a count of weight √3 pays Δ + √2 on its grid. Δ, by hand, asks for hardly less."""
    mean = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0], "count_weight": math.sqrt(3)}
    terms = {"clients": clients, "tolerate": tolerate, "epsilon": epsilon, "statistic": "mean", "rows_max": 1}
    body, validated = drafted(**terms, parameters=mean)
    corners = [(-1.0, math.sqrt(3)), (1.0, math.sqrt(3)), (0.0, 0.0)]  # the ends of a row's value, and no row
    sensitivity = max(math.dist(one, other) for one in corners for other in corners)
    ideal = (sensitivity / body.mu) ** 2 / (clients - tolerate - 1)
    assert ideal < validated.client_variance < validated.variance_of_sum(1) < 1.17 * ideal


@pytest.mark.parametrize(("clients", "most"), [(20, 1.3), (300, 1.16)])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_rounding_a_mean_of_rows_hardly_costs_accuracy(clients: int, most: float, epsilon: float) -> None:
    """In a sum of means of rows in a box, rounding adds √100 units to Δ = 20: a coarse grid more than doubled noise."""
    columns = [f"x{at}" for at in range(100)]
    box = {"columns": columns, "centre": [0.0] * 100, "scale": [1.0] * 100, "bound": [1.0] * 100}
    tolerate = clients // 10
    body, validated = drafted(clients=clients, tolerate=tolerate, epsilon=epsilon, parameters=box)
    ideal = (20 / body.mu) ** 2 / (clients - tolerate - 1)
    assert ideal < validated.variance_of_sum(1) < most * ideal


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noises": 0}, "noises is 0 with 899 honest clients"),
        ({"noise_bits": 0}, "noise numbers of 1 to 16 bits"),
        ({"noise_bits": 1}, "costs mu .* is announced; add noise"),
        ({"mechanism": "distributed-discrete-gaussian"}, "is not offered here; use 'coin-flipped-bits'"),
        ({"most": 1 << 26}, "reaches .* and has to stay below 2147483647"),
        ({"most": 1 << 20, "noise_bits": 3}, "a verified sum has at most 524,288 clients"),
    ],
)
def test_terms_that_no_verified_sum_can_have_are_refused(changes: dict[str, Any], message: str) -> None:
    body, _ = drafted()
    wrong = msgspec.structs.replace(body, kind=msgspec.structs.replace(body.kind, **changes))
    with pytest.raises(UsageError, match=message):
        validate_announcement(wrong, TestFederation(1, 2).mechanism, Limits())


@pytest.mark.parametrize(
    ("statistic", "parameters", "d", "factor"),
    [
        ("mean", {"count_weight": 1.0}, 3, 1.0),
        ("mean", {"radius": 1.0}, 2, 1.0),
        ("moments", {}, 4, math.sqrt(10 / 8)),
        ("histogram", {}, 3, 1.0),
    ],
)
@pytest.mark.parametrize("rows_max", [0, 1, 3])
def test_rounding_hardly_costs_accuracy_whatever_the_statistic(
    statistic: str, parameters: dict[str, Any], d: int, factor: float, rows_max: int
) -> None:
    """A plain sum of the same terms has the ideal variance. Factors of a liar are worked out by hand.

    Means of rows have room for rounding beside limits of combinations, of which these grids need little. So have rows
    in a ball, whose norm is proven: without it, the factor would be √2.
    """
    box = {"columns": ["x", "y"], "centre": [0.0] * 2, "scale": [1.0] * 2, "bound": [1.0] * 2}
    given = {"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]} if statistic == "histogram" else {**box, **parameters}
    terms = {"clients": 300, "tolerate": 30, "statistic": statistic, "parameters": given, "rows_max": rows_max}
    body, verified = drafted(**terms)
    _, plain = drafted(**terms, kind=SecureSum())
    assert verified.dimension == d
    assert verified.variance_of_sum(300) < 1.25 * plain.variance_of_sum(300)
    found = liar_factor(verified.statement, verified.statistic, rows_max, body.fraction_bits)
    has_room = rows_max == 0 and statistic in ("mean", "histogram") and "radius" not in parameters
    room = 0.15 if has_room else 0.05 if "radius" in parameters else 1e-3
    assert factor * (1 - 1e-3) < found < factor * (1 + room)


BALL = {"centre": [0.0], "scale": [1.0], "bound": [1.0]}


@pytest.mark.parametrize(
    ("d", "radius", "clients", "proven"),
    [
        (100, 1.0, 1000, BOUNDS_AND_NORM),
        pytest.param(3_000, 1.0, 1000, BOUNDS_AND_NORM, marks=pytest.mark.long),
        pytest.param(4_096, 0.71, 1000, BOUNDS_AND_NORM, marks=pytest.mark.long),
        pytest.param(4_096, 1.0, 40_000, BOUNDS_ALONE, marks=pytest.mark.long),
        (100, 9.9, 1000, BOUNDS),
    ],
)
def test_rows_in_a_ball_have_a_norm_wherever_it_fits(d: int, radius: float, clients: int, proven: str) -> None:
    """Of thousands of numbers it fits coarse grids only, which add noise. A radius of 0.71 is just beyond such a grid.
    The openings of twice 40,000 clients would be too large. A box that hardly leaves its ball needs no norm.
    """
    ball = {name: value * d for name, value in BALL.items()} | {"columns": [f"x{at}" for at in range(d)]}
    terms = {"statistic": "sum", "rows_max": 1, "clients": clients, "tolerate": clients // 10}
    body, verified = drafted(**{**terms, "parameters": {**ball, "radius": radius}})
    known = verified.statement, verified.statistic, 1, body.fraction_bits
    assert proven_limit(*known) == proven
    ideal = (2 * min(radius, 10.0) / body.mu) ** 2 / verified.honest
    assert 1 < verified.variance_of_sum(1) / ideal < 1.45
    factor = {BOUNDS: 1.0, BOUNDS_AND_NORM: 1.0, BOUNDS_ALONE: math.sqrt(d)}[proven]
    assert factor * (1 - 1e-9) < liar_factor(*known) < (1.4 if d > 1_000 else 1.02) * factor


def test_rounds_that_cannot_be_verified_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="delta is too small for a verified sum") as refusal:
        drafted(delta=1e-19)
    assert "\n" not in str(refusal.value)


def test_the_slack_is_charged_and_lowers_the_largest_mu() -> None:
    """A coordinate costs (1 + e^ε)·2^-64 of δ, which decides at a tiny δ."""
    slack, delta = 2.0**-64, 4e-19
    body, validated = drafted(delta=delta)
    expected = accounting.mu_of(1.0, delta - slack * (1 + math.e))
    assert 0.9999 * expected < body.mu <= expected < 0.995 * accounting.mu_of(1.0, delta)
    assert validated.cost == PrivacyCost.of_mu(body.mu, slack)
    too_large = msgspec.structs.replace(body, mu=accounting.mu_of(1.0, delta))
    with pytest.raises(UsageError, match=r"mu is .* expected above 0 and at most"):
        validate_announcement(too_large, TestFederation(1, 2).mechanism, Limits())


ROUNDED = 0.25
"""What a value half a unit above a point of the grid has as variance, if it is rounded up or down by a fair coin."""


def test_the_stated_variance_is_that_of_noise_and_of_the_most_that_rounding_adds() -> None:
    """By hand: 20 clients, each with m numbers on 0..2^a - 1, and rounding of one coordinate by a fair coin."""
    actors = TestFederation(20, 2)
    network, request = begin(actors, kind=SUM)
    until_the_end(network)
    (result,) = results(network)
    kind, unit = request.draft(actors.mechanism, Limits())[0].kind, 0.5**result.fraction_bits
    assert isinstance(kind, VerifiedSum)
    noise = kind.noises * (4**kind.noise_bits - 1) / 12
    assert result.noise_variance == pytest.approx(20 * (noise + ROUNDED) * unit**2, rel=1e-12)
    assert result.sigma_local == pytest.approx(math.sqrt(noise) * unit, rel=1e-12)


@pytest.mark.long
def test_rounding_is_an_error_of_the_stated_variance_without_any_noise() -> None:
    """60 rounds of 20 clients whose values are half a unit above a point of the grid; false alarms: 1e-6."""
    errors, stated = [], set()
    for number in range(60):
        value = (3 + 0.5) / 2**6
        actors = TestFederation(20, 2, name=f"rounded-{number}", rows=[np.array([[value]])] * 20, mechanism=NoNoise())
        network, _ = begin(actors, kind=SUM, fraction_bits=6)
        until_the_end(network)
        (result,) = results(network)
        errors.append(result.value[0] - 20 * value)
        stated.add(result.noise_variance)
    (variance,) = stated
    scaled = float(np.square(errors).sum() / variance)
    assert 20 < scaled < 130, "chi-squared of 60 degrees: the 5e-7 quantiles are 20.7 and 129.6"


def test_a_grid_is_as_fine_as_the_smallest_bound_asks_for() -> None:
    """Noise asks for a grid of 1/16, which has no point within a bound of 0.01."""
    statistic = resolve("mean", {"columns": ["x", "y"], "centre": [0, 0], "scale": [1, 1], "bound": [0.7, 0.01]})
    kind = VerifiedSum(clients=1000, tolerate=100)
    kind, bits = with_noise(kind, statistic, 1, 24, 0.03, DistributedDiscreteGaussian())
    assert bits == 8
    assert kind.noises
