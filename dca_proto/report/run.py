"""Shows a run of a swarm or of a federation's trainer on terminals and pages: its rounds, costs and privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dca_proto.privacy.rounding import at_least
from dca_proto.report import learned
from dca_proto.report.blocks import (
    Block,
    Folded,
    Items,
    Line,
    Note,
    Page,
    PageTable,
    Section,
    roles_table,
    settings,
    table,
)
from dca_proto.report.charts import Axis, Curve, TimelineRow, lines, timeline
from dca_proto.report.formats import MIB, claimed, count, listed, seconds, size
from dca_proto.report.tables import columns_of, lines_of
from dca_proto.results.lost import Lost
from dca_proto.results.round import Round, Slow, liar_words, lost_words
from dca_proto.results.run import SETTING, Run, grouped
from dca_proto.wording import JsonObject, counted
from inference.jobs.estimates import rows_of
from inference.jobs.summary import Summary

_COORDINATES_MAX = 400
_NO_COLLUDERS = "no colluding client beside the curious one"
Group = Sequence[Round]
"""Rounds that share a row of a table."""


# --- tables -----------------------------------------------------------------------------------------------------------


def rounds_table(run: Run, *, on_page: bool = False) -> list[Block]:
    """Return a table of the rounds: who took part, and the noise in the sum. Many similar rounds share a row.

    Args:
        on_page: add the noise that the claim requires, and the sensitivity.
    """
    titles = {"arrived": ""}
    if not run.is_summed:
        titles = {"arrived": run.came, "contributors": "rows" if run.has_nodes else ""}
    return _of_rounds(grouped(run.rounds), "rounds", titles=titles, on_page=on_page)


def times_table(run: Run) -> list[Block]:
    """Return a table of the time and the traffic of each round; a row with several rounds has their sums."""
    timed = [group for group in grouped(run.rounds) if group[0].wall_s is not None]
    phases = dict.fromkeys(phase for group in timed for round_ in group for phase in round_.phases)
    before = {
        phase: [seconds(math.fsum(round_.phases.get(phase, 0.0) for round_ in group)) for group in timed]
        for phase in phases
    }
    return _of_rounds(timed, "times", before)


def _of_rounds(groups: Sequence[Group], name: str, before: Mapping[str, list[str]] = {}, **how: Any) -> list[Block]:
    """Return a table with a row for each group of rounds; `before` are columns before its own."""
    return _table({"round": [*map(_name, groups)], **before, **columns_of(Round, name, groups, **how)}, name)


def _table(columns: Mapping[str, list[str]], title: str = "") -> list[Block]:
    rows = [*zip(*columns.values(), strict=True)]
    return [PageTable([*columns], rows, title)] if rows else []


def tables(run: Run) -> list[Block]:
    """Return all tables of a run for a terminal."""
    roles = roles_table(run.roles, run.core_s_by_role, run.peak_rss_mb_by_process)
    return [*rounds_table(run), *times_table(run), *learned.nodes_of(run.nodes, 12), *roles]


def _name(group: Group) -> str:
    times = f" ×{len(group)}" if len(group) > 1 else ""
    return f"{group[0].statistic}{times}{'' if group[0].ok else ', aborted'}"


# --- lines ------------------------------------------------------------------------------------------------------------


def aborted_lines(run: Run, most: int = 4) -> list[Line]:
    """Return the reasons for which rounds were aborted, at most `most`."""
    reasons = [("aborted", f"{_rounds(numbers, most + 1)}: {reason}") for reason, numbers in run.aborts.items()]
    more = [("", f"{len(reasons) - most} more reasons are in the JSON")] if len(reasons) > most else []
    return reasons[:most] + more


_VERIFIED = (
    "each contribution proved to be within its bounds, and public coins made its noise; epsilon includes their slack. "
    "A client can still lie within the bounds: {}. One lying Compute node can pass or fail any client, unseen"
)


def _rounds(numbers: Sequence[int], most: int = 12) -> str:
    return f"round{'s' * (len(numbers) > 1)} {listed([*map(str, numbers)], most)}"


def missing_lines(run: Run, most: int = 4, names: int = 4) -> list[Line]:
    """Return who is missing from results: a number (fixed by the seed) and the start of the id (new in each run).

    Args:
        most: how many rounds to list. names: how many clients of each.
    """
    lines = [
        ("missing" if round_.late or round_.declined or round_.unproven_clients else "dropped",
         f"round {place}: {run.who}s {listed(absent, names + 1)}")
        for place, round_ in enumerate(run.rounds, 1)
        if (absent := _absent(round_))
    ]  # fmt: skip
    more = [("", f"others in {len(lines) - most} more rounds")] if len(lines) > most else []
    return lines[:most] + more


def _absent(round_: Round) -> list[str]:
    numbers = round_.absent_clients or round_.vanished_clients
    ids = [f" ({name[:6]})" for name in round_.absent] if round_.absent else [""] * len(numbers)
    return [f"{number}{shown}" for number, shown in zip(numbers, ids, strict=False)]


def lost_lines(run: Run, most: int = 4) -> list[Line]:
    """Return the lost Compute nodes with the time of each loss, and the rounds that went on without them."""
    whom: dict[Lost, list[int]] = {}
    for place, round_ in enumerate(run.rounds, 1):
        for lost in round_.lost:
            whom.setdefault(lost, []).append(place)
    lines = [("lost", f"{lost_words([lost])}: {_rounds(places)}") for lost, places in whom.items()]
    more = [("", f"{len(lines) - most} more losses are in the JSON")] if len(lines) > most else []
    return lines[:most] + more


def synthetic_lines(run: Run) -> Iterator[Line]:
    """Yield the times to connect, the declines and failures, and the error of the last synthetic sum."""
    if run.connect_s is not None and run.sessions_s is not None:
        yield "connected", f"in {seconds(run.connect_s)}, including keys and certificates"
        yield "sessions", f"of all clients at all Compute nodes after {seconds(run.sessions_s)}"
    for place, round_ in enumerate(run.rounds, 1):
        if round_.failed:
            yield "failed", f"round {place}: {round_.failed} clients neither declined nor contributed"
        for doubt in round_.doubts:
            yield "warning", f"round {place}: {doubt}"
        for why, clients in round_.declined.items():
            yield "declined", f"round {place}: {clients} clients, {why}"
    last = run.rounds[-1]
    if last.value is not None and last.exact is not None:
        error = max(abs(value - exact) for value, exact in zip(last.value, last.exact, strict=True))
        yield "sum", f"at most {error:.3g} off the exact one, with noise of standard deviation {last.noise_sd:.3g}"


def privacy_lines(run: Run) -> list[Line]:
    """Return what was spent and against whom the guarantee holds; or why no privacy may be claimed."""
    if not run.private or run.epsilon is None or run.delta is None:
        return [("not private", f"{'; '.join(run.not_private_because)}: no privacy may be claimed (a trial only)")]
    unit, trust, holds = "client", learned.BY_ITSELF, ""
    if run.has_nodes:
        nodes = len(run.nodes)
        adds = "the data node adds" if nodes == 1 else f"each of the {nodes} data nodes adds"
        unit, trust = "row", "each row is one person's, at one data node"
        holds = f"everybody but a row's own data node: {adds} all the noise for one row before anything leaves it, "
        holds += "and reports how many rows it has"
    elif run.reports:
        holds = "everybody but the client itself, however many collude: it added all the noise before it reported"
    else:
        trust = "nobody saw a single client's numbers"
        beyond = f"{run.colluders} more colluding clients" if run.colluders else _NO_COLLUDERS
        noises = run.unknown_noises
        unknown = "1 unknown noise is" if noises == 1 else f"{noises} unknown noises are"
        p = run.computes - 1 if run.p is None else run.p
        holds = f"up to {p} of {run.computes} Compute nodes and the broker colluding, and {beyond}: "
        holds += f"at least {unknown} in each sum"
    spent = f"epsilon {at_least(run.epsilon)}" if run.epsilon_spent is None else (
        f"epsilon {at_least(run.epsilon_spent)} of {at_least(run.epsilon)}"
    )  # fmt: skip
    found = [("spent", f"{spent} per {unit}, delta {at_least(run.delta)}; {trust}"), ("holds for", holds)]
    if run.rounds and all(one.verified for one in run.rounds):
        found.append(("verified", _VERIFIED.format(liar_words(max(one.liar_factor for one in run.rounds)))))
    return found


def closing_lines(run: Run, summary: Summary) -> list[Line]:
    """Return the answer in sentences: its quality, what epsilon does not cover, what was spent, what that assumes."""
    uncovered = ["what is learned without privacy"] * any(row["nonprivate"] is not None for row in rows_of(summary))
    uncovered += ["scores on held-out rows"] * bool(summary.get("test"))
    why = f"by epsilon, because computed from raw rows: {' and '.join(uncovered)}"
    why += "; --no-reference leaves this out" if run.federation is None else ""
    return [*learned.closing_lines(summary), *([("not covered", why)] if uncovered else []), *privacy_lines(run)]


# --- the page ---------------------------------------------------------------------------------------------------------


def read(found: JsonObject) -> tuple[Run, Summary]:
    """Return a run and what was learned, from a file's object. Raises `msgspec.ValidationError`."""
    return msgspec.convert(found, Run), learned.read(found)


