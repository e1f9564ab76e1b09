"""What Gaussian releases and ε-private reports come to together: valid, also in view of results, and where it can be,
tight.

All but hypothesis' searches is deterministic, and those look for exact facts: no test has a chance of a false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.accounting import mu_of, mu_of_pure, pure_of_mu
from dca_proto.privacy.composition import (
    Gaussian,
    Laplace,
    PureDP,
    RandomisedResponse,
    Release,
    UnaryEncoding,
    delta_of,
    epsilon_of,
)
from dca_proto.privacy.cost import PrivacyCost, total

Array = NDArray[np.float64]
EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0, 500.0]
LEVELS = np.concatenate([np.logspace(-12, -3, 40), np.linspace(0.001, 0.999, 2001), 1 - np.logspace(-12, -3, 40)])


def gaussian_curve(mu: float, alpha: Array) -> Array:
    """G_μ(α)."""
    return norm.cdf(norm.isf(alpha) - mu)


def pure_curve(epsilon: float, alpha: Array) -> Array:
    """f of ε-privacy: the two lines to its kink."""
    return np.maximum(1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))


def exact_curve(one: Sequence[float], other: Sequence[float], alpha: Array) -> Array:
    """T(α) of two discrete laws: the outcomes are rejected in the order of their likelihood ratios."""
    p, q = np.array(one), np.array(other)
    order = np.argsort(-q / p)
    return np.interp(alpha, np.append(0, np.cumsum(p[order])), 1 - np.append(0, np.cumsum(q[order])))


# --- the conversion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_conversion_is_its_closed_form_rounded_up_and_its_inverse_down(epsilon: float) -> None:
    mu = mu_of_pure(epsilon)
    with mpmath.workdps(300):
        kink = 1 / (1 + mpmath.exp(epsilon))
        exact = lambda m: mpmath.log(mpmath.ncdf(mpmath.mpf(m) / 2) / mpmath.ncdf(-mpmath.mpf(m) / 2))  # noqa: E731
        assert exact(mu) >= epsilon > exact(mu * (1 - 1e-11))
        assert mpmath.ncdf(mpmath.mpf(mu) / 2) >= 1 - kink
        assert exact(mu) * (1 - mpmath.mpf(10) ** -11) < pure_of_mu(mu) <= exact(mu)
    assert pure_of_mu(0.0) == 0.0
    assert pure_of_mu(1e9) == pure_of_mu(70.0) > 500


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 10.0])
def test_no_epsilon_private_curve_is_below_and_the_kink_is_met(epsilon: float) -> None:
    mu, kink = mu_of_pure(epsilon), np.array([1 / (1 + math.exp(epsilon))])
    assert np.all(gaussian_curve(mu, LEVELS) <= pure_curve(epsilon, LEVELS) * (1 + 1e-9))
    assert gaussian_curve(mu, kink) == pytest.approx(kink, rel=1e-9)
    assert pure_curve(epsilon, kink) == pytest.approx(kink, rel=1e-12)
    less = gaussian_curve(mu * (1 - 1e-6), kink)
    assert less > pure_curve(epsilon, kink) * (1 + 1e-8), "a smaller μ would promise too much"


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0, 10.0])
def test_no_delta_of_an_epsilon_private_mechanism_is_above_that_of_its_conversion(epsilon: float) -> None:
    """The same by (ε', δ): binary randomised response has δ(ε') = (e^ε - e^ε')/(1 + e^ε)."""
    mu = mu_of_pure(epsilon)
    for level in np.linspace(0, epsilon, 50):
        exact = max(0.0, -math.expm1(level - epsilon) / (1 + math.exp(-epsilon)))
        assert exact <= accounting.delta_of(float(level), mu) * (1 + 1e-9)
    touch = accounting.delta_of(0.0, mu)  # at ε' = 0: both are 2Φ(μ/2) - 1
    assert math.tanh(epsilon / 2) == pytest.approx(touch, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_curves_of_all_mechanisms_of_reports_lie_above(epsilon: float) -> None:
    odds, mu = math.exp(epsilon), mu_of_pure(epsilon)
    steps, reach = 7, 400
    x, ratio = np.arange(-reach, reach + steps + 1), epsilon / steps
    laplace = [np.tanh(ratio / 2) * np.exp(-ratio * abs(x - centre)) for centre in (0, steps)]
    k = 5
    response = [[odds if j == held else 1.0 for j in range(k)] for held in (0, 1)]
    one, set_wrongly = 0.5, 1 / (1 + odds)
    unary = [[(a if u else 1 - a) * (b if v else 1 - b) for u in (0, 1) for v in (0, 1)]
             for a, b in ((one, set_wrongly), (set_wrongly, one))]  # fmt: skip
    for laws in (laplace, response, unary, [[odds, 1.0], [1.0, odds]]):
        p, q = (np.array(law) / np.sum(law) for law in laws)
        exact = exact_curve(p, q, LEVELS)
        assert np.all(exact >= pure_curve(epsilon, LEVELS) - 1e-9)
        assert np.all(exact >= gaussian_curve(mu, LEVELS) - 1e-9)
    assert np.allclose(exact, pure_curve(epsilon, LEVELS), atol=1e-9), "binary randomised response is the worst of all"


# --- composition ------------------------------------------------------------------------------------------------------


def bound(releases: Sequence[Release], delta: float) -> float:
    """What a ledger says."""
    return total(
        PrivacyCost.of_mu(one.mu) if isinstance(one, Gaussian) else PrivacyCost.of_pure(one.epsilon) for one in releases
    ).epsilon(delta)


ALIKE = [[PureDP(1.0)], [PureDP(0.5)] * 5, [PureDP(0.1)] * 30, [PureDP(0.02)] * 300]
UNLIKE = [[PureDP(4.0), *[PureDP(0.1)] * 20], [PureDP(2.0), *[PureDP(0.1)] * 50]]
BETTER = [[Laplace(0.1)] * 30, [RandomisedResponse(1.0, 10)] * 4, [UnaryEncoding(0.1)] * 30,
          [Laplace(1.0, 64), RandomisedResponse(0.5, 4), UnaryEncoding(0.25)]]  # fmt: skip


def check_bound(releases: Sequence[Release], factor: float) -> None:
    """Beside composed privacy-loss distributions, upper bounds themselves, within 0.1 % or so of what is exact."""
    for delta in (1e-5, 1e-8):
        found, exact = bound(releases, delta), epsilon_of(releases, delta)
        assert exact * (1 - 1e-9) <= found <= exact * factor, (found, exact)


@pytest.mark.parametrize(
    ("reports", "factor"),
    [*((one, 1.36) for one in ALIKE), *((one, 1.62) for one in UNLIKE), *((one, 2.0) for one in BETTER)],
)
def test_reports_are_never_said_to_cost_less_than_they_do_and_little_more(
    reports: list[Release], factor: float
) -> None:
    """Lost are at most 36 % of ε where reports are alike and as bad as can be; 62 % where one is far larger than many
    others, as neither condition suits both; and a factor of 2 where nothing is used of what a mechanism is better."""
    check_bound(reports, factor)


@pytest.mark.parametrize(
    ("reports", "mu", "factor"),
    [
        *((one, 0.5, factor) for one, factor in zip(ALIKE, (2.17, 1.81, 1.20, 1.10), strict=True)),
        *((one, 0.5, factor) for one, factor in zip(UNLIKE, (4.25, 2.54), strict=True)),
        *((one, 0.5, factor) for one, factor in zip(BETTER, (1.21, 2.74, 1.41, 2.19), strict=True)),
        (ALIKE[0], 0.1, 4.93),
    ],
)
def test_a_mixture_is_never_said_to_cost_less_than_it_does(reports: list[Release], mu: float, factor: float) -> None:
    """Lost is at most a fifth of ε where many reports of 0.1 or less are as bad as can be, but a factor of two where
    there is one of 1, of four where there is one of 4, and of five where the Gaussian release tells next to nothing."""
    check_bound([*reports, Gaussian(mu)], factor)


def test_the_lower_of_the_two_counts_and_beside_a_gaussian_release_the_second() -> None:
    few, many = PrivacyCost.of_pure(1.0), total([PrivacyCost.of_pure(0.1)] * 30)
    assert few.epsilon(1e-5) == 1.0 < accounting.epsilon_of(few.mu, 1e-5)
    assert many.epsilon(1e-5) == accounting.epsilon_of(many.mu, 1e-5) < 2.9 < 3.0 == pytest.approx(many.pure)
    for reports in (few, many):
        for mu in (1e-9, 0.5):
            both = PrivacyCost.of_mu(mu) + reports
            assert both.epsilon(1e-5) == accounting.epsilon_of(math.hypot(mu, reports.mu), 1e-5)
    assert (PrivacyCost.of_mu(1e-9) + few).epsilon(1e-5) > 5.5, "what is promised in view of results costs more than 1"


def test_without_delta_epsilons_add_up_and_nothing_gaussian_is_private() -> None:
    both = PrivacyCost.of_pure(0.25) + PrivacyCost.of_pure(0.5)
    assert both.epsilon(0.0) == 0.75
    assert both.within(0.75, 0.0)
    assert not both.within(0.7499, 0.0)
    assert (both + PrivacyCost.of_mu(1e-9)).epsilon(0.0) == math.inf
    assert not (both + PrivacyCost.of_mu(1e-9)).within(100.0, 0.0)
    assert PrivacyCost().epsilon(0.0) == PrivacyCost().epsilon(1e-6) == 0.0


def test_a_release_is_priced_as_it_is_announced() -> None:
    assert (
        PrivacyCost.of(1.0, 1e-6) == PrivacyCost.of_mu(mu_of(1.0, 1e-6)) == PrivacyCost(gaussian=mu_of(1.0, 1e-6) ** 2)
    )
    assert PrivacyCost.of(1, 0) == PrivacyCost.of_pure(1.0) == PrivacyCost(pure=1.0, converted=mu_of_pure(1.0) ** 2)
    assert PrivacyCost.of(1.0, 0.0).mu == mu_of_pure(1.0)
    assert PrivacyCost.of_pure(1.0).is_pure
    assert not PrivacyCost().is_pure
    assert not (PrivacyCost.of_pure(1.0) + PrivacyCost.of_mu(0.1)).is_pure
    for epsilon, delta in ((0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (501.0, 0.0), (math.inf, 0.0), (1.0, -1e-9),
                           (1.0, 1.0), (1.0, math.nan)):  # fmt: skip
        with pytest.raises(UsageError, match=r"^(epsilon|delta) is "):
            PrivacyCost.of(epsilon, delta)


# --- what fits --------------------------------------------------------------------------------------------------------

PAIRS = [(0.1, 1e-9), (1.0, 1e-5), (4.0, 1e-5), (20.0, 1e-3)]


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_all_can_be_spent_at_once_in_either_kind_and_then_nothing_is_left(epsilon: float, delta: float) -> None:
    for cost in (PrivacyCost.of(epsilon, delta), PrivacyCost.of(epsilon, 0.0)):
        assert cost.within(epsilon, delta)
        assert not cost.within(epsilon * (1 - 1e-9), delta)
        assert cost.left(epsilon, delta) == pytest.approx(0.0, abs=1e-6 * epsilon)
        assert cost.left_pure(epsilon, delta) == pytest.approx(0.0, abs=1e-6 * epsilon)
        for further in (PrivacyCost.of(1e-3 * epsilon, delta), PrivacyCost.of(1e-3 * epsilon, 0.0)):
            assert not (cost + further).within(epsilon, delta)
    assert PrivacyCost().left(epsilon, delta) == PrivacyCost().left_pure(epsilon, delta) == epsilon


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_two_reports_add_up_and_beside_a_gaussian_release_they_count_as_one(epsilon: float, delta: float) -> None:
    half = PrivacyCost.of(epsilon / 2, 0.0)
    assert (half + half).within(epsilon, delta)
    assert not (half + half + PrivacyCost.of(epsilon / 100, 0.0)).within(epsilon, delta)
    mu = 0.6 * mu_of(epsilon, delta)
    reports = total([PrivacyCost.of_pure(pure_of_mu(0.4 * mu))] * 11)
    rest = math.sqrt(mu_of(epsilon, delta) ** 2 - reports.mu**2)
    assert (reports + PrivacyCost.of_mu(rest * (1 - 1e-9))).within(epsilon, delta)
    assert not (reports + PrivacyCost.of_mu(rest * (1 + 1e-9))).within(epsilon, delta)
    assert (reports + PrivacyCost.of_mu(rest)).epsilon(delta) == pytest.approx(epsilon, rel=1e-6)


def test_beside_a_gaussian_release_a_report_has_to_fit_as_one() -> None:
    """At the default limits, (4, 1e-5): a report of 1 is as good as a Gaussian release of more than 5."""
    beside = PrivacyCost.of_mu(1e-3)
    assert PrivacyCost.of_pure(4.0).within(4.0, 1e-5)
    assert not (PrivacyCost.of_pure(1.0) + beside).within(4.0, 1e-5)
    assert PrivacyCost.of_pure(1.0).left(4.0, 1e-5) == 0.0
    assert PrivacyCost.of_pure(1.0).left_pure(4.0, 1e-5) == 3.0
    assert beside.left_pure(4.0, 1e-5) == pytest.approx(0.745, abs=1e-3)
    assert (PrivacyCost.of_pure(0.5) + beside).within(4.0, 1e-5)


def test_decimals_that_add_up_to_an_allowance_fit_although_floats_do_not() -> None:
    assert 0.1 + 0.2 > 0.3
    both = PrivacyCost.of_pure(0.1) + PrivacyCost.of_pure(0.2)
    assert both.within(0.3, 1e-5)
    assert both.within(0.3, 0.0)
    assert not both.within(0.3 * (1 - 1e-14), 1e-5)
    assert total([PrivacyCost.of_pure(0.1)] * 10).within(1.0, 1e-12)


# --- slack ------------------------------------------------------------------------------------------------------------


def true_delta(epsilon: float, mu: float, slack: float) -> mpmath.mpf:
    with mpmath.workdps(40):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        gaussian = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        return gaussian + (1 + mpmath.exp(e)) * slack


@pytest.mark.parametrize("slack", [2.0**-64, 1e-12, 1e-7])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (4.0, 1e-5), (2.0, 1e-3)])
def test_with_slack_mu_and_epsilon_are_the_best_that_hold(epsilon: float, delta: float, slack: float) -> None:
    mu = mu_of(epsilon, delta, slack)
    assert true_delta(epsilon, mu, slack) <= delta < true_delta(epsilon, mu * (1 + 1e-6), slack)
    assert mu <= mu_of(epsilon, delta)
    back = accounting.epsilon_of(mu, delta, slack)
    assert true_delta(back, mu, slack) <= delta
    assert back <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("slack", [2.0**-64, 1e-12, 1e-9])
def test_more_epsilon_never_allows_less(slack: float) -> None:
    """At ε = 40 the slack times e^ε is more than δ. But what is private at a lower ε is private at this one."""
    allowed = [mu_of(epsilon, 1e-5, slack) for epsilon in (0.5, 2.0, 5.0, 9.0, 15.0, 25.0, 40.0, 100.0, 800.0)]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(allowed))
    dense = max(mu_of(epsilon, 1e-5 - (1 + math.exp(epsilon)) * slack)
                for epsilon in np.linspace(0.1, 40, 400) if (1 + math.exp(epsilon)) * slack < 1e-5)  # fmt: skip
    assert dense * (1 - 1e-9) <= allowed[-1] <= dense * (1 + 3e-4)
    less = 0.98 * allowed[-1]
    assert true_delta(accounting.epsilon_of(less, 1e-5, slack), less, slack) <= 1e-5
    assert PrivacyCost.of_mu(0.1, 10 * slack).within(40.0, 1e-5)


