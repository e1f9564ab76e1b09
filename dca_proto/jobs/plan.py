"""Plans the rounds of a job as their participants would, before it runs, and forecasts its cost, noise and signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

from dca_proto.aggregate import PublicParameters
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT, Forecast, forecast
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy import accounting
from dca_proto.privacy import composition as privacy_loss
from dca_proto.privacy.budget import Budget, RoundCost, best_shares, check_shares
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.params import Limits
from dca_proto.protocol.terms import (
    SLACK_OF_ALL,
    CountedTerms,
    FractionBits,
    KindName,
    MechanismName,
    RowsMax,
    kind_of,
)
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.verified import slack_of
from dca_proto.protocol.wire.kinds import SECURE_SUM, Kind, NodeRelease
from dca_proto.results.figure import about
from dca_proto.statistics import AveragedRegression, Mixture, ModelGradient, Statistic, resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.counting import Counting
from dca_proto.statistics.regression import Regression
from dca_proto.statistics.regression_sensitivity import Weights
from dca_proto.statistics.weights import best_regression_weights

DELTAS = tuple(float(f"1e-{digits}") for digits in range(3, 13))
DATA, SCALED_TO_ONE, SCALED = "data", "columns scaled to ±1", "scaled columns"
_OF_FIRST_ROUND = ("noise_multiplier", "sensitivity", "sigma_local", "scale_factor", "ring_bits")
_LABELLED_MAX = 100  # more coordinates are not listed by name
_EPSILON_LARGE = 10.0
NamedStatistic = tuple[str, PublicParameters]
"""A statistic's name and its parameters."""


class JobPlan(CountedTerms, frozen=True, kw_only=True):
    """A job to forecast.

    Attributes:
        statistics: one per round. shares: each round's share of μ²; None for the best ones.
        also: other releases on the same participants.
        times: how often these rounds run; the budget is for all of them.
        kind, mechanism: of the rounds. Only secure sums have Compute nodes, and only reports a mechanism.
    """

    rows_max: RowsMax = 0
    fraction_bits: FractionBits = FRACTION_BITS
    statistics: tuple[NamedStatistic, ...]
    shares: tuple[float, ...] | None = None
    also: tuple[privacy_loss.Release, ...] = ()
    times: int = 1
    kind: KindName = SECURE_SUM
    mechanism: MechanismName = ""

    @property
    def budget(self) -> Budget:
        """(ε, δ) of all rounds together. If they are verified, each of the `times` has the slack of a verified job."""
        return Budget(self.epsilon, self.delta, SLACK_OF_ALL * self.verified * self.times)

    @property
    def round_kind(self) -> Kind:
        """The kind of the rounds, with these terms."""
        return self.fill(kind_of(self.kind, self.mechanism))

    @property
    def is_pure(self) -> bool:
        """True if the rounds are ε-private reports, which spend no δ."""
        return self.mechanism in PURE_MECHANISMS

    def round_shares(self) -> tuple[float, ...]:
        """Return each round's share: as given, or those that minimise the sum of all coordinates' noise variances.

        Raises `UsageError` if the number of shares is not that of the rounds, or a statistic is invalid.
        """
        if self.shares is None:
            resolved = (resolve(*each) for each in self.statistics)
            return best_shares(_noise_variance(each, self.rows_max, self.fraction_bits) for each in resolved)
        if len(self.shares) != len(self.statistics):
            raise UsageError(
                f"shares: found {len(self.shares)}, expected one for each of {len(self.statistics)} rounds"
            )
        return self.shares

    def rounds(self, shares: Sequence[float]) -> list[OpenRound]:
        """Return the trainer's command for each round. Raises `UsageError` if a round is impossible."""
        is_summed = self.round_kind.is_summed
        msgspec.structs.replace(self, computes=self.computes if is_summed else 0).check_terms(is_summed=is_summed)
        if self.verified and not self.budget.mu:
            raise UsageError(
                f"delta {at_least(self.delta)} is too small for verified rounds: they keep a slack of "
                f"{at_least(self.budget.slack)} in it, times 1 + e^epsilon; raise delta"
            )
        if self.times == 1 and not self.is_pure:
            costs = self.budget.split(shares)
        else:
            check_shares(shares)
            number = len(shares)
            costs = tuple(self.budget.repeated_all(shares, [self.times] * number, [self.is_pure] * number))
        pairs = zip(self.statistics, costs, strict=True)
        found = [self._round(number, *named, cost) for number, (named, cost) in enumerate(pairs, 1)]
        if math.fsum(request.cost.slack for request in found) > SLACK_OF_ALL:
            values = sum(resolve(*named).dimension for named in self.statistics)
            raise UsageError(
                f"{values:,} values in verified sums, expected at most {SLACK_OF_ALL / slack_of(1):,.0f} in all rounds "
                "together: ask for fewer columns or bins"
            )
        return found

    def _round(self, number: int, statistic: str, parameters: PublicParameters, cost: RoundCost) -> OpenRound:
        nodes = self.computes if self.round_kind.is_summed else 0
        computes = tuple(place.to_bytes(ID_BYTES, "big") for place in range(nodes))
        own = {"mu": cost.mu, "epsilon": cost.epsilon, "delta": cost.delta, "computes": computes}
        own["kind"] = self.round_kind
        request = OpenRound(
            **{**self.shared(OpenRound), **own},
            round_id=bytes(ID_BYTES),
            statistic=statistic,
            parameters=parameters,
        )
        try:
            request.draft(EXACT, Limits())
        except UsageError as error:
            if len(self.statistics) == 1:
                raise
            raise UsageError(f"round {number}, {statistic} at epsilon {at_least(cost.epsilon)}: {error}") from None
        return request


