"""Synthetic rows: cells and types of columns, the tree, the size of the model, rows drawn from it; the whole job."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dca_proto import JobTerms
from dca_proto.aggregate import RoundRequest
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.errors import DataError
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.models.synthetic.comparison import Comparison, distance, marginal_fits
from inference.models.synthetic.grid import Grid
from inference.models.synthetic.model import Model, independent
from inference.models.synthetic.release import Release, counted
from inference.models.synthetic.rows import SyntheticRows
from inference.models.synthetic.structure import Elimination, check_size, public_tables, tree, with_columns
from inference.posterior import Posterior
from inference.problem import Problem, Schema
from inference.rounds import run

SCHEMA = Schema(
    ("sex", "age", "bmi"),
    "y",
    {"sex": ("f", "m"), "age": (17, 90), "bmi": (10, 60), "y": ("a", "b", "c", "d")},
)
GRID = Grid.of(SCHEMA, 16, None, "age")


def cells_of(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.integers(0, size, n) for size in GRID.sizes])


# --- cells and values -------------------------------------------------------------------------------------------------


def test_values_stay_in_their_cells_and_keep_the_columns_types() -> None:
    cells = cells_of(3_000)
    values = GRID.values(cells, np.random.default_rng(1))
    assert np.isnan(values).any(axis=0).all(), "missing is a cell of each column"
    sex, age, bmi, _ = values.T
    assert set(sex[np.isfinite(sex)]) == {0, 1}
    assert set(age[np.isfinite(age)]) == set(range(17, 91)), "each whole number is in a bin"
    assert (bmi[np.isfinite(bmi)] != np.rint(bmi[np.isfinite(bmi)])).any()
    np.testing.assert_array_equal(GRID.statistic().cells_of(values)[:, :2], cells[:, :2])
    near = np.abs(GRID.statistic().cells_of(values) - cells)[:, 2]
    assert near.max() <= 1, "rounding may reach the end of a bin"
    assert (near > 0).mean() < 0.02


def test_few_whole_numbers_have_a_cell_each() -> None:
    schema = Schema(("children",), "y", {"children": (0, 5), "y": (0, 1)})
    assert Grid.of(schema, 16, None, "children").bins == (5, 0), "the last one has two"


def test_a_file_has_texts_numbers_and_empty_cells(tmp_path: Path) -> None:
    cells = np.array([[0, 0, 0, 3], [1, 16, 16, 4], [2, 3, 3, 0]])
    SyntheticRows(GRID, cells, GRID.values(cells, np.random.default_rng(2)), SCHEMA.categories).write(
        tmp_path / "x.csv"
    )
    first, *lines = csv.reader((tmp_path / "x.csv").read_text().splitlines())
    assert first == list(SCHEMA.columns)
    assert [line[0] for line in lines] == ["f", "m", ""]
    assert [line[3] for line in lines] == ["d", "", "a"]
    assert lines[1][1:3] == ["", ""]
    assert lines[0][1].isdigit()
    assert "." in lines[0][2]


def test_columns_that_do_not_fit_their_kind_are_refused() -> None:
    for wrong in ({"codes": "bmi,agee"}, {"whole": "agee"}):
        with pytest.raises(DataError, match="did you mean"):
            Grid.of(SCHEMA, 4, wrong.get("codes"), wrong.get("whole"))
    half = Schema(("x",), "y", {"x": (0.5, 3.5), "y": (0, 1)})
    for codes, whole in (("x", None), (None, "x")):
        with pytest.raises(DataError, match="whole"):
            Grid.of(half, 4, codes, whole)


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_rules_name_pairs_and_errors_name_what_is_wrong() -> None:
    assert public_tables(GRID, "tree") is None
    assert public_tables(GRID, "none") == []
    assert public_tables(GRID, "target") == [(0, 3), (1, 3), (2, 3)]
    assert public_tables(GRID, "bmi:sex, y:age:sex,sex:bmi") == [(0, 2), (0, 1, 3)]
    for wrong, found in (
        ("sex:agee", "age"),
        ("sex:sex", "joins 1"),
        ("sex:y:age:bmi", "4"),
    ):
        with pytest.raises(DataError, match=found):
            public_tables(GRID, wrong)
    with pytest.raises(DataError, match="expected one of tree, none, target, or pairs"):
        find("synthetic").settings(pairs="trees")


def test_models_that_are_too_large_are_refused_before_any_budget_is_spent() -> None:
    names = tuple(f"x{place}" for place in range(8))
    schema = Schema(names[:-1], names[-1], dict.fromkeys(names, (0.0, 1.5)))
    grid = Grid.of(schema, 64, None, None)
    circle = [(place, place + 1) for place in range(7)]
    check_size(grid, with_columns(grid, circle))
    every = public_tables(grid, ",".join(f"{a}:{b}" for a in names for b in names if a < b)) or []
    with pytest.raises(DataError, match=r"close circles.*drop a pair such as x0 × x1"):
        check_size(grid, with_columns(grid, every))
    with pytest.raises(DataError, match=r"each client would send as many numbers.*leave out columns.*--set pairs"):
        check_size(grid, [(0, 1)] * 100, is_first=True)


def test_a_tree_joins_what_depends_and_leaves_alone_what_noise_hides() -> None:
    """A chain of three columns, and one by itself; 2,000 rows, noise of 10 rows a cell. Seeded: no false alarm."""
    rng = np.random.default_rng(3)
    a = rng.integers(0, 4, 2_000)
    b = np.where(rng.random(2_000) < 0.7, a, rng.integers(0, 4, 2_000))
    c = np.where(rng.random(2_000) < 0.6, b, rng.integers(0, 4, 2_000))
    rows = np.column_stack([a, b, c, rng.integers(0, 4, 2_000)])
    pairs = [(one, other) for one in range(4) for other in range(one + 1, 4)]
    counts = {pair: np.histogram2d(*rows[:, pair].T, bins=4)[0] + 10 * rng.standard_normal((4, 4)) for pair in pairs}
    assert tree(counts, dict.fromkeys(pairs, 10.0), 4) == [(0, 1), (1, 2)]
    noise = {pair: 125 + 200 * rng.standard_normal((4, 4)) for pair in pairs}
    assert tree(noise, dict.fromkeys(pairs, 200.0), 4) == []


# --- rows from a model ------------------------------------------------------------------------------------------------


def test_rows_have_the_distribution_of_the_model_also_with_a_circle() -> None:
    """Against the sum over all cells; 40,000 rows. Seeded: no false alarm."""
    rng, sizes = np.random.default_rng(5), (2, 3, 2, 3)
    potentials = [
        (places, rng.normal(size=[sizes[one] for one in places])) for places in ((0, 1), (1, 2), (0, 2), (3,))
    ]
    cells = Model(sizes, potentials).rows(40_000, rng)
    exact = np.zeros(sizes)
    for at in product(*map(range, sizes)):
        exact[at] = np.exp(sum(values[tuple(at[one] for one in places)] for places, values in potentials))
    found = np.histogramdd(cells, bins=[np.arange(size + 1) - 0.5 for size in sizes])[0]
    assert distance(found, exact) < 0.01
    alone = np.bincount(cells[:, 3]) / 40_000
    np.testing.assert_allclose(alone, exact.sum(axis=(0, 1, 2)) / exact.sum(), atol=1e-4)


def test_an_order_of_elimination_joins_all_columns_of_a_table() -> None:
    found = Elimination.of((3, 3, 3, 3), [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert sorted(found.order) == [0, 1, 2, 3]
    assert max(map(len, found.cliques)) == 3


def test_columns_alone_are_the_nearest_possible_shares_and_hidden_missing_values_are_none() -> None:
    cells = cells_of(5_000)
    cells[:, 1:] = np.minimum(cells[:, 1:], np.array(GRID.sizes[1:]) - 2)
    release = Release.exact(GRID.statistic(), cells)
    assert release.kept == (3, 16, 16, 4)
    rows = independent(release).rows(5_000, np.random.default_rng(6))
    for place in range(4):
        mine, true = (counted(release.statistic, (place,), one) for one in (rows, cells))
        assert np.abs(mine - true).max() <= 2
    assert rows[:, 0].max() == 2, "missing values of the first column are known"


# --- the job ----------------------------------------------------------------------------------------------------------


def made(n: int) -> Problem:
    """Sex moves bmi, bmi moves y; the age of a tenth is missing."""
    rng = np.random.default_rng(7)
    sex = rng.integers(0, 2, n)
    bmi = rng.normal(24 + 8 * sex, 3).clip(10, 60)
    y = np.floor((bmi - 12) / 6).clip(0, 3)
    age = np.where(rng.random(n) < 0.1, np.nan, rng.integers(17, 91, n))
    return Problem("made", SCHEMA, np.column_stack([sex, age, bmi]), y)


def learned(data: Problem, **settings: object) -> tuple[Posterior, Release]:
    job, n = find("synthetic"), len(data.y)
    own = job.settings(bins=8, whole="age", **settings)
    terms = JobTerms(epsilon=2.0, delta=1e-5, clients=n, tolerate=n // 10, computes=(b"a", b"b"))
    known = Conditions(n, n // 10, 1.0, np.random.default_rng(8))
    swarm = IdealSwarm(data.rows, data.schema.columns, terms, random=seeded("synthetic"))
    outcome = run(job.make(data.schema, own, known), swarm)
    return job.finish(outcome, data.schema, own, known), Release.of(outcome)


@pytest.mark.long
def test_a_tree_of_noisy_pairs_gives_rows_near_the_truth() -> None:
    """The tree has both dependences; each marginal is about as near as noise leaves it. Seeded: no false alarm."""
    data = made(4_000)
    posterior, release = learned(data)
    assert {table.places for table in release.tables} >= {(0, 2), (2, 3)}
    rows = posterior.synthetic
    assert len(rows.cells) == 4_000
    truth = release.statistic.cells_of(data.rows)
    for fit in marginal_fits(release, rows, truth):
        assert fit["nonprivate_distance"] is not None
        assert fit["nonprivate_distance"] < 1.2 * fit["noise_distance"] + 0.01
        least = 0.7 if fit["cells"] > 30 else 0.0
        assert least < fit["nonprivate_released_distance"] / fit["noise_distance"] < 2.5
    assert 0.07 < np.isnan(rows.values[:, 1]).mean() < 0.13
    again = posterior.refit(rows=50)
    assert len(again.synthetic.cells) == 50


def test_noise_as_large_as_the_counts_is_warned_of_and_an_interval_is_not_one_of_the_truth() -> None:
    posterior, _ = learned(made(40), pairs="none")
    assert any("hardly more than a guess" in text for text in posterior.warnings)
    assert "not one of the truth" in posterior.extras()["remarks"]["caution"]


def test_counts_of_an_earlier_round_are_those_of_as_many_rows_as_the_last_has() -> None:
    data, request = made(60), RoundRequest("marginals", msgspec.to_builtins(GRID.statistic()), 1.0, rows_max=1)
    terms = JobTerms(epsilon=2.0, delta=1e-5, clients=60, tolerate=0, computes=(b"a", b"b"))
    last = IdealSwarm(data.rows, data.schema.columns, terms, random=seeded("counts")).run_round(request)
    first = replace(last, value=4 * last.value, noise_variance=16 * last.noise_variance, contributors=240)
    rounds = [first, last]
    joined, alone = Release.of(rounds), Release.of(rounds[1:])
    assert joined.rows == 60
    for one, other in zip(joined.tables, alone.tables, strict=True):
        np.testing.assert_allclose(one.counts, other.counts)
        assert one.sd == pytest.approx(other.sd / 2**0.5)


@pytest.mark.long
def test_held_out_rows_of_one_column_or_without_a_target_are_compared_without_models() -> None:
    data = made(60)
    lacking = replace(data, y=np.full(60, np.nan))
    alone = Problem("one", Schema((), "y", {"y": (0, 3)}, alone=True), np.empty((60, 0)), data.y)
    for given in (lacking, alone):
        grid = Grid.of(given.schema, 4, "y", None)
        table = given.values(*grid.names).reshape(60, -1)
        cells = grid.statistic().cells_of(table)
        rows = SyntheticRows(grid, cells, table, {})
        scores = Comparison(Release.exact(grid.statistic(), cells), rows).held_out_scores(None, given, given)["scores"]
        assert [one["private"] for one in scores] == pytest.approx([0.0] * len(scores))
        assert len(scores) == min(2, len(grid.names))


@pytest.mark.long
def test_scores_are_those_of_held_out_rows_and_rows_like_these_score_as_they_do() -> None:
    """Real rows in place of synthetic ones score as the real ones, a target of codes by its most frequent one."""
    train, test = made(800), made(300)
    cells = GRID.statistic().cells_of(train.rows)
    rows = SyntheticRows(GRID, cells, train.rows, SCHEMA.categories)
    scores = Comparison(Release.exact(GRID.statistic(), cells), rows).held_out_scores(None, train, test)["scores"]
    assert all(one["private"] == one["nonprivate"] for one in scores)
    assert [one["name"].rpartition(" of ")[2] for one in scores[2:3]] == ["y = d"]
    area = scores[3]["private"]
    assert area is not None
    assert area > 0.9
