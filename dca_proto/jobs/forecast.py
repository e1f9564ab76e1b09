"""Forecasts a round's privacy cost, noise and signal before it runs, from the plan that its participants will compute.

**Compared with a trusted aggregator.** An aggregator that saw all data would add noise of variance σ_std² = Δ²/μ² once.
Here each of N clients adds noise of variance S ≈ σ_std²/(N - T - 1). A sum of all N has N/(N - T - 1) times the
variance (DCA, Theorem 1 and Figure 1(b)). `Forecast.scale_factor` is N S/σ_std² with the S that clients draw, which
includes the cost of the grid. In a verified sum, it includes what rounding to a coarse grid costs.

**Signal and noise.** Consider the mean of N clients' contributions, relative to the bound C of the largest coordinate.
Its noise has a standard deviation of √(N S)/(N C). Values with a standard deviation of C/3 have a sampling error of
1/(3 √N), private or not. A true mean of C/3 is `signal_to_noise` standard deviations of the noise above zero.
"""

from __future__ import annotations

import math
from typing import Annotated, TypedDict

import msgspec

from dca_proto.privacy import accounting
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.validation import ValidatedRound, sensitivity_of
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.protocol.wire.messages import Announcement
from dca_proto.results.figure import about
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.counting import Counting
from dca_proto.statistics.statement import liar_factor, proven_limit

