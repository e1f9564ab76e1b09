"""Forecasts a round's privacy cost, noise and signal before it runs, from the plan that its participants will compute.

**Compared with a trusted aggregator.** An aggregator that saw all data would add noise of variance σ_std² = Δ²/μ² once.
Here each of N clients adds noise of variance S ≈ σ_std²/(N - T - 1). A sum of all N has N/(N - T - 1) times the
variance (DCA, Theorem 1 and Figure 1(b)). `Forecast.scale_factor` is N S/σ_std² with the S that clients draw, which
includes the cost of the grid.

**Signal and noise.** Consider the mean of N clients' contributions, relative to the bound C of the largest coordinate.
Its noise has a standard deviation of √(N S)/(N C). Values with a standard deviation of C/3 have a sampling error of
1/(3 √N), private or not. A true mean of C/3 is `signal_to_noise` standard deviations of the noise above zero.
"""

from __future__ import annotations

import math

import msgspec

from dca_proto.privacy import accounting
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import OpenRound

EXACT = DistributedDiscreteGaussian()
_SPREAD = 1 / 3  # assumed standard deviation of values, relative to the bound


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One round's figures, in the statistic's units unless they are ratios.

    Attributes:
        statistic, dimension: the statistic's name and d.
        relation: the neighbouring relation of the sensitivity.
        sensitivity: Δ, L2. bound: C, the largest magnitude of one coordinate of one contribution.
        epsilon, delta, mu: the round's cost to each participant. noise_multiplier: σ_std/Δ = 1/μ.
        sigma_std: σ_std, the noise of a trusted aggregator. sigma_local: the noise of each client's share.
        sigma_sum: the noise in the sum if nobody drops out. sigma_sum_fewest: with the fewest contributors, N - T + c.
        sigma_floor: the noise of N - T - 1 shares, the least that is unknown to a curious client with c colluders.
        scale_factor: the variance in the sum of all, as a ratio to σ_std². scale_factor_std: its square root.
        ring_bits: bits that the sum can need, of the ring's 64. fraction_bits: f.
        noise_of_mean: standard deviation of the noise in a mean, as a ratio to C. sampling_error: in the same units,
            of values spread by C/3. signal_to_noise: C/3 as a ratio to the noise in a mean.
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


def forecast(request: OpenRound) -> Forecast:
    """Forecast a round in which all expected clients contribute. Raises `UsageError` if the round is impossible."""
    announcement, plan = request.draft(EXACT, Limits())
    terms = announcement.terms
    n = request.answers_expected if terms.is_summed else 1
    bound = plan.sensitivity.bound * plan.unit
    sigma_std = plan.sensitivity_l2 / plan.mu
    noise_of_mean = plan.noise_std / math.sqrt(n) / bound
    factor = n * (plan.noise_std / sigma_std) ** 2
    fewest = terms.fewest or 1
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
