"""Shared parts of the experiments on local reports: reports by the exact mechanisms, and fits whose chains have mixed.

Each client holds one number or one category and reports it once, as in a report round without messages.

**Mixing.** As in the paper (section 4.3), a fit has four chains, whose first half is warm-up, and needs an R̂ below 1.1.
If it is not, the fit is repeated with twice the iterations, up to `ATTEMPTS` times in all, and the last attempt counts.
`check_mixed` reports this, and the number of fits above 1.01, today's usual requirement.
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
from inference.posterior import Posterior
from inference.problem import Array
from papers.experiment import C, Experiment, F, Result
from papers.runner import Check

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
CHAINS, ATTEMPTS = 4, 3
QUICK_ITERATIONS = 400
_R_HAT_MOST = 1000.0  # for a chain that stands still, whose R̂ is infinite; JSON has no infinity


@dataclass(frozen=True, kw_only=True)
class RepeatedFits(Experiment[C, F]):
    """An experiment that repeats reports and a fit at several ε; each chain has `iterations`.

    A cell is a named tuple of some repeats, whose last fields are the `first` repeat and their `number` (`parts`).
    """

    DEPENDS: ClassVar[tuple[str, ...]] = ("seed", "iterations")

    repeats: int
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = 2000

    def once(self, cell: C, repeat: int) -> Result:
        """Return the results of one repeat."""
        raise NotImplementedError

    def work(self, cell: Any) -> Result:
        found = [self.once(cell, repeat) for repeat in range(cell.first, cell.first + cell.number)]
        return {name: [one[name] for one in found] for name in found[0]}


def parts(repeats: int, size: int) -> list[tuple[int, int]]:
    """Divide the repeats into cells of `size`; return the first repeat and the number of repeats of each."""
    return [(first, min(size, repeats - first)) for first in range(0, repeats, size)]


def joined(cells: Sequence[Any], results: Sequence[Result]) -> dict[Any, Result]:
    """Join the results of cells that differ in `first` and `number` only: lists by name, by the cell without these."""
    found: dict[Any, Result] = {}
    for cell, result in zip(cells, results, strict=True):
        own = found.setdefault(cell[:-2], {name: [] for name in result})
        for name, values in result.items():
            own[name] += values
    return found


class Diagnosis(NamedTuple):
    """The diagnosis of a fit."""

    r_hat: float  # the largest of any parameter
    effective: float  # the fewest effective draws of any parameter, bulk or tail
    attempts: int
    divergences: int  # of the last attempt
    seconds: float  # on one idle core, for all attempts; the first fit of its kind includes compiling


def number_reports(x: Array, bounds: Interval, epsilon: float, rng: np.random.Generator) -> LocalReports:
    """Report one number per client, shape ``(n,)``, clipped to the bounds, with Laplace noise; in their own units."""
    statistic = Sum(columns=("value",), centre=(bounds.centre,), scale=(1.0,), bound=(bounds.half_width,))
    mechanism = GridLaplace(epsilon, client_sensitivity(statistic, 1, FRACTION_BITS), 1)
    values = statistic.evaluate(x[:, None], FRACTION_BITS)
    reports = mechanism.decode_reports(
        mechanism.randomise(values, rng.bytes(KEY_BYTES)), math.ldexp(1.0, -FRACTION_BITS)
    )
    return replace(reports, values=reports.values[:, 0] + bounds.centre)


def bit_reports(categories: NDArray[np.int64], mechanism: UnaryEncoding, rng: np.random.Generator) -> LocalReports:
    """Report one category per client, shape ``(n,)``, as bits."""
    return mechanism.decode_reports(mechanism.randomise(categories, rng.bytes(KEY_BYTES)), 1.0)


def mixed(fit: Callable[..., Posterior], iterations: int, seed: int) -> tuple[Posterior, Diagnosis]:
    """Fit until the chains have mixed, at most `ATTEMPTS` times.

    Args:
        fit: a function of `inference.models.fit` that lacks only the sampling options.
        iterations: of each chain in the first attempt; half of them are warm-up.
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
    """Check that the chains of every fit have mixed."""
    count, worst, above, again, *_ = described(found).values()
    words = f"{worst:.3f} at most; {above} of {count} above {R_HAT_MAX:g}, {again} sampled again"
    return Check("R-hat", f"below {R_HAT_REQUIRED:g} in every fit", words, worst < R_HAT_REQUIRED)
