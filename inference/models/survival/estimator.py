"""Survival analysis with an interface like that of scikit-learn and lifelines.

    PrivateKaplanMeier(times=(6, 12, 24)).fit(X)                 rows of duration, event, optional group; no privacy
    PrivateKaplanMeier(times=(6, 12, 24), group="arm").fit(rounds)      over a running trainer or ideal rounds
    PrivateProportionalHazards(schema=schema, group="arm").fit(rounds)

In a data frame and over rounds, columns are found by their names; in an array, by their places. A frame may have
further columns, and texts where the schema's bounds are their labels.

scikit-learn's own checks (`sklearn.utils.estimator_checks`) of parameters, cloning and errors pass. Those that fit
random numbers cannot apply: rows need events of two codes, and `PrivateProportionalHazards` needs public bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d

from dca_proto.aggregate import NoisyAggregate
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs.estimates import LEVEL
from inference.jobs.settings import require_count, require_text, settings_from, within
from inference.models.estimator import PrivateEstimator
from inference.models.shrinkage import NONE, SHRINKAGE, Shrinkage
from inference.models.survival import rounds
from inference.models.survival.curve import PRIOR_ROWS
from inference.models.survival.hazards import Hazards
from inference.models.survival.hazards_fit import exact_hazards, hazards_from, hazards_job
from inference.models.survival.job import RegressionSettings, Settings, SurvivalCurves, SurvivalRegression
from inference.models.survival.rounds import Columns
from inference.models.survival.scoring import EFFECT_SD
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema, as_numbers, by_name
from inference.rounds import Rounds, by_labels, named, run

DURATION = "duration"


@dataclass(eq=False, repr=False)
class PrivateKaplanMeier(PrivateEstimator):
    """Survival curves with bands, and the log-rank test, from rows, an aggregate or over rounds.

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

    def predict(self, times: Any) -> Array:
        """Return the posterior mean of each group's S at these times, ``(G, k)``, interpolated linearly on the grid.

        Raises:
            DataError: a time is below 0 or beyond the grid.
        """
        check_is_fitted(self, "fit_")
        return self.fit_.predict(times)[0]

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

    def predict_interval(self, times: Any, level: float = LEVEL) -> Array:
        """Return pointwise central intervals of each group's S at these times, ``(G, k, 2)``. Errors as `predict`."""
        check_is_fitted(self, "fit_")
        return self.fit_.predict_interval(times, level)

    @property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.random_state)

    def _keep(self, fit: Posterior) -> None:
        curves = fit.predictor
        self._name_features(curves.columns.names)
        self.survival_, self.band_, self.log_rank_ = curves.survival, curves.band(), curves.log_rank


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateProportionalHazards(PrivateEstimator):
    """Proportional hazards, constant within intervals, from rows, all rounds' aggregates, or over five rounds.

    Args:
        schema: names and public bounds of all columns, labels of those of texts; its target is the duration. Always
            needed.
        event: the column of events, whose bounds are its codes: 0:1, or 1:2 with 2 for an event; of two texts the
            second is. group: name of a column of groups, texts or numbered from 0 or 1, or None.
        intervals: number of intervals of equal length, up to the duration's upper bound. times: their ends instead.
        prior_sd: of the log hazard ratio of each standardised feature, and of each group.
        shrinkage: "none", "horseshoe" or "groups". prior_effects, prior_groups: as for `inference.models.shrinkage`.

    Attributes:
        coef_, coef_sd_, coef_interval_: posterior mean, sd and 95 % interval of the log hazard ratio per unit of each
            feature, ``(d,)`` and ``(d, 2)``. group_coef_, group_coef_sd_, group_coef_interval_: of each further group
            to the first, ``(G - 1,)`` and ``(G - 1, 2)``.
        fit_: the whole posterior; its `predictor` is the law (`inference.models.survival.hazards.Hazards`).
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    settings = RegressionSettings
    schema: Schema | None = None
    event: str = "event"
    group: str | None = None
    intervals: int = 4
    times: float | Sequence[float] | None = None
    prior_sd: float = EFFECT_SD
    shrinkage: str = NONE
    prior_effects: float | None = None
    prior_groups: str = ""

    def predict(self, X: Any) -> Array:
        """Return the log hazard ratio of rows to a row at the centre of the same group, shape ``(k,)``."""
        check_is_fitted(self, "fit_")
        return self.fit_.predict(self._features(X))[0]

    def predict_interval(self, X: Any, level: float = LEVEL) -> Array:
        """Return central intervals of that ratio, shape ``(k, 2)``."""
        check_is_fitted(self, "fit_")
        return self.fit_.predict_interval(self._features(X), level)

    def _features(self, X: Any) -> Array:
        return self._checked(_numbers(X, self.fit_.predictor.features, self.schema))

    def _columns(self) -> tuple[Schema, Columns]:
        if self.schema is None:
            raise DataError("public bounds are missing; give schema=Schema(features, duration, bounds)")
        times = settings_from(self.settings, {"times": self.times}, "survival-regression").times
        schema = SurvivalRegression().read(self.schema, self.settings(event=self.event, group=self.group))
        columns = Columns.of(schema, self.event, self.group, times, self.intervals)
        if not columns.features:
            raise DataError("no features beside event and group; name some in schema, or take PrivateKaplanMeier")
        return schema, columns

    def _of_rows(self, X: Any, y: Any) -> Hazards:
        schema, columns = self._columns()
        if y is None:
            raise DataError("durations are missing; give them as y, as in fit(X, durations)")
        X = check_array(_numbers(X, schema.features, schema), dtype=np.float64)
        durations = column_or_1d(y, dtype=np.float64)
        if X.shape != (len(durations), len(schema.features)):
            raise DataError(f"X has shape {X.shape}; expected a row for each duration of: {', '.join(schema.features)}")
        rows = Problem("rows", schema, X, durations)
        check_codes(columns, rows.values(*columns.names))
        return self._shrunk(exact_hazards(rows, columns, self.prior_sd))

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Hazards:
        schema, columns = self._columns()
        own = [named(aggregate, schema) for aggregate in aggregates]
        return self._shrunk(hazards_from(own, columns, schema, prior_sd=self.prior_sd))

    def _over_rounds(self, source: Rounds) -> Hazards:
        schema, columns = self._columns()
        self._prior.places(columns.features)  # refuses unknown ones before the rounds
        return self._shrunk(run(by_labels(hazards_job(schema, columns, prior_sd=self.prior_sd), schema), source))

    @property
    def _prior(self) -> Shrinkage:
        return Shrinkage(**{name: getattr(self, name) for name in SHRINKAGE})

    def _shrunk(self, fit: Hazards) -> Hazards:
        found: Hazards = self._prior.shrink(fit)
        return found

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


def check_codes(columns: Columns, rows: Array) -> None:
    """Raise `DataError` for a duration below 0, and for codes that are not those of events and groups.

    Args:
        rows: of the columns' names, in order, shape ``(n, len(columns.names))``.
    """
    if len(rows) and rows[:, 0].min() < 0:
        raise DataError(f"durations in {columns.duration!r} go down to {rows[:, 0].min():g}; expected 0 or more")
    first, last = columns.first_group, columns.first_group + columns.groups - 1
    wanted = [(columns.event, range(columns.censored, columns.censored + 2), "recode it, or choose its codes: "
               "0:1 (1 = event) or 1:2 (2 = event)")]  # fmt: skip
    if columns.group:
        wanted.append((columns.group, range(first, last + 1), "recode it, or state the number of groups and the first"))
    for place, (name, codes, advice) in enumerate(wanted, 1):
        values = np.unique(rows[:, place])
        if not np.isin(values, codes).all():
            found = ", ".join(f"{value:g}" for value in values[:5]) + (", ..." if values.size > 5 else "")
            raise DataError(f"column {name!r} has values {found}; expected {codes[0]} to {codes[-1]}: {advice}")
