"""Robust regression of a target that its features mostly explain states too large a residual scale, and says so."""

from __future__ import annotations

import numpy as np
import pytest

from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.models.glm.families import StudentT
from inference.models.glm.job import scored_regression
from inference.problem import Schema
from inference.rounds import run

SCHEMA = Schema(("a", "b"), "y", {"a": (-5, 5), "b": (-5, 5), "y": (-30, 30)})


@pytest.mark.parametrize(("scale", "warned"), [(0.4, True), (1.0, False)])
def test_a_residual_scale_far_below_the_targets_spread_is_warned_of(scale: float, warned: bool) -> None:
    """At 0.4 no interval of 20 fits held the scale, which is 15 % too large, and no result said so."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((5_000, 2))
    y = X @ [1.0, -1.0] + scale * rng.standard_t(4, len(X))
    terms = JobTerms(epsilon=1.0, delta=1e-5, clients=len(X), tolerate=0, computes=(bytes(16), bytes([1]) * 16))
    swarm = IdealSwarm(np.column_stack([X, y]), SCHEMA.columns, terms, random=rng.bytes)
    warnings = run(scored_regression(SCHEMA, StudentT()), swarm).warnings
    assert any("far below the target's spread" in text for text in warnings) is warned
