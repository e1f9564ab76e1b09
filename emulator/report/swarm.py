"""A swarm's run: what was learned, what it cost, who was there, and how the rounds went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from emulator.report.bars import Bar, bars
from emulator.report.figures import UNKNOWN, claimed, count, counted, listed, number, seconds, size
from emulator.report.lanes import Lane, Mark, Piece, lanes
from emulator.report.learned import (
    WITHOUT_PRIVACY,
    baseline_fact,
    compared,
    course,
    estimate_words,
    estimates,
    score_words,
    scores,
    warned,
)
from emulator.report.markup import Child, element, table
from emulator.report.nodes import released, worth
from emulator.report.page import Page, Section, Verdict, note
from emulator.report.plot import Axis, Point, Series, axis_over, plot
from emulator.report.reports import told
from emulator.report.run import Round, Swarm
from emulator.report.traffic import traffic
from emulator.report.types import MIB

_COORDINATES_MAX = 400
_ROUNDS_SHOWN = 4
_LANES_MAX = 40


class _Headline(NamedTuple):
    title: str
    badge: str
    verdict: Verdict


def page(run: Swarm) -> Page:
    """The page of a swarm."""
    head = _headline(run)
    lead = [
        Section("Coefficients" if run.coefficients else "Estimates", [*_learned(run)]),
        Section("Warnings", [*warned(run.warnings)]),
    ]
    sections = [
        Section("Draws", [*worth(run.sampling)]),
        Section("Data nodes", [*released(run.nodes)]),
        Section("Reports", [*told(run.reports, run.rounds, [one.name for one in run.estimates])]),
        Section("Iterations", [*course(run.course, run.test)]),
        Section("Rounds in time", [*_timeline(run)]),
        Section("Messages and bytes", [*_traffic(run)]),
        Section("Who dropped out", [*_drops(run)]),
        Section("Noise in the sums", [*_noise(run)]),
    ]
    return Page(
        kind=f"Swarm of real {run.who}s",
        title=head.title,
        badge=head.badge,
        verdict=head.verdict,
        answer=_answer(run),
        facts=[*_facts(run)],
        sections=sections,
        lead=lead,
    )


def _headline(run: Swarm) -> _Headline:
    most = max((one.contributors or 0 for one in run.rounds), default=0) if run.batch else run.contributors
    who = f"{count(most)} of {counted(run.clients, 'client')}"
    if run.has_nodes:
        who = f"{counted(most or 0, 'row')} of {counted(len(run.nodes), 'data node')}"
    if run.reports is not None:
        who = counted(run.reported or 0, "private report")
    if not run.ok:
        return _Headline(f"No result: {run.error or 'the reason was not recorded'}", "ended without a result", "bad")
    badge: tuple[str, Verdict] = ("private", "good") if run.private else ("not private", "bad")
    if run.test is None and run.every_estimate:
        return _Headline(f"Learned from {who}: {estimate_words(run.every_estimate)}", *badge)
    if run.test is None:
        return _Headline(f"{who} are in the last sum{_last(run)}", *badge)
    return _Headline(f"Learned from {who}: {score_words(run.test)}", *badge)


def _last(run: Swarm) -> str:
    return f", of {counted(run.rounds[-1].dimension, 'value')}" if run.rounds else ""


def _answer(run: Swarm) -> str:
    """The run in two sentences: what came out, what it cost."""
    rounds = counted(len(run.rounds), "round")
    with_whom = counted(run.clients, run.who) if not run.is_summed else counted(run.computes, "Compute node")
    held = f"{rounds} with {with_whom}"
    held += f" took {seconds(run.wall_s)}." if run.wall_s is not None else "."
    if not run.private:
        return f"{held} No epsilon can be claimed: {'; '.join(run.not_private_because) or 'no reason is given'}."
    whom = "row" if run.has_nodes else "client"
    spent = f"Each {whom} spent at most epsilon {claimed(run.epsilon_spent)}" if run.epsilon_spent is not None else ""
    of = f" of {claimed(run.epsilon)}" if spent and run.epsilon is not None else ""
    at = f" at delta {claimed(run.delta)}" if spent and run.delta is not None else ""
    if not run.is_summed:
        own = "data node adds the whole noise for one row itself" if run.has_nodes else "report is private by itself"
        return f"{held} {spent}{of}{at}{'.' if spent else ''} Each {own}."
    fewest = _needed(run)
    needed = f" At least {counted(fewest, 'contribution')} {'was' if fewest == 1 else 'were'} needed in each round."
    return f"{held} {spent}{of}{at}{'.' if spent else ''}{needed}"


def _needed(run: Swarm) -> int:
    """How many contributions the smallest round needed: recorded, for a mini-batch tolerates its part of T."""
    if run.unknown_noises is not None:
        return run.unknown_noises + 1 + run.colluders
    return (run.batch or run.clients) - run.tolerated + run.colluders


def _facts(run: Swarm) -> Iterator[tuple[str, str]]:
    yield from _who(run)
    if run.epsilon_spent is not None:
        per = "row" if run.has_nodes else "client"
        yield f"epsilon spent per {per}", f"{claimed(run.epsilon_spent)} of {claimed(run.epsilon or 0)}"
    if run.job is not None:
        yield "job", run.job
    yield from run.remarks.items()
    if run.repair is not None:
        yield "repair of the noisy matrix", run.repair
    if run.test is not None:
        yield from baseline_fact(run.test)
    yield "broker", f"{run.broker} {run.broker_version or ''}".strip()
    if run.connections is not None:
        yield "connections", "one per client" if run.connections == "each" else run.connections
    if run.processes is not None:
        yield "processes", count(run.processes)
    if run.connect_s is not None:
        yield "until all were connected", seconds(run.connect_s)
    if run.sessions is not None:
        yield "until all had sessions", seconds(run.sessions.wall_s)
    if run.peak_rss_mb is not None:
        yield "peak memory of a process", size(run.peak_rss_mb * MIB)


def _who(run: Swarm) -> Iterator[tuple[str, str]]:
    if run.has_nodes:
        yield "data nodes (J)", count(run.clients)
        yield "released", count(len(run.nodes))
        yield "rows", count(run.contributors)
        yield "Compute nodes", "none"
        return
    yield "clients (N)", count(run.clients)
    if run.reports is not None:
        if run.batch:
            yield "clients of a step (B)", count(run.batch)
        yield "reports, one of each client", count(run.reported)
        yield "mechanism", run.reports
        yield "Compute nodes", "none"
        return
    if run.batch:
        yield "clients of a mini-batch (B)", count(run.batch)
    yield "contributed to the last sum", count(run.contributors)
    yield f"tolerated dropouts (T){' of all clients' if run.batch else ''}", count(run.tolerated)
    yield "reserved for colluders (c)", count(run.colluders)
    yield "Compute nodes (M)", count(run.computes)


def _timeline(run: Swarm) -> Iterator[Child]:
    rows, longest = [], max((one.wall_s for one in run.rounds), default=0.0)
    has_names = len({one.name for one in run.rounds}) == len(run.rounds)
    for ordinal, one in enumerate(run.rounds[:_LANES_MAX], 1):
        pieces, at = [], 0.0
        for place, phase in enumerate(run.phases):
            length = one.phases.get(phase, 0.0)
            pieces.append(Piece(at, at + length, place, f"{phase}: {seconds(length)}"))
            at += length
        label = one.name if has_names else f"{ordinal}. {one.name}"
        rows.append(Lane(label, pieces, text=seconds(one.wall_s) + ("" if one.ok else ", aborted")))
    if rows:
        legend = [(phase, place) for place, phase in enumerate(run.phases)]
        yield lanes(rows, longest, seconds, caption="Wall time from each round's announcement.", legend=legend)
        yield table(
            ("round", "values", _came(run), "dropped", "closed", *run.phases, "in all"),
            [
                (label, count(group[0].dimension), count(group[0].contributors if run.is_summed else group[0].arrived),
                 count(group[0].dropped), group[0].closed or UNKNOWN,
                 *(seconds(_sum(one.phases.get(phase) for one in group)) for phase in run.phases),
                 seconds(_sum(one.wall_s for one in group)))
                for label, group in _groups(run.rounds)
            ],
        )  # fmt: skip
    slow = [(one.name, slow) for one in run.rounds for slow in one.slowest[:10]]
    if slow:
        yield element("h3", "Slowest clients")
        yield table(
            ("round", "client", "after"),
            [(name, str(one.client), seconds(one.s)) for name, one in slow],
        )


def _came(run: Swarm) -> str:
    """What those did that took part."""
    return "contributed" if run.is_summed else "released" if run.has_nodes else "reported"


def _groups(rounds: list[Round]) -> list[tuple[str, list[Round]]]:
    """The rounds with their names; where there are many, those of one sort together."""
    if len(rounds) <= _ROUNDS_SHOWN:
        return [(one.name, [one]) for one in rounds]
    groups: dict[tuple[str, bool], list[Round]] = {}
    for one in rounds:
        groups.setdefault((one.name, one.ok), []).append(one)
    return [(_label(name, ok, len(group)), group) for (name, ok), group in groups.items()]


def _label(name: str, ok: bool, number: int) -> str:
    return f"{name}{'' if ok else ', aborted'}{f' ×{number}' if number > 1 else ''}"


def _sum(lengths: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [length for length in lengths if length is not None]
    return sum(known) if known else None


def _sent(label: str, group: list[Round]) -> Bar:
    messages, sent = sum(one.messages for one in group), sum(one.bytes for one in group)
    return Bar(f"{label}: {counted(messages, 'message')}", sent, size(sent))


def _traffic(run: Swarm) -> Iterator[Child]:
    if run.roles:
        yield from traffic(run.roles)
        if run.peak_rss_mb_by_process:
            yield element("h3", "Memory")
            rows = [Bar(name, most, size(most * MIB), 1) for name, most in run.peak_rss_mb_by_process.items()]
            yield bars(rows, caption="The most that each process held.")
        if run.core_s_by_role:
            yield element("h3", "Core time")
            rows = [Bar(role, core_s, seconds(core_s), 3) for role, core_s in run.core_s_by_role.items()]
            yield bars(rows, caption="Processor time since the start, by role.")
    elif run.rounds:
        yield bars(
            [_sent(label, group) for label, group in _groups(run.rounds)],
            caption="Payload bytes that all actors sent in each round, or in all rounds of one sort.",
        )


def _drops(run: Swarm) -> Iterator[Child]:
    """Whose contribution is not in the sum, one lane per round, clients from left to right by number."""
    rows = []
    for place, one in enumerate(run.rounds[:_LANES_MAX], 1):
        marks = [Mark(client, 1, f"{run.who} {client}") for client in one.absent_clients or one.vanished_clients]
        asked = run.clients if one.expected is None else one.expected
        rows.append(Lane(f"{place}. {one.name}", marks=marks, text=f"{count(one.dropped)} of {count(asked)}"))
    if any(row.marks for row in rows):
        missing = "whose contribution is not in the sum" if run.is_summed else f"that {_came(run)} nothing"
        caption = f"Each line is a {run.who} {missing}, placed by its number from 0."
        yield lanes(rows, run.clients - 1, lambda at: count(round(at)), caption=caption, legend=[])
    elif run.rounds and all(one.dropped == 0 for one in run.rounds):
        yield note(f"Nobody: every {run.who} that was asked {_came(run)}, in each round.")
    else:
        said = [f"{one.name}: {count(one.dropped)} of {count(one.expected or run.clients)}" for one in run.rounds]
        yield note(f"Clients that are not in the sum, by round: {listed(said)}.") if said else None
    declined = [(one.name, why, count(clients)) for one in run.rounds for why, clients in one.declined.items()]
    if declined:
        yield element("h3", "Declined to take part")
        yield table(("round", "why", "clients"), declined[:200], text_columns=(0, 1))


def _noise(run: Swarm) -> Iterator[Child]:
    for label, group in _groups(run.rounds):
        one = group[-1]
        if one.noise_sd is None:
            continue
        last = ", the last" if len(group) > 1 else ""
        yield element("h3", f"{label}, {counted(one.dimension, 'value')}{last}")
        rows = [Bar("noise in each value", one.noise_sd, f"sd {number(one.noise_sd)}", 0)]
        if one.floor_sd is not None and run.reports is None:
            whose = " of each data node" if run.has_nodes else ""
            rows.append(Bar(f"floor: what the claim needs{whose}", one.floor_sd, f"sd {number(one.floor_sd)}", 1))
        if one.sensitivity is not None:
            mover = "one row" if run.has_nodes else "one client"
            rows.append(Bar(f"{mover} can move the sum by", one.sensitivity, f"≤ {number(one.sensitivity)}", 2))
        yield bars(
            rows, caption="In the units of the sum that is released (columns are scaled by their public bounds)."
        )
        if one.value:
            yield _signal(one.value, one.exact or [], one.noise_sd)
        elif one.sensitivity is not None and one.contributors and one.noise_sd > 0:
            most = one.contributors * one.sensitivity
            yield note(
                f"All {count(one.contributors)} contributors together can move the sum by at most {number(most)}, "
                f"which is {number(most / one.noise_sd)} times the noise."
            )


def _signal(released: list[float], exact: list[float], noise_sd: float) -> Child:
    """How far each released value stands out of the noise."""
    values, truth = _places(released), _places(exact)
    x = Axis("value of the sum, by its place", 0.0, len(values) + 1.0, say=lambda tick: f"{tick:.0f}")
    y = axis_over("size, in the sum's units", [*(height for _, height in (*values, *truth)), noise_sd], log=True)
    series = [Series("released value, noise in it", values, 0, None, "disc")]
    if truth:
        series.append(Series("exact value, known only to this emulation", truth, 2, None, "ring"))
    series.append(Series("sd of the noise", [(x.low, noise_sd), (x.high, noise_sd)], 1, "dashed"))
    caption = "The signal beside the noise: values far above the line are known well, those near it are not."
    return plot(series, x, y, caption=caption)


def _places(values: list[float]) -> list[Point]:
    """Each value's size over its place."""
    return [(float(place), abs(value)) for place, value in enumerate(values[:_COORDINATES_MAX], 1)]


def _learned(run: Swarm) -> Iterator[Child]:
    names = ("private" if run.private else "as learned, not private", WITHOUT_PRIVACY)
    found = run.every_estimate
    yield from estimates(found, names, run.interval_note)
    yield from compared(found, names, run.naive_title)
    if run.test is not None:
        yield from scores(run.test, names)
