"""Job `regression-mcmc`: distributed Bayesian regression with the privacy noise in the model, one round, then draws.

It learns from the releases of J data nodes (`methods`), or from one secure sum over all clients. Such a sum also has
Σ y², which the nodes' model does not use, so its posterior is the one for any noisy sum (`models.fit.regression`).

Columns are measured in half-widths of their public bounds, about the bounds' centres, as in `regression-bounded`; a
constant feature is a third of a half-width.

**Averages** (appendix B.1): with ``group`` = k > 1 nodes release the statistic of averages of k rows, without a
constant. Averages are closer to normal than rows are. They are expensive: there are only n/k of them, with more noise
than single rows, 1.3 times at k = 2 and 2.4 times at k = 10 (in a unit ball;
`dca_proto.statistics.averaged_regression`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, NodeRelease, SecureSum
from inference.columns import Standardisation
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, one_round, target_on_features
from inference.jobs.examples import Clean, Example
from inference.jobs.reports import REGRESSION_PRIOR, SAMPLED, RegressionSettings, check_installed
from inference.jobs.settings import given, one_of, require_count, rows_of_nodes, setting
from inference.models.coefficients import Coefficients
from inference.models.fit import regression
from inference.models.linear.aggregate_stats import STATISTIC
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.job import INTERCEPT_BOUND
from inference.models.linear.nodes.methods import ABOUT, FAST, NAMES, NORMAL, fit, fit_fast, rows_least
from inference.models.linear.nodes.observed import AVERAGED, prior_of
from inference.posterior import Posterior
from inference.problem import Problem, Schema

Fit = Posterior | Coefficients


@dataclass(frozen=True)
class Settings(RegressionSettings):
    """The settings of `regression-mcmc`."""

    method: str = setting(NORMAL, f"How to compute the posterior: {', '.join(NAMES)}.", one_of(NAMES))
    rows_max: int = rows_of_nodes()
    group: int | None = setting(
        None,
        "Number of rows that a data node averages before adding up; by default it does not average.",
        require_count,
    )


class NodesRegression(LearningJob):
    """Linear regression with the noise of each release in the model."""

    name, settings = "regression-mcmc", Settings
    kinds = (SecureSum, NodeRelease)
    changeable = ("method", *REGRESSION_PRIOR, *SAMPLED)
    estimator = "it has the model of `regression`, with draws"
    about = "linear regression by sampling, also from [hospitals](jobs/hospitals.md)"
    examples = (
        Example(settings={"method": FAST}),
        Example(settings={"method": FAST}, kind=NodeRelease, label="of data nodes"),
    )
    clean = Clean("normal features", {"method": FAST})

    def check(self, schema: Schema, settings: Settings) -> None:
        if settings.method != FAST:
            check_installed()
        if settings.rows_max < (least := self.rows_least(schema, settings)):
            raise DataError(
                f"setting 'rows_max' is {settings.rows_max}, and method {settings.method!r} needs {least} rows of each "
                "node"
            )

    def contributors_least(self, schema: Schema, settings: Settings, kind: type[Kind]) -> int:
        d = len(schema.features)
        return (d + 1) * (d + 2) // 2 + d + 2 if kind is SecureSum and settings.method != FAST else 1

    def rows_least(self, schema: Schema, settings: Settings) -> int:
        group = settings.group or 1
        return group * rows_least(settings.method, len(schema.features) + (group == 1))

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return one_round("the regression")

    def rounds(
        self, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Generator[RoundRequest, NoisyAggregate, NoisyAggregate]:
        by_nodes, group = conditions.kind is NodeRelease, settings.group or 1
        if group > 1 and not by_nodes:
            raise DataError(
                f"averages of {group} rows are for data nodes that release by themselves; in a sum over clients they "
                "carry the noise of single rows and inform less, so leave out group"
            )
        parameters = Standardisation.within_bounds(schema).parameters()
        name = STATISTIC if group == 1 else AVERAGED
        more = {"intercept": True, "intercept_bound": INTERCEPT_BOUND} if group == 1 else {"group": group}
        if by_nodes:
            return (yield RoundRequest(name, {**parameters, **more}, rows_max=settings.rows_max, kind=NodeRelease()))
        parameters |= {**more, "target_square": True}
        return (yield RoundRequest(name, {**parameters, "weights": list(conditions.weights(parameters))}))

    def learned(self, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions) -> Fit:
        if settings.method != FAST and conditions.kind is not NodeRelease:
            prior = settings.prior(np.ones(len(schema.columns)), logistic=False)
            return regression(aggregate, prior, schema=schema, **settings.run(conditions))
        of_nodes = prior_of(aggregate).about(**given(settings, REGRESSION_PRIOR))
        if settings.method == FAST:
            return fit_fast(aggregate, schema, of_nodes)
        return fit(aggregate, of_nodes, schema=schema, **settings.run(conditions))

    def model(self, schema: Schema, settings: Settings) -> str:
        how = "no chains" if settings.method == FAST else settings.words
        averages = f", from averages of {settings.group} rows" if (settings.group or 1) > 1 else ""
        return f"{target_on_features(schema)}; method {settings.method}: {ABOUT[settings.method]}{averages}; {how}"

    def reference(self, train: Problem, settings: object) -> Coefficients:
        """Fit ordinary least squares to the raw rows."""
        return nonprivate_regression(train)
