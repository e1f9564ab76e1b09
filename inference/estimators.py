"""Estimators with the interface of scikit-learn: `fit` from rows, from aggregates or over rounds, `predict`, `coef_`.

Those of regressions are made from the jobs (`estimator_of`); each parameter is a setting of the job.
`inference.models.survival.estimator` has that of survival curves, `inference.models.synthetic.estimator` that of
synthetic rows. Only estimators need scikit-learn.
"""

from dataclasses import field, fields, make_dataclass
from typing import Any

from inference.jobs import NAMES, find
from inference.jobs.base import Estimable, LearningJob
from inference.jobs.examples import TIME
from inference.jobs.settings import described
from inference.models.classifiers import CLASSIFIERS
from inference.models.estimator import JobEstimator, JobRegressor
from inference.models.survival.estimator import HazardsEstimator, PrivateKaplanMeier
from inference.models.synthetic.estimator import PrivateSynthesizer
from inference.problem import Schema

BASES: dict[str, type[Any]] = {**CLASSIFIERS, TIME: HazardsEstimator}
"""The base class of an estimator by the kind of its target; that of numbers and counts is `JobRegressor`."""


def estimator_of(job: LearningJob) -> type[JobEstimator]:
    """Make the estimator of a job: a dataclass of its settings, the schema, and a seed if it draws while it learns."""
    learns = job.estimator
    assert isinstance(learns, Estimable), f"job {job.name!r} has an estimator"
    parameters: list[Any] = [(name, Any, None) for name in learns.own]
    parameters += [
        (one.name, one.type, field(default=one.default)) for one in fields(job.settings) if one.name not in learns.own
    ]
    parameters.append(("schema", Schema | None, None))
    if job.iterative:
        parameters.append(("random_state", Any, None))
    base = BASES.get(learns.target, JobRegressor)
    made: type[JobEstimator] = make_dataclass(
        learns.name,
        parameters,
        bases=(base,),
        namespace={
            "__module__": "inference.estimators",
            "__doc__": _words(job, learns, base),
            "job": job,
            "settings": job.settings,
            "own": tuple(learns.own),
        },
        kw_only=True,
        eq=False,
        repr=False,
    )
    return made


def _words(job: LearningJob, learns: Estimable, base: type[JobEstimator]) -> str:
    """Return the docstring of an estimator."""
    meant = {name: meaning for name, _, meaning in described(job.settings)}
    meant |= {name: meant.get(name, "of the targets, if it is known; None estimates it.") for name in learns.own}
    meant["schema"] = f"names and public bounds of features and target; needed {base.needs_schema}."
    lines = [f"        {name}: {meaning[:1].lower()}{meaning[1:]}" for name, meaning in meant.items()]
    if job.iterative:
        lines.append("        random_state: seed of the Monte Carlo draws, or a numpy `Generator`; not of the noise.")
    return "\n".join(
        [
            f"The estimator of job `{job.name}`: from raw rows without privacy, from aggregates, or over rounds.",
            "",
            "    Args:",
            *lines,
            "",
            "    Attributes:",
            *(f"        {one}" for one in base.shown),
            "        fit_: the whole posterior, with `draws`, `refit` and `predict_interval`.",
            "        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.",
        ]
    )


_MADE: dict[str, Any] = {
    job.estimator.name: estimator_of(job) for job in map(find, NAMES) if isinstance(job.estimator, Estimable)
}
globals().update(_MADE)
__all__ = ["PrivateKaplanMeier", "PrivateSynthesizer", *_MADE]


def __getattr__(name: str) -> Any:
    """Return an estimator that was made from a job, for type checkers; others do not exist."""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
