"""One or more of each registered statistic, with different parameters: for tests that loop over all of them."""

from __future__ import annotations

from typing import Any

from dca_proto.statistics import (
    AveragedRegression,
    Gradient,
    Histogram,
    Mean,
    Mixture,
    Moments,
    Phases,
    Regression,
    SecondMoments,
    Statistic,
    Sum,
    Survival,
    SurvivalScore,
)

BOX: dict[str, Any] = {"columns": ("a", "b"), "centre": (0.0, 0.0), "scale": (1.0, 1.0), "bound": (1.0, 3.0)}
THREE: dict[str, Any] = {
    "columns": ("a", "b", "y"),
    "centre": (0.0,) * 3,
    "scale": (1.0,) * 3,
    "bound": (1.0, 3.0, 2.0),
}
CODES = ((1, 0, 0, 0, 0), (1, 1, 0, 0, 0), (1, 1, 1, 0, 0), (-1, 1, 1, 1, 0), (1, 1, 1, 1, 1))
TRIAL: dict[str, Any] = {"times": (1.0, 2.0)}
STATISTICS: list[Statistic] = [
    Sum(**BOX),
    Sum(**BOX, radius=2.0),
    Sum(**BOX, count_weight=5.0),
    Mean(**BOX),
    Moments(**BOX),
    Moments(**BOX, count_weight=2.0),
    SecondMoments(**BOX),
    SecondMoments(**BOX, count_weight=7.0),
    Histogram(columns=("a",), edges=(-1.0, 0.0, 1.0)),
    Histogram(columns=("a",), edges=(-1.0, 1.0)),
    Histogram(columns=("a",), edges=(-1.0, 0.0, 1.0), count_weight=1.0),
    Phases(**BOX, levels=4),
    Regression(**THREE),
    Regression(**THREE, intercept=True, intercept_bound=0.5, target_square=True, weights=(3, 1, 2)),
    Regression(**THREE, intercept=True, radius=2.0, weights=(1, 5, 2)),
    Regression(**THREE, intercept=True, radius=2.0, whole_rows=True, target_square=True),
    AveragedRegression(**THREE, group=3),
    AveragedRegression(**THREE, group=2, radius=1.5),
    Gradient(**THREE, theta=(0.5, -1.0), clip=2.0),
    Gradient(**THREE, theta=(0.5, -1.0, 0.2), clip=3.0, family="bernoulli", intercept=True, information=2.0),
    Gradient(**THREE, theta=(0.1, -0.2), clip=9.0, family="poisson", information=1.0, dispersion=2.0),
    Gradient(**THREE, theta=(0.1, -0.2, 0.3), clip=4.0, family="student", information=1.0, by_features=True),
    Mixture(
        **BOX,
        log_weights=(0.0, 0.5),
        means=((0.5, 0.0), (-0.5, 0.3)),
        precisions=((1.0, 4.0), (3.0, 0.0)),
        offsets=(0.5, 10.0),
        weights=(3, 2, 1),
    ),
    Survival(columns=("t", "e"), **TRIAL),
    Survival(columns=("t", "e", "g"), **TRIAL, groups=2, codes=CODES),
    Survival(columns=("t", "e", "g"), **TRIAL, groups=2, codes=CODES, censored=1, first_group=1),
    SurvivalScore(
        columns=("t", "e", "g", "a"),
        **TRIAL,
        groups=2,
        centre=(0.0, 0.5, 0.0, 0.0),
        scale=(2.0, 0.5, 1.0, 1.0),
        bound=(2.0, 3.0, 2.0, 3.0),
        theta=(-1.0, -0.5, 0.3, 0.4),
        clip=3.0,
        information=0.5,
    ),
]
