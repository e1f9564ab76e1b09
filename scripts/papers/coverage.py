"""How often intervals hold the truth, and what that may be by chance.

If intervals of level L are nominal, the number that hold is binomial. Of K that are looked at, all lie between the
binomial quantiles at 0.005/K and 1 - 0.005/K with a probability of 99 % at least, whatever the dependence between them
(Bonferroni).
"""

from __future__ import annotations

BAND = 0.99


def band(level: float, count: int, looked_at: int) -> tuple[float, float]:
    """What `count` data sets' coverage lies within, for one of as many as are looked at."""
    from scipy.stats import binom

    tail = (1 - BAND) / looked_at / 2
    return float(binom.ppf(tail, count, level)) / count, float(binom.isf(tail, count, level)) / count
