"""The interface through which a job gets its sums: an object that runs a round and returns its `NoisyAggregate`.

A running trainer implements it, and so does the ideal functionality. A job does not know which one it uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from dca_proto.aggregate import Job, NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.plausibility import checked
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.wire.kinds import Kind, NodeRelease, SecureSum
from dca_proto.statistics.categories import plain_name
from inference.errors import DataError
from inference.problem import Schema

__all__ = ["CostedRounds", "Job", "Replayed", "Rounds", "as_text", "by_labels", "named", "request_of", "run"]

R = TypeVar("R")


class Rounds(Protocol):
    """A source of noisy sums."""

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        """Run one round and wait for its result. Raises `NoAggregate` if it ends without a sum."""


@runtime_checkable
class CostedRounds(Rounds, Protocol):
    """Rounds with a known total cost, such as a trainer's. With other sources, only rounds with a sum can be counted.

    Attributes:
        spent: the cost of all rounds so far to the participant charged most, including rounds that ended without a sum
            and kept their charge.
    """

    @property
    def spent(self) -> PrivacyCost: ...


class Replayed:
    """Recorded rounds, returned to a job that makes the same requests again.

    Args:
        aggregates: those of all rounds of the job, in order.
    """

    def __init__(self, aggregates: Iterable[NoisyAggregate]) -> None:
        self._left = iter(aggregates)

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        """Return the next aggregate. Raises `DataError` if there is none, or it answers another request."""
        aggregate = next(self._left, None)
        if aggregate is None:
            raise DataError(f"the job asks for one more round, of {request.statistic!r}; give those of all rounds")
        if (aggregate.statistic, as_text(aggregate.parameters)) != (request.statistic, as_text(request.parameters)):
            raise DataError(
                f"an aggregate of {aggregate.statistic!r} does not answer the round that the job asks for, of "
                f"{request.statistic!r}; give those of all rounds in order, and the settings that asked for them"
            )
        return aggregate


def request_of(
    statistic: Any, share: float = 1.0, kind: type[Kind] = SecureSum, rows_max: int | None = None
) -> RoundRequest:
    """Return the request for a statistic.

    Args:
        statistic: a `dca_proto.statistics.Statistic`, of which all parameters are stated. share: of the job's μ².
        rows_max: of each data node, the first ones; then of a client in other rounds, the first alone. By default all.
    """
    given = {name: getattr(statistic, name) for name in statistic.__struct_fields__}
    rows = 0 if rows_max is None else rows_max if kind is NodeRelease else 1
    parameters = json.loads(json.dumps(given))  # tuples become lists, as they arrive
    return RoundRequest(statistic.name, parameters, budget_share=share, rows_max=rows, kind=kind())


def by_labels(job: Job[R], schema: Schema) -> Job[R]:
    """Return the job with rounds that state the labels and their order: its requests call columns as `Schema.asked`.

    A device whose list has another order would give other codes. The job itself sees the schema's names alone.
    """
    names = {name: other for name, other in zip(schema.columns, schema.asked, strict=True) if name != other}
    return _renamed(job, names) if names else job


def _renamed(job: Job[R], names: Mapping[str, str]) -> Job[R]:
    with closing(job):
        try:
            request = next(job)
            while True:
                columns = [names.get(name, name) for name in request.parameters["columns"]]
                given = replace(request, parameters={**request.parameters, "columns": columns})
                try:
                    aggregate = yield given
                except NoAggregate as ended:
                    request = job.throw(ended)
                else:
                    request = job.send(named(aggregate))
        except StopIteration as end:
            result: R = end.value
            return result


def named(aggregate: NoisyAggregate, schema: Schema | None = None) -> NoisyAggregate:
    """Return the aggregate with columns as people call them. Raises `DataError` if the schema has other labels."""
    columns = aggregate.parameters["columns"]
    for name in columns if schema else ():
        if (column := plain_name(name)) != name and schema and column in schema.columns and name not in schema.asked:
            expected = schema.asked[schema.columns.index(column)]
            raise DataError(f"an aggregate has the codes {name!r}, and the schema has {expected!r}; give its labels")
    if (names := [*map(plain_name, columns)]) == [*columns]:
        return aggregate
    nodes = tuple(named(node) for node in aggregate.nodes)
    return replace(aggregate, parameters={**aggregate.parameters, "columns": names}, nodes=nodes)


def as_text(parameters: Mapping[str, object]) -> str:
    """Return parameters as text that compares and hashes; equal parameters give equal texts."""
    return json.dumps(parameters, sort_keys=True, default=lambda array: np.asarray(array).tolist())


def run(job: Job[R], rounds: Rounds) -> R:
    """Run a job to its result, one round after the other.

    No job sees a sum that no honest clients can have made, from whatever source: such a round counts as one without a
    sum.

    Raises:
        NoAggregate: a round ended without a sum, and the job cannot continue without it. An `ImplausibleSum` if no
            honest clients can have made it.
    """
    try:
        request = next(job)
        while True:
            try:
                aggregate = checked(rounds.run_round(request))
            except NoAggregate as ended:
                request = job.throw(ended)
            else:
                request = job.send(aggregate)
    except StopIteration as end:
        result: R = end.value
        return result