def test_slack_beyond_delta_leaves_nothing() -> None:
    assert mu_of(1.0, 1e-6, 1e-6) == 0.0
    assert 0 < mu_of(800.0, 1e-6, 1e-300) <= mu_of(800.0, 1e-6)
    assert accounting.epsilon_of(0.1, 1e-6, 1e-6) == math.inf
    assert accounting.epsilon_of(2.0, 1e-6, 1e-9) == math.inf, "no ε leaves enough of δ"
    for slack in (-1e-9, math.nan, math.inf):
        with pytest.raises(UsageError, match="slack"):
            mu_of(1.0, 1e-6, slack)


def test_slacks_add_up_and_the_whole_epsilon_weighs_them() -> None:
    """Each of two releases fits by itself; together they need their slacks off δ at the ε of both."""
    slack = 1e-8
    one, both = PrivacyCost.of_mu(0.3, slack), PrivacyCost.of_mu(0.3, slack) + PrivacyCost.of_mu(0.4, slack)
    assert both == total([PrivacyCost.of_mu(0.4, slack), one]) == PrivacyCost(0.25, slack=2 * slack)
    epsilon = both.epsilon(1e-5)
    assert true_delta(epsilon, 0.5, 2 * slack) <= 1e-5 < true_delta(epsilon * (1 - 1e-6), 0.5, 2 * slack)
    assert both.within(epsilon, 1e-5)
    assert not both.within(epsilon * (1 - 1e-6), 1e-5)
    assert not both.within(accounting.epsilon_of(0.5, 1e-5), 1e-5), "μ alone would fit"
    assert both.epsilon(1e-5) > accounting.epsilon_of(0.5, 1e-5)


