"""A client whose policy allows just the public bounds takes part in every round of every job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from statistic_samples import STATISTICS

from check_lying_client import CASES, setting_of
from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.policy import Policy
from dca_proto.statistics import resolve
from dca_proto.statistics.scaled import ANY, ScaledColumns
from emulator.ideal import IdealSwarm
from inference.rounds import run

CLIENTS = 60
SEVERAL = {"regression", "logistic", "poisson-regression", "robust-regression", "mixture", "survival-regression"}
BINNED = {"categorical", "ldp-histogram"}  # bins around whole numbers reach half a unit beyond the bounds
SCALED = [one for one in STATISTICS if isinstance(one, ScaledColumns) and not one.within]


class Asked:
    """Ideal rounds that keep their requests."""

    def __init__(self, swarm: IdealSwarm) -> None:
        self.requests: list[RoundRequest] = []
        self._swarm = swarm

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        self.requests.append(request)
        return self._swarm.run_round(request)


@pytest.mark.parametrize("name", CASES)
def test_a_policy_of_the_public_bounds_declines_no_round(name: str) -> None:
    """Features lie off the middle, so that centres do: an interval about one of them would reach beyond the bounds."""
    setting = setting_of(name, CLIENTS, Budget(20.0, 1e-3))
    rows = setting.data.rows.copy()
    rows[:, 0] = np.clip(rows[:, 0] + 2.0, -4.0, 4.0)
    rounds = Asked(IdealSwarm(rows, setting.data.schema.columns, setting.terms, random=np.random.default_rng(3).bytes))
    if "chains" in CASES[name].example.settings:  # one round; no need to wait for the sampler
        rounds.run_round(next(setting.job.make(setting.data.schema, setting.own, setting.known)))
    else:
        run(setting.job.make(setting.data.schema, setting.own, setting.known), rounds)
    half = 0.5 if setting.job.name in BINNED else 0.0
    bounds = setting.data.schema.bounds.items()
    policy = Policy(bounds={column: (one.lower - half, one.upper + half) for column, one in bounds})
    assert len(rounds.requests) >= 1 + (name in SEVERAL)
    for request in rounds.requests:
        assert policy.check_bounds(resolve(request.statistic, request.parameters)) is None, request.statistic


@pytest.mark.parametrize("statistic", SCALED, ids=lambda one: f"{one.name}-{STATISTICS.index(one)}")
def test_values_beyond_count_as_the_nearest_end(statistic: Any) -> None:
    """So contributions are some of those without `within`, and the sensitivity holds; codes are not clamped."""
    rng, d = np.random.default_rng(5), len(statistic.columns)
    first = 3 if statistic.name == "survival-score" else 0
    ends = tuple(ANY if place < first else (-0.4 - 0.1 * place, 0.7) for place in range(d))
    narrow = type(statistic)(
        **{name: getattr(statistic, name) for name in statistic.__struct_fields__} | {"within": ends}
    )
    low, high = np.array(ends).T
    rows = rng.normal(scale=2.0, size=(402, d)) * np.where(rng.random((402, 1)) < 0.1, 1e300, 1.0)
    rows[:, :first] = np.array([1.5, 1.0, 0.0])[:first]
    np.testing.assert_array_equal(narrow.evaluate(rows, 24), statistic.evaluate(np.clip(rows, low, high), 24))
    assert narrow.row_sensitivity(24) == statistic.row_sensitivity(24)
    for column, one in zip(statistic.columns, ends, strict=True):
        if one != ANY:
            asked = narrow.ranges()[column]
            assert one[0] <= asked[0] < asked[1] <= one[1]
