"""What the data nodes' releases of a linear regression say of each site's coefficients.

    S, z, u      Σ xxᵀ, Σ xy, Σ y² of a site's m complete rows; x has a constant c first
    S̃, z̃, ũ      as released, with normal noise of known variance
    β, σ²        the site's coefficients, and the variance of residuals, which all sites share

Given the true S, z̃ = Sβ + Xᵀε + e_z. S is not known; a normal law stands for it, S ~ N(S̄, W) term by term (`known`).
With E = S - S̄ the release is that of β if

    r = z̃ - S̄β          = Eβ + Xᵀε + e_z                        mean 0
    q = ũ - 2βᵀz̃ + βᵀS̄β = -βᵀEβ + εᵀε + e_u - 2βᵀe_z            mean m̄σ²

are what noise, sampling and E explain. With V = Cov(Eβ) the covariance of (r, q) is

    Cov r = σ²S̄ + σ_z² I + V      Cov(r, q) = -Vβ - 2σ_z²β      Var q = 2m̄σ⁴ + σ_u² + 4σ_z²|β|² + βᵀVβ + σ⁴Var m

and (z̃, ũ) -> (r, q) has determinant 1, so their normal density at β and σ² is the likelihood of the release.

**The law of S.** Sites' rows are alike: S/n of one site is that of all sites, M, up to differences between sites. So
each term is drawn to n M as far as noise hides the difference. The differences' standard deviation is estimated from
all sites, term by term, beside a guess of `ALIKE` of the columns' spreads with the weight of `GUESSES` sites. A site
whose release is nearly all noise then has the S of the others, and its z̃ says little: its coefficients are those of the
population. `linear.rows.counted` has the law of the number of complete rows, from the square of the constant.

`fitted` takes V and σ² at an estimate, from which they are computed again; then r is normal in β, which is the evidence
of `sites.evidence`. σ² is estimated from E q(β) given the estimate.

**Coordinates.** S, z and u are in units of a third of each column's half-width, and the constant is 1. Coefficients b
are those of centred features: β = B b with the features' mean over all sites in B. So the intercept is the site's level
at average features, and site effects of intercept and slopes are independent there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from inference.columns import PRIOR_BOUND_SDS, PRIOR_MEAN_SD, Standardisation
from inference.models.linear.aggregate_stats import constant_of, parameters_of, require_plain_rows, unpacked
from inference.models.linear.closed_form import NEAREST_PSD, repaired
from inference.models.linear.rows import estimate
from inference.models.sites.evidence import Average, Evidence, Posterior, posterior
from inference.problem import Array

ALIKE, GUESSES = 0.3, 2.0  # sd of a site's S/n about that of all, in products of columns' spreads; its weight in sites
PASSES = 6  # of plugging estimates into the noise
VARIANCE, VARIANCE_SD, LEAST = 0.5, 0.5, 0.01  # prior of σ² for its estimate, and its smallest value, standardised


class Released(NamedTuple):
    """The releases of J sites, standardised, and the law of each S; float64, a JAX pytree.

    Attributes:
        S: S̄, positive semi-definite, shape ``(J, p, p)``. spread: W, ``(J, p, p)``, variances of its terms.
        z: ``(J, p)``. u: ``(J,)``. variance_z, variance_u: of their noise, ``(J, p)`` and ``(J,)``.
        rows, rows_variance: the number of complete rows, ``(J,)``, and its variance.
        frame: B, ``(p, p)``. average: at the means of B, whose noise is nearly that of S.
    """

    S: Array
    spread: Array
    z: Array
    u: Array
    variance_z: Array
    variance_u: Array
    rows: Array
    rows_variance: Array
    frame: Array
    average: Average


def released_by(nodes: list[NoisyAggregate]) -> Released:
    """Return the standardised releases of the statistic "regression", with a constant and y².

    Raises:
        DataError: rows were scaled as a whole.
    """
    parameters = parameters_of(nodes[0])
    require_plain_rows(parameters, "a model of sites")
    c, parts = constant_of(parameters), [unpacked(node) for node in nodes]
    sd = PRIOR_MEAN_SD * Standardisation.of(parameters).bound
    unit, target = np.r_[c, sd[:-1]], float(sd[-1])
    products = np.outer(unit, unit)
    S = np.array([part.xx for part in parts]) / products
    noise = np.array([float(np.asarray(part.noise.xx)) for part in parts])[:, None, None] / products**2
    n = np.array([float(part.n) for part in parts])
    rows, rows_variance = estimate(S[:, 0, 0], noise[:, 0, 0], n)
    likely, spread = known(S, n, noise)
    likely[:, 0, 0], spread[:, 0, 0] = rows, rows_variance
    frame = np.eye(len(unit))
    centre = S[:, 0, 1:].sum(axis=0) / max(float(rows.sum()), 1.0)
    frame[0, 1:] = -np.clip(centre, -PRIOR_BOUND_SDS, PRIOR_BOUND_SDS)
    of_z, of_u = (np.array([float(np.asarray(getattr(part.noise, name))) for part in parts]) for name in ("xy", "yy"))
    return Released(
        repaired(likely, NEAREST_PSD),
        spread,
        np.array([part.xy for part in parts]) / (unit * target),
        np.array([float(np.asarray(part.yy)) for part in parts]) / target**2,
        of_z[:, None] / (unit * target) ** 2,
        of_u / target**4,
        rows,
        rows_variance,
        frame,
        Average.certain(len(unit) - 1),
    )


def known(S: Array, n: Array, noise: Array) -> tuple[Array, Array]:
    """Return means and variances of the true S given all releases, each ``(J, p, p)``.

    Args:
        S: as released, standardised with the constant 1. noise: variance of its terms, ``(J, p, p)``.
    """
    counts, mean = n[:, None, None], S.sum(axis=0) / n.sum()
    of_mean = noise.sum(axis=0) / n.sum() ** 2
    size = np.sqrt(np.clip(np.diagonal(mean), 0.0, PRIOR_BOUND_SDS**2))
    guess = (ALIKE * np.outer(size, size)) ** 2
    weight = counts / n.sum()
    seen = len(S) * (weight * ((S / counts - mean) ** 2 - noise / counts**2)).sum(axis=0)
    between = np.maximum(GUESSES * guess + seen, 0.0) / (GUESSES + len(S) - 1)
    between = np.maximum(between, 0.1 * guess)
    gain = counts**2 * between / (counts**2 * between + noise)
    return counts * mean + gain * (S - counts * mean), gain * noise + (1 - gain) ** 2 * counts**2 * of_mean


def evidence_of(released: Released, second: Array, variance: float) -> Evidence:
    """Return what r says of b.

    Args:
        second: E[β βᵀ], for the noise that coefficients multiply, ``(p, p)``. variance: σ², standardised.
    """
    places = np.arange(len(second))
    V = released.spread * second
    V[:, places, places] = released.spread @ np.diagonal(second)
    cov = variance * released.S + V + released.variance_z[:, None] * np.eye(len(second))
    X = released.S @ released.frame
    weighted = np.swapaxes(np.linalg.solve(cov, X), 1, 2)
    return Evidence((weighted @ released.z[..., None])[..., 0], weighted @ X)


def variance_of(released: Released, mean: Array, cov: Array, variance: float) -> float:
    """Return the estimate of σ², from what targets' squares leave over.

    Args:
        mean, cov: of each site's b, ``(J, p)`` and ``(J, p, p)``. variance: σ² so far.
    """
    beta = mean @ released.frame.T
    uncertain = released.frame @ cov @ released.frame.T
    left = released.u - 2 * (beta * released.z).sum(-1) + np.einsum("ji,jik,jk->j", beta, released.S, beta)
    left += np.einsum("jik,jik->j", released.S, uncertain)
    noise = released.variance_u + 4 * (released.variance_z * beta**2).sum(axis=1)
    weight = released.rows / (2 * released.rows * variance**2 + noise + variance**2 * released.rows_variance)
    own = VARIANCE_SD**-2
    return max(float((weight @ left + own * VARIANCE) / (weight @ released.rows + own)), LEAST)


class Fitted(NamedTuple):
    """The posterior of the coefficients, given σ² and the noise at an estimate of them."""

    posterior: Posterior
    variance: float


def fitted(released: Released, mean_sd: Array, tau_sd: Array) -> Fitted:
    """Return the posterior on a grid. For the arguments and errors see `sites.evidence.posterior`."""
    p, variance = len(released.frame), VARIANCE
    second = np.zeros((p, p))
    for _ in range(PASSES):
        found = posterior(evidence_of(released, second, variance), mean_sd, tau_sd)
        typical = found.typical()
        variance = variance_of(released, typical.effect, typical.effect_cov, variance)
        both = np.outer(typical.mean, typical.mean) + typical.cov + np.diag(typical.tau**2)
        second = released.frame @ both @ released.frame.T
    return Fitted(posterior(evidence_of(released, second, variance), mean_sd, tau_sd), variance)
