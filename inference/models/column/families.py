"""Laws of one column that clients clip and report with additive noise.

    family        value x                                         parameters            shown beside mean and sd
    gaussian      x ~ N(mean, sd²)                                mean, sd
    exponential   x >= 0 of density rate exp(-rate x)             rate                  rate
    poisson       x = 0, 1, 2, ... of mean rate                   rate
    geometric     x failures before the first success             probability           probability

`rectified` has their likelihoods; a function's name is that of the family and of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from typing import TypeAlias

import numpy as np

from inference.bounds import Interval
from inference.errors import DataError
from inference.models.priors import ColumnPrior, GaussianPrior, ProbabilityPrior, RatePrior
from inference.problem import Array

Draws: TypeAlias = Mapping[str, Array]
EXPONENTIAL, GAUSSIAN, GEOMETRIC, POISSON = "exponential", "gaussian", "geometric", "poisson"
MISSING_SHARE = "missing"
"""The share of clients without a value: a parameter of every family if clients say whether they have one."""
COUNTS_MAX = 1000  # largest upper bound of counts; time and memory of a chain's step grow with its square
NEAR = 1e-9  # relative rounding error of bounds that were converted to centre and scale


@dataclass(frozen=True)
class Family:
    """A law of a column's values.

    Attributes:
        prior: the class of the parameters' prior; its sites are the parameters. within: the default prior, given the
            public bounds.
        mean, sd: of the column, from draws of the parameters.
        values: draws values of a shape with which the parameters broadcast.
        parameter: the one that is neither mean nor standard deviation, or "". of_mean: its value at a given mean.
        counts: whether values are 0, 1, 2, ...
    """

    prior: type[ColumnPrior]
    within: Callable[[Interval], ColumnPrior]
    mean: Callable[[Draws], Array]
    sd: Callable[[Draws], Array]
    values: Callable[[np.random.Generator, Draws, tuple[int, ...]], Array]
    parameter: str = ""
    of_mean: Callable[[float], float] = float
    counts: bool = False

    def numbers(self, drawn: Draws) -> list[Array]:
        """Return draws of mean and standard deviation, and of `parameter` if there is one."""
        return [self.mean(drawn), self.sd(drawn), *([drawn[self.parameter]] if self.parameter else [])]


FAMILIES = {
    GAUSSIAN: Family(
        prior=GaussianPrior,
        within=GaussianPrior.within,
        mean=lambda drawn: drawn["mean"],
        sd=lambda drawn: drawn["sd"],
        values=lambda rng, drawn, shape: rng.normal(drawn["mean"], drawn["sd"], shape),
    ),
    EXPONENTIAL: Family(
        prior=RatePrior,
        within=lambda bounds: RatePrior.of_exponential(bounds.upper),
        mean=lambda drawn: 1 / drawn["rate"],
        sd=lambda drawn: 1 / drawn["rate"],
        values=lambda rng, drawn, shape: rng.exponential(1 / drawn["rate"], shape),
        parameter="rate",
        of_mean=lambda mean: 1 / mean if mean > 0 else nan,
    ),
    POISSON: Family(
        prior=RatePrior,
        within=lambda bounds: RatePrior.of_poisson(bounds.upper),
        mean=lambda drawn: drawn["rate"],
        sd=lambda drawn: np.sqrt(drawn["rate"]),
        values=lambda rng, drawn, shape: rng.poisson(drawn["rate"], shape).astype(float),
        counts=True,
    ),
    GEOMETRIC: Family(
        prior=ProbabilityPrior,
        within=lambda bounds: ProbabilityPrior(),
        mean=lambda drawn: 1 / drawn["probability"] - 1,
        sd=lambda drawn: np.sqrt(1 - drawn["probability"]) / drawn["probability"],
        values=lambda rng, drawn, shape: np.asarray(rng.geometric(drawn["probability"], shape) - 1, float),
        parameter="probability",
        of_mean=lambda mean: 1 / (1 + mean) if mean >= 0 else nan,
        counts=True,
    ),
}


def bounds_for(name: str, column: str, bounds: Interval) -> Interval:
    """Return the bounds as the likelihood needs them: from exactly 0 unless `GAUSSIAN`, whole numbers for counts.

    Raises:
        DataError: the bounds do not fit the family, or there are too many counts to sum over for each report.
    """
    low, high = bounds.lower, bounds.upper
    if name == GAUSSIAN:
        return bounds
    if abs(low) > NEAR * abs(high):
        raise DataError(
            f"family {name!r} describes numbers from 0 on, and {column} is clipped to {low:g}:{high:g}; clip it to "
            f"0:HIGH (lower=0), or take family {GAUSSIAN!r}"
        )
    if FAMILIES[name].counts:
        if abs(high - round(high)) > NEAR * high or round(high) < 1:
            raise DataError(
                f"family {name!r} describes counts, and {column} is clipped at {high:g}; clip it at a whole number "
                "(upper=COUNT)"
            )
        if high > COUNTS_MAX:
            raise DataError(
                f"counts clipped at {high:g} are too many to sum over for each report; clip them at {COUNTS_MAX} "
                f"or less, or take family {GAUSSIAN!r}"
            )
        high = float(round(high))
    return Interval(0.0, high)
