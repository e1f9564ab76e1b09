"""Joint cost of several releases on the same data if not all of them are Gaussian: upper bounds on ε and δ.

The distribution of the privacy loss is composed numerically. `dp-accounting`, an optional package, keeps it on a grid,
rounded pessimistically (Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022, "Connect the Dots"). The relation is
replacement of one client's data, here as everywhere. "Mixtures of mechanisms" in PRIVACY.md has the worst pair of
output distributions of each mechanism.

`dp-accounting` calls the Gaussian pair ADD_OR_REMOVE_ONE; its own REPLACE_ONE doubles Δ, as if Δ had been that of
adding or removing, and its RDP accountant accepts REPLACE_ONE but ignores it. So only σ/Δ is passed, and always under
ADD_OR_REMOVE_ONE.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.rounding import at_least
from dca_proto.wording import to_install

DELTA_MIN = 1e-12
"""Below this δ, the tails that the grid leaves out (1e-15 per release) would matter."""
_EPSILON_MIN, _EPSILON_MAX = 1e-9, 100.0  # of one release, also the least μ; smaller ones would be lost in the grid
_RANGE = f"{at_least(_EPSILON_MIN)} to {{:g}}"
_STEPS_MAX = 1024  # a Laplace law on a finer grid is bounded by one with this many steps
_GRID = 2**17  # grid points for the range of losses, on each side of zero
_TAIL = -50.0  # ln of the mass that a Gaussian's grid leaves out; it counts as infinite loss
_ROUNDING, _NOISE = 1e-9, 1e-15  # relative and absolute margin in δ: above the error of float sums and transforms
_REACH = 10.0  # standard deviations that contain a loss except with probability 1e-21 (Hoeffding; losses within ±ε)


class _Pure(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """An ε-private release."""

    epsilon: float

    def __post_init__(self) -> None:
        _require("epsilon", self.epsilon, _EPSILON_MIN <= self.epsilon <= _EPSILON_MAX, _RANGE.format(_EPSILON_MAX))


class Gaussian(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """Gaussian noise with μ = Δ/σ; for a round of the protocol, the μ of its plan, and a verified sum's slack."""

    mu: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        _require("mu", self.mu, _EPSILON_MIN <= self.mu <= accounting.MU_MAX, _RANGE.format(accounting.MU_MAX))
        _require("slack", self.slack, 0 <= self.slack < 1, "at least 0 and below 1")


class Laplace(_Pure, frozen=True):
    """Laplace noise of scale Δ1/ε.

    Attributes:
        steps: Δ1 in grid units if the noise is on a grid; 0 if it is continuous.
    """

    steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("steps", self.steps, self.steps >= 0, "0 for continuous noise, or the sensitivity in grid units")


class RandomisedResponse(_Pure, frozen=True):
    """The true one of k categories is reported with odds of e^ε to each other one."""

    categories: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("categories", self.categories, self.categories >= 2, "at least 2")


class UnaryEncoding(_Pure, frozen=True):
    """Optimal unary encoding, one bit per category: the true one stays with 1/2, others are set with 1/(1 + e^ε)."""


class PureDP(_Pure, frozen=True):
    """Any mechanism of which only ε is known."""


_NotGaussian = Laplace | RandomisedResponse | UnaryEncoding | PureDP
Release = Gaussian | _NotGaussian


def epsilon_of(releases: Iterable[Release], delta: float) -> float:
    """Return an ε for which the releases together are (ε, δ)-private: an upper bound of the least one.

    The releases must be everything spent on the same client. The bound exceeds the least ε by 0.1 % or less for some
    dozens of releases, and by 2 % for 2,000 of ε = 0.02: rounding each loss to the grid adds up. δ is at least 1e-12;
    if no release is Gaussian, it may be as low as 0. Raises `UsageError` if δ is out of range or dp-accounting missing.
    """
    given = tuple(releases)
    pure = _pure_epsilon(given)
    _require("delta", delta, 0 <= delta < 1, "in [0, 1)")
    if delta < DELTA_MIN and pure < math.inf:
        return pure
    _require("delta", delta, delta >= DELTA_MIN, f"at least {at_least(DELTA_MIN)} if a release is Gaussian")
    composed = _composed(given)
    together = accounting.with_slack(
        lambda rest: float(composed.get_epsilon_for_delta(rest * (1 - _ROUNDING) - _NOISE)), delta, _slack(given)
    )
    return min(pure, together)


