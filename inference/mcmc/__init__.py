"""Noise-aware sampling: a NumPyro model meets noisy sums, and gives one kind of posterior with its diagnosis.

    from inference.mcmc import NoisySums, observe, sample

Reading order:
    sums                    what rounds released, as sums with noise of a known variance (NumPy alone)
    model                   `observe`, with which a model states the law of such sums; `sample`: a posterior
    run                     how to sample, and the door to NumPyro
    nuts                    NumPyro's sampler, compiled once for each shape of data
    posterior               draws, their diagnostics, warnings
"""

from typing import TYPE_CHECKING, Any

from inference.mcmc.sums import NoisySums

if TYPE_CHECKING:
    from inference.mcmc.model import observe, sample

__all__ = ["NoisySums", "observe", "sample"]


def __getattr__(name: str) -> Any:
    """`observe` and `sample`, once they are asked for: they need NumPyro. Raises `DataError` where it is missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from inference.mcmc.run import numpyro_module

    return getattr(numpyro_module("inference.mcmc.model"), name)
