"""Survival analysis with an interface like that of scikit-learn and lifelines.

    PrivateKaplanMeier(times=(6, 12, 24)).fit(X)                 rows of duration, event, optional group; no privacy
    PrivateKaplanMeier(times=(6, 12, 24), group="arm").fit(rounds)      over a running trainer or ideal rounds
    PrivateProportionalHazards(schema=schema, group="arm").fit(rounds)

Over rounds, columns are found by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted

from dca_proto.aggregate import NoisyAggregate
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.estimator import PrivateEstimator
from inference.models.survival import rounds
from inference.models.survival.curve import PRIOR_ROWS
from inference.models.survival.hazards import EFFECT_SD
from inference.models.survival.rounds import Columns, HazardsFit, SurvivalFit
from inference.problem import Array, Problem, Schema
from inference.rounds import Job


@dataclass(eq=False, repr=False)
class PrivateKaplanMeier(PrivateEstimator):
    """Survival curves with bands, and the log-rank test, from rows, an aggregate or over rounds.

    Args:
        times: t_1 < ... < t_K, public, in units of the duration.
        duration, event: column names. group: name of a column of 0, 1, ..., G - 1, or None. groups: G.
        prior_rows: number of rows that the prior of the shares of events is worth, above 0.
        random_state: seed of the posterior's draws, or a numpy `Generator`. The privacy noise does not use it.

    Attributes:
        survival_: the posterior mean of S(t_k), shape ``(G, K)``. band_: the ends of pointwise 95 % intervals, shape
            ``(2, G, K)``. log_rank_: the test (statistic, degrees, p_value); None for one group.
        fit_: the whole posterior (`inference.models.survival.rounds.SurvivalFit`).
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    times: Sequence[float] = ()
    _: KW_ONLY
    duration: str = "duration"
    event: str = "event"
    group: str | None = None
    groups: int = 2
    prior_rows: float = PRIOR_ROWS
    random_state: int | np.random.Generator | None = None

    def predict(self, times: Any) -> Array:
        """Return the posterior mean of each group's S at these times, ``(G, k)``, interpolated linearly on the grid.

        Raises:
            DataError: a time is below 0 or beyond the grid.
        """
        check_is_fitted(self, "fit_")
        asked, grid = np.asarray(times, dtype=np.float64), np.r_[0.0, self.fit_.columns.times]
        if not ((asked >= 0) & (asked <= grid[-1])).all():
            raise DataError(f"times from {asked.min():g} to {asked.max():g}; the grid is from 0 to {grid[-1]:g}")
        return np.array([np.interp(asked, grid, np.r_[1.0, curve]) for curve in self.survival_])

    def _columns(self) -> Columns:
        times = tuple(map(float, self.times))
        return Columns(self.duration, self.event, times, self.group, self.groups if self.group else 1)

    def _of_rows(self, X: Any, y: Any) -> SurvivalFit:
        columns, rows = self._columns(), check_array(X, dtype=np.float64)
        if rows.shape[1] != len(names := columns.names):
            raise DataError(f"rows have {rows.shape[1]} columns; expected {len(names)}: {', '.join(names)}")
        bounds = dict.fromkeys(names, Interval(0, max((*columns.times, 1.0))))
        problem = Problem("rows", Schema(names[1:], columns.duration, bounds), rows[:, 1:], rows[:, 0])
        return rounds.exact_curves(problem, columns, self._rng, self.prior_rows)

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> SurvivalFit:
        if len(aggregates) > 1:
            raise DataError(f"found {len(aggregates)} aggregates; expected that of one round")
        seed = int(self._rng.integers(2**63))
        return rounds.curves_from(aggregates[0], self._columns(), seed, prior_rows=self.prior_rows)

    def _job(self) -> Job[SurvivalFit]:
        return rounds.curves_job(self._columns(), rng=self._rng, prior_rows=self.prior_rows)

    @property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.random_state)

    def _keep(self, fit: SurvivalFit) -> None:
        self._name_features(fit.columns.names)
        self.fit_, self.survival_, self.band_, self.log_rank_ = fit, fit.survival, fit.band(), fit.log_rank


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateProportionalHazards(PrivateEstimator):
    """Proportional hazards, constant within intervals, from rows, both rounds' aggregates, or over two rounds.

    Args:
        schema: names and public bounds of all columns; its target is the duration. Always needed.
        event: the column of events. group: name of a column of 0, 1, ..., G - 1, or None.
        intervals: number of intervals of equal length, up to the duration's upper bound. times: their ends instead.
        prior_sd: of the log hazard ratio of each standardised feature, and of each group.

    Attributes:
        coef_, coef_sd_: posterior mean and standard deviation of the log hazard ratio per unit of each feature, shape
            ``(d,)``. group_coef_, group_coef_sd_: of each further group to group 0, shape ``(G - 1,)``.
        fit_: the whole posterior (`inference.models.survival.rounds.HazardsFit`).
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    schema: Schema | None = None
    event: str = "event"
    group: str | None = None
    intervals: int = 4
    times: Sequence[float] | None = None
    prior_sd: float = EFFECT_SD

    def predict(self, X: Any) -> Array:
        """Return the log hazard ratio of rows to a row at the centre of the same group, shape ``(k,)``."""
        check_is_fitted(self, "fit_")
        return self.fit_.log_hazard_ratio(self._checked(X))

    def _columns(self) -> tuple[Schema, Columns]:
        if self.schema is None:
            raise DataError("public bounds are missing; give schema=Schema(features, duration, bounds)")
        times = None if self.times is None else tuple(map(float, self.times))
        columns = Columns.of(self.schema, self.event, self.group, times, self.intervals)
        if not columns.features:
            raise DataError("no features beside event and group; name some in schema, or take PrivateKaplanMeier")
        return self.schema, columns

    def _of_rows(self, X: Any, y: Any) -> HazardsFit:
        schema, columns = self._columns()
        if y is None:
            raise DataError("durations are missing; give them as y, as in fit(X, durations)")
        X, durations = check_array(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if X.shape != (len(durations), len(schema.features)):
            raise DataError(f"X has shape {X.shape}; expected a row for each duration of: {', '.join(schema.features)}")
        return rounds.exact_hazards(Problem("rows", schema, X, durations), columns, self.prior_sd)

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> HazardsFit:
        if [one.statistic for one in aggregates] != ["phases", "survival-regression"]:
            found = ", ".join(one.statistic for one in aggregates)
            raise DataError(
                f"found aggregates of {found}; expected both of the job's rounds, of phases and survival-regression"
            )
        return rounds.hazards_from(aggregates[0], aggregates[1], self._columns()[1], prior_sd=self.prior_sd)

    def _job(self) -> Job[HazardsFit]:
        return rounds.hazards_job(*self._columns(), prior_sd=self.prior_sd)

    def _keep(self, fit: HazardsFit) -> None:
        self._name_features(fit.columns.features)
        self.fit_, (self.group_coef_, self.group_coef_sd_) = fit, fit.group_effects
        self.coef_, self.coef_sd_ = fit.coefficients, fit.coefficient_sd
