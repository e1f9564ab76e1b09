"""Survival analysis with an interface like that of scikit-learn and lifelines.

    PrivateKaplanMeier(times=(6, 12, 24)).fit(X)                 rows of duration, event, optional group; no privacy
    PrivateKaplanMeier(times=(6, 12, 24), group="arm").fit(rounds)      over a running trainer or ideal rounds

In a data frame and over rounds, columns are found by their names; in an array, by their places. A frame may have
further columns, and texts where the schema's bounds are their labels.

`HazardsEstimator` is the base of `PrivateProportionalHazards`, which is made from its job.

scikit-learn's own checks (`sklearn.utils.estimator_checks`) of parameters, cloning and errors pass. Those that fit
random numbers cannot apply: rows need events of two codes, and hazards need public bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, column_or_1d

from dca_proto.aggregate import NoisyAggregate
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs.settings import require_count, require_text, settings_from, within
from inference.models.estimator import JobEstimator, Predicting
from inference.models.survival import rounds
from inference.models.survival.curve import PRIOR_ROWS
from inference.models.survival.hazards import Hazards
from inference.models.survival.job import Settings, SurvivalCurves, check_codes
from inference.models.survival.rounds import Columns
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema, as_numbers, by_name
from inference.rounds import Rounds, by_labels, named, run

DURATION = "duration"


@dataclass(eq=False, repr=False)
class PrivateKaplanMeier(Predicting):
    """Survival curves with bands, and the log-rank test, from rows, an aggregate or over rounds.

    It predicts, at times ``(k,)`` of the grid, the posterior mean of each group's S, ``(G, k)``, interpolated linearly,
    and pointwise central intervals, ``(G, k, 2)``.

    Args:
        times: t_1 < ... < t_K, public, in units of the duration. With a schema, 12 equal intervals by default.
        schema: names and public bounds of the columns, labels of those of texts; its target is the duration. Then
            groups, censored and first_group follow from the bounds.
        duration, event: column names. group: name of a column of G consecutive numbers, or None. groups: G.
        censored: the event column's code of a censored row; an event is the next number, as in 0 and 1, or 1 and 2.
        first_group: the first group's number.
        prior_rows: number of rows that the prior of the shares of events is worth, above 0.
        random_state: seed of the posterior's draws, or a numpy `Generator`. The privacy noise does not use it.

    Attributes:
        survival_: the posterior mean of S(t_k), shape ``(G, K)``. band_: the ends of pointwise 95 % intervals, shape
            ``(2, G, K)``. log_rank_: the test (statistic, degrees, p_value); None for one group.
        fit_: the whole posterior (`inference.posterior.Posterior`).
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    settings = Settings
    times: float | Sequence[float] = ()
    _: KW_ONLY
    schema: Schema | None = None
    duration: str = DURATION
    event: str = "event"
    group: str | None = None
    groups: int = 2
    censored: int = 0
    first_group: int = 0
    prior_rows: float = PRIOR_ROWS
    random_state: int | np.random.Generator | None = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        require_count("groups", self.groups)
        within(0)("censored", self.censored)
        within(0)("first_group", self.first_group)
        require_text("duration", self.duration)

    def _columns(self) -> Columns:
        times = settings_from(self.settings, {"times": self.times}, "survival").times or ()
        if (schema := self.schema) is not None:
            if self.duration not in (DURATION, schema.target):
                raise DataError(f"duration is {self.duration!r}, and the schema's target {schema.target!r}; name one")
            own = self.settings(event=self.event, group=self.group, times=times)
            return replace(own.columns(SurvivalCurves().read(schema, own)), features=())
        groups = (self.groups, self.first_group) if self.group else (1, 0)
        return Columns(
            self.duration, self.event, times, self.group, groups[0], (), self.censored, groups[1], rounds.FINEST
        )

    def _of_rows(self, X: Any, y: Any) -> Posterior:
        columns = self._columns()
        rows = check_array(_numbers(X, columns.names, self.schema), dtype=np.float64)
        if rows.shape[1] != len(names := columns.names):
            raise DataError(f"rows have {rows.shape[1]} columns; expected {len(names)}: {', '.join(names)}")
        check_codes(columns, rows)
        bounds = dict.fromkeys(names, Interval(0, max((*columns.times, 1.0))))
        problem = Problem("rows", Schema(names[1:], columns.duration, bounds), rows[:, 1:], rows[:, 0])
        return rounds.exact_curves(problem, columns, self._rng, self.prior_rows)

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Posterior:
        if len(aggregates) > 1:
            raise DataError(f"found {len(aggregates)} aggregates; expected that of one round")
        seed = int(self._rng.integers(2**63))
        columns = self._columns()
        return rounds.curves_from(named(aggregates[0], self.schema), columns, seed, prior_rows=self.prior_rows)

    def _over_rounds(self, source: Rounds) -> Posterior:
        job = rounds.curves_job(self._columns(), rng=self._rng, prior_rows=self.prior_rows)
        return run(job if self.schema is None else by_labels(job, self.schema), source)

    def _checked(self, X: Any) -> Any:
        """Return the times; the posterior checks them."""
        return X

    @property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.random_state)

    def _keep(self, fit: Posterior) -> None:
        curves = fit.predictor
        self._name_features(curves.columns.names)
        self.survival_, self.band_, self.log_rank_ = curves.survival, curves.band(), curves.log_rank


