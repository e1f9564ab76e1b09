"""Clipped gradients of a generalised linear model's log-likelihood at public parameters θ.

For one row with features x, the constant 1 among them where an intercept is asked for, and target y:

    normal      ∇ = (y - xᵀθ) x                    of -½(y - xᵀθ)²
    bernoulli   ∇ = (y - 1/(1 + exp(-xᵀθ))) x      of y·xᵀθ - ln(1 + exp(xᵀθ)),  y in {0, 1}

The gradient is brought into the L2 ball of `clip` and truncated towards zero (`ball`), so its integers G have
|G| <= C = floor(clip·2^f) exactly, whatever the floats before it did: two rows are at most Δ2 = 2C apart, and a missing
row is zero, the ball's middle. In L1 they are at most 2·floor(√d·C) apart (Cauchy and Schwarz).

Nothing overflows: values are clamped to public bounds first, and parameters for which a gradient could exceed 1e100 are
refused. Each coordinate of a row is computed from that row alone, in one order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import UsageError
from dca_proto.statistics.ball import ball_limit, check_radius, into_ball
from dca_proto.statistics.base import register
from dca_proto.statistics.scaled import ScaledColumns
from dca_proto.statistics.sensitivity import Sensitivity

NORMAL, BERNOULLI = "normal", "bernoulli"
_GRADIENT_MAX = 1e100


@register
class Gradient(ScaledColumns, frozen=True, kw_only=True):
    """The sum of rows' clipped gradients, in units of scaled columns.

    Attributes:
        columns: the features, and the target last.
        theta: θ, one for each feature, that of the intercept first if there is one; in units of the scaled columns.
        clip: the ball's radius, in units of the gradient.
        family: ``normal`` or ``bernoulli``. Of the latter, y is 1 where the scaled target is above 0, and 0 elsewhere;
            so targets 0 and 1 may be left as they are or be mapped to -1 and 1.
        intercept: put a constant feature of 1 first.
    """

    name = "gradient"

    theta: tuple[float, ...]
    clip: float
    family: str = NORMAL
    intercept: bool = False

    def __post_init__(self) -> None:
        if self.family not in (NORMAL, BERNOULLI):
            raise UsageError(f"family {self.family[:64]!r} is unknown; use {NORMAL!r} or {BERNOULLI!r}")
        features = len(self.columns) - 1 + self.intercept
        if self.columns and features < 1:
            raise UsageError("no feature: name the features in columns, then the target, or ask for an intercept")
        if self.columns and len(self.theta) != features:
            raise UsageError(f"theta has {len(self.theta)} values for {features} features; give one for each")
        for index, value in enumerate(self.theta):
            if not math.isfinite(value):
                raise UsageError(f"theta[{index}] is {value:g}; give finite numbers")
        check_radius("clip", self.clip)
        super().__post_init__()
        if not (largest := self._largest()) < _GRADIENT_MAX:
            raise UsageError(
                f"a gradient can reach {largest:.3g}, expected below {_GRADIENT_MAX:g}; lower bound or theta"
            )

    @property
    def dimension(self) -> int:
        return len(self.theta)

    def labels(self) -> tuple[str, ...]:
        features = ("1", *self.columns[:-1]) if self.intercept else self.columns[:-1]
        return tuple(f"gradient at {feature}" for feature in features)

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        limit = ball_limit("clip", self.clip, fraction_bits)
        l1 = 2 * math.isqrt(self.dimension * limit**2)
        return Sensitivity(l1=l1, l2_squared=4 * limit**2, bound=limit)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        z = self.clamped(rows, fraction_bits)
        x, y = z[:, :-1], z[:, -1]
        if self.intercept:
            x = np.insert(x, 0, 1.0, axis=1)
        predictor = (x * np.array(self.theta, dtype=np.float64)).sum(axis=1)
        residual = y - predictor if self.family == NORMAL else (y > 0) - _sigmoid(predictor)
        gradient = residual[:, None] * x
        return into_ball(np.ldexp(gradient, fraction_bits), ball_limit("clip", self.clip, fraction_bits))

    def _largest(self) -> float:
        """An upper bound of a coordinate of any row's gradient, and of all that is computed on the way."""
        *bounds, target = self.bound
        if self.intercept:
            bounds.insert(0, 1.0)
        predictor = sum(abs(theta) * bound for theta, bound in zip(self.theta, bounds, strict=True))
        return (target + predictor + 1.0) * max(1.0, *bounds)


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1/(1 + exp(-v)), of any finite values without overflow."""
    small = np.exp(-np.abs(values))  # underflows to 0 at worst
    return np.where(values >= 0, 1.0, small) / (1.0 + small)
