"""The paper's methods by name.

    name               model of the features            what is sampled             needs
    normal-x           N(0, Σ_x)                        S, θ, σ_y², Σ_x
    fixed-s            none, S plugged in               θ, σ_y²
    fast               none, S and σ_y² plugged in      nothing (closed form)       ‖Y‖ or σ_y²
    bernstein-sheldon  N(0, Σ_x), sums normal           S, z, u, θ, σ_y², Σ_x       yᵀy

A constant feature is not normal, so `normal-x` and `bernstein-sheldon` are for columns that are centred already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from inference.mcmc.run import numpyro_module
from inference.models.linear.nodes.observed import NodeStatistics

if TYPE_CHECKING:
    from papers.mcmc2023.samplers.kernel import Kernel

PACKAGE = "papers.mcmc2023.samplers"


@dataclass(frozen=True)
class Method:
    """A way to the posterior.

    Attributes:
        module: with its ``kernel(**options)``, and perhaps a ``kernel_for(observed, **options)`` that looks at the
            statistics first; none in closed form.
        target_square: whether it needs yᵀy.
    """

    module: str | None
    target_square: bool = False


METHODS: Mapping[str, Method] = {
    "normal-x": Method("normal_x"),
    "fixed-s": Method("fixed_s"),
    "fast": Method(None),
    "bernstein-sheldon": Method("bernstein_sheldon", target_square=True),
}


def kernel_of(name: str, observed: NodeStatistics | Sequence[NodeStatistics], **options: Any) -> Kernel:
    """The kernel of a method that samples, with its defaults but for the options.

    Args:
        observed: one problem, or those of one shape that are sampled together.
    """
    module = METHODS[name].module
    assert module is not None, "a closed form has no kernel"
    made = import_module(f"{PACKAGE}.{module}")
    kernel: Kernel = made.kernel_for(observed, **options) if hasattr(made, "kernel_for") else made.kernel(**options)
    return kernel


def ready() -> None:
    """Raise `DataError`, which says what to install, where JAX or NumPyro is missing."""
    numpyro_module("inference.mcmc.nuts")
