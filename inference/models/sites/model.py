"""The NumPyro model of sites: coefficients of each about their mean, not centred, and the law of the releases.

    μ = m ∘ x,  τ_k = t_k |x_k|,  β_j = μ + τ ∘ x_j        x standard normal; ln σ ~ N(ln ½, 1) for numbers
    releases of site j | β_j, σ²                            `linear`, `logistic`: the noise at β_j itself

Not centred (Papaspiliopoulos, Roberts and Sköld 2007): with few sites, or where noise hides a site, the data say little
of β_j. Its posterior is then a funnel in β_j and τ, but not in x_j.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from inference.models.sites.evidence import BETWEEN, EFFECT, MEAN
from inference.models.sites.linear import Released as Sums
from inference.models.sites.logistic import Released as Scores
from inference.models.sites.logistic import expected
from inference.problem import AnyArray as Array

LOG_SIGMA, LOG_SIGMA_SD = -0.7, 1.0
RESIDUAL = "residual_sd"


@dataclass(frozen=True)
class SitesModel:
    """Coefficients of sites. Data: ``released``, and ``mean_sd`` and ``tau_sd`` of `sites.evidence.posterior`.

    Attributes:
        logistic: whether targets are of two classes. varies: which coefficients differ between sites.
    """

    logistic: bool
    varies: tuple[bool, ...]

    def __call__(self, data: Mapping[str, Any]) -> None:
        released, places = data["released"], jnp.array([k for k, one in enumerate(self.varies) if one], int)
        J, p = (released.score if self.logistic else released.z).shape
        mean = data["mean_sd"] * numpyro.sample("x_mean", dist.Normal(0.0, 1.0).expand([p]))
        tau = data["tau_sd"][places] * numpyro.sample("x_tau", dist.HalfNormal(1.0).expand([places.size]))
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([J, places.size]))
        beta = jnp.broadcast_to(mean, (J, p)).at[:, places].add(tau * x)
        if self.logistic:
            value = of_scores(released, beta)
        else:
            log_sigma = numpyro.sample("log_sigma", dist.Normal(LOG_SIGMA, LOG_SIGMA_SD))
            value = of_sums(released, beta, jnp.exp(2 * log_sigma))
            numpyro.deterministic(RESIDUAL, jnp.exp(log_sigma))
        numpyro.factor("released", value.sum())
        for name, array in ((MEAN, mean), (BETWEEN, tau), (EFFECT, beta)):
            numpyro.deterministic(name, array)


def of_sums(released: Sums, b: Array, variance: Array) -> Array:
    """Return the log density of each site's sums at its b, ``(J, p)``, up to a constant, ``(J,)``."""
    beta, p = b @ released.frame.T, b.shape[1]
    eye = jnp.eye(p)
    own = (released.spread @ (beta**2)[..., None]) * eye
    V = released.spread * beta[:, :, None] * beta[:, None, :] * (1 - eye) + own
    Sb = (released.S @ beta[..., None])[..., 0]
    r = released.z - Sb
    q = released.u - 2 * (beta * released.z).sum(-1) + (beta * Sb).sum(-1) - released.rows * variance
    Vb, noise = (V @ beta[..., None])[..., 0], released.variance_z * beta
    cross = -Vb - 2 * noise
    last = 2 * released.rows * variance**2 + released.variance_u + 4 * (noise * beta).sum(-1)
    last = last + (beta * Vb).sum(-1) + variance**2 * released.rows_variance
    cov = variance * released.S + V + released.variance_z[:, None] * eye
    whole = jnp.block([[cov, cross[..., None]], [cross[:, None], last[:, None, None]]])
    return normal(jnp.concatenate([r, q[:, None]], axis=1), whole)


def of_scores(released: Scores, beta: Array) -> Array:
    """Return the log density of each site's score at its coefficients, ``(J, p)``, up to a constant, ``(J,)``.

    It is the density at `logistic.moments`.
    """
    x, w, n = released.x, released.weight, released.n[:, None]
    found = expected(released, beta, jax.nn.sigmoid)
    i, j = jnp.triu_indices(beta.shape[1])
    terms = n * ((found.odds * (1 - found.odds) * w**2) @ (x[:, i] * x[:, j])) / len(x)
    cov = jnp.zeros((*beta.shape, beta.shape[1])).at[:, i, j].set(terms).at[:, j, i].set(terms)
    return normal(found.left, cov + found.extra[..., None] * jnp.eye(beta.shape[1]))


def normal(left: Array, cov: Array) -> Array:
    """Return ln N(left; 0, cov) up to a constant, for vectors along the last axis."""
    size = jnp.sqrt(jnp.diagonal(cov, axis1=-2, axis2=-1))
    root = jnp.linalg.cholesky(cov / size[..., None] / size[..., None, :], symmetrize_input=False)
    white = jax.lax.linalg.triangular_solve(root, (left / size)[..., None], left_side=True, lower=True)[..., 0]
    logs = jnp.log(size).sum(-1) + jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)).sum(-1)
    return -(white**2).sum(-1) / 2 - logs
