"""Fits of local reports: against conjugate posteriors, with and without the noise in the model; and new clients.

Compiling is most of what these cost, so each model is compiled once (`compiling`), and several tests look at one fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import quick_and_double
from exact_rounds import aggregate

from dca_proto.aggregate import LocalReports, RoundRequest
from dca_proto.privacy.local import MISSING, UnaryEncoding
from inference.bounds import Interval
from inference.draws import Sampling
from inference.errors import DataError
from inference.mcmc.run import Options, Sampled
from inference.models import fit as fits
from inference.models.column.families import EXPONENTIAL, GAUSSIAN, GEOMETRIC, POISSON
from inference.models.predictive import CategoryClient, ScalarClient
from inference.models.priors import GaussianPrior, RatePrior
from inference.posterior import Posterior
from inference.releases.reports import Categories, Scalars

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")
pytest.importorskip("arviz")

N, HIGH = 150, 10.0
QUICK = {"warmup": 200, "draws": 300}


@pytest.fixture(autouse=True, scope="module")
def quickly() -> Iterator[None]:
    with quick_and_double():
        yield


def values(seed: int = 1, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).exponential(1.0, n)


def reports(x: np.ndarray, epsilon: float, seed: int = 2) -> LocalReports:
    scale = HIGH / epsilon
    noise = np.random.default_rng(seed).laplace(0.0, scale, x.size)
    return LocalReports(np.clip(x, 0, HIGH) + noise, "grid-laplace", epsilon, 0.0, scale)


@cache
def rate(epsilon: float = 1.0, seed: int = 0, **run: Any) -> Posterior:
    prior = RatePrior(2.0, 2.0)
    return fits.column(
        reports(values(), epsilon), EXPONENTIAL, prior, bounds=Interval(0, HIGH), seed=seed, **QUICK, **run
    )


@pytest.mark.long
def test_with_hardly_any_noise_a_rates_posterior_is_the_conjugate_one() -> None:
    """At epsilon 100 the noise has a hundredth of the data's variance. 1200 draws, worth 300 at least: a mean within
    a quarter of the standard deviation, which is four of its errors, and that within a fifth (false alarm 1e-4)."""
    found, x = rate(100.0), values()
    shape, total = 2.0 + N, 2.0 + x.sum()
    assert found.mean["rate"] == pytest.approx(shape / total, abs=0.25 * shape**0.5 / total)
    assert found.sd["rate"] == pytest.approx(shape**0.5 / total, rel=0.2)
    assert found.sampling.divergences.sum() == 0


@pytest.mark.long
def test_with_noise_a_posterior_is_wider_and_still_within_the_prior() -> None:
    """At epsilon 10 the noise has twice the data's variance, which for 150 values is no matter for the prior yet."""
    found = rate(10.0)
    assert 1.3 * rate(100.0).sd["rate"] < found.sd["rate"] < 0.5 * found.prior["rate"].std()


@pytest.mark.long
def test_seeds_determine_fits_and_data_of_one_shape_compile_once() -> None:
    from inference.mcmc import nuts

    progress: list[tuple[int, int]] = []
    first = rate(seed=7, on_progress=None)
    programs = nuts._program.cache_info().currsize
    kept = fits.column(
        reports(values(), 1.0),
        EXPONENTIAL,
        RatePrior(2.0, 2.0),
        bounds=Interval(0, HIGH),
        seed=7,
        keep_warmup=True,
        on_progress=lambda done, total: progress.append((done, total)),
        **QUICK,
    )
    np.testing.assert_array_equal(first.draws["rate"], kept.draws["rate"])
    assert not np.any(first.draws["rate"] == rate(seed=8).draws["rate"])
    assert (first.warmup, kept.warmup["rate"].shape) == ({}, (4, 200))
    assert len(np.unique(first.draws["rate"][:, 0])) == 4, "each chain has randomness of its own"
    assert progress == [(100, 500), (200, 500), (300, 500), (400, 500), (500, 500)]
    assert nuts._program.cache_info().currsize == programs
    assert nuts._program.cache_info().hits > 0


def test_a_model_without_a_density_anywhere_is_refused() -> None:
    from inference.mcmc import nuts
    from inference.models.noise_aware import ClippedColumn

    model = ClippedColumn(EXPONENTIAL, laplace=True)
    prior = {"shape": 2.0, "rate": 2.0}
    data = {"prior": prior, "z": np.full(N, np.nan), "weight": np.ones(N), "low": 0.0, "high": HIGH, "scale": 1.0}
    with pytest.raises(DataError, match="no start with a finite density was found in 20 attempts"):
        nuts.sample(model, data, Options(warmup=QUICK["warmup"]))
    for name in ("chains", "warmup", "draws"):
        with pytest.raises(DataError, match=f"setting '{name}' is 0, expected a whole number, at least 1"):
            nuts.sample(model, data, Options(**{name: 0}))


