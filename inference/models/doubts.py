"""Reasons to doubt a regression that several models share, a sentence each: their words, and when they are due.

Other reasons have their words elsewhere: rows that lack a value (`dca_proto.statistics.counting`), columns whose place
or scale noise hides (`inference.locate`), chains that have not mixed (`inference.draws`), and estimates that the prior
decides (`inference.contraction`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from dca_proto.wording import listed
from inference.contraction import percent
from inference.locate import ROUGHLY, locate
from inference.locate import STATISTIC as PHASES
from inference.problem import Array

MISSING_SDS = 4.0  # warn if the rows that count are this far below n, in noise sds: 1 false alarm in 31,000 releases
COLLINEAR, PAIRS = 0.9, 3  # correlation from which on a pair is named in a warning, and how many pairs are named
AWAY_MAX = 1.0  # largest distance of a standardised parameter from the last request
APART, TOGETHER = 0.3, 0.6  # sd of a combination of standardised effects that rests on the prior; their correlation
HIDDEN_SDS = 2.0  # of a combination of features: its variance, in sds of the noise in the features' covariances
ON_PRIOR = (
    "their intervals, and those of features that vary with them, rest on the prior and may fail; only predictions are "
    "sure; leave out features that repeat others, raise epsilon, or take more rows"
)


def about_data(missing: Sequence[str], aggregates: Iterable[NoisyAggregate]) -> tuple[str, ...]:
    """Return a count's warning of rows that lack a value, if any, then doubts about columns.

    Args:
        missing: the count's warning, beside which the first round's rougher one is left out.
        aggregates: of all rounds; that of phases shows the columns.
    """
    located = [one for each in aggregates if each.statistic == PHASES for one in locate(each).warnings]
    return (*missing, *(one for one in located if not (missing and one.startswith(ROUGHLY))))


def not_counted(share: float, reasons: str) -> str:
    """Return the warning that a share of the rows did not count. Args: reasons: why rows may not count."""
    return (
        f"about {percent(share)} of the rows did not count: {reasons}; check these, for the result describes the others"
    )


def about_not_counted(complete: tuple[float, float], reasons: str) -> tuple[str, ...]:
    """Warn if clearly fewer rows counted than contributed.

    Args:
        complete: the share of rows that count, and its standard deviation. reasons: why rows may not count.
    """
    share, sd = complete
    return (not_counted(min(1 - share, 1.0), reasons),) if 1 - share > MISSING_SDS * sd + 1e-6 else ()


def about_far_request(away: float, most: float, advice: str) -> list[str]:
    """Warn if the last round asked too far from the result.

    Args:
        away: the distance, standardised. most: the largest for which the approximation holds. advice: what to do.
    """
    if away <= most:
        return []
    return [
        f"the last round asked at parameters that differ from the result by {away:.2g} (standardised), too far for its "
        f"approximation; intervals may fail; {advice}"
    ]


def about_rare_values(features: Sequence[str], unsure: ArrayLike) -> list[str]:
    """Warn of features whose rare values have hidden effects. Args: unsure: which, ``(d,)``."""
    named = [name for name, one in zip(features, np.asarray(unsure).tolist(), strict=True) if one]
    if not named:
        return []
    return [
        f"noise hides the effects of rare values of {listed(named)}, so their intervals may fail; raise epsilon, take "
        "more rows, or merge rare categories"
    ]


def about_separate(mixed: Sequence[str], so: str = ON_PRIOR, repeat: str = "may repeat") -> str:
    """Return the warning of features whose separate effects noise hides. Args: so: what follows, and what to do."""
    return f"noise hides the separate effects of {listed(mixed, len(mixed))}, which {repeat} other features; {so}"


def about_collinearity(features: Sequence[str], squares: Array, noise: float) -> tuple[str, ...]:
    """Return a warning for each pair of features that nearly repeat each other, as a later round shows.

    Args:
        squares: second moments of the features about their centres, ``(d, d)``, in any unit. noise: sd of each.
    """
    own = np.maximum(np.diagonal(squares), noise)
    size = np.sqrt(own[:, None] * own)
    correlation, doubt = np.clip(np.triu(squares / size, 1), -1, 1), 2 * noise / size
    sure = (np.abs(correlation) > COLLINEAR) & (doubt < 1 - COLLINEAR)
    return tuple(
        f"{features[i]} and {features[j]} nearly repeat each other (correlation {correlation[i, j]:.2f}); their "
        "coefficients depend on the prior, and only their joint prediction is sure"
        for i, j in np.argwhere(sure)[:PAIRS]
    )


def together(cov: Array) -> float:
    """Return the largest correlation of two effects, without its sign."""
    sd = np.sqrt(np.diag(cov))
    return float(np.abs(np.triu(cov / np.outer(sd, sd), 1)).max(initial=0.0))


def repeated(features: Sequence[str], cov: Array, doubt: float, sds: float = HIDDEN_SDS) -> list[str]:
    """Return the features of the combinations of which noise hides how little they vary.

    Args:
        cov: of the features, ``(d, d)``. doubt: standard deviation of its noise, in each term. sds: from how many of
            them on the variance shows.
    """
    sd = np.sqrt(np.diag(cov))
    values, vectors = np.linalg.eigh(cov / np.outer(sd, sd))
    shares = np.abs(vectors[:, values <= sds * doubt])
    known = (shares > shares.max(axis=0, initial=0.0) / 2).any(axis=1)
    return [name for name, one in zip(features, known, strict=True) if one]


def inseparable(features: Sequence[str], cov: Array) -> list[str]:
    """Return the features of the least known combination of effects, if it rests on the prior and is of several.

    Args:
        features: their names, and perhaps more. cov: of the standardised effects, shape ``(d, d)``.
    """
    values, vectors = np.linalg.eigh(cov)
    if values[-1] < APART**2 or together(cov) < TOGETHER:
        return []
    shares = np.abs(vectors[:, -1])
    return [name for name, one in zip(features, shares > shares.max() / 2, strict=False) if one]
