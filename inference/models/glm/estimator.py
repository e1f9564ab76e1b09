"""Regression of counts, and of targets with outliers, with scikit-learn's interface.

    PrivatePoissonRegression().fit(X, y)                   raw rows: without privacy
    PrivatePoissonRegression(schema=schema).fit(rounds)    a few rounds over a running trainer or ideal rounds
    PrivatePoissonRegression(prior_sd=0.5).fit(aggregates) the same sums under another prior, at no further cost

Features are standardised first, so the prior is in standard deviations whatever the units.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dca_proto.aggregate import NoisyAggregate
from inference.errors import DataError
from inference.models.coefficients import Coefficients
from inference.models.estimator import PrivateRegressor, required
from inference.models.glm.families import Family, Poisson, StudentT
from inference.models.glm.job import ROUNDS, RobustSettings, Settings, scored_regression
from inference.models.glm.scored_fit import PRIOR_SD, exact_fit, family_of, regression_of_scores
from inference.problem import Schema
from inference.rounds import Job


@dataclass(kw_only=True, eq=False, repr=False)
class _Scored(PrivateRegressor):
    """The base class of both estimators; a subclass chooses the family."""

    spread: ClassVar[str]  # name of the attribute with the posterior of the spread
    settings = Settings
    prior_sd: float = PRIOR_SD
    schema: Schema | None = None
    rounds: int = ROUNDS

    @abstractmethod
    def _family(self) -> Family: ...

    def _of_rows(self, X: Any, y: Any) -> Coefficients:
        X, y = self._validated(X, y)
        return exact_fit(X, y, self._family(), self.prior_sd)

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Coefficients:
        fit, family = regression_of_scores(aggregates, self.prior_sd), family_of(aggregates[-1])
        if type(family) is not type(self._family()):
            raise DataError(
                f"the aggregates are of the family {family.name!r}; expected {self._family().name!r}, so take the "
                "other estimator"
            )
        return fit

    def _job(self) -> Job[Coefficients]:
        return scored_regression(required(self.schema), self._family(), prior_sd=self.prior_sd, rounds=self.rounds)

    def _keep(self, fit: Coefficients) -> None:
        super()._keep(fit)
        assert fit.spread is not None, "both families have a spread"
        setattr(self, f"{self.spread}_", fit.spread.mean)
        setattr(self, f"{self.spread}_sd_", fit.spread.sd)


class PrivatePoissonRegression(_Scored):
    """Bayesian regression of counts: log E[y] is linear in the features, and counts may be overdispersed.

    Args:
        prior_sd: of each slope, with features in standard deviations.
        schema: names and public bounds of features and target, whose lower bound is 0; needed only over rounds.
        rounds: number of rounds of scores, after the one for scales.

    Attributes:
        coef_, coef_sd_: posterior mean and standard deviation of the slopes of the log rate, in own units, shape
            ``(d,)``. intercept_, intercept_sd_: of the log rate at features of zero.
        dispersion_, dispersion_sd_: posterior mean and sd of κ; a count of mean λ has the variance λ + κλ².
        fit_: the whole posterior (`inference.models.coefficients.Coefficients`), with ``refit(prior_sd)``.
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    spread = "dispersion"

    def _family(self) -> Family:
        return Poisson()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = False
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRobustRegression(_Scored):
    """Bayesian linear regression with Student-t residuals, so that outliers have little influence.

    Args:
        degrees: of freedom of the residuals; fewer give outliers less influence.
        prior_sd: of each slope, in standard deviations of the target per standard deviation of the feature.
        schema, rounds: as for `PrivatePoissonRegression`.

    Attributes:
        coef_, coef_sd_: posterior mean and standard deviation of the slopes, in own units, shape ``(d,)``.
        intercept_, intercept_sd_: of the target at features of zero.
        residual_scale_, residual_scale_sd_: σ of the residuals' law, in target units.
        fit_, private_, epsilon_, delta_, warnings_: as for `PrivatePoissonRegression`.
        n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    spread = "residual_scale"
    settings = RobustSettings

    degrees: float = StudentT.degrees

    def _family(self) -> Family:
        return StudentT(self.degrees)