@pytest.mark.long
def test_chains_can_be_exchanged() -> None:
    """The summary of the posterior does not depend on the order of the chains."""
    found = rate()
    turned = replace(found, draws={"rate": found.draws["rate"][[2, 0, 3, 1]]})
    for given in (0.5, 0.9):
        np.testing.assert_allclose(turned.intervals(given)["rate"], found.intervals(given)["rate"])
    assert turned.mixing[0].r_hat == pytest.approx(found.mixing[0].r_hat)


def test_a_normal_columns_fit_does_not_depend_on_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milligrams or years of our era: chains walk in half-widths of the bounds, and draws come back in own units."""
    given: list[dict[str, Any]] = []

    def sample(options: Options, model: Any, data: dict[str, Any]) -> Sampled:
        given.append(data)
        drawn = {"mean": np.full((4, 9), 0.25), "sd": np.linspace(0.2, 0.4, 36).reshape(4, 9)}
        return Sampled(drawn, drawn if options.keep_warmup else {}, SAMPLING)

    monkeypatch.setattr(Options, "sample", sample)
    z = np.random.default_rng(6).normal(0, 1.0, N)
    for low, high in ((-1.0, 1.0), (0.0, 2e-8), (1.6e9, 1.6e9 + 86400)):
        middle, half = (low + high) / 2, (high - low) / 2
        reports = LocalReports(middle + half * z, "grid-laplace", 2.0, 0.0, half)
        prior = GaussianPrior(middle + 0.1 * half, 0.5 * half, half / 3, 2.0)
        found = fits.column(reports, GAUSSIAN, prior, bounds=Interval(low, high), require_mixed=False, keep_warmup=True)
        np.testing.assert_allclose(found.mean["mean"], middle + 0.25 * half)
        np.testing.assert_allclose(found.draws["sd"], half * np.linspace(0.2, 0.4, 36).reshape(4, 9))
        np.testing.assert_allclose(found.warmup["mean"], middle + 0.25 * half)
        assert abs(found.prior["mean"].mean() - middle) < half
        assert given[-1]["prior"] == pytest.approx({"mean": 0.1, "mean_sd": 0.5, "sd": 1 / 3, "log_sd": 2.0}, rel=1e-4)
        for array, first in zip(given[-1]["summary"], given[0]["summary"], strict=True):
            assert (array is None) == (first is None)
            np.testing.assert_allclose(*(0.0 if one is None else one for one in (array, first)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("low", "hidden"), [(1e-4, True), (0.1, False)])
def test_a_spread_that_noise_hides_is_warned_of(low: float, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {"mean": np.zeros((4, 9)), "sd": np.geomspace(low, 0.2, 36).reshape(4, 9)}
    monkeypatch.setattr(Options, "sample", lambda *_: Sampled(drawn, {}, SAMPLING))
    found = fits.column(reports(values(), 1.0), GAUSSIAN, bounds=Interval(0, HIGH), require_mixed=False)
    about = [note for note in found.notes if "may be anything up to 0.8" in note and "narrower bounds" in note]
    assert len(about) == len(found.notes) == hidden


@pytest.mark.long
def test_bounds_far_too_wide_cost_accuracy_and_not_truth() -> None:
    """Bounds of 1000 standard deviations. Before, the prior overruled the data: the interval began at 17 of them, with
    no warning. Now its lower end follows from the prior alone. The warning and the mean: false alarm below 1e-4."""
    half, n, rng = 3000.0, 2000, np.random.default_rng(0)
    z = rng.normal(20, 3, n) + rng.laplace(0, half, n)
    found = fits.column(LocalReports(z, "grid-laplace", 2.0, 0.0, half), bounds=Interval(-half, half), **QUICK)
    (low, high), (least, most) = (found.intervals(0.95)[name] for name in ("sd", "mean"))
    assert low < 3 < high
    assert least - 2 * (most - least) < 20 < most + 2 * (most - least)
    assert any("the noise hides the spread" in note for note in found.warnings)


def test_bits_from_clients_without_a_category_give_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5,000 clients none, or a fifth."""
    shares = np.random.default_rng(3).dirichlet(np.full(3, 50.0), (4, 9))
    monkeypatch.setattr(Options, "sample", lambda *_: Sampled({"shares": shares}, {}, SAMPLING))
    mechanism, categories = UnaryEncoding(2.0, 3), np.random.default_rng(4).choice(3, 5000, p=[0.7, 0.2, 0.1])
    for lacking in (0, 1000):
        categories[:lacking] = MISSING
        reports = mechanism.decode_reports(mechanism.randomise(categories, bytes(32)), 1.0)
        notes = fits.histogram(reports, require_mixed=False).notes
        assert len(notes) == (lacking > 0)
    share = float(notes[0].split()[1])
    assert 15 < share < 25, "20 within 4 standard errors, of 1.3 each"


