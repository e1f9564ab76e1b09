"""The law of proportional hazards, constant within intervals.

Row i has the hazard λ_k·exp(x_iᵀβ) in interval k. The first effects are those of groups, 0 for the first group; the
others are those of features. `hazards_fit` makes the law from rounds or from rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dca_proto.statistics.survival_score import contrast
from inference.draws import attributes
from inference.jobs.estimates import ESTIMATES, Estimate, Marginal, score
from inference.jobs.summary import HeldOut, Summary
from inference.laws import Axes, Coords, Draws, Shrunk, Slopes
from inference.models.law import NormalLaw, rows_of_effects, with_prior
from inference.models.survival.rounds import Columns
from inference.models.survival.scoring import EFFECT_SD
from inference.problem import Array, Problem, Schema

LOG_HAZARD = "log hazard ratio"
RATIO, GROUP_RATIO = "log_hazard_ratio", "group_log_hazard_ratio"


@dataclass(frozen=True, eq=False, kw_only=True)
class Hazards(NormalLaw):
    """The posterior of ln λ_k l_k of each interval, of the effects of groups, then of standardised features.

    Attributes:
        columns: the features'. layout: the columns that the job read, and its grid.
        group_shares: of each further group, for its contrast, ``(G - 1,)``. prior_sd: of each effect.
        coefficients, coefficient_sd: posterior mean and standard deviation of the log hazard ratio per unit of each
            feature, shape ``(d,)``. group_effects: both of each further group's log hazard ratio to the first.
        log_hazards: both of ln λ_k l_k of each interval, for a row of the first group at the features' centres.
    """

    slopes: ClassVar[str] = RATIO
    root: ClassVar[Literal["eigh", "svd"]] = "svd"
    layout: Columns
    group_shares: Array
    prior_sd: float = EFFECT_SD
    coefficients: Array = field(init=False)
    coefficient_sd: Array = field(init=False)
    group_effects: tuple[Array, Array] = field(init=False)
    log_hazards: tuple[Array, Array] = field(init=False)

    def __post_init__(self) -> None:
        scale, size = self.columns.scale, contrast(self.group_shares)
        first = np.zeros((len(self.layout.times), self.mean.size))
        first[:, : len(first)], first[:, self._groups] = np.eye(len(first)), -size * self.group_shares
        spread = np.sqrt(np.einsum("ki,ij,kj->k", first, self.cov, first))
        derived = {
            "coefficients": self.mean[self._effects] / scale,
            "coefficient_sd": self.sd[self._effects] / scale,
            "group_effects": (size * self.mean[self._groups], size * self.sd[self._groups]),
            "log_hazards": (first @ self.mean, spread),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def title(self) -> str:
        return "survival-regression"

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return self.columns.columns

    @property
    def axes(self) -> Axes:
        return {RATIO: ("feature",), GROUP_RATIO: ("group",)}

    @property
    def coords(self) -> Coords:
        return {"feature": self.features, "group": self.layout.group_labels[1:]}

    @property
    def _groups(self) -> slice:
        first = len(self.layout.times)
        return slice(first, first + self.layout.groups - 1)

    @property
    def _effects(self) -> slice:
        return slice(self._groups.stop, None)

    def log_hazard_ratio(self, features: Array, groups: Array | None = None) -> Array:
        """Return the log hazard ratio, ``(k,)``, of rows ``(k, d)`` to one of the first group at the centres."""
        effect, own = np.r_[0.0, self.group_effects[0]], np.zeros(len(features))
        if groups is not None:
            own = effect[np.clip(np.rint(groups - self.layout.first_group), 0, len(effect) - 1).astype(int)]
        return np.asarray((features - self.columns.centre) @ self.coefficients + own)

    def survival(self, features: Array, groups: Array | None = None) -> Array:
        """Return S(t_k) of rows, at the posterior mean, shape ``(k, K)``."""
        hazard = np.exp(self.log_hazards[0] + self.log_hazard_ratio(features, groups)[:, None])
        return np.asarray(np.exp(-np.cumsum(hazard, axis=1)))

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        groups = self.layout.group_labels[1:]
        names, scales = (*groups, *self.features), np.r_[np.ones(len(groups)), self.columns.scale]
        known, found = schema or self.schema, self.figures()
        return rows_of_effects(names, names, found, scales, LOG_HAZARD, known, table=ESTIMATES, indicators=groups)

    def figures(self) -> list[Marginal]:
        """Return the figures of the log hazard ratios of groups, then of features, in own units."""
        (of_groups, their_sd), scale = self.group_effects, np.r_[np.ones(self.layout.groups - 1), self.columns.scale]
        mean, sd = np.r_[of_groups, self.coefficients], np.r_[their_sd, self.coefficient_sd]
        found = with_prior(mean, sd, 0.0, self.prior_sd / scale)
        if self.shrunk is None:
            return found
        drawn = self.shrunk.drawn
        return [*found[: len(their_sd)], *self.shrunk.figures(drawn[..., :0], self.in_own_units(drawn)[RATIO])]

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut:
        """Score by Harrell's concordance."""
        own, other = concordance(self, test), None if reference is None else concordance(reference, test)
        return {"rows": len(test.y), "scores": [score("concordance", own, other, 0.5, higher_is_better=True)]}

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return mean and sd of the log hazard ratio of rows ``(k, d)`` to one at the centres of the same group."""
        z, cov = self.columns.scaled(np.asarray(X, float)), self.cov[self._effects, self._effects]
        return self.log_hazard_ratio(np.asarray(X, float)), np.sqrt(np.einsum("ki,ij,kj->k", z, cov, z))

    def simulate(self, X: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Return that ratio for each draw, ``(chains, draws, k)``; `rng` and `labels` are not used."""
        return np.asarray(draws[RATIO] @ (np.asarray(X, float) - self.columns.centre).T)

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Return the log hazard ratios of features and of groups. Args: drawn: of θ, ``(chains, draws, p)``."""
        posterior = {RATIO: drawn[..., self._effects] / self.columns.scale}
        if self.layout.groups > 1:
            posterior[GROUP_RATIO] = contrast(self.group_shares) * drawn[..., self._groups]
        return posterior

    def shrinkable(self) -> Slopes:
        """Return the effects of features. Those of groups are what a study compares, and do not shrink."""
        places, d = np.arange(self.mean.size)[self._effects], len(self.features)
        slab = np.full(d, float(self.prior_sd))
        return Slopes(self, self.mean, self.cov, places, np.arange(d), self.features, slab, LOG_HAZARD)

    def slopes_in_own_units(self, slopes: Array) -> Array:
        """Convert standardised effects, ``(..., d)``."""
        return np.asarray(slopes / self.columns.scale)

    def with_shrunk(self, shrunk: Shrunk, mean: Array, cov: Array, **more: Any) -> Self:
        """Return the law with these draws and moments; groups keep their prior. Args: more: attributes."""
        return super().with_shrunk(shrunk, mean, cov, prior_sd=self.prior_sd, **more)

    @property
    def attrs(self) -> dict[str, object]:
        if not self.aggregates:
            return {}
        last = attributes(self.aggregates[-1], schema=self.schema, others=self.aggregates)
        return {**last, "n": self.contributors}

    def extras(self) -> Summary:
        first, *others = self.layout.group_labels
        compared = {"groups": f"{', '.join(others)} against {first}"} if others else {}
        method = {"method": self.method} if self.method else {}
        return {"remarks": {"events": self.layout.coding, **compared, **method}, "headline": self._clearest}

    @property
    def _clearest(self) -> str:
        """The name of the effect that is largest in its posterior standard deviations."""
        return max(self.estimates(), key=lambda one: abs(one.marginal.mean) / (one.marginal.sd or 1.0)).name


def concordance(fit: Hazards, rows: Problem) -> float:
    """Return the share of pairs of known order in which the row with the earlier event has the higher risk."""
    columns, duration = fit.layout, rows.values(fit.layout.duration)
    had = rows.values(columns.event) > columns.censored + 0.5
    groups = rows.values(columns.group) if columns.group else None
    risk = fit.log_hazard_ratio(np.column_stack([rows.values(name) for name in columns.features]), groups)
    pairs, higher = 0, 0.0
    for i in np.flatnonzero(had):  # row by row: a table of all pairs would need too much memory
        later = risk[(duration > duration[i]) | ((duration == duration[i]) & ~had)]
        pairs += later.size
        higher += float(np.sum(later < risk[i]) + 0.5 * np.sum(later == risk[i]))
    return higher / pairs if pairs else 0.5
