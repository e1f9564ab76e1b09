"""The measurements of one round, and the figures of a cell, computed from its rounds.

Figures of a cell are medians over its rounds; the wall time also has the smallest and the largest. Setting up sessions
is not part of a round. The first round, in which each pair agrees on its key, is timed separately: its extra cost at
clients and Compute nodes is `agreement_s`, a small difference of two times, and as uncertain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from dca_proto.results.figure import Amount, Count, about
from emulator.scaling.cell import EMULATED, Cell

ROLES = ("client", "compute", "trainer")
PHASES = ("collect", "agree")
"""From the announcement to the close, and from the close to the result."""
COUNTED = ("messages", "bytes", "received", "received_bytes")
_BUSY = 1.2


class RoundMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of one round, from the trainer's command to its result or abort.

    Attributes:
        wall_s: wall seconds of the round. phases: of each of `PHASES`.
        core_s: by role, and of the ``emulator`` itself or of the ``broker``.
        messages, bytes: sent by each role. received, received_bytes: received by each role; None if not counted.
        waiting_s: seconds that processes waited for each other, summed; None if not measured.
        completed: whether there is a result. contributors: |A|.
        noise_sd: of the noise in each coordinate of the sum, in its own units. noise_sd_ideal: of the noise that one
            trusted curator would add for the same ε and δ. Both are None without a result.
    """

    wall_s: float
    phases: dict[str, float]
    core_s: dict[str, float]
    messages: dict[str, int]
    bytes: dict[str, int]
    completed: bool
    received: dict[str, int] | None = None
    received_bytes: dict[str, int] | None = None
    waiting_s: float | None = None
    contributors: int = 0
    noise_sd: float | None = None
    noise_sd_ideal: float | None = None

    @property
    def pairs_s(self) -> float:
        """Core seconds of the roles that agree on keys."""
        return self.core_s["client"] + self.core_s["compute"]


class ActorMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one actor of each role: its peak in a round, and a Compute node's after the round's announced end."""

    client: int
    compute: int
    trainer: int
    compute_after: int


class CellMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of a cell.

    Attributes:
        sessions_s: core seconds until every Compute node has a session of every client; sessions_wall_s: wall seconds.
        first: the round in which pairs agree on keys. rounds: the measured rounds, at least one.
        memory: of the actors; None if not measured.
        peak_rss_mb: MiB, the sum over the processes; live, of the largest process.
    """

    sessions_s: float
    sessions_wall_s: float
    first: RoundMeasurement
    rounds: list[RoundMeasurement]
    memory: ActorMemory | None
    peak_rss_mb: float


class Figures(Cell, frozen=True, kw_only=True):
    """A cell as measured: medians over its rounds, as `--json` writes them. A figure that was not measured is None."""

    backend: Annotated[str, about("How it was measured.")] = EMULATED
    tolerate: Annotated[Count, about("T.")] = 0
    drop_rate: Annotated[Amount, about("The probability that a client drops out of a round.")] = 0.0
    repeats: Annotated[Count, about("Rounds measured.")] = 1
    wall_s: Annotated[Amount, about("Of a round without key agreement.", unit="s")]
    wall_s_spread: Annotated[
        tuple[Amount, Amount] | None, about("Seconds of the fastest and of the slowest round.")
    ] = None
    first_round_wall_s: Annotated[Amount | None, about("Of the round in which pairs agree on keys.", unit="s")] = None
    core_s: Annotated[Amount, about("Core time of a round.", unit="s")]
    phases: Annotated[dict[str, Amount], about("Seconds of each phase.")] = msgspec.field(default_factory=dict)
    waiting_s: Annotated[Amount | None, about("Of processes for each other, summed.", unit="s")] = None
    core_s_by_role: Annotated[dict[str, Amount], about("Core seconds of each role.")] = msgspec.field(
        default_factory=dict
    )
    us_per_contribution: Annotated[
        dict[str, Amount] | None, about("Core time for each contribution in the sum, by role, in µs.")
    ] = None
    floor_us: Annotated[dict[str, Amount], about("Of the bare cryptography of a contribution, by role, in µs.")] = (
        msgspec.field(default_factory=dict)
    )
    messages: Annotated[dict[str, Amount] | None, about("Sent by each role.")] = None
    bytes: Annotated[dict[str, Amount] | None, about("Sent by each role.")] = None
    received: Annotated[dict[str, Amount] | None, about("Messages received by each role.")] = None
    received_bytes: Annotated[dict[str, Amount] | None, about("Bytes received by each role.")] = None
    sessions_s: Annotated[
        Amount, about("Core time until every Compute node has a session of every client.", unit="s")
    ] = 0.0
    sessions_wall_s: Annotated[Amount, about("Wall time until then.", unit="s")] = 0.0
    agreement_s: Annotated[Amount, about("Core time for the agreement on keys.", unit="s")] = 0.0
    peak_rss_mb: Annotated[Amount, about("The sum over the processes; live, of the largest one.", unit="MiB")] = 0.0
    compute_memory_bytes: Annotated[
        Count | None, about("Of a Compute node when it freezes its list.", unit="bytes")
    ] = None
    compute_memory_least_bytes: Annotated[
        Count | None, about("The contributions among it, which it must keep until the set is agreed.", unit="bytes")
    ] = None
    compute_memory_after_bytes: Annotated[Count | None, about("Of a Compute node after the round.", unit="bytes")] = (
        None
    )
    memory_bytes: Annotated[dict[str, Amount] | None, about("Of one actor of each role.")] = None
    success_rate: Annotated[Amount, about("Part of the rounds that have a result.")] = 0.0
    success_expected: Annotated[Amount, about("Its expectation.")] = 0.0
    contributors: Annotated[Count | None, about("In the sum.")] = None
    noise_sd: Annotated[Amount | None, about("Of the noise in each coordinate of the sum, in its units.")] = None
    noise_sd_ideal: Annotated[
        Amount | None, about("Of the noise that one trusted curator would add for the same ε and δ.")
    ] = None
    paper_s: Annotated[Amount | None, about("Of that size in the paper's Table 1.", unit="s")] = None
    ratio: Annotated[Amount | None, about("Ours divided by it.")] = None

    @property
    def spread(self) -> tuple[float, float]:
        """Wall seconds of the fastest and the slowest round."""
        return self.wall_s_spread or (self.wall_s, self.wall_s)

    @property
    def cell(self) -> Cell:
        """The cell that was measured."""
        return Cell(**{name: getattr(self, name) for name in Cell.__struct_fields__})


