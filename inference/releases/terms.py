"""Checks that the stated terms of reports (noise, ε, δ, bounds) are consistent with each other and with the reports.

**Redundant terms must agree.** The noise's scale, ε (with δ) and the bounds determine each other: Laplace noise has the
scale (high - low)/ε, Gaussian noise a standard deviation whose δ(ε) is the claimed one (Balle and Wang 2018, theorem
8), a bit or category the odds e^ε. If they contradict each other, one of them belongs to another round, and the
posterior would be wrong without any sign. Nor can noise carry a report arbitrarily far beyond the bounds: a report is
refused if noise reaches its place with a probability below e^-40. If many reports are that far out, they belong to
another column or scale; if few are, they are fabricated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.privacy.accounting import delta_of
from dca_proto.privacy.rounding import at_least
from inference.errors import DataError
from inference.problem import Array

Given: TypeAlias = LocalReports | NoisyAggregate | Sequence[LocalReports | NoisyAggregate]
"""Reports of one round, or of several rounds on the same terms with different clients."""

LAPLACE, GAUSSIAN = "grid-laplace", "analytic-gaussian"
RESPONSE, UNARY = "randomised-response", "unary-encoding"
SAME = 1e-3  # relative tolerance for redundant terms
GRID = 1e-2  # the same for Gaussian noise, which is a little wider because of the grid
FEW = 0.01  # of the reports
FAR = 40.0  # -ln of a probability: in Laplace scales, or half the square of standard deviations


def merge_reports(given: Given, mechanisms: Sequence[str]) -> tuple[LocalReports, list[NoisyAggregate]]:
    """Merge all reports into one, and return it with their rounds; there are no rounds for bare reports.

    Client ids are kept if they are known for all reports.
    """
    listed = [given] if isinstance(given, LocalReports | NoisyAggregate) else list(given)
    if not listed:
        raise DataError("no reports; give those of at least one round")
    rounds = [source for source in listed if isinstance(source, NoisyAggregate)]
    if rounds and len(rounds) < len(listed):
        raise DataError("some reports are bare and some have a round's parameters; give only one of the two kinds")
    parts = [source if isinstance(source, LocalReports) else source.reports for source in listed]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        first = rounds[parts.index(None)]
        raise DataError(
            f"a sum of the statistic {first.statistic!r} by {first.mechanism!r} has no reports; ask for a round with "
            "a local mechanism"
        )
    for part in known:
        _check_terms(part, mechanisms)
    _check_same_terms(known, rounds)
    values = np.concatenate([np.asarray(part.values) for part in known])
    if not np.all(np.isfinite(values)):
        raise DataError(
            f"{np.sum(~np.isfinite(values))} numbers in the reports are not finite; expected finite numbers"
        )
    ids = tuple(client for part in known for client in part.clients) if all(part.clients for part in known) else ()
    if len(set(ids)) < len(ids):
        raise DataError(
            f"{len(ids) - len(set(ids))} clients reported in several of the rounds; a model would count them as "
            "different clients; fit only rounds with different clients together"
        )
    return replace(known[0], values=values, clients=ids), rounds


def _check_terms(reports: LocalReports, mechanisms: Sequence[str]) -> None:
    if reports.mechanism not in mechanisms:
        wanted = " or ".join(repr(name) for name in mechanisms)
        raise DataError(f"reports are by the mechanism {reports.mechanism!r}; this model takes reports by {wanted}")
    if not 0 < reports.epsilon < inf:
        raise DataError(f"reports claim epsilon {at_least(reports.epsilon)}; expected a finite number above 0")
    if reports.mechanism == GAUSSIAN and not 0 < reports.delta < 1:
        raise DataError(
            f"reports by {GAUSSIAN!r} claim delta {at_least(reports.delta)}; expected a number between 0 and 1"
        )
    if reports.mechanism != GAUSSIAN and reports.delta != 0:
        raise DataError(f"reports by {reports.mechanism!r} claim delta {at_least(reports.delta)}; expected 0")
    if reports.mechanism in (LAPLACE, GAUSSIAN) and not 0 < reports.noise_scale < inf:
        raise DataError(f"reports claim noise of scale {reports.noise_scale:g}; expected a finite number above 0")


def _check_same_terms(parts: Sequence[LocalReports], rounds: Sequence[NoisyAggregate]) -> None:
    """Raise `DataError` unless all have the same terms, and each round is given once."""
    for place, part in enumerate(parts[1:], start=2):
        for name in ("mechanism", "epsilon", "delta", "noise_scale", "probabilities"):
            if (value := getattr(part, name)) != (first := getattr(parts[0], name)):
                raise DataError(
                    f"reports {place} have {name} {value}, the first have {first}; fit only reports on the same terms "
                    "together"
                )
        if part.values.shape[1:] != parts[0].values.shape[1:]:
            shapes = f"{part.values.shape}, the first {parts[0].values.shape}"
            raise DataError(f"reports {place} have the shape {shapes}; fit reports of the same columns together")
    if len({aggregate.round_id for aggregate in rounds}) < len(rounds):
        raise DataError("a round is given twice; give each once")
    for place, aggregate in enumerate(rounds[1:], start=2):
        if (aggregate.statistic, aggregate.parameters) != (rounds[0].statistic, rounds[0].parameters):
            raise DataError(f"round {place} has another statistic or other parameters than the first; fit it alone")


def check_noise(reports: LocalReports, scale: float, width: float) -> None:
    """Raise `DataError` unless the noise fits ε (and δ) for bounds of that width, the sensitivity."""
    if reports.mechanism == GAUSSIAN:
        check_gaussian(reports, scale, width)
    elif not close([scale * reports.epsilon], [width], width):
        raise DataError(
            f"Laplace noise of scale {scale:.4g} at epsilon {at_least(reports.epsilon)} is for bounds "
            f"{scale * reports.epsilon:.4g} apart, and these are {width:.4g} apart; give the bounds and the "
            "epsilon that the clients used"
        )


def check_gaussian(reports: LocalReports, sd: float, sensitivity: float) -> None:
    """Raise `DataError` unless the least noise that is (ε, δ)-private at this sensitivity is about `sd`."""
    most, least = (delta_of(reports.epsilon, sensitivity / (sd * slack)) for slack in (1 - GRID, 1 + GRID))
    if not least <= reports.delta <= most:
        raise DataError(
            f"Gaussian noise of standard deviation {sd:.4g} is not that of epsilon {at_least(reports.epsilon)} and "
            f"delta {at_least(reports.delta)} at the sensitivity {sensitivity:.4g}; give the bounds and terms that the "
            "clients used"
        )


def within_noise(
    z: Array, low: Array, high: Array, *, laplace: bool, scale: float
) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Return which reports, shape ``(n, k)`` to ``(n,)``, lie where the noise reaches, and a note about the others.

    A few others are fabricated; leaving them out keeps one client from spoiling what all others have paid for.

    Raises:
        DataError: more than `FEW` lie beyond.
    """
    chance = FAR + log(max(z.size, 1))
    reach = scale * (chance if laplace else sqrt(2 * chance))
    outside = np.any((z < low - reach) | (z > high + reach), axis=1)
    if outside.sum() > FEW * len(z):
        raise DataError(
            f"{outside.sum()} of {len(z)} reports are more than {reach:.4g} outside the bounds, where the noise does "
            "not reach; check that they are of this column, scale and mechanism"
        )
    if not outside.any():
        return ~outside, ()
    note = f"{outside.sum()} of {len(z)} reports are where the mechanism's noise does not reach, and were left out"
    return ~outside, (note,)


