"""The record of a running actor's state: what `dca status` shows, `--json` writes and `--check` judges.

An actor's process makes it (`dca_proto.runtime.status`). It contains nothing that the actor does not know anyway, and
no secret. Times are UTC, in ISO 8601.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from dca_proto.results.figure import Amount, Count, Real, about, figure

STATUS = "status"
"""The table that `dca status` prints."""


class RoundStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An open round, and whom it waits for."""

    round_id: Annotated[str, about("In hexadecimal.")]
    statistic: Annotated[str, about("What it asks for; empty if this actor does not know it.")]
    phase: Annotated[str, about("As in the actor's table of phases, or `unannounced`.")]
    until: Annotated[str | None, about("When it ends at the latest; null before its announcement.")]
    arrived: Annotated[Count | None, about("How many answers have arrived here.")]
    expected: Annotated[Count | None, about("How many are expected.")]
    waits_for: Annotated[list[str], about("Names and short ids of those whose message is missing; the first hundred.")]
    more: Annotated[Count, about("How many others are missing.")] = 0


class LastRound(msgspec.Struct, frozen=True, kw_only=True):
    """The last round that ended at the actor, or that a client answered."""

    at: Annotated[str, about("When.")]
    round_id: Annotated[str, about("In hexadecimal.")]
    what: Annotated[str, about("What happened, as a sentence.")]
    ok: Annotated[bool, about("Whether it went well: a result, a released sum, a contribution.")]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a running actor."""

    role: Annotated[str, about("client, compute or trainer.")]
    name: Annotated[str, about("In the federation file; a client's is that of its key file.")]
    id: Annotated[str, figure("id", "In hexadecimal.", table=STATUS)]
    federation: Annotated[str, figure("federation", "Its name.", table=STATUS)]
    file: Annotated[Count, figure("federation file", "Its number.", table=STATUS)]
    at: Annotated[str, about("When this record was made.")]
    running_s: Annotated[Amount, figure("running for", "Since the process opened the store.", unit="s", table=STATUS)]
    broker: Annotated[str, figure("broker", "Its URL.", table=STATUS)]
    connected: Annotated[bool, about("Whether there is a connection.")]
    since_s: Annotated[Amount, about("For how long the connection has lasted, or has been away.", unit="s")]
    away_because: Annotated[str, figure("no connection", "The reason; empty with a connection.", table=STATUS)] = ""
    epoch: Annotated[Count, about("By this actor's clock.")]
    sessions: Annotated[
        Count | None, figure("sessions", "Clients with a session at this Compute node.", table=STATUS)
    ] = None
    rounds: Annotated[list[RoundStatus], about("Open rounds.")] = []
    last: Annotated[LastRound | None, about("The last round that ended, since the start of the process.")] = None
    epsilon_left: Annotated[Amount | None, figure("epsilon left", "For one more round, at `delta`.", table=STATUS)] = (
        None
    )
    epsilon_allowed: Annotated[
        Amount | None, figure("epsilon allowed", "In `period_days`, at `delta`.", table=STATUS)
    ] = None
    delta: Annotated[Amount | None, figure("delta", "Of the limit.", table=STATUS)] = None
    period_days: Annotated[Amount | None, about("Of the limit.")] = None
    dropped: Annotated[dict[str, Count], about("Messages dropped since the start, by code.")] = {}
    store_bytes: Annotated[Count, figure("store", "Its files.", unit="bytes", table=STATUS)]
    log_bytes: Annotated[
        Count | None, figure("log", "Of the file that stderr is; null if it is none.", unit="bytes", table=STATUS)
    ] = None
    messages_sent: Annotated[Count, figure("messages sent", "Since the start.", table=STATUS)] = 0
    messages_received: Annotated[Count, figure("messages received", "Since the start.", table=STATUS)] = 0
    clock_offset_s: Annotated[
        dict[str, Real], about("At a trainer: by how much each node's clock was ahead at its last answer, by name.")
    ] = {}
    certificates: Annotated[dict[str, str], about("When each certificate ends that this actor depends on.")] = {}
    data_read: Annotated[str | None, figure("data read", "When the source was last read.", table=STATUS)] = None
    data_error: Annotated[str, figure("data failed", "Why the last read failed.", table=STATUS)] = ""
    warnings: Annotated[list[str], about("What needs attention; `--check` fails if there is one.")] = []

    @property
    def is_well(self) -> bool:
        """True if nothing needs attention."""
        return not self.warnings
