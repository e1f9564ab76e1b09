"""Random effects from normal evidence: meta-analysis, and its extension to several coefficients of each site.

    β_j = μ + u_j,  u_j ~ N(0, diag τ²)        coefficients of site j; τ = 0 for those that all sites share
    h_j, Λ_j                                   evidence: ln p(data_j | β_j) = h_jᵀβ_j - ½ β_jᵀΛ_jβ_j + constant
    μ ~ N(0, diag m²),  τ_k ~ HalfNormal(t_k)

The estimate b_j of one number with the variance v_j is h_j = b_j/v_j and Λ_j = 1/v_j: this is the normal model of
meta-analysis. v_j is all of the estimate's variance, that of sampling and that of the privacy noise.

With T = diag τ, A_j = I + T Λ_j T and K_j = T A_j⁻¹ T, the site effects integrate out:

    ln p(data_j | μ, τ) = ½ h_jᵀK_jh_j - ½ ln|A_j| + (h_j - Λ_jK_jh_j)ᵀμ - ½ μᵀ(Λ_j - Λ_jK_jΛ_j)μ

So μ given τ is normal, and τ has a density on a line or a plane, which a grid integrates (`posterior`). No chain is
needed, and τ = 0 is no special case. `restricted` maximises the same density under flat priors: REML. `fixed` is τ = 0.

Sources: DerSimonian and Laird, *Meta-analysis in clinical trials* (1986); Viechtbauer, *Bias and efficiency of
meta-analytic variance estimators* (2005); Röver, *Bayesian random-effects meta-analysis using the bayesmeta R package*
(2020); half-normal priors of τ: Röver et al., *On weakly informative prior distributions for the heterogeneity
parameter* (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import chdtrc

from inference.errors import DataError
from inference.problem import AnyArray, Array

POINTS = {1: 120, 2: 36}  # of the grid along each τ, by the number of them
FARTHEST, NEGLIGIBLE = 6.0, 1e-9  # the grid's end, in prior scales; densities left out, relative to the largest
STARTS = (0.0, 0.1, 1.0)  # of the search for a mode, in standard deviations of the sites' estimates
SPREADS = 2.0 ** np.arange(-6, 2)  # of a coefficient, standardised, that may differ between sites
MEAN, BETWEEN, EFFECT = "mean", "between_sd", "site_effect"
"""The parameters: μ, shape ``(p,)``; the τ that are not 0, ``(q,)``; and β_j, ``(J, p)``."""


class Evidence(NamedTuple):
    """What the sites' data say of their coefficients: h of shape ``(J, p)`` and Λ of shape ``(J, p, p)``."""

    h: Array
    precision: Array

    @classmethod
    def of(cls, estimates: ArrayLike, variances: ArrayLike) -> Evidence:
        """Return the evidence of one estimate for each site, with all of its variance.

        Raises:
            DataError: there is no estimate, their number differs from that of the variances, a number is not finite, or
                a variance is not above 0.
        """
        b, v = np.asarray(estimates, float), np.asarray(variances, float)
        if b.ndim != 1 or b.shape != v.shape or not b.size:
            raise DataError(f"estimates have the shape {b.shape}, variances {v.shape}; give one of each for each site")
        if not np.isfinite(b).all() or not np.isfinite(v).all() or not (v > 0).all():
            raise DataError("an estimate is not finite, or a variance is not a finite number above 0")
        return cls((b / v)[:, None], (1 / v)[:, None, None])


class Average(NamedTuple):
    """How far the features' means over all rows lie from their centres, standardised: a normal law, each ``(d,)``."""

    mean: Array
    variance: Array

    @classmethod
    def certain(cls, features: int) -> Average:
        """Return the law of means that are the centres."""
        return cls(np.zeros(features), np.zeros(features))

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw from it, ``(*shape, d)``."""
        return np.asarray(self.mean + np.sqrt(self.variance) * rng.standard_normal((*shape, self.mean.size)))


class Given(NamedTuple):
    """Laws given τ, for each of G values of it.

    Attributes:
        log_density: of τ up to a constant, shape ``(G,)``. mean, cov: of μ, ``(G, p)`` and ``(G, p, p)``.
    """

    log_density: Array
    mean: Array
    cov: Array


class Point(NamedTuple):
    """An estimate of μ with its covariance, shapes ``(p,)`` and ``(p, p)``, at one value of τ, ``(p,)``."""

    mean: Array
    cov: Array
    tau: Array


class Heterogeneity(NamedTuple):
    """Cochran's Q with its degrees of freedom and p, and I², the share of variance that is between sites."""

    q: float
    degrees: int
    p_value: float
    share: float


