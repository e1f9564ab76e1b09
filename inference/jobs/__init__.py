"""The registry of learning jobs, and what jobs share.

    base                    the base class of jobs, and the conditions that a job may know
    settings                a job's settings, read from a table or from words
    summary, estimates      the typed table of a summary; its rows, with and without privacy
    picture                 a plot of these rows
    reports                 the common part of jobs that learn from LDP reports

Each job is defined beside its model. `find` returns one by name and imports no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import Kind, LdpReport, NodeRelease, SecureSum
from inference.errors import DataError, unknown
from inference.jobs.base import Conditions, LearningJob
from inference.jobs.settings import settings_from
from inference.problem import Schema, stream
from inference.rounds import Replayed, run

FAMILIES = ("gaussian", "bernoulli", "categorical", "poisson", "exponential")
_JOBS = {
    "regression": "inference.models.linear.job:Projected",
    "regression-bounded": "inference.models.linear.job:Bounded",
    "regression-mcmc": "inference.models.linear.nodes.job:NodesRegression",
    "logistic": "inference.models.logistic.job:Logistic",
    "poisson-regression": "inference.models.glm.job:PoissonRegression",
    "robust-regression": "inference.models.glm.job:RobustRegression",
    "ordinal-regression": "inference.models.categories.job:OrdinalRegression",
    "multinomial-regression": "inference.models.categories.job:MultinomialRegression",
    "mixture": "inference.models.mixture.job:Mixture",
    **dict.fromkeys(FAMILIES, "inference.models.conjugate.job:FamilyJob"),
    "quantiles": "inference.models.quantiles.job:Quantiles",
    "describe": "inference.models.table.job:Describe",
    "compare": "inference.models.table.compare_job:Compare",
    "synthetic": "inference.models.synthetic.job:Synthetic",
    "survival": "inference.models.survival.job:SurvivalCurves",
    "survival-regression": "inference.models.survival.job:SurvivalRegression",
    "sites-regression": "inference.models.sites.job:SitesRegression",
    "sites-logistic": "inference.models.sites.job:SitesLogistic",
    "ldp-histogram": "inference.models.column.histogram_job:Histogram",
    "ldp-quantiles": "inference.models.quantiles.reported:ReportedQuantiles",
    "ldp-mean": "inference.models.column.mean_job:Mean",
    "ldp-regression": "inference.models.glm.ldp_job:LdpRegression",
    "ldp-sgd": "inference.models.glm.sgd:LdpSgd",
}
NAMES = tuple(_JOBS)
"""The names of all jobs; the first is the default."""


@cache
def find(name: str) -> LearningJob:
    """Return the job of that name. Raises `DataError` for an unknown one, with the nearest name."""
    if name not in _JOBS:
        raise unknown("job", name, None, NAMES)
    module, _, kind = _JOBS[name].partition(":")
    found = getattr(import_module(module), kind)
    job: LearningJob = found(name) if name in FAMILIES else found()
    return job


def refit(name: str, aggregates: Sequence[NoisyAggregate], schema: Schema, *, seed: int = 0, **settings: Any) -> Any:
    """Learn from the recorded aggregates of a job's rounds again, as under another prior; this spends no privacy.

    A job's requests do not depend on its prior, so this equals a fit with that prior from the start.

    Args:
        name: of the job. aggregates: of all of its rounds, in order. schema: the job's.
        seed: of the run (of its random stream "auxiliary"), which gradient steps depend on.
        settings: of the job, both those that shaped its rounds and the new ones.

    Raises:
        DataError: there is no aggregate, one does not answer the job's request, or a setting is out of range.
    """
    job = find(name)
    if not aggregates:
        raise DataError(f"no aggregates are given; expected those of all rounds of job {name!r}, in their order")
    first = aggregates[0]
    own = settings_from(job.settings, settings, name)
    of_nodes = NodeRelease if first.nodes else SecureSum
    known = Conditions(
        first.clients,
        0,
        first.mu or 1.0,
        stream(seed, "auxiliary"),
        kind=of_nodes if first.reports is None else LdpReport,
        epsilon=first.epsilon or 1.0,
        weights=lambda parameters: tuple(first.parameters["weights"]),
    )
    return job.finish(run(job.make(schema, own, known), Replayed(aggregates)), schema, own, known)


def require_kind(job: LearningJob, kind: type[Kind]) -> None:
    """Refuse a kind of rounds that a job cannot learn from. Raises `DataError` with the jobs that can."""
    if kind not in job.kinds:
        others = ", ".join(name for name in NAMES if kind in find(name).kinds)
        can = " and ".join(one.messages for one in job.kinds)
        raise DataError(f"job {job.name!r} learns from {can}; these learn from {kind.messages}: {others}")
