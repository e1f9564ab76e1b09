"""The interface through which a job gets its sums: an object that holds a round and returns its `NoisyAggregate`.

A running trainer has it, and so has the ideal functionality. A job does not know which one it uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from dca_proto.aggregate import Job, NoAggregate, NoisyAggregate, RoundRequest
from dca_proto.privacy.cost import PrivacyCost
from inference.errors import DataError

__all__ = ["CostedRounds", "Job", "Replayed", "Rounds", "as_text", "run"]

R = TypeVar("R")


class Rounds(Protocol):
    """A source of noisy sums."""

    def hold(self, request: RoundRequest) -> NoisyAggregate:
        """Hold one round and wait for its result. Raises `NoAggregate` where it ends without one."""


@runtime_checkable
class CostedRounds(Rounds, Protocol):
    """Rounds that know what they cost: a trainer's do. Without it, only those that gave a sum can be added up.

    Attributes:
        spent: what all rounds so far cost the participant that they cost most, those included that ended without a sum
            and kept their charge.
    """

    @property
    def spent(self) -> PrivacyCost: ...


class Replayed:
    """Rounds that were held already, to a job that asks for the same again.

    Args:
        aggregates: of all rounds of the job, in their order.
    """

    def __init__(self, aggregates: Iterable[NoisyAggregate]) -> None:
        self._left = iter(aggregates)

    def hold(self, request: RoundRequest) -> NoisyAggregate:
        """The next aggregate. Raises `DataError` where it is none, or not of that request."""
        found = next(self._left, None)
        if found is None:
            raise DataError(f"the job asks for one more round, of {request.statistic!r}; give those of all rounds")
        if (found.statistic, as_text(found.parameters)) != (request.statistic, as_text(request.parameters)):
            raise DataError(
                f"an aggregate of {found.statistic!r} is not of the round that the job asks for, of "
                f"{request.statistic!r}; give those of all rounds in order, and the settings that asked for them"
            )
        return found


def as_text(parameters: Mapping[str, object]) -> str:
    """Parameters as something that compares and hashes: equal where they mean the same."""
    return json.dumps(parameters, sort_keys=True, default=lambda array: np.asarray(array).tolist())


def run(job: Job[R], rounds: Rounds) -> R:
    """Run a job to its result, one round after the other.

    Raises:
        NoAggregate: a round ended without a sum, and the job could not do without.
    """
    try:
        request = next(job)
        while True:
            try:
                aggregate = rounds.hold(request)
            except NoAggregate as ended:
                request = job.throw(ended)
            else:
                request = job.send(aggregate)
    except StopIteration as end:
        result: R = end.value
        return result
