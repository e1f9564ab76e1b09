"""A job's budget and its division. Only seeded random inputs and exact comparisons: no chance of a false alarm."""

from __future__ import annotations

import math
import random

import mpmath
import pytest

from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import check_mu, compose, mu_of_pure
from dca_proto.privacy.budget import Budget, RoundCost, best_shares, quoted
from dca_proto.privacy.cost import PrivacyCost, total


def test_a_tenth_for_the_first_round_leaves_the_second_half_of_the_published_noise() -> None:
    """At ε = 1, δ = 1e-4: σ = 3.36 Δ, where 70 % of ε and δ with the classical rule give 6.32 Δ."""
    regression = Budget(1.0, 1e-4).split((0.1, 0.9))[1]
    assert 1 / regression.mu == pytest.approx(3.36, abs=0.005)
    assert math.sqrt(2 * math.log(1.25 / 0.7e-4)) / 0.7 == pytest.approx(6.32, abs=0.005)


def test_rounds_together_cost_no_more_than_the_budget_and_nearly_all_of_it() -> None:
    source = random.Random(2017)
    for _ in range(100):
        budget = Budget(math.exp(source.uniform(-2, 3)), 10 ** source.uniform(-12, -5))
        weights = [source.uniform(0.2, 1) for _ in range(source.randint(2, 5))]
        rounds = budget.split([weight / math.fsum(weights) for weight in weights])
        assert all(one.delta == budget.delta for one in rounds)
        together = compose(one.mu for one in rounds)
        assert budget.mu * (1 - 1e-5) < together < budget.mu