def given(evidence: Evidence, tau: Array, mean_sd: ArrayLike) -> Given:
    """Return the laws given each τ of an array ``(G, p)``. Args: mean_sd: of μ's prior, ``(p,)``; infinite if flat."""
    h, precision = evidence
    kept = np.eye(h.shape[1]) + tau[:, None, :, None] * precision * tau[:, None, None, :]
    K = tau[:, None, :, None] * np.linalg.solve(kept, np.eye(h.shape[1]) * tau[:, None, None, :])
    Kh = (K @ h[..., None])[..., 0]
    total = np.diag(np.broadcast_to(mean_sd, h.shape[1]) ** -2.0) + (precision - precision @ K @ precision).sum(axis=1)
    shift = (h - (precision @ Kh[..., None])[..., 0]).sum(axis=1)
    cov = np.linalg.inv(total)
    mean = (cov @ shift[..., None])[..., 0]
    of_sites = (h * Kh).sum(axis=(1, 2)) - np.linalg.slogdet(kept)[1].sum(axis=1)
    return Given((of_sites - np.linalg.slogdet(total)[1] + (shift * mean).sum(axis=1)) / 2, mean, cov)


def fixed(evidence: Evidence) -> Point:
    """Return the estimate with weights of inverse variance, which assumes that all sites share all coefficients."""
    return _at(evidence, np.zeros(evidence.h.shape[1]))


def restricted(evidence: Evidence, varies: Sequence[bool] | Array = (True,)) -> Point:
    """Return the estimates by restricted maximum likelihood (REML).

    Args:
        varies: which coefficients differ between sites, ``(p,)``.
    """
    places = np.flatnonzero(varies)
    sizes = np.maximum(np.std(_own(evidence)[:, places], axis=0), np.finfo(float).tiny)

    def tau_of(t: Array) -> Array:
        tau = np.zeros(evidence.h.shape[1])
        tau[places] = sizes * t
        return tau

    def loss(t: Array) -> float:
        return -float(given(evidence, tau_of(t)[None], np.inf).log_density[0])

    found = [minimize(loss, np.full(places.size, start), bounds=[(0, None)] * places.size) for start in STARTS]
    return _at(evidence, tau_of(min(found, key=lambda one: one.fun).x))


def _at(evidence: Evidence, tau: Array) -> Point:
    one = given(evidence, tau[None], np.inf)
    return Point(one.mean[0], one.cov[0], tau)


def _own(evidence: Evidence) -> Array:
    """Return each site's estimate from its own data alone, ``(J, p)``; some number where there are none."""
    return np.stack([np.linalg.lstsq(one, h, rcond=None)[0] for h, one in zip(*evidence, strict=True)])


def heterogeneity(estimates: ArrayLike, variances: ArrayLike) -> Heterogeneity:
    """Test whether estimates with known variances differ by more than these explain. Raises `DataError` as `of`."""
    evidence = Evidence.of(estimates, variances)
    mean = fixed(evidence).mean[0]
    q = float(((np.asarray(estimates) - mean) ** 2 / np.asarray(variances)).sum())
    degrees = len(evidence.h) - 1
    return Heterogeneity(
        q, degrees, float(chdtrc(degrees, q)) if degrees else 1.0, max(0.0, 1 - degrees / q) if q else 0.0
    )


class Typical(NamedTuple):
    """Laws at the mean of τ: mean and covariance of μ and of each site's β_j."""

    tau: Array
    mean: Array
    cov: Array
    effect: Array
    effect_cov: Array


class Posterior(NamedTuple):
    """The posterior of μ, τ and the β_j: laws given each τ of a grid, and the grid's weights.

    Attributes:
        tau: shape ``(G, p)``. step: the width of a grid's cell, ``(p,)``; 0 for coefficients that all sites share.
        weights: of the grid's points, ``(G,)``.
    """

    evidence: Evidence
    tau: Array
    step: Array
    weights: Array
    mean_sd: Array

    def typical(self) -> Typical:
        """Return the laws at the mean of τ."""
        tau = self.weights @ self.tau
        one = given(self.evidence, tau[None], self.mean_sd)
        mean, cov, (h, precision) = one.mean[0], one.cov[0], self.evidence
        T = np.diag(tau)
        own = T @ np.linalg.solve(np.eye(len(tau)) + T @ precision @ T, T)  # of u_j given μ
        moved = np.eye(len(tau)) - own @ precision
        effect = mean + (own @ (h - precision @ mean)[..., None])[..., 0]
        return Typical(tau, mean, cov, effect, own + moved @ cov @ np.swapaxes(moved, 1, 2))

    def sample(self, rng: np.random.Generator, chains: int, draws: int) -> dict[str, Array]:
        """Draw μ, τ and the β_j independently: ``(chains, draws, ...)``."""
        count = chains * draws
        places = rng.choice(len(self.tau), size=count, p=self.weights)
        tau = np.abs(self.tau[places] + self.step * rng.uniform(-0.5, 0.5, (count, len(self.step))))
        laws = given(self.evidence, tau, self.mean_sd)
        p = len(self.step)
        mean = laws.mean + (np.linalg.cholesky(laws.cov) @ rng.standard_normal((count, p, 1)))[..., 0]
        h, precision = self.evidence
        root = np.linalg.cholesky(np.eye(p) + tau[:, None, :, None] * precision * tau[:, None, None, :])
        pull = tau[:, None, :] * (h - (precision @ mean[:, None, :, None])[..., 0])
        half = np.linalg.solve(root, pull[..., None]) + rng.standard_normal((count, len(h), p, 1))
        white = np.linalg.solve(np.swapaxes(root, -1, -2), half)[..., 0]
        effects = mean[:, None] + tau[:, None, :] * white
        found = {MEAN: mean, BETWEEN: tau[:, self.step > 0], EFFECT: effects}
        return {name: array.reshape(chains, draws, *array.shape[1:]) for name, array in found.items()}


