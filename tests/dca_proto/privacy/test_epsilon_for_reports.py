"""A part of epsilon that is kept for reports: what a policy lets through, held against exact hockey-stick divergences.

The oracle is independent of the package's accounting: normal distributions of SciPy, the losses of binary randomised
response (the worst of all ε-private mechanisms), and the best strategy of an adversary who sees every result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.policy import BudgetLimit, Policy

Array = NDArray[np.float64]
DELTA = 1e-5
BOTH = Policy(epsilon_per_round_max=1.0, epsilon_per_period_max=2.0, delta_max=DELTA, epsilon_for_reports=1.0)


def delta_of(epsilon: float, mu: float) -> float:
    """Of N(0, 1) beside N(μ, 1), by Balle and Wang's formula."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def mu_of(epsilon: float, delta: float = DELTA) -> float:
    """The largest μ that is (ε, δ)-private, but for 1e-9 of it."""
    return float(brentq(lambda mu: delta_of(epsilon, mu) - delta, 1e-3, 50, xtol=1e-13)) * (1 - 1e-9)


def mixed_delta(epsilon: float, report: float, mu: float) -> float:
    """Of binary randomised response of ε = `report` and a Gaussian release of μ, both fixed beforehand."""
    likely = 1 / (1 + math.exp(-report))
    return likely * delta_of(epsilon - report, mu) + (1 - likely) * delta_of(epsilon + report, mu)


def ledger_of(mus: list[float], reports: list[float]) -> Ledger:
    """A client's, charged with rounds of both kinds."""
    figures = [(mu, 1.0, DELTA) for mu in mus] + [(1.0, epsilon, 0.0) for epsilon in reports]
    charges = [
        Charge(number.to_bytes(16, "big"), "sum", bytes(16), *figure, at_ms=0, number=number)
        for number, figure in enumerate(figures, 1)
    ]
    return Ledger(charges)


# --- what is let through ----------------------------------------------------------------------------------------------


def test_hardening_13_a_report_of_1_and_a_sum_of_1_cost_2_and_exactly_that() -> None:
    mu = mu_of(1.0)
    exact = float(brentq(lambda epsilon: mixed_delta(epsilon, 1.0, mu) - DELTA, 0.5, 4))
    spent = ledger_of([mu], [1.0])
    counted = BOTH.budget_limit.epsilon_of(spent.spent())
    assert 0.95 * counted <= exact <= counted == pytest.approx(2.0, rel=1e-8)
    without = msgspec.structs.replace(BOTH, epsilon_for_reports=0.0).budget_limit
    assert without.epsilon_of(spent.spent()) > 5.6, "what it is counted at where nothing is kept for reports"
    assert BOTH.check_budget(PrivacyCost.of_mu(mu), ledger_of([], [1.0]), 0) is None
    assert BOTH.check_budget(PrivacyCost.of_pure(1.0), ledger_of([mu], []), 0) is None
    for further in (PrivacyCost.of_mu(0.01), PrivacyCost.of_pure(1e-6)):
        assert BOTH.check_budget(further, spent, 0) is not None
        assert without.check(further, spent, 0) is not None


def test_each_kind_has_its_part_and_no_more() -> None:
    """Σε <= ε₁ and √Σμ² <= μ(ε - ε₁, δ), also where the other kind has spent nothing."""
    budget_limit = BudgetLimit(epsilon=3.0, delta=DELTA, epsilon_for_reports=1.0)
    whole = mu_of(2.0)
    for mus, reports, fits in [
        ([whole], [1.0], True),
        ([whole / 2] * 4, [0.1] * 10, True),
        ([whole * (1 + 1e-6)], [], False),
        ([whole / 2] * 4 + [0.02], [], False),
        ([], [1.0 + 1e-9], False),
        ([], [0.1] * 11, False),
    ]:
        assert (budget_limit.check(PrivacyCost(), ledger_of(mus, reports), 0) is None) == fits, (mus, reports)
    assert budget_limit.left(ledger_of([], [0.25]), 0, pure=True) == 0.75
    assert budget_limit.left(Ledger(), 0) == 2.0
    assert budget_limit.left(ledger_of([], [0.25]), 0) == 2.0, "reports take nothing of the others' part"


def test_the_refusal_names_both_parts() -> None:
    refused = BOTH.check_budget(PrivacyCost.of_pure(0.5), ledger_of([], [0.75]), 0)
    assert refused is not None
    assert refused.found == "a total of epsilon 1.25 with this round, 1.25 of it for reports of delta 0"
    expected = "<= 2 at delta 1e-05 in 365 days, 1 of it kept for these; at most 0.25 is left"
    assert refused.expected == expected


# --- an adversary who sees every result -------------------------------------------------------------------------------

SUMS, REPORTS, POINTS = 24, 4, 40


