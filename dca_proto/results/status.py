"""The record of a running actor's state: what `dca status` shows, `--json` writes and `--check` judges.

An actor's process makes it (`dca_proto.runtime.status`). It contains nothing that the actor does not know anyway, and
no secret. Times are UTC, in ISO 8601.

A figure with a `Metric` is also what Prometheus receives. No such figure depends on data, and none names a client: see
PRIVACY.md. The dashboard shows the same record.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec

from dca_proto.results.figure import Amount, Count, Metric, Real, about, figure
from dca_proto.results.lost import Lost

STATUS = "status"
"""The table that `dca status` prints."""
PHASE_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""The upper ends of the bins of phases, in seconds; one more bin has the longer ones."""


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took, each time that it happened."""

    counts: Annotated[list[Count], about("By the bins of `PHASE_S`, and above the last one.")] = []
    total_s: Annotated[Amount, about("All together.", unit="s")] = 0.0


class StatedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a trainer's round: one of the numbers in it."""

    label: Annotated[str, about("Its name.")]
    value: Annotated[Real, about("The estimate from the noisy sum, in the units of the data.")]
    noise_std: Annotated[Amount, about("Standard deviation of the privacy noise in it.")]


class StatedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's round that has a result."""

    at: Annotated[str, about("When.")]
    round_id: Annotated[str, about("In hexadecimal.")]
    statistic: Annotated[str, about("What was asked for.")]
    contributors: Annotated[Count, about("Contributions in the sum, or rows of data nodes, or reports.")]
    outcomes: Annotated[list[StatedValue], about("The first numbers of the result, at most four.")] = []
    more: Annotated[Count, about("How many other numbers the result has.")] = 0


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
    absent: Annotated[
        list[str],
        about("Names and short ids of clients that neither contributed nor declined; the first hundred. A Compute node "
              "names those that it holds, a trainer those that it invited."),
    ] = []  # fmt: skip
    absent_more: Annotated[Count, about("How many others did neither.")] = 0
    unproven: Annotated[
        list[str], about("Names and short ids of clients whose proofs failed, in a verified sum; the first hundred.")
    ] = []
    unproven_more: Annotated[Count, about("How many other proofs failed.")] = 0


