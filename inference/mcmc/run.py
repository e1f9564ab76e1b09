"""Sampling options, the same for every fit, and the import of NumPyro (optional; at the first fit)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypedDict, TypeVar

import numpy as np

from dca_proto.wording import to_install
from inference.draws import CHAINS, DRAWS, Sampling, require_arviz
from inference.errors import DataError
from inference.jobs.settings import require_count, require_flag
from inference.laws import Draws
from inference.posterior import Posterior

P = TypeVar("P", bound=Posterior)

WARMUP = 1000
PRIOR_DRAWS = 4000
NEEDED = ("jax", "jaxlib", "numpyro")


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws by a model's sites, shape ``(chains, draws, ...)``; those of the warm-up, if kept; and diagnostics."""

    draws: Draws
    warmup: Draws
    sampling: Sampling


class Run(TypedDict, total=False):
    """The keyword arguments of `Options`."""

    chains: int
    warmup: int
    draws: int
    least: int
    seed: int
    on_progress: Callable[[int, int], None] | None
    keep_warmup: bool
    require_mixed: bool


@dataclass(frozen=True)
class Options:
    """Sampling options.

    Attributes:
        chains, warmup, draws: by default half of each chain's iterations adapt, as in the paper.
        least: chains end after this many draws each, or a multiple, rounded up to whole blocks, once they have mixed; 0
            for never.
        seed: of all randomness. on_progress: called with the iterations done and their total.
        keep_warmup: keep the draws of the warm-up, marked as such, in the posterior.
        require_mixed: raise an error if R̂ is not below 1.1; otherwise only `Posterior.warnings` reports it.
    """

    chains: int = CHAINS
    warmup: int = WARMUP
    draws: int = DRAWS
    least: int = 0
    seed: int = 0
    on_progress: Callable[[int, int], None] | None = None
    keep_warmup: bool = False
    require_mixed: bool = True

    def __post_init__(self) -> None:
        for name in ("chains", "warmup", "draws"):
            require_count(name, getattr(self, name))
        require_flag("require_mixed", self.require_mixed)

    def sample(self, model: Any, data: Any, start: Mapping[str, Any] | None = None, **more: Any) -> Sampled:
        """Draw from a NumPyro model; see `nuts.sample` for the arguments.

        Raises:
            DataError: as in `nuts.sample`; or NumPyro, JAX, or ArviZ (which checks the chains) is missing.
        """
        require_arviz()  # fail before the work
        sampled: Sampled = numpyro_module("inference.mcmc.nuts").sample(model, data, self, start, **more)
        return sampled if self.keep_warmup else replace(sampled, warmup={})

    def checked(self, posterior: P) -> P:
        """Return the posterior. Raises `DataError` if its chains must have mixed and have not."""
        return posterior.require_mixed() if self.require_mixed else posterior

    @property
    def rng(self) -> np.random.Generator:
        """The random generator for draws from the prior."""
        return np.random.default_rng(self.seed)


def numpyro_module(name: str) -> Any:
    """Import a module of this package that needs NumPyro or JAX. Raises `DataError` if they are missing."""
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise DataError(
            f"fits of local reports need NumPyro and JAX, which are missing here ({error}); {to_install('samplers')}"
        ) from None