COLUMNS = ("x", "y")
PARAMETERS = {
    "columns": list(COLUMNS),
    "centre": [0.0, 0.0],
    "scale": [1.0, 1.0],
    "bound": [1.0, 1.0],
    "target_square": True,
}
SLOPE, SD_X, SD_Y, ROWS = 0.5, 0.3, 0.2, 2000


@cache
def line(noise_sds: tuple[float, ...] = (), sd: float = 0.0, noise_aware: bool = True) -> Posterior:
    """From the expected sums of `ROWS` rows, so many standard deviations of the noise off."""
    xx = SD_X**2
    expected = ROWS * np.array([xx, xx * SLOPE, xx * SLOPE**2 + SD_Y**2])
    value = expected + sd * np.array(noise_sds or (0.0, 0.0, 0.0))
    given = aggregate(value, sd**2, RoundRequest("regression", PARAMETERS), ROWS)
    return fits.regression(given, noise_aware=noise_aware, **QUICK)


@pytest.mark.long
def test_without_noise_a_regression_is_least_squares() -> None:
    """σ/(s_x √n) is what the coefficient's standard deviation tends to. 1200 draws: as for a rate."""
    found = line()
    sd = SD_Y / (SD_X * ROWS**0.5)
    assert found.mean["coefficients"][0] == pytest.approx(SLOPE, abs=0.3 * sd)
    assert found.sd["coefficients"][0] == pytest.approx(sd, rel=0.2)
    assert found.mean["residual_sd"] == pytest.approx(SD_Y, rel=0.02)
    assert found.mean["feature_sd"][0] == pytest.approx(SD_X, rel=0.02)
    assert found.warnings[1:] == []  # but perhaps few effective draws


@pytest.mark.long
def test_noise_aware_intervals_cover_where_noise_naive_ones_are_far_too_narrow() -> None:
    """xy is 1.5 standard deviations of its noise off: a chance that a model of the noise reckons with."""
    aware, naive = line((0.0, 1.5, 0.0), 20.0), line((0.0, 1.5, 0.0), 20.0, noise_aware=False)
    low, high = aware.intervals(0.95)["coefficients"][0]
    assert low < SLOPE < high
    low, high = naive.intervals(0.95)["coefficients"][0]
    assert low > SLOPE + 3 * (high - low)
    assert aware.sd["coefficients"][0] > 5 * naive.sd["coefficients"][0]
    assert (aware.attrs["noise_aware"], naive.attrs["noise_aware"]) == (True, False)


SAMPLING = Sampling(np.zeros(4, int), np.full(4, 0.9), np.zeros(4, int), np.full(4, 0.5), 1.0)


def posterior(seed: int = 1, chains: int = 4, draws: int = 500, **changes: Any) -> Posterior:
    """Independent draws, as if a sampler had made them."""
    drawn = {"mean": np.random.default_rng(seed).normal(size=(chains, draws))}
    client = ScalarClient(GAUSSIAN, Scalars(np.zeros(3), Interval(0, 2), laplace=True, scale=0.01))
    given = {"model": "gaussian", "draws": drawn, "sampling": SAMPLING, "predictive": client}
    return Posterior(**{**given, **changes})


def test_mixed_chains_give_no_warning_and_pass() -> None:
    found = posterior()
    assert found.warnings == []
    assert found.require_mixed() is found


def test_chains_that_have_not_mixed_are_warned_of_and_then_refused() -> None:
    slightly = posterior()
    slightly.draws["mean"][0] += 0.4
    assert slightly.warnings[0].startswith("chains have not mixed: R-hat of mean is 1.0")
    assert "expected at most 1.01; raise the settings warmup and draws" in slightly.warnings[0]
    assert slightly.require_mixed() is slightly
    apart = posterior()
    apart.draws["mean"][0] += 3
    with pytest.raises(
        DataError, match=r"R-hat of mean is 1\.\d+, required below 1.1; raise the settings warmup and draws"
    ):
        apart.require_mixed()
    still = posterior()
    still.draws["mean"][2] = 0.1
    with pytest.raises(DataError, match="R-hat of mean is inf"):
        still.require_mixed()
    with pytest.raises(DataError, match="too few draws to say whether the chains have mixed"):
        posterior(draws=3).require_mixed()
    assert Options().require_mixed
    with pytest.raises(DataError, match="required below"):
        Options().checked(apart)
    assert Options(require_mixed=False).checked(apart) is apart


