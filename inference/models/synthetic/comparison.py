"""How far synthetic rows are from the release that they come from, and from rows that are at hand.

`marginal_fits` needs the release alone. All else comes from raw rows, so no ε covers it: the trainer's own held-out
rows, or those of an emulation.

**Total variation** of two tables of shares is half the sum of their absolute differences: the share of rows that would
have to move to another cell.

**Models.** A linear regression and gradient-boosted trees are trained on synthetic rows and scored on held-out real
ones, beside the same models trained on the real rows. A numeric target is classified as above or below its median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from inference.jobs.estimates import score
from inference.jobs.summary import HeldOut, MarginalFit, Score
from inference.models.synthetic.grid import CODE, Cells, Places
from inference.models.synthetic.release import Release, counted
from inference.models.synthetic.rows import SyntheticRows
from inference.problem import Array, Problem

TRAIN_MAX = 50_000  # rows that a model is trained on


def distance(first: Array, second: Array) -> float:
    """Return the total variation distance of two tables of counts, each as shares of its sum."""
    return float(np.abs(first / max(first.sum(), 1e-12) - second / max(second.sum(), 1e-12)).sum() / 2)


def marginal_fits(release: Release, rows: SyntheticRows, truth: Cells | None = None) -> list[MarginalFit]:
    """Return how far the rows are from each released marginal, and what the noise alone would make.

    Args:
        truth: cells of the rows that were counted, ``(n, columns)``, if they are at hand.
    """
    found = []
    for table in release.tables:
        own = counted(release.statistic, table.places, rows.cells)
        fit: MarginalFit = {
            "name": rows.grid.title(table.places),
            "cells": int(table.counts.size),
            "noise_distance": table.noise_distance / release.number,
            "released_distance": float(np.abs(table.counts / release.number - own / own.sum()).sum() / 2),
            "nonprivate_distance": None,
            "nonprivate_released_distance": None,
        }
        if truth is not None:
            real = counted(release.statistic, table.places, truth)
            fit["nonprivate_distance"] = distance(own, real)
            fit["nonprivate_released_distance"] = float(np.abs(table.counts - real).sum() / 2 / len(truth))
        found.append(fit)
    return found


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scores of synthetic rows on held-out real ones."""

    release: Release
    rows: SyntheticRows

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut:
        """Return distances and scores of models, beside those of the real rows `train` and of a constant prediction."""
        names = self.rows.grid.names
        real = None if train is None else train.values(*names)
        held, statistic = test.values(*names), self.release.statistic
        cells = statistic.cells_of(held)
        others = None if real is None else statistic.cells_of(real)
        scores = [self._distances("columns", [(place,) for place in range(len(names))], cells, others)]
        if len(names) > 1:
            pairs: list[Places] = list(combinations(range(len(names)), 2))
            scores += [self._distances("pairs of columns", pairs, cells, others), *self._models(real, held, test)]
        return {"rows": len(held), "scores": scores}

    def _distances(self, what: str, tables: Sequence[Places], held: Cells, real: Cells | None) -> Score:
        """Return the mean total variation distance from held-out rows; a constant has independent, even columns."""
        own = []
        for places in tables:
            wanted = counted(self.release.statistic, places, held)
            flat = np.ones_like(wanted)
            others = [self.rows.cells] if real is None else [self.rows.cells, real]
            given = [counted(self.release.statistic, places, cells) for cells in others]
            own.append([distance(one, wanted) for one in (*given, flat)])
        mean = np.mean(own, axis=0)
        nonprivate = None if real is None else float(mean[1])
        name = f"total variation of {what}, mean of {len(tables)}"
        return score(name, float(mean[0]), nonprivate, float(mean[-1]), higher_is_better=False)

    def _models(self, real: Array | None, held: Array, test: Problem) -> list[Score]:
        """Return the scores of models of the target, trained on synthetic and on real rows."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LinearRegression
        from sklearn.metrics import roc_auc_score

        own, place = self.rows.values, self.rows.grid.names.index(test.schema.target)
        middle = np.nanmedian(own[:, place])
        codes = self.rows.grid.sizes[place] - 1 if self.rows.grid.kinds[place] == CODE else None
        lower = self.rows.grid.bounds[place][0] if codes == 2 else middle
        trained = [rows for rows in (own, real) if rows is not None]
        sets = [_complete(rows, place)[:TRAIN_MAX] for rows in (*trained, held)]
        X, y = self._features(sets[-1], place), sets[-1][:, place]
        errors, areas = [], []
        for rows in sets[:-1]:
            features, target = self._features(rows, place), rows[:, place]
            fit = LinearRegression().fit(features, target)
            errors.append(float(np.sqrt(np.mean((fit.predict(X) - y) ** 2))))
            classes = target > lower
            area = 0.5
            if 0 < classes.mean() < 1:
                model = HistGradientBoostingClassifier(random_state=0).fit(np.delete(rows, place, axis=1), classes)
                area = _area(roc_auc_score, y > lower, model.predict_proba(np.delete(sets[-1], place, axis=1))[:, 1])
            areas.append(area)
        name, constant = test.schema.target, float(np.sqrt(np.mean((sets[0][:, place].mean() - y) ** 2)))
        above = name if codes == 2 else f"{name} above {middle:.3g}"
        second = [figures[1] if real is not None else None for figures in (errors, areas)]
        return [
            score(f"RMSE of a linear regression of {name}", errors[0], second[0], constant, higher_is_better=False),
            score(f"AUC of boosted trees for {above}", areas[0], second[1], 0.5, higher_is_better=True),
        ]

    def _features(self, rows: Array, target: int) -> Array:
        """Return numbers and indicators of codes, without the target; a missing number is the middle of the bounds."""
        columns = []
        for place, (kind, (low, high)) in enumerate(zip(self.rows.grid.kinds, self.rows.grid.bounds, strict=True)):
            if place == target:
                continue
            x = rows[:, place]
            if kind == CODE:
                columns += [x == code for code in np.arange(low + 1, high + 1)]
            else:
                columns.append(np.where(np.isfinite(x), x, (low + high) / 2))
            columns.append(~np.isfinite(x))
        return np.column_stack(columns).astype(float)


def _complete(rows: Array, place: int) -> Array:
    """Return the rows that have the target."""
    return np.asarray(rows[np.isfinite(rows[:, place])])


def _area(measure: Any, classes: Any, scores: Array) -> float:
    return float(measure(classes, scores)) if 0 < classes.mean() < 1 else 0.5
