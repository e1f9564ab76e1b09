"""Noise-aware sampling: a NumPyro model of noisy sums, its posterior and its diagnostics.

    from inference.mcmc import NoisySums, observe, sample

Reading order:
    sums                    sums from any round, with noise of a known variance (NumPy alone)
    model                   `observe` states the distribution of such sums in a model; `sample` returns a posterior
    run                     sampling options, and the import of NumPyro
    nuts                    NumPyro's sampler, compiled once for each shape of data
"""

from typing import TYPE_CHECKING, Any

from inference.mcmc.sums import NoisySums

if TYPE_CHECKING:
    from inference.mcmc.model import observe, sample

__all__ = ["NoisySums", "observe", "sample"]


def __getattr__(name: str) -> Any:
    """Import `observe` and `sample` on first use: they need NumPyro. Raises `DataError` if it is missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from inference.mcmc.run import numpyro_module

    return getattr(numpyro_module("inference.mcmc.model"), name)