# --- the forecast -----------------------------------------------------------------------------------------------------


class PlannedRound(Forecast, frozen=True, kw_only=True):
    """A round's forecast, and the noise of each of its estimates."""

    share: Annotated[float, about("Of the budget's μ².")]
    labels: Annotated[list[str] | None, about("The name of each estimate; null if there are more than 100.")] = None
    noise_std: Annotated[
        list[float] | None, about("The standard deviation of each estimate's noise; null if there are more than 100.")
    ] = None
    noise_std_units: Annotated[str, about("The units of `noise_std`.")] = DATA
    best_weights: Annotated[
        list[int] | None, about("The weights of xxᵀ, xy and y² that minimise a regression's total noise variance.")
    ] = None
    best_weights_gain: Annotated[
        float | None, about("The fraction of the noise's standard deviation that they save over the requested weights.")
    ] = None


class CurvePoint(msgspec.Struct, frozen=True):
    """ε of the whole job at one δ, alone and with the other releases."""

    delta: Annotated[float, about("δ.")]
    epsilon: Annotated[float, about("Of the whole job.")]
    epsilon_with_also: Annotated[float | None, about("Of the job and the other releases.")]


class JobForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dca account --json`. Unknown values are null."""

    epsilon: Annotated[float, about("Of the whole budget.")]
    delta: Annotated[float, about("Of the whole budget.")]
    mu_budget: Annotated[float, about("The whole budget.")]
    mu: Annotated[float, about("The cost of these rounds together.")]
    epsilon_spent: Annotated[float, about("The same cost at delta.")]
    clients: Annotated[int, about("N.")]
    tolerate: Annotated[int, about("T.")]
    colluders: Annotated[int, about("c.")]
    computes: Annotated[int, about("M.")]
    n_min: Annotated[int, about("N - T + c.")]
    honest: Annotated[int, about("N - T - 1, the number of clients whose noises together suffice.")]
    kind: Annotated[str, about("Of the rounds.")] = SECURE_SUM
    mechanism: Annotated[str, about("Of LDP reports; empty for other kinds.")] = ""
    times: Annotated[int, about("How often the rounds run; `mu` and `epsilon_spent` are of all of them.")] = 1
    every: Annotated[str, about("How often they run in a period: hour, day, week; empty if once.")] = ""
    period: Annotated[str, about("For which the budget is; empty if they run once.")] = ""
    noise_multiplier: Annotated[float, about("Of the first round, as in `rounds`.")]
    sensitivity: Annotated[float, about("Of the first round.")]
    sigma_local: Annotated[float, about("Of the first round.")]
    scale_factor: Annotated[float, about("Of the first round.")]
    ring_bits: Annotated[int, about("Of the first round.")]
    rounds: Annotated[list[PlannedRound], about("In order.")]
    weakest_round: Annotated[int, about("The one with the least signal to noise, counted from 1.")]
    curve: Annotated[list[CurvePoint], about("ε of all rounds at several δ.")]
    verified: Annotated[bool, about("Whether clients prove their contributions, and public coins make the noise.")] = (
        False
    )
    slack: Annotated[float, about("What verified rounds cost together beside `mu`; 0 for others.")] = 0.0
    also: Annotated[list[privacy_loss.Release], about("Other releases on the same clients.")]
    epsilon_with_also: Annotated[float | None, about("The exact cost of everything.")]
    epsilon_charged_with_also: Annotated[float | None, about("What ledgers count if they are charged for everything.")]
    epsilon_charged_apart_with_also: Annotated[
        float | None, about("The same if they keep a part for reports of delta 0.")
    ]
    warnings: Annotated[list[str], about("Reasons why the budget protects little.")]


def forecast_job(
    job: JobPlan, shares: Sequence[float], requests: Sequence[OpenRound], every: str = "", period: str = ""
) -> JobForecast:
    """Forecast the rounds. `every` and `period` name what makes them run `times`, if anything does."""
    budget, also = job.budget, job.also
    mu = accounting.compose(request.cost.mu for _ in range(job.times) for request in requests)
    reports = total(request.cost for _ in range(job.times) for request in requests)
    cost = reports if job.is_pure else PrivacyCost.of_mu(mu, reports.slack)

    def spent(delta: float) -> float:
        return cost.epsilon(delta) if job.is_pure else accounting.epsilon_of(mu, delta, cost.slack)

    rounds = [_planned(request, share) for request, share in zip(requests, shares, strict=True)]
    signals = [planned.signal_to_noise for planned in rounds]
    charged = _charged(cost, also)
    own = _releases(job, cost, requests)
    stated = {**job.shared(JobForecast), "computes": job.computes if job.round_kind.is_summed else 0, "also": [*also]}
    return JobForecast(
        **stated,
        mu_budget=budget.mu,
        mu=mu,
        epsilon_spent=min(spent(budget.delta), budget.epsilon),  # it is rounded up
        slack=cost.slack,
        n_min=job.round_kind.n_min,
        honest=job.round_kind.honest,
        every=every,
        period=period,
        **{name: getattr(rounds[0], name) for name in _OF_FIRST_ROUND},
        rounds=rounds,
        weakest_round=1 + signals.index(min(signals)),
        curve=[CurvePoint(d, spent(d), _with_also(own, also, d)) for d in DELTAS],
        epsilon_with_also=_with_also(own, also, budget.delta),
        epsilon_charged_with_also=charged.epsilon(budget.delta) if also else None,
        epsilon_charged_apart_with_also=charged.epsilon(budget.delta, apart=True) if also else None,
        warnings=warnings(budget, job.clients),
    )


def warnings(budget: Budget, clients: int) -> list[str]:
    """Return sentences on why a budget protects little, if it does."""
    sentences = []
    if budget.delta * clients >= 1:
        sentences.append(
            f"delta {at_least(budget.delta)} is at least 1/N = {1 / clients:.2g}: such a delta permits publishing one "
            f"client's data in full; use a much smaller one, such as {10 ** -math.ceil(math.log10(clients) + 2):g}"
        )
    if budget.epsilon > _EPSILON_LARGE:
        epsilon = at_least(budget.epsilon)
        sentences.append(
            f"epsilon {epsilon} protects little: a result may still be e^{epsilon} = "
            f"10^{at_least(budget.epsilon / math.log(10))} times as likely with one client's data as with any "
            f"other's; use {at_most(_EPSILON_LARGE)} at most, better 1"
        )
    return sentences


def _noise_variance(statistic: Statistic, rows_max: int, fraction_bits: int) -> float:
    """Return Δ² d in the statistic's units, proportional to the total noise variance of d numbers beside any count."""
    sensitivity = client_sensitivity(statistic, rows_max, fraction_bits)
    d = statistic.plain_dimension if isinstance(statistic, Counting) else statistic.dimension
    return math.ldexp(sensitivity.l2, -fraction_bits) ** 2 * d


def _planned(request: OpenRound, share: float) -> PlannedRound:
    statistic, figures = resolve(request.statistic, request.parameters), forecast(request)
    labels = noise_std = best = gain = None
    units = DATA
    if isinstance(statistic, Regression | AveragedRegression | ModelGradient | Mixture) and (
        set(statistic.scale) != {1.0} or set(statistic.centre) != {0.0}
    ):  # products, gradients and mixtures stay in the units of the scaled columns
        units = SCALED_TO_ONE if set(statistic.bound) == {1.0} else SCALED
    if statistic.dimension <= _LABELLED_MAX:
        entries = request.kind.clients
        if isinstance(request.kind, NodeRelease):
            entries *= max(request.rows_max, 1)
        _, noise = statistic.estimate_with_noise(statistic.zero_sum(entries), entries, figures.sigma_sum)
        labels, noise_std = list(statistic.labels()), noise.tolist()
    if isinstance(statistic, Regression):
        weights = best_regression_weights(statistic, request.fraction_bits)
        best = list(weights)
        gain = 1 - _error(statistic, weights, request) / _error(statistic, statistic.weights, request)
    return PlannedRound(
        **msgspec.structs.asdict(figures),
        share=share,
        labels=labels,
        noise_std=noise_std,
        noise_std_units=units,
        best_weights=best,
        best_weights_gain=gain,
    )


def _error(statistic: Regression, weights: Weights, request: OpenRound) -> float:
    """Return a number proportional to the root of the total noise variance with these weights of xxᵀ, xy and y²."""
    weighted = msgspec.structs.replace(statistic, weights=weights)
    sensitivity = client_sensitivity(weighted, request.rows_max, request.fraction_bits)
    sizes = zip(statistic.block_sizes, weights, strict=True)
    return math.sqrt(sensitivity.l2_squared * math.fsum(size / weight**2 for size, weight in sizes))


def _releases(job: JobPlan, cost: PrivacyCost, requests: Sequence[OpenRound]) -> tuple[privacy_loss.Release, ...]:
    """Return all rounds as releases whose joint cost is known."""
    if not job.is_pure:
        return (privacy_loss.Gaussian(cost.mu, cost.slack),)
    return tuple(privacy_loss.PureDP(request.epsilon) for _ in range(job.times) for request in requests)


def _with_also(
    own: tuple[privacy_loss.Release, ...], also: tuple[privacy_loss.Release, ...], delta: float
) -> float | None:
    return privacy_loss.epsilon_of((*own, *also), delta) if also else None


def _charged(cost: PrivacyCost, also: tuple[privacy_loss.Release, ...]) -> PrivacyCost:
    """Return the cost that a ledger counts if it is charged for everything.

    A ledger knows only the ε of releases that are not Gaussian. Mixed with Gaussian rounds, it counts them as Gaussian
    ones that reveal more, since rounds may be chosen in view of results (`cost`).
    """
    others = [
        PrivacyCost.of_mu(release.mu)
        if isinstance(release, privacy_loss.Gaussian)
        else PrivacyCost.of_pure(release.epsilon)
        for release in also
    ]
    return total([cost, *others])
