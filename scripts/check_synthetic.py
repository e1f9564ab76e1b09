#!/usr/bin/env python
"""Synthetic rows of Adult at ε = 1 from one secure sum of marginals, beside the real rows that are at hand.

The 32,561 people of the training part are clients. Nominal columns are codes, and a "?" is missing. The official test
part scores two models, trained on synthetic and on real rows: a linear regression, and boosted trees.

**The noise**: for each released marginal, the error is compared with what the noise predicts, and the synthetic rows
are compared with both. Over all cells, the mean square of (released - true)/sd has a χ² law.

**Peers**: `--write-table FILE` writes the cells of all rows, a number for each column, from which other generators can
learn at one place. `--peer NAME=FILE` scores the cells that one has written, decoded as the job's own rows.
`scripts/peers_synthetic.py` runs those of `dpmm` and `smartnoise-synth`, in an environment of their own.

Exit code 4 if a release is not as noisy as it states (level 1e-4), if synthetic rows are farther from the truth than
1.3 times what the noise predicts in the mean marginal, or if boosted trees that learn from them have an AUC below 0.8.

Examples:

    scripts/check_synthetic.py                          three repeats: some minutes on two cores
    scripts/check_synthetic.py --repeats 1 --json - --peer mst=mst.csv
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import chi2

from dca_proto import JobTerms
from dca_proto.runtime.files import write_json
from emulator.ideal import IdealSwarm
from inference.datasets.uci import CATEGORIES, INCOME, NUMBERS, Part, adult
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.models.synthetic.comparison import Comparison, marginal_fits
from inference.models.synthetic.release import Release, counted
from inference.models.synthetic.rows import SyntheticRows
from inference.problem import Array, Problem, Schema
from inference.rounds import run

DELTA, FAULT, LEVEL = 1e-5, 4, 1e-4
FARTHEST, LEAST_AREA = 1.3, 0.8
WHOLE = "age,education-num,hours-per-week"
NAMED = {name: tuple(text for text in texts if text != "?") for name, texts in CATEGORIES.items()} | {
    "sex": ("Male", "Female")
}


def coded_adult(folder: Path | None, part: Part) -> Problem:
    """Return a part of Adult with one column for each nominal one; "?" is missing."""
    data = adult(folder, part=part)
    columns: dict[str, Array] = {name: data.values(name) for name in NUMBERS}
    for name, texts in NAMED.items():
        known = [text for text in texts if text != "Female"]
        one_hot = data.values(*(f"{name}={text}" for text in known)).reshape(len(data.y), -1)
        code = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1).astype(float), 1.0 if name == "sex" else np.nan)
        columns[name] = code
    schema = Schema(tuple(columns), INCOME, {**NUMBERS, **NAMED, INCOME: (0, 1)})
    return Problem("adult", schema, np.column_stack(list(columns.values())), data.y)


class Found(NamedTuple):
    """The figures of one set of synthetic rows; distances are means of total variations.

    Attributes:
        columns, pairs: to the held-out rows, of each column and of each pair. rmse, area: of models on held-out rows.
    """

    name: str
    columns: float
    pairs: float
    rmse: float
    area: float
    seconds: float | None = None


class Released(NamedTuple):
    """One release beside the truth.

    Attributes:
        chi_square, cells: Σ((released - true)/sd)², and the number of its terms. noise, error, own: mean total
            variation over the marginals, as noise predicts, of the release, of the synthetic rows. pairs: the tree.
    """

    chi_square: float
    cells: int
    noise: float
    error: float
    own: float
    pairs: list[str]


def learned(train: Problem, epsilon: float, seed: int) -> tuple[SyntheticRows, Release, float]:
    """Run the job over the ideal functionality."""
    job, n, began_s = find("synthetic"), len(train.y), time.monotonic()
    own = job.settings(whole=WHOLE)
    job.check(train.schema, own)
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=n, tolerate=n // 10, computes=(b"a", b"b"))
    known = Conditions(n, n // 10, 1.0, np.random.default_rng(seed))
    swarm = IdealSwarm(train.rows, train.schema.columns, terms, random=np.random.default_rng(seed + 100).bytes)
    outcome = run(job.make(train.schema, own, known), swarm)
    rows = job.finish(outcome, train.schema, own, known).synthetic
    return rows, Release.of(outcome), time.monotonic() - began_s


def beside_the_truth(release: Release, rows: SyntheticRows, train: Problem) -> Released:
    """Compare a release with the true counts."""
    truth = release.statistic.cells_of(train.rows)
    errors = [(table.counts - counted(release.statistic, table.places, truth)) / table.sd for table in release.tables]
    fits = marginal_fits(release, rows, truth)
    means = [float(np.mean([fit[key] for fit in fits]))  # type: ignore[literal-required]
             for key in ("noise_distance", "nonprivate_released_distance", "nonprivate_distance")]  # fmt: skip
    pairs = [rows.grid.title(table.places) for table in release.tables if len(table.places) > 1]
    return Released(sum(float((one**2).sum()) for one in errors), sum(one.size for one in errors), *means, pairs)


def scored(
    name: str, release: Release, rows: SyntheticRows, train: Problem | None, test: Problem, s: float | None
) -> Found:
    """Score rows on the test part."""
    figures = [one["private"] for one in Comparison(release, rows).held_out_scores(None, train, test)["scores"]]
    return Found(name, *(float(one or 0.0) for one in figures), s)


def read_rows(path: Path, like: SyntheticRows) -> SyntheticRows:
    """Return the rows of a CSV file of cells."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    cells = np.array([[int(float(line[name])) for name in like.grid.names] for line in lines])
    return SyntheticRows(like.grid, cells, like.grid.values(cells, np.random.default_rng(0)), like.categories)


