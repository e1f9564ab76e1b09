"""What the fits hand to the sampler: each model's prior, and the arguments of its likelihood.

Sampler and likelihoods are stand-ins here: the one keeps the model and the data that it is given, and hands out draws
from nowhere, the others keep their arguments. (What likelihoods answer, and whether fits find what is true, have tests
of their own.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from compiling import quick_and_double
from exact_rounds import aggregate
from long_cases import mostly_long
from scipy import stats

from dca_proto.aggregate import LocalReports, RoundRequest
from inference.bounds import Interval
from inference.draws import Sampling
from inference.models import fit as fits
from inference.models.linear.rows import MISSING
from inference.models.priors import DirichletPrior, GaussianPrior, ProbabilityPrior, RatePrior, RegressionPrior

jax = pytest.importorskip("jax")
numpyro = pytest.importorskip("numpyro")
pytest.importorskip("arviz")

Point = dict[str, Any]
SAMPLING = Sampling(np.zeros(4, int), np.full(4, 0.9), np.zeros(4, int), np.full(4, 0.5), 1.0)
PRIOR = RegressionPrior(coefficient_sd=1.5, intercept_sd=0.7, lkj=3.0, feature_sd=0.8, feature_mean_sd=0.4)
RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True, scope="module")
def quickly() -> Iterator[None]:
    with quick_and_double():
        yield


class StandIn:
    """In the places of `nuts.sample` and of a likelihood."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, likelihood: str, point: Point) -> None:
        from inference.mcmc import nuts

        self._point, self._chains = point, nuts.Sampled
        self.model: Any = None
        self.data: Any = None
        self.start: Any = None
        self.arguments: tuple[Any, ...] = ()
        self.known: dict[str, Any] = {}
        monkeypatch.setattr(nuts, "sample", self._sample)
        monkeypatch.setattr(f"inference.models.{likelihood}", self._likelihood)

    def _sample(self, model: Any, data: Any, options: Any, start: Any, **_: Any) -> Any:
        self.model, self.data, self.start = model, data, start
        chains, draws = options.chains, options.draws
        spread = RNG.normal(1.0, 1e-3, (chains, draws))
        drawn = {
            name: np.asarray(value, float) * spread.reshape(chains, draws, *[1] * np.ndim(value))
            for name, value in self._point.items()
        }
        return self._chains(drawn, {}, SAMPLING)

    def _likelihood(self, *arguments: Any, **known: Any) -> Any:
        self.arguments, self.known = arguments, known
        return np.zeros(1)

    def check(self, other: Point, log_prior: Callable[[Point], Any], *arguments: Any) -> None:
        """The prior's density between the two points, and the arguments of the likelihood at this one."""
        from numpyro.infer.util import log_density

        there, here = (float(log_density(self.model, (self.data,), {}, at)[0]) for at in (other, self._point))
        assert there - here == pytest.approx(float(log_prior(other) - log_prior(self._point)), rel=1e-9, abs=1e-9)
        assert len(self.arguments) == len(arguments)
        for found, expected in zip(self.arguments, arguments, strict=True):
            if expected is not None:
                np.testing.assert_allclose(found, expected, rtol=1e-12)


def gamma(number: float) -> Any:
    return stats.gamma.logpdf(number, 3.0, scale=1 / 1.5)


