"""Which client, data node or test set a row goes to depends on its place in the table, never on a value."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from dca_proto.cli.swarm import _spec
from dca_proto.cli.swarm_job import DataOptions, JobSpec, _Learning, first_rows
from dca_proto.privacy.accounting import DELTA
from dca_proto.protocol.wire.kinds import SecureSum
from emulator.swarm.options import SwarmOptions
from inference.bounds import Interval
from inference.jobs import NAMES, find
from inference.jobs.settings import parse_words, settings_from
from inference.problem import Problem, Schema, assign, hold_out

ROWS, COLUMNS = 120, ("x", "z", "y")
SCHEMA = Schema(("x", "z"), "y", dict.fromkeys(COLUMNS, Interval(-3, 3)))


def table(empty: tuple[int, int] | None = None) -> Problem:
    """Numbers whose tenths digit and beyond name their row; with one missing value, if asked."""
    rows = np.random.default_rng(7).uniform(-2, 2, (ROWS, 3)).round(6)
    if empty is not None:
        rows[empty] = np.nan
    return Problem("t", SCHEMA, rows[:, :2], rows[:, 2])


def parts(problem: Problem, seed: int) -> Iterator[np.ndarray]:
    """Each client's, node's and test set's rows, in order, in all ways in which rows are divided."""
    train, test = hold_out(problem, seed)
    yield test.rows
    for clients in (1, 5, len(train.y)):
        yield from assign(train.rows, clients)
        yield from assign(problem.rows, clients)
    yield first_rows(train, 30).rows


@pytest.mark.parametrize("row", [0, 33, ROWS - 1])
@pytest.mark.parametrize("column", range(3))
def test_an_emptied_cell_changes_its_own_row_and_moves_no_other(row: int, column: int) -> None:
    """Before, it left the test set for the last place of the order, and every later row went to another node."""
    for seed in range(8):
        for with_it, without in zip(parts(table(), seed), parts(table((row, column)), seed), strict=True):
            assert with_it.shape == without.shape
            differ = np.flatnonzero(~(with_it == without).all(axis=1))
            assert len(differ) <= 1, "one row, in the same place"
            np.testing.assert_array_equal(without[differ], np.where(np.isnan(without[differ]), np.nan, with_it[differ]))


def spec_of(path: Path, job: str, nodes: int | None = None, *, no_reference: bool = False) -> JobSpec:
    data = DataOptions(csv=path, target="y", bounds="x=-3:3,z=-3:3,y=-3:3", missing="zero")
    return _spec(find(job), None, data, nodes, None, 0, path.parent / "run", None, no_reference)


def written(path: Path, problem: Problem) -> Path:
    lines = [",".join("" if np.isnan(x) else str(x) for x in row) for row in problem.rows]
    path.write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    return path


def test_two_files_that_differ_in_one_cell_give_every_other_row_to_the_same_node(tmp_path: Path) -> None:
    """The case that was found: five data nodes, one emptied cell, and 27 rows of other nodes."""
    for place in range(0, ROWS, 17):
        one = spec_of(written(tmp_path / "a.csv", table()), "regression-mcmc", 5)
        other = spec_of(written(tmp_path / "b.csv", table((place, 0))), "regression-mcmc", 5)
        nodes = zip(assign(one.train.rows, 5), assign(other.train.rows, 5), strict=True)
        assert sum(int((~(a == b).all(axis=1)).sum()) for a, b in nodes) <= 1
        assert one.clients == other.clients == 5


def test_the_test_set_is_scored_without_its_rows_that_lack_a_value(tmp_path: Path) -> None:
    spec = spec_of(written(tmp_path / "a.csv", table()), "regression")
    assert spec.test is not None
    assert msgspec.structs.replace(spec, test=None).scored_on is None
    rows = spec.test.rows.copy()
    rows[0, 0] = np.nan
    for lacking, scored in ((rows, len(rows) - 1), (rows * np.nan, None)):
        test = Problem("t", SCHEMA, lacking[:, :2], lacking[:, 2])
        holed = msgspec.structs.replace(spec, test=test)
        options = SwarmOptions(clients=spec.clients, computes=3, tolerate=5, epsilon=2.0, delta=DELTA)
        for found in (holed.scored_on, _Learning(holed, options, Console(file=io.StringIO()))._run.test):
            assert (None if found is None else len(found.y)) == scored


SETS = {
    "compare": ["group=z"],
    "ldp-histogram": ["bins=4"],
    "ldp-quantiles": ["levels=2"],
    "survival": ["event=z"],
    "survival-regression": ["event=z"],
}


@pytest.mark.parametrize("name", NAMES)
def test_without_a_reference_nothing_is_computed_from_raw_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a fit, which could stop the run, nor a count of missing rows: nobody asks which rows are complete."""
    job, unit = find(name), dict.fromkeys(COLUMNS, Interval(0, 1))
    rows = Problem("t", Schema(("x", "z"), "y", unit), table((3, 1)).X, table().y)
    kind = job.kinds[0]
    settings = settings_from(job.settings, parse_words(SETS.get(name, [])), name)

    def raw(*_: object) -> Problem:
        raise AssertionError("looked at the rows' values")

    for owner, method in ((type(job), "reference"), (Problem, "complete")):
        monkeypatch.setattr(owner, method, raw if owner is not Problem else property(raw))
    spec = JobSpec(
        job=job, settings=settings, train=rows, test=None, clients=ROWS, output=tmp_path / "run", reference=False
    )
    console = Console(file=io.StringIO())
    options = SwarmOptions(
        clients=ROWS,
        computes=3 * (kind is SecureSum),
        tolerate=5 * (kind is SecureSum),
        epsilon=2.0,
        delta=DELTA,
        batch=spec.batch,
        kind=kind,
        reports=spec.reports,
    )
    learning = _Learning(spec, options, console)
    learning.check()
    learning._say_plan()
    printed = " ".join(console.file.getvalue().split())
    assert "lack a value" not in printed, "the line that counts them"
    assert learning._reference is None