def number_of_categories(reports: LocalReports, values: NDArray[Any]) -> int:
    """Return k, if it agrees with the bits or, for randomised response, p + (k - 1) q = 1, and p and q with ε.

    That is, their odds are e^ε.
    """
    k, (p, q) = reports.categories, reports.probabilities or (0.0, 0.0)
    if not 0 < q < p < 1:
        raise DataError(f"reports claim the probabilities p = {p:g} and q = {q:g}; expected 0 < q < p < 1")
    wanted = 2 if reports.mechanism == UNARY else 1
    if values.ndim != wanted:
        expected = "bits (n, k)" if wanted == 2 else "categories (n,)"
        raise DataError(f"reports by {reports.mechanism!r} have the shape {values.shape}; expected {expected}")
    agrees = k == values.shape[1] if wanted == 2 else close([p + (k - 1) * q], [1.0], 1.0)
    if k < 2 or not agrees:
        raise DataError(
            f"reports claim {k} categories, but {'their bits do' if wanted == 2 else 'p and q do'} not agree with that"
        )
    odds = (1 - q) / q * p / (1 - p) if wanted == 2 else p / q
    if not abs(log(odds) - reports.epsilon) <= SAME * max(reports.epsilon, SAME):
        raise DataError(
            f"p = {p:.6g} and q = {q:.6g} of {reports.mechanism!r} have epsilon {at_least(log(odds))}, but the "
            f"reports claim {at_least(reports.epsilon)}; give the terms that the clients used"
        )
    return k


def close(left: ArrayLike, right: ArrayLike, scale: float) -> bool:
    return bool(np.allclose(left, right, rtol=0, atol=SAME * scale))
