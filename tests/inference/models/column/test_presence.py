"""Clients that lack a value: what is learned from reports is of the others, at no cost in sensitivity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from compiling import quick_and_double
from long_cases import mostly_long
from scipy import stats

from dca_proto.aggregate import NoisyAggregate
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.statistics import resolve
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.problem import Schema
from inference.releases.reports import Rows, Scalars, scalars_of
from inference.rounds import run

jax = pytest.importorskip("jax")
numpyro = pytest.importorskip("numpyro")
pytest.importorskip("arviz")

from inference.models import fit, noise_aware  # noqa: E402  # after the packages that they need
from inference.models.column import presence, rectified  # noqa: E402
from inference.models.column.families import FAMILIES, GAUSSIAN, MISSING_SHARE  # noqa: E402
from inference.models.glm import perturbed  # noqa: E402
from inference.models.predictive import ROOT, ScalarClient  # noqa: E402
from inference.models.priors import RegressionPrior  # noqa: E402

BITS = 24
MECHANISMS = ("grid-laplace", "analytic-gaussian")
BOUNDS = {"gaussian": Interval(0, 100), "exponential": Interval(0, 40), "poisson": Interval(0, 20),
          "geometric": Interval(0, 20)}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def quickly() -> Iterator[None]:
    with quick_and_double():
        yield


def released(
    family: str, mechanism: str, x: np.ndarray, epsilon: float, seed: int = 0, **own: Any
) -> tuple[NoisyAggregate, Schema, Any]:
    """One round of `ldp-mean` over these values, of which NaN are missing."""
    job, schema = find("ldp-mean"), Schema((), "x", {"x": BOUNDS[family]}, alone=True)
    settings = job.settings(family=family, mechanism=mechanism, **own)
    budget, rng = Budget(epsilon, 1e-5), np.random.default_rng(seed)
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=len(x), tolerate=0, computes=())
    known = Conditions(len(x), 0, 1.0, rng, kind=job.kinds[0], epsilon=epsilon)
    swarm = IdealSwarm(x[:, None], ("x",), terms, random=rng.bytes)
    return run(job.make(schema, settings, known), swarm), schema, settings


def half_missing(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(x)) % 2 == 0, x, np.nan)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_saying_whether_there_is_a_value_costs_no_sensitivity(family: str, mechanism: str) -> None:
    """`test_counting` searches for rows that are farther apart."""
    aggregate, _, _ = released(family, mechanism, np.ones(10), 1.0)
    with_count = resolve(aggregate.statistic, aggregate.parameters).row_sensitivity(BITS)
    without = resolve(aggregate.statistic, {**aggregate.parameters, "count_weight": 0.0}).row_sensitivity(BITS)
    norm = {"grid-laplace": "l1", "analytic-gaussian": "l2_squared"}[mechanism]
    assert getattr(with_count, norm) == getattr(without, norm)
    more = {**aggregate.parameters, "count_weight": 1.01 * aggregate.parameters["count_weight"]}
    assert getattr(resolve(aggregate.statistic, more).row_sensitivity(BITS), norm) > getattr(without, norm)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_warning_states_how_many_seem_to_lack_a_value(mechanism: str) -> None:
    """Nobody: no warning. Half of 4,000: the count's noise has a standard deviation of 2 to 3 %."""
    x = np.random.default_rng(1).normal(20.5, 5.0, 4_000)
    found = {missing: released("gaussian", mechanism, half_missing(x) if missing else x, 4.0)[0] for missing in (0, 1)}
    assert scalars_of(found[0], parameters=2).notes == ()
    (note,) = scalars_of(found[1], parameters=2).notes
    assert "% of the clients (" in note
    assert "seem to lack a value: the estimates are of the others" in note


def reports(*, laplace: bool, n: int, epsilon: float, missing: float = 0.3) -> Scalars:
    """A normal column within -1:1, with roughly the noise of that ε."""
    rng, w = np.random.default_rng(2), 1.0 if laplace else 3.0**0.5
    scale, there = (2.0 if laplace else 8.0) / epsilon, rng.random(n) >= missing
    draw = rng.laplace if laplace else rng.normal
    z = np.where(there, np.clip(rng.normal(-0.4, 0.2, n), -1, 1), 0.0) + draw(0, scale, n)
    present = (w * there + draw(0, scale, n)) / w
    return Scalars(z, Interval(-1, 1), laplace, scale, present=present, present_scale=scale / w)


def total(data: dict[str, Any], given: Scalars, mean: float, sd: float, missing: float) -> float:
    return float(added_up(data, given.laplace, given.scale, mean, sd, missing))


