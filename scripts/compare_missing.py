#!/usr/bin/env python
"""Missing values of a feature: what imputation by secure sums would gain over complete cases, and what it would cost.

A normal model for values missing at random is fitted by EM: clients complete their rows' products by their expected
values at the parameters so far, and the sums of these give the next parameters. Each step is a round, so k steps share
the budget of one, and have k times the variance of noise. Complete cases need one round.

Rows have five correlated features, and with the target are brought into a ball of four sds. The first lacks about a
third of its values: by chance, by the value of another feature, or by that of the target. The last case is the one that
complete cases cannot handle. Sums have the noise that hides one such row at the budget of μ = `MU`, about ε = 1 with
δ = 1e-5. The figures: root mean square error of the slopes over all data sets, in sds, with the bias of the worst slope
in brackets. The truth is the regression of all rows, without noise.

Nothing fails: the script only prints.

Example:

    scripts/compare_missing.py          half a minute on one core
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from dca_proto.runtime.files import write_json

D, SLOPES = 5, np.array([0.5, 0.3, -0.2, 0.1, 0.0])
MISSING, MU, RADIUS = 0.3, 0.27, 4.0
CAUSES, CLIENTS, STEPS = ("chance", "another feature", "the target"), (2_000, 20_000), (1, 3, 8)
Rng = np.random.Generator


class Sums(NamedTuple):
    """The sums of one round: number of rows, of the columns, and of their products."""

    rows: float
    first: np.ndarray
    second: np.ndarray

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the columns; a covariance that noise made indefinite is repaired."""
        rows = max(self.rows, 1.0)
        mean = self.first / rows
        values, vectors = np.linalg.eigh(self.second / rows - np.outer(mean, mean))
        return mean, (vectors * np.maximum(values, 0.02)) @ vectors.T


def drawn(n: int, cause: str, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return columns, the target last, and which rows lack the first one."""
    shared = rng.standard_normal((n, 1))
    X = np.sqrt(0.6) * rng.standard_normal((n, D)) + np.sqrt(0.4) * shared
    y = X @ SLOPES + 0.7 * rng.standard_normal(n)
    rows = np.column_stack([X, y])
    rows *= np.minimum(1.0, RADIUS / np.linalg.norm(rows, axis=1))[:, None]
    by = {"chance": np.zeros(n), "another feature": rows[:, 1], "the target": rows[:, -1]}[cause]
    odds = np.log(MISSING / (1 - MISSING)) + 1.5 * by
    return rows, rng.random(n) < 1 / (1 + np.exp(-odds))


def released(products: np.ndarray, rows: np.ndarray, count: float, steps: int, rng: Rng) -> Sums:
    """Return noisy sums. Each of `steps` rounds has that share of the budget."""
    sd = 2 * (1 + RADIUS**2) / MU * np.sqrt(steps)  # a row and its constant have products of at most this norm
    noise = np.triu(rng.normal(0, sd, (D + 1, D + 1)))
    return Sums(count + rng.normal(0, sd), rows + rng.normal(0, sd, D + 1), products + noise + np.triu(noise, 1).T)


def slopes(cov: np.ndarray) -> np.ndarray:
    """Return the regression of the last column on the others."""
    return np.asarray(np.linalg.solve(cov[:-1, :-1], cov[:-1, -1]))


def complete(rows: np.ndarray, lacks: np.ndarray, rng: Rng) -> np.ndarray:
    """Return slopes of the complete rows, in one round."""
    kept = rows[~lacks]
    return slopes(released(kept.T @ kept, kept.sum(axis=0), len(kept), 1, rng).moments[1])


def imputed(rows: np.ndarray, lacks: np.ndarray, steps: int, rng: Rng) -> np.ndarray:
    """Return slopes after so many rounds of EM, of which the first is of complete rows."""
    kept = rows[~lacks]
    mean, cov = released(kept.T @ kept, kept.sum(axis=0), len(kept), steps, rng).moments
    for _ in range(steps - 1):
        by = np.linalg.solve(cov[1:, 1:], cov[1:, 0])
        filled = rows.copy()
        filled[lacks, 0] = (mean[0] + (rows[lacks, 1:] - mean[1:]) @ by).clip(-RADIUS, RADIUS)
        products = filled.T @ filled
        products[0, 0] += lacks.sum() * max(cov[0, 0] - cov[0, 1:] @ by, 0.0)
        mean, cov = released(products, filled.sum(axis=0), len(rows), steps, rng).moments
    return slopes(cov)


def main(arguments: list[str] | None = None) -> int:
    """Print the table and return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60, help="data sets a cell")
    parser.add_argument("--json", help="write the result to a file, or - for stdout")
    options = parser.parse_args(arguments)
    methods = [f"{steps} rounds of EM" if steps > 1 else "complete cases" for steps in STEPS]
    table, found = Table("missing by", "clients", *methods), []
    for cause in CAUSES:
        for n in CLIENTS:
            errors: list[list[np.ndarray]] = [[] for _ in STEPS]
            for seed in range(options.repeats):
                rng = np.random.default_rng((seed, n))
                rows, lacks = drawn(n, cause, rng)
                truth = slopes(np.cov(rows, rowvar=False))
                for place, steps in enumerate(STEPS):
                    own = imputed(rows, lacks, steps, rng) if steps > 1 else complete(rows, lacks, rng)
                    errors[place].append(own - truth)
            cells = []
            for name, each in zip(methods, errors, strict=True):
                bias = np.mean(each, axis=0)
                size, worst = float(np.sqrt(np.mean(np.square(each)))), float(bias[np.abs(bias).argmax()])
                cells.append(f"{size:.3f} ({worst:+.3f})")
                found.append({"cause": cause, "clients": n, "method": name, "rmse": size, "bias": worst})
            table.add_row(cause, f"{n:,}", *cells)
    Console(stderr=options.json == "-").print(table)
    write_json(found, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