def page(found: tuple[Run, Summary]) -> Page:
    """Return the page of a run and what was learned."""
    run, summary = found
    badge = ("private" if run.private else "not private") if run.ok else "ended without a result"
    reports = [(round_.contributors or 0, round_.noise_variance, round_.reports) for round_ in run.rounds]
    roles, peaks = roles_table(run.roles, run.core_s_by_role, run.peak_rss_mb_by_process), run.peak_rss_mb_by_process
    memory = table(peaks.items(), {"process": lambda item: item[0], "peak memory": lambda item: size(MIB * item[1])})
    sections: list[Section] = [
        ("Why rounds were aborted", settings((_rounds(numbers), why) for why, numbers in run.aborts.items())),
        *learned.sections_of(summary),
        ("Data nodes", learned.nodes_of(run.nodes)),
        ("Reports", learned.reports_of(run.reports, reports, [row["name"] for row in rows_of(summary)])),
        ("Rounds", [*rounds_table(run, on_page=True), *_absence(run), *_timeline(run), *times_table(run)]),
        ("Lost Compute nodes", settings(lost_lines(run, len(run.rounds) * run.computes))),
        ("Slowest clients", _slowest(run)),
        ("Noise", [_signal(group[-1]) for group in grouped(run.rounds) if group[-1].value and group[-1].noise_sd]),
        ("Sent and used by each role", [*roles, *memory]),
        ("Privacy", settings(privacy_lines(run)) if run.ok else []),
        ("Setting", settings(_setting(run))),
    ]  # fmt: skip
    return Page(
        kind="Learned from a federation" if run.federation else f"Swarm of real {run.who}s",
        title=_title(run, summary),
        badge=badge,
        verdict="good" if run.ok and run.private else "bad",
        answer=_answer(run, summary),
        facts=[*_facts(run, summary)],
        sections=sections,
        lead=learned.lead_of(summary),
        warnings=summary.get("warnings", []),
    )


