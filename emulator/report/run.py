"""A run of a swarm or of a federation's trainer, for terminals and pages: its rounds, and what it cost whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from dca_proto.privacy.rounding import at_least
from dca_proto.wording import counted
from emulator.report import learned
from emulator.report.blocks import (
    Block,
    Folded,
    Items,
    Line,
    Note,
    Page,
    Section,
    Table,
    roles_table,
    settings,
    table,
)
from emulator.report.charts import Axis, Lane, Series, lines, timeline
from emulator.report.figures import MIB, UNKNOWN, claimed, count, listed, number, seconds, size
from emulator.results import Round, Run, grouped
from inference.jobs.estimates import rows_of
from inference.jobs.summary import Summary

_COORDINATES_MAX = 400
_LOOKER = "no colluding client beside the one who looks"
Group = Sequence[Round]
"""Rounds that are shown together."""


class Told(NamedTuple):
    """A run, and what was learned from it."""

    run: Run
    summary: Summary


# --- tables -----------------------------------------------------------------------------------------------------------


def rounds_table(run: Run, *, wide: bool = False) -> list[Block]:
    """Who took part in each round, and the noise in its sum; many rounds of one sort share a row.

    Args:
        wide: whether the noise stands beside what the claim needs, in the units of the sum.
    """
    came = {"contributed": "contributors"} if run.is_summed else {run.came: "arrived"}
    came |= {"rows": "contributors"} if run.has_nodes else {}
    late = ("late",) if any(one.late for one in run.rounds) else ()
    columns: dict[str, Callable[[Group], str]] = {
        "round": _name,
        "values": lambda group: count(group[0].dimension),
        "asked": lambda group: _range([one.expected for one in group]),
        **{name: _ranged(field) for name, field in came.items()},
        "declined": lambda group: _range([sum(one.declined.values()) for one in group]),
        **{name: _ranged(name) for name in (*late, "dropped")},
        "attempts": _ranged("attempts"),
        "closed": lambda group: ", ".join(sorted({one.closed for one in group if one.closed})),
        "noise (sd)": lambda group: number(max(one.noise_sd or 0.0 for one in group) or None),
    }
    if wide:
        columns["needed (sd)"] = lambda group: UNKNOWN if run.reports else number(group[-1].floor_sd)
        columns["sensitivity"] = lambda group: number(group[-1].sensitivity)
    if not any(one.declined for one in run.rounds):
        del columns["declined"]
    if all(one.attempts == 1 for one in run.rounds):
        del columns["attempts"]
    return table(grouped(run.rounds), columns, title="rounds")


def times_table(run: Run) -> list[Block]:
    """Seconds of each round and phase, and what all actors sent; those of a row with many rounds are added up."""

    def lasted(phase: str) -> Callable[[Group], str]:
        return lambda group: seconds(_total(one.phases.get(phase) for one in group))

    columns: dict[str, Callable[[Group], str]] = {
        "round": _name,
        **{phase: lasted(phase) for one in run.rounds for phase in one.phases},
        "in all": lambda group: seconds(_total(one.wall_s for one in group)),
        "messages": lambda group: count(sum(one.messages or 0 for one in group)),
        "bytes": lambda group: size(_total(one.bytes for one in group)),
    }
    timed = [group for group in grouped(run.rounds) if group[0].wall_s is not None]
    return table(timed, columns, title="times")


def tables(run: Run) -> list[Block]:
    """All of a run that stands in tables on a terminal."""
    roles = roles_table(run.roles, run.core_s_by_role, run.peak_rss_mb_by_process)
    return [*rounds_table(run), *times_table(run), *learned.nodes_of(run.nodes, 12), *roles]


def _name(group: Group) -> str:
    times = f" ×{len(group)}" if len(group) > 1 else ""
    return f"{group[0].name}{times}{'' if group[0].ok else ', aborted'}"


def _ranged(field: str) -> Callable[[Group], str]:
    return lambda group: _range([getattr(one, field) for one in group])


def _range(counts: Iterable[int | None]) -> str:
    known = [one for one in counts if one is not None]
    if not known:
        return UNKNOWN
    low, high = min(known), max(known)
    return count(low) if low == high else f"{count(low)}–{count(high)}"


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# --- lines ------------------------------------------------------------------------------------------------------------


def aborted_lines(run: Run, most: int = 4) -> list[Line]:
    """Why rounds were aborted."""
    found = [("aborted", f"{_rounds(numbers, most + 1)}: {reason}") for reason, numbers in run.aborts.items()]
    more = [("", f"{len(found) - most} more reasons are in the JSON")] if len(found) > most else []
    return found[:most] + more


def _rounds(numbers: Sequence[int], most: int = 12) -> str:
    return f"round{'s' * (len(numbers) > 1)} {listed([*map(str, numbers)], most)}"


def missing_lines(run: Run, most: int = 4, names: int = 4) -> list[Line]:
    """Who is not in a result, by number (which the seed fixes) and the first digits of the id (new in each run).

    Args:
        most: how many rounds are listed. names: how many of each.
    """
    found = [
        ("missing" if one.late or one.declined else "dropped", f"round {place}: {run.who}s {listed(absent, names + 1)}")
        for place, one in enumerate(run.rounds, 1)
        if (absent := _absent(one))
    ]
    more = [("", f"others in {len(found) - most} more rounds")] if len(found) > most else []
    return found[:most] + more


def _absent(one: Round) -> list[str]:
    numbers = one.absent_clients or one.vanished_clients
    ids = [f" ({name[:6]})" for name in one.absent] if one.absent else [""] * len(numbers)
    return [f"{number}{shown}" for number, shown in zip(numbers, ids, strict=False)]


def fleet_lines(run: Run) -> Iterator[Line]:
    """How long it took to connect, who declined or failed and why, and how far off the last sum of made-up data is."""
    if run.connect_s is not None and run.sessions is not None:
        yield "connected", f"in {seconds(run.connect_s)}, keys and certificates included"
        yield "sessions", f"of all clients at all Compute nodes after {seconds(run.sessions.wall_s)}"
    for number_, one in enumerate(run.rounds, 1):
        if one.failed:
            yield "failed", f"round {number_}: {one.failed} clients neither declined nor contributed"
        for why, clients in one.declined.items():
            yield "declined", f"round {number_}: {clients} clients, {why}"
    last = run.rounds[-1]
    if last.value is not None and last.exact is not None:
        off = max(abs(value - exact) for value, exact in zip(last.value, last.exact, strict=True))
        yield "sum", f"at most {off:.3g} off the exact one, with noise of standard deviation {last.noise_sd:.3g}"


def privacy_lines(run: Run) -> list[Line]:
    """What was spent, and whom the guarantee covers; or why nothing may be claimed."""
    if not run.private or run.epsilon is None or run.delta is None:
        return [("not private", f"{'; '.join(run.not_private_because)}: no privacy may be claimed (a trial only)")]
    unit, told, holds = "client", learned.BY_ITSELF, ""
    if run.has_nodes:
        nodes = len(run.nodes)
        alone = "the data node adds" if nodes == 1 else f"each of the {nodes} data nodes adds"
        unit, told = "row", "each row is one person's, at one data node"
        holds = f"everybody but a row's own data node: {alone} the whole noise for one row before anything leaves it, "
        holds += "and tells how many rows it has"
    elif run.reports:
        holds = "everybody but a client itself, however many collude: its report had its whole noise before it left"
    else:
        told = "nobody saw a single client's numbers"
        beyond = f"{run.colluders} more colluding clients" if run.colluders else _LOOKER
        noises = _needed(run) - 1 - run.colluders
        unknown = "1 unknown noise is" if noises == 1 else f"{noises} unknown noises are"
        holds = f"up to {run.computes - 1} of {run.computes} Compute nodes and the broker colluding, and {beyond}: "
        holds += f"at least {unknown} in each sum"
    spent = f"epsilon {at_least(run.epsilon)}" if run.epsilon_spent is None else (
        f"epsilon {at_least(run.epsilon_spent)} of {at_least(run.epsilon)}"
    )  # fmt: skip
    return [("spent", f"{spent} per {unit}, delta {at_least(run.delta)}; {told}"), ("holds for", holds)]


def closing_lines(run: Run, summary: Summary) -> list[Line]:
    """The answer in sentences: what speaks for and against it, what was spent, what the guarantee assumes."""
    apart = ["what is learned without privacy"] * any(row["nonprivate"] is not None for row in rows_of(summary))
    apart += ["scores on held-out rows"] * bool(summary.get("test"))
    why = f"by epsilon, since it comes from rows as they are: {' and '.join(apart)}"
    why += "; --no-reference leaves this out" if run.federation is None else ""
    return [*learned.closing_lines(summary), *([("not covered", why)] if apart else []), *privacy_lines(run)]


# --- the page ---------------------------------------------------------------------------------------------------------


def read(found: dict[str, Any]) -> Told:
    """A run and what was learned, from a file. Raises `msgspec.ValidationError`."""
    return Told(msgspec.convert(found, Run), learned.read(found))


def page(found: Told) -> Page:
    """The page of a run."""
    run, summary = found
    words, verdict = learned.badge(run.ok, run.private)
    reports = [(one.contributors or 0, one.noise_variance, one.reports) for one in run.rounds]
    slow = [(one.name, who) for one in run.rounds for who in one.slowest]
    roles, peaks = roles_table(run.roles, run.core_s_by_role, run.peak_rss_mb_by_process), run.peak_rss_mb_by_process
    memory = table(peaks.items(), {"process": lambda one: one[0], "most memory": lambda one: size(MIB * one[1])})
    sections: list[Section] = [
        ("Why rounds were aborted", settings((_rounds(numbers), why) for why, numbers in run.aborts.items())),
        *learned.sections_of(summary),
        ("Data nodes", learned.nodes_of(run.nodes)),
        ("Reports", learned.reports_of(run.reports, reports, [one["name"] for one in rows_of(summary)])),
        ("Rounds", [*rounds_table(run, wide=True), *_absence(run), *_timeline(run), *times_table(run)]),
        ("Slowest clients", table(slow, {"round": lambda one: one[0], "client": lambda one: str(one[1].client),
                                         "after": lambda one: seconds(one[1].s)})),
        ("Noise", [_signal(group[-1]) for group in grouped(run.rounds) if group[-1].value and group[-1].noise_sd]),
        ("Sent and used by each role", [*roles, *memory]),
        ("Privacy", settings(privacy_lines(run)) if run.ok else []),
        ("Setting", settings(_setting(run))),
    ]  # fmt: skip
    return Page(
        kind="Learned from a federation" if run.federation else f"Swarm of real {run.who}s",
        title=_title(run, summary),
        badge=words,
        verdict=verdict,
        answer=_answer(run, summary),
        facts=[*_facts(run, summary)],
        sections=sections,
        lead=learned.lead_of(summary),
    )


def _title(run: Run, summary: Summary) -> str:
    if not run.ok:
        return f"No result: {run.error or 'the reason was not recorded'}"
    most = max((one.contributors or 0 for one in run.rounds), default=0) if run.batch else run.contributors
    who = f"{count(most)} of {counted(run.clients, 'client')}"
    if run.has_nodes:
        who = f"{counted(most or 0, 'row')} of {counted(len(run.nodes), 'data node')}"
    if run.reports is not None:
        who = counted(run.reported or 0, "private report")
    if words := learned.headline(summary):
        return f"Learned from {who}{words}"
    last = f", of {counted(run.rounds[-1].dimension or 0, 'value')}" if run.rounds else ""
    return f"{who} are in the last sum{last}"


def _answer(run: Run, summary: Summary) -> str:
    """The run in a few sentences: what came out, what it cost."""
    with_whom = counted(run.computes, "Compute node") if run.is_summed else counted(run.clients, run.who)
    held = f"{counted(len(run.rounds), 'round')} with {with_whom}"
    held += f" of {run.federation}" if run.federation else ""
    held += f" took {seconds(run.wall_s)}." if run.wall_s is not None else "."
    if summary.get("stopped"):
        held += f" It stopped before all that were planned: {summary['stopped']}."
    if not run.private:
        return f"{held} No epsilon can be claimed: {'; '.join(run.not_private_because) or 'no reason is given'}."
    return " ".join([held, *(f"Spent: {text}." for label, text in privacy_lines(run) if label == "spent")])


def _needed(run: Run) -> int:
    """How many contributions the smallest round needed: recorded, for a mini-batch tolerates its part of T."""
    if run.unknown_noises is not None:
        return run.unknown_noises + 1 + run.colluders
    return (run.batch or run.clients) - run.tolerated + run.colluders


def _facts(run: Run, summary: Summary) -> Iterator[Line]:
    """The five figures that a reader asks for first."""
    who = "row" if run.has_nodes else "client"
    if run.epsilon_spent is not None:
        yield f"epsilon spent per {who}", f"{claimed(run.epsilon_spent)} of {claimed(run.epsilon or 0)}"
    elif run.epsilon is not None:
        yield f"epsilon per {who}, at most", claimed(run.epsilon)
    if run.is_summed:
        yield "clients in the last sum", f"{count(run.contributors)} of {count(run.batch or run.clients)}"
    else:
        yield ("rows", count(run.contributors)) if run.has_nodes else ("reports", count(run.reported))
    yield from learned.score_facts(summary)[:1]
    aborted = sum(not one.ok for one in run.rounds)
    yield "rounds", count(len(run.rounds)) + (f", {count(aborted)} aborted" if aborted else "")
    if run.wall_s is not None:
        yield "wall time", seconds(run.wall_s)


def _setting(run: Run) -> Iterator[Line]:
    yield f"{run.who}s ({'J' if run.has_nodes else 'N'})", count(run.clients)
    if run.batch:
        yield f"clients of a {'mini-batch' if run.is_summed else 'step'} (B)", count(run.batch)
    if run.is_summed:
        yield f"tolerated dropouts (T){' of all clients' if run.batch else ''}", count(run.tolerated)
        yield "reserved for colluders (c)", count(run.colluders)
        yield "contributions needed in each round, at least", count(_needed(run))
    yield ("Compute nodes (M)", count(run.computes)) if run.is_summed else ("Compute nodes", "none")
    yield "each value's units", "those of the sum that is released; columns are scaled by their public bounds"
    known = {
        "reports, one of each client": None if run.reports is None else count(run.reported),
        "noise": run.mechanism,
        "job": run.job,
        "federation": run.federation,
        "broker": f"{run.broker} {run.broker_version or ''}".strip(),
        "connections": "one per client" if run.connections == "each" else run.connections,
        "processes": run.processes and count(run.processes),
        "until all were connected": run.connect_s and seconds(run.connect_s),
        "until all had sessions": run.sessions and seconds(run.sessions.wall_s),
    }
    yield from ((name, value) for name, value in known.items() if value)


def _timeline(run: Run) -> list[Block]:
    held = [one for one in run.rounds if one.wall_s is not None]
    if not held:
        return []
    phases = list(dict.fromkeys(phase for one in run.rounds for phase in one.phases))
    lanes = []
    for ordinal, one in enumerate(held, 1):
        pieces, at = [], 0.0
        for phase, length in one.phases.items():
            pieces.append((at, at + length, phases.index(phase)))
            at += length
        lanes.append(Lane(f"{ordinal}. {one.name}{'' if one.ok else ', aborted'}", pieces))
    longest = max(one.wall_s or 0.0 for one in held)
    legend = {phase: place for place, phase in enumerate(phases)}
    return [timeline(lanes, 0.0, longest, legend, caption="Wall time from each round's announcement.")]


def _absence(run: Run) -> Iterator[Block]:
    if not run.rounds:
        return
    if all(one.ok and not (one.dropped or one.late or one.declined) for one in run.rounds):
        yield Note(f"Every {run.who} that was asked {run.came}, in each round.")
        return
    if any(one.late or one.dropped for one in run.rounds):
        yield Note("Late is what was sent and came after the round had closed; of the dropped, nothing came.")
    missing = [text for _, text in missing_lines(run, len(run.rounds), 40)]
    if missing:
        yield Folded("who is missing, by number from 0 and the first digits of the id", Items(missing))
    declined = [(one.name, why, count(clients)) for one in run.rounds for why, clients in one.declined.items()]
    if declined:
        yield Table(("round", "why", "clients"), declined, "Why clients declined")


def _signal(one: Round) -> Block:
    """How far each released value stands out of the noise."""
    assert one.value is not None, "chosen so"
    shown = [(float(place), abs(value)) for place, value in enumerate(one.value[:_COORDINATES_MAX], 1)]
    series = [Series("released value, noise in it", shown, 0, "", "o")]
    if one.exact:
        truth = [(float(place), abs(value)) for place, value in enumerate(one.exact[:_COORDINATES_MAX], 1)]
        series.append(Series("exact value, known to the emulation only", truth, 2, "", "s"))
    level = one.noise_sd or 0.0
    series.append(Series("sd of the noise", [(0.5, level), (len(shown) + 0.5, level)], 1, "--"))
    caption = f"{one.name}: values far above the line stand out of the noise, those near it do not."
    if len(one.value) > _COORDINATES_MAX:
        caption += f" The first {_COORDINATES_MAX} of {count(len(one.value))} values."
    x = Axis("value of the sum, by its place", whole=True)
    return lines(series, x, Axis("size, in the sum's units", log=True), caption=caption)
