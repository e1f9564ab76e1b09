"""Clipped gradients of any model's log density at public parameters θ: the base of a user's own model.

For one row z the gradient ∇ = ∂ log_density(θ, z)/∂θ is brought into the L2 ball of `clip` and truncated towards zero
(`scaled`), so its integers G have |G| <= C = floor(clip·2^f) exactly, whatever the model is and its floats did:
two rows are at most Δ2 = 2C apart, and a missing row is zero, the ball's middle. In L1 they are at most 2·floor(√d·C)
apart (Cauchy and Schwarz). A gradient that is NaN or infinite somewhere counts as zero. A row on which a model raises
an exception counts as zero, too, and its client reports it (`contribution`, `protocol.client.actor`): it takes part all
the same. A client that lacks JAX where the gradient is to be derived declines instead, which depends on no row.

Like every statistic, a model is a class that all participants have imported; a round carries its name and parameters
(`docs/tutorials/model.md` makes one):

    @register
    class PoissonGradient(ModelGradient, frozen=True, kw_only=True):  # counts y with mean exp(xᵀθ)
        name = "poisson-gradient"

        def gradient(self, theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
            x, y = rows[:, :-1], rows[:, -1]
            return (y - np.exp(x @ theta))[:, None] * x

With JAX (the extra ``samplers``) `gradient` may be left out; it is derived then from the class's `log_density`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.scaled import ScaledColumns, ball_limit, check_radius, into_ball
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.wording import to_install

GRADIENT_MAX = 1e100
"""Gradients with larger coordinates are shortened before they are clipped, so that squares do not overflow."""


class ModelGradient(ScaledColumns, frozen=True, kw_only=True):
    """The sum of rows' clipped gradients; subclasses say of which model.

    A subclass gives `gradient`, or `log_density` in functions of JAX, or both. Fields of its own are further public
    parameters of the model.

    Attributes:
        columns: what the model reads, in its order; centred, scaled and clamped before it sees them.
        theta: θ, at which gradients are taken.
        clip: the ball's radius, in units of the gradient.
    """

    theta: tuple[float, ...]
    clip: float

    def __post_init__(self) -> None:
        for index, value in enumerate(self.theta):
            if not math.isfinite(value):
                raise UsageError(f"theta[{index}] is {value:g}; give finite numbers")
        check_radius("clip", self.clip)
        super().__post_init__()

    @property
    def dimension(self) -> int:
        return len(self.theta)

    def labels(self) -> tuple[str, ...]:
        return tuple(f"gradient at theta[{index}]" for index in range(self.dimension))

    def log_density(self, theta: Any, rows: Any) -> Any:
        """The log density of each row, shape ``(m,)``, up to terms without θ; differentiable by JAX.

        It is compiled once for all θ of a job, so it must take θ from its argument and not from ``self``.

        Args:
            theta: shape ``(d,)``. rows: shape ``(m, len(columns))``, scaled and clamped; arrays of JAX, of float64.
        """
        raise UsageError(f"statistic {self.name!r} has neither gradient nor log_density; define one of them")

    def gradient(self, theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gradient of each row's log density with respect to θ, shape ``(m, d)``; by itself, as JAX derives it.

        ``theta`` has shape ``(d,)``, ``rows`` has shape ``(m, len(columns))``, scaled and clamped. Raises `UsageError`
        if JAX is needed and not installed, or the log density is of another shape.
        """
        own = [getattr(self, name) for name in self.__struct_fields__ if name not in ("theta", "clip")]
        return _derived(_Model(type(self), msgspec.msgpack.encode(own), self))(theta, rows)

    def require_libraries(self) -> None:
        if type(self).gradient is ModelGradient.gradient and not (find_spec("jax") and find_spec("jaxlib")):
            raise _without_jax(self.name)

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        self.limits(fraction_bits)  # bounds that do not fit the grid are refused here, before anybody takes part
        limit = ball_limit("clip", self.clip, fraction_bits)
        l1 = 2 * math.isqrt(self.dimension * limit**2)
        return Sensitivity(l1=l1, l2_squared=4 * limit**2, bound=limit)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        theta = np.array(self.theta, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            gradient = np.asarray(self.gradient(theta, self.clamped(rows, fraction_bits)), dtype=np.float64)
        if gradient.shape != (len(rows), self.dimension):
            raise UsageError(
                f"the gradient of {self.name!r} has shape {gradient.shape}; expected {(len(rows), self.dimension)}"
            )
        limit = ball_limit("clip", self.clip, fraction_bits)
        return into_ball(np.ldexp(_tamed(gradient), fraction_bits), limit)


def _tamed(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows as they are, but zero where something in them is not finite, and shortened where squares overflow."""
    largest = np.abs(gradient).max(axis=1, keepdims=True)
    if largest.max(initial=0.0) <= GRADIENT_MAX:  # false for a NaN
        return gradient
    finite = np.isfinite(largest)
    shorter = np.minimum(1.0, GRADIENT_MAX / np.where(finite, largest, 1.0).clip(min=1.0))
    return np.where(finite, gradient, 0.0) * shorter


@dataclass(frozen=True)
class _Model:
    """A model, equal to one that differs in θ and clip alone: a job asks for the same model at one θ after another."""

    kind: type[ModelGradient]
    fields: bytes
    one: ModelGradient = field(compare=False)


def _without_jax(name: str) -> UsageError:
    return UsageError(
        f"statistic {name!r} has no gradient of its own, and deriving one needs JAX: {to_install('samplers')}"
    )


@lru_cache(maxsize=16)
def _derived(model: _Model) -> Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]:
    """The gradient of a model's log density, compiled."""
    one = model.one
    try:
        import jax
    except ImportError:
        raise _without_jax(one.name) from None

    def of_row(theta: Any, row: Any) -> Any:
        densities = one.log_density(theta, row[None])
        if (shape := jax.numpy.shape(densities)) != (1,):
            raise UsageError(f"the log density of {one.name!r} has shape {shape} for one row; expected (1,)")
        return densities[0]

    of_rows = jax.jit(jax.vmap(jax.grad(of_row), in_axes=(None, 0)))

    def gradient(theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        with jax.enable_x64(True):
            return np.asarray(of_rows(theta, rows), dtype=np.float64)

    return gradient