def test_slack_at_another_delta_is_another_epsilon() -> None:
    """A slack has no ε of its own: what is (1, 1e-5)-private with it need not be as private at 1e-7 as μ says."""
    cost = PrivacyCost.of_mu(0.2, 2e-8)
    assert cost.epsilon(1e-5) == pytest.approx(accounting.epsilon_of(cost.mu, 1e-5), rel=0.01)
    assert cost.epsilon(1e-7) > 1.05 * accounting.epsilon_of(cost.mu, 1e-7)
    assert cost.epsilon(4e-8) == math.inf
    assert not cost.within(100.0, 4e-8)


def test_slack_beside_reports() -> None:
    """Reports set apart: the ε of the others weighs their slack. Together: the whole ε does."""
    cost = PrivacyCost.of_mu(0.3, 1e-8) + PrivacyCost.of_pure(0.5)
    apart = PrivacyCost.of_mu(0.3, 1e-8).epsilon(1e-5)
    assert cost.epsilon(1e-5, apart=True) == 0.5 + apart
    assert cost.within(0.5 + apart * (1 + 1e-9), 1e-5, 0.5)
    assert not cost.within(0.5 + apart * (1 - 1e-6), 1e-5, 0.5)
    assert cost.epsilon(1e-5) == accounting.epsilon_of(cost.mu, 1e-5, 1e-8)
    assert cost.epsilon(0.0) == math.inf


