"""The paper's methods by name.

    name               model of the features            what is sampled             needs
    normal-x           N(0, Σ_x)                        S, θ, σ_y², Σ_x
    fixed-s            none, S plugged in               θ, σ_y²
    fast               none, S and σ_y² plugged in      nothing (closed form)       ‖Y‖ or σ_y²
    bernstein-sheldon  N(0, Σ_x), sums normal           S, z, u, θ, σ_y², Σ_x       yᵀy

A constant feature is not normal, so `normal-x` and `bernstein-sheldon` are for columns that are centred already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inference.mcmc.run import numpyro_module
from inference.models.linear.nodes.observed import NodeStatistics

if TYPE_CHECKING:
    from papers.mcmc2023.samplers.kernel import Kernel

NORMAL_X, FIXED_S, FAST, BERNSTEIN_SHELDON = METHODS = ("normal-x", "fixed-s", "fast", "bernstein-sheldon")
SAMPLED = (NORMAL_X, FIXED_S, BERNSTEIN_SHELDON)


def kernel_of(name: str, observed: NodeStatistics | Sequence[NodeStatistics], **options: Any) -> Kernel:
    """The kernel of a method that samples, with its defaults but for the options.

    Args:
        observed: one problem, or those of one shape that are sampled together.
    """
    from papers.mcmc2023.samplers import bernstein_sheldon, fixed_s, normal_x  # JAX is slow to import

    if name == BERNSTEIN_SHELDON:
        return bernstein_sheldon.kernel_for(observed, **options)
    return normal_x.kernel(**options) if name == NORMAL_X else fixed_s.kernel(**options)


def ready() -> None:
    """Raise `DataError`, which says what to install, where JAX or NumPyro is missing."""
    numpyro_module("inference.mcmc.nuts")
