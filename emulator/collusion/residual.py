"""The noise that a coalition cannot remove: as the round's plan has it, and measured on rounds of real actors.

What the claim needs, and the ε that noise means, `emulator.reference` says from the setting alone: a plan with too
little noise does not judge itself.

Differential privacy grants the coalition all data but the victim's, and the released sum, whether the trainer belongs
to it or not: results get about. It subtracts from the sum what its own clients put in, and the honest clients' data;
what is left is the noises of the honest clients. All M Compute nodes together need no sum: a client's masked vector and
its M masks add up to its value with its own noise. Both are computed in the ring, to the last bit.

The ε that a residual of n noises of variance S means is that of the Gaussian of variance n S - 9: the sum of discrete
noises is as private, by the lemma of `dca_proto.privacy.accounting`.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from dca_proto.crypto.fixedpoint import from_ring
from emulator import reference
from emulator.audit.variance import Spread
from emulator.collusion.coalition import Case
from emulator.collusion.rounds import Integers, Round

_SMOOTHING = 9  # what the lemma takes from the variance, in squared grid units
CONFIDENCE = 0.95
"""Of the intervals that are shown."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Variances per coordinate in the statistic's squared units, and what they mean.

    Attributes:
        noises_left, noises_needed: how many noises hide the victim, and n_min - 1 - c.
        left: the former's variance. floor: (Δ/μ)², what the claim needs.
        needed: the variance of n_min - 1 - c noises, a little above the floor.
        claimed: ε. meant: the ε that `left` means at the claimed δ; 0 where nothing depends on data.
    """

    noises_left: int
    noises_needed: int
    left: float
    floor: float
    needed: float
    claimed: float
    meant: float


class Measured(msgspec.Struct, frozen=True):
    """The residual's variance over the repetitions, and its interval; the ε that these mean; `degrees` of freedom."""

    variance: float
    interval: tuple[float, float]
    epsilon: tuple[float, float]
    degrees: int


def noise_of(case: Case) -> Noise:
    """What the plan says of a coalition."""
    plan, setting = case.plan, case.setting
    each = plan.noise_std**2
    return Noise(
        noises_left=case.noises_left,
        noises_needed=setting.honest,
        left=case.noises_left * each,
        floor=reference.least_variance(setting.l2, setting.epsilon, setting.delta),
        needed=setting.honest * each,
        claimed=setting.epsilon,
        meant=epsilon_meant(case),
    )


def epsilon_meant(case: Case) -> float:
    """The ε, at the claimed δ, that the noises left mean."""
    if not (case.is_released or case.has_all_nodes):
        return 0.0
    variance = case.noises_left * case.plan.noise_variance - _SMOOTHING
    return _epsilon(case, variance * case.plan.unit**2)


def residual(case: Case, one: Round) -> Integers | None:
    """What is left of a round, in grid units, when all that the coalition knows is subtracted.

    None where it learned nothing to subtract from.
    """
    if case.has_all_nodes:
        return opened(one) - one.secret
    return None if one.total is None else one.total - one.known - one.honest


def opened(one: Round) -> Integers:
    """What the coalition's nodes make of the victim's contribution: its noisy value, if all collude."""
    assert one.victim is not None, "one of all nodes holds it"
    return from_ring(one.victim)


class Residuals:
    """The mean square of the residuals, over rounds and coordinates.

    Args:
        case: whose plan says the units.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._square = 0.0
        self._count = 0

    def add(self, left: Integers | None) -> None:
        """One more round's."""
        if left is not None:
            values = left.astype(np.float64) * self._case.plan.unit
            self._square += float(values @ values)
            self._count += left.size

    @property
    def spread(self) -> Spread | None:
        """Their variance about zero; None where there were none."""
        return Spread(self._square / self._count, self._count) if self._count else None

    def measured(self) -> Measured | None:
        """With intervals at `CONFIDENCE`."""
        spread, case = self.spread, self._case
        if spread is None:
            return None
        low, high = spread.interval(CONFIDENCE)
        epsilons = tuple(_epsilon(case, variance) for variance in (high, low))
        return Measured(spread.variance, (low, high), (epsilons[0], epsilons[1]), spread.degrees)


def _epsilon(case: Case, variance: float) -> float:
    """The ε of a Gaussian of that variance; infinite without noise."""
    if variance <= 0:
        return math.inf
    return reference.epsilon_of(case.setting.l2 / math.sqrt(variance), case.setting.delta)
