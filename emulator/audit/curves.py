"""What an adversary saw, in few numbers: a histogram of each world, and the error rates of many thresholds."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator.audit.adversary import Samples
from emulator.audit.bounds import count_errors

BINS = 80
CUTS = 400
_CUTS_KEPT = 100


class Histograms(NamedTuple):
    """How many runs of world 0 and of world 1 lie in each bin: `BINS` of them, between ``BINS + 1`` edges."""

    edges: NDArray[np.float64]
    counts: tuple[NDArray[np.int64], NDArray[np.int64]]


class Distributions(msgspec.Struct, frozen=True):
    """The same as written: `edges` ascend, and `counts` has one number for each two of them, of each world."""

    edges: list[float]
    counts: tuple[list[int], list[int]]

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or any(high <= low for low, high in pairwise(self.edges)):
            raise ValueError("distributions.edges do not ascend")
        if {len(one) for one in self.counts} != {len(self.edges) - 1}:
            raise ValueError("distributions.counts are not one for each two edges")


class Errors(msgspec.Struct, frozen=True):
    """Error rates of the adversary's guess as written, for many thresholds."""

    false_positives: list[float]
    false_negatives: list[float]


class TradeOff(NamedTuple):
    """Error rates of guessing world 0 above a threshold, for thresholds from below all runs upwards."""

    false_positives: NDArray[np.float64]
    false_negatives: NDArray[np.float64]


def histograms(samples: Samples) -> Histograms:
    """Over the range of both worlds, with a little margin."""
    low, high = (float(extreme(np.concatenate(samples))) for extreme in (np.min, np.max))
    margin = 0.05 * (high - low) or 1.0
    edges = np.linspace(low - margin, high + margin, BINS + 1)
    zero, one = (np.histogram(values, edges)[0].astype(np.int64) for values in samples)
    return Histograms(edges, (zero, one))


def trade_off(samples: Samples, cuts: int = CUTS) -> TradeOff:
    """One threshold lies below all runs, and `cuts` at their quantiles."""
    quantiles = np.quantile(np.concatenate(samples), np.linspace(0, 1, cuts))
    errors = count_errors(samples, np.concatenate([[-np.inf], quantiles]))
    return TradeOff(errors.false_positives / errors.runs, errors.false_negatives / errors.runs)


def in_few_numbers(samples: Samples) -> tuple[Distributions, Errors]:
    """Both, for programs, with fewer thresholds."""
    shape, errors = histograms(samples), trade_off(samples, _CUTS_KEPT)
    zero, one = shape.counts
    return (
        Distributions(shape.edges.tolist(), (zero.tolist(), one.tolist())),
        Errors(errors.false_positives.tolist(), errors.false_negatives.tolist()),
    )
