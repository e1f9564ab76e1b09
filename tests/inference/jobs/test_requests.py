"""What jobs of several rounds ask for: it follows from released sums alone, and is worth their whole budget."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from check_lying_client import Setting, setting_of
from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.privacy.budget import Budget
from emulator.ideal import IdealSwarm
from inference.rounds import as_text


def requests(setting: Setting, answer: Callable[[RoundRequest], NoisyAggregate]) -> list[RoundRequest]:
    """Return all requests of a job, in order."""
    asked, job = [], setting.job.make(setting.data.schema, setting.own, setting.known)
    try:
        asked.append(next(job))
        while True:
            asked.append(job.send(answer(asked[-1])))
    except StopIteration:
        return asked


@pytest.mark.parametrize("name", ["regression", "mixture", "survival-regression"])
def test_requests_follow_from_released_sums_and_spend_the_budget(name: str) -> None:
    """With the same sums, and without any rows, a job asks the same."""
    setting, sums = setting_of(name, 24, Budget(8, 1e-5)), []
    data, randomness = setting.data, np.random.default_rng(3)
    swarm = IdealSwarm(data.rows, data.schema.columns, setting.terms, random=randomness.bytes)

    def released(request: RoundRequest) -> NoisyAggregate:
        sums.append(swarm.run_round(request))
        return sums[-1]

    asked = requests(setting, released)
    recorded = iter(sums)
    again = requests(setting_of(name, 24, Budget(8, 1e-5)), lambda request: next(recorded))
    told = [[(one.statistic, as_text(one.parameters), one.budget_share) for one in each] for each in (asked, again)]
    assert told[0] == told[1]
    assert len(asked) > 1
    plan = setting.job.plan(data.schema, setting.own, setting.known)
    assert math.fsum(one.budget_share for one in asked) == pytest.approx(1, abs=1e-12)
    assert math.fsum(stage.total for stage in plan) == pytest.approx(1, abs=1e-12)
