"""How far synthetic rows are from the release that they come from, and from rows that are at hand.

`marginal_fits` needs the release alone. All else comes from raw rows, so no ε covers it: the trainer's own held-out
rows, or those of an emulation.

**Total variation** of two tables of shares is half the sum of their absolute differences: the share of rows that would
have to move to another cell.

**Models.** A linear regression and gradient-boosted trees are trained on synthetic rows and scored on held-out real
ones, beside the same models trained on the real rows. A numeric target is classified as above or below its median. For
codes, both models predict whether the target is the second of two, or the most frequent of more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Question = Callable[[Array], Any]
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
        real = None if train is None else train.values(*names).reshape(len(train.y), -1)
        held, statistic = test.values(*names).reshape(len(test.y), -1), self.release.statistic
        cells = statistic.cells_of(held)
        others = None if real is None else statistic.cells_of(real)
        scores = [self._distances("columns", [(place,) for place in range(len(names))], cells, others)]
        if len(names) > 1:
            pairs: list[Places] = list(combinations(range(len(names)), 2))
            scores += [self._distances("pairs of columns", pairs, cells, others), *self._models(real, held, test)]
        return {"rows": len(held), "scores": scores}

    def _distances(self, what: str, tables: Sequence[Places], held_out: Cells, real: Cells | None) -> Score:
        """Return the mean total variation distance from held-out rows; a constant has independent, even columns."""
        own = []
        for places in tables:
            wanted = counted(self.release.statistic, places, held_out)
            flat = np.ones_like(wanted)
            others = [self.rows.cells] if real is None else [self.rows.cells, real]
            given = [counted(self.release.statistic, places, cells) for cells in others]
            own.append([distance(one, wanted) for one in (*given, flat)])
        mean = np.mean(own, axis=0)
        nonprivate = None if real is None else float(mean[1])
        name = f"total variation of {what}, mean of {len(tables)}"
        return score(name, float(mean[0]), nonprivate, float(mean[-1]), higher_is_better=False)

    def _models(self, real: Array | None, held_out: Array, test: Problem) -> list[Score]:
        """Return the scores of models of the target, trained on synthetic and on real rows; none if no row has it."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LinearRegression
        from sklearn.metrics import roc_auc_score

        own, place = self.rows.values, self.rows.grid.names.index(test.schema.target)
        trained = [_complete(rows, place)[:TRAIN_MAX] for rows in (own, real) if rows is not None]
        kept = _complete(held_out, place)
        if not all(map(len, (*trained, kept))):
            return []
        target, asked, label = self._question(trained[0][:, place], place, test.schema.target)
        X, y, wanted = self._features(kept, place), target(kept[:, place]), asked(kept[:, place])
        errors, areas = [], []
        for rows in trained:
            fit = LinearRegression().fit(self._features(rows, place), target(rows[:, place]))
            errors.append(float(np.sqrt(np.mean((fit.predict(X) - y) ** 2))))
            classes, area = asked(rows[:, place]), 0.5
            if 0 < classes.mean() < 1 and 0 < wanted.mean() < 1:
                trees = HistGradientBoostingClassifier(random_state=0).fit(np.delete(rows, place, axis=1), classes)
                area = float(roc_auc_score(wanted, trees.predict_proba(np.delete(kept, place, axis=1))[:, 1]))
            areas.append(area)
        constant = float(np.sqrt(np.mean((target(trained[0][:, place]).mean() - y) ** 2)))
        what = test.schema.target if self.rows.grid.kinds[place] != CODE else label
        second = [figures[1] if real is not None else None for figures in (errors, areas)]
        return [
            score(f"RMSE of a linear regression of {what}", errors[0], second[0], constant, higher_is_better=False),
            score(f"AUC of boosted trees for {label}", areas[0], second[1], 0.5, higher_is_better=True),
        ]

    def _question(self, y: Array, place: int, name: str) -> tuple[Question, Question, str]:
        """Return what a regression predicts of the target, what a classifier does, and the latter's name.

        Args:
            y: synthetic targets. place, name: of the target.
        """
        if self.rows.grid.kinds[place] != CODE:
            middle = float(np.median(y))
            return lambda x: x, lambda x: x > middle, f"{name} above {middle:.3g}"
        first, codes = self.rows.grid.bounds[place][0], self.rows.grid.sizes[place] - 1
        code = first + 1 if codes == 2 else float(first + np.bincount((y - first).astype(int)).argmax())
        texts = self.rows.categories.get(name)
        label = f"{name} = {texts[int(code)] if texts else f'{code:g}'}"
        return lambda x: (x == code).astype(float), lambda x: x == code, label

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
