"""Conjugate models against closed forms: updates, marginals, the sum that the round releases, what is refused."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats as st
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.statistics import resolve
from dca_proto.statistics.histogram import BINS_MAX
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.mcmc.sums import NoisySums
from inference.models.conjugate import (
    FAMILIES,
    Bernoulli,
    Categorical,
    Exponential,
    Family,
    Gaussian,
    Poisson,
    family,
)
from inference.models.conjugate.categorical import CATEGORIES_MAX
from inference.models.conjugate.family import Released, posterior_of
from inference.models.conjugate.quadrature import Grid
from inference.models.conjugate.scalar import ScalarFamily
from inference.posterior import Posterior
from inference.problem import Schema

Array = NDArray[np.float64]
BITS = 24
MODELS: tuple[Family, ...] = (
    Bernoulli("x", Interval(0, 1), alpha=2.0, beta=3.0),
    Categorical("x", Interval(1, 4), alpha=0.5),
    Poisson("x", Interval(0, 40), a=2.0, b=0.5),
    Exponential("x", Interval(0, 50), a=2.0, b=3.0),
    Gaussian("x", Interval(-20, 30), m=1.0, kappa=0.5, a=3.0, b=8.0),
)


def data_of(model: Family, rng: np.random.Generator, n: int) -> Array:
    draws = {
        "bernoulli": lambda: rng.binomial(1, 0.3, n),
        "categorical": lambda: rng.integers(1, 5, n),
        "poisson": lambda: rng.poisson(6.0, n),
        "exponential": lambda: rng.exponential(4.0, n),
        "gaussian": lambda: rng.normal(3.0, 2.0, n),
    }
    return np.asarray(draws[model.name](), float)


def released(request: RoundRequest, x: Array, variance: float = 0.0) -> NoisyAggregate:
    """What a round gives without noise, though it may claim that there was some."""
    statistic = resolve(request.statistic, request.parameters)
    present = x[np.isfinite(x), None]
    value = np.ldexp(statistic.evaluate(present, BITS).sum(axis=0), -BITS)
    return NoisyAggregate(
        value=value, noise_variance=variance, statistic=request.statistic, parameters=request.parameters,
        contributors=len(x), clients=len(x), n_min=0, colluders=0, mechanism="none", sensitivity=1.0,
        relation="replace-one-client", sigma_local=0.0, epsilon=1.0, delta=1e-5, mu=0.3, round_id=bytes(16),
        announcement_hash=bytes(32), contributors_hash=bytes(32),
    )  # fmt: skip


def fit(model: Family, aggregate: NoisyAggregate, **settings: object) -> Posterior:
    return posterior_of(model, aggregate, rng=np.random.default_rng(1), **settings)  # type: ignore[arg-type]


def closed_form(model: Family, x: Array) -> dict[str, tuple[Array, Array]]:
    """Posterior mean and variance by scipy."""
    n, total = len(x), float(x.sum())
    if isinstance(model, Bernoulli):
        return {"theta": st.beta(2 + total, 3 + n - total).stats()}
    if isinstance(model, Categorical):
        posterior = st.dirichlet(0.5 + np.array([(x == k).sum() for k in range(1, 5)]))
        return {"theta": (posterior.mean(), posterior.var())}
    if isinstance(model, Poisson):
        return {"rate": st.gamma(2 + total, scale=1 / (0.5 + n)).stats()}
    if isinstance(model, Exponential):
        return {"rate": st.gamma(2 + n, scale=1 / (3 + total)).stats()}
    kappa, a = 0.5 + n, 3 + n / 2
    b = 8 + ((x - x.mean()) ** 2).sum() / 2 + 0.5 * n * (x.mean() - 1) ** 2 / (2 * kappa)
    student = st.t(2 * a, loc=(0.5 + total) / kappa, scale=math.sqrt(b / (a * kappa)))
    return {"mean": student.stats(), "variance": st.invgamma(a, scale=b).stats()}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_conjugate_posterior_is_the_closed_form(model: Family) -> None:
    x = data_of(model, np.random.default_rng(3), 50)
    if isinstance(model, Categorical):
        s = np.array([(x == k).sum() for k in range(1, 5)], float)
    elif isinstance(model, Gaussian):
        z = (x - 5) / 25
        s = np.array([z.sum(), (z**2).sum()])
    else:
        s = np.array([x.sum()])
    moments = model.moments(model.update(s, len(x)))
    for name, (mean, variance) in closed_form(model, x).items():
        np.testing.assert_allclose(moments[name][0], mean, rtol=1e-12)
        np.testing.assert_allclose(moments[name][1], variance, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_without_noise_the_job_learns_the_conjugate_posterior_from_its_own_round(model: Family) -> None:
    """Up to the grid of the statistic: values in 2^-24, or 2^-12 where they are squared, of a half-width."""
    x = data_of(model, np.random.default_rng(4), 60)
    aggregate = released(model.request(), x)
    result = fit(model, aggregate)
    exact = closed_form(model, x)
    for name, (mean, variance) in exact.items():
        np.testing.assert_allclose(result.mean[name], mean, rtol=1e-3)
        np.testing.assert_allclose(result.sd[name], np.sqrt(variance), rtol=1e-2)
        # 4000 independent draws; 5 standard errors, false alarm below 1e-6 each
        np.testing.assert_allclose(result.quantile(0.5)[name], mean, atol=5 * np.sqrt(variance).max() * 0.05)
    assert not result.moments.repaired
    assert result.moments.outside < 1e-3
    # next to no noise is next to no difference
    nearly = fit(model, released(model.request(), x, variance=1e-10), draws=250)
    for name in exact:
        np.testing.assert_allclose(nearly.mean[name], result.mean[name], rtol=1e-3)
        np.testing.assert_allclose(nearly.sd[name], result.sd[name], rtol=1e-2)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_over_the_ideal_functionality_the_posterior_holds_the_noise(model: Family) -> None:
    """Within 5 posterior standard deviations of the exact posterior mean: false alarm below 1e-5 each."""
    x = data_of(model, np.random.default_rng(10), 400)
    terms = JobTerms(epsilon=0.4, delta=1e-5, clients=400, tolerate=4, computes=(bytes(16), bytes([1]) * 16))
    swarm = IdealSwarm(x[:, None], ["x"], terms, random=np.random.default_rng(3).bytes)
    result = fit(model, swarm.run_round(model.request()), draws=300)
    assert result.private
    assert result.attrs["epsilon"] == pytest.approx(0.4)
    for name, (mean, variance) in closed_form(model, x).items():
        assert (np.abs(result.mean[name] - mean) < 5 * result.sd[name]).all()
        assert (result.sd[name] > 1.3 * np.sqrt(variance)).all()


def test_marginals_are_those_of_scipy_up_to_a_constant() -> None:
    n, s = 30, np.array([1.0, 4.0, 11.0, 29.0])
    cases: list[tuple[ScalarFamily, Array]] = [
        (Bernoulli("x", Interval(0, 1), alpha=2.0, beta=3.0), st.betabinom(n, 2, 3).logpmf(s)),
        (Poisson("x", Interval(0, 9), a=2.0, b=0.5), st.nbinom(2, 0.5 / (0.5 + n)).logpmf(s)),
        (Exponential("x", Interval(0, 9), a=2.0, b=3.0), st.betaprime(n, 2, scale=3).logpdf(s)),
    ]
    for model, expected in cases:
        found = model.log_marginal(s, n)
        np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=0, atol=1e-10)


def test_defaults_of_priors_follow_the_unit() -> None:
    """The same data in minutes and in seconds give the same posterior of the same quantity."""
    rng = np.random.default_rng(5)
    for name, power in (("exponential", -1), ("gaussian", 1)):
        x = data_of(family(name, "x", Interval(0, 40)), rng, 40)
        minutes, seconds = family(name, "x", Interval(0, 40)), family(name, "x", Interval(0, 2400))
        a, b = (fit(m, released(m.request(), x * u, 4.0)) for m, u in ((minutes, 1), (seconds, 60)))
        first = next(iter(a.mean))
        assert b.mean[first] == pytest.approx(a.mean[first] * 60.0**power, rel=1e-3)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_client_of_several_rows_gives_its_first(model: Family) -> None:
    """A mean of rows is no draw from the model: no count, no zero or one, and of less variance."""
    x = data_of(model, np.random.default_rng(12), 40)
    tables = [np.array([[value], [1.0], [2.0]])[: 1 + index % 3] for index, value in enumerate(x)]
    terms = JobTerms(epsilon=200.0, delta=1e-5, clients=40, tolerate=0, computes=(bytes(16), bytes([1]) * 16))
    aggregate = IdealSwarm(tables, ["x"], terms, random=np.random.default_rng(3).bytes).run_round(model.request())
    found, expected = model.release(aggregate), model.release(released(model.request(), x))
    np.testing.assert_allclose(found.value, expected.value, atol=6 * np.sqrt(found.noise_variance.max()))
    assert found.rows == pytest.approx(40, abs=6 * found.rows_variance**0.5)


def test_default_priors_do_not_overrule_data_much_narrower_than_their_bounds() -> None:
    """The truth is within the central 99.99 % of the posterior: false alarm below 1e-3 in all, seeded.

    Σ x² about the bounds' middle is nearly all mean: what is left for the variance is as small as the noise.
    """
    rng = np.random.default_rng(13)
    n, sd = 5000, 0.03
    z = rng.normal(0.5, sd, n)
    noise = np.array([7.5, 4.5])
    value = np.array([z.sum(), (z**2).sum()]) + noise * rng.standard_normal(2)
    gaussian = posterior_of(Gaussian("x", Interval(-1, 1)), NoisySums(value, noise**2, n), rng=rng)
    low, high = gaussian.quantile([5e-5, 1 - 5e-5])["variance"]
    assert low < sd**2 < high
    total = np.array([rng.exponential(1.0, 400).sum() + 100 * rng.standard_normal()])
    rate = posterior_of(Exponential("x", Interval(0, 100)), NoisySums(total, np.array([1e4]), 400), rng=rng).quantile(
        [5e-5, 1 - 5e-5]
    )["rate"]
    assert rate[0] < 1 < rate[1]


def test_vague_priors_and_much_noise_leave_mass_beside_zero_that_the_grid_finds() -> None:
    """Against sums over all counts, and an integral over ln s; 5 standard errors of 20,000 independent draws."""
    rng, a, b = np.random.default_rng(14), 0.01, 0.01
    n, variance = 60, 1e8
    s = np.arange(60_001.0)
    model = Poisson("x", Interval(0, 1000), a=a, b=b)
    near_zero = model.grid(NoisySums(np.array([300.0]), np.array([variance]), n)).draw(20_000, rng) < 100
    p = np.exp(model.log_marginal(s, n) - (s - 300) ** 2 / (2 * variance))
    assert near_zero.mean() == pytest.approx(p[:100].sum() / p.sum(), abs=5 * 0.5 / math.sqrt(20_000))
    n, variance = 1000, 4e6
    s = np.geomspace(1e-6, 1e4, 200_001)
    waiting = Exponential("x", Interval(0, 10), a=a, b=b)
    near_zero = waiting.grid(NoisySums(np.array([3000.0]), np.array([variance]), n)).draw(20_000, rng) < 100
    p = s * np.exp(waiting.log_marginal(s, n) - (s - 3000) ** 2 / (2 * variance))
    expected = p[s < 100].sum() / p.sum()
    assert 0.01 < expected < 0.99
    assert near_zero.mean() == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(20_000))


def test_impossible_sums_are_repaired_to_the_nearest_possible_ones() -> None:
    n = 10
    bernoulli, poisson = MODELS[0], MODELS[2]
    assert bernoulli.possible(np.array([-3.0]), n) == [0.0]
    assert bernoulli.possible(np.array([13.0]), n) == [10.0]
    assert poisson.possible(np.array([-3.0]), n) == [0.0]
    np.testing.assert_allclose(MODELS[1].possible(np.array([12.0, -1.0, 3.0, -2.0]), n), [9.5, 0, 0.5, 0])
    np.testing.assert_allclose(MODELS[4].possible(np.array([5.0, 1.0]), n), [5.0, 2.5])  # a negative variance
    np.testing.assert_allclose(MODELS[4].possible(np.array([-50.0, 99.0]), n), [-10.0, 10.0])
    rng = np.random.default_rng(6)
    for model, value, variance in ((bernoulli, [-30.0], [100.0]), (MODELS[4], [5.0, -20.0], [9.0, 9.0])):
        for method in ("conjugate", "noise-aware"):
            release = NoisySums(np.array(value), np.array(variance), n)
            result = posterior_of(model, release, rng=rng, method=method, draws=50)
            assert result.moments.repaired
            assert all(np.isfinite(array).all() for array in result.draws.values())


def test_a_client_outside_the_bounds_counts_as_at_the_bound_and_the_fit_estimates_how_many() -> None:
    model = family("exponential", "x", Interval(0, 4))
    aggregate = released(model.request(), np.array([1.0, 2.0, 4e9, 3.0]))
    assert model.release(aggregate).given(4).value == pytest.approx([10.0], abs=1e-5)
    many = np.random.default_rng(9).exponential(1.0, 20_000)
    assert fit(model, released(model.request(), many)).moments.clipping_matters  # e^-4 of them are outside
    assert not fit(MODELS[3], released(MODELS[3].request(), many)).moments.clipping_matters
    gaussian = family("gaussian", "x", Interval(-1, 1))
    parameters = {"mean": np.zeros((1, 1)), "variance": np.ones((1, 1))}
    assert gaussian.outside(parameters)[0, 0] == pytest.approx(2 * st.norm.cdf(-1))
    at = {"rate": np.full((1, 1), 2.0)}
    assert model.outside(at)[0, 0] == pytest.approx(st.expon(scale=0.5).sf(4))
    poisson = family("poisson", "x", Interval(1, 5))
    assert poisson.outside(at)[0, 0] == pytest.approx(st.poisson(2).sf(5) + st.poisson(2).pmf(0))


def test_the_unit_of_a_rate_is_that_of_counts_or_one_over_that_of_waits() -> None:
    for model, unit in ((Poisson("x", Interval(0, 40)), "falls"), (Exponential("x", Interval(0, 50)), "1/falls")):
        x = data_of(model, np.random.default_rng(5), 200)
        schema = Schema((), "x", {"x": model.interval}, {"x": "falls"}, alone=True)
        (rate,) = fit(model, released(model.request(), x, variance=0.01)).estimates(schema)
        assert rate.unit == unit


def test_a_posterior_with_nothing_against_it_has_no_warnings() -> None:
    for model in MODELS:
        x = data_of(model, np.random.default_rng(5), 200)
        assert fit(model, released(model.request(), x, variance=0.01)).warnings == []


def test_a_posterior_of_clipped_data_warns_with_their_share_and_a_remedy() -> None:
    model = family("exponential", "x", Interval(0, 4))
    result = fit(model, released(model.request(), np.random.default_rng(9).exponential(1.0, 20_000)))
    (warning,) = result.warnings
    assert f"expects {100 * result.moments.outside:.2g} % of the values of x outside the bounds" in warning
    assert warning.endswith("which biases its estimates; give wider public bounds")


def test_a_repaired_sum_gives_a_warning_if_the_repair_is_taken_for_the_truth() -> None:
    model = MODELS[0]
    release = NoisySums(np.array([-3.0]), np.array([4.0]), 20)
    (warning,) = posterior_of(model, release, rng=np.random.default_rng(1), method="conjugate").warnings
    assert warning.startswith("no values of x can have the noisy sum")
    assert "'noise-aware'" in warning
    assert posterior_of(model, release, rng=np.random.default_rng(1)).warnings == []


def test_chains_that_have_not_mixed_give_a_warning_with_their_r_hat() -> None:
    result = fit(MODELS[0], released(MODELS[0].request(), np.ones(9)))
    apart = replace(result, draws={"theta": result.draws["theta"] + np.array([0, 0, 0, 2])[:, None]})
    assert apart.warnings == [], "independent draws, whose R-hat is chance"
    warning = replace(apart, warmup=apart.draws).warnings[0]
    assert warning.startswith("chains have not mixed: R-hat of theta is 1.")
    assert warning.endswith("expected at most 1.01; take method 'conjugate'")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_exact_sums_are_those_that_a_round_without_noise_releases(model: Family) -> None:
    x = data_of(model, np.random.default_rng(6), 80)
    exact, round_ = model.exact(x), model.release(released(model.request(), x)).given(80)
    # each value, or its square, is rounded to 2^-12 of a half-width at worst
    np.testing.assert_allclose(exact.value, round_.value, atol=80 * 2.0**-11 * model.interval.half_width)
    assert (exact.n, exact.value.shape) == (round_.n, round_.noise_variance.shape)
    assert not exact.noise_variance.any()


def test_a_result_claims_no_epsilon_where_bounds_or_noise_are_not_private() -> None:
    model = MODELS[0]
    aggregate = released(model.request(), data_of(model, np.random.default_rng(1), 9))
    assert fit(model, aggregate).attrs["epsilon"] == 1.0
    read = Interval(0, 1, public=False)
    trial = fit(model, aggregate, schema=Schema((), "x", {"x": read}, alone=True))
    assert not trial.private
    assert trial.attrs["epsilon"] is None


@pytest.mark.skipif(importlib.util.find_spec("arviz") is None, reason="arviz is not installed")
def test_draws_go_to_arviz_with_their_diagnosis() -> None:
    model = MODELS[1]
    x = data_of(model, np.random.default_rng(2), 200)
    result = fit(model, released(model.request(), x, variance=25.0), draws=400)
    data = result.inference_data()
    assert data.posterior["theta"].dims == ("chain", "draw", "theta_label")
    assert list(data.posterior["theta_label"].values) == ["1", "2", "3", "4"]
    assert data.warmup_posterior["theta"].shape == (4, 200, 4)
    assert data.posterior.attrs["method"] == "noise-aware"
    assert [one.label for one in result.mixing] == ["theta[1]", "theta[2]", "theta[3]", "theta[4]"]
    assert max(one.r_hat for one in result.mixing) < 1.05


def test_a_sum_between_two_counts_with_hardly_any_noise_is_one_of_them() -> None:
    release = NoisySums(np.array([3.5]), np.array([1e-6]), 10)
    sums = MODELS[0].latent(Released.complete(release), 1, 200, np.random.default_rng(1))[1].sums
    assert set(np.unique(sums)) == {3.0, 4.0}


def test_the_grid_finds_a_narrow_density_in_a_wide_box() -> None:
    """False alarm of each line below 1e-6: 4000 independent draws, 5 standard errors."""
    rng = np.random.default_rng(8)
    wide = [(-1e6, 1e6), (-1e6, 1e6)]
    draws = Grid.of(lambda x, y: -0.5 * ((x - 3) ** 2 + ((y + 5) / 2) ** 2), wide).draw(4000, rng)
    np.testing.assert_allclose(draws.mean(axis=0), [3, -5], atol=0.16)
    np.testing.assert_allclose(draws.std(axis=0), [1, 2], rtol=0.06)
    counts = Grid.of(lambda x: -0.5 * ((x - 5e8) / 1e3) ** 2, [(0, 1e9)], integers=True).draw(4000, rng)
    assert (counts == np.rint(counts)).all()
    assert counts.mean() == pytest.approx(5e8, abs=80)


def test_refusals_name_the_remedy() -> None:
    with pytest.raises(DataError, match=r"'gausian' is not in the conjugate models \(did you mean 'gaussian'\?\)"):
        family("gausian", "x", Interval(0, 1))
    with pytest.raises(DataError, match=r"prior parameter 'alfa' .*did you mean 'alpha'"):
        family("bernoulli", "x", Interval(0, 1), alfa=2)
    with pytest.raises(DataError, match="setting 'prior_alpha' is -1, expected a number above 0"):
        family("bernoulli", "x", Interval(0, 1), alpha=-1)
    with pytest.raises(DataError, match="'prior_a' is 'two', expected a number above 0"):
        family("poisson", "x", Interval(0, 1), a="two")
    with pytest.raises(DataError, match="bounds 0:2; expected 0:1"):
        family("bernoulli", "x", Interval(0, 2))
    with pytest.raises(DataError, match="lower bound -1; give one from 0 on"):
        family("exponential", "x", Interval(-1, 2))
    with pytest.raises(DataError, match="give the first and the last category"):
        family("categorical", "x", Interval(0, 2.5))
    assert BINS_MAX == CATEGORIES_MAX
    with pytest.raises(DataError, match="100001 categories; expected at most 65536"):
        family("categorical", "x", Interval(0, 100_000))
    with pytest.raises(DataError, match=r"bounds 0\.2:0\.8, expected whole numbers; give the least"):
        family("poisson", "x", Interval(0.2, 0.8))
    with pytest.raises(DataError, match="setting 'prior_m' is nan, expected a finite number"):
        family("gaussian", "x", Interval(0, 1), m=math.nan)
    aggregate = released(MODELS[4].request(), np.zeros(5))
    with pytest.raises(DataError, match="gaussian: 5 clients contributed; expected at least 6"):
        fit(MODELS[4], aggregate)
    release = NoisySums(np.zeros(1), np.ones(1), 4)
    with pytest.raises(DataError, match="method 'plug-in' is unknown; known: noise-aware, conjugate"):
        posterior_of(MODELS[0], release, rng=np.random.default_rng(1), method="plug-in")
    with pytest.raises(DataError, match="setting 'draws' is 3, expected 4 or more"):
        posterior_of(MODELS[0], release, rng=np.random.default_rng(1), chains=1, draws=3)
    assert set(FAMILIES) == {model.name for model in MODELS}
