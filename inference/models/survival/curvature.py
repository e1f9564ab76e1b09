"""Whether a log hazard is curved in a feature, from the scores of the features' squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from inference.models.score_regression import combined
from inference.models.survival.scoring import DOUBT, SQUARES, Part
from inference.problem import Array

LEAST_SAMPLED = 0.25  # of the expected sampling variance of a curve's score


class Curvature(NamedTuple):
    """A quadratic term of each standardised feature beside its effect: estimates and their variances, ``(d,)``."""

    mean: Array
    noise: Array
    sampling: Array


def curvature(parts: Sequence[Part], n: float) -> Curvature | None:
    """Estimate quadratic terms of the log hazard from the last two rounds that asked for scores of curves.

    With q = x_j² less its regression on 1 and x_j, weighted by w times the hazard, the score of q does not change with
    the intercept and the effect of x_j, to first order. Its mean is zero if the log hazard is linear in x_j, and else
    the term times E[w h q²]. That is taken for the one of a gamma law with the same first three moments, whose
    kurtosis is 3 + 1.5 skewness². The sampling variance is the released sum of squares, combined with that law's.

    Returns:
        None if no round asked for them.
    """
    found = [_curvature(part, n) for part in parts if part.released.curves.size][-2:]
    if not found:
        return None
    weights = np.array([1 / one.noise for one in found])
    weights /= weights.sum(axis=0)
    mean, noise = (sum(w**power * one[place] for w, one in zip(weights, found, strict=True))
                   for place, power in ((0, 1), (1, 2)))  # fmt: skip
    return Curvature(np.asarray(mean), np.asarray(noise), found[-1].sampling)


def _curvature(part: Part, n: float) -> Curvature:
    released, k, d = part.released, part.rows.intervals, part.rows.mean.size
    weights, own = np.array(released.request.curves), np.diag(part.slope)[-d:]
    zeroth, first = np.full(d, np.trace(part.slope[:k, :k])), part.slope[:k, -d:].sum(axis=0)
    cube = part.skew[-d:] * own
    moments = np.array([[zeroth, first], [first, own]]).transpose(2, 0, 1)
    crossed = np.array([own, cube]).T
    line = np.linalg.solve(moments, crossed[:, :, None])[:, :, 0]  # of x² on 1 and x
    scores = np.array([np.full(d, released.score[:k].sum()), released.score[-d:]]).T
    mean, spread = first / zeroth, own / zeroth - (first / zeroth) ** 2
    skewness = (cube / zeroth - 3 * mean * own / zeroth + 2 * mean**3) / spread**1.5
    size = zeroth * spread**2 * (2 + skewness**2 / 2)
    twice = np.diag(part.cov)[-d:] / own  # E[w² h x²] / E[w h x²]
    taken = twice * np.einsum("ji,ji->j", line, np.einsum("jik,jk->ji", moments, line) - 2 * crossed)
    shown, expected = released.curve_squares + taken, twice * size
    of_squares = released.noise * (released.request.reach / SQUARES / weights**2) ** 2
    before = (DOUBT * expected) ** 2
    sampling = np.maximum(combined(shown, of_squares, expected, before), LEAST_SAMPLED * expected)
    noise = released.noise * (1 / weights**2 + k * line[:, 0] ** 2 + line[:, 1] ** 2)
    left = released.curves - np.einsum("ji,ji->j", line, scores)
    return Curvature(left / size, noise / size**2, sampling / n / size**2)
