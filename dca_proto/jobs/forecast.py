"""What a round will cost and carry, computed before anybody runs anything, from its participants' plan.

**Beside a trusted aggregator.** One who saw all data would add noise of variance σ_std² = Δ²/μ² once. Here each of N
clients adds S ≈ σ_std²/(N - T - 1), so that a sum from which nobody is missing holds N/(N - T - 1) times as much (DCA,
Theorem 1 and Figure 1(b)). `Forecast.scale_factor` is N S/σ_std² with the S that is drawn, the grid's price in it.

**Signal and noise.** All but the sensitivity is seen from a mean over N clients, one contribution of each, in parts of
the bound C of the largest coordinate. The noise has a standard deviation of √(N S)/(N C) there. Values that spread over
their bounds with a standard deviation of C/3 have a sampling error of 1/(3 √N), private or not; and a true mean of C/3
stands `signal_to_noise` standard deviations of the noise above zero.
"""

from __future__ import annotations

import math

import msgspec

from dca_proto.privacy import accounting
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian, Mechanism
from dca_proto.protocol.kinds import SecureSum
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import OpenRound

EXACT = DistributedDiscreteGaussian()
_SPREAD = 1 / 3  # of the bound: what values are taken to be spread by


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One round's figures; in the statistic's units, but for what is said to be a ratio.

    Attributes:
        statistic, dimension: its name and d.
        relation: of the neighbours that the sensitivities are for.
        sensitivity: Δ, L2. bound: C, the largest magnitude of one coordinate of one contribution.
        epsilon, delta, mu: what the round costs each participant. noise_multiplier: σ_std/Δ = 1/μ.
        sigma_std: σ_std, the noise of a trusted aggregator. sigma_local: of each client's share.
        sigma_sum: in the sum when nobody drops. sigma_sum_fewest: when as many drop as may, N - T + c being left.
        sigma_floor: of N - T - 1 shares, what is unknown to a curious client with c colluders at the very least.
        scale_factor: variance in the sum of all, as a ratio to σ_std². scale_factor_std: its root.
        ring_bits: bits that the sum can need, of the ring's 64. fraction_bits: f.
        noise_of_mean: standard deviation of the noise in a mean, as a ratio to C. sampling_error: beside it, the
            sampling error of values spread by C/3. signal_to_noise: C/3 as a ratio to the noise in a mean.
    """

    statistic: str
    dimension: int
    relation: str
    sensitivity: float
    bound: float
    epsilon: float
    delta: float
    mu: float
    noise_multiplier: float
    sigma_std: float
    sigma_local: float
    sigma_sum: float
    sigma_sum_fewest: float
    sigma_floor: float
    scale_factor: float
    scale_factor_std: float
    ring_bits: int
    fraction_bits: int
    noise_of_mean: float
    sampling_error: float
    signal_to_noise: float


def forecast(request: OpenRound, mechanism: Mechanism = EXACT) -> Forecast:
    """The figures of a round in which all who are expected contribute. Raises `UsageError` where none can be held."""
    announcement, plan = request.draft(mechanism, Limits())
    terms = announcement.terms
    summed = isinstance(terms, SecureSum)
    n = request.answers_expected if summed else 1
    bound = plan.sensitivity.bound * plan.unit
    sigma_std = plan.sensitivity_l2 / plan.mu
    noise_of_mean = plan.noise_std / math.sqrt(n) / bound
    factor = n * (plan.noise_std / sigma_std) ** 2
    fewest = terms.fewest if isinstance(terms, SecureSum) else 1
    return Forecast(
        statistic=announcement.statistic,
        dimension=plan.dimension,
        relation=plan.sensitivity.relation,
        sensitivity=plan.sensitivity_l2,
        bound=bound,
        epsilon=announcement.epsilon,
        delta=announcement.delta,
        mu=plan.mu,
        noise_multiplier=1 / plan.mu,
        sigma_std=sigma_std,
        sigma_local=plan.noise_std,
        sigma_sum=math.sqrt(n) * plan.noise_std,
        sigma_sum_fewest=math.sqrt(fewest) * plan.noise_std,
        sigma_floor=math.sqrt(plan.honest) * plan.noise_std,
        scale_factor=factor,
        scale_factor_std=math.sqrt(factor),
        ring_bits=accounting.ring_bits(plan.sensitivity.bound, n, plan.noise_variance, plan.dimension),
        fraction_bits=announcement.fraction_bits,
        noise_of_mean=noise_of_mean,
        sampling_error=_SPREAD / math.sqrt(n),
        signal_to_noise=_SPREAD / noise_of_mean,
    )
