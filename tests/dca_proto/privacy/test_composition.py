"""Composition across mechanisms: every figure an upper bound, and close to what can be worked out by other means.

Everything is deterministic: no test here has a chance of a false alarm.
"""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
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

Law = dict[Any, float]


def stick(one: Law, other: Law, epsilon: float) -> float:
    """δ(ε) of two laws, by its definition."""
    return math.fsum(max(0.0, p - math.exp(epsilon) * other.get(x, 0.0)) for x, p in one.items())


def power(law: Law, times: int) -> Law:
    """The law of independent repeats, each outcome spelled out."""
    return {
        tuple(x for x, _ in way): math.prod(p for _, p in way) for way in itertools.product(law.items(), repeat=times)
    }


def check(releases: list[Release], exact: Callable[[float], float], epsilons: list[float]) -> None:
    """δ is not below the exact one, and off by no more than 1 % or what an ε lower by 0.1 % makes."""
    for epsilon in epsilons:
        found, truth = delta_of(releases, epsilon), exact(epsilon)
        assert truth * (1 - 1e-12) <= found <= max(truth * 1.01, exact(epsilon * 0.999)) + 1e-12, epsilon


# --- Gaussian ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.01, 0.1, 0.5, 1, 3, 8])
def test_gaussian_alone_agrees_with_the_exact_formula_and_is_never_below(mu: float) -> None:
    for delta in (1e-3, 1e-4, 1e-6, 1e-9, 1e-12):
        truth = accounting.epsilon_of(mu, delta)
        assert truth * (1 - 1e-12) <= epsilon_of([Gaussian(mu)], delta) <= truth * (1 + 1e-4) + 1e-12


def test_gaussians_compose_to_the_root_of_the_sum_of_squares() -> None:
    assert epsilon_of([Gaussian(0.3), Gaussian(0.4)], 1e-6) == pytest.approx(accounting.epsilon_of(0.5, 1e-6), rel=1e-6)


def test_calibration_agrees_with_dp_accounting() -> None:
    """Its analytic Gaussian, σ per unit of Δ: 200 random (ε, δ) of the range of the promise, to 1e-9."""
    source = random.Random(2017)
    for _ in range(200):
        epsilon = math.exp(source.uniform(math.log(0.01), math.log(40)))
        delta = math.exp(source.uniform(math.log(1e-12), math.log(0.1)))
        assert 1 / accounting.mu_of(epsilon, delta) == pytest.approx(
            dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-9
        )


def test_delta_agrees_with_dp_accountings_distribution_of_the_true_sensitivity() -> None:
    for sigma, sensitivity in ((4.0, 1.0), (3.0, 2.5), (0.5, 1.0)):
        law = privacy_loss_distribution.from_gaussian_mechanism(sigma, sensitivity=sensitivity)
        for epsilon in (0.1, 0.5, 1.0, 2.0):
            exact = accounting.delta_of(epsilon, sensitivity / sigma)
            assert law.get_delta_for_epsilon(epsilon) == pytest.approx(exact, rel=1e-4, abs=1e-14)


def test_the_trap_of_the_replacement_relation_in_dp_accounting() -> None:
    """Its RDP accountant takes REPLACE_ONE and then says the same as for add or remove; its other accountant doubles Δ.

    So a user who states the relation gets half the truth or the truth twice over. We pass σ/Δ, with the Δ of
    replacement, under ADD_OR_REMOVE_ONE, which is exact.
    """

    def accounted_epsilon(accountant: type, relation: dp_accounting.NeighboringRelation) -> float:
        one = accountant(neighboring_relation=relation)
        one.compose(dp_accounting.GaussianDpEvent(4.0))
        return float(one.get_epsilon(1e-6))

    add, replace = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, dp_accounting.NeighboringRelation.REPLACE_ONE
    assert accounted_epsilon(RdpAccountant, replace) == accounted_epsilon(RdpAccountant, add)
    assert accounted_epsilon(RdpAccountant, replace) < 0.6 * accounting.epsilon_of(2 / 4.0, 1e-6)
    assert accounted_epsilon(PLDAccountant, add) == pytest.approx(accounting.epsilon_of(1 / 4.0, 1e-6), rel=1e-3)
    assert accounted_epsilon(PLDAccountant, replace) == pytest.approx(accounting.epsilon_of(2 / 4.0, 1e-6), rel=1e-3)
    assert epsilon_of([Gaussian(1 / 4.0)], 1e-6) == pytest.approx(accounted_epsilon(PLDAccountant, add), rel=1e-3)


# --- pure mechanisms --------------------------------------------------------------------------------------------------