@pytest.mark.parametrize("slack", [0.0, 2.0**-64, 1e-8])
def test_what_is_left_beside_slack_fits(slack: float) -> None:
    spent = PrivacyCost.of_mu(0.2, slack)
    left, pure = spent.left(2.0, 1e-5), spent.left_pure(2.0, 1e-5)
    assert (spent + PrivacyCost.of(left, 1e-5)).within(2.0, 1e-5)
    assert not (spent + PrivacyCost.of(left * 1.0001, 1e-5)).within(2.0, 1e-5)
    assert (spent + PrivacyCost.of_pure(pure)).within(2.0, 1e-5)


@pytest.mark.parametrize("slack", [pytest.param(2.0**-64, marks=pytest.mark.long), 1e-8])
def test_a_slack_composes_with_other_mechanisms(slack: float) -> None:
    """Beside privacy-loss distributions: the same ε as by μ, to the grid."""
    found, without = epsilon_of([Gaussian(0.3, slack)], 1e-5), epsilon_of([Gaussian(0.3)], 1e-5)
    assert found == pytest.approx(accounting.epsilon_of(0.3, 1e-5, slack), rel=1e-3)
    assert found >= without
    both = epsilon_of([Gaussian(0.3, slack), Laplace(0.1)], 1e-5)
    excess = (1 + math.exp(both)) * slack
    assert delta_of([Gaussian(0.3), Laplace(0.1)], both) + excess <= 1e-5
    assert delta_of([Gaussian(0.3, slack)], 1.0) == pytest.approx(
        delta_of([Gaussian(0.3)], 1.0) + (1 + math.e) * slack, rel=1e-9
    )


