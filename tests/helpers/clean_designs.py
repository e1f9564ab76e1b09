"""Clean data for every learning job: nothing is wrong with it, so a warning about it is a false alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest
from dca_proto.cli.job_settings import best_weights
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.settings import settings_from
from inference.problem import Problem, Schema
from inference.rounds import run

CLIENTS, EPSILON, DELTA, COMPUTES = 5_000, 2.0, 1e-5, tuple(bytes([index]) * 16 for index in range(3))
SHARE = 0.1  # of the rare category
NORMAL, SKEWED, BINARY = "normal", "skewed", "rare binary"
Rng = np.random.Generator
Design = Callable[[Rng, int], Problem]

_FEATURES: dict[str, tuple[Callable[[Rng, int], np.ndarray], Interval, float]] = {
    NORMAL: (lambda rng, n: rng.standard_normal(n), Interval(-5, 5), 1.0),
    SKEWED: (lambda rng, n: rng.exponential(size=n), Interval(0, 12), 1.0),
    BINARY: (lambda rng, n: (rng.random(n) < SHARE).astype(float), Interval(0, 1), float(np.sqrt(SHARE * (1 - SHARE)))),
}
"""By name: values of a column, public bounds that are wide enough, and the standard deviation."""


def _rows(kinds: tuple[str, ...], target: Callable[[Rng, np.ndarray], np.ndarray], ends: Interval) -> Design:
    """Return a design of these features, and of a target given the linear predictor, whose deviation is about 1."""
    names = tuple("abc"[: len(kinds)])
    bounds = {name: _FEATURES[kind][1] for name, kind in zip(names, kinds, strict=True)}

    def drawn(rng: Rng, n: int) -> Problem:
        X = np.column_stack([_FEATURES[kind][0](rng, n) for kind in kinds])
        effects = np.array([0.6, -0.5, 0.4])[: len(kinds)] / [_FEATURES[kind][2] for kind in kinds]
        y = np.clip(target(rng, (X - X.mean(axis=0)) @ effects), ends.lower, ends.upper)
        return Problem("clean", Schema(names, "y", {**bounds, "y": ends}), X, y)

    return drawn


def _alone(values: Callable[[Rng, int], np.ndarray], ends: Interval) -> Design:
    """Return a design of one column."""
    schema = Schema((), "y", {"y": ends}, alone=True)
    return lambda rng, n: Problem("clean", schema, np.empty((n, 0)), np.clip(values(rng, n), ends.lower, ends.upper))


def _number(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return 1 + eta + rng.standard_normal(len(eta))


def _class(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return (rng.random(len(eta)) < expit(eta - 0.5)).astype(float)


def _count(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return rng.poisson(np.exp(1 + 0.5 * eta)).astype(float)


def _outliers(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return 1 + eta + 0.7 * rng.standard_t(4, len(eta))


def _trial(kinds: tuple[str, ...]) -> Design:
    """Return a design of durations with censoring, an event column last among the features."""

    def drawn(rng: Rng, n: int) -> Problem:
        known = _rows(kinds, lambda rng, eta: eta, Interval(-50, 50))(rng, n) if kinds else None
        X, eta = (np.empty((n, 0)), np.zeros(n)) if known is None else (known.X, known.y)
        life, leave = rng.exponential(8 * np.exp(-0.5 * eta)), rng.uniform(2, 24, n)
        bounds = {} if known is None else {name: known.schema.bounds[name] for name in known.schema.features}
        schema = Schema((*bounds, "event"), "y", {**bounds, "event": Interval(0, 1), "y": Interval(0, 24)})
        return Problem("clean", schema, np.column_stack([X, life <= leave]), np.minimum(np.minimum(life, leave), 24))

    return drawn


def _heaps(rng: Rng, n: int) -> Problem:
    X = 0.5 * rng.standard_normal((n, 2)) + np.where(rng.random(n) < 0.6, 2, -2)[:, None]
    bounds = {"a": Interval(-5, 5), "b": Interval(-5, 5), "y": Interval(-1, 1)}
    return Problem("clean", Schema(("a", "b"), "y", bounds), X, np.zeros(n))


_MIXED, _PLAIN = ((NORMAL,) * 3, (SKEWED, NORMAL), (NORMAL, SKEWED, BINARY), (BINARY, NORMAL)), ((NORMAL,) * 3,)
_REAL = Interval(-9, 11)
_NORMAL_COLUMN = _alone(lambda rng, n: rng.normal(20, 3, n), Interval(5, 35))
_COUNTS = _alone(lambda rng, n: rng.poisson(4, n), Interval(0, 20))
DESIGNS: dict[str, list[Design]] = {
    "regression": [_rows(kinds, _number, _REAL) for kinds in _MIXED],
    "regression-bounded": [_rows(kinds, _number, _REAL) for kinds in _MIXED],
    "regression-mcmc": [_rows(kinds, _number, _REAL) for kinds in _PLAIN],
    "logistic": [_rows(kinds, _class, Interval(0, 1)) for kinds in _MIXED],
    "poisson-regression": [_rows(kinds, _count, Interval(0, 60)) for kinds in _MIXED],
    "robust-regression": [_rows(kinds, _outliers, Interval(-20, 22)) for kinds in _MIXED],
    "mixture": [_heaps],
    "gaussian": [_NORMAL_COLUMN],
    "bernoulli": [_alone(lambda rng, n, p=p: rng.random(n) < p, Interval(0, 1)) for p in (0.5, SHARE)],
    "categorical": [
        _alone(lambda rng, n: rng.integers(0, 4, n), Interval(0, 3)),
        _alone(lambda rng, n: rng.choice(4, n, p=[0.7, 0.1, 0.1, 0.1]), Interval(0, 3)),
    ],
    "poisson": [_COUNTS],
    "exponential": [_alone(lambda rng, n: rng.exponential(2.0, n), Interval(0, 40))],
    "survival": [_trial(())],
    "survival-regression": [_trial(kinds) for kinds in _MIXED],
    "ldp-histogram": [_alone(lambda rng, n: rng.choice(4, n, p=[0.5, 0.2, 0.2, 0.1]), Interval(0, 3))],
    "ldp-mean": [_NORMAL_COLUMN],
    "ldp-regression": [_rows(kinds, _number, _REAL) for kinds in _PLAIN],
    "ldp-sgd": [_rows(kinds, _number, _REAL) for kinds in _PLAIN],
}
"""Clean designs of each job. Jobs whose model takes features to be normal get normal ones, as their page asks."""
MORE, LOUDER = {"ldp-regression": 200_000}, {"ldp-regression": 8.0}
"""Clients and epsilon of jobs that rightly warn with less: the prior weighs more than few noisy reports."""
SETTINGS: dict[str, dict[str, Any]] = {"regression-mcmc": {"method": "fast"}}
NODES = 10


def warned(name: str, design: Design, seed: int) -> list[str]:
    """Return the warnings of a job's summary on a clean design."""
    rng, job, clients = np.random.default_rng(seed), find(name), MORE.get(name, CLIENTS)
    rows, kind = design(rng, clients), job.kinds[0]
    own = settings_from(job.settings, SETTINGS.get(name, {}), name)
    job.check(rows.schema, own)
    local, nodes = kind is LdpReportRequest, kind is NodeReleaseRequest
    parts = np.array_split(rows.rows, NODES) if nodes else rows.rows
    budget = Budget(LOUDER.get(name, EPSILON), DELTA)
    tolerated = 0 if local or nodes else clients // 10
    terms = JobTerms(
        budget=budget, clients=len(parts), tolerated=tolerated, computes=() if local or nodes else COMPUTES
    )
    known = Conditions(len(parts), tolerated, budget.mu, rng, kind=kind, epsilon=EPSILON, weights=best_weights)
    swarm = IdealSwarm(parts, rows.schema.columns, terms, random=rng.bytes)
    result = job.finish(run(job.make(rows.schema, own, known), swarm), rows.schema, own, known)
    return list(job.summarise(result, None, None, None, rows.schema)["warnings"])
