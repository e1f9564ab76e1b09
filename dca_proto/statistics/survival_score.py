"""Scores of proportional hazards, constant within intervals, at public parameters θ; rows are weighted by features.

A row is followed for the time t, which ends in an event or not. Interval k of length l_k begins at t_{k-1}. With
features x (first one for each group but the first, `contrast`) its cumulative hazard and its events in interval k are

    h_k = λ_k l_k exp(xᵀβ) · (share of interval k that was lived through),    d_k = 1 if the event is in (t_{k-1}, t_k]

and θ = (ln λ_1 l_1, ..., ln λ_K l_K, β). Its log likelihood is that of Poisson counts d_k of mean h_k. So

    score          s = (d_1 - h_1, ..., d_K - h_K, x Σ_k (d_k - h_k))
    information    -∂s/∂θ: h_k, h_k x, and the unique terms of x xᵀ Σ_k h_k; then γ x_j³ Σ_k h_k of each feature

Each row sends w·s, then v·w times the information, then κ/R·w² s² of each coordinate of s, then ρR, which counts rows.
With public weights c_j the score goes on with c_j x_j² Σ_k (d_k - h_k) of each feature. Its mean is zero if the log
hazard is linear in x_j, so it shows curves. The cubes, of a small public weight γ, show how the information changes
with θ. A row of a negative duration, or with another code than those of events and groups, counts as missing.

**Weights.** Let H_k = λ_k l_k exp(xᵀβ) >= h_k, the hazard of a whole interval, and H = Σ H_k. As d has at most one 1,

    |s|² <= 1 + Σ H_k² + (|x|² + Σ c_j² x_j⁴) max(1, H)²
    |information|² <= (1 + |x|²) Σ H_k² + H² (|unique terms of x xᵀ|² + γ² Σ x_j⁶)

With the reach R, w = min(1, R/√(bound of |s|² + v²·bound of |information|²)). The weight depends on features alone, so
the score's mean is zero at the true θ whatever the law of features and of censoring is (Mallows' weights). No feature
is clipped but at its public bounds.

**Sensitivity.** The first two parts are within R, so |w s| <= R, and the squares are within κ/R·R². So the whole vector
lies within the ball of radius R√(1 + κ² + ρ²), which is `clip`. `model_gradient` brings each row into that ball
exactly, whatever the floats above were; any two rows are at most 2·clip apart.
"""

from __future__ import annotations

import math
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.model_gradient import ModelGradient
from dca_proto.statistics.scaled import ANY
from dca_proto.statistics.survival import check_grid
from dca_proto.statistics.value_range import Squares, ValueRange, unique_places

BEYOND = 2.0  # durations are clamped to this many grids, so that a time at the grid's end differs from a later one
EXPONENT_MAX = 30.0  # of a row's log hazard ratio; only rows of negligible weight exceed it
SQUARES_MAX = 10.0
SHARE_MIN = 1e-6  # of a group
CODE = 0.25  # how far a scaled value may be from its code
COUNT = 0.1  # ρ
CUBES = 0.05  # γ: of no weight beside the other terms of a row within 20 scales


