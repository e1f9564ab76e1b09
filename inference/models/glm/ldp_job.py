"""Job `ldp-regression`: linear or logistic regression from one report of each client, of its sufficient statistics.

A report contains the products of a client's row, clipped to public bounds, plus Gaussian noise. The reports' sum is a
noisy sum like any other, with its noise in the model. With ``inputs`` a client instead reports the row itself, with
noise. For few columns rows may inform more; the model then accounts for the products of noise.

**Rows of a logistic regression** take two reports from each client, in two rounds: its features with Gaussian noise,
and its label by randomised response. ``label_share`` = c splits the budget: μ² into (1 - c)μ² and cμ². The label gets
the largest ε for which every ε-private mechanism is √c μ-private (`dca_proto.privacy.cost`). The paper (section 12.2)
instead splits ε into (1 - c)ε and cε and adds up. That rule does not hold for a mixture of mechanisms if releases are
chosen in view of earlier results, so clients do not use it.

**Missing values.** A reported row has one more number: whether it is complete, with a weight that does not raise the
sensitivity (`column.presence`). So the result is of the complete rows, and a warning states how many seem not to be. If
labels are reported apart, the round of features also has the target as a column, within a millionth of its bounds: its
value drowns in the noise, but a row without a label is not complete.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any, TypeAlias

import numpy as np
from scipy.special import log_ndtr

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, LdpReport
from inference.columns import COUNT_LEAST, COUNT_WEIGHT, Standardisation
from inference.errors import DataError
from inference.jobs.base import Conditions, Stage, one_round, target_on_features
from inference.jobs.examples import QUICK_DRAWS, Clean, Example
from inference.jobs.reports import OF_BOUNDS, REGRESSION_PRIOR, SAMPLED, RegressionSettings, ReportJob
from inference.jobs.settings import one_of, require_positive, require_share, setting
from inference.models import fit
from inference.models.linear.aggregate_stats import STATISTIC
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.job import INTERCEPT_BOUND
from inference.models.logistic import job as logistic
from inference.posterior import Posterior
from inference.problem import Problem, Schema
from inference.releases.terms import GAUSSIAN, RESPONSE

LINEAR, LOGISTIC = FAMILIES = ("linear", "logistic")
PRIORS = (*REGRESSION_PRIOR, "lkj", "feature_mean_sd")
Released: TypeAlias = NoisyAggregate | tuple[NoisyAggregate, NoisyAggregate]
"""The reports of one round, or two rounds': features and labels."""
ROUNDING = 1 - 1e-9  # leaves room for the account, which rounds up, to accept both reports


@dataclass(frozen=True)
class Settings(RegressionSettings):
    """Settings of `ldp-regression`."""

    family: str = setting(
        LINEAR, f"{LINEAR}, or {LOGISTIC} for a target whose bounds are its two classes.", one_of(FAMILIES)
    )
    inputs: bool = setting(False, "Clients report their rows with noise, instead of the products.")
    label_share: float = setting(
        0.5, "Share of the budget for labels, if rows of a logistic regression are reported.", require_share
    )
    radius: float | None = setting(
        None,
        "Clients bring their scaled features into a ball of this radius; by default the bounds' box.",
        require_positive,
    )
    noise_aware: bool = setting(True, "false leaves the noise out of the model, for comparison.")
    lkj: float | None = setting(
        None, "LKJ parameter of the prior of the features' correlations, by default 2; 1 is uniform.", require_positive
    )
    feature_mean_sd: float | None = setting(
        None, f"Standard deviation of the normal prior of the features' means, {OF_BOUNDS}.", require_positive
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs and self.family == LINEAR and self.radius is not None:
            raise DataError(
                "setting 'radius' applies to features alone, but the rows of a linear regression contain the target; "
                "leave out inputs or radius"
            )

    @property
    def labelled(self) -> bool:
        """True if clients report features and label separately."""
        return self.inputs and self.family == LOGISTIC


def _request_labels(schema: Schema, settings: Settings, conditions: Conditions) -> RoundRequest:
    bounds = schema.bounds[schema.target]
    edges = [bounds.lower, float(schema.centres[-1]), bounds.upper]
    part = ROUNDING * epsilon_of(sqrt(settings.label_share) * conditions.mu) / conditions.epsilon
    parameters = {"columns": [schema.target], "edges": edges}
    return RoundRequest("histogram", parameters, part, rows_max=1, kind=LdpReport(RESPONSE))


def epsilon_of(mu: float) -> float:
    """Return the largest ε for which every ε-private mechanism is μ-private."""
    return float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))