EXACT = DistributedDiscreteGaussian()
_SPREAD = 1 / 3  # assumed standard deviation of values, relative to the bound


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One round's figures, in the statistic's units unless they are ratios."""

    statistic: Annotated[str, about("Its name.")]
    dimension: Annotated[int, about("d.")]
    relation: Annotated[str, about("The neighbouring relation of the sensitivity.")]
    sensitivity: Annotated[float, about("Δ, L2.")]
    bound: Annotated[
        float,
        about("C, the largest magnitude of one coordinate of a contribution, or of a data node's row; no count's."),
    ]
    epsilon: Annotated[float, about("The round's cost to each participant.")]
    delta: Annotated[float, about("As epsilon.")]
    mu: Annotated[float, about("As epsilon.")]
    noise_multiplier: Annotated[float, about("σ_std/Δ = 1/μ.")]
    sigma_std: Annotated[float, about("σ_std, the noise of a trusted aggregator.")]
    sigma_local: Annotated[float, about("The noise of each client's share.")]
    sigma_sum: Annotated[float, about("The noise in the sum if nobody drops out.")]
    sigma_sum_fewest: Annotated[float, about("The noise with the fewest contributors, N - T + c.")]
    sigma_floor: Annotated[
        float, about("The noise of N - T - 1 shares, the least that is unknown to a curious client with c colluders.")
    ]
    scale_factor: Annotated[float, about("The variance in the sum of all, as a ratio to σ_std².")]
    scale_factor_std: Annotated[float, about("Its square root.")]
    ring_bits: Annotated[
        int, about("Bits that the sum can need, of the ring's 64; of a verified sum, of the field's 31.")
    ]
    fraction_bits: Annotated[int, about("f.")]
    noise_of_mean: Annotated[float, about("Standard deviation of the noise in a mean, as a ratio to C.")]
    sampling_error: Annotated[float, about("Of a mean of values spread by C/3, as a ratio to C.")]
    signal_to_noise: Annotated[float, about("C/3 as a ratio to the noise in a mean.")]
    slack: Annotated[float, about("What a verified sum costs beside mu; 0 for other rounds.")] = 0.0
    noises: Annotated[int, about("Of a verified sum: m, noise numbers of a client for each value; 0 for others.")] = 0
    noise_bits: Annotated[int, about("Of a verified sum: bits of each of them; 0 for others.")] = 0
    contribution_bytes: Annotated[int, about("Of a client's masked vector; in a verified sum, with its proof.")] = 0
    proven: Annotated[str, about("Of a verified sum: what each contribution is proven to keep.")] = ""
    liar_factor: Annotated[
        float | None,
        about("Of a verified sum: how much farther a lying client can move it than an honest one can, in L2 norm."),
    ] = None
    liar_sds: Annotated[
        float | None,
        about("Of a verified sum: how far one client that lies within the bounds can move a value, in standard "
              "deviations of the noise in the sum if nobody drops out."),
    ] = None  # fmt: skip


def forecast(request: OpenRound) -> Forecast:
    """Forecast a round in which all expected clients contribute, and data nodes as many rows as they may.

    Raises `UsageError` if the round is impossible.
    """
    announcement, plan = request.draft(EXACT, Limits())
    n = request.answers_expected
    entries = n * max(request.rows_max, 1) if isinstance(request.kind, NodeRelease) else n  # each row is an entry
    requested = math.ldexp(1.0, -request.fraction_bits)  # a verified sum has a coarser grid of its own
    bound = _largest_value(request) * requested
    moved = sensitivity_of(
        request.kind, resolve(request.statistic, request.parameters), request.rows_max, request.fraction_bits
    )
    sigma_std = moved.l2 * requested / plan.mu
    sigma_sum = math.sqrt(plan.variance_of_sum(n))
    noise_of_mean = sigma_sum / entries / bound
    factor = (sigma_sum / sigma_std) ** 2
    return Forecast(
        statistic=announcement.statistic,
        dimension=plan.dimension,
        relation=plan.sensitivity.relation,
        sensitivity=moved.l2 * requested,
        bound=bound,
        epsilon=announcement.epsilon,
        delta=announcement.delta,
        mu=plan.mu,
        noise_multiplier=1 / plan.mu,
        sigma_std=sigma_std,
        sigma_local=plan.noise_std,
        sigma_sum=sigma_sum,
        sigma_sum_fewest=math.sqrt(plan.variance_of_sum(announcement.kind.n_min or n)),
        sigma_floor=math.sqrt(plan.honest) * plan.noise_std,
        scale_factor=factor,
        scale_factor_std=math.sqrt(factor),
        ring_bits=_bits(plan, n),
        fraction_bits=announcement.fraction_bits,
        noise_of_mean=noise_of_mean,
        sampling_error=_SPREAD / math.sqrt(entries),
        signal_to_noise=_SPREAD / noise_of_mean,
        slack=plan.cost.slack,
        contribution_bytes=plan.vector_bytes,
        **_of_proof(plan, announcement, n),
    )


def _bits(plan: ValidatedRound, clients: int) -> int:
    """Return the bits of the ring or field that a sum over so many clients can need."""
    if plan.statement is not None:
        return plan.statement.largest_sum(clients).bit_length()
    return accounting.ring_bits(plan.sensitivity.bound, clients, plan.noise_variance, plan.dimension)


class _OfProof(TypedDict, total=False):
    """The fields of a forecast that only a verified sum has."""

    proven: str
    noises: int
    noise_bits: int
    liar_factor: float
    liar_sds: float


def _of_proof(plan: ValidatedRound, announcement: Announcement, clients: int) -> _OfProof:
    """Return the figures that only a verified sum has.

    What a liar can do is an upper limit, so rounding, of which there may be none, does not count as noise.
    """
    proven = plan.statement
    if proven is None:
        return {}
    terms = proven, plan.statistic, announcement.rows_max, announcement.fraction_bits
    return {
        "proven": proven_limit(*terms),
        "noises": proven.noises,
        "noise_bits": proven.noise_bits,
        "liar_factor": liar_factor(*terms),
        "liar_sds": max(proven.sizes) * plan.unit / (math.sqrt(clients) * plan.noise_std),
    }


def _largest_value(request: OpenRound) -> int:
    """Return the largest magnitude of a coordinate of a contribution, or of a data node's row, in grid units."""
    statistic = resolve(request.statistic, request.parameters)
    if isinstance(statistic, Counting):
        statistic = msgspec.structs.replace(statistic, count_weight=0.0)
    rows_max = 1 if isinstance(request.kind, NodeRelease) else request.rows_max
    return client_sensitivity(statistic, rows_max, request.fraction_bits).bound
