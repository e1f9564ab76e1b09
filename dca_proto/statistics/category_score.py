"""Scores of a regression of categories at public parameters θ; rows are weighted by their features.

The target y is one of the codes 0, ..., K - 1. x is a row's features; z is x with the constant 1 first.

    multinomial   P(y = k) = π_k ∝ exp(zᵀθ_k)                    θ = (θ_0, ..., θ_{K-1})
    ordered       P(y <= k) = F_k = 1/(1 + exp(-(c_k - xᵀβ)))    θ = (c_0, ..., c_{K-2}, β), c increasing

Each row sends a score t_y of mean zero at the true θ, whatever the law of the features is. With e_y the indicators of
the row's code, F_{-1} = 0, F_{K-1} = 1, f_k = F_k (1 - F_k) and r_y = F_{y-1} + F_y - 1,

    multinomial   t_y = (e_y - π) ⊗ z                            the likelihood's score
    ordered       t_y = (e_y - π, r_y x)                         the likelihood's score for β. That for c is larger the
                                                                 rarer a category between two others; e_y - π is not

and the *information*, the terms of which D = ∂E[t_y | x]/∂θ consists:

    multinomial   π_k π_l times the unique terms of z zᵀ, for each pair k < l
    ordered       f_k, f_k x, g_k x with g_k = f_k (π_k + π_{k+1}), for k = 0, ..., K - 2, and q = Σ_y π_y r_y² times
                  the unique terms of x xᵀ

With a weight u, *curves* u f_j, f_j = √(1 + x_j²) - 1, follow the features in x, each with an effect of 0. So their
scores and information show whether the predictor is curved in a feature. f_j grows as |x_j|, so a row far out gets no
more than √(1 + u²) times as long by it.

Then, with a weight γ, γ x_j³ of each feature, which show how far out its rare values lie. The row sends w t_y, then v w
times the information, then w γ x_j³, then ρR, which counts rows. A code that is not a whole number counts as missing.

**Weights.** With the reach R, w = min(1, R/√(max_y |t_y|² + v² |information|² + γ² Σ x_j⁶)), where

    multinomial   max_y |t_y|² = (1 + |π|² - 2 min_y π_y) |z|²
    ordered       max_y |t_y|² = max_y (1 + |π|² - 2 π_y + r_y² |x|²)

The weight depends on features alone, so the score's mean stays zero at the true θ (Mallows' weights). No feature is
clipped but at its public bounds.

**Sensitivity.** All but the last coordinate are within R, so the whole vector lies within the ball of radius
R √(1 + ρ²), which is `clip`. `model_gradient` brings each row into that ball exactly, whatever the floats above were;
any two rows are at most 2·clip apart, and a missing row is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.gradient import curves_of
from dca_proto.statistics.model_gradient import GRADIENT_MAX, ModelGradient
from dca_proto.statistics.scaled import example_box, example_ends, term_labels
from dca_proto.statistics.value_range import Squares, ValueRange, unique_places

CLASSES_MAX = 50
CODE = 0.25  # how far a scaled target may be from its code
COUNT = 0.1  # ρ
Numbers = NDArray[np.float64]


@register
class CategoryScore(ModelGradient, frozen=True, kw_only=True):
    """The sum of rows' weighted scores and information.

    Attributes:
        columns: the features, and the target last. The target's scaled codes are 0, 1, ..., K - 1, within its
            bound; others count as missing.
        theta: θ: K (d + 1) numbers, category by category; if `ordered`, K - 1 that increase, then d.
        clip: the radius of the ball, R √(1 + ρ²).
        classes: K, from 2 to `CLASSES_MAX`. ordered: whether the categories have an order.
        information: v, above 0. cubes: γ, above 0, or 0 without cubes. curves: u, above 0, or 0 without curves.
    """

    name = "category-score"
    proofs = (
        Proof(
            "category score: score, information, cubes and a constant, weighted by features",
            "2C, C = ⌊clip·2^f⌋",
            "2⌊√D·C⌋",
            "`test_category_score.py`: every category at random parameters, far rows",
            proof="`statistics/category_score.py`: the weights keep a row in the ball, "
            "`statistics/model_gradient.py` enforces it",
        ),
    )

    classes: int = 2
    ordered: bool = False
    information: float = 1.0
    cubes: float = 0.0
    curves: float = 0.0

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        box = example_box(1.5, 3.0, 2.0)
        nominal = (0.1, 0.2, -0.3, -0.4, 0.5, 0.1, 0.3, 0.2, 0.1)
        ordered: dict[str, Any] = {"ordered": True, "information": 0.5, "cubes": 0.1}
        curved: dict[str, Any] = {"classes": 3, "curves": 0.7}
        return (
            cls(**box, theta=nominal, clip=2.0, classes=3),
            cls(**box, theta=(-0.5, 0.8, 0.4, -0.7), clip=1.0, classes=3, **ordered, within=example_ends(3)),
            cls(**box, theta=nominal, clip=2.0, **curved),
            cls(**box, theta=(-0.5, 0.8, 0.4, -0.7), clip=1.0, ordered=True, **curved),
        )

    @classmethod
    def planned(cls, columns: Sequence[str], parameters: Mapping[str, Any]) -> PublicParameters:
        """Return categories of even chances, without effects."""
        classes, d = int(parameters.get("classes", 2)), len(columns) - 1
        thresholds = [float(k) for k in range(classes - 1)]
        theta = [*thresholds, *[0.0] * d] if parameters.get("ordered") else [0.0] * (classes * (d + 1))
        return {**super().planned(columns, parameters), "theta": theta}

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= CLASSES_MAX:
            raise UsageError(f"{self.classes} classes; give 2 to {CLASSES_MAX}")
        if not 0 < self.information <= GRADIENT_MAX:
            raise UsageError(f"information is {self.information:g}; give a number above 0, up to {GRADIENT_MAX:g}")
        for weight in ("cubes", "curves"):
            if not 0 <= (value := getattr(self, weight)) <= GRADIENT_MAX:
                raise UsageError(f"{weight} is {value:g}; give a number from 0 to {GRADIENT_MAX:g}")
        if self.columns and len(self.columns) < 2:
            raise UsageError("no feature: name the features in columns, then the target")
        if self.columns and len(self.theta) != (expected := self.size_of_theta):
            raise UsageError(
                f"theta has {len(self.theta)} values; expected {expected} for {self.classes} "
                f"{'ordered ' * self.ordered}classes and {self.features} features"
            )
        if self.ordered and any(left >= right for left, right in pairwise(self.theta[: self.classes - 1])):
            raise UsageError(f"the first {self.classes - 1} numbers of theta are thresholds; they have to increase")
        super().__post_init__()

    @property
    def features(self) -> int:
        """d, the number of features."""
        return len(self.columns) - 1

    @property
    def seen_features(self) -> int:
        """The number of features with their curves, if these are sent."""
        return self.features * (1 + bool(self.curves))

    @property
    def size_of_theta(self) -> int:
        """The number of parameters."""
        return self.classes - 1 + self.features if self.ordered else self.classes * (self.features + 1)

    @property
    def block_sizes(self) -> tuple[int, int, int]:
        """The numbers of coordinates of the score, of the information and of the cubes."""
        d, k = self.seen_features, self.classes
        cubes = self.features if self.cubes else 0
        if self.ordered:
            return k + d, (k - 1) * (1 + 2 * d) + d * (d + 1) // 2, cubes
        return k * (d + 1), k * (k - 1) // 2 * ((d + 1) * (d + 2) // 2), cubes

    @property
    def dimension(self) -> int:
        return sum(self.block_sizes) + 1

    @property
    def reach(self) -> float:
        """R."""
        return self.clip / math.sqrt(1 + COUNT**2)

    def labels(self) -> tuple[str, ...]:
        features, codes = self.columns[:-1], range(self.classes)
        names = (*features, *(f"curve of {name}" for name in features)) if self.curves else features
        with_one = ("1", *names)
        products = term_labels(names if self.ordered else with_one)
        if self.ordered:
            found = [f"score of class {k}" for k in codes] + [f"score at {name}" for name in names]
            found += [f"information {k}|{k + 1}" for k in codes[:-1]]
            for kind in ("", "'"):
                found += [f"information{kind} {k}|{k + 1}·{name}" for k in codes[:-1] for name in names]
            found += [f"information {term}" for term in products]
        else:
            found = [f"score of class {k} at {name}" for k in codes for name in with_one]
            found += [f"information {j},{k} {term}" for j, k in combinations(codes, 2) for term in products]
        return (*found, *([f"cube of {name}" for name in features] if self.cubes else []), "rows")

    def ranges_by_bound(self) -> dict[str, tuple[float, float]]:
        """The target's codes, and the features' bounds."""
        low = self.centre[-1]
        return {**super().ranges_by_bound(), self.columns[-1]: (low, low + self.scale[-1] * (self.classes - 1))}

    def value_range(self, fraction_bits: int) -> ValueRange:
        """A ball; terms of the information are sums of squares, and the count is not below zero."""
        ball, (p, terms, _), d = super().value_range(fraction_bits), self.block_sizes, self.seen_features
        low, high = ball.low.copy(), ball.high.copy()
        size, first = (d, p + terms - d * (d + 1) // 2) if self.ordered else (d + 1, p)
        each = size * (size + 1) // 2
        places = np.stack([unique_places(size, start) for start in range(first, p + terms, each)])
        low[places.diagonal(axis1=1, axis2=2).ravel()] = 0.0
        if self.ordered:
            low[p : p + self.classes - 1] = 0.0
        low[-1], high[-1] = 0.0, min(high[-1], math.ldexp(COUNT * self.reach, fraction_bits))
        squares = Squares("terms of the information", places, np.ones(places.shape), rounding=1.0)
        return ValueRange(low, high, ball.length, squares=squares)

    def gradient(self, theta: Numbers, rows: Numbers) -> Numbers:
        x, code = rows[:, :-1], np.rint(rows[:, -1])
        known = (np.abs(rows[:, -1] - code) < CODE) & (code >= 0) & (code < self.classes)
        chances, seen = chances_of(theta, x, self.classes, ordered=self.ordered), with_curves(x, self.curves)
        own = (code[:, None] == np.arange(self.classes)).astype(np.float64)
        parts = [scores(chances, seen, own), entries(chances, seen)]
        size = reach_of(chances, seen) + self.information**2 * _squares(parts[1])
        parts[1] *= self.information
        if self.cubes:
            parts.append(self.cubes * x**3)
            size += _squares(parts[2])
        weight = np.minimum(1.0, self.reach / np.sqrt(size))
        sent = np.concatenate(
            [*(weight[:, None] * part for part in parts), np.full((len(x), 1), COUNT * self.reach)], 1
        )
        return np.where(known[:, None], sent, 0.0)


class Chances(NamedTuple):
    """P(y = k | x) of rows, ``(m, K)``, and of ordered categories F_k, ``(m, K + 1)`` from 0 to 1; else None."""

    each: Numbers
    below: Numbers | None

    @property
    def signs(self) -> Numbers:
        """r of ordered categories, ``(m, K)``."""
        assert self.below is not None, "they are ordered"
        return self.below[:, :-1] + self.below[:, 1:] - 1

    @property
    def densities(self) -> Numbers:
        """f of ordered categories at each threshold, ``(m, K - 1)``."""
        assert self.below is not None, "they are ordered"
        inner = self.below[:, 1:-1]
        return inner * (1 - inner)


def chances_of(theta: Numbers, x: Numbers, classes: int, *, ordered: bool) -> Chances:
    """Return the chances of each category at θ for rows of features, ``(m, d)``."""
    if ordered:
        gap = theta[: classes - 1] - (x * theta[classes - 1 :]).sum(axis=1)[:, None]
        small = np.exp(-np.abs(gap))
        inner = np.where(gap >= 0, 1.0, small) / (1 + small)
        below = np.concatenate([np.zeros((len(x), 1)), inner, np.ones((len(x), 1))], axis=1)
        return Chances(np.diff(below, axis=1), below)
    each = theta.reshape(classes, -1)
    predictor = each[:, 0] + (x[:, None, :] * each[:, 1:]).sum(axis=2)
    size = np.exp(predictor - predictor.max(axis=1, keepdims=True))
    return Chances(size / size.sum(axis=1, keepdims=True), None)


def scores(chances: Chances, x: Numbers, own: Numbers) -> Numbers:
    """Return t_y of each row, given the indicators of its category, ``(m, K)``."""
    left = own - chances.each
    if chances.below is None:
        return (left[:, :, None] * with_one(x)[:, None, :]).reshape(len(x), -1)
    return np.concatenate([left, (own * chances.signs).sum(axis=1)[:, None] * x], axis=1)


def entries(chances: Chances, x: Numbers) -> Numbers:
    """Return the information of each row."""
    each = chances.each
    if chances.below is None:
        terms, classes = _terms(with_one(x)), each.shape[1]
        pairs = [each[:, j] * each[:, k] for j, k in combinations(range(classes), 2)]
        return np.concatenate([pair[:, None] * terms for pair in pairs], axis=1)
    f = chances.densities
    g, q = f * (each[:, :-1] + each[:, 1:]), (each * chances.signs**2).sum(axis=1)
    crossed = [(one[:, :, None] * x[:, None, :]).reshape(len(x), -1) for one in (f, g)]
    return np.concatenate([f, *crossed, q[:, None] * _terms(x)], axis=1)


def reach_of(chances: Chances, x: Numbers) -> Numbers:
    """Return the largest |t_y|² of each row over all categories, ``(m,)``."""
    each, size = chances.each, _squares(x)
    alone = 1 + _squares(each)
    if chances.below is None:
        return np.asarray((alone - 2 * each.min(axis=1)) * (1 + size))
    return np.asarray((alone[:, None] - 2 * each + chances.signs**2 * size[:, None]).max(axis=1))


def with_curves(x: Numbers, weight: float) -> Numbers:
    """Return features with their curves after them, times this weight; alone if it is 0."""
    return np.concatenate([x, weight * curves_of(x)], axis=1) if weight else x


def with_one(x: Numbers) -> Numbers:
    """Return rows with the constant 1 first."""
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


def _terms(x: Numbers) -> Numbers:
    return np.concatenate([x[:, i : i + 1] * x[:, i:] for i in range(x.shape[1])], axis=1)


def _squares(values: Numbers) -> Numbers:
    return np.asarray((values**2).sum(axis=1))
