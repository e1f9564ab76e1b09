"""Turns statuses into the dashboard's sections: warnings first, then open rounds, actors, results and the rest.

A figure of `dca_proto.results.status` that `dca status` prints is also here, for each actor, in the list that unfolds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from dca_proto.dashboard.memory import Memory
from dca_proto.privacy.rounding import at_most
from dca_proto.report.blocks import Block, Folded, Heading, Items, Note, StyledCell, settings, table
from dca_proto.report.charts import Axis, Curve, lines
from dca_proto.report.formats import UNKNOWN, count, number, seconds
from dca_proto.report.tables import lines_of
from dca_proto.results.round import NORMAL_SDS
from dca_proto.results.series import BEGUN, FAILED, MISSED, SeriesEstimate, SeriesSlot
from dca_proto.results.status import STATUS, Durations, RoundStatus, StatedResult, Status, Statuses
from dca_proto.wording import counted, duration, listed

_NOUNS = {"compute": "Compute node"}
_ORDER = ("trainer", "compute", "client")
_SHOWN_MAX, _CHARTS_MAX, _POINTS_MAX, _WAITS_MAX, _NAMED_MAX, _ENDS_MAX = 50, 2, 60, 8, 3, 10
_YEAR, _SLOTS_MAX = 366, 14
_FAILED_S = 3600.0
_UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


class Part(NamedTuple):
    """A section of the page; its name is its id."""

    name: str
    heading: str
    blocks: Sequence[Block]


class BoardView(NamedTuple):
    """What the page shows: a sentence, whether all is well, and the sections."""

    title: str
    is_well: bool
    parts: Sequence[Part]


def view_of(
    statuses: Statuses,
    memory: Memory,
    series: Mapping[str, Sequence[SeriesSlot]] = MappingProxyType({}),
    *,
    watched: str = "",
) -> BoardView:
    """Return what the page shows.

    Args:
        series: the slots of standing jobs, in order, by the title of the job.
        watched: what is watched, if it is not a federation.
    """
    actors = sorted(statuses.actors, key=lambda one: (_ORDER.index(one.role) if one.role in _ORDER else 9, one.name))
    warnings = _warnings(statuses, actors)
    parts = [
        Part("warnings", "Needs attention", [Items(warnings[:_SHOWN_MAX])] if warnings else [Note("Nothing.")]),
        Part("rounds", "Rounds", _rounds(actors)),
        Part("results", "Results", _results(memory)),
        Part("schedule", "Standing jobs", [*_schedule(actors), *_series(series)]),
        Part("actors", "Actors", _actors(actors, statuses)),
        Part("phases", "Phases of ended rounds", _phases(actors)),
        Part("dropped", "Declines, drops and ends", _counts(actors)),
        Part("certificates", "Certificates", _certificates(actors)),
    ]
    names = sorted({one.federation for one in actors})
    who = watched or (f"Federation {listed(names, 3)}" if names else "No actor runs")
    missing = len(statuses.stopped) + len(statuses.failed)
    running = f"{counted(len(actors), 'actor')} of {len(actors) + missing} run"
    running += f", {counted(len(statuses.resting), 'trainer')} not at work" if statuses.resting else ""
    return BoardView(who if watched else f"{who}: {running}", not warnings, parts)


def _warnings(statuses: Statuses, actors: Sequence[Status]) -> list[str]:
    found = statuses.down
    found += [f"{one.role} {one.name}: {warning}" for one in actors for warning in one.warnings]
    return found + [why for name in sorted({one.federation for one in actors}) for why in _last_failure(name, actors)]


def _last_failure(federation: str, actors: Sequence[Status]) -> list[str]:
    """Return in a line which round of a federation failed last; none an hour later, or once a later one went well."""
    ended = [
        (one.last.at, one.last, one)
        for one in actors
        if one.federation == federation and one.role != "client" and one.last is not None
    ]
    good = max((at for at, last, _ in ended if last.ok), default="")
    failed = [(last, one) for at, last, one in ended if not last.ok and at > good and _age_s(at, one.at) <= _FAILED_S]
    newest = max(failed, key=lambda pair: pair[0].at, default=None)
    if newest is None:
        return []
    same = [pair for pair in failed if pair[0].round_id == newest[0].round_id]  # a trainer, if there is one, first
    where = listed([f"{one.role} {one.name}" for _, one in same], _WAITS_MAX)
    return [f"round {newest[0].round_id[:8]} failed at {_clock(newest[0].at)}: {same[0][0].what} ({where})"]


def _age_s(at: str, now: str) -> float:
    return (datetime.fromisoformat(now) - datetime.fromisoformat(at)).total_seconds()


# --- rounds and results -----------------------------------------------------------------------------------------------


Open = tuple[Status, RoundStatus]


def _rounds(actors: Sequence[Status]) -> list[Block]:
    """Return open rounds with what each role does in them, and then the rounds that ended last."""
    by_round: dict[str, list[Open]] = {}
    for one in actors:
        for round_ in one.rounds:
            by_round.setdefault(round_.round_id, []).append((one, round_))
    columns: dict[str, Callable[[list[Open]], str | StyledCell]] = {
        "round": lambda seen: StyledCell(_statistic(seen), seen[0][1].round_id[:8]),
        "phase": _phase,
        "answered": lambda seen: _arrived(seen[0][1]),  # a trainer, if there is one, knows most
        "waits for": lambda seen: _waits(seen[0][1]),
    }
    blocks = table([*by_round.values()][:_SHOWN_MAX], columns)
    if len(by_round) > _SHOWN_MAX:
        blocks.append(Note(f"The first {_SHOWN_MAX} of {len(by_round):,}."))
    ended = [one for one in actors if one.last is not None]
    servers = [one for one in ended if one.role != "client"] or ended
    last = table(
        sorted(servers, key=lambda one: one.last.at if one.last else "", reverse=True)[:_SHOWN_MAX],
        {
            "the last end": lambda one: _moment(one.last.at) if one.last else "",
            "at": lambda one: f"{one.role} {one.name}",
            "what happened": _last,
        },
    )
    return [*(blocks or [Note("No round is open.")]), *last]


def _statistic(seen: Sequence[Open]) -> str:
    return next((round_.statistic for _, round_ in seen if round_.statistic), "unknown")


def _phase(seen: Sequence[Open]) -> StyledCell:
    """Return what the actors of each role do in a round."""
    roles: dict[str, Counter[str]] = {}
    for one, round_ in seen:
        roles.setdefault(one.role, Counter())[round_.phase] += 1
    parts = [
        f"{role} {phase}" if role == "trainer" else f"{counted(times, _NOUNS.get(role, role))} {phase}"
        for role, phases in roles.items()
        for phase, times in phases.items()
    ]
    until = next((round_.until for _, round_ in seen if round_.until is not None), None)
    return StyledCell(", ".join(parts), "" if until is None else f"until {_clock(until)}")


def _arrived(one: RoundStatus) -> str | StyledCell:
    if one.arrived is None:
        return UNKNOWN
    if not one.expected:
        return count(one.arrived)
    return StyledCell(f"{count(one.arrived)} of {count(one.expected)}", part=min(one.arrived / one.expected, 1.0))


def _waits(one: RoundStatus) -> str:
    if not one.waits_for:
        return UNKNOWN
    more = one.more + max(len(one.waits_for) - _WAITS_MAX, 0)
    names = ", ".join(one.waits_for[:_WAITS_MAX])
    return f"{names} and {counted(more, 'other')}" if more else names


def _last(one: Status) -> str | StyledCell:
    assert one.last is not None, "an actor with a round that ended"
    return StyledCell(one.last.what, one.last.round_id[:8], "" if one.last.ok else "bad")


def _results(memory: Memory) -> list[Block]:
    results = memory.results
    if not results:
        return []
    charts = [_chart(name, series) for name, series in memory.series().items() if len(series) > 1][:_CHARTS_MAX]
    latest = [(result, place) for result in reversed(results) for place in range(max(len(result.outcomes), 1))]
    rows = table(
        latest[:_SHOWN_MAX],
        {
            "when": lambda pair: _moment(pair[0].at),
            "result": lambda pair: StyledCell(_label(*pair), pair[0].round_id[-8:]),
            "estimate": lambda pair: _estimate(*pair)[0],
            "95 % interval, noise only": lambda pair: _estimate(*pair)[1],
            "from": lambda pair: count(pair[0].contributors),
        },
        note="Intervals have the privacy noise alone, as if it were Gaussian; dca report and dca learn say more.",
    )
    return [*charts, *rows]


def _schedule(actors: Sequence[Status]) -> list[Block]:
    jobs = [(one, job) for one in actors for job in one.schedule]
    return table(
        jobs[:_SHOWN_MAX],
        {
            "job": lambda row: StyledCell(row[1].title, f"{row[0].role} {row[0].name}"),
            "done": lambda row: StyledCell(
                f"{count(row[1].done)} of {count(row[1].of)}", part=min(row[1].done / max(row[1].of, 1), 1.0)
            ),
            "gaps": lambda row: count(row[1].gaps),
            "next": lambda row: StyledCell("after the last one" if row[1].next is None else _moment(row[1].next)),
            "budget lasts to": lambda row: row[1].lasts_to,
        },
    )


def _series(series: Mapping[str, Sequence[SeriesSlot]]) -> list[Block]:
    """Return a chart of each job's first estimate over time, and its last slots with the reasons of gaps."""
    blocks: list[Block] = []
    for title, slots in series.items():
        done = [(slot, slot.result.estimates[0]) for slot in slots if slot.result and slot.result.estimates]
        known = [(slot, one, one.estimate) for slot, one in done if one.estimate is not None]
        if len(known) > 1 and len(blocks) < 2 * _CHARTS_MAX:
            points = []
            for slot, one, value in known[-_YEAR:]:
                low, high = one.interval_95 or (value, value)
                points.append((slot.at_ms / 1000, value, low, high))
            name = f"{title}: {known[0][1].name}"
            unit, gaps = known[0][1].unit, sum(slot.state in (FAILED, MISSED) for slot in slots)
            caption = f"{name}: {len(points)} slots until {known[-1][0].slot}, with 95 % intervals"
            caption += f"; {counted(gaps, 'gap')}." if gaps else "."
            blocks.append(_over_time(f"{name} ({unit})" if unit else name, points, caption))
        blocks += table(
            [*reversed(slots)][:_SLOTS_MAX],
            {
                title: lambda slot: StyledCell(slot.slot, "", "bad" if slot.state in (FAILED, MISSED) else ""),
                "estimate and 95 % interval": lambda slot: _found(slot),
                "from": lambda slot: UNKNOWN if slot.result is None else count(slot.result.contributors),
            },
            note=f"The last {_SLOTS_MAX} of {len(slots):,}: dca results has all." if len(slots) > _SLOTS_MAX else "",
        )
    return blocks


