"""The result of variational inference: a Gaussian with independent coordinates, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.draws import CHAINS, DRAWS, InferenceData, inference_data
from inference.problem import Schema
from inference.variational.models import Model
from inference.variational.schedule import Schedule
from inference.variational.standardise import Standardisation

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VariationalFit:
    """q(θ) = N(mean, diag(sd²)), in standardised units.

    Attributes:
        schema, model: what was learnt. columns: how columns were standardised.
        mean: the average of the last iterates, shape ``(d,)``.
        posterior_sd: s, what the rows leave open, of the clipped likelihood (`models`) and without correlations. With
            few iterations or much noise it is near the guess that it starts from.
        noise_sd: what the privacy noise adds to the mean (`noise_spread`).
        schedule: what was planned. iterations: how many were held. stopped: why not all, in words; "" where they were.
        contributors: clients in the first round. private: False where no epsilon may be claimed.
    """

    schema: Schema
    model: Model
    columns: Standardisation
    mean: Array
    posterior_sd: Array
    noise_sd: Array
    schedule: Schedule
    iterations: int
    stopped: str
    contributors: int
    private: bool

    @property
    def sd(self) -> Array:
        """Of θ, the privacy noise included, shape ``(d,)``: s and the noise's, which are independent."""
        return np.hypot(self.posterior_sd, self.noise_sd)

    def draws(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> Array:
        """θ drawn from q, the privacy noise included, shape ``(chains, draws, d)``."""
        return self.mean + self.sd * rng.standard_normal((chains, draws, self.mean.size))

    def inference_data(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> InferenceData:
        """The draws as ArviZ's common type, by the names of θ. Raises `DataError` without ArviZ."""
        return inference_data(
            {"theta": self.draws(rng, chains, draws)},
            dims={"theta": ["parameter"]},
            coords={"parameter": list(self.model.names)},
            attrs=attributes_of(self),
        )


def attributes_of(fit: VariationalFit) -> dict[str, object]:
    """What the draws rest on, for `inference_data`."""
    return {
        "method": "doubly stochastic variational inference, mean-field Gaussian",
        "contributors": fit.contributors,
        "iterations": fit.iterations,
        "private": fit.private,
        "stopped": fit.stopped or None,
    }
