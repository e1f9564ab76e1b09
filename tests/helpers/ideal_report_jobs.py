"""Jobs on LDP reports over rounds of the ideal functionality, on small invented data."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from dca_proto.aggregate import RoundRequest
from dca_proto.cli.job_settings import best_weights
from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import NAMES, find
from inference.jobs.base import Conditions
from inference.jobs.estimates import rows_of
from inference.jobs.settings import settings_from
from inference.problem import Problem, Schema
from inference.rounds import run

N = 400
LDP = tuple(name for name in NAMES if name.startswith("ldp-"))
JOBS = {name: find(name) for name in LDP}
sampled = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("numpyro", "jax", "arviz")), reason="without the extra samplers"
)


def problem(kind: str = "number", n: int = N) -> Problem:
    """y = a - b + noise, or whether that is above 0; or counts of mean 3, described alone."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 2)).clip(-4, 4)
    y = X @ [1.0, -1.0] + rng.normal(scale=0.3, size=n)
    bounds = {"a": Interval(-4, 4), "b": Interval(-4, 4), "y": Interval(-6, 6)}
    if kind == "class":
        return Problem("made", Schema(("a", "b"), "y", {**bounds, "y": Interval(0, 1)}), X, (y > 0).astype(float))
    if kind == "count":
        schema = Schema((), "y", {"y": Interval(0, 12)}, {"y": "calls"}, alone=True)
        return Problem("made", schema, np.empty((n, 0)), rng.poisson(3.0, n).clip(0, 12).astype(float))
    return Problem("made", Schema(("a", "b"), "y", bounds, {"y": "kg"}), X, y)


def conditions(epsilon: float = 2.0, clients: int = N, **more: Any) -> Conditions:
    given = {"clients": clients, "tolerate": 0, "mu": 1.0, "rng": np.random.default_rng(2), "epsilon": epsilon}
    return Conditions(**{**given, "weights": best_weights, **more})


def settings(name: str, **given: Any) -> Any:
    return settings_from(JOBS[name].settings, given, name)


def clients_of(data: Problem, epsilon: float) -> IdealSwarm:
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=len(data.y), tolerate=0, computes=())
    return IdealSwarm(data.rows, data.schema.columns, terms, random=np.random.default_rng(3).bytes)


def first_request(name: str, data: Problem, known: Conditions | None = None, **given: Any) -> RoundRequest:
    """A job's first request."""
    return next(JOBS[name].make(data.schema, settings(name, **given), known or conditions(clients=len(data.y))))


def learn_job(name: str, data: Problem, epsilon: float = 2.0, **given: Any) -> tuple[Any, dict[str, Any], Any]:
    """A job's result, its summary as JSON has it, and what was released."""
    job, own, known = JOBS[name], settings(name, chains=2, draws=200, **given), conditions(epsilon, len(data.y))
    released = run(job.make(data.schema, own, known), clients_of(data, epsilon))
    result = job.finish(released, data.schema, own, known)
    alone = job.summarise(result, None, None, None, data.schema)
    assert {one["nonprivate"] for one in rows_of(alone)} == {None}
    summary = job.summarise(result, job.reference(data, own), data, data, data.schema)
    return result, json.loads(json.dumps(summary, allow_nan=False)), released
