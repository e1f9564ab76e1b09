"""Checks that the stated terms of reports (noise, ε, δ, bounds) are consistent with each other and with the reports.

**What is said twice has to agree.** The noise's scale, ε (and δ) and the bounds say the same thing twice: Laplace noise
has the scale (high - low)/ε, Gaussian noise a standard deviation for which δ(ε) is what is claimed (Balle and Wang
2018, theorem 8), a bit or category the odds e^ε. If they contradict each other, one of them belongs to another round,
and the posterior would be wrong without any sign. Noise also cannot carry a report arbitrarily far beyond the bounds.
A report is refused if chance carries it so far with a probability below e^-40. If many reports are that far out, they
are of another column or scale; if few are, somebody made them up.
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
"""Reports of one round, or of several of the same terms whose clients differ."""

LAPLACE, GAUSSIAN = "grid-laplace", "analytic-gaussian"
RESPONSE, UNARY = "randomised-response", "unary-encoding"
SAME = 1e-3  # relative: how well what is said twice has to agree
GRID = 1e-2  # the same of Gaussian noise, which is a little wider for the grid
FEW = 0.01  # of the reports
FAR = 40.0  # in Laplace scales or, squared and halved, in standard deviations: a chance of e^-40


def together(given: Given, mechanisms: Sequence[str]) -> tuple[LocalReports, list[NoisyAggregate]]:
    """All reports as one, and the rounds that they are of; none where the reports are bare.

    Client ids are kept where those of all reports are known.
    """
    listed = [given] if isinstance(given, LocalReports | NoisyAggregate) else list(given)
    if not listed:
        raise DataError("no reports; give those of at least one round")
    rounds = [one for one in listed if isinstance(one, NoisyAggregate)]
    if rounds and len(rounds) < len(listed):
        raise DataError("some reports are bare and some have a round's parameters; give either sort alone")
    parts = [one if isinstance(one, LocalReports) else one.reports for one in listed]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        one = rounds[parts.index(None)]
        raise DataError(
            f"a sum of the statistic {one.statistic!r} by {one.mechanism!r} holds no reports; ask for a round with a "
            "local mechanism"
        )
    for part in known:
        _check_terms(part, mechanisms)
    _check_together(known, rounds)
    values = np.concatenate([np.asarray(part.values) for part in known])
    if not np.all(np.isfinite(values)):
        raise DataError(
            f"{np.sum(~np.isfinite(values))} numbers in the reports are not finite; expected finite numbers"
        )
    ids = tuple(one for part in known for one in part.clients) if all(part.clients for part in known) else ()
    if len(set(ids)) < len(ids):
        raise DataError(
            f"{len(ids) - len(set(ids))} clients reported in several of the rounds; a model counts them as different "
            "clients; fit rounds of different clients together"
        )
    return replace(known[0], values=values, clients=ids), rounds


def _check_terms(reports: LocalReports, mechanisms: Sequence[str]) -> None:
    if reports.mechanism not in mechanisms:
        wanted = " or ".join(repr(name) for name in mechanisms)
        raise DataError(f"reports are by the mechanism {reports.mechanism!r}; this model takes those by {wanted}")
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


def _check_together(parts: Sequence[LocalReports], rounds: Sequence[NoisyAggregate]) -> None:
    """Raise `DataError` unless all are of the same terms, and each round is there once."""
    for place, part in enumerate(parts[1:], start=2):
        for name in ("mechanism", "epsilon", "delta", "noise_scale", "probabilities"):
            if (found := getattr(part, name)) != (first := getattr(parts[0], name)):
                raise DataError(
                    f"reports {place} are of {name} {found}, the first of {first}; fit those alike together"
                )
        if part.values.shape[1:] != parts[0].values.shape[1:]:
            shapes = f"{part.values.shape}, the first of {parts[0].values.shape}"
            raise DataError(f"reports {place} have the shape {shapes}; fit those of the same columns together")
    if len({one.round_id for one in rounds}) < len(rounds):
        raise DataError("a round is given twice; give each once")
    for place, one in enumerate(rounds[1:], start=2):
        if (one.statistic, one.parameters) != (rounds[0].statistic, rounds[0].parameters):
            raise DataError(f"round {place} is of another statistic or other parameters than the first; fit it alone")


def check_noise(reports: LocalReports, scale: float, width: float) -> None:
    """Raise `DataError` where the noise is not what ε (and δ) ask for over bounds of that width, the sensitivity."""
    if reports.mechanism == GAUSSIAN:
        check_gaussian(reports, scale, width)
    elif not close([scale * reports.epsilon], [width], width):
        raise DataError(
            f"Laplace noise of scale {scale:.4g} at epsilon {at_least(reports.epsilon)} is for bounds "
            f"{scale * reports.epsilon:.4g} apart, and these are {width:.4g} apart; give the bounds and the "
            "epsilon that the clients used"
        )


def check_gaussian(reports: LocalReports, sd: float, sensitivity: float) -> None:
    """Raise `DataError` unless the least noise that is (ε, δ)-private at this sensitivity has about that deviation."""
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
    """Which reports, shape ``(n, k)`` to ``(n,)``, are no further out than noise carries one; a note of the others.

    A few that are were made up by somebody, who must not be able to spoil what the others have paid for.

    Raises:
        DataError: more than `FEW` are.
    """
    chance = FAR + log(max(z.size, 1))
    margin = scale * (chance if laplace else sqrt(2 * chance))
    outside = np.any((z < low - margin) | (z > high + margin), axis=1)
    if outside.sum() > FEW * len(z):
        raise DataError(
            f"{outside.sum()} of {len(z)} reports are more than {margin:.4g} outside the bounds, where the noise does "
            "not reach; check that they are of this column, scale and mechanism"
        )
    if not outside.any():
        return ~outside, ()
    found = f"{outside.sum()} of {len(z)} reports are where the mechanism's noise does not reach"
    return ~outside, (f"{found}, and were left out",)


def number_of_categories(reports: LocalReports, values: NDArray[Any]) -> int:
    """k, which bits and, of randomised response, p + (k - 1) q = 1 have to agree with; p and q are those of ε.

    That is, odds of e^ε at most, and not less than need be.
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
            f"reports claim to be of {k} categories, which is not what {'their bits' if wanted == 2 else 'p and q'} say"
        )
    odds = (1 - q) / q * p / (1 - p) if wanted == 2 else p / q
    if not abs(log(odds) - reports.epsilon) <= SAME * max(reports.epsilon, SAME):
        raise DataError(
            f"p = {p:.6g} and q = {q:.6g} of {reports.mechanism!r} are those of epsilon {at_least(log(odds))}, and the "
            f"reports claim {at_least(reports.epsilon)}; give the terms that the clients used"
        )
    return k


def close(left: ArrayLike, right: ArrayLike, scale: float) -> bool:
    return bool(np.allclose(left, right, rtol=0, atol=SAME * scale))
