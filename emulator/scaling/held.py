"""The measurements of one round, and the summary of a cell's rounds.

Figures of a cell are medians over its rounds, with the smallest and the largest beside the wall time. Sessions are set
up before: that is no round. Nor is the first round, in which each pair agrees on its key, among those that are timed:
what it costs more at clients and Compute nodes is `agreement_s`, a difference of two times, and as uncertain as that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from emulator.results import Amount, Count
from emulator.scaling.cell import EMULATED, Cell

ROLES = ("client", "compute", "trainer")
PHASES = ("collect", "agree")
"""From the announcement to the close, and from the close to the result."""
COUNTED = ("messages", "bytes", "received", "received_bytes")
_BUSY = 1.2


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One round, from the trainer's command to its result or abort.

    Attributes:
        wall_s: of all of it; phases: of each of `PHASES`.
        core_s: by role, and of the ``emulator`` itself or of the ``broker``.
        messages, bytes: sent by each role. received, received_bytes: that reached it; None where nobody counts them.
        waiting_s: seconds that processes waited for each other, summed; None where nobody counts them.
        completed: whether there is a result. contributors: |S|.
        noise_sd: of the noise in each coordinate of the sum, in its own units; noise_sd_ideal: what one trusted curator
            would add for the same ε and δ. Both None without a result.
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
        """Core seconds of those who agree on keys."""
        return self.core_s["client"] + self.core_s["compute"]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one actor of each role holds: the most, and a Compute node's after the round's announced end."""

    client: int
    compute: int
    trainer: int
    compute_after: int


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen of a cell.

    Attributes:
        sessions_s: core seconds until every Compute node has a session of every client; sessions_wall_s: wall seconds.
        first: the round in which pairs agree on keys. rounds: the measured ones, of which there is at least one.
        memory: what actors hold; None where nobody weighed them. peak_rss_mb: of memory, in MiB.
    """

    sessions_s: float
    sessions_wall_s: float
    first: Held
    rounds: list[Held]
    memory: Memory | None
    peak_rss_mb: float


class Figures(Cell, frozen=True, kw_only=True):
    """A cell as measured: medians over its rounds, as `--json` writes them; what nobody counted is None.

    Attributes:
        wall_s, wall_s_spread: of a round without key agreement, and of the fastest and the slowest.
        first_round_wall_s: of the round in which pairs agree on keys; agreement_s: core seconds that takes more.
        core_s, core_s_by_role, us_per_contribution: processor time, of each role, and for a contribution in the sum.
        floor_us: of the bare cryptography of a contribution. waiting_s: that processes waited for each other, summed.
        messages, bytes, received, received_bytes: by role. phases: seconds of each.
        sessions_s, sessions_wall_s: core and wall seconds until every Compute node has a session of every client.
        peak_rss_mb, memory_bytes: of the largest process, and of the largest actor of each role.
        compute_memory_*: what one Compute node holds as it freezes its list, the contributions among it, which it must
            keep until the set is agreed (least), and what it holds after the round.
        success_rate, success_expected: rounds with a result, of all. noise_sd, noise_sd_ideal: as of `Held`.
        paper_s, ratio: Table 1's seconds of that size, and ours over these.
    """

    backend: str = EMULATED
    tolerated: Count = 0
    drop_rate: Amount = 0.0
    repeats: Count = 1
    wall_s: Amount
    wall_s_spread: tuple[Amount, Amount] | None = None
    first_round_wall_s: Amount | None = None
    core_s: Amount
    phases: dict[str, Amount] = msgspec.field(default_factory=dict)
    waiting_s: Amount | None = None
    core_s_by_role: dict[str, Amount] = msgspec.field(default_factory=dict)
    us_per_contribution: dict[str, Amount] | None = None
    floor_us: dict[str, Amount] = msgspec.field(default_factory=dict)
    messages: dict[str, Amount] | None = None
    bytes: dict[str, Amount] | None = None
    received: dict[str, Amount] | None = None
    received_bytes: dict[str, Amount] | None = None
    sessions_s: Amount = 0.0
    sessions_wall_s: Amount = 0.0
    agreement_s: Amount = 0.0
    peak_rss_mb: Amount = 0.0
    compute_memory_bytes: Count | None = None
    compute_memory_least_bytes: Count | None = None
    compute_memory_after_bytes: Count | None = None
    memory_bytes: dict[str, Amount] | None = None
    success_rate: Amount = 0.0
    success_expected: Amount = 0.0
    contributors: Count | None = None
    noise_sd: Amount | None = None
    noise_sd_ideal: Amount | None = None
    paper_s: Amount | None = None
    ratio: Amount | None = None

    @property
    def spread(self) -> tuple[float, float]:
        """Wall seconds of the fastest and the slowest round."""
        return self.wall_s_spread or (self.wall_s, self.wall_s)

    @property
    def cell(self) -> Cell:
        """What was measured."""
        return Cell(**{name: getattr(self, name) for name in Cell.__struct_fields__})


def cell_figures(cell: Cell, seen: Observed, floor_us: Mapping[str, float]) -> Figures:
    """What the rounds of a cell come to.

    Args:
        floor_us: microseconds of the bare cryptography of a contribution, by role.
    """
    rounds, wall, paper = seen.rounds, [one.wall_s for one in seen.rounds], cell.table_1_s
    done = [one for one in rounds if one.completed]
    each = [{role: 1e6 * s / one.contributors for role, s in one.core_s.items()} for one in rounds if one.contributors]
    counted: dict[str, Any] = {name: _by_role([getattr(one, name) for one in rounds], whole=True) for name in COUNTED}
    return Figures(
        **msgspec.structs.asdict(cell),
        wall_s=statistics.median(wall),
        wall_s_spread=(min(wall), max(wall)),
        first_round_wall_s=seen.first.wall_s,
        core_s=statistics.median(math.fsum(one.core_s.values()) for one in rounds),
        core_s_by_role=_by_role([one.core_s for one in rounds]) or {},
        us_per_contribution=_by_role(each),
        phases={name: statistics.median(one.phases.get(name, 0.0) for one in rounds) for name in PHASES},
        waiting_s=_median([one.waiting_s for one in rounds]),
        floor_us=dict(floor_us),
        **counted,
        sessions_s=seen.sessions_s,
        sessions_wall_s=seen.sessions_wall_s,
        agreement_s=max(0.0, seen.first.pairs_s - statistics.median(one.pairs_s for one in rounds)),
        peak_rss_mb=seen.peak_rss_mb,
        **_memory(cell, seen.memory),
        success_rate=len(done) / len(rounds),
        success_expected=cell.expected_success,
        contributors=round(statistics.median(one.contributors for one in done)) if done else None,
        noise_sd=_median([one.noise_sd for one in done]),
        noise_sd_ideal=_median([one.noise_sd_ideal for one in done]),
        paper_s=paper,
        ratio=None if paper is None else statistics.median(wall) / paper,
    )


def doubts(cells: Sequence[Figures], *, slower: bool = False) -> Iterator[str]:
    """What speaks against wall times: a busy machine; if `slower`, also where cells slower than the paper's spend.

    Processes in virtual time wait for each other, and else for nothing but a core.
    """
    waits = [
        (one.processes * one.wall_s - (one.waiting_s or 0.0)) / one.core_s for one in cells if one.backend == EMULATED
    ]
    if waits and max(waits) > _BUSY:
        awake = f"processes were awake for up to {max(waits):.1f} times their core time"
        yield f"busy: {awake}: other work, or more processes than cores, took the cores; measure anew"
    for one in cells:
        if slower and (one.ratio or 0) > 1:
            wall, core = (", ".join(f"{name} {seconds:.3g}" for name, seconds in parts.items())
                          for parts in (one.phases, one.core_s_by_role))  # fmt: skip
            yield f"slower: {one} than the paper: wall seconds: {wall}; core seconds: {core}"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _by_role(rounds: Sequence[Mapping[str, float] | None], *, whole: bool = False) -> dict[str, float] | None:
    """Medians, as whole numbers if they are to be; None where nobody counted."""
    known = [one for one in rounds if one is not None]
    medians = {role: statistics.median(one[role] for one in known) for role in known[0]} if known else None
    return medians if medians is None or not whole else {role: round(one) for role, one in medians.items()}


def _memory(cell: Cell, memory: Memory | None) -> dict[str, Any]:
    if memory is None:
        return {}
    return {
        "compute_memory_bytes": memory.compute,
        "compute_memory_least_bytes": round(cell.clients * cell.kept_bytes),
        "compute_memory_after_bytes": memory.compute_after,
        "memory_bytes": {"client": memory.client, "compute": memory.compute, "trainer": memory.trainer},
    }
