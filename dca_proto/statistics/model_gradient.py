"""Clipped gradients of any model's log density at public parameters θ: the base class for your own models.

For one row z the gradient ∇ = ∂ log_density(θ, z)/∂θ is brought into the L2 ball of `clip` and truncated towards zero
(`scaled`), so its integers G have |G| <= C = floor(clip·2^f) exactly, whatever the model's float arithmetic returned.
Two rows are at most Δ2 = 2C apart, and a missing row is zero, the ball's middle. In L1 they are at most 2·floor(√d·C)
apart (Cauchy and Schwarz). A gradient with a NaN or infinite coordinate counts as zero. So does a row on which the
model raises an exception; its client reports the exception (`contribution`, `protocol.client.actor`) and takes part all
the same. If the gradient must be derived and a client lacks JAX, it declines, which depends on no row.

Like every statistic, a model is a class that all participants have imported; a round carries its name and parameters
(`docs/tutorials/model.md` shows how):

    @register
    class PoissonGradient(ModelGradient, frozen=True, kw_only=True):  # counts y with mean exp(xᵀθ)
        name = "poisson-gradient"

        def gradient(self, theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
            x, y = rows[:, :-1], rows[:, -1]
            return (y - np.exp(x @ theta))[:, None] * x

With JAX (the extra ``samplers``) `gradient` may be left out: JAX derives it from the class's `log_density`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.statistics.scaled import ScaledColumns, ball_limit, check_radius, into_ball
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange, box
from dca_proto.wording import to_install

GRADIENT_MAX = 1e100
"""Gradients with larger coordinates are shortened before they are clipped, so that squares do not overflow."""


class ModelGradient(ScaledColumns, frozen=True, kw_only=True):
    """The sum of rows' clipped gradients; a subclass defines the model.

    A subclass defines `gradient`, or `log_density` in functions of JAX, or both. Its own fields are further public
    parameters of the model.

    Attributes:
        columns: the model's columns, in its order; the model sees them centred, scaled and clamped.
        theta: θ, the point at which gradients are taken.
        clip: the ball's radius, in units of the gradient.
    """

    theta: tuple[float, ...]
    clip: float

    @classmethod
    def planned(cls, columns: Sequence[str], parameters: Mapping[str, Any]) -> PublicParameters:
        """Return θ = 0, with a number for each feature and for an intercept, and a clip of 1; only that matters."""
        return {"theta": [0.0] * (len(columns) - 1 + bool(parameters.get("intercept"))), "clip": 1.0}

    def __post_init__(self) -> None:
        for index, value in enumerate(self.theta):
            if not math.isfinite(value):
                raise UsageError(f"theta[{index}] is {value:g}; give finite numbers")
        check_radius("clip", self.clip)
        super().__post_init__()

    @property
    def dimension(self) -> int:
        return len(self.theta)

    @property
    def plain_dimension(self) -> int:
        """Number of coordinates without a count of complete rows; only some models count."""
        return self.dimension

    def labels(self) -> tuple[str, ...]:
        return tuple(f"gradient at theta[{index}]" for index in range(self.dimension))

    def log_density(self, theta: Any, rows: Any) -> Any:
        """Return the log density of each row, shape ``(m,)``, up to terms without θ; differentiable by JAX.

        It is compiled once for all θ of a job, so it must take θ from its argument and not from ``self``.

        Args:
            theta: shape ``(d,)``. rows: shape ``(m, len(columns))``, scaled and clamped; JAX arrays of float64.
        """
        raise UsageError(f"statistic {self.name!r} has neither gradient nor log_density; define one of them")

    def gradient(self, theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gradient of each row's log density with respect to θ, shape ``(m, d)``; by default, by JAX.

        ``theta`` has shape ``(d,)``, ``rows`` has shape ``(m, len(columns))``, scaled and clamped. Raises `UsageError`
        if JAX is needed but not installed, or the log density has another shape.
        """
        own = [getattr(self, name) for name in self.__struct_fields__ if name not in ("theta", "clip")]
        return _derived(_Model(type(self), msgspec.msgpack.encode(own), self))(theta, rows)

    def require_libraries(self) -> None:
        if type(self).gradient is ModelGradient.gradient and not (find_spec("jax") and find_spec("jaxlib")):
            raise _without_jax(self.name)

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        self.limits(fraction_bits)  # refuses bounds that do not fit the grid, before anybody takes part
        limit = ball_limit("clip", self.clip, fraction_bits)
        l1 = 2 * math.isqrt(self.plain_dimension * limit**2)
        return Sensitivity(l1=l1, l2_squared=4 * limit**2, bound=limit)

    def value_range(self, fraction_bits: int) -> ValueRange:
        limit = np.full(self.plain_dimension, float(ball_limit("clip", self.clip, fraction_bits)))
        return box(-limit, limit, limit[0])

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        theta = np.array(self.theta, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            gradient = np.asarray(self.gradient(theta, self.clamped(rows, fraction_bits)), dtype=np.float64)
        if gradient.shape != (expected := (len(rows), self.plain_dimension)):
            raise UsageError(f"the gradient of {self.name!r} has shape {gradient.shape}; expected {expected}")
        limit = ball_limit("clip", self.clip, fraction_bits)
        return into_ball(np.ldexp(_finite(gradient), fraction_bits), limit)


def _finite(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """Zero the rows that are not finite, and shorten those whose squares would overflow."""
    largest = np.abs(gradient).max(axis=1, keepdims=True)
    if largest.max(initial=0.0) <= GRADIENT_MAX:  # false for a NaN
        return gradient
    finite = np.isfinite(largest)
    shorter = np.minimum(1.0, GRADIENT_MAX / np.where(finite, largest, 1.0).clip(min=1.0))
    return np.where(finite, gradient, 0.0) * shorter


@dataclass(frozen=True)
class _Model:
    """A model without its θ and clip: models that differ only in these are equal, and share a compiled gradient."""

    kind: type[ModelGradient]
    fields: bytes
    instance: ModelGradient = field(compare=False)


def _without_jax(name: str) -> UsageError:
    return UsageError(
        f"statistic {name!r} has no gradient of its own, and deriving one needs JAX: {to_install('samplers')}"
    )


@lru_cache(maxsize=16)
def _derived(model: _Model) -> Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]:
    statistic = model.instance
    try:
        import jax
    except ImportError:
        raise _without_jax(statistic.name) from None

    def of_row(theta: Any, row: Any) -> Any:
        densities = statistic.log_density(theta, row[None])
        if (shape := jax.numpy.shape(densities)) != (1,):
            raise UsageError(f"the log density of {statistic.name!r} has shape {shape} for one row; expected (1,)")
        return densities[0]

    of_rows = jax.jit(jax.vmap(jax.grad(of_row), in_axes=(None, 0)))

    def gradient(theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        with jax.enable_x64(True):
            return np.asarray(of_rows(theta, rows), dtype=np.float64)

    return gradient
