"""Clipped gradients of a generalised linear model's log-likelihood at public parameters θ.

For one row with features x, the constant 1 among them where an intercept is asked for, and target y:

    normal      ∇ = (y - xᵀθ) x                    of -½(y - xᵀθ)²
    bernoulli   ∇ = (y - 1/(1 + exp(-xᵀθ))) x      of y·xᵀθ - ln(1 + exp(xᵀθ)),  y in {0, 1}

How it is clipped, and the proof of its sensitivity, are in `model_gradient`. Nothing overflows: values are clamped to
public bounds first, and parameters for which a gradient could exceed 1e100 are refused. Each coordinate of a row is
computed from that row alone, in one order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import UsageError
from dca_proto.statistics.base import register
from dca_proto.statistics.model_gradient import GRADIENT_MAX, ModelGradient

NORMAL, BERNOULLI = "normal", "bernoulli"


@register
class Gradient(ModelGradient, frozen=True, kw_only=True):
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
        super().__post_init__()
        if not (largest := self._largest()) < GRADIENT_MAX:
            raise UsageError(
                f"a gradient can reach {largest:.3g}, expected below {GRADIENT_MAX:g}; lower bound or theta"
            )

    def labels(self) -> tuple[str, ...]:
        features = ("1", *self.columns[:-1]) if self.intercept else self.columns[:-1]
        return tuple(f"gradient at {feature}" for feature in features)

    def gradient(self, theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        x, y = rows[:, :-1], rows[:, -1]
        if self.intercept:
            x = np.concatenate((np.ones((len(x), 1)), x), axis=1)
        predictor = (x * theta).sum(axis=1)
        residual = y - predictor if self.family == NORMAL else (y > 0) - _sigmoid(predictor)
        gradient: NDArray[np.float64] = residual[:, None] * x
        return gradient

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