def cell_figures(cell: Cell, measured: CellMeasurement, floor_us: Mapping[str, float]) -> Figures:
    """Return the figures of a cell.

    Args:
        floor_us: microseconds of the bare cryptography of a contribution, by role.
    """
    rounds, wall, paper = measured.rounds, [item.wall_s for item in measured.rounds], cell.table_1_s
    done = [item for item in rounds if item.completed]
    per_contribution = [
        {role: 1e6 * s / item.contributors for role, s in item.core_s.items()} for item in rounds if item.contributors
    ]
    by_role: dict[str, Any] = {name: _by_role([getattr(item, name) for item in rounds], whole=True) for name in COUNTED}
    return Figures(
        **msgspec.structs.asdict(cell),
        wall_s=statistics.median(wall),
        wall_s_spread=(min(wall), max(wall)),
        first_round_wall_s=measured.first.wall_s,
        core_s=statistics.median(math.fsum(item.core_s.values()) for item in rounds),
        core_s_by_role=_by_role([item.core_s for item in rounds]) or {},
        us_per_contribution=_by_role(per_contribution),
        phases={name: statistics.median(item.phases.get(name, 0.0) for item in rounds) for name in PHASES},
        waiting_s=_median([item.waiting_s for item in rounds]),
        floor_us=dict(floor_us),
        **by_role,
        sessions_s=measured.sessions_s,
        sessions_wall_s=measured.sessions_wall_s,
        agreement_s=max(0.0, measured.first.pairs_s - statistics.median(item.pairs_s for item in rounds)),
        peak_rss_mb=measured.peak_rss_mb,
        **_memory(cell, measured.memory),
        success_rate=len(done) / len(rounds),
        success_expected=cell.expected_success,
        contributors=round(statistics.median(item.contributors for item in done)) if done else None,
        noise_sd=_median([item.noise_sd for item in done]),
        noise_sd_ideal=_median([item.noise_sd_ideal for item in done]),
        paper_s=paper,
        ratio=None if paper is None else statistics.median(wall) / paper,
    )


def warnings_of(cells: Sequence[Figures], *, slower: bool = False) -> Iterator[str]:
    """Yield warnings: if the machine was busy; with `slower`, also for each cell that is slower than the paper's.

    In virtual time, a process waits for the other processes and for a core, and for nothing else.
    """
    waits = [
        (cell.processes * cell.wall_s - (cell.waiting_s or 0.0)) / cell.core_s
        for cell in cells
        if cell.backend == EMULATED
    ]
    if waits and max(waits) > _BUSY:
        awake = f"processes were awake for up to {max(waits):.1f} times their core time"
        yield f"busy machine: {awake}; other work, or more processes than cores, took the cores: measure again"
    for cell in cells:
        if slower and (cell.ratio or 0) > 1:
            wall, core = (", ".join(f"{name} {seconds:.3g}" for name, seconds in parts.items())
                          for parts in (cell.phases, cell.core_s_by_role))  # fmt: skip
            yield f"slower: {cell} is slower than the paper: wall seconds: {wall}; core seconds: {core}"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _by_role(rounds: Sequence[Mapping[str, float] | None], *, whole: bool = False) -> dict[str, float] | None:
    """Return medians by role, rounded if `whole`; None if not measured."""
    known = [by_role for by_role in rounds if by_role is not None]
    medians = {role: statistics.median(by_role[role] for by_role in known) for role in known[0]} if known else None
    return medians if medians is None or not whole else {role: round(median) for role, median in medians.items()}


def _memory(cell: Cell, memory: ActorMemory | None) -> dict[str, Any]:
    if memory is None:
        return {}
    return {
        "compute_memory_bytes": memory.compute,
        "compute_memory_least_bytes": None if cell.verified else round(cell.clients * cell.kept_bytes),
        "compute_memory_after_bytes": memory.compute_after,
        "memory_bytes": {"client": memory.client, "compute": memory.compute, "trainer": memory.trainer},
    }
