"""Rows that lack a value are seen in the phases of a first round, by all jobs that have one, and named in a warning."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.privacy.budget import Budget
from dca_proto.statistics import resolve
from inference.bounds import Interval
from inference.locate import locate, phases_request
from inference.problem import Schema

Array = NDArray[np.float64]
COLUMNS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.normal(20, 5, n),
    "log-normal": lambda rng, n: np.exp(rng.normal(0, 1, n)),
    "binary": lambda rng, n: rng.binomial(1, 0.03, n) * 1.0,
    "two hills": lambda rng, n: np.where(rng.random(n) < 0.5, rng.normal(10, 1, n), rng.normal(70, 1, n)),
    "heavy tails": lambda rng, n: rng.standard_t(2, n) * 3 + 50,
    "zeros": lambda rng, n: np.where(rng.random(n) < 0.6, 0.0, rng.exponential(20, n)),
}


def phases(names: tuple[str, ...], n: int, epsilon: float, missing: float, seed: int) -> NoisyAggregate:
    """A fifth of the budget on the phases of columns of which the first lacks values."""
    rng, bits = np.random.default_rng(seed), 24
    table = np.column_stack([COLUMNS[name](rng, n) for name in names])
    table[rng.random(n) < missing, 0] = np.nan
    bounds = {f"x{j}": Interval(0, 1 if name == "binary" else 100) for j, name in enumerate(names)}
    *features, target = bounds
    request = phases_request(Schema(tuple(features), target, bounds), 0.2, tuple(bounds))
    statistic = resolve(request.statistic, request.parameters)
    value = np.ldexp(statistic.evaluate(table[np.isfinite(table).all(axis=1)], bits).sum(axis=0), -bits)
    sensitivity = math.ldexp(statistic.row_sensitivity(bits).l2, -bits)
    sd = sensitivity / (Budget(epsilon, 1e-5).mu * math.sqrt(0.2))
    return NoisyAggregate(
        value=value + sd * rng.standard_normal(value.shape), noise_variance=sd**2, statistic=request.statistic,
        parameters=request.parameters, contributors=n, clients=n, n_min=0, colluders=0, mechanism="none",
        sensitivity=sensitivity, relation="replace-one-client", sigma_local=0.0, epsilon=1.0, delta=1e-5, mu=0.3,
        round_id=bytes(16), announcement_hash=bytes(32), contributors_hash=bytes(32),
    )  # fmt: skip


@pytest.mark.parametrize("names", [("normal", "normal"), ("heavy tails", "normal"), ("zeros", "zeros", "binary")])
def test_half_of_the_rows_that_lack_a_value_are_named(names: tuple[str, ...]) -> None:
    for seed in range(5):
        warning = locate(phases(names, 10_000, 1.0, 0.5, seed)).warnings[0]
        share = float(warning.split()[1])
        assert 40 < share < 60
        assert warning.endswith("% of the rows seem to lack a value: the estimates are of the others; find out whether "
                                "those differ")  # fmt: skip


@pytest.mark.parametrize(
    "names", [(one, other) for one in COLUMNS for other in ("normal", one)], ids=lambda names: " ".join(names)
)
def test_complete_rows_of_any_law_give_no_warning(names: tuple[str, ...]) -> None:
    for seed, (n, epsilon) in enumerate(((1000, 1.0), (10_000, 1.0), (30_000, 4.0))):
        assert not any("lack a value" in text for text in locate(phases(names, n, epsilon, 0.0, seed)).warnings)
