"""Estimators with the interface of scikit-learn: `fit` from rows, from aggregates or over rounds, `predict`, `coef_`.

Those of regressions are made from the jobs (`inference.models.estimator.estimator_of`); each parameter is a setting of
the job. `inference.models.survival.estimator` has those of survival, `inference.models.synthetic.estimator` that of
synthetic rows. Only estimators need scikit-learn.
"""

from typing import Any

from inference.jobs import NAMES, find
from inference.jobs.base import Estimable
from inference.models.estimator import estimator_of
from inference.models.survival.estimator import PrivateKaplanMeier, PrivateProportionalHazards
from inference.models.synthetic.estimator import PrivateSynthesizer

_MADE: dict[str, Any] = {
    job.estimator.name: estimator_of(job) for job in map(find, NAMES) if isinstance(job.estimator, Estimable)
}
globals().update(_MADE)
__all__ = ["PrivateKaplanMeier", "PrivateProportionalHazards", "PrivateSynthesizer", *_MADE]


def __getattr__(name: str) -> Any:
    """Return an estimator that was made from a job, for type checkers; others do not exist."""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