def test_without_delta_epsilons_add_up() -> None:
    assert epsilon_of([Laplace(0.1), Laplace(0.1)], 0.0) == pytest.approx(0.2, rel=1e-12)
    mixed = [RandomisedResponse(0.5, 4), UnaryEncoding(0.25), PureDP(1.0), Laplace(0.25, 8)]
    assert epsilon_of(mixed, 0.0) == pytest.approx(2.0, rel=1e-12)
    assert epsilon_of(mixed, 1e-20) == epsilon_of(mixed, 0.0)
    assert delta_of(mixed, 2.0 + 1e-12) == 0.0
    assert 1.9 < epsilon_of(mixed, 1e-6) <= epsilon_of(mixed, 0.0)
    assert epsilon_of([], 0.0) < 1e-300


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 3.0])
def test_one_laplace(epsilon: float) -> None:
    """δ(x) = 1 - e^{(x - ε)/2} (Dong, Roth and Su 2022)."""
    check([Laplace(epsilon)], lambda x: max(0.0, -math.expm1((x - epsilon) / 2)), [0, epsilon / 3, epsilon * 0.9])


@pytest.mark.parametrize(("epsilon", "steps"), [(1.0, 1), (1.0, 3), (0.5, 40), (2.0, 1024), (0.7, 3000)])
def test_laplace_on_a_grid(epsilon: float, steps: int) -> None:
    """Two discrete Laplace laws, summed as they stand; above 1024 steps a coarser one bounds them."""
    ratio, reach = epsilon / steps, int(45 * steps / epsilon)
    x = np.arange(-reach, reach + steps + 1, dtype=float)
    weight = math.tanh(ratio / 2)
    one, other = weight * np.exp(-ratio * abs(x)), weight * np.exp(-ratio * abs(x - steps))

    def exact(level: float) -> float:
        return float(np.maximum(one - math.exp(level) * other, 0).sum())

    check([Laplace(epsilon, steps)], exact, [0, epsilon / 3, epsilon * 0.8])


@pytest.mark.parametrize("parts", [(1, 1), (2, 1), (1, 1, 1), (3, 2), (2, 2, 1)])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_laplace_on_a_grid_is_worst_in_a_single_coordinate(parts: tuple[int, ...], epsilon: float) -> None:
    """The same L1 distance spread over two or three coordinates has a smaller δ at every ε."""
    ratio = epsilon / sum(parts)

    def losses(steps: int) -> Law:
        """The law of the loss of one coordinate, in multiples of `ratio`: between the two centres it falls evenly."""
        a, middle = math.exp(-ratio), range(1, steps)
        inner = {2 * k - steps: (1 - a) / (1 + a) * a ** (steps - k) for k in middle}
        return {steps: 1 / (1 + a), -steps: a**steps / (1 + a), **inner}

    def delta(law: Law, level: float) -> float:
        return math.fsum(p * max(0.0, -math.expm1(level - x * ratio)) for x, p in law.items())

    ways = itertools.product(*(losses(part).items() for part in parts))
    spread: Law = {}
    for way in ways:
        total = sum(x for x, _ in way)
        spread[total] = spread.get(total, 0.0) + math.prod(p for _, p in way)
    single = losses(sum(parts))
    assert math.fsum(single.values()) == pytest.approx(1, abs=1e-12)
    for level in np.linspace(0, epsilon, 20):
        assert delta(spread, float(level)) <= delta(single, float(level)) + 1e-15


def test_a_coarser_grid_is_never_better() -> None:
    spent = [epsilon_of([Laplace(0.1, steps)] * 20, 1e-6) for steps in (1, 4, 64, 1024)]
    assert spent == sorted(spent, reverse=True)
    assert spent[0] == pytest.approx(epsilon_of([PureDP(0.1)] * 20, 1e-6), rel=1e-3)
    assert spent[-1] == pytest.approx(epsilon_of([Laplace(0.1)] * 20, 1e-6), rel=1e-4)


def test_a_delta_below_what_a_grid_resolves_is_no_zero() -> None:
    assert delta_of([Gaussian(1e-9)], 0.0) >= accounting.delta_of(0.0, 1e-9) > 0
    assert delta_of([PureDP(1e-9)] * 3, 0.0) > 3e-10


def test_very_different_releases_need_no_finer_grid() -> None:
    """A grid of the least ε would have 10^11 points."""
    assert 50 < epsilon_of([PureDP(50.0), PureDP(1e-9)], 1e-12) < 50.001


def test_two_thousand_small_releases_are_still_bounded_closely() -> None:
    """Exactly 4.3017 and 6.3989 (binomial mixtures, 40 digits); what the grid costs is said in the docstring."""
    for delta, exact in ((1e-6, 4.3017040599), (1e-12, 6.3988988467)):
        assert exact < epsilon_of([PureDP(0.02)] * 2000, delta) < exact * 1.02