class ScheduledJob(msgspec.Struct, frozen=True, kw_only=True):
    """A standing job of a trainer that runs a schedule."""

    title: Annotated[str, about("The name of its series.")]
    next: Annotated[str | None, about("The time of its next slot; null after the last one.")]
    done: Annotated[Count, about("Slots with a result.")]
    gaps: Annotated[Count, about("Slots that ended without one.")]
    of: Annotated[Count, about("All slots of the period.")]
    lasts_to: Annotated[str, about("The last slot for which both the plan and the trainer's account have room.")]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a running actor."""

    role: Annotated[str, about("client, compute, trainer or registrar.")]
    name: Annotated[
        str, about("A member's in the federation file; a client's in its own file, or that of its key file.")
    ]
    id: Annotated[str, figure("id", "In hexadecimal.", table=STATUS)]
    federation: Annotated[str, figure("federation", "Its name.", table=STATUS)]
    file: Annotated[Count, figure("federation file", "Its number.", table=STATUS)]
    at: Annotated[str, about("When this record was made.")]
    running_s: Annotated[
        Amount,
        figure("running for", "Since the process opened the store.", unit="s", table=STATUS, metric=Metric("gauge")),
    ]
    broker: Annotated[str, figure("broker", "Its URL.", table=STATUS)]
    connected: Annotated[bool, figure("connected", "Whether there is a connection.", metric=Metric("gauge"))]
    since_s: Annotated[Amount, about("For how long the connection has lasted, or has been away.", unit="s")]
    away_because: Annotated[str, figure("no connection", "The reason; empty with a connection.", table=STATUS)] = ""
    asleep_s: Annotated[
        Amount | None, about("For how long a client sleeps that does so by plan (`sleep_max_s`); null if it runs.")
    ] = None
    overslept: Annotated[bool, about("Whether it has slept for longer than `sleep_max_s`.")] = False
    connections_lost: Annotated[
        Count, figure("connections lost", "Since the start.", table=STATUS, metric=Metric("counter"))
    ] = 0
    epoch: Annotated[Count, about("By this actor's clock.")]
    sessions: Annotated[
        Count | None,
        figure("sessions", "Clients with a session at this Compute node.", table=STATUS, metric=Metric("gauge")),
    ] = None
    rounds: Annotated[list[RoundStatus], about("Open rounds.")] = []
    lost: Annotated[
        list[Lost], about("At a trainer: Compute nodes that do not answer now, or owe a cancelled round their abort.")
    ] = []
    last: Annotated[LastRound | None, about("The last round that ended, since the start of the process.")] = None
    ended: Annotated[
        dict[str, dict[str, Count]],
        figure("ended rounds", "Since the start, by how each ended and why.",
               metric=Metric("counter", ("end", "reason"), "rounds")),
    ] = {}  # fmt: skip
    contributions: Annotated[
        Count,
        figure("contributions", "Since the start: those that a client sent, that a node keeps for others, or that are "
               "in a trainer's results.", table=STATUS, metric=Metric("counter")),
    ] = 0  # fmt: skip
    unproven_clients: Annotated[
        Count,
        figure("unproven", "Clients of verified sums whose proofs failed, since the start: at a Compute node, in sums "
               "that it released or aborted as too few; at a trainer, in rounds that ended.", table=STATUS,
               metric=Metric("counter")),
    ] = 0  # fmt: skip
    declines: Annotated[
        dict[str, Count],
        figure("declined", "Answers of clients that refused, since the start, by reason.",
               metric=Metric("counter", ("reason",))),
    ] = {}  # fmt: skip
    phases: Annotated[
        dict[str, Durations],
        figure("phases", "How long the phases of rounds took, since the start.", unit="s",
               metric=Metric("histogram", ("phase",), "phase")),
    ] = {}  # fmt: skip
    results: Annotated[
        list[StatedResult], about("A trainer's latest results, at most fifty, of earlier processes, too.")
    ] = []
    epsilon_left: Annotated[
        Amount | None, figure("epsilon left", "For one more round, at `delta`.", table=STATUS, metric=Metric("gauge"))
    ] = None
    epsilon_allowed: Annotated[
        Amount | None, figure("epsilon allowed", "In `period_days`, at `delta`.", table=STATUS, metric=Metric("gauge"))
    ] = None
    delta: Annotated[Amount | None, figure("delta", "Of the limit.", table=STATUS)] = None
    period_days: Annotated[Amount | None, about("Of the limit.")] = None
    dropped: Annotated[
        dict[str, Count],
        figure("dropped", "Messages dropped since the start, by code.",
               metric=Metric("counter", ("code",), "dropped_messages")),
    ] = {}  # fmt: skip
    data_dropped: Annotated[
        dict[str, Count], about("Messages of a client's data source that were dropped since the start, by reason.")
    ] = {}
    inbox: Annotated[
        Count | None,
        figure("inbox", "Messages that wait for the actor.", table=STATUS,
               metric=Metric("gauge", name="inbox_messages")),
    ] = 0  # fmt: skip
    outbox: Annotated[
        Count | None,
        figure("outbox", "Messages that the broker has not acknowledged.", table=STATUS,
               metric=Metric("gauge", name="outbox_messages")),
    ] = 0  # fmt: skip
    store_bytes: Annotated[
        Count | None, figure("store", "Its files.", unit="bytes", table=STATUS, metric=Metric("gauge"))
    ]
    log_bytes: Annotated[
        Count | None,
        figure("log", "Of the file that stderr is; null if it is none.", unit="bytes", table=STATUS,
               metric=Metric("gauge")),
    ] = None  # fmt: skip
    messages_sent: Annotated[
        Count | None, figure("messages sent", "Since the start.", table=STATUS, metric=Metric("counter"))
    ] = 0
    messages_received: Annotated[
        Count | None, figure("messages received", "Since the start.", table=STATUS, metric=Metric("counter"))
    ] = 0
    bytes_sent: Annotated[
        Count | None, figure("bytes sent", "In these messages.", unit="bytes", table=STATUS,
                             metric=Metric("counter", name="sent"))
    ] = 0  # fmt: skip
    bytes_received: Annotated[
        Count | None, figure("bytes received", "In these messages.", unit="bytes", table=STATUS,
                             metric=Metric("counter", name="received"))
    ] = 0  # fmt: skip
    enrolled: Annotated[
        Count | None, figure("enrolled", "Clients that this registrar has ever enrolled.", table=STATUS)
    ] = None
    enrolled_most: Annotated[
        Count | None, figure("at most", "Clients that it may enrol, by the federation file.", table=STATUS)
    ] = None
    invited: Annotated[
        Count | None, figure("open invitations", "Codes that nobody has used and that are still valid.", table=STATUS)
    ] = None
    issued: Annotated[
        Count | None, figure("issued today", "Certificates that it has signed in the last 24 hours.", table=STATUS)
    ] = None
    clock_offset_s: Annotated[
        dict[str, Real],
        figure("clock", "At a trainer: by how much each node's clock was ahead at its last answer, by name.", unit="s",
               metric=Metric("gauge", ("node",))),
    ] = {}  # fmt: skip
    certificates: Annotated[
        dict[str, str],
        figure("certificate ends", "When each certificate ends that this actor depends on.",
               metric=Metric("gauge", ("certificate",), "certificate_end_timestamp_seconds")),
    ] = {}  # fmt: skip
    data_source: Annotated[
        str | None, figure("data", "What a client reads; null if a program passes them.", table=STATUS)
    ] = None
    data_read: Annotated[
        str | None,
        figure("data read", "When the source was last read.", table=STATUS,
               metric=Metric("gauge", name="data_read_timestamp_seconds")),
    ] = None  # fmt: skip
    data_error: Annotated[str, figure("data failed", "Why the last read failed.", table=STATUS)] = ""
    schedule: Annotated[list[ScheduledJob], about("Standing jobs, at a trainer that runs a schedule.")] = []
    warnings: Annotated[list[str], about("What needs attention; `--check` fails if there is one.")] = []

    @property
    def is_well(self) -> bool:
        """True if nothing needs attention."""
        return not self.warnings

    @property
    def open_rounds(
        self,
    ) -> Annotated[
        dict[str, int],
        figure("open rounds", "By phase; those that no status lists are left out.", metric=Metric("gauge", ("phase",))),
    ]:
        """The number of open rounds in each phase."""
        return dict(Counter(one.phase for one in self.rounds))

    @property
    def warning_count(
        self,
    ) -> Annotated[
        int,
        figure(
            "warnings", "Things that need attention, as `dca status` lists.", metric=Metric("gauge", name="warnings")
        ),
    ]:
        """The number of warnings."""
        return len(self.warnings)


class Statuses(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dca status --json`, and what the dashboard shows."""

    actors: Annotated[list[Status], about("Those that run.")]
    stopped: Annotated[list[str], about("The files whose actor does not run.")] = []
    failed: Annotated[dict[str, str], about("Why no other actor's status is known, by its file.")] = {}
    resting: Annotated[
        list[str], about("The files of trainers that are not at work: a trainer ends with its job. No alarm.")
    ] = []

    @property
    def down(self) -> list[str]:
        """A line for each file whose actor does not run and should, or cannot be asked."""
        stopped = [f"{path}: its actor does not run" for path in self.stopped]
        return [*stopped, *(f"{path}: {why}" for path, why in self.failed.items())]

    @property
    def at_rest(self) -> list[str]:
        """A line for each trainer that is not at work."""
        return [f"{path}: not at work; a trainer ends with its job" for path in self.resting]

    @property
    def is_well(self) -> bool:
        """True if all run and nothing needs attention."""
        return not self.stopped and not self.failed and all(one.is_well for one in self.actors)
