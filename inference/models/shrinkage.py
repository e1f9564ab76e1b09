"""Priors that shrink: the horseshoe and groups of columns, for every regression with a normal law of its slopes.

A fit is θ ~ N(m, Σ): the likelihood of the released sums times the normal prior N(0, c²) of each slope. A shrinkage
prior multiplies this law by normal laws whose variances are unknown:

    horseshoe    θ_j ~ N(0, τ² λ_j²),   λ_j ~ half-Cauchy(1),   τ ~ half-Cauchy(τ₀)      all slopes
    groups       θ_j ~ N(0, s_g²),      s_g ~ half-t(4, scale c)                         slopes of group g

So it is post-processing of a fit, and costs no privacy. Slopes are in units of standardised columns. A law says which
of its coordinates are slopes (`laws.Slopes`).

**Several slopes of one column** (categories without an order have one for each category but one) share λ_j. They are
coordinates in an orthonormal basis. So the prior is the same whichever category comes first, and a column shrinks as a
whole.

**The slab.** The fit's own prior stays in the product, and limits what the heavy tails let through: this is the
regularised horseshoe (Piironen and Vehtari 2017) in the form of Nishimura and Suchard (2023, "shrunken shoulders"),
where the slab acts as an observation 0 of each slope with the variance c². In the first paper's form each N(0, τ² λ̃_j²)
has its own normalising constant, which no Gibbs step knows. Here every step is exact. Nor need the likelihood be
isolated, by a division that a noisy fit may not survive. Width c is the setting of the job: ``prior_sd``, or
1/√``prior_precision``. If a fit learns the scale of its prior, its `Coefficients.slab` gives the wide one instead.

**τ₀ = p/(d - p) · v** with p the expected number of effects (by default a quarter of the d columns, never more than
half), as in Piironen and Vehtari's eq. 3.12, in which v = σ/√n is the standard deviation of a slope given all others.
Here v² = 1/mean(diag Σ⁻¹), so that it has the link's variance and the privacy noise in it.

**A stretch.** If all coordinates have an unknown common factor, as those from clipped gradients, draws are multiplied
by it at the end. In the covariance it would be noise in the direction of the effects, which would explain them: ten
effects of 0.3 to 0.5 at 4 standard deviations became 0.03.

**The sampler** is Gibbs' (Makalic and Schmidt 2016): half-t scales have auxiliary variables with inverse gamma laws,
s² | a ~ IG(ν/2, ν/a), a ~ IG(1/2, 1/A²), and ν = 1 is half-Cauchy. Only slopes take part. All other coordinates follow
from their normal law given the slopes. Of every `THIN` iterations, one is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, Signature, signature
from math import pi, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, hyp2f1, ndtri, softmax, stdtrit

from dca_proto.wording import split_list
from inference.draws import CHAINS, DRAWS
from inference.errors import DataError, unknown
from inference.jobs.base import RefitJob
from inference.jobs.settings import JobSettings, one_of, require_positive, setting
from inference.laws import Shrunk, Slopes
from inference.problem import Array, Problem, Schema

NONE, HORSESHOE, GROUPS = KINDS = ("none", "horseshoe", "groups")
WARMUP, THIN = 300, 3  # iterations that are dropped, and of which one is kept
SHARE = 0.25  # of the slopes, the default of p
CAUCHY, DEGREES = 1.0, 4.0  # of the half-t laws of τ and λ, and of s
PRIOR_DRAWS, NODES = 4_000, 20_000
TAKEN_SDS, TAKEN = 4.0, 0.3  # effects below so many typical sds may be taken for noise; warn if that is so large
CLEAR, KEPT = 0.02, 2.0  # or if some effect is clear, by chance once in 50 fits, and none is so many times as large
LEAST, MOST = 1e-30, 1e30  # of a variance


@dataclass(frozen=True)
class Shrinkage(JobSettings):
    """The settings of all regressions whose law is normal. Raises `DataError` if one is not used."""

    shrinkage: str = setting(
        NONE,
        "Prior that shrinks small effects: none, horseshoe (most columns have none) or groups (a scale for each).",
        one_of(KINDS),
    )
    prior_effects: float | None = setting(
        None, "Number of columns that horseshoe expects to matter; by default a quarter.", require_positive
    )
    prior_groups: str = setting(
        "", "Columns of each group, such as a,b;c,d; by default all are one. Others keep the normal prior alone."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default, used in (("prior_effects", None, HORSESHOE), ("prior_groups", "", GROUPS)):
            if (value := getattr(self, name)) != default and self.shrinkage != used:
                raise DataError(
                    f"setting {name!r} is {value!r}, which shrinkage={self.shrinkage} does not read; expected it with "
                    f"shrinkage={used}, so set that or leave it out"
                )

    def places(self, features: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each feature's group, -1 for none: zeros, unless the groups are given.

        A text column's name stands for all of its indicators, such as ``smoker`` for ``smoker=no`` and ``smoker=yes``.

        Raises:
            DataError: a column is unknown, or in two groups.
        """
        if not self.prior_groups:
            return np.zeros(len(features), dtype=np.int64)
        found = np.full(len(features), -1)
        for place, group in enumerate(self.prior_groups.split(";")):
            for name in split_list(group):
                own = [j for j, one in enumerate(features) if one == name or one.startswith(f"{name}=")]
                if not own:
                    raise unknown("column of prior_groups", name, None, features)
                if (found[own] >= 0).any():
                    raise DataError(f"prior_groups has the column {name!r} twice, expected it in one group")
                found[own] = place
        return found

    def shrink(self, law: Any, draws: int = DRAWS, features: Sequence[str] = ()) -> Any:
        """Return the law under this prior, or as it is if nothing shrinks. A refit keeps the prior.

        Args:
            law: has ``cov``, ``mean``, ``warnings``, ``refitter``, and says what its slopes are (``shrinkable``).
            features: what groups call the columns, if not by the law's names.

        Raises:
            DataError: the law is not that of a regression with a spread, or a column of a group is unknown.
        """
        if self.shrinkage == NONE:
            return law
        if not hasattr(law, "shrinkable") or getattr(law, "point", False):
            raise DataError(f"shrinkage is {self.shrinkage!r}, but this fit has no normal law of slopes; leave it out")
        slopes: Slopes = law.shrinkable()
        return _shrunk(slopes if not features else slopes._replace(features=tuple(features)), self, draws)