def best_strategy(epsilon: float, step: float, report: float, fits: Callable[[int, int], bool]) -> float:
    """The exact hockey-stick divergence at ε of an adversary who, after each result, takes a Gaussian release of μ =
    `step`, a report of some times `report`, or stops: whichever is best. By backward induction over the privacy loss.

    The loss of a Gaussian release is N(μ²/2, μ²), that of a report ±ε. It is held on a grid of which `report` is a
    multiple, with 40 points to a `step`; that costs some 1e-4 of δ.

    Args:
        fits: whether so many Gaussian releases, and reports of so many times `report` in all, are let through.
    """
    width = report / math.ceil(POINTS * report / step)
    shift, reach = round(report / width), math.ceil(9 * step / width)
    loss = np.arange(-round(3 / width), round((epsilon + 3) / width)) * width
    weights = norm.pdf(np.arange(-reach, reach + 1) * width, step**2 / 2, step) * width
    stopped = np.maximum(0.0, -np.expm1(epsilon - loss))

    def further(value: Array, by: int) -> Array:
        """The value where the loss is that many grid points more: 0 below the grid, and 1 above it."""
        return np.pad(value, abs(by), constant_values=(0, 1))[abs(by) + by : len(value) + abs(by) + by]

    @functools.cache
    def value(sums: int, reports: int) -> Array:
        options = [stopped]
        for size in range(1, REPORTS + 1):
            if fits(sums, reports + size):
                after, likely = value(sums, reports + size), 1 / (1 + math.exp(-size * report))
                options.append(likely * further(after, size * shift) + (1 - likely) * further(after, -size * shift))
        if fits(sums + 1, reports):
            after = np.pad(value(sums + 1, reports), reach, constant_values=(0, 1))
            options.append(np.correlate(after, weights, "valid"))
        return np.asarray(np.max(options, axis=0))

    return float(value(0, 0)[round(3 / width)])


def let_through(policy: Policy, step: float, report: float) -> Callable[[int, int], bool]:
    """What a client's policy says to its ledger, one round at a time."""

    @functools.cache
    def fits(sums: int, reports: int) -> bool:
        price = total([PrivacyCost.of_mu(step)] * sums + [PrivacyCost.of_pure(report)] * reports)
        return policy.check_budget(price, Ledger(), 0) is None

    return fits


@pytest.mark.parametrize(("epsilon", "kept"), [(2.0, 1.0), (1.5, 0.5), (4.0, 3.0)])
def test_hardening_13_no_choice_in_view_of_results_gains_more_than_delta(epsilon: float, kept: float) -> None:
    """Reports before, between and after sums, each by all results before. δ is not exceeded at ε, and is at 0.95 ε."""
    policy = msgspec.structs.replace(BOTH, epsilon_per_period_max=epsilon, epsilon_for_reports=kept)
    step, report = mu_of(epsilon - kept) / math.sqrt(SUMS), kept / REPORTS
    fits = let_through(policy, step, report)
    assert fits(SUMS, REPORTS)
    assert not fits(SUMS + 1, 0)
    assert not fits(0, REPORTS + 1)
    assert best_strategy(epsilon, step, report, fits) <= DELTA * (1 + 1e-3)
    assert best_strategy(0.95 * epsilon, step, report, fits) > DELTA, "5 % less would promise too much"


def test_the_oracle_agrees_with_enumeration() -> None:
    """All transcripts of all strategies of two reports and two Gaussian releases, each release cut into 200 cells, with
    the probabilities of both neighbours: no privacy loss, no grid of losses."""
    epsilon, report, mu = 1.2, 0.6, 0.5
    edges = [-math.inf, *np.linspace(-5, 5.5, 199), math.inf]
    summed = np.diff(norm.cdf(edges, mu)), np.diff(norm.cdf(edges))

    def after_reports(size: int) -> tuple[Array, Array]:
        likely = 1 / (1 + math.exp(-size * report))
        return np.array([likely, 1 - likely]), np.array([1 - likely, likely])

    def best(p: Array, q: Array, sums: int, reports: int) -> Array:
        """Of each transcript so far, what the best strategy adds to the divergence."""
        found = np.maximum(0.0, p - math.exp(epsilon) * q)
        options = [(after_reports(size), (sums, reports - size)) for size in range(1, reports + 1)]
        options += [(summed, (sums - 1, reports))] if sums else []
        for (one, other), rest in options:
            after = best(np.multiply.outer(p, one), np.multiply.outer(q, other), *rest)
            found = np.maximum(found, after.sum(axis=-1))
        return found

    for sums, reports in ((0, 2), (1, 0), (1, 1), (2, 1), (1, 2), (2, 2)):
        exact = float(best(np.ones(()), np.ones(()), sums, reports))
        found = best_strategy(epsilon, mu, report, lambda s, r, most=(sums, reports): s <= most[0] and r <= most[1])
        assert exact == pytest.approx(found, rel=2e-3, abs=1e-12), (sums, reports)
