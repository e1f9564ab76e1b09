"""The normal posterior of proportional hazards against NUTS of the same model, written down anew for NumPyro."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numpyro")
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpy.polynomial.hermite_e import hermegauss

from inference.mcmc import NoisySums, observe, sample
from inference.models.survival import hazards

TIMES = (0.5, 1.0)
EFFECT = 0.6


@pytest.mark.long
def test_the_normal_posterior_is_that_of_nuts() -> None:
    """2,000 rows, sigma / sensitivity 2: means within 0.2 posterior standard deviations, those within 15 %.

    The model integrates over the feature itself, by 40 nodes. Monte Carlo errors of means are below 0.04 of one.
    """
    statistic = hazards.statistic_of(("t", "d", "x"), TIMES, 1, np.zeros(1), np.ones(1))
    rng, n = np.random.default_rng(7), 2000
    x = rng.standard_normal(n)
    died, left = rng.exponential(1 / (0.8 * np.exp(EFFECT * x))), rng.uniform(0, 2.5, n)
    rows = np.column_stack([np.minimum(died, left), died <= left, x]).astype(float)
    sigma = 2 * statistic.row_sensitivity(24).l2 / 2**24
    value = statistic.evaluate(rows, 24).sum(axis=0) / 2**24 + sigma * rng.standard_normal(statistic.dimension)
    sums = NoisySums(value, np.full(value.size, sigma**2), n)
    law = hazards.Model(statistic)
    found = law.posterior(sums)
    assert found.reached
    covariance = law.covariance(found.theta)
    centre, precision = law.prior()
    nodes, weights = hermegauss(40)

    def model(data: NoisySums) -> None:
        theta = numpyro.sample("theta", dist.Normal(centre, precision**-0.5).to_event(1))
        hazard, censoring = jnp.exp(theta[:2]), jnp.exp(theta[2:4])
        feature = theta[5] + jnp.exp(theta[6]) * nodes
        rate = hazard * jnp.exp(theta[4] * feature)[:, None] + censoring
        gone = 1 - jnp.exp(-rate)
        reached = jnp.stack([jnp.ones_like(feature), jnp.exp(-rate[:, 0])], axis=1)
        events = reached * gone * (rate - censoring) / rate
        cells = jnp.concatenate([events, reached * gone - events, jnp.exp(-rate.sum(axis=1))[:, None]], axis=1)
        share = cells * (weights / weights.sum())[:, None]
        first = (share * feature[:, None]).sum(axis=0) @ statistic.factors
        square = statistic.square_weight * (share.sum(axis=1) * feature**2).sum()
        observe(data, jnp.concatenate([share.sum(axis=0) @ statistic.words, first, square[None]]), covariance)

    drawn = sample(model, sums, chains=2, draws=1000, warmup=1000, seed=1).draws["theta"].reshape(-1, centre.size)
    sd = np.sqrt(np.diag(found.cov))
    assert np.abs((drawn.mean(axis=0) - found.theta) / sd).max() < 0.2
    assert drawn.std(axis=0) == pytest.approx(sd, rel=0.15)
    effect = law.places["effect"]
    assert abs(found.theta[effect][0] - EFFECT) < 4 * sd[effect][0]
