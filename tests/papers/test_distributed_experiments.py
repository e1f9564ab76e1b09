"""The third paper's experiments: its data as published and valid, its noise and that noise's faults, tables, MMD.

Statistical tests are seeded; each states how often it would fail by chance with another seed.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import quick_and_double
from numpy.testing import assert_allclose

from dca_proto.privacy.accounting import delta_of, epsilon_of, mu_of
from dca_proto.privacy.budget import Budget
from dca_proto.statistics.sensitivity import REPLACE_ONE_ROW
from inference.bounds import Interval
from inference.models.linear.nodes.observed import NodeStatistics, Prior, nodes_of
from inference.problem import Schema
from papers.experiment import joint_interval
from papers.mcmc2023 import data, efficiency, fits, paper, releases, simulated, tables
from papers.mcmc2023.data import AIR_QUALITY, BIKE, POWER_PLANT, PUBLISHED, ROAD, VALID, Statistics
from papers.mcmc2023.paper import ADASSP, FAST, NORMAL_X, TABLES
from papers.mcmc2023.samplers.adassp import Sensitivities
from papers.mcmc2023.simulated import Work
from papers.mcmc2023.tables import NON_PRIVATE, ZERO, Cell, Found, Tables

needs_data = pytest.mark.skipif("DCA_DATA" not in os.environ, reason="DCA_DATA names no folder of data sets")


# --- data


@needs_data
@pytest.mark.parametrize(("name", "n", "d", "error"), [(POWER_PLANT, 7655, 4, 0.01269), (BIKE, 13904, 14, 0.0)])
def test_published_rows_give_the_known_least_squares_errors(name: str, n: int, d: int, error: float) -> None:
    rows = data.published(name, None)
    assert rows.X.shape == (n, d)
    theta = np.linalg.lstsq(rows.X, rows.y, rcond=None)[0]
    assert np.mean((rows.y_test - rows.X_test @ theta) ** 2) == pytest.approx(error, abs=5e-6)
    assert max(np.abs(rows.y).max(), np.abs(rows.y_test).max()) == 1
    assert rows.bound_x == np.linalg.norm(rows.X, axis=1).max()
    assert rows.delta == 1 / n


@needs_data
def test_the_settings_differ_in_columns_and_rows() -> None:
    assert data.published(AIR_QUALITY, None).X.shape == (7486, 12)
    assert data.valid(AIR_QUALITY, None, 0, 1).rows.shape == (5553, 12)  # 11 features and the target
    assert data.valid(BIKE, None, 0, 1).rows.shape == (13904, 13)  # neither casual nor registered
    first, again, other = (data.valid(BIKE, None, repeat, 1) for repeat in (0, 0, 1))
    assert np.array_equal(first.rows, again.rows)
    assert not np.array_equal(first.rows, other.rows)


def test_the_published_prior() -> None:
    found = releases.published_prior(2, np.eye(2))
    assert_allclose(found.C, np.eye(2) * 0.5 / 19)
    assert (float(found.a), float(found.b), float(found.kappa)) == (20, 0.5, 3)


def test_nodes_are_contiguous_blocks_and_the_last_has_the_rest() -> None:
    assert [(part.start, part.stop) for part in data.blocks(11, 3)] == [(0, 3), (3, 6), (6, 11)]
    X, y = np.arange(22.0).reshape(11, 2), np.arange(11.0)
    exact = Statistics.of(X, y, 3)
    assert exact.n.tolist() == [3, 3, 5]
    assert_allclose(exact.S.sum(axis=0), X.T @ X)
    assert_allclose(exact.z[2], X[6:].T @ y[6:])
    assert_allclose(exact.u, [5, 50, 330])


def test_the_substitute_for_3droad_has_its_size_and_error() -> None:
    whole = data.problem(ROAD, None, PUBLISHED)
    assert whole.X.shape == (434_874, 3)
    unit = np.abs(whole.y - whole.y.mean()).max()
    residual = whole.y - whole.X @ np.linalg.lstsq(whole.X, whole.y, rcond=None)[0]
    assert (residual**2).mean() / unit**2 == pytest.approx(0.0229, abs=5e-4)


def bounded(n: int = 400) -> data.Valid:
    """Rows of three features and a target, off the middle of their bounds, of which some lie outside."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, 3)) * [1.0, 0.5, 2.0] + [1.0, 0.0, -1.0]
    rows = np.column_stack([X, X @ [0.5, -0.2, 0.1] + 0.3 * rng.standard_normal(n)])
    names = ("a", "b", "c", "y")
    schema = Schema(names[:-1], "y", {name: Interval(-4, 4, "for a test") for name in names})
    return data.Valid(rows, rows[:50], schema, 2.0)


