"""The node model as a textbook writes it: every quantity a NumPyro site in its own coordinates, nothing integrated out.

It is the oracle of `inference.models.linear.nodes.model`, which has the same posterior in better coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def textbook(data: Mapping[str, Any]) -> None:
    """Centred features. Data: ``observed`` and ``prior``."""
    observed, prior = data["observed"], data["prior"]
    d = observed.z.shape[1]
    theta = numpyro.sample("theta", dist.MultivariateNormal(prior.m, prior.C))
    sigma_y2 = numpyro.sample("sigma_y2", dist.InverseGamma(prior.a, prior.b))
    precision = numpyro.sample("precision", dist.Wishart(prior.kappa, rate_matrix=prior.Lambda))
    Sigma = numpyro.deterministic("Sigma_x", jnp.linalg.inv(precision))
    L = numpyro.sample("L", dist.WishartCholesky(observed.n, scale_tril=jnp.linalg.cholesky(Sigma)))
    S = numpyro.deterministic("S", L @ jnp.swapaxes(L, -1, -2))
    i, j = jnp.triu_indices(d)
    sd = jnp.sqrt(observed.variance_S)[:, None]
    numpyro.sample("noisy S", dist.Normal(S[:, i, j], sd).to_event(2), obs=observed.S[:, i, j])
    V = sigma_y2 * S + observed.variance_z[:, None, None] * jnp.eye(d)
    numpyro.sample("noisy z", dist.MultivariateNormal(S @ theta, V).to_event(1), obs=observed.z)
