"""Sufficient statistics of linear regression: the unique terms of xxᵀ, then xy, then (optionally) y².

The proofs of its sensitivity, in a box and in a ball, with and without weights, are in `regression_sensitivity`.

**Weights.** All coordinates of a round get noise of the same σ. If a block's integers are multiplied by w first and
divided by w afterwards, its noise is σ/w in its own units: that is Lemma 3.1 of the LDP paper (2021) with σ1, σ2, σ3
for xxᵀ, xy and y². It stays exact, as w is an integer. `weights.best_regression_weights` finds the best weights for
given bounds. A round's raw value has weighted units; `unpack` and `estimate` divide the weights out.

**Whole rows.** With ``whole_rows`` the radius limits (constant, features), and a row outside is scaled down together
with its target. A linear relation between target and features still holds for the scaled row. So the sums are those of
a regression in which far-out rows weigh less; its coefficients are unbiased whatever law the features have. For the
sensitivity, the constant is then a feature like any other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.regression_sensitivity import RowLimits, Weights, regression_range, regression_sensitivity
from dca_proto.statistics.scaled import (
    ScaledColumns,
    ball_limit,
    check_radius,
    example_box,
    example_ends,
    grid_limits,
    half_bits,
    into_ball,
    symmetric,
    term_labels,
    unique_terms,
)
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange

CONSTANT = "1"
WEIGHT_MAX = 2**12


@register
class Regression(ScaledColumns, frozen=True, kw_only=True):
    """xxᵀ (upper triangle, row by row), xy and optionally y², of scaled and clamped columns.

    Attributes:
        columns: the features, and the target last.
        intercept: put a constant feature first; its grid value is `intercept_bound`.
        intercept_bound: smaller values lower the sensitivity and scale the intercept's coefficient up.
        target_square: add the coordinate y².
        radius: the L2 ball, in units of ``scale``, that a row's features (without the constant) are brought into; None
            for the box alone. The target keeps its bound.
        whole_rows: the radius includes the constant, and the target is scaled with the features.
        weights: integers from 1 to 4096 that multiply the terms of xxᵀ, xy and y² before the noise; the third has no
            effect without y².
    """

    name = "regression"
    proofs = (
        Proof(
            "regression in a box",
            "Σc_j²; √((d+1)² - 1)·c² for equal bounds and d + 1 odd; 2c_y√Σc_x² without y² where c_y² >= Σc_x²",
            "bound",
            "`test_sensitivity.py`: attained to 1 %",
            proof="`statistics/regression_sensitivity.py`",
        ),
        Proof(
            "regression in a ball R, |y| <= s, weights",
            "a maximum over y', exact for d >= 2 where the box does not cut the ball; "
            "√2(R² + s²/2) with unit weights and without y² for s² <= 2R²",
            "bound",
            "`test_l2_ball.py`",
            proof="`statistics/regression_sensitivity.py`; never above Lemma 3.1 of the LDP paper",
        ),
        Proof(
            "regression of whole rows scaled into a ball",
            "that of the ball with the constant as one more feature",
            "bound",
            "`test_statistics_whole_rows.py`: attained to 1 %",
        ),
    )

    intercept: bool = False
    intercept_bound: float = 1.0
    target_square: bool = False
    radius: float | None = None
    weights: Weights = (1, 1, 1)
    whole_rows: bool = False

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        box = example_box(1.0, 3.0, 2.0)
        return (
            cls(**box),
            cls(**box, intercept=True, intercept_bound=0.5, target_square=True, weights=(3, 1, 2)),
            cls(**box, intercept=True, radius=2.0, weights=(1, 5, 2)),
            cls(**box, intercept=True, radius=2.0, whole_rows=True, target_square=True),
            cls(**box, intercept=True, radius=2.0, whole_rows=True, target_square=True, within=example_ends(3)),
        )

    def __post_init__(self) -> None:
        if not (math.isfinite(self.intercept_bound) and self.intercept_bound > 0):
            raise UsageError(f"intercept_bound is {self.intercept_bound:g}; give a finite number above 0")
        if self.columns and not self.features:
            raise UsageError("no feature: name the features in columns, then the target, or ask for an intercept")
        if len(self.weights) != 3 or not all(type(w) is int and 1 <= w <= WEIGHT_MAX for w in self.weights):
            raise UsageError(f"weights are {self.weights}; give three whole numbers from 1 to {WEIGHT_MAX}")
        if self.radius is not None and len(self.columns) == 1:
            raise UsageError("a radius without features: name features in columns, or leave the radius out")
        check_radius("radius", self.radius)
        if self.whole_rows and self.radius is None:
            raise UsageError("whole_rows without a radius; give the radius that rows are scaled to, or leave it out")
        super().__post_init__()

    @property
    def target(self) -> str:
        """The name of the target column."""
        return self.columns[-1]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features in the order of xxᵀ; the constant is called 1."""
        return (CONSTANT, *self.columns[:-1]) if self.intercept else self.columns[:-1]

    @property
    def block_sizes(self) -> tuple[int, int, int]:
        """The numbers of coordinates of xxᵀ, xy and y²."""
        d = len(self.features)
        return d * (d + 1) // 2, d, int(self.target_square)

    @property
    def dimension(self) -> int:
        return sum(self.block_sizes)

    def labels(self) -> tuple[str, ...]:
        names = self.features
        products = term_labels(names) + [f"{feature}·{self.target}" for feature in names]
        return (*products, f"{self.target}²") if self.target_square else tuple(products)

    def ranges_by_bound(self) -> dict[str, tuple[float, float]]:
        """centre ± scale·bound; more for the target of whole rows, which is scaled down before it is clamped."""
        found = super().ranges_by_bound()
        if self.whole_rows and self.radius is not None:
            constant = self.intercept_bound if self.intercept else 0.0
            reach = self.scale[-1] * self.bound[-1] * max(1.0, math.hypot(constant, *self.bound[:-1]) / self.radius)
            found[self.target] = self.centre[-1] - reach, self.centre[-1] + reach
        return found

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        return self.weighted_sensitivity(fraction_bits, self.weights)

    def weighted_sensitivity(self, fraction_bits: int, weights: Weights) -> Sensitivity:
        """Return the row's sensitivity under other weights, any three integers above 0."""
        return regression_sensitivity(self._limits(fraction_bits), weights)

    def value_range(self, fraction_bits: int) -> ValueRange:
        limits = self._limits(fraction_bits)
        return regression_range(limits, self.weights, self.row_sensitivity(fraction_bits).l2)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        x, y = self._rows(rows, half_bits(fraction_bits))
        w1, w2, w3 = self.weights
        square = [w3 * y * y] if self.target_square else []
        return np.concatenate([w1 * unique_terms(x), w2 * x * y, *square], axis=1)

    def _rows(self, rows: NDArray[np.float64], bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the features, with the constant first if there is one, and the target, on a grid of 2^-bits."""
        z, constant = self.quantised(rows, bits), self._constant(bits)
        if self.radius is None:
            return (np.insert(z[:, :-1], 0, constant, axis=1) if constant else z[:, :-1]), z[:, -1:]
        features, limit = z[:, :-1].astype(np.float64), ball_limit("radius", self.radius, bits)
        if not self.whole_rows:
            inside = into_ball(features, limit)
            return (np.insert(inside, 0, constant, axis=1) if constant else inside), z[:, -1:]
        whole = np.insert(features, 0, constant, axis=1) if constant else features
        factor = limit / np.maximum(np.linalg.norm(whole, axis=1), limit)
        with np.errstate(over="ignore"):  # a huge value becomes infinite here, and is clamped like any other
            target = np.ldexp((self.inside(rows, bits)[:, -1] - self.centre[-1]) / self.scale[-1] * factor, bits)
        bound = self.limits(bits)[-1]
        scaled = np.rint(np.clip(target, -bound, bound))
        return into_ball(whole, limit), scaled.astype(np.int64)[:, None]

    def _constant(self, bits: int) -> int:
        """The constant feature on a grid of 2^-bits; 0 without one."""
        return grid_limits(("intercept",), (self.intercept_bound,), bits)[0] if self.intercept else 0

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Divide out the weights."""
        return value / self._coordinate_weights()

    def noise_std(self, sigma: float) -> NDArray[np.float64]:
        """Standard deviation of the noise in each coordinate of `estimate` and `unpack`, shape ``(dimension,)``.

        `sigma` is that of the released (weighted) value, the same in all coordinates.
        """
        return sigma / self._coordinate_weights()

    def unpack(self, value: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], float | None]:
        """Return a (noisy) sum as xxᵀ (d, d), symmetric, xy (d,), and y² or None; d counts the constant feature.

        The weights are divided out. The two halves of xxᵀ are the same numbers, so they have the same noise.
        """
        if value.shape != (self.dimension,):
            raise UsageError(f"the vector has shape {value.shape}; expected ({self.dimension},)")
        terms, d = value / self._coordinate_weights(), len(self.features)
        xx, xy, _ = np.split(terms, np.cumsum(self.block_sizes[:2]))
        return symmetric(xx, d), xy, float(terms[-1]) if self.target_square else None

    def _coordinate_weights(self) -> NDArray[np.float64]:
        return np.repeat(np.array(self.weights, dtype=np.float64), self.block_sizes)

    def _limits(self, fraction_bits: int) -> RowLimits:
        bits = half_bits(fraction_bits)
        *features, target = self.limits(bits)
        constant = self._constant(bits)
        radius = None if self.radius is None else ball_limit("radius", self.radius, bits)
        if self.whole_rows:
            constant, features = 0, [constant, *features] if constant else features
        return RowLimits(constant, tuple(features), radius, target, self.target_square)
