"""Shared by the variational jobs: the plan, which follows from the expected noise, and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import sqrt
from typing import Any, TypeVar

from inference.jobs.base import Conditions, Stage
from inference.models.mixture.rounds import MixtureSettings
from inference.variational.mean_field_job import VariationalSettings
from inference.variational.schedule import ITERATIONS_MAX, schedule

S = TypeVar("S", VariationalSettings, MixtureSettings)


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


def settings_for(kind: type[S], settings: Any, **others: Any) -> S:
    """What a job of `inference.variational` takes, from settings of the same names, and others.

    Raises:
        DataError: a number is out of range.
    """
    named = {one.name for one in fields(kind)} & {one.name for one in fields(settings)}
    return kind(**{name: getattr(settings, name) for name in named} | others)