class HazardsEstimator(JobEstimator):
    """The base class of the estimator of proportional hazards, from rows, all rounds' aggregates, or over five rounds.

    A schema, whose target is the duration, is always needed. The bounds of event and group are their codes. It predicts
    the log hazard ratio of rows to a row at the features' centres of the same group.
    """

    needs_schema = "always"
    shown = (
        "coef_, coef_sd_, coef_interval_: posterior mean, sd and 95 % interval of log hazard ratios of features.",
        "group_coef_, group_coef_sd_, group_coef_interval_: of each further group to the first.",
    )

    @property
    def _schema(self) -> Schema:
        schema = super()._schema
        if schema is None:
            raise DataError("public bounds are missing; give schema=Schema(features, duration, bounds)")
        self.job.check(schema, self.job_settings())
        return schema

    def _checked(self, X: Any) -> Array:
        return Predicting._checked(self, _numbers(X, self.fit_.predictor.features, self.schema))

    def _validated(self, X: Any, y: Any) -> tuple[Array, Array]:
        schema = self._schema
        if y is None:
            raise DataError("durations are missing; give them as y, as in fit(X, durations)")
        rows = check_array(_numbers(X, schema.features, schema), dtype=np.float64)
        durations = column_or_1d(y, dtype=np.float64)
        if rows.shape != (len(durations), len(schema.features)):
            found = f"X has shape {rows.shape}"
            raise DataError(f"{found}; expected a row for each duration of: {', '.join(schema.features)}")
        return rows, durations

    def _of_rows(self, X: Any, y: Any) -> Any:
        return self._shrunk(self._learns.rows(*self._validated(X, y), self))

    def _keep(self, fit: Posterior) -> None:
        law: Hazards = fit.predictor
        self._name_features(law.features)
        self.group_coef_, self.group_coef_sd_ = law.group_effects
        self.coef_, self.coef_sd_ = law.coefficients, law.coefficient_sd
        every = np.array([one.marginal.interval for one in fit.estimates()])  # of groups, then of features
        self.group_coef_interval_, self.coef_interval_ = np.split(every, [len(self.group_coef_)])


def _numbers(X: Any, names: Sequence[str], schema: Schema | None) -> Any:
    """Return these columns of a data frame, texts with labels as numbers; anything else as it is."""
    return by_name(X if schema is None else as_numbers(X, names, schema.labelled), names)