@pytest.mark.parametrize("mechanism", ["grid-laplace", "analytic-gaussian"])
@pytest.mark.parametrize("family", mostly_long(["gaussian", "exponential", "poisson", "geometric"], ["poisson"]))
def test_a_columns_model_is_its_prior_and_its_likelihood(
    family: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high = (-1.0, 1.0) if family == "gaussian" else (0.0, 4.0)  # normal columns are seen in half-widths
    z = np.array([-3.0, 0.4, 1.1, 2.7, 6.0])
    laplace = mechanism == "grid-laplace"
    scale = (high - low) / 2 if laplace else 3.7305 * (high - low)
    reports = LocalReports(z, mechanism, *((2.0, 0.0) if laplace else (1.0, 1e-5)), scale)
    prior, here, there, log_prior = {
        "gaussian": (
            GaussianPrior(0.5, 2.0, 3.0, 1.5),
            {"mean": 0.3, "sd": 1.2},
            {"mean": 1.1, "sd": 2.0},
            lambda at: (
                stats.norm.logpdf(at["mean"], 0.5, 2.0)
                + np.log(
                    0.9 * stats.lognorm.pdf(at["sd"], 1.5, scale=3.0)
                    + 0.1 * stats.lognorm.pdf(at["sd"], 3.75, scale=3.0 * np.exp(-7.5))
                )
            ),
        ),
        "geometric": (
            ProbabilityPrior(3.0, 1.5),
            {"probability": 0.3},
            {"probability": 0.6},
            lambda at: stats.beta.logpdf(at["probability"], 3.0, 1.5),
        ),
    }.get(family, (RatePrior(3.0, 1.5), {"rate": 0.4}, {"rate": 1.3}, lambda at: gamma(at["rate"])))
    summed = laplace and family == "gaussian"
    name = "gaussian_laplace_sum" if summed else f"{family}_{'laplace' if laplace else 'gaussian'}"
    stand_in = StandIn(monkeypatch, f"column.rectified.{name}", here)
    found = fits.column(reports, family, prior, bounds=Interval(low, high), draws=50)
    assert (found.model, set(found.draws), set(found.prior)) == (family, set(here), set(here))
    if summed:
        stand_in.check(there, log_prior, None, *here.values())
        received = stand_in.arguments[0]
        np.testing.assert_array_equal(received.points, [np.clip(z, low, high)])
        assert (received.low, received.high, received.scale) == (low, high, scale)
    else:
        edges = (low, high) if family == "gaussian" else (high,)
        stand_in.check(there, log_prior, z, *here.values(), *edges, scale)


@pytest.mark.parametrize("width", [0.5, 2.0, 4.0])
def test_many_reports_with_gaussian_noise_cost_a_few_points(width: float) -> None:
    """Clients at both ends of the bounds, in any proportion, are what few points describe worst."""
    from inference.models.column.rectified import few_points

    exact = RNG.choice([0.0, width], 3000)
    z = exact + RNG.standard_normal(3000)
    points, weights = few_points(z, width, 1.0)
    assert len(points) == len(weights) == 128
    assert weights.sum() == pytest.approx(3000)
    for share in (0.5, 0.1, 1e-3, 0.0):

        def log_p(z: np.ndarray, share: float = share) -> np.ndarray:
            return np.log(share * stats.norm.pdf(z - width) + (1 - share) * stats.norm.pdf(z))

        assert weights @ log_p(points) == pytest.approx(log_p(z).sum(), abs=1e-7)
    few, ones = few_points(z[:100], width, 1.0)
    np.testing.assert_array_equal(few, z[:100])
    assert set(ones) == {1.0}
    assert len(few_points(z, 4.1, 1.0)[0]) == 3000


def test_shares_have_a_dirichlet_prior_and_the_reports_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = {"shares": np.array([0.5, 0.3, 0.2])}, {"shares": np.array([0.1, 0.3, 0.6])}
    q = 1 / (np.e + 2)
    given = LocalReports(np.array([0, 0, 1, 2, 2, 2]), "randomised-response", 1.0, 0.0, 0.0, (np.e * q, q), 3)
    stand_in = StandIn(monkeypatch, "column.categories.randomised_response", here)
    found = fits.histogram(given, DirichletPrior((1.0, 2.0, 0.5)), labels=("a", "b", "c"), draws=50)
    assert [one.label for one in found.mixing] == ["shares[a]", "shares[b]", "shares[c]"]

    def log_prior(at: Point) -> Any:
        return stats.dirichlet.logpdf(at["shares"], [1.0, 2.0, 0.5])

    stand_in.check(there, log_prior, np.log(here["shares"]), np.e * q, q)
    np.testing.assert_array_equal(stand_in.data["counts"], [2, 1, 3])
    bits, q = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 0]], bool), 1 / (np.e + 1)
    stand_in = StandIn(monkeypatch, "column.categories.unary_encoding", here)
    fits.histogram(LocalReports(bits, "unary-encoding", 1.0, 0.0, 0.0, (0.5, q), 3), draws=50)
    stand_in.check(there, lambda _: 0.0, bits, np.log(here["shares"]), 0.5, q)
    np.testing.assert_array_equal(stand_in.data["counts"], np.ones(4))


def features(scale: float = 1.0, intercept: bool = True, residual: bool = True) -> Point:
    """A point of a regression of two features."""
    root = np.linalg.cholesky(np.array([[1.0, 0.3 * scale], [0.3 * scale, 1.0]]))
    point = {
        "theta": scale * np.array([0.4, -0.3]),
        "feature_sd": scale * np.array([0.5, 0.6]),
        "correlation_root": root,
    }
    if intercept:
        point |= {"alpha": 0.2 * scale, "feature_mean": scale * np.array([0.1, -0.2])}
    return {**point, "residual_sd": 0.5 * scale} if residual else point


def believed(at: Point) -> float:
    """ln of `PRIOR`."""
    correlation = at["correlation_root"] @ at["correlation_root"].T
    found = stats.norm.logpdf(at["theta"], 0, 1.5).sum() + stats.halfnorm.logpdf(at["feature_sd"], scale=0.8).sum()
    found += 2 * np.log(np.linalg.det(correlation))  # LKJ(3), which its root's density is too: the slope is 1 there
    if "alpha" in at:
        found += stats.norm.logpdf(at["alpha"], 0, 0.7) + stats.norm.logpdf(at["feature_mean"], 0, 0.4).sum()
    if "residual_sd" in at:
        found += stats.halfnorm.logpdf(at["residual_sd"], scale=PRIOR.residual_sd)
    return float(found)


def covariance(at: Point) -> np.ndarray:
    root = at["feature_sd"][:, None] * at["correlation_root"]
    return np.asarray(root @ root.T)