def posterior(evidence: Evidence, mean_sd: ArrayLike, tau_sd: ArrayLike) -> Posterior:
    """Return the posterior, by a grid of τ that is narrowed to where the density is.

    Args:
        mean_sd: m, of the prior of μ, broadcastable to ``(p,)``. tau_sd: t, scales of the half-normal priors of τ,
            ``(p,)``; 0 for a coefficient that all sites share.

    Raises:
        DataError: more than two coefficients differ between sites.
    """
    p = evidence.h.shape[1]
    scales, mean_sd = np.broadcast_to(tau_sd, p).astype(float), np.broadcast_to(mean_sd, p).astype(float)
    places = np.flatnonzero(scales)
    if places.size > max(POINTS):
        raise DataError(
            f"{places.size} coefficients differ between sites, and a grid takes {max(POINTS)}; take method=nuts"
        )
    points = POINTS.get(places.size, 1)
    axes = [scale * FARTHEST * np.linspace(0, 1, points) ** 3 for scale in scales[places]]
    for _ in range(3):
        widths = [np.gradient(axis) for axis in axes]
        tau, log_density = _on_grid(evidence, axes, places, mean_sd, scales)
        weights = np.exp(log_density - log_density.max())
        seen = [np.flatnonzero(weights.max(axis=tuple(set(range(places.size)) - {k})) > NEGLIGIBLE)
                for k in range(places.size)]  # fmt: skip
        axes = [_cells(axis, width, at, points) for axis, width, at in zip(axes, widths, seen, strict=True)]
    tau, log_density = _on_grid(evidence, axes, places, mean_sd, scales)
    weights = np.exp(log_density - log_density.max()).ravel()
    step = np.zeros(p)
    step[places] = [axis[1] - axis[0] for axis in axes]
    return Posterior(evidence, tau.reshape(-1, p), step, weights / weights.sum(), mean_sd)


def differing(evidence: Evidence, tau: Array, mean_sd: Array) -> Array:
    """Return how much likelier the evidence is if a coefficient also differs between sites, as ln ratios ``(p,)``.

    Each is at the most likely spread of a few, all else as in τ of shape ``(p,)``; 0 for those that differ in it.
    """
    found, before = np.zeros(tau.size), float(given(evidence, tau[None], mean_sd).log_density[0])
    for place in np.flatnonzero(tau == 0):
        tried = np.tile(tau, (len(SPREADS), 1))
        tried[:, place] = SPREADS
        found[place] = max(0.0, float(given(evidence, tried, mean_sd).log_density.max()) - before)
    return found


def _cells(axis: Array, width: Array, seen: AnyArray, points: int) -> Array:
    """Return the middles of equal cells that cover the part of the axis that was seen."""
    low = max(float(axis[seen[0]] - width[seen[0]]), 0.0)
    high = float(axis[seen[-1]] + width[seen[-1]])
    return low + (high - low) * (np.arange(points) + 0.5) / points


def _on_grid(
    evidence: Evidence, axes: list[Array], places: AnyArray, mean_sd: Array, scales: Array
) -> tuple[Array, Array]:
    """Return τ at all points, shape ``(..., p)``, and the log density there, ``(...)``."""
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1) if axes else np.zeros((1, 0))
    tau = np.zeros((*mesh.shape[:-1], len(scales)))
    tau[..., places] = mesh
    flat = tau.reshape(-1, len(scales))
    log_density = given(evidence, flat, mean_sd).log_density - ((mesh / scales[places]) ** 2).sum(axis=-1).ravel() / 2
    return tau, log_density.reshape(tau.shape[:-1])