@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 50), (1.0, 10), (2.0, 1)])
def test_binary_randomised_response_is_two_binomials(epsilon: float, count: int) -> None:
    truth = 1 / (1 + math.exp(-epsilon))

    def law(p: float) -> Law:
        return {k: math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1)}

    levels = [epsilon * count * part for part in (0, 0.1, 0.3, 0.6, 0.9)]
    for kind in (RandomisedResponse(epsilon, 2), PureDP(epsilon)):
        check([kind] * count, lambda x: stick(law(truth), law(1 - truth), x), levels)


def test_randomised_response_of_many_categories_by_enumeration() -> None:
    """Five categories, four answers: all 625 outcomes of two neighbours."""
    epsilon, k = 0.8, 5
    answers = [{y: math.exp(epsilon * (y == x)) / (math.exp(epsilon) + k - 1) for y in range(k)} for x in (0, 1)]
    one, other = (power(answer, 4) for answer in answers)
    check([RandomisedResponse(epsilon, k)] * 4, lambda x: stick(one, other, x), [0, 0.3, 1.0, 2.5])


def test_unary_encoding_by_enumeration() -> None:
    """Four categories, two answers: all 256 outcomes of two neighbours; and it is one of ε itself."""
    epsilon = 1.5

    def law(category: int) -> Law:
        chances = [0.5 if j == category else 1 / (1 + math.exp(epsilon)) for j in range(4)]
        return {
            bits: math.prod(p if bit else 1 - p for p, bit in zip(chances, bits, strict=True))
            for bits in itertools.product((0, 1), repeat=4)
        }

    single = max(math.log(p / law(1)[x]) for x, p in law(0).items())
    assert single == pytest.approx(epsilon)
    one, other = power(law(0), 2), power(law(1), 2)
    check([UnaryEncoding(epsilon)] * 2, lambda x: stick(one, other, x), [0, 0.5, 1.4, 2.5])


# --- mixtures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.1), (1.0, 0.5), (3.0, 2.0)])
def test_gaussian_beside_a_pure_one_is_a_mixture(mu: float, epsilon: float) -> None:
    """δ(x) = λ δ_G(x - ε) + (1 - λ) δ_G(x + ε), λ = e^ε/(1 + e^ε), with δ_G(-x) = 1 - e^-x + e^-x δ_G(x)."""
    share = 1 / (1 + math.exp(-epsilon))

    def gaussian(x: float) -> float:
        return accounting.delta_of(x, mu) if x >= 0 else -math.expm1(x) + math.exp(x) * accounting.delta_of(-x, mu)

    def exact(x: float) -> float:
        return share * gaussian(x - epsilon) + (1 - share) * gaussian(x + epsilon)

    releases = [Gaussian(mu), PureDP(epsilon)]
    levels = [epsilon_of(releases, delta) for delta in (0.01, 1e-4, 1e-6, 1e-9, 1e-12)]
    check(releases, exact, levels)
    for level, delta in zip(levels, (0.01, 1e-4, 1e-6, 1e-9, 1e-12), strict=True):
        assert 0.99 * delta < exact(level) <= delta


def test_more_is_never_cheaper_and_less_than_the_sum() -> None:
    alone = accounting.epsilon_of(0.5, 1e-6)
    both = epsilon_of([Gaussian(0.5), Laplace(0.2)], 1e-6)
    assert alone < both < alone + 0.2
    assert both < epsilon_of([Gaussian(0.5), PureDP(0.2)], 1e-6)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gaussian(0.0), "mu is 0"),
        (lambda: Gaussian(21.0), "mu is 21, expected 1e-09 to 20"),
        (lambda: Laplace(-1.0), "epsilon is -1"),
        (lambda: Laplace(1.0, -1), "steps is -1"),
        (lambda: PureDP(math.nan), "epsilon is nan"),
        (lambda: UnaryEncoding(1000.0), "1e-09 to 100"),
        (lambda: RandomisedResponse(1.0, 1), "categories is 1, expected at least 2"),
        (lambda: epsilon_of([Gaussian(1.0)], 0.0), "delta is 0, expected at least 1e-12 if a release is Gaussian"),
        (lambda: epsilon_of([Gaussian(1.0)], 1e-13), "at least 1e-12"),
        (lambda: epsilon_of([PureDP(1.0)], 1.0), "delta is 1"),
        (lambda: epsilon_of([PureDP(1.0)], math.nan), "delta is nan"),
        (lambda: delta_of([PureDP(1.0)], -1.0), "epsilon is -1"),
        (lambda: delta_of([PureDP(1.0)], math.inf), "epsilon is inf"),
    ],
)
def test_figures_out_of_range_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_without_dp_accounting_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(UsageError, match=r"this needs dp-accounting .*: pip install -e '\.\[accounting\]'"):
        delta_of([Gaussian(0.123), Laplace(0.456)], 0.1)


def test_the_module_is_there_without_dp_accounting() -> None:
    probe = (
        "import sys; sys.modules['dp_accounting'] = None; import dca_proto.privacy.composition as p;"
        "assert p.epsilon_of([p.Laplace(0.1)] * 2, 0.0) > 0"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
