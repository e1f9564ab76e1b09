"""How much was learned: the contraction of a posterior from its prior, one number for each estimate.

    contraction = 1 - (spread of the posterior / spread of the prior)²

1 means that the value is known exactly, 0 that the posterior is as wide as the prior, below 0 that it is wider. This is
the *posterior contraction* of Schad, Betancourt and Vasishth (2021, "Toward a principled Bayesian workflow in cognitive
science", section 2.4), 1 - Var[θ | data]/Var[θ]. If prior and likelihood are normal it is the weight c of the data in
the posterior mean: mean = c (estimate from the data alone) + (1 - c) (prior mean). So below a half the prior weighs
more.

The spread is a standard deviation, or the width of the central 95 % interval. For normal laws both give the same ratio.
`of_draws` compares draws by the width, since some priors have no variance (the prior of a mean 1/rate, for example).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.wording import listed
from inference.problem import Array

HALF = 0.5  # below this, the prior weighs more than the data
HARDLY = 0.1  # below this, the posterior is nearly the prior
TAILS = (0.025, 0.975)
ADVICE = "raise epsilon, or ask more clients"


def contraction(spread: ArrayLike, prior_spread: ArrayLike) -> Array:
    """Return the contraction for each pair of spreads in the same units; they broadcast.

    Args:
        spread, prior_spread: of posterior and prior, at least 0. An infinite prior spread, that of a flat prior, gives
            1; nan, or a prior spread of 0, gives nan.
    """
    before, after = np.asarray(prior_spread, float), np.asarray(spread, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(before > 0, after / before, np.nan)
    return np.asarray(1 - ratio**2)


def of_draws(draws: Array, prior: Array) -> Array:
    """Return the contraction, shape ``(...)``, of draws ``(chains, draws, ...)`` from prior draws ``(draws, ...)``."""
    low, high = np.quantile(draws, TAILS, axis=(0, 1))
    before_low, before_high = np.quantile(prior, TAILS, axis=0)
    return contraction(high - low, before_high - before_low)


def about_contraction(names: Sequence[str], contractions: Sequence[float | None]) -> list[str]:
    """Return warnings about estimates that were hardly learned; empty if the data outweigh the prior in all.

    Args:
        names, contractions: of the estimates; a contraction is None or nan if it is not known.
    """
    pairs = zip(names, contractions, strict=True)
    known = {name: part for name, part in pairs if part is not None and np.isfinite(part)}
    hardly = [name for name, part in known.items() if part < HARDLY]
    weak = [name for name, part in known.items() if HARDLY <= part < HALF]
    if known and len(hardly) == len(known):
        most = max(0.0, *known.values())
        return [
            f"nothing was learned: the posterior is nearly the prior, contraction {percent(most)} at most; {ADVICE}"
        ]
    words = []
    if hardly:
        words.append(
            f"hardly anything was learned of {listed(hardly)}: contraction is below {percent(HARDLY)}, so the "
            f"posterior is nearly the prior; {ADVICE}"
        )
    if weak:
        words.append(f"the prior weighs more than the data in {listed(weak)}: contraction is below {percent(HALF)}")
    return words


def percent(part: float) -> str:
    """Format a part of 1 for people; only 1 is shown as 100 %: 99.5 %, 99.96 %, at most 99.9999 %."""
    places = next((k for k in range(5) if part >= 1 or round(100 * part, k) < 100), None)
    return "99.9999 %" if places is None else f"{round(100 * part, places) + 0.0:.{places}f} %"