costs = st.builds(
    lambda mus, epsilons: total([*map(PrivacyCost.of_mu, mus), *map(PrivacyCost.of_pure, epsilons)]),
    st.lists(st.floats(1e-3, 2.0), max_size=3),
    st.lists(st.floats(1e-3, 3.0), max_size=3),
)
deltas = st.floats(-10, -1).map(lambda power: 10**power)


@settings(max_examples=80, deadline=None)
@given(costs, costs, deltas)
def test_more_never_costs_less(one: PrivacyCost, other: PrivacyCost, delta: float) -> None:
    both = one + other
    assert both == other + one
    assert both.epsilon(delta) * (1 + 1e-9) + 1e-12 >= max(one.epsilon(delta), other.epsilon(delta))
    assert both.epsilon(delta / 2) * (1 + 1e-9) >= both.epsilon(delta)


@settings(max_examples=80, deadline=None)
@given(costs, costs, st.floats(0.01, 20.0), deltas)
def test_what_fits_goes_with_what_it_is_said_to_cost(
    one: PrivacyCost, other: PrivacyCost, epsilon: float, delta: float
) -> None:
    both = one + other
    if both.within(epsilon, delta):
        assert one.within(epsilon, delta)
        assert both.within(epsilon * 1.01, delta)
        assert both.within(epsilon, min(0.9, delta * 1.01))
        assert both.epsilon(delta) <= epsilon * (1 + 1e-9)
    else:
        assert both.epsilon(delta) >= epsilon * (1 - 1e-9)


