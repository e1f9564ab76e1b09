"""The progress that an iterative learning job reports after each iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

GAINED = "bound gained"


@dataclass(frozen=True)
class Iteration:
    """The progress of an iterative job.

    Attributes:
        number: of the iteration, from 1. total: number of planned iterations.
        name, value: the score on rows that the trainer has. Without such rows, `GAINED` and an estimate of the bound's
            gain since the first iteration, from the same noisy sums, so that it costs no budget.
    """

    number: int
    total: int
    name: str
    value: float


class Score(NamedTuple):
    """A score on rows that the trainer has: ``of(theta, columns)``, θ in units of the columns' standardisation."""

    name: str
    of: Callable[[Any, Any], float]


OnProgress = Callable[[Iteration], None]
