"""Calibration of posteriors from local reports: its bands and checks, where truths lie, and what is drawn and reported.

Statistical tests are seeded; each states how often it would fail by chance with another seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paper_samples import shown
from scipy.stats import binom, norm

from inference.bounds import Interval
from inference.draws import Sampling
from papers.ldp2021 import calibration
from papers.ldp2021 import column_fits as fits
from papers.ldp2021.calibration import GAMES, Calibration, Cell
from papers.ldp2021.column_fits import EPSILONS, Diagnosis
from papers.runner import Check

WELL = Diagnosis(r_hat=1.004, effective=800.0, attempts=1, divergences=0, seconds=1.5)
Places = dict[tuple[str, float], np.ndarray]


def uniform(seed: int = 1) -> Places:
    """Where truths lie if every posterior is right: as many repeats as in the paper, at each ε."""
    rng = np.random.default_rng(seed)
    return {
        (game.name, epsilon): rng.random((game.repeats, len(game.parameters)))
        for game in GAMES.values()
        for epsilon in EPSILONS
    }


def overconfident(places: np.ndarray, width: float) -> np.ndarray:
    """Where they lie in normal posteriors whose standard deviations are so many of the right ones."""
    return np.asarray(norm.cdf(norm.ppf(places) / width))


def results_of(places: Places, clipped: float = 0.1, fit: Diagnosis = WELL) -> calibration.Results:
    shares = {key: np.full(len(found), clipped if GAMES[key[0]].clips else 0.0) for key, found in places.items()}
    return calibration.Results(
        calibration.coverages(places), shares, {key: [fit] * len(found) for key, found in places.items()}
    )


def coverage_checks(places: Places) -> list[Check]:
    return [one for one in Calibration().checks(results_of(places)) if one.name.startswith("coverage")]


# --- bands and checks


def test_the_bands_are_exact_and_hold_together() -> None:
    """Outside of each lies at most 1 % of a K-th, half of it on either side; with one count less it would be more."""
    made = calibration.coverages(uniform())
    looked_at = sum(one.covered.size for one in made)
    assert looked_at == 4 * (2 + 6 + 1) * (len(EPSILONS) + 1)
    tail = 0.01 / looked_at / 2
    for one in made:
        for level, (low, high) in zip(calibration.LEVELS, one.bands, strict=True):
            least, most = round(low * one.repeats), round(high * one.repeats)
            assert binom.cdf(least - 1, one.repeats, level) < tail <= binom.cdf(least, one.repeats, level)
            assert binom.sf(most, one.repeats, level) <= tail < binom.sf(most - 1, one.repeats, level)


def test_repeats_of_all_epsilons_are_counted_together() -> None:
    made = [one for one in calibration.coverages(uniform()) if one.game.name == "Gaussian"]
    assert [one.repeats for one in made] == [500] * 6 + [3000]
    assert np.array_equal(made[-1].covered, sum(one.covered for one in made[:-1]))
    assert made[-1].epsilon is None
    single = calibration.coverages({("exponential", 1.0): np.full((80, 1), 0.3)})
    assert len(single) == 1
    assert single[0].covered.tolist() == [[80, 80, 80, 80]]


def test_central_intervals_hold_quantiles_within_half_their_level_of_the_middle() -> None:
    found = np.array([[0.5], [0.26], [0.24], [0.84], [0.86], [0.96], [0.02], [0.99]])
    (one,) = calibration.coverages({("exponential", 1.0): found})
    assert one.covered.tolist() == [[2, 4, 5, 6]]


def test_right_posteriors_pass() -> None:
    """False alarm 1 % at most, by what the band is."""
    assert all(check.holds for check in Calibration().checks(results_of(uniform())))


@pytest.mark.parametrize(("model", "width"), [("Gaussian", 0.8), ("histogram", 0.7), ("exponential", 0.65)])
def test_overconfident_posteriors_are_found_by_their_own_check(model: str, width: float) -> None:
    """Of one model alone, at all ε: it fails, and those of the others do not (1 %)."""
    planted = {key: overconfident(found, width) if key[0] == model else found for key, found in uniform(2).items()}
    checks = coverage_checks(planted)
    assert len(checks) == 3
    for check in checks:
        assert check.holds == (model not in check.name), check
        assert check.holds == (check.found == "all inside")


def test_a_single_parameter_off_at_a_single_epsilon_is_found_and_named() -> None:
    """Its posterior is off by 0.8 of its standard deviation: at 50 % covered 36 times in 100, of 500."""
    planted = uniform(3)
    planted["Gaussian", 0.1][:, 1] = norm.cdf(norm.ppf(planted["Gaussian", 0.1][:, 1]) + 0.8)
    check = coverage_checks(planted)[0]
    assert not check.holds
    assert "sd at ε = 0.1, 50%" in check.found
    assert "mean" not in check.found


def test_checks_of_chains_clipping_and_time_can_fail() -> None:
    def failing(found: calibration.Results) -> list[str]:
        return [check.name for check in Calibration().checks(found) if not check.holds]

    assert failing(results_of(uniform(), fit=WELL._replace(r_hat=1.1))) == ["R-hat"]
    assert failing(results_of(uniform(), clipped=0.001)) == ["values clipped, Gaussian", "values clipped, exponential"]
    assert failing(results_of(uniform(), clipped=0.6)) == ["values clipped, Gaussian", "values clipped, exponential"]
    slow = results_of(uniform(), fit=WELL._replace(seconds=9.7))  # 500 times this are 40.4 minutes of two cores
    assert failing(slow) == ["time of 500 repeats, Gaussian, at the slowest ε"]
    assert calibration.minutes([WELL._replace(seconds=9.6)] * 3, 500) == pytest.approx(40.0)


def test_figures_are_plain_and_tables_mark_deviations(tmp_path: Path) -> None:
    planted = uniform(4)
    planted["exponential", 0.5] = np.full((80, 1), 0.01)
    made = {one.title.split(":")[0]: one for one in shown(Calibration(), results_of(planted), tmp_path) if one.title}
    cells = [list(column.cells) for column in made["Figure 11, exponential"].columns]
    assert [column[2] for column in cells[:4]] == ["0.5", "rate", "0.0*", "0.0*"]
    assert all("*" not in str(cell) for column in made["Figure 1, Gaussian"].columns for cell in column.cells)


# --- the game


def test_cells_hold_every_repeat_of_the_paper_once() -> None:
    cells = Calibration().cells()
    assert len({str(cell) for cell in cells}) == len(cells)
    for name, repeats in (("Gaussian", 500), ("histogram", 100), ("exponential", 80)):
        for epsilon in EPSILONS:
            own = [cell for cell in cells if (cell.model, cell.epsilon) == (name, epsilon)]
            assert [r for cell in own for r in range(cell.first, cell.first + cell.number)] == list(range(repeats))
    assert {cell.model for cell in Calibration(figure=(11,)).cells()} == {"exponential"}
    assert sum(cell.number for cell in Calibration(figure=(1,), **Calibration.QUICK).cells()) == 16


def test_places_are_the_shares_of_draws_below() -> None:
    draws = {"a": np.arange(8.0).reshape(2, 4), "b": np.stack([np.zeros((2, 4)), np.ones((2, 4))], axis=-1)}
    found = calibration.places(draws, {"a": np.array([2.5]), "b": np.array([[0.5, 0.5]])})
    assert found == pytest.approx([3.5 / 9, 8.5 / 9, 0.5 / 9], abs=1e-5)


@pytest.mark.parametrize(("name", "least", "most"), [("Gaussian", 0.05, 0.13), ("exponential", 0.12, 0.20)])
def test_priors_clip_some_values_and_not_others(name: str, least: float, most: float) -> None:
    """Of 400 data sets of 50 clients each: means within five of their errors (false alarm 1e-6)."""
    game, rng = GAMES[name], np.random.default_rng(6)
    clipped = np.array([game.draw(50, 1.0, rng).clipped for _ in range(400)])
    assert least < clipped.mean() < most
    assert np.mean(clipped == 0) > 0.1
    assert np.mean(clipped > 0.3) > 0.05


def test_reports_of_numbers_are_in_their_own_units_with_the_noise_of_epsilon() -> None:
    """40,000 reports at noise of scale 2.5: the mean within five errors, the spread within 4 % (1e-6)."""
    x = np.repeat([-3.0, 1.0, 4.0, 9.0], 10_000)  # two are clipped, to 0 and 5
    reports = fits.number_reports(x, Interval(0, 5), 2.0, np.random.default_rng(1))
    assert (reports.mechanism, reports.epsilon, reports.delta) == ("grid-laplace", 2.0, 0.0)
    assert reports.values.shape == (40_000,)
    assert reports.noise_scale == pytest.approx(2.5, rel=1e-6)
    noise = reports.values - np.clip(x, 0, 5)
    assert abs(noise.mean()) < 5 * 2.5 * np.sqrt(2 / 40_000)
    assert np.abs(noise).mean() == pytest.approx(2.5, rel=0.04)


# --- fits


def stand_in(r_hats: Sequence[float], calls: list[dict[str, Any]]) -> Any:
    """A fit whose attempts have these R̂."""

    def fit(**how: Any) -> Any:
        mixing = [SimpleNamespace(r_hat=r_hats[len(calls)], bulk=500.0, tail=300.0)]
        calls.append(how)
        return SimpleNamespace(mixing=mixing, sampling=SimpleNamespace(divergences=np.array([0, 2])))

    return fit


def test_unmixed_chains_are_sampled_anew_and_longer() -> None:
    calls: list[dict[str, Any]] = []
    _, figures = fits.mixed(stand_in([1.3, 1.1, 1.02], calls), 1000, 7)
    assert [(how["warmup"], how["draws"], how["seed"]) for how in calls] == [
        (500, 500, 7),
        (1000, 1000, 8),
        (2000, 2000, 9),
    ]
    assert all(how["chains"] == 4 and how["require_mixed"] is False for how in calls)
    assert figures[:4] == (1.02, 300.0, 3, 2)
    _, bad = fits.mixed(stand_in([np.inf] * 3, []), 1000, 7)
    assert (bad.r_hat, bad.attempts) == (1000.0, 3)
    assert fits.check_mixed([figures]).holds
    assert not fits.check_mixed([figures, bad]).holds
    assert fits.described([figures, bad, WELL])["above_1.01"] == 2
    assert fits.described([figures, bad, WELL])["sampled_again"] == 2


@pytest.mark.parametrize("name", list(GAMES))
def test_every_repeat_uses_the_public_functions_of_the_sampler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real reports, whose bounds, noise and ε the fits hold against one another; the sampler is a stand-in.

    Repeats have streams of their own: the second one of a cell is the same alone.
    """
    nuts = pytest.importorskip("inference.mcmc.nuts")
    sampling = Sampling(np.zeros(4, int), np.full(4, 0.9), np.zeros(4, int), np.full(4, 0.5), 1.0)
    priors: list[Any] = []

    def sample(model: Any, data: Any, options: Any, *_: Any, **__: Any) -> Any:
        draws, seed = options.draws, options.seed
        priors.append(data["prior"])
        rng = np.random.default_rng(seed)
        shapes = {"Gaussian": {"mean": (), "sd": ()}, "exponential": {"rate": ()}, "histogram": {"shares": (6,)}}[name]
        drawn = {site: rng.gamma(2.0, size=(4, draws, *shape)) for site, shape in shapes.items()}
        return nuts.Sampled(drawn, {}, sampling)

    monkeypatch.setattr(nuts, "sample", sample)
    monkeypatch.setitem(GAMES, name, GAMES[name]._replace(clients=100))
    experiment = Calibration(seed=5)
    both = experiment.work(Cell(name, 1.0, 0, 2))
    alone = experiment.work(Cell(name, 1.0, 1, 1))
    assert both["places"][1] == alone["places"][0] != both["places"][0]
    assert both["clipped"][1] == alone["clipped"][0]
    (found,) = experiment.gather([Cell(name, 1.0, 0, 2)], [json.loads(json.dumps(both))]).coverages
    assert (found.repeats, len(found.covered)) == (2, len(GAMES[name].parameters))
    expected = {
        "Gaussian": {"mean": 0.0, "mean_sd": 0.5, "sd": 0.2, "log_sd": 0.8},  # in half-widths, of 5
        "exponential": {"shape": 2.0, "rate": 10 / 3},
        "histogram": {"concentration": np.ones(6)},
    }[name]
    for number, value in expected.items():
        np.testing.assert_allclose(priors[0][number], value)
