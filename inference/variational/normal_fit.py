"""A normal posterior of standardised coefficients, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.draws import CHAINS, DRAWS, InferenceData, inference_data
from inference.problem import Schema
from inference.variational.standardise import Standardisation

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NormalFit:
    """θ ~ N(mean, cov), in standardised units, the privacy noise included.

    Attributes:
        schema, names: what was learnt, and of θ's coordinates. columns: how columns were standardised.
        mean, cov: shapes ``(d,)`` and ``(d, d)``.
        method: in words. contributors: clients in the first round. private: False where no epsilon may be claimed.
        prior_sd: of each of θ, about 0; None where the prior is another one.
        epochs: how often each client was asked for gradients. iterations: how many rounds of gradients were held.
        stopped: why not all, in words; "" where they were. warnings: what speaks against the result, a sentence each.
    """

    schema: Schema
    names: tuple[str, ...]
    columns: Standardisation
    mean: Array
    cov: Array
    method: str
    contributors: int
    private: bool
    prior_sd: float | None = None
    epochs: int = 0
    iterations: int = 0
    stopped: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def sd(self) -> Array:
        """Of θ, shape ``(d,)``."""
        return np.sqrt(np.diag(self.cov))

    def draws(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> Array:
        """Draws of θ, shape ``(chains, draws, d)``."""
        root = np.linalg.cholesky(self.cov)
        return np.asarray(self.mean + rng.standard_normal((chains, draws, self.mean.size)) @ root.T)

    def inference_data(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> InferenceData:
        """The draws as ArviZ's common type, by the names of θ. Raises `DataError` without ArviZ."""
        return inference_data(
            {"theta": self.draws(rng, chains, draws)},
            dims={"theta": ["parameter"]},
            coords={"parameter": list(self.names)},
            attrs=attributes_of(self),
        )


def attributes_of(fit: NormalFit) -> dict[str, object]:
    """What the draws rest on, for `inference_data`."""
    return {
        "method": fit.method,
        "contributors": fit.contributors,
        "iterations": fit.iterations,
        "private": fit.private,
        "stopped": fit.stopped or None,
    }