def test_standardised_rows_lie_in_box_and_ball_around_the_means() -> None:
    rows = bounded()
    means = rows.means
    X, y = rows.standardised(rows.rows, means, 0.5)
    assert np.linalg.norm(X, axis=1).max() == pytest.approx(0.5)
    assert np.abs(y).max() <= 1 + abs(means[-1])
    free, _ = rows.standardised(rows.rows, means)
    assert_allclose(free.mean(axis=0), 0, atol=0.02)  # but for rows outside of the bounds
    inside = np.linalg.norm(free, axis=1) <= 0.5
    assert_allclose(X[inside], free[inside])


# --- releases


def test_published_sensitivities_are_those_of_adding_or_removing() -> None:
    assert releases.published_sensitivity(1, 1) == pytest.approx(math.sqrt(2))
    assert releases.published_sensitivity(2, 1) == pytest.approx(math.sqrt(20))
    assert releases.published_sensitivity(2, 1, target_square=True) == pytest.approx(math.sqrt(21))
    ratios = [
        Sensitivities.replacement(1, Y).both / releases.published_sensitivity(1, Y) for Y in np.geomspace(1e-3, 1.4)
    ]
    assert min(ratios) == pytest.approx(1.414, abs=1e-3)
    assert max(ratios) == pytest.approx(1.63, abs=0.01)


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.1, 0.212), (1.0, 0.477), (10.0, 0.971)])
def test_the_published_noise_is_too_small(epsilon: float, ratio: float) -> None:
    """At δ = 1/7655, against the exact one; the published code's grid of 0.001 gives the same to three digits."""
    delta = 1 / 7655
    sigma = releases.coded_sigma(epsilon, delta)
    assert sigma * mu_of(epsilon, delta) == pytest.approx(ratio, abs=1e-3)
    assert delta_of(epsilon, 1 / sigma) > delta


def test_the_published_noise_at_epsilon_1_has_a_true_delta_of_0_032() -> None:
    assert delta_of(1.0, 1 / releases.coded_sigma(1.0, 1e-5)) == pytest.approx(0.032, abs=5e-4)