def _title(run: Run, summary: Summary) -> str:
    if not run.ok:
        return f"No result: {run.error or 'the reason was not recorded'}"
    most = max((round_.contributors or 0 for round_ in run.rounds), default=0) if run.batch else run.contributors
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
    """Return the run in a few sentences: its rounds, and what they cost."""
    with_whom = counted(run.computes, "Compute node") if run.is_summed else counted(run.clients, run.who)
    rounds = f"{counted(len(run.rounds), 'round')} with {with_whom}"
    rounds += f" of {run.federation}" if run.federation else ""
    rounds += f" took {seconds(run.wall_s)}." if run.wall_s is not None else "."
    if summary.get("stopped"):
        rounds += f" The job stopped before all planned rounds: {summary['stopped']}."
    if not run.private:
        return f"{rounds} No epsilon can be claimed: {'; '.join(run.not_private_because) or 'no reason is given'}."
    return " ".join([rounds, *(f"Spent: {text}." for label, text in privacy_lines(run) if label == "spent")])


def _facts(run: Run, summary: Summary) -> Iterator[Line]:
    """Yield the five figures that a reader asks for first."""
    unit = "row" if run.has_nodes else "client"
    if run.epsilon_spent is not None:
        yield f"epsilon spent per {unit}", f"{claimed(run.epsilon_spent)} of {claimed(run.epsilon or 0)}"
    elif run.epsilon is not None:
        yield f"epsilon per {unit}, at most", claimed(run.epsilon)
    if run.is_summed:
        yield "clients in the last sum", f"{count(run.contributors)} of {count(run.batch or run.clients)}"
    else:
        yield ("rows", count(run.contributors)) if run.has_nodes else ("reports", count(run.reported))
    if (found := learned.result(summary)) is not None:
        yield found
    aborted = sum(not round_.ok for round_ in run.rounds)
    yield "rounds", count(len(run.rounds)) + (f", {count(aborted)} aborted" if aborted else "")
    if run.wall_s is not None:
        yield "wall time", seconds(run.wall_s)


