"""The plan of the variational jobs, which follows from the expected noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from inference.jobs.base import Conditions, Stage
from inference.variational.schedule import ITERATIONS_MAX, schedule


def stages(
    dimension: int,
    first: float,
    epochs: int | None,
    batch: int,
    conditions: Conditions,
    iterations_max: int = ITERATIONS_MAX,
    pilot: Sequence[Stage] = (),
) -> list[Stage]:
    """A round for scales, those of a pilot, and about as many iterations as the job will plan after the first.

    Args:
        dimension: how many parameters. first: the first round's share of the budget.
        epochs, batch: as the job's settings have them. iterations_max: the most that the job plans by itself.
        pilot: rounds between the first and the iterations.
    """
    n, left = conditions.clients, 1 - first - sum(one.total for one in pilot)
    honest = max(1, n - conditions.tolerated - 1)
    noise = sqrt(n / honest / left) / conditions.mu
    found = schedule(n, noise, dimension, left, epochs=epochs, batch=batch, iterations_max=iterations_max)
    about = "" if epochs else "about "
    words = f"on {about}{found.iterations} iterations"
    iterations = Stage(found.iterations, found.share, words, found.batch, uses=found.epochs)
    return [Stage(1, first, "on scales"), *pilot, iterations]