@partial(jax.jit, static_argnums=1)
def added_up(data: dict[str, Any], laplace: bool, scale: float, mean: float, sd: float, missing: float) -> Any:
    likelihood = rectified.gaussian_laplace if laplace else rectified.gaussian_gaussian
    log_p = likelihood(data["z"], mean, sd, -1.0, 1.0, scale)
    return (data["weight"] * presence.mixed(log_p, data["atom"], data["log_odds"], missing)).sum()


@pytest.mark.parametrize("laplace", [True, False])
@pytest.mark.parametrize("epsilon", mostly_long([0.5, 4.0], [4.0]))
def test_a_grid_adds_up_all_reports(laplace: bool, epsilon: float) -> None:
    """A constant may be lost. Errors of 1e-7 a report move no posterior of 3,000 reports."""
    given = reports(laplace=laplace, n=3_000, epsilon=epsilon)
    grid = presence.reduced(GAUSSIAN, given)
    alone = presence.reduced("geometric" if laplace else GAUSSIAN, given) if laplace else one_by_one(given)
    assert grid["weight"].ndim == 2
    assert alone["weight"].shape == (3_000,)
    places = [(-0.4, 0.2, 0.3), (0.2, 0.1, 0.01), (-0.9, 0.6, 0.9), (0.0, 0.05, 1e-6), (-3.0, 1.0, 0.5)]
    apart = np.array([total(grid, given, *place) - total(alone, given, *place) for place in places])
    np.testing.assert_allclose(apart - apart[0], 0.0, atol=3_000 * 1e-7)


def one_by_one(given: Scalars) -> dict[str, Any]:
    """The data of the mixture from the definition, for Gaussian noise."""
    s, c = given.present_scale, given.present
    assert c is not None
    atom = -((given.z / given.scale) ** 2) / 2 - np.log(given.scale * np.sqrt(2 * np.pi))
    return {"z": given.z, "weight": np.ones(len(given.z)), "atom": atom, "log_odds": (c - 0.5) / s**2}


@pytest.mark.long
def test_the_mixture_is_the_density_of_both_reports() -> None:
    """By simulation: the mean of p(z, c)/k(z, c) under the noise about (0, 0) is 1, within 5 standard errors."""
    rng, n = np.random.default_rng(3), 20_000
    given = Scalars(rng.normal(0, 2, n), Interval(-1, 1), False, 2.0, present=rng.normal(0, 1.2, n), present_scale=1.2)
    data = one_by_one(given)
    log_p = rectified.gaussian_gaussian(data["z"], -0.5, 0.3, -1.0, 1.0, 2.0)
    ratio = np.exp(np.asarray(presence.mixed(log_p, data["atom"], data["log_odds"], 0.3)))
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / n**0.5


@pytest.mark.parametrize("laplace", mostly_long([True, False], [False]))
def test_the_likeliest_mean_is_of_those_who_have_a_value(laplace: bool) -> None:
    """Half of 20,000 lack theirs, which at the middle of the bounds would draw the mean from -0.4 to -0.2."""
    given = reports(laplace=laplace, n=20_000, epsilon=4.0, missing=0.5)
    data = presence.reduced(GAUSSIAN, given)
    means, shares = np.linspace(-0.6, 0.0, 13), np.linspace(0.2, 0.8, 13)
    found = np.array([[total(data, given, mean, 0.2, share) for share in shares] for mean in means])
    mean, share = np.unravel_index(found.argmax(), found.shape)
    assert means[mean] == pytest.approx(-0.4, abs=0.051)
    assert shares[share] == pytest.approx(0.5, abs=0.051)


@pytest.mark.parametrize(("family", "end"), [("exponential", "at least 0.0"), ("poisson", "at most "), (GAUSSIAN, "")])
def test_a_rate_that_the_noise_hides_is_warned_of_with_its_limit(family: str, end: str) -> None:
    """Bounds of 10,000 times the mean: where the interval ends is up to the prior, and nothing said so."""
    given, spread = reports(laplace=True, n=10, epsilon=1.0), np.random.default_rng(6).normal(size=(2, 1000))
    found = {wide: fit._hidden_rate(family, given, {"rate": np.exp(wide * spread)}) for wide in (0.5, 2.0)}
    found |= {wide: fit._hidden_rate(family, given, {"mean": spread}) for wide in (2.0,) if not end}
    assert found[0.5] == ()
    assert [end in text and "give narrower bounds" in text for text in found[2.0]] == [True] * bool(end)


def test_a_new_client_may_lack_its_value() -> None:
    """With hardly any noise, those without a value report the middle of the bounds."""
    given = Scalars(np.zeros(2), Interval(0, 10), False, 1e-6, present=np.zeros(2), present_scale=1e-6)
    parameters = {"mean": np.full((1, 50), 2.0), "sd": np.full((1, 50), 0.1), "missing": np.full((1, 50), 0.25)}
    drawn = ScalarClient(GAUSSIAN, given).draws(parameters, 40, np.random.default_rng(4))
    assert np.mean(np.abs(drawn["report"] - 5.0) < 0.01) == pytest.approx(0.25, abs=0.05)
    assert np.abs(drawn["value"] - 2.0).max() < 1.0


