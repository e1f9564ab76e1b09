"""Figure 2: the published formulas and their faults, the corrected ones, ours, and the checks that judge them.

Statistical tests are seeded; each states how often it would fail by chance with another seed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from paper_samples import shown

from dca_proto.aggregate import RoundRequest
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.budget import Budget
from inference.bounds import Interval
from inference.datasets.uci import abalone_schema, wine_schema
from inference.models.linear.closed_form import NOISE_AWARE
from inference.models.linear.job import regression_with_projection
from inference.problem import Problem, Schema
from inference.rounds import run
from papers.dca2017 import corrected, data, figure_2_drawing, published
from papers.dca2017 import figure_2 as cells
from papers.dca2017.corrected import SEPARATE, Accounting
from papers.dca2017.data import BOUNDS
from papers.dca2017.figure_2 import (
    CENTRED,
    CORRECTED,
    NP,
    OURS,
    PROJ_DDP,
    ZERO,
    Figure2,
    Results,
    Searched,
    Split,
    median_interval,
)
from papers.dca2017.rounds import DISTRIBUTED, PERTURBED, TRUSTED, UNNOISED, round_by_round, swarm

needs_data = pytest.mark.skipif("DCA_DATA" not in os.environ, reason="DCA_DATA names no folder of data sets")


def small(rows: int = 150, seed: int = 3) -> tuple[Problem, Problem]:
    """A problem of two features with bounds that some rows exceed."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows + 50, 2)) * [1.0, 4.0] + [2.0, 0.0]
    y = X @ [0.8, -0.3] + 0.5 * rng.standard_normal(rows + 50)
    bounds = {"a": Interval(-1, 5), "b": Interval(-9, 9), "y": Interval(-4, 6)}
    whole = Problem("small", Schema(("a", "b"), "y", bounds), X, y)
    return whole.take(np.arange(rows)), whole.take(np.arange(rows, rows + 50))


def test_eq_12_is_the_sum_over_pairs() -> None:
    bounds = np.array([1.0, 2.0, 0.5, 3.0])
    x, y = bounds[:-1], bounds[-1]
    pairs = sum((2 * x[j] * x[k]) ** 2 for j in range(3) for k in range(j + 1, 3))
    expected = sqrt((x**4).sum() + pairs + ((2 * x * y) ** 2).sum())
    assert_allclose(published.box_sensitivity(bounds), expected, rtol=1e-12)
    assert_allclose(published.box_sensitivity(np.ones(12)), sqrt(11 * 25), rtol=1e-12)  # 16.58, against 12 if tight


def test_the_std_round_has_7_5_times_too_little_noise() -> None:
    right = sqrt(12) * data.BOUND**2
    assert_allclose(right / published.std_sensitivity(11), 7.5, rtol=1e-12)
    budget = corrected.shares(1.0)[0]
    found = SEPARATE.squares_std(1.0, 12) * mu_of(budget.epsilon, budget.delta)
    assert_allclose(found, right, rtol=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "classical", "exact"),
    [(1, 4.344, 3.186), (10**0.5, 1.374, 1.169), (10, 0.434, 0.455), (10**1.5, 0.137, 0.194)],
)
def test_the_classical_mechanism_adds_too_little_at_large_epsilon(
    epsilon: float, classical: float, exact: float
) -> None:
    assert published.classical_sigma(epsilon) == pytest.approx(classical, abs=6e-4)
    assert 1 / mu_of(epsilon, data.DELTA) == pytest.approx(exact, abs=6e-4)


def test_joint_accounting_and_the_tight_sensitivity_leave_0_38_of_the_noise() -> None:
    ours = 1 / (mu_of(1.0, data.DELTA) * sqrt(1 - corrected.JOINT_SHARE))
    assert ours == pytest.approx(3.36, abs=5e-3)
    theirs = published.classical_sigma(0.7, 0.7 * data.DELTA)
    assert theirs == pytest.approx(6.32, abs=5e-3)
    eq_12, tight = float(published.box_sensitivity(np.ones(12))), 12.0
    assert ours * tight / (theirs * eq_12) == pytest.approx(0.38, abs=6e-3)
    assert ours * tight / float(SEPARATE.std(1.0, np.ones(12))) == pytest.approx(0.54, abs=6e-3)
    assert ours * tight == pytest.approx(float(Accounting(joint=True, tight=True).std(1.0, np.ones(12))), rel=1e-9)