def write_table(train: Problem, path: Path) -> None:
    """Write the cells of the training rows, and in a first line the number of cells of each column."""
    grid = find("synthetic").settings(whole=WHOLE).grid(train.schema)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(grid.names)
        writer.writerow(grid.sizes)
        writer.writerows(grid.statistic().cells_of(train.rows).tolist())


def main(arguments: list[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--data-folder", type=Path, help="folder of adult.data and adult.test; by default DCA_DATA")
    parser.add_argument("--peer", action="append", default=[], help="NAME=FILE: rows of another generator")
    parser.add_argument("--write-table", type=Path, help="write the rows that a peer learns from, and stop")
    parser.add_argument("--json", help="write the result to a file, or - for stdout")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json == "-")
    train, test = (coded_adult(options.data_folder, part) for part in ("train", "test"))
    if options.write_table:
        write_table(train, options.write_table)
        return 0
    found, releases = [], []
    for seed in range(options.repeats):
        rows, release, seconds = learned(train, options.epsilon, seed)
        releases.append(beside_the_truth(release, rows, train))
        found.append(scored(f"secure sum, run {seed}", release, rows, None, test, seconds))
    for name, _, path in (text.partition("=") for text in options.peer):
        found.append(scored(f"{name} (central)", release, read_rows(Path(path), rows), None, test, None))
    real = SyntheticRows(rows.grid, release.statistic.cells_of(train.rows), train.rows, rows.categories)
    found.append(scored("real rows", release, real, None, test, None))
    show(console, found, releases)
    versions = {name: version(name) for name in ("mbi", "jax", "numpy", "scikit-learn")}
    write_json({"found": [one._asdict() for one in found], "released": [one._asdict() for one in releases],
                "versions": versions}, options.json)  # fmt: skip
    return FAULT if len([console.print(text) for text in faults(found, releases)]) > 0 else 0


def show(console: Console, found: list[Found], releases: list[Released]) -> None:
    """Print the tables."""
    table = Table("rows", "columns", "pairs", "RMSE of a linear regression", "AUC of boosted trees", "seconds")
    for one in found:
        table.add_row(one.name, f"{one.columns:.4f}", f"{one.pairs:.4f}", f"{one.rmse:.4f}", f"{one.area:.4f}",
                      "" if one.seconds is None else f"{one.seconds:.0f}")  # fmt: skip
    console.print(table)
    noise = Table("released marginals", "noise predicts", "error of the release", "error of the rows", "χ² per cell")
    for run_, one in enumerate(releases):
        noise.add_row(f"run {run_}", f"{one.noise:.4f}", f"{one.error:.4f}", f"{one.own:.4f}",
                      f"{one.chi_square / one.cells:.4f}")  # fmt: skip
    console.print(noise)
    console.print("tree of run 0:", ", ".join(releases[0].pairs))


def faults(found: list[Found], releases: list[Released]) -> list[str]:
    """Return what is wrong, a sentence each."""
    texts = []
    for run_, (one, score) in enumerate(zip(releases, found, strict=False)):
        low, high = chi2.ppf((LEVEL / 2, 1 - LEVEL / 2), one.cells)
        if not low <= one.chi_square <= high:
            texts.append(
                f"run {run_}: the noise is not what the release states: χ² {one.chi_square:.0f} of {one.cells}"
            )
        if one.own > FARTHEST * one.noise:
            texts.append(f"run {run_}: the rows are {one.own:.4f} from the truth, where noise predicts {one.noise:.4f}")
        if score.area < LEAST_AREA:
            texts.append(f"run {run_}: boosted trees have an AUC of {score.area:.3f}")
    return texts


if __name__ == "__main__":
    sys.exit(main())