@pytest.mark.long
@pytest.mark.parametrize(("family", "mechanism"), [
    ("gaussian", "grid-laplace"), ("poisson", "analytic-gaussian"),
])  # fmt: skip
def test_half_of_the_values_missing_leaves_the_mean_of_the_others(family: str, mechanism: str) -> None:
    """Each mean within 4 of its posterior standard deviations, and closer to the truth than to what it was before."""
    rng = np.random.default_rng(5)
    x = {"gaussian": rng.normal(20.5, 5.0, 3_000), "poisson": rng.poisson(5.0, 3_000) * 1.0}[family]
    aggregate, _, settings = released(family, mechanism, half_missing(x), 4.0)
    found = fit.column(aggregate, settings.family, warmup=300, draws=500)
    means = FAMILIES[family].mean(found.draws)
    truth, middle = float(np.mean(x[::2])), BOUNDS[family].centre
    assert abs(means.mean() - truth) < 4 * means.std()
    assert abs(means.mean() - truth) < abs(truth - middle) / 4
    assert found.mean["missing"] == pytest.approx(0.5, abs=0.15)
    assert noise_aware.MISSING_SHARE in found.prior


# --- rows -------------------------------------------------------------------------------------------------------------

PRIOR = asdict(RegressionPrior())
SITES = {
    "theta": np.array([0.7, -1.2]), "alpha": np.array(0.4), "feature_sd": np.array([0.8, 1.5]),
    ROOT: np.array([[1.0, 0.0], [0.6, 0.8]]), "feature_mean": np.array([1.0, -0.5]),
    "residual_sd": np.array(0.6), MISSING_SHARE: np.array(0.3), "label_without_row": np.array(0.2),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("labelled", [False, True])
def test_reported_rows_are_a_mixture_of_complete_ones_and_of_zeros(labelled: bool) -> None:
    """Against the densities as they are written down; terms that have no parameter cancel between two points."""
    rng, n = np.random.default_rng(4), 40
    lacks = np.arange(n) % 3 == 0
    x = np.where(lacks[:, None], 0.0, [1.0, -0.5]) + rng.normal(size=(n, 2))
    y = (rng.random(n) < 0.4).astype(float) if labelled else rng.normal(size=n)
    given = Rows(x, y, 0.5, 0.2, 0.8 if labelled else 1.0, None, present=~lacks + rng.normal(size=n), present_sd=0.9)
    data = {"prior": PRIOR, **noise_aware.counted_rows(given, labelled=labelled)}
    model = noise_aware.RowRegression(2, intercept=True, logistic=labelled, states_presence=True)

    def found(point: dict[str, Any]) -> float:
        sites = numpyro.handlers.trace(numpyro.handlers.substitute(model, point)).get_trace(data)
        return float(sites[noise_aware.FACTOR]["fn"].log_factor)

    def expected(point: dict[str, Any]) -> float:
        root = point["feature_sd"][:, None] * point[ROOT]
        cov, mean, theta = root @ root.T, point["feature_mean"], point["theta"]
        noise, offset = np.full(2, 0.5), point["alpha"] + mean @ theta
        if labelled:
            complete = np.exp(perturbed.logistic_rows(x - mean, y, theta, cov, 0.5, 0.8, offset=offset))
            one = 0.8 * point["label_without_row"] + 0.2 * (1 - point["label_without_row"])
            without, z = np.where(y == 1, one, 1 - one), x
        else:
            noise, z, without = np.append(noise, 0.2), np.column_stack([x, y]), np.ones(n)
            wide = np.block(
                [[cov, (cov @ theta)[:, None]], [theta @ cov, theta @ cov @ theta + point["residual_sd"] ** 2]]
            )
            complete = stats.multivariate_normal(np.append(mean, offset), wide + np.diag(noise)).pdf(z)
        zeros = stats.norm.pdf(z, scale=np.sqrt(noise)).prod(axis=1) * without
        there, away = (stats.norm.pdf(given.present, complete_is, 0.9) for complete_is in (1, 0))
        missing = point[MISSING_SHARE]
        return float(np.log((1 - missing) * complete * there + missing * zeros * away).sum())

    moved = {**SITES, MISSING_SHARE: np.array(0.6), "theta": np.array([-0.3, 0.5]), "label_without_row": np.array(0.7)}
    moved |= {"feature_mean": np.array([0.2, 0.1]), "alpha": np.array(-0.3)}
    assert found(moved) - found(SITES) == pytest.approx(expected(moved) - expected(SITES), rel=1e-9)
    assert abs(expected(moved) - expected(SITES)) > 1