def _counted(columns: Standardisation) -> dict[str, object]:
    """Return the parameters of a sum of these columns beside the heaviest count of complete rows that is free."""
    longest = sqrt(float(columns.bound @ columns.bound))
    return columns.parameters() | {"count_weight": COUNT_WEIGHT * min(longest, columns.radius)}


def _columns(schema: Schema, settings: Settings) -> Standardisation:
    return replace(Standardisation.within_bounds(schema), radius=settings.radius or inf)


class LdpRegression(ReportJob):
    """Linear or logistic regression from one report of each client."""

    name, settings = "ldp-regression", Settings
    changeable = ("noise_aware", *PRIORS, *SAMPLED)
    about = "a regression, linear or logistic, from [LDP reports](jobs/reports.md)"
    examples = (Example(settings=QUICK_DRAWS),)
    clean = Clean("normal features", clients=200_000, epsilon=8.0)

    def mechanism(self, settings: Settings) -> str:
        return GAUSSIAN

    def contributors_least(self, schema: Schema, settings: Settings, kind: type[Kind]) -> int:
        d = len(schema.features)
        of_features = d + d * (d + 1) // 2
        if settings.labelled:
            return of_features
        if settings.inputs:
            return of_features + 1
        return of_features + d + 2 + int(settings.family == LINEAR)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        if settings.labelled:
            share = settings.label_share
            return [Stage(1, 1 - share, "on the features"), Stage(1, share, "on the labels")]
        return one_round("the regression")

    def rounds(
        self, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Generator[RoundRequest, NoisyAggregate, Released]:
        if settings.labelled:
            bounds = np.append(np.ones(len(schema.features)), COUNT_LEAST)
            parameters = _counted(replace(_columns(schema, settings), bound=bounds))
            share = 1 - settings.label_share
            features = yield RoundRequest("sum", parameters, share, rows_max=1, kind=LdpReport(GAUSSIAN))
            return features, (yield _request_labels(schema, settings, conditions))
        if settings.inputs:
            statistic, parameters = "sum", _counted(_columns(schema, settings))
        else:
            statistic = STATISTIC
            parameters = _columns(schema, settings).parameters() | {
                "intercept": True,
                "intercept_bound": INTERCEPT_BOUND,
                "target_square": settings.family == LINEAR,
            }
            parameters["weights"] = list(conditions.weights(parameters))
        return (yield RoundRequest(statistic, parameters, rows_max=1, kind=LdpReport(GAUSSIAN)))

    def learned(self, released: Released, schema: Schema, settings: Settings, conditions: Conditions) -> Posterior:
        logistic, bounds = settings.family == LOGISTIC, np.ones(len(schema.columns))
        bounds[:-1] = min(1.0, settings.radius or 1.0)
        prior, run = settings.prior(bounds, logistic=logistic), settings.run(conditions)
        first, labels = released if isinstance(released, tuple) else (released, None)
        if settings.inputs:
            return fit.row_regression(first, prior, labels=labels, noise_aware=settings.noise_aware, **run)
        return fit.regression(first, prior, logistic=logistic, schema=schema, noise_aware=settings.noise_aware, **run)

    def model(self, schema: Schema, settings: Settings) -> str:
        reported = "rows" if settings.inputs else "products"
        noise = "" if settings.noise_aware else ", their noise left out of the model"
        labels = f", labels by {RESPONSE}" if settings.labelled else ""
        method = f"{settings.family}, from {reported} reported by {GAUSSIAN}{labels}{noise}"
        return f"{target_on_features(schema)} in rows that lack none of these ({method}); {settings.words}"

    def reference(self, train: Problem, settings: Any) -> Any:
        return reference(train, settings)


def reference(train: Problem, settings: Any) -> Any:
    """Fit least squares, or a logistic regression, to the raw rows."""
    if settings.family == LINEAR:
        return nonprivate_regression(train)
    return logistic.Logistic().reference(train, logistic.Settings())
