"""A swarm's run: what was learned, what it cost, who was there, and how the rounds went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from emulator.report.charts import Axis, Lane, Series, lines, timeline
from emulator.report.figures import UNKNOWN, claimed, count, counted, listed, number, seconds, size
from emulator.report.learned import Learned, lead_of, learned_words, nodes_of, reports_of, sections_of
from emulator.report.page import Block, Cell, Folded, Heading, Items, Note, Page, Section, Table, Verdict, settings
from emulator.results import Round, Run, Traffic, grouped

_COORDINATES_MAX, _LANES_MAX, _ROWS_MAX, _NAMED_MAX = 400, 40, 200, 40
_MIB = 1 << 20


class Swarm(NamedTuple):
    """A run, and what was learned from it."""

    run: Run
    learned: Learned


def page(found: Swarm) -> Page:
    """The page of a swarm."""
    run, learned = found
    title, badge, verdict = _headline(run, learned)
    reports = [(one.contributors or 0, one.noise_variance, one.reports) for one in run.rounds]
    sections: list[Section] = [
        ("Why rounds were aborted", _aborts(run)),
        *sections_of(learned),
        ("Data nodes", nodes_of(run.nodes)),
        ("Reports", reports_of(run.reports, reports, [one.name for one in learned.estimates])),
        ("Rounds in time", [*_timeline(run)]),
        ("Who is not in the result", [*_absent(run)]),
        ("Noise", [*_noise(run)]),
        ("What was sent and used", [*_uses(run)]),
        ("Setting", settings(_setting(run))),
    ]
    return Page(
        kind=f"Swarm of real {run.who}s",
        title=title,
        badge=badge,
        verdict=verdict,
        answer=_answer(run),
        facts=[*_facts(run, learned)],
        sections=sections,
        lead=lead_of(learned),
    )


def _headline(run: Run, learned: Learned) -> tuple[str, str, Verdict]:
    most = max((one.contributors or 0 for one in run.rounds), default=0) if run.batch else run.contributors
    who = f"{count(most)} of {counted(run.clients, 'client')}"
    if run.has_nodes:
        who = f"{counted(most or 0, 'row')} of {counted(len(run.nodes), 'data node')}"
    if run.reports is not None:
        who = counted(run.reported or 0, "private report")
    if not run.ok:
        return f"No result: {run.error or 'the reason was not recorded'}", "ended without a result", "bad"
    badge: tuple[str, Verdict] = ("private", "good") if run.private else ("not private", "bad")
    if words := learned_words(learned):
        return f"Learned from {who}{words}", *badge
    last = f", of {counted(run.rounds[-1].dimension, 'value')}" if run.rounds else ""
    return f"{who} are in the last sum{last}", *badge


def _answer(run: Run) -> str:
    """The run in two sentences: what came out, what it cost."""
    with_whom = counted(run.computes, "Compute node") if run.is_summed else counted(run.clients, run.who)
    held = f"{counted(len(run.rounds), 'round')} with {with_whom}"
    held += f" took {seconds(run.wall_s)}." if run.wall_s is not None else "."
    if not run.private:
        return f"{held} No epsilon can be claimed: {'; '.join(run.not_private_because) or 'no reason is given'}."
    spent = ""
    if run.epsilon_spent is not None:
        spent = f"Each {_payer(run)} spent at most epsilon {claimed(run.epsilon_spent)}"
        spent += f" of {claimed(run.epsilon)}" if run.epsilon is not None else ""
        spent += f" at delta {claimed(run.delta)}" if run.delta is not None else ""
        spent += "."
    if not run.is_summed:
        own = "data node adds the whole noise for one row itself" if run.has_nodes else "report is private by itself"
        return f"{held} {spent} Each {own}."
    fewest = _needed(run)
    verb = "was" if fewest == 1 else "were"
    return f"{held} {spent} At least {counted(fewest, 'contribution')} {verb} needed in each round."


def _payer(run: Run) -> str:
    return "row" if run.has_nodes else "client"


def _needed(run: Run) -> int:
    """How many contributions the smallest round needed: recorded, for a mini-batch tolerates its part of T."""
    if run.unknown_noises is not None:
        return run.unknown_noises + 1 + run.colluders
    return (run.batch or run.clients) - run.tolerated + run.colluders


def _facts(run: Run, learned: Learned) -> Iterator[tuple[str, str]]:
    """The five figures that a reader asks for first."""
    if run.epsilon_spent is not None:
        yield f"epsilon spent per {_payer(run)}", f"{claimed(run.epsilon_spent)} of {claimed(run.epsilon or 0)}"
    if run.is_summed:
        yield "clients in the last sum", f"{count(run.contributors)} of {count(run.batch or run.clients)}"
    else:
        yield ("rows", count(run.contributors)) if run.has_nodes else ("reports", count(run.reported))
    for one in (learned.test.every_score if learned.test else [])[:1]:
        yield f"test {one.name}, not covered by epsilon", one.said(one.private)
    aborted = sum(not one.ok for one in run.rounds)
    yield "rounds", count(len(run.rounds)) + (f", {count(aborted)} aborted" if aborted else "")
    yield "wall time", seconds(run.wall_s)


def _setting(run: Run) -> Iterator[tuple[str, str]]:
    yield f"{run.who}s ({'J' if run.has_nodes else 'N'})", count(run.clients)
    if run.batch:
        yield f"clients of a {'mini-batch' if run.is_summed else 'step'} (B)", count(run.batch)
    if run.is_summed:
        yield f"tolerated dropouts (T){' of all clients' if run.batch else ''}", count(run.tolerated)
        yield "reserved for colluders (c)", count(run.colluders)
        yield "Compute nodes (M)", count(run.computes)
    else:
        yield "Compute nodes", "none"
    if run.reports is not None:
        yield "reports, one of each client", count(run.reported)
    if run.mechanism:
        yield "noise", run.mechanism
    if run.job is not None:
        yield "job", run.job
    yield "broker", f"{run.broker or UNKNOWN} {run.broker_version or ''}".strip()
    if run.connections is not None:
        yield "connections", "one per client" if run.connections == "each" else run.connections
    if run.processes is not None:
        yield "processes", count(run.processes)
    if run.connect_s is not None:
        yield "until all were connected", seconds(run.connect_s)
    if run.sessions is not None:
        yield "until all had sessions", seconds(run.sessions.wall_s)


def _aborts(run: Run) -> list[Block]:
    """Each reason, with the rounds that it ended."""
    rows = [(reason, listed([*map(str, numbers)], 12)) for reason, numbers in run.aborts.items()]
    return [Table(("reason", "rounds"), rows[:_ROWS_MAX], text_columns=(0, 1))] if rows else []


def _timeline(run: Run) -> Iterator[Block]:
    if not run.rounds:
        return
    phases = list(dict.fromkeys(phase for one in run.rounds for phase in one.phases))
    lanes = []
    for ordinal, one in enumerate(run.rounds[:_LANES_MAX], 1):
        pieces, at = [], 0.0
        for phase, length in one.phases.items():
            pieces.append((at, at + length, phases.index(phase)))
            at += length
        lanes.append(Lane(f"{ordinal}. {one.name}{'' if one.ok else ', aborted'}", pieces))
    caption = "Wall time from each round's announcement."
    if len(run.rounds) > _LANES_MAX:
        caption += f" {count(len(run.rounds) - _LANES_MAX)} more lanes are not shown."
    longest = max(one.wall_s for one in run.rounds)
    legend = {phase: place for place, phase in enumerate(phases)}
    yield timeline(lanes, 0.0, longest, legend, caption=caption)
    late = ("late",) if any(one.late for one in run.rounds) else ()
    yield Table(
        ("round", "values", run.came, *late, "dropped", "closed", *phases, "in all"),
        [
            (_label(group), count(group[0].dimension),
             count(group[0].contributors if run.is_summed else group[0].arrived), *(count(group[0].late) for _ in late),
             count(group[0].dropped), group[0].closed or UNKNOWN,
             *(seconds(_sum(one.phases.get(phase) for one in group)) for phase in phases),
             seconds(_sum(one.wall_s for one in group)))
            for group in grouped(run.rounds)
        ],
    )  # fmt: skip
    slow = [(one.name, str(who.client), seconds(who.s)) for one in run.rounds for who in one.slowest[:10]]
    if slow:
        yield Heading("Slowest clients")
        yield Table(("round", "client", "after"), slow[:_ROWS_MAX])


def _label(group: Sequence[Round]) -> str:
    return f"{group[0].name}{'' if group[0].ok else ', aborted'}{f' ×{len(group)}' if len(group) > 1 else ''}"


def _sum(lengths: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [length for length in lengths if length is not None]
    return sum(known) if known else None


def _absent(run: Run) -> Iterator[Block]:
    """How many were asked, and what became of those who are not in the result."""
    if not run.rounds:
        return
    if all(one.ok and not (one.dropped or one.late or one.declined) for one in run.rounds):
        yield Note(f"Nobody: every {run.who} that was asked {run.came}, in each round.")
        return
    rows = [
        (f"{place}. {one.name}", count(run.clients if one.expected is None else one.expected),
         count(sum(one.declined.values())), count(one.late), count(one.dropped))
        for place, one in enumerate(run.rounds[:_ROWS_MAX], 1)
    ]  # fmt: skip
    yield Table(("round", "asked", "declined", "late", "dropped"), rows)
    yield Note("Late is what was sent and came after the round had closed; of the dropped, nothing came.")
    named = [(f"{place}. {one.name}", one.absent_clients or one.vanished_clients)
             for place, one in enumerate(run.rounds[:_ROWS_MAX], 1)]  # fmt: skip
    numbers = [f"{name}: {run.who}s {listed([*map(str, absent)], _NAMED_MAX)}" for name, absent in named if absent]
    if numbers:
        yield Folded(f"numbers of those missing, from 0, in {counted(len(numbers), 'round')}", Items(numbers))
    declined = [(one.name, why, count(clients)) for one in run.rounds for why, clients in one.declined.items()]
    if declined:
        yield Heading("Why clients declined")
        yield Table(("round", "why", "clients"), declined[:_ROWS_MAX], text_columns=(0, 1))


def _noise(run: Run) -> Iterator[Block]:
    held = [group[-1] for group in grouped(run.rounds) if group[-1].noise_sd is not None]
    whose = "one row" if run.has_nodes else "one client"
    rows = [
        (Cell(one.name, counted(one.dimension, "value")), number(one.noise_sd),
         number(one.floor_sd) if run.reports is None else UNKNOWN, number(one.sensitivity))
        for one in held
    ]  # fmt: skip
    if rows:
        yield Table(("round", "sd of the noise", "the claim needs", f"{whose} moves the sum by at most"), rows)
        told = "In the units of the sum that is released; columns are scaled by their public bounds."
        yield Note(f"{told}{' The claim needs that much of each data node.' if run.has_nodes else ''}")
    for one in held:
        if one.value:
            yield _signal(one)
        elif one.sensitivity is not None and one.contributors and one.noise_sd:
            most = one.contributors * one.sensitivity
            told = f"All {count(one.contributors)} contributors together can move the sum of {one.name} by at most "
            yield Note(f"{told}{number(most)}, which is {number(most / one.noise_sd)} times the noise.")


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
    x = Axis("value of the sum, by its place", whole=True)
    return lines(series, x, Axis("size, in the sum's units", log=True), caption=caption)


def traffic_table(roles: dict[str, Traffic]) -> list[Block]:
    """Messages and bytes that the actors of each role sent, and all of them."""
    if not roles:
        return []
    every = Traffic(sum(one.messages for one in roles.values()), sum(one.bytes for one in roles.values()))
    rows = [(role, count(one.messages), size(one.bytes)) for role, one in {**roles, "all": every}.items()]
    return [Table(("role", "messages sent", "bytes sent"), rows)]


def _uses(run: Run) -> Iterator[Block]:
    if run.roles:
        yield from traffic_table(run.roles)
    elif run.rounds:
        rows = [(_label(group), count(sum(one.messages for one in group)), size(sum(one.bytes for one in group)))
                for group in grouped(run.rounds)]  # fmt: skip
        yield Table(("round", "messages sent", "bytes sent"), rows)
    if run.core_s_by_role:
        yield Table(("role", "core time"), [(role, seconds(took)) for role, took in run.core_s_by_role.items()])
    if run.peak_rss_mb_by_process:
        peaks = [(name, size(most * _MIB)) for name, most in run.peak_rss_mb_by_process.items()]
        yield Table(("process", "most memory"), peaks)