def _found(slot: SeriesSlot) -> str | StyledCell:
    if slot.result is None:
        return "runs now" if slot.state == BEGUN else StyledCell("gap", slot.reason)
    return ", ".join(f"{one.name} {_interval(one)}" for one in slot.result.estimates[:_NAMED_MAX])


def _interval(one: SeriesEstimate) -> str:
    if one.estimate is None:
        return UNKNOWN
    ends = "" if one.interval_95 is None else f" [{', '.join(number(end, 4) for end in one.interval_95)}]"
    return f"{number(one.estimate, 4)}{ends}{f' {one.unit}' if one.unit else ''}"


def _label(result: StatedResult, place: int) -> str:
    more = f" and {counted(result.more, 'other number')}" if result.more and place == len(result.outcomes) - 1 else ""
    return f"{result.statistic} {result.outcomes[place].label}{more}" if result.outcomes else result.statistic


def _estimate(result: StatedResult, place: int) -> tuple[str, str]:
    if not result.outcomes:
        return UNKNOWN, UNKNOWN
    one = result.outcomes[place]
    half = NORMAL_SDS * one.noise_std
    return number(one.value, 4), f"[{number(one.value - half, 4)}, {number(one.value + half, 4)}]"


def _chart(name: str, series: Sequence[tuple[StatedResult, int]]) -> Block:
    """Return a chart of one number over time, with its intervals."""
    shown = series[-_POINTS_MAX:]
    points = []
    for result, place in shown:
        one = result.outcomes[place]
        half = NORMAL_SDS * one.noise_std
        points.append((datetime.fromisoformat(result.at).timestamp(), one.value, one.value - half, one.value + half))
    until = f"until {_moment(shown[-1][0].at)}, with 95 % intervals of the privacy noise"
    return _over_time(name, points, f"{name}: {len(shown)} results {until}.")


