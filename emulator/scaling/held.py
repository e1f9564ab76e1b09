"""What was seen of one round, and what the rounds of a cell come to.

Figures of a cell are medians over its rounds, with the smallest and the largest beside the wall time. Sessions are set
up before: that is no round. Nor is the first round, in which each pair agrees on its key, among those that are timed:
what it costs more at clients and Compute nodes is `agreement_s`, a difference of two times, and as uncertain as that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from emulator.results import Amount, Count
from emulator.scaling.cell import EMULATED, MOSQUITTO, Cell, kept_bytes
from emulator.scaling.paper import paper_s

PHASES = ("collect", "agree")
"""From the announcement to the close, and from the close to the result."""


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


class SetUp(msgspec.Struct, frozen=True, kw_only=True):
    """What comes before the rounds that are timed.

    Attributes:
        sessions_s: core seconds until every Compute node has a session of every client; sessions_wall_s: wall seconds.
        first: the round in which pairs agree on keys.
    """

    sessions_s: float
    sessions_wall_s: float
    first: Held


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one actor of each role holds: the most, and a Compute node's after the round's announced end."""

    client: int
    compute: int
    trainer: int
    compute_after: int


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
        compute_memory_*: what one Compute node holds as it freezes its list, must keep, and holds after the round.
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


def cell_figures(
    cell: Cell,
    set_up: SetUp,
    rounds: Sequence[Held],
    memory: Memory | None,
    peak_rss_mb: float,
    floor_us: Mapping[str, float],
) -> Figures:
    """What the rounds of a cell come to.

    Args:
        floor_us: microseconds of the bare cryptography of a contribution, by role.
    """
    paper, wall = paper_s(cell), [one.wall_s for one in rounds]
    return Figures(
        **msgspec.structs.asdict(cell),
        wall_s=statistics.median(wall),
        wall_s_spread=(min(wall), max(wall)),
        core_s=statistics.median(math.fsum(one.core_s.values()) for one in rounds),
        phases={name: statistics.median(one.phases.get(name, 0.0) for one in rounds) for name in PHASES},
        waiting_s=_median([one.waiting_s for one in rounds]),
        core_s_by_role=_by_role([one.core_s for one in rounds]),
        us_per_contribution=_us_per_contribution(rounds),
        floor_us=dict(floor_us),
        messages=_counts([one.messages for one in rounds]),
        bytes=_counts([one.bytes for one in rounds]),
        received=_counts([one.received for one in rounds]),
        received_bytes=_counts([one.received_bytes for one in rounds]),
        sessions_s=set_up.sessions_s,
        sessions_wall_s=set_up.sessions_wall_s,
        agreement_s=_agreement_s(set_up.first, rounds),
        first_round_wall_s=set_up.first.wall_s,
        peak_rss_mb=peak_rss_mb,
        **_memory(cell, memory),
        **_outcomes(cell, rounds),
        paper_s=paper,
        ratio=None if paper is None else statistics.median(wall) / paper,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _by_role(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {role: statistics.median(one[role] for one in rounds) for role in rounds[0]}


def _us_per_contribution(rounds: Sequence[Held]) -> dict[str, float] | None:
    """Core microseconds of each role for one contribution in the sum; None where there is no sum."""
    each = [{role: 1e6 * s / one.contributors for role, s in one.core_s.items()} for one in rounds if one.contributors]
    return _by_role(each) if each else None


def _counts(rounds: Sequence[Mapping[str, int] | None]) -> dict[str, float] | None:
    known = [one for one in rounds if one is not None]
    return {role: round(value) for role, value in _by_role(known).items()} if known else None


def _agreement_s(first: Held, rounds: Sequence[Held]) -> float:
    def at_the_pairs(one: Held) -> float:
        return one.core_s["client"] + one.core_s["compute"]

    return max(0.0, at_the_pairs(first) - statistics.median(map(at_the_pairs, rounds)))


def _memory(cell: Cell, memory: Memory | None) -> dict[str, Any]:
    """What a Compute node held when it froze its list, beside the least that it must keep until the set is agreed.

    That are the contributions that it holds; a node that must also open them and know whose they are needs sessions.
    """
    if memory is None:
        return {}
    return {
        "compute_memory_bytes": memory.compute,
        "compute_memory_least_bytes": round(cell.clients * kept_bytes(cell)),
        "compute_memory_after_bytes": memory.compute_after,
        "memory_bytes": {"client": memory.client, "compute": memory.compute, "trainer": memory.trainer},
    }


def _outcomes(cell: Cell, rounds: Sequence[Held]) -> dict[str, Any]:
    done = [one for one in rounds if one.completed]
    noise = [one.noise_sd for one in done if one.noise_sd is not None]
    ideal = [one.noise_sd_ideal for one in done if one.noise_sd_ideal is not None]
    return {
        "success_rate": len(done) / len(rounds),
        "success_expected": success_expected(cell),
        "contributors": round(statistics.median(one.contributors for one in done)) if done else None,
        "noise_sd": statistics.median(noise) if noise else None,
        "noise_sd_ideal": statistics.median(ideal) if ideal else None,
    }


def success_expected(cell: Cell) -> float:
    """P(K <= T) for K of N clients that drop out, each on its own: a binomial tail. Live, K is fixed."""
    if cell.backend == MOSQUITTO or cell.is_plain:
        return float(round(cell.drop_rate * cell.clients) <= cell.tolerated)
    n, log_in, log_out = cell.clients, math.log(cell.drop_rate), math.log1p(-cell.drop_rate)
    terms = (
        math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_in + (n - k) * log_out)
        for k in range(cell.tolerated + 1)
    )
    return min(1.0, math.fsum(terms))
