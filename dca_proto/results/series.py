"""The records of standing jobs' results: what `dca results` writes and the dashboard shows."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dca_proto.results.figure import Amount, Count, Real, about

BEGUN, DONE, FAILED, MISSED = "begun", "done", "failed", "missed"


class SeriesEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """One estimate of a slot."""

    name: Annotated[str, about("What is estimated.")]
    unit: Annotated[str, about("Of the figures.")] = ""
    estimate: Annotated[Real | None, about("Its value.")] = None
    sd: Annotated[Real | None, about("Its standard deviation, with the noise.")] = None
    interval_95: Annotated[list[Real] | None, about("Lower and upper end.")] = None


class SeriesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a slot.

    `rounds` has the records of its rounds with the noisy sums, from which the result can be computed again.
    """

    estimates: Annotated[list[SeriesEstimate], about("In the job's order.")]
    contributors: Annotated[Count | None, about("The most contributions in one of its sums.")] = None
    epsilon: Annotated[Amount | None, about("What the slot cost each participant.")] = None
    delta: Annotated[Amount | None, about("As epsilon.")] = None
    warnings: Annotated[list[str], about("About the result.")] = []
    rounds: Annotated[list[Any], about("The records of its rounds, as `dca learn --json` writes them.")] = []


class SeriesSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of a series: its result, or why it has none."""

    slot: Annotated[str, about("Its name: a date, or a date with the hour in UTC.")]
    at_ms: Annotated[int, about("When it was due, in Unix milliseconds.")]
    state: Annotated[str, about("begun, done, failed (it was tried) or missed (it was not tried).")]
    ended_ms: Annotated[int | None, about("When it ended; null while it runs.")] = None
    reason: Annotated[str, about("Why it has no result.")] = ""
    charged: Annotated[bool, about("Whether a slot without a result has kept its charge.")] = False
    result: Annotated[SeriesResult | None, about("Null for a gap.")] = None
