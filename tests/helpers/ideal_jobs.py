"""Learning jobs over rounds of the ideal functionality, on small invented data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.wire.kinds import NodeRelease
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.draws import Sampling
from inference.jobs import find
from inference.jobs.base import Conditions, LearningJob
from inference.jobs.estimates import rows_of
from inference.jobs.settings import settings_from
from inference.mcmc.run import Options, Sampled
from inference.models.linear.nodes import NodeStatistics, Prior
from inference.problem import Problem, Schema, split
from inference.rounds import run
from inference.variational.progress import Iteration

CLIENTS = 300
NODES = (b"1" * 16, b"2" * 16)


def problem(kind: str) -> Problem:
    """y from two features: a number, one of two classes, a count; or two heaps of features."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(CLIENTS + 100, 2))
    if kind == "pairs":
        X = 0.4 * X + np.where(rng.random(len(X)) < 0.6, 2, -2)[:, None]
    eta = X @ [1.0, -1.0]
    y, ends = {
        "number": (eta + rng.normal(scale=0.5, size=len(X)), Interval(-6, 6)),
        "class": ((eta + rng.logistic(scale=0.3, size=len(X)) > 0).astype(float), Interval(0, 1)),
        "count": (rng.poisson(2.0, size=len(X)).clip(0, 9).astype(float), Interval(0, 9)),
        "pairs": (np.zeros(len(X)), Interval(-1, 1)),
        "time": (rng.exponential(2.0, size=len(X)).clip(0, 20), Interval(0, 20)),
    }[kind]
    bounds = {"a": Interval(-4, 4), "b": Interval(-4, 4), "y": ends}
    return Problem("made", Schema(("a", "b"), "y", bounds, {"a": "cm", "y": "kg"}), X, y)


def conditions(budget: Budget, test: Problem | None = None, iterations: list[Iteration] | None = None) -> Conditions:
    return Conditions(
        clients=CLIENTS,
        tolerate=20,
        mu=budget.mu,
        rng=np.random.default_rng(2),
        on_iteration=[].append if iterations is None else iterations.append,
        held_out=test,
    )


def made(job: LearningJob, schema: Schema, own: Any, where: Conditions, swarm: IdealSwarm) -> Any:
    """A job's result."""
    released = run(job.make(schema, own, where), swarm)
    return job.finish(released, schema, own, where)


def learn(
    name: str, kind: str, iterations: list[Iteration] | None = None, epsilon: float = 8.0, **settings: Any
) -> Any:
    """The summary of a job, with all that a swarm knows; every figure of it is one that JSON has."""
    train, test = split(problem(kind), 100, 0)
    job = find(name)
    own, budget = settings_from(job.settings, settings, name), Budget(epsilon, 1e-5)
    job.check(train.schema, own)
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=CLIENTS, tolerate=20, computes=NODES)
    rng = np.random.default_rng(3)
    swarm = IdealSwarm(train.rows, train.schema.columns, terms, random=rng.bytes)
    where = conditions(budget, test, iterations)
    result = made(job, train.schema, own, where, swarm)
    exact = job.reference(train, own)
    alone = job.summarise(result, None, None, None, train.schema)
    assert [one["nonprivate"] for one in rows_of(alone)] == [None] * len(rows_of(alone)) != []
    return json.loads(json.dumps(job.summarise(result, exact, train, test, train.schema), allow_nan=False))


def near(summary: dict[str, Any], sds: float = 6.0) -> bool:
    """Whether all estimates are within so many of their own standard deviations of those without privacy."""
    return all(abs(one["estimate"] - one["nonprivate"]) < sds * one["estimate_sd"] for one in rows_of(summary))


def learn_from(tables: list[np.ndarray], **settings: Any) -> Any:
    """What job regression-mcmc makes of data nodes with these rows, or of one sum over them."""
    train, test = split(problem("number"), 100, 0)
    job, kind = find("regression-mcmc"), settings.pop("kind", NodeRelease)
    own = settings_from(job.settings, {"chains": 2, **settings}, job.name)
    job.check(train.schema, own)
    terms = JobTerms(epsilon=60, delta=1e-5, clients=len(tables), tolerate=0, computes=NODES)
    swarm = IdealSwarm(tables, train.schema.columns, terms, random=np.random.default_rng(3).bytes)
    progress: list[tuple[int, int]] = []
    known = replace(conditions(terms.budget), kind=kind, on_sampling=lambda done, total: progress.append((done, total)))
    result = made(job, train.schema, own, known, swarm)
    exact = job.reference(train, own)
    summary = job.summarise(result, exact, train, test, train.schema)
    return result, json.loads(json.dumps(summary, allow_nan=False)), progress


def drawn(observed: NodeStatistics, prior: Prior, options: Options, **_: Any) -> Sampled:
    """In place of NUTS, which would have to be compiled: draws about zero."""
    rng, total = np.random.default_rng(6), options.warmup + options.draws
    assert options.on_progress is not None
    options.on_progress(total, total)
    d = observed.features - bool(observed.constant)

    def made(count: int) -> dict[str, np.ndarray]:
        size = (options.chains, count)
        return {
            "theta": rng.normal(size=(*size, observed.features)),
            "sigma_y2": rng.gamma(4, size=size),
            "Sigma_x": 0.1 * np.eye(d) * rng.gamma(4, size=(*size, 1, 1)),
            "mu_x": 0.1 * rng.normal(size=(*size, d)),
        }

    none = np.zeros(options.chains, int)
    sampling = Sampling(none, np.full(options.chains, 0.9), none, np.full(options.chains, 0.5), 1.5)
    return Sampled(made(options.draws), made(options.warmup), sampling)