SHRINKAGE = tuple(one.name for one in fields(Shrinkage))


class ShrunkJob(RefitJob):
    """A job whose settings are a `Shrinkage`, so that a prior may shrink the slopes of its result."""

    def check(self, schema: Schema, settings: Any) -> None:
        settings.places(schema.features)

    def exact(self, train: Problem, settings: Any) -> Any:
        """Fit the model to raw rows, before anything shrinks. Raises `DataError` as `reference` does."""
        raise NotImplementedError

    def reference(self, train: Problem, settings: Any) -> Any:
        """Fit the same model to the raw rows, under the same prior."""
        return settings.shrink(self.exact(train, settings))


class Scales(NamedTuple):
    """The prior of d slopes: N(0, s² λ²) with half-t laws of the scales, times N(0, c²).

    Attributes:
        group: the number of each slope's scale s, -1 for slopes that have only the slab, ``(d,)``.
        local: whether each column has its own half-Cauchy factor λ. degrees, size: ν and A of each s ~ half-t(ν, A).
        slab: c, infinite if flat, ``(d,)``.
        column: the number of each slope's column, ``(d,)``; by default each slope is of its own.
    """

    group: NDArray[np.int64]
    local: bool
    degrees: float
    size: float
    slab: Array
    column: NDArray[np.int64] | None = None

    @property
    def of(self) -> NDArray[np.int64]:
        """The number of each slope's column."""
        return np.arange(len(self.group)) if self.column is None else self.column

    @property
    def first(self) -> NDArray[np.int64]:
        """The place of each column's first slope; all of its slopes have the same scale and slab."""
        return np.unique(self.of, return_index=True)[1]

    @property
    def members(self) -> Array:
        """Which slopes have which scale, 0 or 1: ``(groups, d)``."""
        return np.asarray(self.group == np.arange(self.group.max() + 1)[:, None], float)

    def variances(self, squares: Array, own: Array) -> Array:
        """Return s² λ² of each slope, infinite without a scale, ``(..., d)``. Args: squares: s². own: λ² of columns."""
        scaled = np.clip(squares[..., np.maximum(self.group, 0)] * own[..., self.of], LEAST, MOST)
        return np.where(self.group >= 0, scaled, np.inf)

    def prior(self, rng: np.random.Generator, count: int = PRIOR_DRAWS) -> Array:
        """Draw slopes from the prior, ``(count, d)``; nan for one that is flat.

        Given its scales, the mass of a column's m slopes under the slab is Z = E[(1 + s² λ²/c²)^(-m/2)]. So s has the
        density of half-t times Z of each column, from a grid; λ is that of half-Cauchy, accepted with the probability
        in Z.
        """
        d, first = len(self.group), self.first
        upper = 0.5 + (np.arange(NODES) + 0.5) / NODES / 2
        nodes = self.size * stdtrit(self.degrees, upper)
        counts = np.bincount(self.of)
        kinds, of_kind = np.unique(np.column_stack([self.slab[first], counts]), axis=0, return_inverse=True)
        mass = self._mass(nodes[:, None] / kinds[:, 0], kinds[:, 1])  # 0.1 s for each kind of column
        squares = np.ones((count, len(self.members)))
        for place, row in enumerate(self.members):
            weights = softmax(np.log(mass) @ np.bincount(of_kind, row[first], len(kinds)))
            squares[:, place] = nodes[rng.choice(NODES, count, p=weights)] ** 2
        own = np.ones((count, len(first)))
        if self.local:
            todo = np.ones(own.shape, dtype=bool)
            ratio = (np.sqrt(self.variances(squares, own)) / self.slab)[:, first]
            power = np.broadcast_to(counts / 2, own.shape)
            while todo.any():
                drawn = np.abs(rng.standard_cauchy(int(todo.sum())))
                kept = rng.random(drawn.size) * (1 + (ratio[todo] * drawn) ** 2) ** power[todo] < 1
                where = np.argwhere(todo)[kept]
                own[where[:, 0], where[:, 1]] = drawn[kept] ** 2
                todo[where[:, 0], where[:, 1]] = False
        with np.errstate(divide="ignore", invalid="ignore"):
            sd = (1 / self.variances(squares, own) + self.slab**-2.0) ** -0.5
            return np.where(np.isfinite(sd), sd * rng.standard_normal((count, d)), np.nan)

    def _mass(self, ratio: Array, counts: Array) -> Array:
        """Return Z given a = s/c and m: (1 + a²)^(-m/2); with λ, whose 1/(1 + λ²) has an arcsine law, Euler's integral.

        That is 2F1(m/2, 1/2; m/2 + 1; 1 - a²) times its value at a = 1; for m = 1 it is 2/π arccos(a)/√(1 - a²).
        """
        half = counts / 2
        if not self.local:
            return np.asarray((1 + ratio**2) ** -half)
        at_one = np.exp(gammaln(half + 0.5) - gammaln(half + 1)) / sqrt(pi)
        return np.asarray(at_one * hyp2f1(half, 0.5, half + 1, 1 - ratio**2))