@pytest.mark.parametrize("target", [0.5, 1.7, 2.5])  # the last is beyond the features' norm
def test_the_least_sensitivity_is_the_one_that_the_protocol_knows(target: float) -> None:
    whole, _ = small()
    limits = np.array([0.9, 1.3, target])
    known = corrected.tight_sensitivity(whole.schema, limits)
    assert_allclose(known, corrected.least_sensitivity(limits), rtol=5e-4)  # bounds are on the grid there
    assert known < published.box_sensitivity(limits)


def test_the_published_search_takes_the_fourth_power_of_the_sensitivity() -> None:
    rng = np.random.default_rng(4)
    x, y, noise = rng.standard_normal((40, 2)), rng.standard_normal(40), rng.standard_normal((1, 5))
    found = published._search_errors(x, y, 0.4, np.array([0.7]), noise)
    xc, yc = np.clip(x, -0.4, 0.4), np.clip(y, -0.7, 0.7)
    delta = float(published.box_sensitivity(np.array([0.4, 0.4, 0.7])))
    u = noise[0] * delta**4
    xx = xc.T @ xc + [[u[0], u[1]], [u[1], u[2]]]
    beta = np.linalg.solve(xx + np.eye(2), xc.T @ yc + u[3:])
    assert_allclose(found, [np.abs(x @ beta - y).mean()], rtol=1e-10)


