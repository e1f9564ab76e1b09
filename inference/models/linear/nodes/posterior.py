"""What every method returns: draws of the posterior, what they are worth, and what speaks against them.

All is in the units of the released statistics; `own_units` shows the same in the user's. Where the posterior is
Gaussian in closed form, its moments and intervals are exact and its draws independent: nothing to diagnose then.

**Warnings.** Chains that have not mixed say little of the posterior, so this is said in words: R̂ above 1.01 or fewer
than 400 effective draws (Vehtari et al. 2021), a chain that hardly ever moved, iterations that failed numerically.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from inference.draws import InferenceData, Mixing, about_mixing, inference_data, mixing, tails_of
from inference.errors import DataError
from inference.models.linear.closed_form import Posterior, predictive

Array = NDArray[np.float64]

ACCEPTANCE_MIN = 0.01  # below, a chain has all but stood still
DIAGNOSED = ("theta", "sigma_y2")
ADVICE = "take a longer warm-up and more draws, or another method"


@dataclass(frozen=True, eq=False)
class DistributedPosterior:
    """The posterior of θ, and of σ_y² and whatever else the method draws.

    Attributes:
        method: its name.
        draws: by parameter, shape ``(chains, draws, ...)``: "theta" ``(..., d)`` and "sigma_y2", perhaps others.
        names: of θ's coordinates, the constant's too.
        gaussian: θ's posterior where it is Gaussian in closed form, else None.
        warmup: draws made before the chains were taken to have converged, as `draws`; empty in closed form.
        acceptance: by block, the mean acceptance probability of each chain, shape ``(chains,)``.
        divergences: iterations that failed numerically, by chain, shape ``(chains,)``.
        seconds: that sampling took. attrs: what the draws rest on (`draws.attributes`).

    Raises:
        DataError: a draw is not finite.
    """

    method: str
    draws: Mapping[str, Array]
    names: tuple[str, ...]
    gaussian: Posterior | None = None
    warmup: Mapping[str, Array] = field(default_factory=dict)
    acceptance: Mapping[str, Array] = field(default_factory=dict)
    divergences: NDArray[np.int64] | None = None
    seconds: float = 0.0
    attrs: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in self.draws.items():
            if not np.all(np.isfinite(array)):
                chain, draw = np.argwhere(~np.isfinite(array))[0][:2]
                raise DataError(
                    f"method {self.method!r}: draw {draw + 1} of {name} in chain {chain + 1} is not finite; "
                    "take a wider prior or another method, and look at what was released"
                )

    @property
    def theta(self) -> Array:
        """Draws of the coefficients, shape ``(chains, draws, d)``."""
        return self.draws["theta"]

    @cached_property
    def moments(self) -> Posterior:
        """Mean and covariance of θ and the mean of σ_y²: exact in closed form, else those of the draws."""
        if self.gaussian is not None:
            return self.gaussian
        flat = self.theta.reshape(-1, self.theta.shape[-1])
        cov = np.atleast_2d(np.cov(flat, rowvar=False))
        return Posterior(flat.mean(axis=0), cov, np.asarray(self.draws["sigma_y2"].mean()))

    @property
    def mean(self) -> Array:
        """Of θ, shape ``(d,)``."""
        return self.moments.mean

    @property
    def cov(self) -> Array:
        """Of θ, shape ``(d, d)``."""
        return self.moments.cov

    @property
    def sd(self) -> Array:
        """Of each coordinate of θ, shape ``(d,)``."""
        return np.sqrt(np.diag(self.cov))

    def intervals(self, level: float = 0.9) -> Array:
        """Equal-tailed credible intervals of each coordinate of θ, shape ``(d, 2)``.

        Args:
            level: their probability, between 0 and 1. Raises `DataError` for any other.
        """
        tails = tails_of(level)
        if self.gaussian is not None:
            reach = np.array([NormalDist().inv_cdf(tail) for tail in tails])
            return np.asarray(self.mean[:, None] + self.sd[:, None] * reach)
        return np.quantile(self.theta, tails, axis=(0, 1)).T

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior predictive mean and standard deviation at rows ``X`` of shape ``(k, d)``, each ``(k,)``."""
        return predictive(self.moments, X)

    def predictive_draws(self, X: Array, rng: np.random.Generator) -> Array:
        """A target for each draw and each row of ``X``, with a residual, shape ``(chains, draws, k)``."""
        mean = self.theta @ X.T
        spread = np.sqrt(self.draws["sigma_y2"])[..., None]
        return np.asarray(mean + spread * rng.standard_normal(mean.shape))

    @cached_property
    def mixing(self) -> list[Mixing]:
        """R̂ and effective draws of θ and σ_y²; none in closed form. Raises `DataError` without ArviZ."""
        if self.gaussian is not None:
            return []
        return mixing({name: self.draws[name] for name in DIAGNOSED}, {"theta": self.names})

    @cached_property
    def warnings(self) -> list[str]:
        """What speaks against taking the draws at their word, a sentence each; empty if nothing does."""
        return [*about_mixing(self.mixing, ADVICE), *self._about_chains()]

    def _about_chains(self) -> list[str]:
        found = []
        for block, rates in self.acceptance.items():
            still = np.flatnonzero(rates < ACCEPTANCE_MIN)
            if still.size:
                found.append(
                    f"chain {', '.join(str(chain + 1) for chain in still)} hardly moved: it accepted "
                    f"{100 * rates[still].min():.2g} % of the moves of {block}; take a longer warm-up or another method"
                )
        if self.divergences is not None and self.divergences.sum() > 0:
            found.append(
                f"{self.divergences.sum()} iterations failed numerically; the draws may miss a part of the posterior, "
                "so compare them with another method's"
            )
        return found

    def inference_data(self) -> InferenceData:
        """All draws as ArviZ's common type, warm-up, acceptance and divergences in groups of their own.

        Raises:
            DataError: ArviZ is not installed.
        """
        return inference_data(
            self.draws,
            dims={"theta": ["coefficient"]},
            coords={"coefficient": self.names},
            attrs={"method": self.method, **self.attrs},
            warmup_posterior=self.warmup or None,
            sample_stats=self.sample_stats(),
        )

    def sample_stats(self) -> dict[str, Array]:
        """About each chain, shape ``(chains,)``: acceptance of each block, and how many iterations failed."""
        stats = {f"acceptance_{block}": rates for block, rates in self.acceptance.items()}
        return stats if self.divergences is None else {**stats, "divergences": np.asarray(self.divergences, float)}
