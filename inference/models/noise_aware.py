"""The models in NumPyro: priors as sites, and the likelihood of the reports or sums as one factor.

    ClippedColumn     mean and sd, a rate or a probability, of one clipped column             `rectified`
    Histogram         shares on the simplex, of categories reported at random                 `categories`
    SummedRegression  θ, Σ and σ from noisy sums of xxᵀ, xy and y²                            `moments`
    RowRegression     the same from perturbed rows, or from perturbed features and labels     `perturbed`

A model's fields hold what is fixed before sampling, such as the family or the number of features. All numbers, the
prior's included, are arguments of the call. So `nuts` compiles a model once for all data sets of one shape. Sites are
in the units of the data.

**Σ** = diag(τ) Ω diag(τ), Ω = LLᵀ of LKJ's law, is sampled as τ and the Cholesky factor L.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform
from scipy.stats import norm

from inference.mcmc.model import observe
from inference.mcmc.sums import NoisySums
from inference.models.column import categories, presence, rectified
from inference.models.column.families import EXPONENTIAL, FAMILIES, GAUSSIAN, MISSING_SHARE
from inference.models.glm import moments, perturbed
from inference.models.linear.rows import MISSING, log_prior
from inference.models.predictive import ALPHA, FEATURE_MEAN, FEATURE_SD, RESIDUAL_SD, ROOT, THETA
from inference.models.priors import BETA, FAR_BELOW, FAR_DOWN, FAR_SD, GAMMA, MISSING_PRIOR, NORMAL, SPREAD
from inference.problem import AnyArray as Array
from inference.releases.reports import Categories, Rows, Scalars

Data: TypeAlias = Mapping[str, Any]
"""A model's data by name; "prior" holds the prior's numbers by field name."""


class _AnySize(constraints.Constraint):  # type: ignore[misc]  # NumPyro has no types
    """Numbers above 0, seen in a coordinate that makes very small ones neighbours (`_Shortened`)."""

    def __call__(self, x: Any) -> Any:
        return x > 0

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.ones_like(prototype)

    def tree_flatten(self) -> Any:
        return (), ((), {})


class _Shortened(Transform):  # type: ignore[misc]
    """x = exp(y), y = 3v - 2√(v² + 1): y falls like v from x = 1 on, and five times as fast far below.

    If noise hides a spread, chains have to walk through several powers of ten.
    """

    domain, codomain = constraints.real, _AnySize()

    def __call__(self, x: Any) -> Any:
        return jnp.exp(3 * x - 2 * jnp.sqrt(x**2 + 1))

    def _inverse(self, y: Any) -> Any:
        log_y = jnp.log(y)
        return (3 * log_y + 2 * jnp.sqrt(log_y**2 + 5)) / 5

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:
        return jnp.log(3 - 2 * x / jnp.sqrt(x**2 + 1)) + jnp.log(y)

    def tree_flatten(self) -> Any:
        return (), ((), {})


biject_to.register(_AnySize, lambda _: _Shortened())


class _Spread(dist.MixtureSameFamily):  # type: ignore[misc]
    support = _AnySize()


def _spread(usual: Array, log_sd: Array) -> Any:
    """Return the law `priors.SPREAD` of a standard deviation."""
    centre, sd = jnp.log(usual) - log_sd * np.array([0.0, FAR_DOWN]), log_sd * np.array([1.0, FAR_SD])
    which = dist.Categorical(jnp.array([1 - FAR_BELOW, FAR_BELOW]))
    return _Spread(which, dist.LogNormal(centre, sd))


LAWS: Mapping[str, Any] = {
    NORMAL: dist.Normal,
    SPREAD: _spread,
    GAMMA: dist.Gamma,
    BETA: dist.Beta,
}
FACTOR = "reports"
TINY = 1e-6  # smallest mean square, to avoid 0


@dataclass(frozen=True)
class ClippedColumn:
    """A clipped column of a family with additive noise.

    Data, as from `reduced`: ``summary`` (`rectified.LaplaceSummary`) for normal data with Laplace noise; otherwise
    ``z`` and ``weight``, shape ``(k,)``, bounds ``low`` and ``high``, and the noise's ``scale``.

    Attributes:
        family: its name. laplace: whether the noise is Laplace, else Gaussian. high: upper bound of clipped counts.
        states_presence: whether clients say if they have a value; then `presence.reduced` gives the data.
    """

    family: str
    laplace: bool
    high: int = 0
    states_presence: bool = False

    def __call__(self, data: Data) -> None:
        drawn = [
            numpyro.sample(name, LAWS[law](*(data["prior"][number] for number in numbers)))
            for name, (law, *numbers) in FAMILIES[self.family].prior.sites.items()
        ]
        if "summary" in data:
            mean, sd = drawn
            seen = jnp.maximum(sd, data["summary"].narrowest)  # noise hides anything smaller: the prior decides
            numpyro.factor(FACTOR, rectified.gaussian_laplace_sum(data["summary"], mean, seen))
            return
        if "narrowest" in data:
            drawn[1] = jnp.maximum(drawn[1], data["narrowest"])
        ends = {GAUSSIAN: ("low", "high"), EXPONENTIAL: ("high",)}.get(self.family)
        bounds = [self.high] if ends is None else [data[end] for end in ends]
        likelihood = getattr(rectified, f"{self.family}_{'laplace' if self.laplace else 'gaussian'}")
        log_p = likelihood(data["z"], *drawn, *bounds, data["scale"])
        if self.states_presence:
            missing = numpyro.sample(MISSING_SHARE, dist.Beta(*MISSING_PRIOR))
            log_p = presence.mixed(log_p, data["atom"], data["log_odds"], missing)
        numpyro.factor(FACTOR, jnp.sum(data["weight"] * log_p))


@dataclass(frozen=True)
class Histogram:
    """Shares of k categories, from randomised reports of categories.

    Data: ``patterns`` and ``counts``, as from `pattern_counts`, and the probabilities ``p`` and ``q``.

    Attributes:
        unary: whether clients reported bits, else one category.
    """

    unary: bool

    def __call__(self, data: Data) -> None:
        shares = numpyro.sample("shares", dist.Dirichlet(data["prior"]["concentration"]))
        given = jnp.log(shares), data["p"], data["q"]
        if self.unary:
            log_p = categories.unary_encoding(data["patterns"], *given)
        else:
            log_p = categories.randomised_response(*given)
        numpyro.factor(FACTOR, jnp.sum(data["counts"] * log_p))


@dataclass(frozen=True)
class SummedRegression:
    """Linear or logistic regression from noisy sums.

    Data: ``value`` and ``noise`` (variances), shape ``(D,)``, and ``n`` rows.

    Attributes:
        features: number of columns. constant: value of the constant first feature, or None. logistic: whether y is a
            label.
        infers_rows: whether to infer the number of complete rows from the constant's noisy square (`linear.rows`); else
            all n are complete.
    """

    features: int
    constant: float | None
    logistic: bool
    infers_rows: bool

    def __call__(self, data: Data) -> None:
        theta, alpha = _coefficients(data["prior"], self.features, self.constant is not None)
        Sigma, mean = _features(data["prior"], self.features, self.constant is not None)
        if self.constant is not None:
            theta = jnp.concatenate([jnp.array([alpha / self.constant]), theta])
        rows, known = self._rows(data), {"mean": mean, "constant": self.constant}
        if self.logistic:
            row = moments.logistic(theta, Sigma, **known)
        else:
            residual_sd = numpyro.sample(RESIDUAL_SD, dist.HalfNormal(data["prior"]["residual_sd"]))
            row = moments.linear(theta, residual_sd**2, Sigma, **known)
        seen = slice(int(self.constant is not None), data["value"].shape[0])  # a constant's square counts rows
        sums = NoisySums(data["value"][seen], data["noise"][seen], rows)
        observe(sums, row[0][seen], row[1][seen, seen], name=FACTOR)

    def start(self, data: Data) -> dict[str, Array]:
        """Return where chains start: at the features' mean squares, or the noise if larger, and few missing rows.

        The density has a second mode, with far too wide features and nearly all rows missing.
        """
        d, n, noise = self.features + (self.constant is not None), data["n"], np.sqrt(data["noise"])
        squares = np.flatnonzero(np.equal(*np.triu_indices(d)))[-self.features :]
        spread = np.sqrt(np.maximum(data["value"][squares], noise[squares] + TINY * n) / n)
        return {FEATURE_SD: spread, "missing": np.array(MISSING / 2)}

    def _rows(self, data: Data) -> Array:
        """Return the number of complete rows, drawn if it is inferred."""
        if not self.infers_rows or self.constant is None:
            return data["n"]
        rows = data["n"] * (1 - numpyro.sample("missing", dist.Uniform()))
        numpyro.factor("complete rows", log_prior(rows, data["n"]))
        square = dist.Normal(self.constant**2 * rows, jnp.sqrt(data["noise"][0]))
        numpyro.factor("count of rows", square.log_prob(data["value"][0]))
        return rows


@dataclass(frozen=True)
class RowRegression:
    """Linear regression from perturbed rows, or logistic regression from perturbed features and reported labels.

    Data, with w a row, or only its features if there are labels: ``scatter`` Σ wwᵀ, ``total`` Σ w and the noise
    variance ``var_x``. Without labels also ``n`` and the noise variance ``var_y``. With labels also ``x`` (n, d),
    ``y`` (n,), 0 or 1, and the probability ``p`` that a label is reported unchanged.

    Clients may also say whether their rows are complete (`presence`). Then the data are ``x``, ``y``, the noise
    variances, and ``atom`` and ``log_odds`` as for `presence.mixed`; with labels also ``p``.

    Attributes:
        features: d. intercept: whether there is an intercept and features have means. logistic: whether there are
            labels.
        mean: as for `perturbed.logistic_scatter`. states_presence: whether clients say if their rows are complete.
    """

    features: int
    intercept: bool
    logistic: bool = False
    mean: perturbed.Mean | None = None
    states_presence: bool = False

    def __call__(self, data: Data) -> None:
        theta, alpha = _coefficients(data["prior"], self.features, self.intercept)
        Sigma, mean = _features(data["prior"], self.features, self.intercept)
        if self.states_presence:
            self._complete_or_not(data, theta, alpha, Sigma, mean)
            return
        scatter, offset = data["scatter"], 0.0
        if self.logistic:
            x = data["x"]
            if self.intercept:
                scatter = _scatter_about(mean, scatter, data["total"], x.shape[0])
                x, offset = x - mean, alpha + mean @ theta
            given = scatter, x, data["y"], theta, Sigma, data["var_x"], data["p"], self.mean
            numpyro.factor(FACTOR, perturbed.logistic_scatter(*given, offset=offset))
            return
        residual_sd = numpyro.sample(RESIDUAL_SD, dist.HalfNormal(data["prior"]["residual_sd"]))
        if self.intercept:
            scatter = _scatter_about(jnp.append(mean, alpha + mean @ theta), scatter, data["total"], data["n"])
        noise = data["var_x"], data["var_y"]
        numpyro.factor(FACTOR, perturbed.linear_scatter(scatter, data["n"], theta, residual_sd**2, Sigma, *noise))

    def _complete_or_not(self, data: Data, theta: Array, alpha: Array, Sigma: Array, mean: Array) -> None:
        """Add the likelihood of rows of which some are not complete; their clients report zeros, and any label."""
        x, y, offset, labels = data["x"], data["y"], jnp.array(0.0), jnp.array(0.0)
        missing = numpyro.sample(MISSING_SHARE, dist.Beta(*MISSING_PRIOR))
        if self.intercept:
            x, offset = x - mean, alpha + mean @ theta
        if self.logistic:
            share = numpyro.sample("label_without_row", dist.Uniform())  # of label 1 among those without a row
            one = data["p"] * share + (1 - data["p"]) * (1 - share)
            labels = jnp.where(y == 1, jnp.log(one), jnp.log1p(-one))
            known = x, y, theta, Sigma, data["var_x"], data["p"], self.mean
            log_p = perturbed.logistic_rows(*known, offset=offset)
        else:
            residual_sd = numpyro.sample(RESIDUAL_SD, dist.HalfNormal(data["prior"]["residual_sd"]))
            noise = data["var_x"], data["var_y"]
            log_p = perturbed.linear_rows(x, y - offset, theta, residual_sd**2, Sigma, *noise)
        mixed = presence.mixed(log_p - labels, data["atom"], data["log_odds"], missing)
        numpyro.factor(FACTOR, jnp.sum(mixed + labels))


def _coefficients(prior: Data, features: int, intercept: bool) -> tuple[Array, Array]:
    """Draw the slopes, shape ``(features,)``, and the intercept, or 0."""
    theta = numpyro.sample(THETA, dist.Normal(0.0, prior["coefficient_sd"]).expand([features]))
    return theta, numpyro.sample(ALPHA, dist.Normal(0.0, prior["intercept_sd"])) if intercept else 0.0


def _features(prior: Data, features: int, free_mean: bool) -> tuple[Array, Array]:
    """Draw the covariance of the features, and their mean if it is free, else None."""
    sd = numpyro.sample(FEATURE_SD, dist.HalfNormal(prior["feature_sd"]).expand([features]))
    root = sd[:, None]
    if features > 1:
        root = root * numpyro.sample(ROOT, dist.LKJCholesky(features, prior["lkj"]))
    if not free_mean:
        return root @ root.T, None
    return root @ root.T, numpyro.sample(FEATURE_MEAN, dist.Normal(0.0, prior["feature_mean_sd"]).expand([features]))


def _scatter_about(centre: Array, scatter: Array, total: Array, n: Array) -> Array:
    """Return Σ (w - c)(w - c)ᵀ of n vectors, from Σ wwᵀ and Σ w."""
    across = jnp.outer(total, centre)
    return scatter - across - across.T + n * jnp.outer(centre, centre)


def pattern_counts(reports: Categories) -> dict[str, NDArray[Any]]:
    """Return the data of `Histogram`: how often each distinct report occurred."""
    if reports.unary:
        patterns, counts = categories.patterns(reports.values)
        return {"patterns": patterns, "counts": counts}
    return {"counts": np.bincount(reports.values, minlength=reports.categories).astype(float)}


def scattered_rows(rows: Rows, *, labelled: bool) -> dict[str, Any]:
    """Return the data of `RowRegression` where all rows count as complete."""
    w = rows.x if labelled else np.column_stack([rows.x, rows.y])
    known = {"scatter": w.T @ w, "total": w.sum(axis=0), "var_x": rows.variance_x}
    return known | ({"x": rows.x, "y": rows.y, "p": rows.p} if labelled else {"n": len(w), "var_y": rows.variance_y})


def counted_rows(rows: Rows, *, labelled: bool) -> dict[str, Any]:
    """Return the data of `RowRegression` where clients say whether their rows are complete."""
    assert rows.present is not None, "clients say whether their rows are complete"
    atom = norm.logpdf(rows.x, 0.0, np.sqrt(rows.variance_x)).sum(axis=1)
    if not labelled:
        atom += norm.logpdf(rows.y, 0.0, np.sqrt(rows.variance_y))
    log_odds = (rows.present - 0.5) / rows.present_sd**2
    known = {"x": rows.x, "y": rows.y, "var_x": rows.variance_x, "atom": atom, "log_odds": log_odds}
    return known | ({"p": rows.p} if labelled else {"var_y": rows.variance_y})


def reduced(family: str, reports: Scalars) -> dict[str, Any]:
    """Return the data of `ClippedColumn`, with the reports reduced to what its likelihood needs."""
    bounds, scale = reports.bounds, reports.scale
    if reports.present is not None:
        return {**presence.reduced(family, reports), "low": bounds.lower, "high": bounds.upper, "scale": scale}
    if family == GAUSSIAN and reports.laplace:
        return {"summary": rectified.summarise(reports.z, bounds.lower, bounds.upper, scale)}
    z, weight = reports.z, np.ones(reports.z.size)
    if not reports.laplace:
        z, weight = rectified.few_points(z, 2 * bounds.half_width, scale)
    return {"z": z, "weight": weight, "low": bounds.lower, "high": bounds.upper, "scale": scale}