def _over_time(name: str, found: Sequence[tuple[float, float, float, float]], caption: str) -> Block:
    """Return a chart of one number over time: (Unix seconds, value, low, high) of each point."""
    last, span = found[-1][0], found[-1][0] - found[0][0]
    unit, words = next(((size, words) for size, words in _UNITS if span >= 2 * size), _UNITS[-1])
    points = [((at - last) / unit, value) for at, value, _, _ in found]
    spread = [((at - last) / unit, low, high) for at, _, low, high in found]
    curve = Curve(name, points, 0, "", "o", spread)
    return lines([curve], Axis(f"{words} from the latest result"), Axis(name), caption=caption)


# --- actors -----------------------------------------------------------------------------------------------------------


def _actors(actors: Sequence[Status], statuses: Statuses) -> list[Block]:
    columns: dict[str, Callable[[Status], str | StyledCell]] = {
        "actor": lambda one: StyledCell(f"{one.role} {one.name}", one.id[:8]),
        "connection": _connection,
        "epoch": lambda one: count(one.epoch),
        "sessions": lambda one: count(one.sessions),
        "budget left": _budget,
        "inbox": lambda one: UNKNOWN if one.inbox is None else count(one.inbox),
        "clocks": _clocks,
    }
    blocks = table(actors[:_SHOWN_MAX], columns)
    if len(actors) > _SHOWN_MAX:
        blocks.append(Note(f"The first {_SHOWN_MAX} of {len(actors):,}."))
    absent = [*statuses.stopped, *statuses.failed, *statuses.at_rest]
    blocks += [Heading("Not running"), Items(absent[:_SHOWN_MAX])] if absent else []
    return blocks + [
        Folded(f"All figures of {one.role} {one.name}", settings(lines_of(one, STATUS))[0])
        for one in actors[:_SHOWN_MAX]
    ]


