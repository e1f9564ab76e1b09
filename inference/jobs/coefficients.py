"""What the regression jobs share: rows of their coefficients, in units of their own and on one axis for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.jobs.estimates import Figure, figures, normal, row, standard_unit, student, with_standard
from inference.jobs.summary import Summary
from inference.models.linear.result import RegressionResult
from inference.models.logistic.baseline import LogisticPosterior
from inference.problem import Schema

Array = NDArray[np.float64]
LOG_ODDS = "log odds"


@dataclass(frozen=True)
class Effects:
    """What coefficients are changes of: the target, its logarithm, or the log odds of its upper class.

    Attributes:
        scale: of each feature in its own units, by which pictures multiply its coefficient; public, or private. Shape
            ``(d,)``. by: what the scale is, in words.
    """

    schema: Schema
    scale: Array
    by: str
    logistic: bool = False
    log: bool = False

    def unit(self, name: str) -> str:
        """Of a feature's coefficient."""
        if not (self.logistic or self.log):
            return self.schema.slope_unit(name)
        return f"{self._predicted} per {self.schema.units[name]}" if name in self.schema.units else self._predicted

    @property
    def _predicted(self) -> str:
        if self.logistic:
            return LOG_ODDS
        target = self.schema.units.get(self.schema.target, self.schema.target)
        return f"log {target}" if self.log else target

    def summary(self, found: Sequence[Figure], others: Sequence[Figure] | None) -> Summary:
        """Rows of the coefficients, and the intercept's figures.

        Args:
            found, others: figures of the intercept, then of each coefficient; the latter without privacy.
        """
        axis = standard_unit(self._predicted, self.by)
        rest: Sequence[Figure | None] = others or [None] * len(found)
        rows = [
            with_standard(row(name, self.unit(name), found[place], rest[place]), axis, self.scale[place - 1])
            for place, name in enumerate(self.schema.features, 1)
        ]
        return {"coefficients": rows, "intercept": figures(found[0], rest[0])}


def figures_of(fit: RegressionResult | LogisticPosterior | None) -> list[Figure] | None:
    """The intercept's and each coefficient's, in the user's units; None of nothing."""
    if fit is None:
        return None
    if isinstance(fit, LogisticPosterior):
        return [normal(*pair) for pair in zip(fit.mean, np.sqrt(np.diag(fit.cov)), strict=True)]
    pairs = zip([fit.intercept, *fit.coefficients], [fit.intercept_sd, *fit.coefficient_sd], strict=True)
    found = [student(*pair, fit.degrees) for pair in pairs]
    middle = np.r_[fit.centre[-1], np.zeros(len(fit.coefficients))]
    return found if fit.prior_sd is None else with_priors(found, middle, fit.prior_sd)


def with_priors(found: Sequence[Figure], mean: Array, sd: Array) -> list[Figure]:
    """Figures with the intervals of their normal priors.

    Args:
        mean, sd: of the priors, in the same order; an infinite sd is a flat prior.
    """
    priors = [normal(float(m), float(s)).interval for m, s in zip(mean, sd, strict=True)]
    return [one._replace(prior=prior) for one, prior in zip(found, priors, strict=True)]
