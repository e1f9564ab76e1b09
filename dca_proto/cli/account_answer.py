"""What `dca account` answers, as plain JSON values: a forecast of each round, and what the whole job costs."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from dca_proto.cli.account_enquiry import Enquiry, total_mu
from dca_proto.jobs.forecast import forecast
from dca_proto.privacy import accounting
from dca_proto.privacy import composition as privacy_loss
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.statistics import AveragedRegression, Mixture, ModelGradient, Statistic, resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.regression import Regression
from dca_proto.statistics.regression_sensitivity import Weights
from dca_proto.statistics.weights import best_regression_weights

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
DATA, SCALED_TO_ONE, SCALED = "data", "columns scaled to ±1", "scaled columns"
_FIRST = ("noise_multiplier", "sensitivity", "sigma_local", "scale_factor", "ring_bits")
_LABELLED_MAX = 100  # coordinates up to which each is listed by name
_EPSILON_LARGE = 10.0


def answer(enquiry: Enquiry, shares: tuple[float, ...], rounds: list[OpenRound]) -> dict[str, Any]:
    """Everything; the figures of the first round at the top as well."""
    budget, mu = enquiry.budget, total_mu(rounds)
    told = [{"share": share, **_round(request)} for share, request in zip(shares, rounds, strict=True)]
    signals = [one["signal_to_noise"] for one in told]
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "mu_budget": budget.mu,
        "mu": mu,
        "epsilon_spent": min(accounting.epsilon_of(mu, budget.delta), budget.epsilon),  # it is rounded up
        "clients": enquiry.clients,
        "tolerated": enquiry.tolerated,
        "colluders": enquiry.colluders,
        "computes": enquiry.computes,
        "contributors_needed": enquiry.clients - enquiry.tolerated + enquiry.colluders,
        "honest_shares": enquiry.clients - enquiry.tolerated - 1,
        **{name: told[0][name] for name in _FIRST},
        "rounds": told,
        "weakest_round": 1 + signals.index(min(signals)),
        "curve": _curve(mu, enquiry.also),
        "also": [{"kind": type(one).__name__, **msgspec.to_builtins(one)} for one in enquiry.also],
        "epsilon_with_also": _with_also(mu, enquiry.also, budget.delta),
        "epsilon_charged_with_also": _charged_with_also(mu, enquiry.also, budget.delta),
        "epsilon_charged_apart_with_also": _charged_with_also(mu, enquiry.also, budget.delta, apart=True),
        "warnings": warnings(budget, enquiry.clients),
    }


def warnings(budget: Budget, clients: int) -> list[str]:
    """What a budget of such figures allows to happen, where that is no protection to speak of."""
    found = []
    if budget.delta * clients >= 1:
        found.append(
            f"delta {at_least(budget.delta)} is 1/N = {1 / clients:.2g} or more: a delta of at least 1/N allows to "
            f"publish somebody's data whole; take one far below, such as {10 ** -math.ceil(math.log10(clients) + 2):g}"
        )
    if budget.epsilon > _EPSILON_LARGE:
        epsilon = at_least(budget.epsilon)
        found.append(
            f"epsilon {epsilon} promises little: a result is no more than e^{epsilon} = "
            f"10^{at_least(budget.epsilon / math.log(10))} times as likely with one client's data as with any "
            f"other's, and so may tell them apart; take {at_most(_EPSILON_LARGE)} at most, better 1"
        )
    return found


def _round(request: OpenRound) -> dict[str, Any]:
    """A round's forecast, and where there are few coordinates, the noise of each in the units of its estimate."""
    statistic, clients = resolve(request.statistic, request.parameters), request.clients_expected
    told: dict[str, Any] = msgspec.to_builtins(forecast(request))
    told |= {"labels": None, "noise_std": None, "noise_std_units": _units(statistic)}
    if statistic.dimension <= _LABELLED_MAX:
        zero = np.zeros(statistic.dimension)
        shifted = statistic.estimate(zero + told["sigma_sum"], clients) - statistic.estimate(zero, clients)
        told |= {"labels": list(statistic.labels()), "noise_std": np.abs(shifted).tolist()}
    told |= {"best_weights": None, "best_weights_gain": None}
    if isinstance(statistic, Regression):
        told |= _best_weights(statistic, request)
    return told


def _units(statistic: Statistic) -> str:
    """What units estimates are in: products, gradients and mixtures stay in those of the scaled columns."""
    if not isinstance(statistic, Regression | AveragedRegression | ModelGradient | Mixture):
        return DATA
    if set(statistic.scale) == {1.0} and set(statistic.centre) == {0.0}:
        return DATA
    return SCALED_TO_ONE if set(statistic.bound) == {1.0} else SCALED


def _best_weights(statistic: Regression, request: OpenRound) -> dict[str, Any]:
    """The weights of xxᵀ, xy and y² that minimise the total noise variance, and what part of its standard deviation
    that saves, beside the weights that were asked for."""

    def error(weights: Weights) -> float:
        weighted = msgspec.structs.replace(statistic, weights=weights)
        sensitivity = client_sensitivity(weighted, request.rows_max, request.fraction_bits)
        sizes = zip(statistic.block_sizes, weights, strict=True)
        return math.sqrt(sensitivity.l2_squared * math.fsum(size / weight**2 for size, weight in sizes))

    best = best_regression_weights(statistic, request.fraction_bits)
    return {"best_weights": list(best), "best_weights_gain": 1 - error(best) / error(statistic.weights)}


def _curve(mu: float, also: tuple[privacy_loss.Release, ...]) -> list[dict[str, float | None]]:
    """ε of the whole job at several δ, alone and beside what else is spent."""
    return [
        {"delta": d, "epsilon": accounting.epsilon_of(mu, d), "epsilon_with_also": _with_also(mu, also, d)}
        for d in DELTAS
    ]


def _with_also(mu: float, also: tuple[privacy_loss.Release, ...], delta: float) -> float | None:
    return privacy_loss.epsilon_of((privacy_loss.Gaussian(mu), *also), delta) if also else None


def _charged_with_also(
    mu: float, also: tuple[privacy_loss.Release, ...], delta: float, *, apart: bool = False
) -> float | None:
    """What a ledger counts that is charged for all of it: of releases that are not Gaussian it knows only ε, and in a
    mixture takes them for Gaussian ones that tell more, as they may be chosen in view of results (`price`).

    Args:
        apart: where a part of the budget is kept for those.
    """
    charged = [
        PrivacyCost.of_mu(one.mu) if isinstance(one, privacy_loss.Gaussian) else PrivacyCost.of_pure(one.epsilon)
        for one in also
    ]
    return total([PrivacyCost.of_mu(mu), *charged]).epsilon(delta, apart=apart) if also else None