def _connection(one: Status) -> StyledCell:
    since = duration(1000 * one.since_s)
    if one.connected:
        return StyledCell("connected", f"for {since}", "good")
    if one.asleep_s is not None and not one.overslept:
        return StyledCell("asleep", f"for {since}", "good")
    return StyledCell("away", f"for {since}: {one.away_because}", "bad")


def _budget(one: Status) -> str | StyledCell:
    if one.epsilon_left is None or not one.epsilon_allowed:
        return UNKNOWN
    part = min(max(one.epsilon_left / one.epsilon_allowed, 0.0), 1.0)
    return StyledCell(f"ε {at_most(one.epsilon_left)} of {at_most(one.epsilon_allowed)}", part=part)


def _clocks(one: Status) -> str:
    return ", ".join(f"{name} {offset:+.2g} s" for name, offset in one.clock_offset_s.items()) or UNKNOWN


def _phases(actors: Sequence[Status]) -> list[Block]:
    rows = [(one, phase, took) for one in actors for phase, took in one.phases.items()]

    def times(row: tuple[Status, str, Durations]) -> int:
        return sum(row[2].counts)

    return table(
        rows[:_SHOWN_MAX],
        {
            "at": lambda row: f"{row[0].role} {row[0].name}",
            "phase": lambda row: row[1],
            "times": lambda row: count(times(row)),
            "on average": lambda row: seconds(row[2].total_s / times(row)) if times(row) else UNKNOWN,
        },
    )


def _counts(actors: Sequence[Status]) -> list[Block]:
    """Return what was counted by reason since the actors started, the most frequent first."""
    counts: dict[tuple[str, str, str], list[tuple[Status, int]]] = {}
    for one in actors:
        kinds = {"did not take part": one.declines, "messages dropped": one.dropped}
        kinds |= {"messages with data dropped": one.data_dropped}
        kinds |= {f"rounds {end}": reasons for end, reasons in one.ended.items()}
        for what, reasons in kinds.items():
            for reason, times in reasons.items():
                counts.setdefault((what, reason, one.role), []).append((one, times))
    rows = sorted(counts.items(), key=lambda row: -sum(times for _, times in row[1]))
    return table(
        rows[:_SHOWN_MAX],
        {
            "what": lambda row: row[0][0],
            "reason": lambda row: row[0][1] or UNKNOWN,
            "at": lambda row: _who(row[0][2], [one for one, _ in row[1]]),
            "times": lambda row: count(sum(times for _, times in row[1])),
        },
    )


def _who(role: str, actors: Sequence[Status]) -> str:
    if len(actors) <= _NAMED_MAX:
        return f"{role} {listed([one.name for one in actors])}"
    return counted(len(actors), _NOUNS.get(role, role))


def _certificates(actors: Sequence[Status]) -> list[Block]:
    ends = [(end, one, what) for one in actors for what, end in one.certificates.items()]
    ends.sort(key=lambda row: row[0])
    others = len(ends) - _ENDS_MAX
    return table(
        ends[:_ENDS_MAX],
        {
            "ends": lambda row: StyledCell(_moment(row[0]), _until(row[0], row[1].at)),
            "certificate": lambda row: row[2],
            "of": lambda row: f"{row[1].role} {row[1].name}",
        },
        note=f"{counted(others, 'other')} not before these." if others > 0 else "",
    )


def _moment(iso: str) -> str:
    return iso.replace("T", " ").replace("Z", " UTC")


def _clock(iso: str) -> str:
    return _moment(iso).partition(" ")[2]


def _until(end: str, now: str) -> str:
    left = (datetime.fromisoformat(end) - datetime.fromisoformat(now).astimezone(UTC)).total_seconds()
    return f"in {duration(1000 * left)}" if left > 0 else "over"