class Sampled(NamedTuple):
    """Kept iterations: slopes and their variances s² λ², each ``(chains, draws, d)``."""

    slopes: Array
    variances: Array


def gibbs(
    mean: Array, precision: Array, scales: Scales, rng: np.random.Generator, chains: int, iterations: int, thin: int
) -> Sampled:
    """Draw slopes from N(mean, precision⁻¹) times the scales' part of the prior.

    Chains start at draws of the normal law.

    Args:
        mean, precision: of the normal law, slab included: ``(d,)`` and ``(d, d)``.
        iterations: of which one in ``thin`` is returned.
    """
    d, members, nu = len(mean), scales.members, scales.degrees
    pull, eye = precision @ mean, np.eye(d)
    sizes, kept, variances = members.sum(axis=1), [], []
    of, shrinks = scales.of, scales.group[scales.first] >= 0
    columns = np.asarray(of[:, None] == np.arange(len(shrinks)), float)
    counts = columns.sum(axis=0)
    squares, own = np.full((chains, len(members)), scales.size**2), np.ones((chains, len(shrinks)))
    root = np.linalg.cholesky(precision)
    slopes = mean + np.linalg.solve(root.T, rng.standard_normal((d, chains))).T

    def inverse_gamma(shape: Any, rate: Array) -> Array:
        return np.clip(rate / np.maximum(rng.standard_gamma(shape, rate.shape), LEAST), LEAST, MOST)

    for step in range(iterations):
        if scales.local:
            auxiliary = inverse_gamma(1.0, 1 + 1 / own)
            of_slope = scales.variances(squares, np.ones_like(own))
            rate = 1 / auxiliary + (slopes**2 / (2 * of_slope)) @ columns
            own = np.where(shrinks, inverse_gamma((1 + counts) / 2, rate), 1.0)
        mixed = inverse_gamma((nu + 1) / 2, scales.size**-2.0 + nu / squares)
        squares = inverse_gamma((nu + sizes) / 2, nu / mixed + (slopes**2 / (2 * own[:, of])) @ members.T)
        known = scales.variances(squares, own)
        root = np.linalg.cholesky(precision + eye / known[:, None, :])
        whitened = np.linalg.solve(root, np.broadcast_to(pull, (chains, d))[..., None])
        whitened += rng.standard_normal((chains, d, 1))
        slopes = np.linalg.solve(np.swapaxes(root, -1, -2), whitened)[..., 0]
        if step % thin == thin - 1:
            kept.append(slopes)
            variances.append(known)
    return Sampled(np.stack(kept, axis=1), np.stack(variances, axis=1))


