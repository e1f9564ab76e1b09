"""Options of sampling, the same for every fit, and the import of NumPyro (optional; at the first fit)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from dca_proto.wording import to_install
from inference.draws import CHAINS, DRAWS, require_arviz
from inference.errors import DataError
from inference.mcmc.posterior import LocalPosterior, Sampling

Array = NDArray[np.float64]
P = TypeVar("P", bound=LocalPosterior)

WARMUP = 1000
PRIOR_DRAWS = 4000
NEEDED = ("jax", "jaxlib", "numpyro")


class Run(TypedDict, total=False):
    """The keyword arguments of `Options`."""

    chains: int
    warmup: int
    draws: int
    seed: int
    on_progress: Callable[[int, int], None] | None
    keep_warmup: bool
    require_mixed: bool


@dataclass(frozen=True)
class Options:
    """How to sample.

    Attributes:
        chains, warmup, draws: of each chain half of the iterations adapt by default, as in the paper.
        seed: of all randomness. on_progress: called with the iterations done and their total.
        keep_warmup: whether the posterior holds the draws of the warm-up too, marked as such.
        require_mixed: whether a fit raises where R̂ is not below 1.1, or leaves it to `LocalPosterior.warnings`.
    """

    chains: int = CHAINS
    warmup: int = WARMUP
    draws: int = DRAWS
    seed: int = 0
    on_progress: Callable[[int, int], None] | None = None
    keep_warmup: bool = False
    require_mixed: bool = True

    def sample(
        self,
        model: Any,
        data: Any,
        start: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Sampled:
        """Draws of a NumPyro model, from starts about a plausible point; arguments as of `nuts.sample`.

        Raises:
            DataError: as `nuts.sample`; NumPyro, JAX, or ArviZ, which looks at the chains, is missing.
        """
        require_arviz()  # before the work
        made = numpyro_module("inference.mcmc.nuts").sample(
            model,
            data,
            start,
            chains=self.chains,
            warmup=self.warmup,
            draws=self.draws,
            seed=self.seed,
            on_progress=self.on_progress,
            **more,
        )
        return Sampled(made.draws, made.warmup if self.keep_warmup else {}, made.sampling)

    def checked(self, posterior: P) -> P:
        """The posterior, if its chains have mixed or need not have. Raises `DataError` if they should have."""
        if self.require_mixed:
            posterior.require_mixed()
        return posterior

    @property
    def rng(self) -> np.random.Generator:
        """For draws from the prior."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws by the model's sites, shape ``(chains, draws, ...)``; those of the warm-up, if kept; how it went."""

    draws: Mapping[str, Array]
    warmup: Mapping[str, Array]
    sampling: Sampling


def numpyro_module(name: str) -> Any:
    """A module of this package that needs NumPyro or JAX. Raises `DataError` where they are missing."""
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise DataError(
            f"fits of local reports need NumPyro and JAX, which are missing here ({error}); {to_install('samplers')}"
        ) from None