def omega(n: int, d: int, epsilon: float, repeats: int, grid: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
    """The authors' search line by line: places in the grid."""
    errors = np.zeros((len(grid), len(grid)))
    for _ in range(repeats):
        x = rng.standard_normal((n, d))
        x = x - x.mean(axis=0)
        x = x / np.sqrt((x**2).sum(axis=1))[:, None]
        beta = rng.standard_normal(d)
        y = x @ beta + rng.standard_normal(n)
        y = y - y.mean()
        sx, sy = np.std(x, ddof=1), np.std(y, ddof=1)
        for _ in range(repeats):
            scale = sqrt(n / (n - 1) * 2 * np.log(1.25 / 1e-4)) / epsilon
            noise = scale * rng.standard_normal(d * (d + 1) // 2 + d)
            U = np.zeros((d, d))
            U[np.triu_indices(d)] = noise[:-d]
            U = U + np.triu(U, 1).T
            for i, w in enumerate(grid):
                for j, v in enumerate(grid):
                    c1, c2 = w * sx, v * sy
                    xc, yc = np.clip(x, -c1, c1), np.clip(y, -c2, c2)
                    sensitivity = d * c1**4 + d * (d - 1) * 2 * c1**4 + d * (2 * c1 * c2) ** 2
                    xx = xc.T @ xc + U * sensitivity**2
                    mean = np.linalg.solve(np.identity(d) + xx, xc.T @ yc + noise[-d:] * sensitivity**2)
                    errors[i, j] += np.abs(x @ mean - y).mean()
    i, j = np.unravel_index(errors.argmin(), errors.shape)
    return int(i), int(j)


def test_the_published_search_is_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = published.THRESHOLDS[::2]
    monkeypatch.setattr(published, "THRESHOLDS", grid)
    monkeypatch.setattr(published, "SEARCH_REPEATS", 2)
    chosen = set()
    for seed in range(8):
        places = omega(60, 3, 10.0, 2, grid, np.random.default_rng(seed))
        found = published.search(60, 3, 10.0, np.random.default_rng(seed))
        assert found == tuple(grid[list(places)])
        chosen.add(found)
    assert len(chosen) > 2  # not always the same corner


def test_negative_variances_become_a_half_and_thresholds_stay_within_the_bounds() -> None:
    limits = corrected.limits_of(np.array([-5.0, 200.0, 1e6]), 100, (1.0, 2.0))
    assert_allclose(limits, [sqrt(0.5), sqrt(2.0), data.BOUND])


@needs_data
@pytest.mark.parametrize(
    ("name", "as_published", "expected"),
    [
        ("wine-red", True, 0.644),
        ("wine-white", True, 0.657),
        ("abalone", True, 0.573),
        ("wine-red", False, 1.016),
        ("wine-white", False, 0.978),
    ],
)
def test_non_private_errors_with_and_without_the_wine_fault(name: str, as_published: bool, expected: float) -> None:
    rows = data.scaled(data.problem(name, None, as_published=as_published).rows)
    found = []
    for repeat in range(Figure2().repeats):
        first, second = data.rows_apart(name, len(rows), repeat, seed=1)
        rng = np.random.default_rng(0)
        found.append(published._mae(rows[first], rows[second], 0.0, rng))
    assert float(np.median(found)) == pytest.approx(expected, abs=0.02)


@needs_data
def test_a_cell_has_all_methods_of_all_settings() -> None:
    multiples = {setting: [1.0, 1.5] for setting in (*cells.SETTINGS, *cells.PAIRED)}
    cell = Split("wine-red", 10.0, 4)
    experiment, chosen = Figure2(draws=2, searches=3), {str(Searched("wine-red", 10.0, 1)): multiples}
    found = experiment.errors(cell, chosen)
    methods = {"NP", "proj NP", "TA", "DDP", "input perturbed", "proj TA", "proj DDP", "zero predictor"}
    assert set(found["errors"]) == set(cells.SETTINGS)
    assert all(methods <= set(one) for one in found["errors"].values())
    assert {name: len(one) for name, one in found["paired"].items()} == dict.fromkeys(cells.PAIRED, 2)
    assert len({tuple(one) for one in found["paired"].values()}) == len(cells.PAIRED)  # each step changes something
    assert found == experiment.errors(cell, chosen)  # the same seed, the same figures


def test_a_published_run_follows_its_formulas() -> None:
    """At a huge ε nothing is left but projection: TA and DDP are NP, the projected methods proj NP."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((300, 3)) @ [[1, 0, 0.5], [0, 1, -0.5], [0, 0, 1]]
    found = published.maes(rows[:200], rows[200:], 1e9, (0.8, 1.2), rng)
    assert_allclose([found[method] for method in ("TA", "DDP", "input perturbed")], found["NP"], rtol=1e-5)
    assert_allclose(found["proj DDP"], found["proj NP"], rtol=1e-5)
    assert found["proj NP"] != pytest.approx(found["NP"], rel=1e-4)


def test_the_assumptions_are_a_mean_and_a_range() -> None:
    whole = Problem("wine-red", wine_schema(), np.zeros((2, 11)), np.array([3.0, 8.0])).bounded(BOUNDS["wine-red"])
    known = data.assumed("wine-red", whole)
    assert not known.private, "the range is that of the rows, whoever published it"
    assert (known.bounds["pH"].centre, known.bounds["pH"].half_width) == pytest.approx((3.3, 0.75 * 1.3))
    assert known.bounds["quality"].centre == pytest.approx(5.6)
    shells = Problem("abalone", abalone_schema(), np.zeros((2, 8)), np.array([1.0, 29.0]))
    assert data.assumed("abalone", shells).bounds["rings"].centre == pytest.approx(9.934)


def test_constants_from_the_data_are_not_private() -> None:
    train, _ = small()
    known = data.assumed("small", train, data.FROM_DATA)
    assert not known.private
    assert known.bounds["y"].centre == pytest.approx(train.y.mean())
    assert_allclose(corrected.tenths(known), np.ptp(train.rows, axis=0) / 10)


def test_splits_are_the_same_for_every_epsilon_and_do_not_overlap() -> None:
    first, second = data.rows_apart("wine-red", 1599, 3, seed=1)
    assert (len(first), len(second), len({*first, *second})) == (1000, 500, 1500)
    assert not np.array_equal(first, data.rows_apart("wine-red", 1599, 4, seed=1)[0])


def test_runs_of_one_seed_share_their_noise_up_to_theorem_1() -> None:
    train, _ = small()
    n, columns = len(train.y), list(train.schema.columns)
    exact = {"columns": columns, "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [5.0] * 3}
    values = {}
    for mode in (TRUSTED, DISTRIBUTED, PERTURBED):
        values[mode] = swarm(train, Budget(1.0, 1e-4), mode, 1, "a").run_round(RoundRequest("regression", exact))
    noiseless = swarm(train, Budget(140.0, 1e-4), TRUSTED, 1, "a").run_round(RoundRequest("regression", exact)).value
    ratio = [values[mode].noise_variance / values[TRUSTED].noise_variance for mode in (DISTRIBUTED, PERTURBED)]
    assert_allclose(ratio, [n / (n - 1), n], rtol=1e-6)
    added = [values[mode].value - noiseless for mode in (TRUSTED, DISTRIBUTED)]
    assert_allclose(added[1], added[0] * sqrt(n / (n - 1)), atol=0.05)  # noise of 100 and more, 5 at epsilon 140
    assert not values[DISTRIBUTED].private


def test_without_noise_in_the_regression_only_projection_remains() -> None:
    train, _ = small()
    columns = list(train.schema.columns)
    limits = np.array([1.5, 3.0, 2.0])
    parameters = {"columns": columns, "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": limits.tolist()}
    rounds = {mode: swarm(train, Budget(1.0, 1e-4), mode, 1, "a") for mode in (DISTRIBUTED, UNNOISED)}
    sums = {mode: one.run_round(RoundRequest("second-moments", parameters)) for mode, one in rounds.items()}
    assert_allclose(sums[UNNOISED].value, sums[DISTRIBUTED].value, rtol=0)  # the standard deviations' noise stays
    released = rounds[UNNOISED].run_round(RoundRequest("regression", parameters))
    z = np.clip(train.rows, -limits, limits)
    i, j = np.triu_indices(2)
    assert_allclose(released.value, [*(z.T @ z)[i, j], *(z[:, :2].T @ z[:, 2])], rtol=1e-4)
    assert released.noise_variance == 0
    assert not released.private


def test_a_smaller_budget_stands_for_the_looser_sensitivity() -> None:
    train, _ = small()
    exact_hold = round_by_round(train, TRUSTED, 1, "a")
    variances = []

    def hold(request: RoundRequest, budget: Budget) -> object:
        released = exact_hold(request, budget)
        variances.append(released.noise_variance)
        return released

    corrected.regression(train.schema, hold, 2.0, NOISE_AWARE, (10.0, 10.0))
    assert_allclose(sqrt(variances[0]), SEPARATE.squares_std(2.0, 3), rtol=1e-5)
    assert_allclose(sqrt(variances[1]), SEPARATE.std(2.0, np.full(3, data.BOUND)), rtol=1e-5)


@pytest.mark.parametrize("draw", range(3))
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_paired_draws_are_what_the_ideal_functionality_makes_of_the_same_normals(
    monkeypatch: pytest.MonkeyPatch, epsilon: float, draw: int
) -> None:
    train, test = small()
    rng = np.random.default_rng(draw)
    normals = rng.standard_normal((2, 1, 100))
    given = corrected.Given(normals[:, 0])
    monkeypatch.setattr("papers.dca2017.rounds.RoundedGaussian", lambda: given)
    hold = round_by_round(train, DISTRIBUTED, 1, "theirs")
    beta = corrected.regression(train.schema, hold, epsilon, NOISE_AWARE, (0.9, 1.2))
    theirs = np.abs(corrected.predictions(train.schema, beta, test.X) - test.y).mean()
    found = corrected.corrected_errors(train, test, epsilon, (0.9, 1.2), NOISE_AWARE, SEPARATE, *normals)
    assert_allclose(found, [theirs], rtol=1e-4)

    rounds = swarm(train, Budget(epsilon, data.DELTA), DISTRIBUTED, 1, "own", corrected.Given(normals[:, 0]))
    own = np.abs(run(regression_with_projection(train.schema), rounds).predict(test.X)[0] - test.y).mean()
    assert_allclose(corrected.our_errors(train, test, epsilon, NOISE_AWARE, *normals), [own], rtol=1e-4)


def test_paired_runs_get_the_same_normals_in_parts() -> None:
    seen: dict[str, list[np.ndarray]] = {"a": [], "b": []}

    def run(name: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        seen[name].append(first)
        return second.sum(axis=1)

    found = corrected.paired_errors({name: partial(run, name) for name in seen}, 3, 50, np.random.default_rng(8))
    assert_allclose(found["a"], found["b"], rtol=0)
    assert found["a"].shape == (50,)
    assert len(set(found["a"].tolist())) == 50
    assert max(map(len, seen["a"])) < 50


def results(better: float) -> Results:
    """Made-up errors of one data set at two ε, ours by so much better than the corrected configuration."""
    rng = np.random.default_rng(9)
    private = ("TA", "DDP", "input perturbed", "proj TA", PROJ_DDP)
    methods = {NP: 1.016, ZERO: 1.375, **dict.fromkeys(private, 1.1)}
    runs = {method: value + 0.001 * rng.standard_normal((2, 25)) for method, value in methods.items()}
    runs["DDP"], runs[PROJ_DDP] = runs["TA"] * 1.0001, runs["proj TA"] * 1.0001
    faulty = {**runs, NP: runs[NP] - 0.372, ZERO: runs[ZERO] - 0.508}
    errors = dict.fromkeys(cells.SETTINGS, runs) | {cells.AS_PUBLISHED: faulty}
    noise = 0.01 * rng.standard_normal((2, 25, 40))
    return Results(
        (1.0, 10.0),
        {"wine-red": errors},
        {"wine-red": dict.fromkeys(cells.PAIRED, 1.1 + noise) | {OURS: 1.1 + noise - better}},
    )


@pytest.fixture(autouse=True)
def _red_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in (cells.PUBLISHED_NP, cells.RIGHT_NP):
        for other in ("wine-white", "abalone"):
            monkeypatch.delitem(wanted, other, raising=False)


def failing(found: Results) -> list[str]:
    return [check.name for check in Figure2().checks(found) if not check.holds]


def test_checks_hold_where_ours_is_better() -> None:
    assert failing(results(0.02)) == []


def test_checks_bite() -> None:
    assert failing(results(0.005)) == ["ours 10 % closer to non-private"]
    assert failing(results(-0.02)) == [
        "ours no worse than corrected, same repair",
        "ours no worse than corrected, centred by the data (not private)",
        "ours 10 % closer to non-private",
    ]
    good = results(0.02)
    stronger = {**good.paired["wine-red"], CENTRED: good.paired["wine-red"][OURS] - 0.02}
    assert failing(replace(good, paired={"wine-red": stronger})) == [
        "ours no worse than corrected, centred by the data (not private)"
    ]
    runs = dict(good.errors["wine-red"])
    apart = {**runs[CORRECTED], "DDP": runs[CORRECTED]["TA"] * 1.04}
    useless = {**runs[OURS], **dict.fromkeys(("proj TA", PROJ_DDP), runs[OURS][ZERO] + 1)}
    shifted = {**runs[cells.AS_PUBLISHED], NP: runs[cells.AS_PUBLISHED][NP] + 0.03}
    for setting, changed, message in (
        (CORRECTED, apart, "DDP as TA, corrected"),
        (OURS, apart, "DDP as TA, ours"),
        (OURS, useless, "ours beats the zero predictor at ε = 1, wine-red"),
        (cells.AS_PUBLISHED, shifted, "non-private, wine-red, as published"),
    ):
        assert failing(replace(good, errors={"wine-red": {**runs, setting: changed}})) == [message]


def test_the_interval_of_a_median_of_25_is_the_8th_to_the_18th() -> None:
    assert median_interval(np.arange(1.0, 26.0)) == (8.0, 18.0)


def test_a_paired_comparison_is_sharper_than_its_noise() -> None:
    one = next(results(0.02).compared(seed=1))
    assert one.worse == pytest.approx((-0.02, -0.02), abs=1e-9)
    assert one.closer == pytest.approx(0.02 / (one.corrected - one.nonprivate))
    assert one.is_closer


def test_results_are_put_in_order_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = results(0.02)
    splits = [Split("wine-red", epsilon, repeat) for epsilon in (1.0, 10.0) for repeat in range(25)]
    given = [
        {
            "errors": {
                setting: {method: values[int(one.epsilon > 1)][one.repeat] for method, values in methods.items()}
                for setting, methods in made.errors["wine-red"].items()
            },
            "paired": {s: v[int(one.epsilon > 1)][one.repeat].tolist() for s, v in made.paired["wine-red"].items()},
        }
        for one in splits
    ]
    found = Figure2().gather(splits, given)
    assert found.epsilons == (1.0, 10.0)
    assert_allclose(found.errors["wine-red"][OURS][NP], made.errors["wine-red"][OURS][NP])
    assert_allclose(found.paired["wine-red"][OURS], made.paired["wine-red"][OURS])
    steps = found.steps("wine-red")[OURS]
    assert steps == pytest.approx([one.ours for one in found.compared(seed=1)])
    monkeypatch.setattr(figure_2_drawing, "_FILES", {OURS: "ours"})
    assert [one.row_count for one in shown(Figure2(), found, tmp_path)] == [32, 2, 2, len(cells.SAID["differences"])]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure-compared.png", "figure-ours.png", "figure.png"]


def test_the_picture_has_the_papers_curves_on_its_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    kept = figure_2_drawing._panel

    def panel(axes: Any, methods: Any, top: float | None) -> None:
        kept(axes, methods, top)
        drawn.append(axes)

    monkeypatch.setattr(figure_2_drawing, "_panel", panel)
    monkeypatch.setattr(figure_2_drawing, "_FILES", {})
    figure_2_drawing.draw_all(results(0.02), tmp_path / "figure.png")
    assert len(drawn) == 2  # as published, and this library's
    for axes in drawn:
        assert {NP, "TA", "DDP", "proj TA", PROJ_DDP} <= set(axes.get_legend_handles_labels()[1])
        assert axes.get_ylim()[1] == data.BY_NAME["wine-red"].axis_max
    assert "NOT\nprivate as claimed" in drawn[0].get_ylabel()
    assert {*figure_2_drawing._STYLES} == {NP, "proj NP", "TA", "DDP", "input perturbed", "proj TA", PROJ_DDP}


def test_the_choice_of_the_corrected_search_grows_with_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrected, "THRESHOLDS", np.linspace(0.1, 2.1, 5))
    rng = np.random.default_rng(6)
    low, high = (corrected.search(500, 3, epsilon, NOISE_AWARE, rng) for epsilon in (1.0, 30.0))
    assert low[0] < high[0]
