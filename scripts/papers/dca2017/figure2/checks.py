"""What Figure 2 must show. A script that finds otherwise says so and exits with code 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dca_proto.privacy.rounding import at_least
from emulator.experiments.runner import Check
from papers.dca2017.figure2.data import Array
from papers.dca2017.figure2.experiment import (
    AS_PUBLISHED,
    CENTRED,
    CORRECTED,
    CORRECTED_ABSOLUTE,
    DDP,
    NP,
    OURS,
    PROJ_DDP,
    PROJ_TA,
    TA,
    ZERO,
)
from papers.dca2017.figure2.summary import Paired, Results

PUBLISHED_NP = {"wine-red": 0.644, "wine-white": 0.657, "abalone": 0.573}
RIGHT_NP = {"wine-red": 1.016, "wine-white": 0.978}
NP_REACH = 0.02
SAME = 0.03  # a trusted aggregator's median and the distributed one's
TIE = 0.01


def checks(results: Results, comparisons: Sequence[Paired], centred: Sequence[Paired]) -> list[Check]:
    """All of them.

    Args:
        comparisons: of ours with the corrected configuration; ``centred``: with the one that is centred by the data.
    """
    return [*_nonprivate(results), *_distributed(results), *_ours(results, comparisons, centred)]


def _nonprivate(results: Results) -> Iterator[Check]:
    for setting, wanted, words in ((AS_PUBLISHED, PUBLISHED_NP, "as published"), (OURS, RIGHT_NP, "wines read right")):
        for name, value in wanted.items():
            found = float(results.medians(name, setting, NP)[0])
            asked = f"{value} ± {NP_REACH}"
            yield Check(f"non-private, {name}, {words}", asked, f"{found:.3f}", abs(found - value) <= NP_REACH)


def _distributed(results: Results) -> Iterator[Check]:
    """TA and DDP share their noise in the valid settings."""
    for setting in (CORRECTED_ABSOLUTE, CORRECTED, OURS):
        for trusted, distributed in ((TA, DDP), (PROJ_TA, PROJ_DDP)):
            useful, apart = [], 0
            for name in results.names:
                runs = results.errors[name][setting]
                for place in range(len(results.epsilons)):
                    pair = runs[trusted][place], runs[distributed][place]
                    medians = [float(np.median(one)) for one in pair]
                    if min(medians) < np.median(runs[ZERO][place]):
                        useful.append(abs(medians[1] / medians[0] - 1))
                    elif not _overlap(*pair):
                        apart += 1
            different = sum(one > SAME for one in useful)
            largest = f"{100 * max(useful, default=0):.1f} % at most in {len(useful)} useful cells"
            cells = len(results.names) * len(results.epsilons)
            yield Check(
                f"{distributed} as {trusted}, {setting}",
                "medians within 3 %, elsewhere overlapping intervals",
                f"{largest}; {apart} of {cells - len(useful)} others apart",
                not different and not apart,
            )


def _overlap(first: Array, second: Array) -> bool:
    (a, b), (c, d) = median_interval(first), median_interval(second)
    return a <= d and c <= b


def median_interval(values: Array) -> tuple[float, float]:
    """An interval for a median with a coverage of at least 95 %, by order statistics."""
    from scipy.stats import binom

    below = max(int(binom.ppf(0.025, len(values), 0.5)), 1)
    ordered = np.sort(values)
    return float(ordered[below - 1]), float(ordered[len(values) - below])


def _ours(results: Results, comparisons: Sequence[Paired], centred: Sequence[Paired]) -> Iterator[Check]:
    for opponent, those in (("corrected, same repair", comparisons), (f"{CENTRED} (not private)", centred)):
        worst = max(those, key=lambda one: one.worse[1])
        yield Check(
            f"ours no worse than {opponent}",
            f"by at most {TIE} everywhere (end of the interval)",
            f"{worst.worse[1]:+.4f} at most ({worst.name}, ε = {at_least(worst.epsilon)})",
            worst.worse[1] <= TIE,
        )
    closer = sum(one.is_closer for one in comparisons)
    asked = f"in at least half of {len(comparisons)} (whole interval)"
    yield Check("ours 10 % closer to non-private", asked, f"in {closer}", 2 * closer >= len(comparisons))
    for name in results.names:
        zero = float(results.medians(name, OURS, ZERO)[0])
        found = float(results.medians(name, OURS, PROJ_DDP)[0])
        words = f"ours beats the zero predictor at ε = {at_least(results.epsilons[0])}, {name}"
        yield Check(words, f"below {zero:.3f}", f"{found:.3f}", found < zero)