def _setting(run: Run) -> list[Line]:
    titles = {"clients": f"{run.who}s ({'J' if run.has_nodes else 'N'})"}
    if not run.is_summed:
        titles |= {"batch": "clients in a step (B)", "tolerate": "", "colluders": "", "computes": ""}
    units = ("units of values", "those of the released sum; columns are scaled by their public bounds")
    reports = [("reports, one from each client", count(run.reported))] if run.reports else []
    return [*lines_of(run, SETTING, titles=titles), *reports, units]


def _timeline(run: Run) -> list[Block]:
    timed = [round_ for round_ in run.rounds if round_.wall_s is not None]
    if not timed:
        return []
    phases = list(dict.fromkeys(phase for round_ in run.rounds for phase in round_.phases))
    lanes = []
    for ordinal, round_ in enumerate(timed, 1):
        pieces, at = [], 0.0
        for phase, length in round_.phases.items():
            pieces.append((at, at + length, phases.index(phase)))
            at += length
        lanes.append(TimelineRow(f"{ordinal}. {round_.statistic}{'' if round_.ok else ', aborted'}", pieces))
    longest = max(round_.wall_s or 0.0 for round_ in timed)
    legend = {phase: place for place, phase in enumerate(phases)}
    return [timeline(lanes, 0.0, longest, legend, caption="Wall time from each round's announcement.")]


def _slowest(run: Run) -> list[Block]:
    slow = [(round_.statistic, client) for round_ in run.rounds for client in round_.slowest]
    return _table(
        {"round": [name for name, _ in slow], **columns_of(Slow, "slowest", [[client] for _, client in slow])}
    )


def _absence(run: Run) -> Iterator[Block]:
    if not run.rounds:
        return
    if all(round_.ok and not (round_.dropped or round_.late or round_.declined) for round_ in run.rounds):
        yield Note(f"Every {run.who} that was asked {run.came}, in each round.")
        return
    if any(round_.late or round_.dropped for round_ in run.rounds):
        yield Note("Late: sent, but arrived after the round had closed. Dropped: nothing arrived.")
    missing = [text for _, text in missing_lines(run, len(run.rounds), 40)]
    if missing:
        yield Folded("who is missing, by number from 0 and the first digits of the id", Items(missing))
    declined = [(round_.statistic, why, count(n)) for round_ in run.rounds for why, n in round_.declined.items()]
    if declined:
        yield PageTable(("round", "why", "clients"), declined, "Why clients declined")


def _signal(round_: Round) -> Block:
    """Return a chart of the released values against the noise."""
    assert round_.value is not None, "the caller checked"
    shown = [(float(place), abs(value)) for place, value in enumerate(round_.value[:_COORDINATES_MAX], 1)]
    series = [Curve("released value, with noise", shown, 0, "", "o")]
    if round_.exact:
        truth = [(float(place), abs(value)) for place, value in enumerate(round_.exact[:_COORDINATES_MAX], 1)]
        series.append(Curve("exact value, known to the emulation only", truth, 2, "", "s"))
    level = round_.noise_sd or 0.0
    series.append(Curve("sd of the noise", [(0.5, level), (len(shown) + 0.5, level)], 1, "--"))
    caption = f"{round_.statistic}: values far above the line stand out from the noise; values near it do not."
    if len(round_.value) > _COORDINATES_MAX:
        caption += f" The first {_COORDINATES_MAX} of {count(len(round_.value))} values."
    x = Axis("index of the value in the sum", whole=True)
    return lines(series, x, Axis("absolute value, in the sum's units", log=True), caption=caption)
