"""Learning jobs by name, each in a small file of the same shape: its settings, its rounds, and what its result says.

General layout, in reading order:
    base                    what every job is; what it may know
    settings                reading a job's settings from a table or from words
    estimates, picture      rows of a summary: private beside non-private; drawn
    coefficients            rows of the regressions' coefficients, in units of their own and on one axis
    variational             what the jobs of many rounds share
    regression, regression_bounded, regression_mcmc, logistic, mixture, families     the jobs
    reports                 what those share that learn from reports, private each by itself
    ldp_histogram, ldp_mean, ldp_regression, ldp_sgd                                 these jobs

`find` gives a job by name and imports no other.
"""

from __future__ import annotations

from importlib import import_module

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest, RoundRequest, SecureSumRequest
from inference.errors import DataError, unknown
from inference.jobs.base import LearningJob

FAMILIES = ("gaussian", "bernoulli", "categorical", "poisson", "exponential")
_MODULES = {
    "regression": "inference.jobs.regression",
    "regression-bounded": "inference.jobs.regression_bounded",
    "regression-mcmc": "inference.jobs.regression_mcmc",
    "logistic": "inference.jobs.logistic",
    "mixture": "inference.jobs.mixture",
    **dict.fromkeys(FAMILIES, "inference.jobs.families"),
    "ldp-histogram": "inference.jobs.ldp_histogram",
    "ldp-mean": "inference.jobs.ldp_mean",
    "ldp-regression": "inference.jobs.ldp_regression",
    "ldp-sgd": "inference.jobs.ldp_sgd",
}
NAMES = tuple(_MODULES)
"""Of all jobs; the first is the default."""


def find(name: str) -> LearningJob:
    """The job of that name. Raises `DataError` for an unknown one, naming the nearest."""
    if name not in _MODULES:
        raise unknown("job", name, None, NAMES)
    jobs: dict[str, LearningJob] = import_module(_MODULES[name]).JOBS
    return jobs[name]


_WORDS = {
    SecureSumRequest: "secure sums over all clients",
    NodeReleaseRequest: "releases of data nodes",
    LdpReportRequest: "LDP reports of single clients",
}


def require_kind(job: LearningJob, kind: type[RoundRequest]) -> None:
    """Refuse a kind of rounds that a job cannot learn from. Raises `DataError` that names the jobs that can."""
    if kind not in job.kinds:
        others = ", ".join(name for name in NAMES if kind in find(name).kinds)
        can = " and ".join(_WORDS[one] for one in job.kinds)
        raise DataError(f"job {job.name!r} learns from {can}; these learn from {_WORDS[kind]}: {others}")