def delta_of(releases: Iterable[Release], epsilon: float) -> float:
    """Return a δ for which the releases together are (ε, δ)-private: an upper bound of the least one.

    Raises `UsageError` for a negative or infinite ε, or if dp-accounting is missing.
    """
    given = tuple(releases)
    _require("epsilon", epsilon, 0 <= epsilon < math.inf, "a finite number >= 0")
    if epsilon >= _pure_epsilon(given):
        return 0.0
    of_slack = (1 + math.exp(epsilon)) * slack if (slack := _slack(given)) else 0.0
    return min(1.0, float(_composed(given).get_delta_for_epsilon(epsilon)) * (1 + _ROUNDING) + _NOISE + of_slack)


def _slack(releases: tuple[Release, ...]) -> float:
    return math.fsum(release.slack for release in releases if isinstance(release, Gaussian))


def _pure_epsilon(releases: tuple[Release, ...]) -> float:
    """Return Σ ε, rounded up; infinite if a release is Gaussian."""
    total = math.fsum(math.inf if isinstance(release, Gaussian) else release.epsilon for release in releases)
    return math.nextafter(total, math.inf)


@functools.lru_cache(maxsize=16)
def _composed(releases: tuple[Release, ...]) -> Any:
    """Return the composed privacy-loss distribution; all Gaussians are merged into one."""
    try:
        from dp_accounting.pld import privacy_loss_distribution as library
    except ModuleNotFoundError as error:
        raise UsageError(f"this needs dp-accounting ({error.name} is missing): {to_install('accounting')}") from None
    mu = accounting.compose(release.mu for release in releases if isinstance(release, Gaussian))
    others = Counter(release for release in releases if not isinstance(release, Gaussian))
    interval = _interval(mu, others)
    total = library.identity(interval)
    for release, count in others.items():
        single = _distribution(library, release, interval)
        total = total.compose(single.self_compose(count) if count > 1 else single)
    if mu:
        total = total.compose(
            library.from_gaussian_mechanism(
                1 / mu, value_discretization_interval=interval, log_mass_truncation_bound=_TAIL
            )
        )
    return total


def _interval(mu: float, others: Mapping[_NotGaussian, int]) -> float:
    """Return the grid's step, small against the range that contains the total loss except with probability 1e-21.

    The step divides the smallest ε above it, so that the losses of many small releases, whose rounding would add up,
    lie on the grid.
    """
    epsilons = [(release.epsilon, count) for release, count in others.items()]
    mean = math.fsum(count * epsilon * math.tanh(epsilon / 2) for epsilon, count in epsilons)
    spread = _REACH * math.sqrt(math.fsum(count * epsilon**2 for epsilon, count in epsilons))
    most = math.fsum(count * epsilon for epsilon, count in epsilons)
    interval = (mu * mu / 2 + _REACH * mu + min(most, mean + spread)) / _GRID
    least = min((epsilon for epsilon, _ in epsilons if epsilon > interval), default=interval)
    return least / math.ceil(least / interval)


def _distribution(library: Any, release: Release, interval: float) -> Any:
    match release:
        case Laplace(epsilon, 0):
            return library.from_laplace_mechanism(1 / epsilon, value_discretization_interval=interval)
        case Laplace(epsilon, steps):  # many steps: take the coarser law that bounds it, k grid units to a step
            k = -(-steps // _STEPS_MAX)
            return library.from_discrete_laplace_mechanism(
                epsilon * k / steps,
                sensitivity=-(-steps // k),
                value_discretization_interval=interval,
                use_connect_dots=True,
            )
        case RandomisedResponse(epsilon, categories):
            odds = math.exp(epsilon)
            return _coin(library, epsilon, (odds + 1) / (odds + categories - 1), interval)
        case UnaryEncoding(epsilon):
            return _coin(library, epsilon, 0.5, interval)
        case PureDP(epsilon):
            return _coin(library, epsilon, 1.0, interval)
    raise AssertionError(release)


def _coin(library: Any, epsilon: float, weight: float, interval: float) -> Any:
    """Return the losses of a coin: with probability `weight` it shows the truth with odds of e^ε, otherwise nothing."""
    lie = math.log(weight) - math.log1p(math.exp(epsilon))
    truth = lie + epsilon
    first, second = {"one": truth, "other": lie}, {"one": lie, "other": truth}
    if weight < 1:
        first["neither"] = second["neither"] = math.log1p(-weight)
    return library.from_two_probability_mass_functions(second, first, value_discretization_interval=interval)


def _require(name: str, found: float, fits: bool, expected: str) -> None:
    if not fits:
        raise UsageError(f"{name} is {found:g}, expected {expected}")
