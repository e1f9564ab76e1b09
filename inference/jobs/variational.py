"""What the variational jobs share: their plan, from the noise that is to be expected, and what they tell on the way."""

from __future__ import annotations

from math import nan, sqrt

from inference.jobs.base import Conditions, Iteration, Stage
from inference.variational.inference import GAINED, Progress
from inference.variational.plan import ITERATIONS_MAX, planned


def stages(
    dimension: int,
    first: float,
    epochs: int | None,
    batch: int,
    conditions: Conditions,
    iterations_max: int = ITERATIONS_MAX,
) -> list[Stage]:
    """A round for scales, then about as many iterations as the job will plan once it has seen that round's noise.

    Args:
        dimension: how many parameters. first: the first round's share of the budget.
        epochs, batch: as the job's settings have them. iterations_max: the most that the job plans by itself.
    """
    n, left = conditions.clients, 1 - first
    honest = max(1, n - conditions.tolerated - 1)
    noise = sqrt(n / honest / left) / conditions.mu
    found = planned(n, noise, dimension, left, epochs=epochs, batch=batch, iterations_max=iterations_max)
    about = "" if epochs else "about "
    words = f"on {about}{found.iterations} iterations"
    return [Stage(1, first, "on scales"), Stage(found.iterations, found.share, words, found.batch, uses=found.epochs)]


def progress(conditions: Conditions) -> Progress:
    """What a job tells of an iteration, passed on; a score on rows of one's own is said to be one."""

    def tell(number: int, of: int, name: str, value: float | None) -> None:
        said = name if name == GAINED else f"held-out {name}"
        conditions.on_iteration(Iteration(number, of, said, nan if value is None else value))

    return tell
