"""What the experiments on one column share: reports by the exact mechanisms, and fits whose chains have mixed.

Each client holds one number or one category and reports it once, as in a report round without messages.

**Mixing.** As in the paper (section 4.3), four chains, of which the first half is warm-up, and an R̂ below 1.1 in every
fit. Where it is not, all is sampled anew with twice the iterations, up to `ATTEMPTS` times in all; what the last one
gives is used, and `check_mixed` says so, with how many fits are above 1.01, which is what is asked for nowadays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import LocalReports
from dca_proto.crypto.sealing import KEY_BYTES
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy.local import GridLaplace, UnaryEncoding
from dca_proto.statistics import Sum
from dca_proto.statistics.contribution import client_sensitivity
from inference.bounds import Interval
from inference.draws import R_HAT_MAX, R_HAT_REQUIRED
from inference.mcmc.posterior import LocalPosterior
from inference.problem import Array
from papers.experiment import C, Experiment, F, Result
from papers.runner import Check

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
CHAINS, ATTEMPTS = 4, 3
QUICK_ITERATIONS = 400
_R_HAT_MOST = 1000.0  # that of a chain that stands still is infinite, which plain data cannot say


@dataclass(frozen=True, kw_only=True)
class RepeatedFits(Experiment[C, F]):
    """Repeats of reports at several ε, and a fit of each; `iterations` of each chain.

    A cell is a named tuple of some repeats. It ends with the `first` of them and their `number` (`parts`).
    """

    DEPENDS: ClassVar[tuple[str, ...]] = ("seed", "iterations")

    repeats: int
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = 2000

    def once(self, cell: C, repeat: int) -> Result:
        """What one repeat finds."""
        raise NotImplementedError

    def work(self, cell: Any) -> Result:
        found = [self.once(cell, repeat) for repeat in range(cell.first, cell.first + cell.number)]
        return {name: [one[name] for one in found] for name in found[0]}


def parts(repeats: int, size: int) -> list[tuple[int, int]]:
    """The first repeat of each cell, and how many it has: `size` but for the last."""
    return [(first, min(size, repeats - first)) for first in range(0, repeats, size)]


def joined(cells: Sequence[Any], results: Sequence[Result]) -> dict[Any, Result]:
    """What all repeats found, by name, for each beginning of cells."""
    found: dict[Any, Result] = {}
    for cell, result in zip(cells, results, strict=True):
        own = found.setdefault(cell[:-2], {name: [] for name in result})
        for name, values in result.items():
            own[name] += values
    return found


class Diagnosis(NamedTuple):
    """How a fit went."""

    r_hat: float  # the largest of its numbers
    effective: float  # the fewest effective draws of any, bulk or tail
    attempts: int  # how often it was sampled
    divergences: int  # of the last attempt
    seconds: float  # of one core, all attempts together; compiling included where it was the first of its kind


def number_reports(x: Array, bounds: Interval, epsilon: float, rng: np.random.Generator) -> LocalReports:
    """Numbers of as many clients, shape ``(n,)``, clipped to the bounds, with Laplace noise; in their own units."""
    statistic = Sum(columns=("value",), centre=(bounds.centre,), scale=(1.0,), bound=(bounds.half_width,))
    mechanism = GridLaplace(epsilon, client_sensitivity(statistic, 1, FRACTION_BITS), 1)
    values = statistic.evaluate(x[:, None], FRACTION_BITS)
    reports = mechanism.decode_reports(
        mechanism.randomise(values, rng.bytes(KEY_BYTES)), math.ldexp(1.0, -FRACTION_BITS)
    )
    return replace(reports, values=reports.values[:, 0] + bounds.centre)


def bit_reports(categories: NDArray[np.int64], mechanism: UnaryEncoding, rng: np.random.Generator) -> LocalReports:
    """Categories of as many clients, shape ``(n,)``, as bits."""
    return mechanism.decode_reports(mechanism.randomise(categories, rng.bytes(KEY_BYTES)), 1.0)


def mixed(fit: Callable[..., LocalPosterior], iterations: int, seed: int) -> tuple[LocalPosterior, Diagnosis]:
    """A posterior whose chains agree, if that can be had.

    Args:
        fit: one of `inference.models.fit`, but for how to sample. iterations: of each chain at first, half of them
            warm-up.
    """
    begun, attempts, half = time.process_time(), 0, iterations // 2
    while True:
        found = fit(chains=CHAINS, warmup=half, draws=half, seed=seed + attempts, require_mixed=False)
        r_hat = max(one.r_hat for one in found.mixing)
        attempts, half = attempts + 1, 2 * half
        if r_hat < R_HAT_REQUIRED or attempts == ATTEMPTS:
            break
    assert found.sampling is not None
    effective = min(min(one.bulk, one.tail) for one in found.mixing)
    divergences, seconds = int(found.sampling.divergences.sum()), time.process_time() - begun
    r_hat = round(min(r_hat, _R_HAT_MOST), 4)
    return found, Diagnosis(r_hat, round(effective, 1), attempts, divergences, round(seconds, 3))


def described(found: Sequence[Diagnosis]) -> dict[str, Any]:
    return {
        "fits": len(found),
        "largest_r_hat": max(one.r_hat for one in found),
        f"above_{R_HAT_MAX:g}": sum(one.r_hat > R_HAT_MAX for one in found),
        "sampled_again": sum(one.attempts > 1 for one in found),
        "with_divergences": sum(one.divergences > 0 for one in found),
        "fewest_effective_draws": min(one.effective for one in found),
        "core_seconds": round(sum(one.seconds for one in found), 1),
    }


def check_mixed(found: Sequence[Diagnosis]) -> Check:
    """Every fit's chains agree."""
    count, worst, above, again, *_ = described(found).values()
    words = f"{worst:.3f} at most; {above} of {count} above {R_HAT_MAX:g}, {again} sampled again"
    return Check("R-hat", f"below {R_HAT_REQUIRED:g} in every fit", words, worst < R_HAT_REQUIRED)