@register
class SurvivalScore(ModelGradient, frozen=True, kw_only=True):
    """The sum of rows' weighted scores, information and squares.

    Attributes:
        columns: the duration, the event, the group if there are two or more, then the features. The duration has the
            centre 0, the last of `times` as its scale, and the bound 2. The event's scaled codes are -1 if the row was
            censored, and 1. Those of groups are 0, 1, ..., G - 1. Their bounds must be larger.
        times: t_1 < ... < t_K, above 0, in units of the duration. groups: G, at least 1.
        group_shares: of all rows, for each group but the first: above 0, together below 1. Empty: all groups are even.
        theta: θ, K + G - 1 + d numbers. clip: the radius of the ball, R√(1 + κ² + ρ²).
        information: v, above 0. squares: κ, above 0.
        curves: c_j of each feature, 0 or more; empty: no scores of curves.
    """

    name = "survival-score"
    proofs = (
        Proof(
            "survival score: score, information, squares and a constant, weighted by features",
            "2C, C = ⌊clip·2^f⌋",
            "2⌊√D·C⌋",
            "`test_survival_score.py`: random parameters, far rows",
            proof="`statistics/survival_score.py`: the weights keep a row in the ball, "
            "`statistics/model_gradient.py` enforces it",
        ),
    )

    times: tuple[float, ...]
    groups: int = 1
    information: float = 1.0
    squares: float = 0.1
    group_shares: tuple[float, ...] = ()
    curves: tuple[float, ...] = ()

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        even = cls(
            columns=("months", "died", "group", "x"),
            times=(1.0, 2.0),
            groups=2,
            centre=(0.0, 0.5, 0.0, 0.0),
            scale=(2.0, 0.5, 1.0, 1.0),
            bound=(2.0, 3.0, 2.0, 3.0),
            theta=(-1.0, -0.5, 0.3, 0.4),
            clip=3.0,
            information=0.5,
            squares=0.2,
            within=(ANY, ANY, ANY, (-1.0, 2.5)),
        )
        return even, msgspec.structs.replace(even, group_shares=(0.1,), curves=(0.4,))

    def __post_init__(self) -> None:
        check_grid(self.times)
        if not 1 <= self.groups <= 100:
            raise UsageError(f"{self.groups} groups; give 1 to 100")
        shares = self.group_shares
        if shares and not (
            len(shares) == self.groups - 1 and min(shares) >= SHARE_MIN and sum(shares) <= 1 - SHARE_MIN
        ):
            found = ", ".join(f"{share:g}" for share in shares)
            raise UsageError(f"group_shares are {found[:200]}; give {self.groups - 1} numbers above 0 of a sum below 1")
        if not 0 < self.information < math.inf:
            raise UsageError(f"information is {self.information:g}; give a finite number above 0")
        if not 0 < self.squares <= SQUARES_MAX:
            raise UsageError(f"squares is {self.squares:g}; give a number above 0, at most {SQUARES_MAX:g}")
        self._check_curves()
        if self.columns and len(self.columns) <= self.first_feature:
            raise UsageError(f"columns are {', '.join(self.columns)[:200]}; name the features after them")
        if self.columns and len(self.theta) != (expected := len(self.times) + self.effects):
            raise UsageError(f"theta has {len(self.theta)} values; expected {expected}")
        super().__post_init__()
        bounds = (1.0, *([self.groups - 1.0] if self.groups > 1 else []))
        if self.columns and not all(one > least for one, least in zip(self.bound[1:], bounds, strict=False)):
            raise UsageError("the bounds of event and group have to be above their largest codes")
        if self.columns and (self.centre[0], self.scale[0], self.bound[0]) != (0.0, self.times[-1], BEYOND):
            raise UsageError(
                f"the duration has to be in units of {self.times[-1]:g}, the last of times, up to {BEYOND:g}"
            )

    def _check_curves(self) -> None:
        if not all(0 <= weight < math.inf for weight in self.curves):
            found = ", ".join(f"{one:g}" for one in self.curves)
            raise UsageError(f"curves are {found[:200]}; give numbers of 0 or more")
        if self.curves and len(self.curves) != (features := len(self.columns) - self.first_feature):
            raise UsageError(f"curves has {len(self.curves)} values; expected {features}, one for each feature")

    @property
    def first_feature(self) -> int:
        """The number of columns before the features."""
        return 2 + (self.groups > 1)

    @property
    def effects(self) -> int:
        """The length of β: G - 1 groups, then d features."""
        return self.groups - 1 + len(self.columns) - self.first_feature

    @property
    def block_sizes(self) -> tuple[int, int, int]:
        """The numbers of coordinates of the score with its curves, the information with its cubes, and the squares."""
        p, m = len(self.theta), self.effects
        squared = len(self.curves)
        return p + squared, len(self.times) * (1 + m) + m * (m + 1) // 2 + m, p + squared

    @property
    def dimension(self) -> int:
        return sum(self.block_sizes) + 1

    @property
    def reach(self) -> float:
        """R."""
        return self.clip / math.sqrt(1 + self.squares**2 + COUNT**2)

    def labels(self) -> tuple[str, ...]:
        group = self.columns[2] if self.groups > 1 else ""
        effects = [*(f"{group}, group {g + 1}" for g in range(1, self.groups)), *self.columns[self.first_feature :]]
        hazards = [f"interval {k + 1}" for k in range(len(self.times))]
        crossed = [f"{interval}·{effect}" for interval in hazards for effect in effects]
        terms = [f"{one}·{other}" for place, one in enumerate(effects) for other in effects[place:]]
        curved = [f"curve of {name}" for name in self.columns[self.first_feature :][: len(self.curves)]]
        own = [*hazards, *effects, *curved]
        return (
            *(f"score of {name}" for name in own),
            *(f"information {name}" for name in (*hazards, *crossed, *terms)),
            *(f"cube of {name}" for name in effects),
            *(f"square of {name}" for name in own),
            "rows",
        )

    def ranges_by_bound(self) -> dict[str, tuple[float, float]]:
        """Durations are clamped to the last time, features to their bounds; other codes are missing."""
        own = {self.columns[0]: (0.0, self.times[-1])}
        own[self.columns[1]] = self.centre[1] - self.scale[1], self.centre[1] + self.scale[1]
        if self.groups > 1:
            own[self.columns[2]] = self.centre[2], self.centre[2] + self.scale[2] * (self.groups - 1)
        return {**super().ranges_by_bound(), **own}

    def value_range(self, fraction_bits: int) -> ValueRange:
        """A ball; the information is a sum of squares, and hazards, squares and the constant are not below zero."""
        ball, (sent, terms, _), k, m = (
            super().value_range(fraction_bits),
            self.block_sizes,
            len(self.times),
            self.effects,
        )
        p = k + m
        low, high, last = ball.low.copy(), ball.high.copy(), sent + k * (1 + m)
        places, factors = np.zeros((p, p), dtype=np.int64), np.zeros((p, p))
        places[k:, k:], factors[k:, k:] = unique_places(m, last), 1.0
        places[:k, k:], factors[:k, k:] = np.arange(sent + k, last).reshape(k, m), 1.0
        places[k:, :k], factors[k:, :k] = places[:k, k:].T, 1.0
        np.fill_diagonal(places[:k, :k], np.arange(sent, sent + k))
        np.fill_diagonal(factors[:k, :k], 1.0)
        low[places.diagonal()] = 0.0
        low[sent + terms :] = 0.0
        high[-1] = min(high[-1], math.ldexp(COUNT * self.reach, fraction_bits))
        squares = Squares("terms of the information", places[None], factors[None], rounding=1.0)
        return ValueRange(low, high, ball.length, squares=squares)

    def counts(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether each scaled row counts, ``(m,)``: it has a duration of 0 or more, and known codes."""
        known: NDArray[np.bool_] = (rows[:, 0] >= 0) & (np.abs(np.abs(rows[:, 1]) - 1) < CODE)
        if self.groups > 1:
            known &= (np.abs(rows[:, 2] - np.rint(rows[:, 2])) < CODE) & (rows[:, 2] > -CODE)
            known &= rows[:, 2] < self.groups - 1 + CODE
        return known

    def design(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """x of each row, shape ``(m, effects)``, from scaled rows: contrasts of its group, then its features."""
        features = rows[:, self.first_feature :]
        if self.groups == 1:
            return features
        group = np.rint(rows[:, 2])
        shares = np.array(self.group_shares or even(self.groups))
        return np.concatenate([contrasts(group, shares), features], axis=1)

    def followed(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The share of each interval that each scaled row lived through, and its events: shapes ``(m, K)``."""
        starts, lengths = self._grid
        time = np.maximum(rows[:, :1], 0.0)
        lived = np.clip((time - starts) / lengths, 0.0, 1.0)
        last = (time[:, 0][:, None] > starts) & (time <= self._ends)
        last[:, 0] |= time[:, 0] == 0
        return lived, (last & (rows[:, 1:2] > 0)).astype(np.float64)

    def gradient(self, theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        intervals = len(self.times)
        x, (lived, events) = self.design(rows), self.followed(rows)
        risk = np.exp(np.minimum((x * theta[intervals:]).sum(axis=1), EXPONENT_MAX))
        whole = np.exp(np.minimum(theta[:intervals], EXPONENT_MAX)) * risk[:, None]
        hazard, terms = whole * lived, entries(x)
        left = events - hazard
        curves = curved(rows[:, self.first_feature :], self.curves)
        score = np.concatenate([left, left.sum(axis=1)[:, None] * np.concatenate([x, curves], axis=1)], axis=1)
        crossed = (hazard[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        information = np.concatenate([hazard, crossed, hazard.sum(axis=1)[:, None] * terms], axis=1)
        weight = np.minimum(1.0, self.reach / longest(whole, x, terms, self.information, curves))[:, None]
        squares = self.squares / self.reach * (weight * score) ** 2
        ones = np.full((len(x), 1), COUNT * self.reach)
        sent = np.concatenate([weight * score, self.information * weight * information, squares, ones], axis=1)
        return sent * self.counts(rows)[:, None]

    @cached_property
    def _ends(self) -> NDArray[np.float64]:
        return np.array(self.times) / self.times[-1]

    @cached_property
    def _grid(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        starts = np.concatenate([[0.0], self._ends[:-1]])
        return starts, self._ends - starts


def longest(
    whole: NDArray[np.float64],
    x: NDArray[np.float64],
    terms: NDArray[np.float64],
    information: float,
    curves: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The largest norm of score and weighted information over all durations and events, ``(m,)``."""
    squares, hazard, size = (whole**2).sum(axis=1), whole.sum(axis=1), (x**2).sum(axis=1)
    score = 1 + squares + (size + (curves**2).sum(axis=1)) * np.maximum(1.0, hazard) ** 2
    curved = (1 + size) * squares + hazard**2 * (terms**2).sum(axis=1)
    return np.asarray(np.sqrt(score + information**2 * curved))


def curved(features: NDArray[np.float64], weights: tuple[float, ...]) -> NDArray[np.float64]:
    """The weighted squares of the features, shape ``(m, len(weights))``."""
    return np.asarray(np.array(weights) * features[:, : len(weights)] ** 2)


def entries(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The unique terms of each row's x xᵀ, upper triangle row by row, then γ x_j³."""
    return np.concatenate([*(x[:, i : i + 1] * x[:, i:] for i in range(x.shape[1])), CUBES * x**3], axis=1)


def even(groups: int) -> tuple[float, ...]:
    """The shares of all groups but the first if all are alike."""
    return (1 / groups,) * (groups - 1)


def contrasts(group: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The columns of effects of groups 1 to G - 1, shape ``(m, G - 1)``: of mean 0 and variance 1 at these shares.

    Each effect is the group's log hazard ratio to the first group, divided by `contrast`.
    """
    return np.asarray(contrast(shares) * ((group[:, None] == np.arange(1, len(shares) + 1)) - shares))


def contrast(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sizes of contrasts, ``(G - 1,)``: those of groups' indicators divided by their standard deviations."""
    return np.asarray(1 / np.sqrt(shares * (1 - shares)))