def test_divergences_and_full_trees_are_warned_of() -> None:
    found = posterior(sampling=SAMPLING._replace(divergences=np.array([0, 3, 0, 1]), depth_hits=np.array([9, 0, 0, 0])))
    diverged, deep = found.warnings
    assert diverged.startswith("4 iterations after warm-up diverged")
    assert deep.startswith("9 iterations after warm-up stopped at the largest tree")
    assert posterior(notes=("as noted",)).warnings == ["as noted"]


def test_a_prior_of_another_family_is_refused() -> None:
    for family, prior, found in (
        (GAUSSIAN, RatePrior(2.0, 2.0), "RatePrior"),
        (POISSON, GaussianPrior(0, 1, 1, 1), "Gaussian"),
    ):
        with pytest.raises(DataError, match=f"family '{family}' has a .*Prior, found a {found}"):
            fits.column(reports(values(), 1.0), family, prior, bounds=Interval(0, HIGH))


def test_draws_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="draws of mean are not finite in model 'gaussian'"):
        replace(posterior(), draws={"mean": np.full((4, 9), np.nan)})


@pytest.mark.long
def test_inference_data_carries_mechanism_and_privacy_cost() -> None:
    found = rate()
    data = found.inference_data(predicted=found.new_clients(5))
    assert set(data) == {"posterior", "posterior_predictive", "prior", "sample_stats"}
    assert data.posterior.attrs["mechanism"] == "grid-laplace"
    assert (data.posterior.attrs["epsilon"], data.posterior.attrs["delta"], data.posterior.attrs["n"]) == (1.0, 0.0, N)
    assert data.posterior_predictive["report"].shape == (4, 300, 5)
    assert data.sample_stats["divergences"].shape == (4,)
    shares = {"shares": np.random.default_rng(1).dirichlet(np.ones(3), (4, 9))}
    names = {"axes": {"shares": ("category",)}, "coords": {"category": ("a", "b", "c")}}
    labelled = replace(posterior(), draws=shares, warmup=shares, **names).inference_data()
    assert labelled.posterior["shares"].sel(category="b").shape == (4, 9)
    assert "warmup_posterior" in labelled
    with pytest.raises(DataError, match="level of an interval is 95"):
        found.intervals(95)


@pytest.mark.parametrize(
    ("family", "parameter", "mean", "sd"),
    [
        (GAUSSIAN, {"mean": 2.0, "sd": 1.5}, 2.0, 1.5),
        (EXPONENTIAL, {"rate": 0.5}, 2.0, 2.0),
        (POISSON, {"rate": 2.0}, 2.0, 2.0**0.5),
        (GEOMETRIC, {"probability": 0.25}, 3.0, 12.0**0.5),
    ],
)
def test_new_clients_are_of_their_family(family: str, parameter: dict[str, float], mean: float, sd: float) -> None:
    """20,000 values: means within 5 standard errors, deviations within a twentieth (false alarm 1e-6)."""
    client = ScalarClient(family, Scalars(np.zeros(3), Interval(0, 2), laplace=True, scale=0.01))
    drawn = client.draws(
        {name: np.full((4, 50), number) for name, number in parameter.items()}, 100, np.random.default_rng(3)
    )
    assert drawn["value"].shape == (4, 50, 100)
    assert drawn["value"].mean() == pytest.approx(mean, abs=5 * sd / 20_000**0.5)
    assert drawn["value"].std() == pytest.approx(sd, rel=0.05)
    noise = drawn["report"] - np.clip(drawn["value"], 0, 2)
    assert noise.std() == pytest.approx(0.01 * 2**0.5, rel=0.05)


@pytest.mark.parametrize("unary", [True, False])
def test_new_clients_of_categories_report_as_the_mechanism_does(unary: bool) -> None:
    """20,000 categories: shares within 5 standard errors (false alarm 1e-5)."""
    p, q = (0.5, 0.2) if unary else (0.6, 0.2)
    reports = np.zeros((3, 3), bool) if unary else np.zeros(3, int)
    shares = np.array([0.5, 0.3, 0.2])
    client = CategoryClient(Categories(reports, 3, p, q))
    drawn = client.draws({"shares": np.broadcast_to(shares, (4, 50, 3))}, 100, np.random.default_rng(4))
    near = 5 * 0.5 / 20_000**0.5
    np.testing.assert_allclose([(drawn["value"] == k).mean() for k in range(3)], shares, atol=near)
    named = drawn["report"].mean((0, 1, 2)) if unary else [(drawn["report"] == k).mean() for k in range(3)]
    np.testing.assert_allclose(named, q + (p - q) * shares, atol=near)
    assert drawn["report"].ndim == 3 + unary


@pytest.mark.long
def test_pictures_are_written(tmp_path: Path) -> None:
    path = rate().plot(tmp_path / "rate.png", reference=rate(100.0))
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert path.stat().st_size > 10_000
