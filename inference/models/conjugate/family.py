"""The interface of a conjugate model, and its posterior given a noisy sum.

    n    number of values, one for each client that has one; clients also count these, with noise
    s    sum of the sufficient statistics of n values, shape (..., k), in the model's own units
    s̃    the same with privacy noise of a known variance in each coordinate
    η    hyperparameters of the conjugate posterior, shape (..., h)

**Missing values.** A client without a value adds nothing to s̃ nor to the count. Sums are about the middle of the
bounds, so s̃ in the model's units depends on n. Draws of n come first, from the noisy count and the evidence that each
n has from s̃; s and θ are drawn given n. So the noise of the denominator is in every interval. The prior of the missing
share is Beta(½, 1). If all values are there and ε is 1, intervals of a mean are 1 to 6 % wider than if that were known.

Functions of s and η broadcast over leading axes, so chains and draws need no loops.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.statistics.counting import about_missing
from dca_proto.wording import digits
from inference.bounds import Interval
from inference.draws import CHAINS, DRAWS, attributes
from inference.errors import DataError
from inference.jobs.estimates import SHARE, TAILS, Estimate, Marginal
from inference.jobs.settings import require_choice, require_count, require_positive, within
from inference.jobs.summary import Standard, Summary
from inference.mcmc.sums import NoisySums
from inference.posterior import Posterior
from inference.problem import Array, Schema, unit_of

BIAS = 1 / 3  # bias by clipping, in sampling errors, above which the result warns
PRIOR_DRAWS = 20_000
MISSING = 0.5  # of the prior of the missing share, Beta(MISSING, 1): most mass near none, as in Jeffreys' prior
REACH, CELLS, NODES = 8.0, 2048, 24  # of the counts of values: range in standard deviations, cells, counts kept
NEGLIGIBLE = 1e-9  # probability of a cell that is left out
MEAN = "mean"
PUSHED = 2.0  # widths of a mean's interval from a bound, within which an unknown variance biases it
UNKNOWN = 100.0  # ratio of a scale's interval ends from which on the noise hides it
PRIOR = "prior_"  # before a parameter's name, in the names of settings
NOISE_AWARE, CONJUGATE = METHODS = ("noise-aware", "conjugate")


class Latent(NamedTuple):
    """Draws of s, shape ``(chain, draw, k)``, and of the number of complete values, ``(chain, draw)``."""

    sums: Array
    rows: Array


@dataclass(frozen=True, eq=False)
class Released:
    """A noisy sum over n clients, with a noisy count of those that have a value.

    Attributes:
        value: s̃ if no client had a value. by_row: how much s̃ grows with each value that there is, since clients measure
            about the middle of the bounds. noise_variance: of s̃. All have the shape ``(k,)``.
        n: number of clients. rows: the noisy count. rows_variance: of its noise.
    """

    value: Array
    by_row: Array
    noise_variance: Array
    n: int
    rows: float
    rows_variance: float

    @classmethod
    def complete(cls, sums: NoisySums) -> Released:
        """Return the release in which every client has a value."""
        return cls(sums.value, np.zeros_like(sums.value), sums.noise_variance, sums.n, float(sums.n), 0.0)

    def given(self, rows: float) -> NoisySums:
        """Return s̃ if so many clients have a value."""
        return NoisySums(self.value + self.by_row * rows, self.noise_variance, rows)

    def nearest_rows(self, least: int) -> int:
        """Return the possible count that is nearest to the noisy one."""
        return int(np.clip(np.rint(self.rows), min(least, self.n), self.n))

    def counts(self, least: int) -> tuple[NDArray[np.int64], Array]:
        """Return possible counts of values, at most `NODES`, and ln of their probabilities given the noisy count.

        The prior of the number k of missing values is that of a share of law Beta(`MISSING`, 1).
        """
        nearest = self.nearest_rows(least)
        sd = self.rows_variance**0.5
        if sd == 0 or least >= self.n:
            return np.array([nearest]), np.zeros(1)
        low, high = max(least, math.floor(nearest - REACH * sd)), min(self.n, math.ceil(nearest + REACH * sd))
        edges = np.unique(np.rint(np.linspace(low, high + 1, CELLS + 1)))
        rows, widths = np.floor((edges[1:] + edges[:-1]) / 2), np.diff(edges)
        observed = nearest + np.clip(self.rows - nearest, -REACH * sd, REACH * sd)
        log_p = log_missing(self.n - rows) + np.log(widths) - (rows - observed) ** 2 / (2 * self.rows_variance)
        p = np.exp(log_p - log_p.max())
        likely = p > NEGLIGIBLE * p.sum()
        groups = np.array_split(np.flatnonzero(likely), min(NODES, int(likely.sum())))
        masses = np.array([p[group].sum() for group in groups])
        middles = np.array([(p[group] * rows[group]).sum() for group in groups]) / masses
        return np.rint(middles).astype(np.int64), np.log(masses)


def log_missing(missing: Array) -> Array:
    """Return ln of the prior probability of so many missing values, up to a constant."""
    return np.asarray(gammaln(missing + MISSING) - gammaln(missing + 1))


@dataclass(frozen=True)
class Family(ABC):
    """A conjugate model of one column.

    Attributes:
        name: of the model. learns: the quantity it learns, as text before the column's name.
        target, clean: of the rows to try its job on (`inference.jobs.examples`).
        assumes: what the sum cannot show and the model takes for granted, as a sentence, or "".
        column: the clients' column. interval: its public bounds, in its own units.
        least: the smallest number of values that has a posterior.
        scale: the parameter that noise may hide, or "". hidden_below: whether it hides small values, else large ones.
        counts: whether its rate is a mean, in the column's unit; else it is one over a mean.
        of_codes: whether the column's values are codes, so that texts may stand for them.
        averages: whether its result is the mean of the values, or follows from it.
    """

    name: ClassVar[str]
    learns: ClassVar[str]
    target: ClassVar[str]
    clean: ClassVar[str]
    assumes: ClassVar[str] = ""
    least: ClassVar[int] = 1
    scale: ClassVar[str] = ""
    hidden_below: ClassVar[bool] = True
    counts: ClassVar[bool] = False
    of_codes: ClassVar[bool] = False
    averages: ClassVar[bool] = True
    column: str
    interval: Interval

    @abstractmethod
    def request(self) -> RoundRequest:
        """Return the request of the round that releases s̃; only each client's first row counts."""

    @abstractmethod
    def release(self, aggregate: NoisyAggregate) -> Released:
        """Return s̃ and the noisy count from that round's aggregate."""

    @abstractmethod
    def exact(self, x: Array) -> NoisySums:
        """Return s without noise, of complete values of shape ``(n,)`` within the bounds."""

    @abstractmethod
    def possible(self, s: Array, n: Any) -> Array:
        """Return the nearest sum that n values within the bounds can have."""

    @abstractmethod
    def update(self, s: Array, n: Any) -> Array:
        """Return η of the conjugate posterior given s of n values, shape ``(...)``."""

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
    def latent(self, release: Released, chains: int, draws: int, rng: np.random.Generator) -> tuple[Latent, Latent]:
        """Draw from p(n, s | s̃) ∝ p(n) p(s | n) N(s̃; s, noise variance): the warm-up, then the draws.

        The warm-up of independent draws is empty.
        """

    def prior_quantiles(self, q: Array, n: int) -> dict[str, Array]:
        """Return quantiles of the posterior if the sum of n clients is nothing but noise.

        This is the prior combined with the public bounds of the values, which may be narrower than a vague prior.
        """
        nothing, rng = self.exact(np.zeros(0)).value, np.random.default_rng(0)
        alone = Released.complete(NoisySums(nothing, np.full(nothing.shape, np.inf), n))
        sums, rows = self.latent(alone, 1, PRIOR_DRAWS, rng)[1]
        drawn = self.draw(self.update(sums, rows), rng)
        return {name: np.asarray(np.quantile(array, q, axis=(0, 1))) for name, array in drawn.items()}

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        """Return the probability that a value lies outside the bounds, given the parameters."""
        return np.zeros(next(iter(parameters.values())).shape[:2])

    def require(self, clients: int) -> None:
        """Raise `DataError` if there are too few clients."""
        if clients < self.least:
            raise DataError(f"{self.name}: {clients} clients contributed; expected at least {self.least}")

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return the labels along the last axis of each parameter that has labels."""
        return {}


@dataclass(frozen=True, eq=False)
class Conjugate:
    """The posterior of a conjugate model, an average of the law of θ given s: its exact moments and its table.

    Attributes:
        family: the model. method: one of `METHODS`. release: the noisy sum and count.
        eta: η of each draw, shape ``(chain, draw, h)``. draws: of the parameters.
        repaired: whether s̃ was an impossible sum; method "conjugate" then took the nearest possible one.
    """

    family: Family
    method: str
    release: Released
    eta: Array
    draws: Mapping[str, Array]
    repaired: bool

    @property
    def mean(self) -> dict[str, Array]:
        """Posterior mean of each parameter: E[E[θ | s]], exact for method "conjugate"."""
        return {name: mean.mean(axis=(0, 1)) for name, (mean, _) in self.family.moments(self.eta).items()}

    @property
    def sd(self) -> dict[str, Array]:
        """Posterior standard deviation of each parameter: √(E[Var[θ | s]] + Var[E[θ | s]])."""
        moments = self.family.moments(self.eta).items()
        return {name: np.sqrt(v.mean(axis=(0, 1)) + mean.var(axis=(0, 1))) for name, (mean, v) in moments}

    def quantile(self, q: float | Sequence[float] | Array) -> dict[str, Array]:
        """Return posterior quantiles of each parameter, shape of `q`, then the parameter's own axes.

        They are exact if all draws share one η, else those of the draws.
        """
        if not np.ptp(self.eta, axis=(0, 1)).any():
            return self.family.quantiles(self.eta[0, 0], np.asarray(q, float))
        return {name: np.asarray(np.quantile(array, q, axis=(0, 1))) for name, array in self.draws.items()}

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return an estimate for each number in each parameter, with exact quantiles if there are any.

        A rate that noise may hide has a tail up to where its prior ends. If its mean lies beyond its interval, the
        estimate is the median. If noise hides it, its spread is not compared with the prior's: both are of the tail.
        """
        sd, ends, before = self.sd, self.quantile(TAILS), self.family.prior_quantiles(np.array(TAILS), self.release.n)
        column, labels, interval = self.family.column, self.family.labels(), self.family.interval
        ones = f"{column} = {interval.text(1)}" if interval.labels else f"ones of {column}"
        unit = unit_of(schema, column)
        rate = unit if self.family.counts or not unit else f"1/{unit}"
        units = {"mean": unit, "variance": f"({unit})²" if unit else "", "rate": rate}
        rows, tailed, hidden = [], "" if self.family.hidden_below else self.family.scale, bool(self.about_hidden)
        for name, mean in self.mean.items():
            named = [f"share of {column} = {label}" for label in labels.get(name, ())]
            named = named or [f"share of {ones}" if name == "theta" else f"{name} of {column}"]
            numbers = (np.ravel(one).tolist() for one in (mean, sd[name], *ends[name], *before[name]))
            axis: Standard | None = {"unit": SHARE, "scale": 1.0, "centre": 0.0} if name == "theta" else None
            for row, m, s, low, high, *prior in zip(named, *numbers, strict=True):
                figure = Marginal(m, s, (low, high), (prior[0], prior[1]))
                if name == tailed and not low <= m <= high:
                    figure = figure._replace(mean=float(self.quantile(0.5)[name]), sd=None)
                if name == tailed and hidden:
                    figure = figure._replace(prior=None)
                rows.append(Estimate(row, units.get(name, ""), figure, axis=axis))
        return rows

    def summary(self) -> Summary:
        """Return further entries of the summary."""
        remarks: Summary = {"remarks": {"assumed": self.family.assumes}} if self.family.assumes else {}
        return {"method": self.method, "outside_bounds": self.outside, **remarks}

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
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt the result, a sentence each."""
        column, release = self.family.column, self.release
        warnings = list(about_missing(release.rows, release.rows_variance**0.5, release.n, f"a value of {column}"))
        hidden = self.about_hidden
        if self.clipping_matters and not hidden:
            share = f"the fitted model expects {100 * self.outside:.2g} % of the values of {column} outside the bounds"
            warnings.append(f"{share}, where they are clipped, which biases its estimates; give wider public bounds")
        if self.method == CONJUGATE and self.repaired:
            problem = f"no values of {column} can have the noisy sum, so the nearest possible sum was used"
            warnings.append(f"{problem}; method {NOISE_AWARE!r} weighs all possible sums")
        return (*warnings, *hidden)

    @property
    def about_hidden(self) -> list[str]:
        """Warn of a scale that the noise hides: its interval then ends where its prior does."""
        name, interval = self.family.scale, self.family.interval
        if not name or not self.release.noise_variance.any() or self.method == CONJUGATE:
            return []
        low, high = (float(end) for end in self.quantile(TAILS)[name])
        if high < UNKNOWN * low:
            return []
        end = f"at most {digits(high, 2)}" if self.family.hidden_below else f"at least {digits(low, 2)}"
        return [
            f"the noise hides the {name} of {self.family.column}, which is {end}{self._pushed}: the bounds "
            f"{interval.lower:g}:{interval.upper:g} are wide for this noise; give narrower ones, a larger epsilon or "
            "more clients"
        ]

    @property
    def _pushed(self) -> str:
        """Words about a mean next to a bound, which an unknown variance pushes away: it allows more spread there."""
        if (MEAN not in self.draws) or self.family.scale == MEAN:
            return ""
        interval, (low, high) = self.family.interval, map(float, self.quantile(TAILS)[MEAN])
        for bound, gap in ((interval.lower, low - interval.lower), (interval.upper, interval.upper - high)):
            if gap < PUSHED * (high - low):
                return f", and its mean may be nearer to the bound {bound:g} than the interval"
        return ""


def posterior_of(
    model: Family,
    given: NoisyAggregate | NoisySums | Released,
    *,
    rng: np.random.Generator,
    method: str = NOISE_AWARE,
    chains: int = CHAINS,
    draws: int = DRAWS,
    schema: Schema | None = None,
) -> Posterior:
    """Return the posterior given one round's release; trying another prior costs no budget.

    Args:
        model: with the prior. given: the aggregate of `Family.request`, or a noisy sum of complete values without a
            privacy claim.
        rng: for the draws; the privacy noise does not use it. method: one of `METHODS`.
        chains, draws: number of chains, and of draws in each. Draws are independent, except those of the categorical
            model's Gibbs sampler.
        schema: of the job, if a job asked.

    Raises:
        DataError: the method is unknown, there is no chain or too few draws to diagnose, or the chains have not mixed.
    """
    require_choice("method", method, METHODS)
    require_count("chains", chains)
    within(4)("draws", draws)
    release = released(model, given)
    rows = release.nearest_rows(model.least)
    nearest = model.possible(found := release.given(rows).value, rows)
    if method == CONJUGATE or not release.noise_variance.any():
        warmup = Latent(nearest[:0], np.zeros(0))
        latent = Latent(np.broadcast_to(nearest, (chains, draws, nearest.size)), np.full((chains, draws), rows))
    else:
        warmup, latent = model.latent(release, chains, draws, rng)
    eta, labels = model.update(*latent), model.labels()
    drawn = model.draw(eta, rng)
    repaired = bool((np.abs(nearest - found) > 1e-9 * release.n).any())
    known = attributes(given, schema=schema) if isinstance(given, NoisyAggregate) else {}
    law = Conjugate(model, method, release, eta, drawn, repaired)
    result = Posterior(
        model.name,
        drawn,
        warmup=model.draw(model.update(*warmup), rng) if warmup.sums.size else {},
        advice="take method 'conjugate'",
        axes={name: (f"{name}_label",) for name in labels},
        coords={f"{name}_label": texts for name, texts in labels.items()},
        private=bool(known.get("private")),
        attrs={"method": method, "repaired": repaired, "outside": law.outside, **known},
        notes=law.doubts,
        table=law.estimates,
        extras=law.summary,
        moments=law,
    )
    return result.require_mixed() if find_spec("arviz") is not None else result


def released(model: Family, given: NoisyAggregate | NoisySums | Released) -> Released:
    """Return what a round released to a model. Raises `DataError` if too few clients contributed."""
    if isinstance(given, NoisyAggregate):
        model.require(given.contributors)
        return model.release(given)
    model.require(given.n)
    return given if isinstance(given, Released) else Released.complete(given)


def whole_bounds(model: str, column: str, interval: Interval, advice: str) -> None:
    """Raise `DataError` if the bounds are not whole numbers."""
    if not (float(interval.lower).is_integer() and float(interval.upper).is_integer()):
        found = f"{interval.lower:g}:{interval.upper:g}"
        raise DataError(f"{model}: column {column!r} has bounds {found}, expected whole numbers; {advice}")


def positive(**values: float | None) -> None:
    """Raise `DataError` if a prior's parameter is not finite and above 0; None passes."""
    for name, value in values.items():
        require_positive(f"{PRIOR}{name}", value)
