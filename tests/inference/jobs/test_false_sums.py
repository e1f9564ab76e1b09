"""Every job takes any finite sums without an exception: it gives a result, or one line that says what is wrong.

Sums that no honest clients can make reach no model (`inference.rounds.run`); those at the ends of what they can, do.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from check_lying_client import CASES, LIAR, setting_of
from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.privacy.budget import Budget
from dca_proto.statistics import resolve
from emulator.ideal import IdealSwarm
from inference.errors import DataError

CLIENTS = 24
FalseSum = Callable[[NoisyAggregate], np.ndarray]


def at(end: str, sds: float) -> FalseSum:
    """An end of the statistic's range, beyond which the noise just reaches."""

    def value(aggregate: NoisyAggregate) -> np.ndarray:
        limits = resolve(aggregate.statistic, aggregate.parameters).value_range(24)
        rows = aggregate.contributors * max(aggregate.rows_max, 1)
        numbers = {"low": limits.low, "high": limits.high, "zero": 0 * limits.low}[end] * rows * 2.0**-24
        return np.asarray(numbers + sds * math.sqrt(aggregate.noise_variance))

    return value


SUMS: dict[str, FalseSum] = {
    "zeros": at("zero", 0),
    "a little": at("zero", 4),
    "less than nothing": at("zero", -4),
    "lowest": at("low", 0),
    "beyond the lowest": at("low", -4),
    "highest": at("high", 0),
    "beyond the highest": at("high", 4),
    "noise alone": lambda one: math.sqrt(one.noise_variance) * np.random.default_rng(4).standard_normal(one.dimension),
    "mirrored": lambda one: -one.value,
    "large": lambda one: 30 * one.value,
    "a million": lambda one: np.full_like(one.value, 1e6),
    "minus a million": lambda one: np.full_like(one.value, -1e6),
    "1e18": lambda one: np.full_like(one.value, 1e18),
    "-1e18": lambda one: np.full_like(one.value, -1e18),
    "random words": lambda one: np.random.default_rng(1).integers(-(2**63), 2**63, one.dimension) * 2.0**-24,
    "tiny": lambda one: np.full_like(one.value, 1e-300),
}
SUMMED = [name for name in CASES if not name.startswith("ldp-")]
COMPILED = ("poisson-regression", "categorical")
"""Jobs whose fits compile for seconds. The long test has the same sums for them."""


class FalseRounds:
    """Ideal rounds whose sums are replaced, past the trainer's check."""

    def __init__(self, swarm: IdealSwarm, false: FalseSum) -> None:
        self._swarm, self._false = swarm, false

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        aggregate = self._swarm.run_round(request)
        if aggregate.nodes:
            node = aggregate.nodes[LIAR]
            lied = dataclasses.replace(node, value=self._false(node))
            nodes = (*aggregate.nodes[:LIAR], lied, *aggregate.nodes[LIAR + 1 :])
            return dataclasses.replace(aggregate, nodes=nodes, value=np.sum([one.value for one in nodes], axis=0))
        return dataclasses.replace(aggregate, value=self._false(aggregate))


def failures(name: str, epsilon: float, sums: Iterable[str]) -> dict[str, str]:
    """Return the errors, other than those meant for users, by false sum."""
    setting, failed = setting_of(name, CLIENTS, Budget(epsilon, 1e-5)), {}
    for of in sums:
        data = setting.data
        swarm = IdealSwarm(data.rows, data.schema.columns, setting.terms, random=np.random.default_rng(3).bytes)
        try:
            summary: dict[str, Any] = setting.learned(FalseRounds(swarm, SUMS[of]))
            json.dumps(summary, allow_nan=False)
        except (DataError, NoAggregate):
            continue
        except Exception as error:
            failed[of] = f"{type(error).__name__}: {error}"
    return failed


@pytest.mark.parametrize("name", [name for name in SUMMED if name not in COMPILED])
def test_no_finite_sum_ends_a_job_with_another_error(name: str) -> None:
    assert failures(name, 0.5, ("zeros", "beyond the lowest", "random words")) == {}


@pytest.mark.long
@pytest.mark.parametrize("name", SUMMED)
def test_no_more_do_many_others(name: str) -> None:
    """Half of them with much noise, and the others with little."""
    sums = list(SUMS)
    assert failures(name, 8.0, sums[::2]) == {}
    assert failures(name, 0.5, sums[1::2]) == {}