@settings(max_examples=80, deadline=None)
@given(costs, st.floats(0.1, 20.0), deltas)
def test_what_is_left_fits_and_no_more(spent: PrivacyCost, epsilon: float, delta: float) -> None:
    left, pure = spent.left(epsilon, delta), spent.left_pure(epsilon, delta)
    assert left == 0 or (spent + PrivacyCost.of(left, delta)).within(epsilon, delta)
    assert pure < 1e-9 or (spent + PrivacyCost.of_pure(pure)).within(epsilon, delta)
    more = max(left * (1 + 1e-4), 0.01 * epsilon)
    free = mu_of(0.01 * epsilon, delta) ** 2 > 1e-6 * mu_of(epsilon, delta) ** 2  # else δ pays for what is tiny
    assert not free or not (spent + PrivacyCost.of(more, delta)).within(epsilon, delta)
    assert not (spent + PrivacyCost.of_pure(pure * (1 + 1e-4) + 1e-6 * epsilon + 10 * delta)).within(epsilon, delta)


# --- in view of results -----------------------------------------------------------------------------------------------


def by_report(value: Callable[[Array], Array], loss: Array, report: float) -> Array:
    """What is expected of `value` after binary randomised response of that ε: the worst of all that is ε-private."""
    likely = 1 / (1 + math.exp(-report))
    return likely * value(loss + report) + (1 - likely) * value(loss - report)


