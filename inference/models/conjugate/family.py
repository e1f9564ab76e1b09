"""The interface of a conjugate model, and its posterior given a noisy sum.

    s    sum of the sufficient statistics of n clients, shape (..., k), in the model's own units
    s̃    the same with privacy noise of a known variance in each coordinate
    η    hyperparameters of the conjugate posterior, shape (..., h)

Functions of s and η broadcast over leading axes, so chains and draws need no loops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import numpy as np

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.bounds import Interval
from inference.draws import CHAINS, DRAWS, attributes
from inference.errors import DataError, unknown
from inference.jobs.estimates import SHARE, TAILS, Estimate, Figure
from inference.jobs.summary import Standard, Summary
from inference.mcmc.posterior import LocalPosterior
from inference.mcmc.sums import NoisySums
from inference.problem import Array, Schema

BIAS = 1 / 3  # bias by clipping, in sampling errors, above which the result warns
PRIOR_DRAWS = 20_000
NOISE_AWARE, CONJUGATE = METHODS = ("noise-aware", "conjugate")


@dataclass(frozen=True)
class Family(ABC):
    """A conjugate model of one column.

    Attributes:
        name: of the model. learns: the quantity it learns, as text before the column's name.
        column: the clients' column. interval: its public bounds, in its own units.
    """

    name: ClassVar[str]
    learns: ClassVar[str]
    column: str
    interval: Interval

    @abstractmethod
    def request(self) -> SecureSumRequest:
        """Return the request of the round that releases s̃; only each client's first row counts."""

    @abstractmethod
    def release(self, aggregate: NoisyAggregate) -> NoisySums:
        """Return s̃ from that round's aggregate."""

    @abstractmethod
    def exact(self, x: Array) -> NoisySums:
        """Return s without noise, of values of shape ``(n,)`` within the bounds."""

    @abstractmethod
    def possible(self, s: Array, n: int) -> Array:
        """Return the nearest sum that n values within the bounds can have."""

    @abstractmethod
    def update(self, s: Array, n: int) -> Array:
        """Return η of the conjugate posterior given s."""

    @abstractmethod
    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        """Return mean and variance of each parameter given η."""

    @abstractmethod
    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        """Return exact quantiles of each parameter given one η, ``(h,)``: shape of q, then the parameter's own."""

    @abstractmethod
    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        """Draw each parameter once for each η."""

    @abstractmethod
    def latent(self, release: NoisySums, chains: int, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw from p(s | s̃) ∝ p(s) N(s̃; s, noise variance): the warm-up, then the draws, ``(chain, draw, k)`` each.

        The warm-up of independent draws is empty.
        """

    def prior_quantiles(self, q: Array, n: int) -> dict[str, Array]:
        """Return quantiles of the posterior if the sum of n clients is nothing but noise.

        This is the prior combined with the public bounds of the values, which may be narrower than a vague prior.
        """
        nothing = self.exact(np.zeros(0))
        rng, noise_alone = np.random.default_rng(0), NoisySums(nothing.value, np.full(nothing.value.shape, np.inf), n)
        drawn = self.draw(self.update(self.latent(noise_alone, 1, PRIOR_DRAWS, rng)[1], n), rng)
        return {name: np.asarray(np.quantile(array, q, axis=(0, 1))) for name, array in drawn.items()}

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        """Return the probability that a value lies outside the bounds, given the parameters."""
        return np.zeros(next(iter(parameters.values())).shape[:2])

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return the labels along the last axis of each parameter that has labels."""
        return {}


@dataclass(frozen=True, eq=False, kw_only=True)
class FamilyResult(LocalPosterior):
    """The posterior of a conjugate model.

    Attributes:
        family: the model. method: one of `METHODS`. release: the noisy sum.
        eta: η of each draw, shape ``(chain, draw, h)``.
        repaired: whether s̃ was an impossible sum; method "conjugate" then took the nearest possible one.
        private: False if no epsilon may be claimed.
    """

    family: Family
    method: str
    release: NoisySums
    eta: Array
    repaired: bool
    private: bool

    @property
    def mean(self) -> dict[str, Array]:
        """Posterior mean of each parameter: E[E[θ | s]], exact for method "conjugate"."""
        return {name: mean.mean(axis=(0, 1)) for name, (mean, _) in self.family.moments(self.eta).items()}

    @property
    def sd(self) -> dict[str, Array]:
        """Posterior standard deviation of each parameter: √(E[Var[θ | s]] + Var[E[θ | s]])."""
        moments = self.family.moments(self.eta).items()
        return {name: np.sqrt(v.mean(axis=(0, 1)) + mean.var(axis=(0, 1))) for name, (mean, v) in moments}

    def quantile(self, q: float | Sequence[float]) -> dict[str, Array]:
        """Return posterior quantiles of each parameter, shape of `q`, then the parameter's own axes.

        They are exact if all draws share one η, else those of the draws.
        """
        if not np.ptp(self.eta, axis=(0, 1)).any():
            return self.family.quantiles(self.eta[0, 0], np.asarray(q, float))
        return {name: np.asarray(np.quantile(array, q, axis=(0, 1))) for name, array in self.draws.items()}

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return an estimate for each number in each parameter, with exact quantiles if there are any."""
        sd, ends, before = self.sd, self.quantile(TAILS), self.family.prior_quantiles(np.array(TAILS), self.release.n)
        column, labels = self.family.column, self.family.labels()
        unit = "" if schema is None else schema.units.get(column, "")
        units = {"mean": unit, "variance": f"({unit})²" if unit else "", "rate": f"1/{unit}" if unit else ""}
        rows = []
        for name, mean in self.mean.items():
            named = [f"share of {column} = {label}" for label in labels.get(name, ())]
            named = named or [f"{'share of ones' if name == 'theta' else name} of {column}"]
            numbers = (np.ravel(one).tolist() for one in (mean, sd[name], *ends[name], *before[name]))
            axis: Standard | None = {"unit": SHARE, "scale": 1.0, "centre": 0.0} if name == "theta" else None
            for row, m, s, low, high, *prior in zip(named, *numbers, strict=True):
                figure = Figure(m, s, (low, high), (prior[0], prior[1]))
                rows.append(Estimate(row, units.get(name, ""), figure, axis=axis))
        return rows

    def summary_extras(self) -> Summary:
        return {"method": self.method, "outside_bounds": self.outside}

    @property
    def outside(self) -> float:
        """The share of the data that the fitted model expects outside the bounds, where clients clip it."""
        return float(self.family.outside(self.draws).mean())

    @property
    def clipping_matters(self) -> bool:
        """True if clipping may bias the posterior by about a third of the sampling error; wider bounds then help.

        The mean of the clipped data is off by at most `outside` times the mean excess. That excess is about a standard
        deviation of the data, and the sampling error is a standard deviation over √n.
        """
        return bool(self.outside * np.sqrt(self.release.n) > BIAS)

    @property
    def warnings(self) -> list[str]:
        column, warnings = self.family.column, []
        if self.clipping_matters:
            share = f"the fitted model expects {100 * self.outside:.2g} % of the values of {column} outside the bounds"
            warnings.append(f"{share}, where they are clipped, which biases its estimates; give wider public bounds")
        if self.method == CONJUGATE and self.repaired:
            problem = f"no values of {column} can have the noisy sum, so the nearest possible sum was used"
            warnings.append(f"{problem}; method {NOISE_AWARE!r} weighs all possible sums")
        return warnings + self.about_mixing


def posterior_of(
    model: Family,
    given: NoisyAggregate | NoisySums,
    *,
    rng: np.random.Generator,
    method: str = NOISE_AWARE,
    chains: int = CHAINS,
    draws: int = DRAWS,
    private: bool = True,
) -> FamilyResult:
    """Return the posterior given one round's release; trying another prior costs no budget.

    Args:
        model: with the prior. given: the aggregate of `Family.request`, or a noisy sum without a privacy claim.
        rng: for the draws; the privacy noise does not use it. method: one of `METHODS`.
        chains, draws: number of chains, and of draws in each. Draws are independent, except those of the categorical
            model's Gibbs sampler.
        private: False if the bounds were read from the data, so that no epsilon may be claimed.

    Raises:
        DataError: the method is unknown, there is no chain or too few draws to diagnose, or the chains have not mixed.
    """
    if method not in METHODS:
        raise unknown("method", method, None, METHODS)
    if chains < 1 or draws < 4:
        raise DataError(f"{chains} chains of {draws} draws; expected at least 1 chain of at least 4 draws")
    release = model.release(given) if isinstance(given, NoisyAggregate) else given
    nearest = model.possible(release.value, release.n)
    if method == CONJUGATE or not release.noise_variance.any():
        warmup, sums = nearest[:0], np.broadcast_to(nearest, (chains, draws, nearest.size))
    else:
        warmup, sums = model.latent(release, chains, draws, rng)
    eta, labels = model.update(sums, release.n), model.labels()
    result = FamilyResult(
        model=model.name,
        family=model,
        method=method,
        release=release,
        eta=eta,
        draws=(drawn := model.draw(eta, rng)),
        warmup=model.draw(model.update(warmup, release.n), rng) if warmup.size else {},
        advice="take method 'conjugate'",
        axes={name: (f"{name}_label",) for name in labels},
        coords={f"{name}_label": texts for name, texts in labels.items()},
        repaired=(repaired := bool((np.abs(nearest - release.value) > 1e-9 * release.n).any())),
        private=(private := private and isinstance(given, NoisyAggregate) and given.private),
        attrs={
            "method": method,
            "repaired": repaired,
            "outside": float(model.outside(drawn).mean()),
            **(attributes(given, private=private) if isinstance(given, NoisyAggregate) else {}),
        },
    )
    return result.require_mixed() if find_spec("arviz") is not None else result


def whole_bounds(model: str, column: str, interval: Interval, advice: str) -> None:
    """Raise `DataError` if the bounds are not whole numbers."""
    if not (float(interval.lower).is_integer() and float(interval.upper).is_integer()):
        found = f"{interval.lower:g}:{interval.upper:g}"
        raise DataError(f"{model}: column {column!r} has bounds {found}, expected whole numbers; {advice}")


def positive(model: str, **values: float) -> None:
    """Raise `DataError` if a prior's parameter is not finite and above 0."""
    for name, value in values.items():
        if not 0 < value < np.inf:
            raise DataError(f"{model}: prior parameter {name} is {value:g}; give a finite number above 0")
