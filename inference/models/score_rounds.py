"""Rounds of scores: a round for centres and scales, then a few in which clients send scores at public parameters.

Each round asks at the best estimate so far. Later ones are nearer to the solution, and get more of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, TypeAlias

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.jobs.base import Stage
from inference.jobs.settings import JobSettings, first_share, require_count, setting
from inference.rounds import Job

STD_SHARE, ROUNDS = 0.1, 4
SHARES = (1.0, 1.0, 2.0, 4.0)  # of the rounds of scores: fewer rounds take the last ones, more repeat the first

Ask: TypeAlias = Callable[[Sequence[NoisyAggregate], float, float, bool], RoundRequest]
"""Makes the next request from the aggregates so far, the noise's standard deviation per unit of sensitivity, the share
of the job's μ², and whether it is the last."""


def rounds_of_scores(default: int) -> Any:
    """Return the setting ``rounds``."""
    return setting(default, "How many rounds of scores follow the one for scales.", require_count)


@dataclass(frozen=True)
class ScoreSettings(JobSettings):
    """The settings of a job with rounds of scores."""

    rounds: int = rounds_of_scores(ROUNDS)
    std_share: float = first_share(STD_SHARE)


def shares(rounds: int, std_share: float) -> list[float]:
    """Return the share of the job's μ² for each round of scores."""
    parts = np.array([SHARES[0]] * (rounds - len(SHARES)) + list(SHARES[-rounds:]))
    return [float(part) for part in (1 - std_share) * parts / parts.sum()]


def stages_of(rounds: int, std_share: float) -> list[Stage]:
    """Return the stages: scales first, then scores."""
    later = enumerate(shares(rounds, std_share), 1)
    return [Stage(1, std_share, "on scales"), *(Stage(1, share, f"on scores, round {place}") for place, share in later)]


def score_rounds(phases: NoisyAggregate, rounds: int, std_share: float, ask: Ask) -> Job[tuple[NoisyAggregate, ...]]:
    """Run the rounds of scores, and return the aggregates of all rounds.

    Args:
        phases: the first round's. rounds: of scores. std_share: the first round's share of the job's μ².
    """
    per_sensitivity = sqrt(phases.noise_variance * std_share) / phases.sensitivity
    aggregates = [phases]
    for place, share in enumerate(shares(rounds, std_share), 1):
        aggregates.append((yield ask(aggregates, per_sensitivity / sqrt(share), share, place == rounds)))
    return tuple(aggregates)