def test_the_page_states_how_wrong_the_published_noise_is() -> None:
    text = (Path(__file__).parents[2] / "docs/papers.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in text.split("<!-- wrong sigma -->")[1].split("<!--")[0].splitlines()]
    epsilons, *shown = ([float(cell) for cell in row[1:]] for row in rows if len(row) > 1 and "---" not in row[1])
    assert tuple(epsilons) == paper.EPSILONS
    delta, replaced = 1e-4, (math.sqrt(2), 1.633)  # times the sensitivity of adding or removing, Y from 0 to √2 X
    for place, epsilon in enumerate(epsilons):
        sigma, exact = releases.coded_sigma(epsilon, delta), 1 / mu_of(epsilon, delta)
        factor, mu = exact / sigma, replaced[0] / sigma
        known = (sigma, exact, factor, *(factor * more for more in replaced), epsilon_of(mu, delta))
        assert [row[place] for row in shown[:-1]] == pytest.approx(known, rel=6e-3)
        assert shown[-1][place] == pytest.approx(delta_of(epsilon, mu), abs=6e-4)


def test_all_that_is_as_published_is_marked() -> None:
    """The authors claim a privacy that none of these settings has."""
    pytest.importorskip("numpyro")
    from papers.dca2017 import figure_2
    from papers.ldp2021 import regression

    named = [data.TITLES[PUBLISHED], regression.TITLES[PUBLISHED], tables._TITLES[PUBLISHED]]
    for words in (*named, figure_2.SAID["settings"][figure_2.AS_PUBLISHED]["words"]):
        assert words.startswith("as published, NOT private as claimed")


def test_the_panels_of_figure_4_are_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    titles: list[str] = []
    kept = simulated.Figure4.panels

    def panels(self: Any, path: Path, rows: Any, nodes: Any, title: str, fill: Any) -> None:
        def filled(axes: Any, row: Any, J: Any) -> str:
            height = str(fill(axes, row, J))
            titles.append(axes.get_title())
            return height

        kept(self, path, rows, nodes, title, filled)

    monkeypatch.setattr(simulated.Figure4, "panels", panels)
    found = {Work(setting, 2, 1, FAST): np.geomspace(1, 1e-3, 7) for setting in (PUBLISHED, VALID)}
    simulated.Figure4().draw(found, tmp_path / "figure.png")
    assert titles == ["J = 1\nas published, NOT private as claimed", "J = 1\nvalid, another prior too"]


def test_figures_run_with_bernstein_and_sheldons_sampler_by_default() -> None:
    kinds = {work.method for work in simulated.Figure2().cells()}
    assert paper.BERNSTEIN_SHELDON in kinds
    assert len(simulated.Figure4().cells()) == 24
    assert paper.BERNSTEIN_SHELDON not in {cell.method for cell in Tables().cells()}


def test_samplers_that_have_not_mixed_are_shown(tmp_path: Path) -> None:
    """R̂ is in a table, and in the panel where it is above what the library requires of its own chains."""
    experiment = simulated.Figure2()
    work = Work(PUBLISHED, 5, 1, NORMAL_X, 10_000)
    errors = {name: np.full((7, 50), 1e-3).tolist() for name in simulated.MEASURES}
    curves = experiment.gather([work], [errors | {"split_rhat_median": 1.31, "split_rhat_max": 1.9}])
    *_, mixing = experiment.tables(curves)
    assert list(mixing.columns[1].cells) == ["1.31 (1.90)"]
    assert "largest" in str(mixing.title)
    experiment.draw(curves, tmp_path / "figure.png")


def test_noise_is_split_only_where_that_is_less() -> None:
    joint = releases.published_sensitivity(2, 1) * releases.coded_sigma(1, 1e-4)
    assert releases.published_noise(2, 1, 1, 1e-4) == (joint, joint)
    half = releases.coded_sigma(0.05, 0.05)
    for X, Y in product((0.5, 1, 3), (0.5, 1, 3)):
        sigma_S, sigma_z = releases.published_noise(X, Y, 0.1, 0.1)
        both = releases.published_sensitivity(X, Y) * releases.coded_sigma(0.1, 0.1)
        assert sigma_S**2 + sigma_z**2 <= max(2 * both**2, (X**2 * half) ** 2 + (X * Y * half) ** 2)


def test_noise_is_symmetric_and_has_the_stated_variance() -> None:
    """Sample variances of 6,000 terms: by chance outside of 10 % about once in 10⁷ seeds."""
    exact = Statistics(np.zeros((1000, 3, 3)), np.zeros((1000, 3)), np.zeros(1000), np.full(1000, 9))
    found = releases.with_noise(exact, 2.0, 3.0, np.random.default_rng(1), sigma_u=5.0)
    assert_allclose(found.S, found.S.transpose(0, 2, 1))
    assert found.S[:, *np.triu_indices(3)].var() == pytest.approx(4, rel=0.1)
    assert found.z.var() == pytest.approx(9, rel=0.15)
    assert found.u.var() == pytest.approx(25, rel=0.25)
    assert set(found.variance_S), set(found.variance_u) == ({4.0}, {25.0})
    assert np.isnan(releases.with_noise(exact, 2.0, 3.0, np.random.default_rng(1)).u).all()


def test_valid_rounds_are_local_for_a_replaced_row_and_within_the_budget() -> None:
    rows = bounded()
    rounds = releases.Rounds(rows, 2, 50.0, np.random.default_rng(3).bytes)
    means = rounds.means()
    assert_allclose(means, rows.means, atol=0.05)  # the noise's standard deviation is 0.003
    released = rounds.regression(means, target_square=True)
    assert released.relation == REPLACE_ONE_ROW
    assert [node.contributors for node in released.nodes] == [200, 200]
    assert released.mu is not None
    assert released.mu**2 <= (1 - releases.MEANS_SHARE) * rounds.budget.mu**2
    X, y = rows.standardised(rows.rows, means, rows.radius)
    exact, observed = Statistics.of(X, y, 2), nodes_of(released)
    assert_allclose(observed.S, exact.S, atol=6 * np.sqrt(observed.variance_S[0]))
    assert_allclose(observed.z, exact.z, atol=6 * np.sqrt(observed.variance_z[0]))


# --- tables


def test_the_papers_tables_are_complete() -> None:
    assert set(TABLES) == set(product(data.DATA_SETS, paper.NODES, paper.METHODS))
    for printed in TABLES.values():
        assert printed.low <= printed.mean <= printed.high
    assert TABLES[POWER_PLANT, 1, FAST].mean == 0.0129
    assert TABLES[AIR_QUALITY, 10, NORMAL_X] == (0.0985, 0.0733, 0.1236)


def test_intervals_are_students_of_the_mean() -> None:
    values = np.random.default_rng(2).standard_normal(50)
    _, low, high = joint_interval(values, 0.9)
    assert (low + high) / 2 == pytest.approx(values.mean())
    assert (high - low) / 2 == pytest.approx(1.6765509 * values.std(ddof=1) / math.sqrt(50))  # t(0.95, 49)


def test_widened_intervals_are_three_times_as_wide() -> None:
    assert tables.widened(TABLES[POWER_PLANT, 1, FAST]) == (0.0127, 0.0130)
    assert tables.is_near(0.01304, TABLES[POWER_PLANT, 1, FAST])
    assert not tables.is_near(0.01306, TABLES[POWER_PLANT, 1, FAST])


def test_a_mean_outside_of_the_papers_interval_is_a_miss() -> None:
    key = (POWER_PLANT, 10, ADASSP)
    (missed,) = Tables().checks([Found(Cell(PUBLISHED, *key), 0.05, 0.04, 0.06)])
    assert not missed.holds
    assert "power plant, J = 10: 0.0500" in missed.found
    (near,) = Tables().checks([Found(Cell(PUBLISHED, *key), TABLES[key].mean, 0.0, 1.0)])
    assert near.holds


def test_errors_from_sums_are_those_of_the_rows() -> None:
    rng = np.random.default_rng(4)
    X, y, theta = rng.standard_normal((30, 3)), rng.standard_normal(30), rng.standard_normal(3)
    sums = Statistics.of(X, y, 1)
    case = tables.Case(sums, sums, 2.0, 1.0, 1.0, 1.0, 0.1, None)
    assert case.error(theta) == pytest.approx(4 * np.mean((y - X @ theta) ** 2))


@needs_data
def test_cells_in_closed_form_are_near_the_papers() -> None:
    """Five repeats for its 50: adaSSP's sd is 0.0004, so its mean is off by 0.001 in less than one of 10⁷ seeds."""
    experiment = Tables(data_folder=Path(os.environ["DCA_DATA"]), repeats=5)
    errors = {m: np.mean(experiment.work(Cell(PUBLISHED, POWER_PLANT, 1, m))["errors"]) for m in (FAST, ADASSP, ZERO)}
    assert errors[FAST] == pytest.approx(0.0129, abs=5e-4)
    assert errors[ADASSP] == pytest.approx(0.0139, abs=1e-3)
    assert errors[ZERO] == pytest.approx(0.1684, abs=1e-4)


@needs_data
def test_cells_of_the_valid_setting_lie_between_no_privacy_and_no_data() -> None:
    """Their errors differ by ten standard deviations and more."""
    experiment = Tables(data_folder=Path(os.environ["DCA_DATA"]), repeats=3)
    methods = (NON_PRIVATE, FAST, ADASSP, ZERO)
    errors = [np.mean(experiment.work(Cell(VALID, POWER_PLANT, 5, m))["errors"]) for m in methods]
    assert errors == sorted(errors)
    assert errors[0] == pytest.approx(0.012, abs=0.001)


def test_the_halves_of_chains_reveal_drift() -> None:
    rng = np.random.default_rng(6)
    still = rng.standard_normal((2, 1, 1000, 3))
    assert fits.split_rhat(still).max() < 1.02
    drifting = still + np.linspace(0, 5, 1000)[:, None]
    assert fits.split_rhat(drifting).min() > 1.5
    apart = np.concatenate([still, still + 5], axis=1)
    assert fits.split_rhat(apart).min() > 1.5


def test_all_that_a_data_node_spends_for_adassp_is_within_its_budget() -> None:
    """All three are Gaussian mechanisms, so that their μ² add up: means, S with z, and the smallest eigenvalue."""
    for delta in (1e-3, 1e-4, 1e-6):
        whole = Budget(tables.EPSILON, delta)
        left = whole.share(1 - releases.MEANS_SHARE).epsilon
        spent = mu_of(2 * left / 3, 2 * delta / 3) ** 2 + mu_of(left / 3, delta / 3) ** 2
        assert spent + releases.MEANS_SHARE * whole.mu**2 <= whole.mu**2


def test_local_rounds_of_centred_rows_are_seen_in_their_own_units() -> None:
    rng = np.random.default_rng(8)
    parts = list(rng.uniform(-1, 1, (2, 300, 3)) * [1.0, 1.0, 5.0])
    found = releases.local_round(parts, (2.0, 5.0), Budget(100.0, 1e-4), rng.bytes, target_square=True)
    exact = Statistics.of(np.vstack(parts)[:, :2], np.vstack(parts)[:, 2], 2)
    for name, variance in (("S", found.variance_S), ("z", found.variance_z), ("u", found.variance_u)):
        assert_allclose(getattr(found, name), getattr(exact, name), atol=6 * math.sqrt(variance.max()))
    assert_allclose(found.variance_z / found.variance_S, 5**2 / 2**2)


@pytest.mark.long
def test_many_problems_in_parts_have_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part is filled up, and what fills it is left out."""
    import jax

    from papers.mcmc2023.samplers import sampler
    from papers.mcmc2023.samplers.kernel import Info, Kernel

    def init(key: jax.Array, observed: NodeStatistics, prior: Prior) -> jax.Array:
        return observed.z[0]

    def step(key: jax.Array, state: jax.Array, *_: object) -> tuple[jax.Array, Info]:
        return state + jax.random.key_data(key) % 101, Info({}, state[0] < state[1])  # compiles quickly

    kernel = Kernel(init, step, lambda state: {"theta": state})
    exact = Statistics(4.0 * np.eye(2)[None], np.ones((1, 2)), np.ones(1), np.array([9]))
    problems = [releases.with_noise(exact, 0.1, 0.1, np.random.default_rng(seed)) for seed in range(5)]
    options = {"chains": 2, "warmup": 3, "draws": 4}

    def run() -> sampler.Chains:
        return sampler.sample(kernel, problems, Prior.default(2), names=["theta"], **options)

    with quick_and_double():
        at_once = run()
        monkeypatch.setattr(sampler, "AT_ONCE", 4)
        in_parts = run()
    assert_allclose(in_parts.draws["theta"], at_once.draws["theta"])
    assert np.array_equal(in_parts.divergences, at_once.divergences)
    assert 0 < at_once.divergences.sum() < 40
    with quick_and_double():
        options |= {"draws": 2, "thin": 2}
        thinned = run()
    assert_allclose(thinned.draws["theta"], at_once.draws["theta"][:, :, 1::2])


def test_adaptation_as_published_begins_late_and_never_ends() -> None:
    from papers.mcmc2023.samplers.kernel import Kernel, Schedule, gain

    def step(key: object, state: object, observed: object, prior: object, schedule: Schedule) -> float:
        return float(gain(schedule))

    kernel = fits.adapted_as_published(Kernel(max, step, max), 100)
    gains = [kernel.step(None, None, None, None, Schedule(np.array(i), np.array(500))) for i in (0, 99, 100, 5000)]
    assert gains[:2] == [0, 0]
    assert_allclose(gains[2:], [101**-0.6, 5001**-0.6], rtol=1e-5)


# --- Figures 2 and 4


def test_the_mmd_is_that_of_two_loops() -> None:
    rng = np.random.default_rng(7)
    x, y, h = rng.standard_normal((6, 2)), rng.standard_normal((5, 2)) + 0.3, 0.1

    def k(a: np.ndarray, b: np.ndarray) -> float:
        return math.exp(-float(((a - b) ** 2).sum()) / (2 * h)) / (2 * math.pi * h)

    first = np.mean([k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    second = np.mean([k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    both = np.mean([k(a, b) for a in x for b in y])
    assert simulated.mmd_squared(x, y, h) == pytest.approx(first + second - 2 * both, rel=1e-12)


def test_simulated_rows_are_of_their_population() -> None:
    """Relative errors of second moments of 10⁵ rows: beyond 3 % less than once in 10⁹ seeds."""
    of = simulated.population(2, 1)
    assert_allclose(of.X.T @ of.X / len(of.y), of.Sigma_x, atol=0.03 * of.Sigma_x.diagonal().max())
    assert np.var(of.y - of.X @ of.theta) == pytest.approx(1, rel=0.03)
    mean, spread, a, b = simulated.non_private(of)
    assert_allclose(mean, of.theta, atol=6 * math.sqrt(spread.diagonal().max()))
    assert b / a == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("setting", [PUBLISHED, VALID])
def test_errors_fall_with_epsilon(setting: str) -> None:
    """From ε = 0.1 to 10 by factors of ten to thousands, means over five runs: below 2 once in 120 tries over seeds."""
    experiment = simulated.Figure2(repeats=5, epsilons=(0.1, 10.0))
    works = [Work(setting, 2, 5, method) for method in (FAST, ADASSP)]
    results = [experiment.work(work) for work in works]
    for found in results:
        low, high = (np.mean(one) for one in found[simulated.PREDICTION])
        assert high < low / 2
    curves = experiment.gather(works, results)
    assert [one.name for one in experiment.checks(curves) if not one.holds] == []
    growing = replace(curves, found={work: {m: v[::-1] for m, v in one.items()} for work, one in curves.found.items()})
    assert not next(one.holds for one in experiment.checks(growing))


def test_the_simulated_population_is_as_hard_as_the_papers() -> None:
    """tr(Σ_x⁻¹)/d, which the paper's non-private errors show; so its floors are met but for one data set's chance."""
    for d, (estimation, prediction) in paper.NON_PRIVATE.items():
        of = simulated.population(d, 1)
        assert np.trace(np.linalg.inv(of.Sigma_x)) / d == pytest.approx(d * estimation / prediction, rel=0.1)


def test_a_sampler_that_never_moves_one_part_gets_no_credit_for_the_others() -> None:
    """θ may be drawn quickly from wherever S stands still: the slowest part is what counts."""
    cells = [efficiency.Cell(5, 10, 1000, 1.0, 0, method) for method in (efficiency.LIBRARY, efficiency.NORMAL_X)]
    run = {"seconds": 2.0, "r_hat": 1.0, "mean": [0.0], "sd": [1.0], "ess_theta": [400.0]}
    good = run | {"ess": {"regression": 1000.0, "Sigma_x": 800.0, "S": 600.0}}
    stuck = run | {"ess": {"regression": 9000.0, "Sigma_x": 700.0, "S": 5.0}}
    for other, holds in ((stuck, True), (stuck | {"ess": dict.fromkeys(stuck["ess"], 150.0)}, False)):
        mixed, agree, ahead = list(efficiency.Efficiency().checks(efficiency.Efficiency().gather(cells, [good, other])))
        assert (bool(ahead.holds), mixed.holds, agree.holds) == (holds, True, True)
    assert ahead.found == "4.00"
    apart = efficiency.Efficiency().checks(efficiency.Efficiency().gather(cells, [good, good | {"mean": [0.5]}]))
    assert [one.holds for one in apart] == [True, False, False]
