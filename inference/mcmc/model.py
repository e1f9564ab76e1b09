"""NumPyro models of noisy sums: `observe` states the distribution of a sum, `sample` samples the posterior.

A model is a function of one argument, the data: `NoisySums`, or any JAX pytree that holds some. It draws parameters
from their priors and calls `observe`, once for each of the sums:

    def heights(sums):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        sd = numpyro.sample("sd", dist.HalfNormal(1))
        observe(sums, mean[None], sd[None] ** 2)

**The distribution** follows from the central limit theorem. With μ_t and C_t the mean and covariance of one
contribution's statistics given the parameters, Σ_i t(x_i) tends to N(n μ_t, n C_t), and the noise adds its variance:

    value | parameters  ~  N(n μ_t, n C_t + diag(noise_variance))

Clients clip rows to bounds and replace missing values by zeros. This is part of t. A model that leaves it out is biased
if it affects many rows.

**Cholesky.** The covariance is positive definite if C_t is, or if there is noise. A factor's relative error depends on
the correlations alone (Demmel 1989), so coordinates may have any scales. At noise 0 and with correlations of smallest
eigenvalue λ, ln p is off by about 1e-16/λ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from inference.contraction import about_contraction
from inference.mcmc.nuts import prior_draws
from inference.mcmc.run import PRIOR_DRAWS, Options, Run
from inference.mcmc.sums import NoisySums
from inference.posterior import Posterior
from inference.problem import AnyArray as Array

LowRank = tuple[Array, Array]
"""D of shape ``(D,)`` and F of shape ``(D, k)``: a covariance diag(D) + F Fᵀ."""

jax.tree_util.register_pytree_node(NoisySums, NoisySums.flatten, NoisySums.unflatten)


def observe(
    sums: NoisySums, mean: Array, covariance: Array | LowRank, *, n: Array | None = None, name: str = "sums"
) -> Array:
    """State in a model that these sums were released.

    Args:
        sums: the model's data, or a part of it.
        mean: μ_t, of one contribution's statistics, shape ``(D,)``. covariance: C_t of shape ``(D, D)``; or ``(D,)``,
            its diagonal, if they are uncorrelated; or `LowRank`, for many coordinates. A coordinate that is public and
            without noise has no density: leave it out (``sums[places]``).
        n: number of contributions, which multiplies mean and covariance: ``sums.n`` by default, or 1 if they are
            already those of the sum.
        name: of the site, different for each call.

    Returns:
        The noisy sum; if ``sums.value`` is None, one drawn from its distribution (a posterior predictive).
    """
    return numpyro.sample(name, law(sums, mean, covariance, n), obs=sums.value)


def law(sums: NoisySums, mean: Array, covariance: Array | LowRank, n: Array | None = None) -> Any:
    """Return the distribution of a noisy sum, derived at the head of this file; see `observe` for the arguments."""
    count, noise = jnp.asarray(sums.n if n is None else n), jnp.asarray(sums.noise_variance)
    expected = count * jnp.asarray(mean)
    if isinstance(covariance, tuple):
        diagonal, factor = covariance
        return dist.LowRankMultivariateNormal(expected, jnp.sqrt(count) * factor, count * diagonal + noise)
    if jnp.ndim(covariance) == 1:
        return dist.Normal(expected, jnp.sqrt(count * covariance + noise)).to_event(1)
    root = jnp.linalg.cholesky(count * covariance + jnp.diag(noise), symmetrize_input=False)
    return dist.MultivariateNormal(expected, scale_tril=root)


def sample(
    model: Callable[[Any], None],
    data: Any,
    *,
    start: Mapping[str, Any] | None = None,
    axes: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[str]] | None = None,
    **run: Unpack[Run],
) -> Posterior:
    """Sample the posterior of a model given noisy sums, by NumPyro's no-U-turn sampler.

    Args:
        model: a NumPyro model of one argument. It is compiled once for all data of one shape, as long as it is the same
            function. Its ``numpyro.deterministic`` sites are among the draws.
        data: `NoisySums`, or a pytree with some, such as ``{"sums": sums, "prior_sd": 2.0}``.
        start: plausible values of sites; the chains start near them. The default is 0 (1 for positive sites).
        axes: names of each parameter's axes, such as ``{"theta": ("feature",)}``. coords: labels along each of them.
        run: chains, warmup, draws, seed and more (`run.Options`).

    Returns:
        Draws with diagnostics: `warnings` names chains that have not mixed, and parameters (their best learned number)
        that were hardly learned.

    Raises:
        DataError: no start with a finite density was found, the chains have not mixed (R̂ ≥ 1.1), or a package of the
            extra `samplers` is missing.
    """
    options = Options(**run)
    sampled = options.sample(model, data, start)
    before = prior_draws(model, data, PRIOR_DRAWS, options.seed)
    aggregate = [leaf for leaf in jax.tree.leaves(data, is_leaf=_is_sums) if _is_sums(leaf)]
    posterior = Posterior(
        getattr(model, "__name__", type(model).__name__),
        sampled.draws,
        sampled.sampling,
        prior={name: array for name, array in before.items() if name in sampled.draws},
        axes={name: tuple(given) for name, given in (axes or {}).items()},
        coords={name: tuple(given) for name, given in (coords or {}).items()},
        warmup=sampled.warmup,
        attrs=aggregate[0].attrs if aggregate else {},
    )
    learned = {name: float(np.nanmax(array)) for name, array in posterior.contraction.items()}
    return options.checked(replace(posterior, notes=tuple(about_contraction(list(learned), list(learned.values())))))


def _is_sums(leaf: Any) -> bool:
    return isinstance(leaf, NoisySums)