def test_a_single_round_has_the_budget_itself() -> None:
    budget = Budget(1.0, 1e-6)
    assert budget.split((1.0,)) == (RoundCost(budget.mu, 1.0, 1e-6),)
    assert budget.split((0.5,))[0].epsilon < 1


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((), "0 shares"),
        ((0.5, 0.6), "add up to 1.1, expected at most 1"),
        ((0.5, 0.0), "share of the budget is 0, expected above 0"),
        ((-0.5, 0.5), "share of the budget is -0.5"),
        ((math.nan,), "add up to nan"),
        ((1.0, 5e-10), "share of the budget is 1, which leaves nothing for the others"),
        ((1e-12, 0.5), "needs no epsilon at delta 1e-06; give the round a share above"),
    ],
)
def test_shares_that_cannot_be_are_refused(shares: tuple[float, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Budget(1.0, 1e-6).split(shares)


def test_the_share_that_a_refusal_names_is_enough() -> None:
    with pytest.raises(UsageError, match="above ") as refusal:
        Budget(0.05, 0.01).share(0.01)
    least = float(str(refusal.value).partition("above ")[2].split(",")[0])
    assert Budget(0.05, 0.01).share(least).epsilon > 0


def test_a_shares_mu_is_its_part_of_mu_squared_and_its_quote_allows_just_that() -> None:
    """Announced as they are, as floats: every client's own check of μ against (ε, δ) lets each share through.

    The quoted ε is the least: a part of 1e-5 less of it would be refused. No formula is used twice: δ at ε is worked
    out here by the curve of Balle and Wang.
    """
    source = random.Random(2019)
    for _ in range(100):
        budget = Budget(math.exp(source.uniform(-1, 3)), 10 ** source.uniform(-12, -5))
        part = source.uniform(0.05, 1)
        cost = budget.share(part)
        assert cost.mu == pytest.approx(budget.mu * math.sqrt(part), rel=1e-11)
        assert cost.mu <= budget.mu * math.sqrt(part)
        check_mu(cost.mu, cost.epsilon, cost.delta)
        with pytest.raises(UsageError, match="expected above 0 and at most"):
            check_mu(cost.mu, cost.epsilon * (1 - 1e-5), cost.delta)
        assert delta_of_mu(cost.epsilon, cost.mu) <= budget.delta


def delta_of_mu(epsilon: float, mu: float) -> float:
    """Balle and Wang (2018), theorem 8: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)."""
    with mpmath.workdps(50):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        delta = mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    return float(delta)


def test_a_quote_is_never_too_small_for_its_mu() -> None:
    source = random.Random(2020)
    for _ in range(300):
        mu, delta = math.exp(source.uniform(-4, 2)), 10 ** source.uniform(-12, -2)
        epsilon = quoted(mu, delta)
        if epsilon:
            check_mu(mu, epsilon, delta)


def test_rounds_of_reports_divide_epsilon() -> None:
    budget = Budget(2.0, 1e-6)
    assert budget.pure_share(1.0) == RoundCost(mu_of_pure(2.0), 2.0, 0.0)
    shares = [budget.pure_share(share) for share in (0.1, 0.2, 0.7)]
    rounds = [one.epsilon for one in shares]
    assert rounds == pytest.approx([0.2, 0.4, 1.4], rel=1e-5)
    assert [(one.mu, one.delta) for one in shares] == [(mu_of_pure(epsilon), 0.0) for epsilon in rounds]
    assert budget.covers(total(map(PrivacyCost.of_pure, rounds)))
    assert budget.covers(PrivacyCost.of_pure(2.0))
    assert budget.covers(budget.cost)
    assert not budget.covers(PrivacyCost.of_pure(2.0) + PrivacyCost.of_pure(1e-3))
    assert not budget.covers(PrivacyCost.of_pure(2.0) + PrivacyCost.of_mu(1e-3))
    assert not budget.covers(PrivacyCost.of_pure(1.0) + PrivacyCost.of(1.0, 1e-6)), (
        "beside a Gaussian round ε does not add up"
    )
    for share in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(UsageError, match=r"^a round's share of the budget is .*, expected above 0 and at most 1$"):
            budget.pure_share(share)


@pytest.mark.parametrize("budget", [Budget(0.0, 1e-6), Budget(1.0, 0.0), Budget(math.inf, 1e-6)])
def test_a_budget_out_of_range_is_refused(budget: Budget) -> None:
    for shares in ((1.0,), (0.5, 0.5)):
        with pytest.raises(UsageError, match=r"epsilon|delta"):
            budget.split(shares)


def test_the_best_shares_are_those_of_the_roots_and_nothing_is_better() -> None:
    assert best_shares([1.0, 4.0]) == pytest.approx((1 / 3, 2 / 3))
    source = random.Random(2018)
    for _ in range(50):
        errors = [math.exp(source.uniform(-10, 10)) for _ in range(source.randint(1, 5))]
        best = best_shares(errors)
        assert math.fsum(best) == pytest.approx(1, abs=1e-12)
        least = math.fsum(error / share for error, share in zip(errors, best, strict=True))
        assert least == pytest.approx(math.fsum(map(math.sqrt, errors)) ** 2)
        for _ in range(50):
            other = [share * math.exp(source.gauss(0, 0.3)) for share in best]
            total = math.fsum(other)
            assert math.fsum(e / (s / total) for e, s in zip(errors, other, strict=True)) >= least * (1 - 1e-12)


@pytest.mark.parametrize("errors", [[], [0.0], [-1.0, 1.0], [math.inf], [math.nan]])
def test_best_shares_refuses(errors: list[float]) -> None:
    with pytest.raises(UsageError, match=r"error of a round|no rounds"):
        best_shares(errors)


def test_a_budget_leaves_room_for_the_slack_of_its_verified_sums() -> None:
    """Four rounds that spend all of μ² fit together with their slacks, and would not fit without that room."""
    slack = 2.0**-40  # far more than a release has, so that it shows
    budget = Budget(1.0, 1e-6, slack=slack)
    costs = [PrivacyCost.of_mu(one.mu, slack / 4) for one in budget.split([0.25] * 4)]
    assert budget.covers(total(costs))
    assert total(costs).within(1.0, 1e-6)
    assert budget.mu < Budget(1.0, 1e-6).mu
    careless = [PrivacyCost.of_mu(one.mu, slack / 4) for one in Budget(1.0, 1e-6).split([0.25] * 4)]
    assert not total(careless).within(1.0, 1e-6)
    assert Budget(1.0, 1e-6, slack=slack).cost.slack == slack
