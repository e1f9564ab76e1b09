"""Scores of predictions on held-out rows, beside those without privacy and those of a constant prediction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError
from inference.jobs.estimates import score
from inference.jobs.summary import HeldOut
from inference.problem import Array, Problem, unit_of

LEAST = 1e-12  # of a probability


def of_numbers(own: Array, other: Array | None, train: Problem | None, test: Problem) -> HeldOut:
    """Return root mean squared errors of predictions of the test rows.

    Args:
        own, other: predictions with and without privacy, ``(k,)``. train: rows that give the constant; without them the
            test rows do.
    """
    return {
        "rows": len(test.y),
        "unit": _unit(test),
        "rmse_private": rmse(own, test.y),
        "rmse_nonprivate": None if other is None else rmse(other, test.y),
        "rmse_zero": rmse(np.full(len(test.y), (train or test).y.mean()), test.y),
    }


def of_outlying(own: Array, other: Array | None, train: Problem | None, test: Problem) -> HeldOut:
    """Return mean absolute errors, since outliers would dominate squared ones. Arguments as for `of_numbers`."""
    predictions = (own, other, np.median((train or test).y))
    errors = [None if guess is None else float(np.mean(np.abs(test.y - guess))) for guess in predictions]
    scores = [score("mean absolute error", *errors, higher_is_better=False)]  # type: ignore[arg-type]
    return {"rows": len(test.y), "unit": _unit(test), "scores": scores}


def of_classes(own: Array, other: Array | None, train: Problem | None, test: Problem) -> HeldOut:
    """Return the AUC, if both classes occur, and the mean log likelihood of a row.

    Args:
        own, other: probabilities of the upper class. Others as for `of_numbers`.
    """
    rows, positive = len(test.y), is_positive(test)
    beside = None if other is None else log_likelihood(other, positive)
    alone = log_likelihood(np.full(rows, is_positive(train or test).mean()), positive)
    scores = [score("log likelihood", log_likelihood(own, positive), beside, alone, higher_is_better=True)]
    if 0 < positive.sum() < rows:
        area = None if other is None else area_under_curve(other, positive)
        scores.insert(0, score("AUC", area_under_curve(own, positive), area, 0.5, higher_is_better=True))
    return {"rows": rows, "scores": scores}


def _unit(rows: Problem) -> str:
    target = rows.schema.target
    return unit_of(rows.schema, target, f"units of {target}")


def is_positive(rows: Problem) -> NDArray[np.bool_]:
    """Return which rows belong to the upper class: target above the middle of its bounds."""
    return np.asarray(rows.y > rows.schema.centres[-1])


def area_under_curve(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: P(a positive row scores above a negative one), ties counting half.

    Args:
        scores: shape ``(n,)``. positive: which rows are of the positive class, shape ``(n,)``.

    Raises:
        DataError: all rows are of one class.
    """
    from scipy.stats import rankdata

    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        raise DataError(f"{ones} rows of one class and {zeros} of the other to score on; expected some of each")
    above = float(rankdata(scores)[positive].sum()) - ones * (ones + 1) / 2  # Mann and Whitney's U
    return above / (ones * zeros)


def log_likelihood(p: Array, positive: NDArray[np.bool_]) -> float:
    """Return the mean log likelihood of a row, in nats. Args: p: probability of the positive class."""
    return float(np.mean(np.log(np.maximum(np.where(positive, p, 1 - p), LEAST))))


def rmse(predicted: Array, y: Array) -> float:
    """Return the root mean squared error, in target units."""
    return float(np.sqrt(np.mean((y - predicted) ** 2)))
