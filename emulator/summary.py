"""What a swarm's run amounts to, as plain data for programs (`--json`) and for the tables that people see."""

from __future__ import annotations

from typing import Any

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core import accounting
from emulator.job import Budget
from emulator.swarm import Swarm, SwarmOptions
from emulator.timeline import RoundLog
from inference.baselines import nonprivate_regression, rmse, zero_predictor
from inference.datasets import Problem
from inference.regression import RegressionResult


def summarise(
    swarm: Swarm, options: SwarmOptions, clients: int, private: bool, outcome: dict[str, Any]
) -> dict[str, Any]:
    """One object with everything that is public about a run.

    Args:
        private: whether an epsilon may be claimed. outcome: of the job: `learned` or `failed`.
    """
    rounds = [_round(log, private) for log in swarm.timeline.rounds]
    last = rounds[-1] if rounds else {"dropped": None, "contributors": None}
    return {
        "clients": clients,
        "computes": options.computes,
        "tolerated": options.tolerated,
        "colluders": options.colluders,
        "epsilon": options.budget.epsilon if private else None,
        "delta": options.budget.delta if private else None,
        "epsilon_spent": spent(swarm.timeline.rounds, options.budget) if private else None,
        "private": private,
        "broker": swarm.broker_kind,
        "broker_version": swarm.broker_version,
        "share_encoding": options.encoding,
        "seed": options.seed,
        **outcome,
        "rounds": rounds,
        "dropped": last["dropped"],
        "contributors": last["contributors"],
    }


def spent(rounds: list[RoundLog], budget: Budget) -> float:
    """The epsilon, at the budget's delta, of all rounds that released something."""
    mus = [log.aggregate.mu for log in rounds if log.aggregate is not None]
    return accounting.epsilon_of(accounting.compose(mus), budget.delta) if mus else 0.0


def learned(result: RegressionResult, train: Problem, test: Problem) -> dict[str, Any]:
    """The regression beside the one without privacy, on rows that neither has seen."""
    reference = nonprivate_regression(train)
    return {
        "ok": True,
        "error": None,
        "coefficients": [
            {
                "name": name,
                "unit": f"{train.schema.units.get(train.schema.target, '')} per {train.schema.units.get(name, 'unit')}",
                "private": float(result.coefficients[index]),
                "private_sd": float(result.coefficient_sd[index]),
                "nonprivate": float(reference.coefficients[index]),
                "nonprivate_sd": float(reference.coefficient_sd[index]),
            }
            for index, name in enumerate(train.schema.features)
        ],
        "intercept": {
            "private": result.intercept,
            "private_sd": result.intercept_sd,
            "nonprivate": reference.intercept,
            "nonprivate_sd": reference.intercept_sd,
        },
        "test": {
            "rows": len(test.y),
            "rmse_private": rmse(result.predict(test.X)[0], test.y),
            "rmse_nonprivate": rmse(reference.predict(test.X)[0], test.y),
            "rmse_zero": rmse(zero_predictor(train), test.y),
        },
    }


def failed(reason: str, contributors: int | None, needed: int | None) -> dict[str, Any]:
    """An abort: nothing was released."""
    return {
        "ok": False,
        "error": reason,
        "contributors_found": contributors,
        "contributors_needed": needed,
        "test": None,
    }


def _round(log: RoundLog, private: bool) -> dict[str, Any]:
    return {
        "name": log.statistic,
        "dimension": log.dimension,
        "joined": log.joined,
        "declined": log.why,
        "roster_hash": log.roster_hash.hex() or None,
        "wall_s": log.wall_s,
        "phases": log.phase_s(),
        "messages": log.messages,
        "bytes": log.bytes,
        **(_released(log.aggregate, log.clients, private) if log.aggregate else _aborted(log)),
    }


def _released(aggregate: NoisyAggregate, clients: tuple[bytes, ...], private: bool) -> dict[str, Any]:
    return {
        "ok": True,
        "contributors": aggregate.contributors,
        "dropped": len(aggregate.absent),
        "absent": [clients[position].hex() for position in aggregate.absent],
        "sigma_local": aggregate.sigma_local,
        "noise_variance": aggregate.noise_variance,
        "sensitivity": aggregate.sensitivity,
        "epsilon": aggregate.epsilon if private and aggregate.private else None,
        "mu": aggregate.mu if private and aggregate.private else None,
    }


def _aborted(log: RoundLog) -> dict[str, Any]:
    contributors = log.failure.contributors if log.failure else None
    return {
        "ok": False,
        "contributors": contributors,
        "needed": log.failure.needed if log.failure else None,
        "dropped": len(log.clients) - contributors if contributors is not None else None,
        "sigma_local": None,
        "noise_variance": None,
    }