PARAMETERS = {"columns": ["a", "b", "y"], "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [1.0] * 3}


@pytest.mark.long
@pytest.mark.parametrize(
    ("logistic", "intercept"),
    [
        (False, True),
        *(pytest.param(*one, marks=pytest.mark.long) for one in [(False, False), (True, False), (True, True)]),
    ],
)
def test_a_model_of_sums_is_its_prior_and_their_law(
    logistic: bool, intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a constant, its noisy square counts the rows that are complete."""
    more = {"intercept": True, "intercept_bound": 0.5} if intercept else {}
    parameters = {**PARAMETERS, **more, "target_square": not logistic, "weights": [1, 2, 3]}
    d = 2 + intercept
    blocks = np.array([1] * (d * (d + 1) // 2) + [2] * d + [3] * (not logistic))
    value = RNG.normal(20, 3, len(blocks))
    here, there = (features(scale, intercept, not logistic) for scale in (1.0, 1.2))
    if intercept:
        here, there, value[0] = {**here, "missing": 0.05}, {**there, "missing": 0.1}, 0.25 * 72
    given = aggregate(value, 36.0, RoundRequest("regression", parameters), 80)
    from inference.models.glm import moments

    stand_in = StandIn(monkeypatch, "noise_aware.observe", here)
    assert fits.regression(given, PRIOR, logistic=logistic, noise_aware=False, draws=50).predictor.logistic == logistic
    assert not stand_in.model.infers_rows
    assert not np.any(stand_in.data["noise"])
    fits.regression(given, PRIOR, logistic=logistic, draws=50)

    def log_prior(at: Point) -> Any:
        if "missing" not in at:
            return believed(at)
        counted = stats.norm.logpdf(value[0], 0.25 * 80 * (1 - at["missing"]), 6.0)
        return believed(at) - at["missing"] / MISSING + counted

    n, theta = 80 * (1 - here.get("missing", 0.0)), here["theta"]
    theta = np.r_[here["alpha"] / 0.5, theta] if intercept else theta
    variance = () if logistic else (0.25,)
    squares = value[[3, 5]] if intercept else value[[0, 2]]
    np.testing.assert_allclose(stand_in.start["feature_sd"] ** 2 * 80, np.maximum(squares, 6), rtol=1e-4)
    known = {"mean": here.get("feature_mean"), "constant": 0.5 if intercept else None}
    with jax.enable_x64(True):
        row = (moments.logistic if logistic else moments.linear)(theta, *variance, covariance(here), **known)
    stand_in.check(there, log_prior, None, row[0][intercept:], row[1][intercept:, intercept:])
    sums = stand_in.arguments[0]
    for seen, meant in ((sums.value, value / blocks), (sums.noise_variance, 36 / blocks**2)):
        np.testing.assert_allclose(seen, meant[intercept:])
    assert sums.n == pytest.approx(n)


@pytest.mark.long
@pytest.mark.parametrize("intercept", [False, True])
def test_models_of_rows_are_their_priors_and_the_rows_laws(intercept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An intercept and means are subtracted from the reports; a scatter is that about them."""
    rows = RNG.normal(0, 4, (12, 3))
    here, there = (features(scale, intercept) for scale in (1.0, 1.2))
    mean = here.get("feature_mean", np.zeros(2))
    offset = float(here.get("alpha", 0.0) + mean @ here["theta"])
    stand_in = StandIn(monkeypatch, "glm.perturbed.linear_scatter", here)
    received = LocalReports(rows, "analytic-gaussian", 1.0, 1e-5, 3.0)
    fits.row_regression(received, PRIOR, intercept=intercept, noise_aware=False, draws=50)
    assert (stand_in.data["var_x"], stand_in.data["var_y"]) == (0.0, 0.0)
    found = fits.row_regression(received, PRIOR, intercept=intercept, draws=50)
    assert found.coords["feature"] == ("x0", "x1")
    w = rows - np.r_[mean, offset]
    stand_in.check(there, believed, w.T @ w, 12, here["theta"], 0.25, covariance(here), 9.0, 9.0)

    here, there = (features(scale, intercept, residual=False) for scale in (1.0, 1.2))
    stand_in = StandIn(monkeypatch, "glm.perturbed.logistic_scatter", here)
    p = np.e / (1 + np.e)
    labels = LocalReports((rows[:, 2] > 0).astype(int), "randomised-response", 1.0, 0.0, 0.0, (p, 1 - p), 2)
    x = LocalReports(rows[:, :2], "analytic-gaussian", 1.0, 1e-5, 3.0)
    fits.row_regression(x, PRIOR, labels=labels, intercept=intercept, noise_aware=False, draws=50)
    assert (stand_in.data["var_x"], stand_in.data["p"]) == (0.0, 1.0)
    fits.row_regression(x, PRIOR, labels=labels, intercept=intercept, mean=np.add, draws=50)
    theta, Sigma = here["theta"], covariance(here)
    x = rows[:, :2] - mean
    stand_in.check(there, believed, x.T @ x, x, labels.values, theta, Sigma, 9.0, p, None)
    assert stand_in.arguments[-1] is np.add
    assert float(stand_in.known["offset"]) == pytest.approx(offset)