def _shrunk(slopes: Slopes, settings: Shrinkage, draws: int) -> Any:
    slopes = slopes._replace(cov=slopes.cov - slopes.stretch**2 * np.outer(slopes.mean, slopes.mean))
    law, places, d = slopes.law, slopes.places, len(slopes.places)
    rng, rest = np.random.default_rng(0), np.delete(np.arange(len(slopes.mean)), places)  # the same draws each time
    own = np.ix_(places, places)
    try:
        precision = np.linalg.inv(slopes.cov[own])
        precision = (precision + precision.T) / 2
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        raise DataError(
            f"the fit knows some combination of the {d} slopes exactly, which shrinkage={settings.shrinkage} cannot "
            "use; expected columns and targets with a spread of their own, so take more rows or leave out shrinkage"
        ) from None
    scales = _scales(settings, slopes, precision)
    sampled = gibbs(slopes.mean[places], precision, scales, rng, CHAINS, WARMUP + THIN * draws, THIN)
    theta = np.empty((*sampled.slopes.shape[:2], len(slopes.mean)))
    theta[..., places] = sampled.slopes
    theta[..., rest] = _others(slopes, rest, sampled.slopes, rng)
    theta *= 1 + slopes.stretch * rng.standard_normal((*theta.shape[:2], 1))
    drawn = theta[:, WARMUP // THIN :]
    flat = drawn.reshape(-1, theta.shape[-1])
    gained = np.diag(precision) * sampled.variances[:, WARMUP // THIN :]
    kept = np.mean(1 / (1 + 1 / gained), axis=(0, 1))
    effects = float(np.sum(np.bincount(scales.of, kept) / np.bincount(scales.of)))
    prior = f"{HORSESHOE} prior" if settings.shrinkage == HORSESHOE else f"prior of {_group_words(scales.group)}"
    before = f"{law.method}, " if law.method else ""
    return law.with_shrunk(
        Shrunk(drawn, theta[:, : WARMUP // THIN], law.slopes_in_own_units(scales.prior(rng))),
        flat.mean(axis=0),
        np.cov(flat, rowvar=False),
        method=f"{before}{prior}: about {effects:.2g} effects of {len(slopes.features)}",
        warnings=(*law.warnings, *_about_taken(settings, slopes)),
        refitter=law.refitter.under(settings) if isinstance(law.refitter, _Refitter) else law.refitter,
    )


def _others(slopes: Slopes, rest: NDArray[np.int64], drawn: Array, rng: np.random.Generator) -> Array:
    """Draw the other coordinates from their normal law given the slopes, ``(..., others)``."""
    places, cov = slopes.places, slopes.cov
    by_slopes = np.linalg.solve(cov[np.ix_(places, places)], cov[np.ix_(places, rest)])
    values, vectors = np.linalg.eigh(cov[np.ix_(rest, rest)] - cov[np.ix_(rest, places)] @ by_slopes)
    mean = slopes.mean[rest] + (drawn - slopes.mean[places]) @ by_slopes
    spread = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(mean + rng.standard_normal(mean.shape) @ spread.T)


def _about_taken(settings: Shrinkage, slopes: Slopes) -> tuple[str, ...]:
    """Warn if the prior may take effects for noise that matter: large ones, or ones like the largest.

    Effects below four typical standard deviations are hidden: marginal ones, since noise in the information of few
    rows makes slopes depend on each other. What matters in the units at hand is not known. So the largest slope under
    the normal prior decides, if it is more than chance; without a clear effect, 0.3 does. `scripts/check_shrinkage.py`
    measures who loses effects, and who warns.
    """
    mean, sd = slopes.mean[slopes.places], np.sqrt(np.diag(slopes.cov))[slopes.places]
    taken, largest = TAKEN_SDS * float(np.median(sd)), float(np.abs(mean).max())
    is_clear = float((np.abs(mean) / sd).max()) > -ndtri(CLEAR / 2 / len(mean))
    if taken < TAKEN and not (is_clear and largest < KEPT * taken):
        return ()
    prior = "horseshoe" if settings.shrinkage == HORSESHOE else "prior of groups"
    return (
        f"the {prior} may take effects of up to about {taken:.1g} ({slopes.unit}, per unit of a standardised column) "
        "for noise, and their intervals may then fail; compare them with those of shrinkage=none, raise epsilon, or "
        "take more rows",
    )


def _spread(precision: Array) -> float:
    """Return v."""
    return 1 / sqrt(float(np.mean(np.diag(precision))))


def _scales(settings: Shrinkage, slopes: Slopes, precision: Array) -> Scales:
    group, d, slab = settings.places(slopes.features)[slopes.column], len(slopes.features), slopes.slab
    if settings.shrinkage == HORSESHOE:
        expected = min(SHARE * d if settings.prior_effects is None else settings.prior_effects, d / 2)
        return Scales(group, True, CAUCHY, expected / (d - expected) * _spread(precision), slab, slopes.column)
    known = slab[np.isfinite(slab)]
    return Scales(group, False, DEGREES, float(known.mean()) if known.size else 1.0, slab, slopes.column)


def _group_words(group: NDArray[np.int64]) -> str:
    count = int(group.max()) + 1
    return "one group" if count == 1 else f"{count} groups"


class _Refitter:
    """A refitter that also takes the settings of `Shrinkage`, and keeps those that it has."""

    def __init__(self, fit: Callable[..., Any], settings: Shrinkage | None = None) -> None:
        self._fit, self._settings = fit, settings or Shrinkage()
        own = [Parameter(name, Parameter.KEYWORD_ONLY) for name in SHRINKAGE]
        self.__signature__ = Signature([*signature(fit).parameters.values(), *own])

    def under(self, settings: Shrinkage) -> _Refitter:
        """Return the refitter of a fit under this prior. Args: settings: perhaps with further settings of a job."""
        return _Refitter(self._fit, Shrinkage(**{name: getattr(settings, name) for name in SHRINKAGE}))

    def __call__(self, **prior: Any) -> Any:
        own = {name: prior.pop(name) for name in SHRINKAGE if name in prior}
        same = own.get("shrinkage", self._settings.shrinkage) == self._settings.shrinkage
        settings = replace(self._settings, **own) if same else Shrinkage(**own)
        return settings.shrink(self._fit(**prior))


def shrinkable(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a regression's refitter that also takes the settings of `Shrinkage`."""
    return _Refitter(fit)
