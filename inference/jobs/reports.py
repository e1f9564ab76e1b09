"""What the jobs on reports share: how their posteriors are drawn, and what is said of these.

Each client reports once, by a local mechanism and so private by itself; the posterior has the reports' noise in its
model (`inference.models.fit`). Once the clients have reported, other draws and another prior cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.wording import to_install
from inference.draws import CHAINS, DRAWS, InferenceData
from inference.errors import DataError, unknown
from inference.jobs.base import Conditions
from inference.jobs.estimates import Figure, normal
from inference.jobs.settings import setting
from inference.jobs.summary import Summary
from inference.mcmc.posterior import LocalPosterior
from inference.mcmc.run import WARMUP, Run
from inference.posterior import Posterior
from inference.problem import Schema

Array = NDArray[np.float64]
SAMPLED = ("chains", "warmup", "draws", "require_mixed", "seed")
"""Settings of how draws are made."""


@dataclass(frozen=True)
class SamplerSettings:
    """How draws are made."""

    chains: int = setting(CHAINS, "How many chains are drawn side by side.")
    warmup: int = setting(WARMUP, "Iterations of each chain before its first draw.")
    draws: int = setting(DRAWS, "Draws that are kept of each chain.")
    require_mixed: bool = setting(True, "false takes draws of chains that have not mixed, R-hat being 1.1 or more.")

    def __post_init__(self) -> None:
        for name in ("chains", "warmup", "draws"):
            if (value := getattr(self, name)) < 1:
                raise DataError(f"setting {name!r} is {value}, expected at least 1")

    def run(self, conditions: Conditions) -> Run:
        """As the fits take it."""
        return {
            "chains": self.chains,
            "warmup": self.warmup,
            "draws": self.draws,
            "seed": int(conditions.rng.integers(2**31)),
            "on_progress": conditions.on_sampling,
            "keep_warmup": True,
            "require_mixed": self.require_mixed,
        }

    @property
    def words(self) -> str:
        """In words."""
        return f"{self.chains} chains of {self.warmup + self.draws} iterations"


@dataclass(frozen=True, eq=False)
class Fitted(Posterior):
    """A posterior, and the round of reports that it is from."""

    posterior: LocalPosterior
    aggregate: NoisyAggregate

    @property
    def warnings(self) -> Sequence[str]:
        """Of the posterior."""
        return self.posterior.warnings

    def more(self) -> Summary:
        """Of the posterior."""
        return self.posterior.more()


def check_installed() -> None:
    """Refuse to ask clients for what could not be learned from. Raises `DataError` that says what to install."""
    missing = [said for name, said in _NEEDED.items() if find_spec(name) is None]
    if missing:
        raise DataError(
            "draws from the posterior given reports need NumPyro, JAX and ArviZ; missing here: "
            f"{', '.join(missing)}; {to_install('samplers')}"
        )


_NEEDED = {"numpyro": "NumPyro", "jax": "JAX", "arviz": "ArviZ"}


def check_clients(clients: int, least: int, of: str) -> None:
    """Refuse fewer clients than a fit takes, before any is asked. Raises `DataError`.

    Args:
        least: how many it takes. of: what, in words.
    """
    if clients < least:
        raise DataError(f"{clients} clients are too few: {of} needs the reports of at least {least}")


def column_of(schema: Schema, name: str | None) -> str:
    """The column that is described, by default the target. Raises `DataError` for one that is not there."""
    if name is not None and name not in schema.columns:
        raise unknown("column", name, "the data", schema.columns)
    return schema.target if name is None else name


def draws(result: Fitted, rng: np.random.Generator) -> InferenceData:
    """As `with_new_clients`."""
    return with_new_clients(result.posterior, rng)


def with_new_clients(posterior: LocalPosterior, rng: np.random.Generator) -> InferenceData:
    """The chains' own draws with their warm-up, the prior's, and of each draw a new client, with its report if any."""
    return posterior.inference_data(posterior.new_clients(seed=int(rng.integers(2**31))))


def unbiased_shares(shares: Array, n: int, p: float, q: float) -> list[Figure]:
    """Unbiased estimates of shares, normal as sums of many reports are.

    Args:
        shares: part of the n clients that reported each category. p, q: of naming one's own category, and another one.
    """
    return [normal((r - q) / (p - q), sqrt(max(r * (1 - r), 0.0) / n) / (p - q)) for r in shares]