def gained(
    epsilon: float,
    delta: float,
    report: float,
    fits: Callable[[PrivacyCost], bool],
    left: Callable[[PrivacyCost], float],
) -> float:
    """The δ at ε of whoever takes, each time in view of all results: a Gaussian release of a 150th of all μ², a report
    of the given ε, all that is left in one last report, or nothing more. So reports may come first, between and last.

    By backward induction over the loss so far, on a grid of which `report` is a multiple; a Gaussian release's loss is
    normal with the mean μ²/2 and the variance μ².

    Args:
        fits: whether releases of that cost are let through. left: the ε of the largest report beside them.
    """
    steps, mu = 150, mu_of(epsilon, delta)
    step = mu / math.sqrt(steps)
    shift = math.ceil(4 * report / step)
    width = report / shift
    start, reach = math.ceil(8 / width), math.ceil(8 * step / width)
    loss = np.arange(-start, math.ceil((epsilon + 8) / width)) * width
    kernel = norm.pdf(np.arange(-reach, reach + 1) * width, -(step**2) / 2, step)
    kernel /= kernel.sum()

    def known(at: Array) -> Array:
        return np.maximum(0, -np.expm1(epsilon - at))

    after: dict[int, Array] = {}  # by Gaussian releases so far: the value of each loss after one report more
    for reports in range(int(epsilon / report) + 50, -1, -1):
        here: dict[int, Array] = {}
        for count in range(steps, -1, -1):
            cost = PrivacyCost.of_mu(mu * math.sqrt(count / steps)) + total([PrivacyCost.of_pure(report)] * reports)
            if not fits(cost):
                continue
            options = [known(loss), by_report(known, loss, left(cost))]
            if count + 1 in here:
                padded = np.pad(here[count + 1], reach, constant_values=(0, 1))
                options.append(np.convolve(padded, kernel, "valid"))
            if count in after:
                options.append(by_report(lambda at, rest=after[count]: np.interp(at, loss, rest, 0, 1), loss, report))
            here[count] = np.max(options, axis=0)
        after = here
    return float(after[0][start])


@pytest.mark.parametrize(
    ("epsilon", "delta", "report"), [(4.0, 1e-5, 0.1), (4.0, 1e-5, 0.5), (4.0, 1e-5, 1.0), (1.0, 1e-6, 0.2)]
)
def test_releases_may_be_chosen_in_view_of_results(epsilon: float, delta: float, report: float) -> None:
    """Reports before, between and after Gaussian releases gain nothing beyond these alone, which are δ; but for what
    the grid costs, some 1e-3 of it."""
    found = gained(
        epsilon,
        delta,
        report,
        lambda so_far: so_far.within(epsilon, delta),
        lambda so_far: so_far.left_pure(epsilon, delta),
    )
    assert found == pytest.approx(delta, rel=2e-3)


def test_basic_composition_of_mixtures_would_not_hold_in_view_of_results() -> None:
    """Why `within` has no such rule: a report of all that Gaussian releases have left, Σε + ε_G(√Σμ²) <= ε, as soon as
    they happen to have shown much, gains 10.8 times δ."""
    epsilon, delta = 4.0, 1e-5

    def rest(so_far: PrivacyCost) -> float:
        return epsilon - so_far.pure - accounting.epsilon_of(math.sqrt(so_far.gaussian), delta)

    found = gained(
        epsilon,
        delta,
        1.0,
        lambda so_far: rest(so_far) >= -1e-9 or so_far.within(epsilon, delta),
        lambda so_far: max(rest(so_far), so_far.left_pure(epsilon, delta)),
    )
    assert 8 * delta < found < 12 * delta
