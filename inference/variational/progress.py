"""The report that a learning job of many iterations makes after each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

GAINED = "bound gained"


@dataclass(frozen=True)
class Iteration:
    """How far an iterative job has come.

    Attributes:
        number: of the iteration, from 1. total: how many are planned.
        name, value: a score after it on rows that the trainer holds; without such rows, `GAINED` and an estimate of
            what the bound has gained since the first, from the same noisy sums, so that it costs no budget.
    """

    number: int
    total: int
    name: str
    value: float


OnProgress = Callable[[Iteration], None]
