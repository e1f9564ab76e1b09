"""Regression in the columns' own units from the releases of data nodes: by NUTS, or in closed form.

    method    model of the features                     sampled                          needs
    normal    normal; with a constant, of any mean      S_j, θ, σ_y², Σ_x, mean, m_j     the extra `samplers`
    fast      none; S_j and σ_y² plugged in             nothing (closed form)            NumPy alone

`fast` is Algorithm 3 of the paper. It treats the noisy S_j as exact, so its intervals are too narrow.

**Small nodes.** A Wishart S_j has a density only if there are at least as many rows as features. Method `normal` leaves
out nodes with too few rows (`rows_least`), and the result warns of it. A node's number of rows is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, Unpack

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.statistics.counting import about_missing
from inference.draws import attributes
from inference.errors import DataError, unknown
from inference.jobs.estimates import BY_BOUNDS
from inference.mcmc.run import PRIOR_DRAWS, Options, Run, Sampled, numpyro_module
from inference.mcmc.sums import Aggregates, as_list
from inference.models.coefficients import Coefficients
from inference.models.glm.regression import moments_of, regression_of_draws
from inference.models.linear.aggregate_stats import coefficients_of
from inference.models.linear.nodes import fixed_s_fast
from inference.models.linear.nodes.observed import (
    AVERAGED,
    AVERAGED_GROUP,
    PRIOR_ROWS,
    NodeStatistics,
    Prior,
    check_observed,
    check_prior,
    listed_nodes,
    nodes_of,
    prior_of,
    regressions,
)
from inference.models.linear.rows import MISSING
from inference.models.predictive import ALPHA, FEATURE_MEAN, FEATURE_SD, RESIDUAL_SD, ROOT, THETA
from inference.posterior import Posterior
from inference.problem import Array, Schema

NORMAL, FAST = NAMES = ("normal", "fast")
ABOUT = {NORMAL: "normal features (B.2), by NUTS", FAST: "Bayes-fixedS-fast (Algorithm 3), in closed form"}
SIGMA_Y2 = (1.0 / 3) ** 2  # a third of the target's half-width, squared
KEPT = ("theta", "sigma_y2", "Sigma_x", "mu_x")
MISSING_START = 0.05
TARGET = 0.8  # acceptance rate; at 0.95 the same number of draws takes 2.5 times as long


def fit(
    aggregates: Aggregates,
    prior: Prior | None = None,
    *,
    schema: Schema | None = None,
    **run: Unpack[Run],
) -> Posterior:
    """Fit a regression by method `normal` to releases of data nodes, or to a secure sum, which counts as one node.

    Args:
        aggregates: of one or several rounds, of the statistic "regression" or "averaged-regression".
        prior: by default `prior_of` the nodes. schema: of the job, if a job asked.
        run: chains, warmup, draws and more (`mcmc.run.Options`).

    Raises:
        DataError: as for `nodes_of`; the prior does not match; all nodes have too few rows; there is no noise; the
            chains have not mixed; or a package is missing.
    """
    options = Options(**run)
    nodes, notes = listed_nodes(aggregates), tuple[str, ...]()
    observed = nodes_of(nodes)
    least = rows_least(NORMAL, observed.features)
    if not (is_enough := observed.n >= least).all():
        k = nodes[0].parameters.get("group", AVERAGED_GROUP)
        unit = f"averages of {k} rows" if nodes[0].statistic == AVERAGED else "rows"
        needs = f"method {NORMAL!r} needs {least} of each"
        if not is_enough.any():
            who = f"the largest of {len(nodes)} data nodes has" if len(nodes) > 1 else "there are"
            raise DataError(f"{who} {observed.n.max():g} {unit}, and {needs}; take {FAST!r}, which needs 1")
        notes = (
            f"{np.sum(~is_enough)} of {len(nodes)} data nodes are left out: the smallest has {observed.n.min():g} "
            f"{unit}, and {needs}; {FAST!r} learns from all that have any",
        )
        nodes = [node for node, enough in zip(nodes, is_enough, strict=True) if enough]
        observed = nodes_of(nodes)
    notes += about_rows(observed)
    prior = prior or prior_of(nodes)
    sampled = sample(observed, prior, options)
    constant = float(observed.constant)
    warmup = _by_site(sampled.warmup, constant) if sampled.warmup else {}
    by_site = Sampled(_by_site(sampled.draws, constant), warmup, sampled.sampling)
    linear = coefficients_of(regressions(nodes), moments_of(by_site.draws, constant), schema)
    attrs = {"method": NORMAL, "nodes": observed.nodes, **attributes(*as_list(aggregates))}
    return options.checked(
        regression_of_draws(by_site, linear, _prior_draws(prior, constant, options.rng), attrs, notes)
    )


def _prior_draws(prior: Prior, constant: float, rng: np.random.Generator) -> dict[str, Array]:
    """Draw the sites that all regressions have from the prior, shape ``(draws, ...)``."""
    from scipy.stats import invwishart  # slow to import

    first, count = int(constant > 0), PRIOR_DRAWS
    features = len(prior.m) - first
    Sigma = invwishart.rvs(float(prior.kappa), prior.Lambda[first:, first:], size=count, random_state=rng)
    Sigma = np.reshape(Sigma, (1, count, features, features))
    normals = rng.standard_normal((1, count, features, 1))
    drawn = {
        "theta": rng.multivariate_normal(prior.m, prior.C, size=(1, count)),
        "sigma_y2": prior.b / rng.gamma(prior.a, size=(1, count)),
        "Sigma_x": Sigma,
        "mu_x": (np.linalg.cholesky(Sigma) @ normals)[..., 0] / np.sqrt(PRIOR_ROWS),
    }
    return {name: array[0] for name, array in _by_site(drawn, constant).items()}


def sample(
    observed: NodeStatistics,
    prior: Prior,
    options: Options,
    *,
    prior_rows: float = PRIOR_ROWS,
    missing: float = MISSING,
) -> Sampled:
    """Draw ``theta``, ``sigma_y2``, ``Sigma_x`` and, with a constant, ``mu_x``, in the statistics' units.

    Args:
        prior_rows, missing: of the model (`model.NodeRegression`); used only if there is a constant.
    """
    observed = check_observed(observed)
    check_prior(prior, observed.features)
    if not (np.all(observed.variance_S > 0) and np.all(observed.variance_z > 0)):
        raise DataError(f"a variance of noise is 0, and method {NORMAL!r} models noise; take {FAST!r}")
    model = numpyro_module("inference.models.linear.nodes.model")
    data = {"observed": observed, "prior": prior, "frame": model.frame(observed, prior)}
    has_constant = bool(observed.constant > 0)
    start = {"missing": np.full(observed.nodes, MISSING_START)} if has_constant else None
    return options.sample(
        model.NodeRegression(has_constant, prior_rows, missing), data, start, dense=False, target=TARGET, keep=KEPT
    )


def fit_fast(aggregates: NoisyAggregate, schema: Schema, prior: Prior | None = None) -> Coefficients:
    """Fit a regression by method `fast`, to nodes of any size."""
    nodes = listed_nodes(aggregates)
    observed = nodes_of(nodes)
    fitted = fixed_s_fast.posterior(observed, prior or prior_of(nodes), SIGMA_Y2)
    own: dict[str, Any] = {"method": ABOUT[FAST], "by": BY_BOUNDS, "warnings": about_rows(observed)}
    return coefficients_of(regressions(nodes), fitted, schema, **own)


def about_rows(observed: NodeStatistics) -> tuple[str, ...]:
    """Warn if rows lack a value, as the sums of a constant's squares count the others."""
    square = float(observed.constant) ** 2
    if not square:
        return ()
    rows, sd = float(observed.S[:, 0, 0].sum()) / square, sqrt(float(observed.variance_S.sum())) / square
    return about_missing(rows, sd, round(float(observed.n.sum())), of="rows")


def rows_least(method: str, features: int) -> int:
    """Return the number of rows that each node needs. Raises `DataError` for an unknown method.

    Args:
        features: D, a constant included.
    """
    if method not in NAMES:
        raise unknown("method", method, None, NAMES)
    return features + 1 if method == NORMAL else 1


def _by_site(drawn: Mapping[str, Array], constant: float) -> dict[str, Array]:
    """Convert draws to the site names that all regressions share (`models.predictive`)."""
    theta, Sigma = drawn["theta"], drawn["Sigma_x"]
    sd = np.sqrt(np.diagonal(Sigma, axis1=-2, axis2=-1))
    root = np.linalg.cholesky(Sigma) / sd[..., None]
    sites = {THETA: theta, FEATURE_SD: sd, ROOT: root, RESIDUAL_SD: np.sqrt(drawn["sigma_y2"])}
    if not constant:
        return sites
    return {**sites, THETA: theta[..., 1:], ALPHA: constant * theta[..., 0], FEATURE_MEAN: drawn["mu_x"]}
