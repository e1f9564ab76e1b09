"""An emulated run: whether every invariant held, what was done to it, when, and how to see it again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from emulator.report.bars import Bar, bars
from emulator.report.collusion import said
from emulator.report.figures import UNKNOWN, claimed, count, counted, listed, number, seconds
from emulator.report.lanes import Lane, Mark, Piece, lanes
from emulator.report.markup import Child, code, element, table
from emulator.report.page import Page, Section, folded, note
from emulator.report.traffic import traffic
from emulator.report.types import Amount, Count, Traffic

PHASES = ("collect", "agree")
_FAULT, _DROP = 4, -1
_FACTS_MAX = 200


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round; `phases` maps a phase to [from, to] in ms of virtual time."""

    result: str
    round_id: str = ""
    reason: str | None = None
    clients: Count | None = None
    contributors: Count | None = None
    needed: Count | None = None
    epsilon: Amount | None = None
    noise_variance: Amount | None = None
    noise_floor: Amount | None = None
    phases: dict[str, tuple[Amount, Amount]] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended: whether it was live once healed, and if not why; how a further round went, or why none was due."""

    result: str
    rounds: list[Round]
    live: bool | None = None
    further: str | None = None
    why: list[str] = []


class Invariant(msgspec.Struct, frozen=True):
    """One of the ten: how often it was checked, whether it held, and if not, what was found."""

    number: Count
    name: str
    checked: Count
    ok: bool
    detail: str | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something done to an actor or the network, at a moment or for a time."""

    kind: str
    actor: str | None = None
    role: str | None = None
    at_ms: Amount | None = None
    until_ms: Amount | None = None
    reached: bool = True


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A client that vanished."""

    client: Count
    at_ms: Amount
    phase: str | None = None


class Emulation(msgspec.Struct, frozen=True, kw_only=True):
    """What the page reads of `dca emulate run|replay --json`."""

    ok: bool
    digest: str
    outcome: Outcome
    invariants: list[Invariant]
    seed: int | str | None = None
    faults: list[Fault] = []
    options: dict[str, Any] = {}
    traffic: dict[str, Traffic] = {}
    drops: list[Drop] = []
    last_facts: list[str] = []
    replay: str | None = None
    wall_s: Amount | None = None
    virtual_s: Amount | None = None

    @property
    def broken(self) -> list[Invariant]:
        """Those that did not hold."""
        return [one for one in self.invariants if not one.ok]


def page(run: Emulation) -> Page:
    """The page of an emulation."""
    sections = [
        Section("How to see it again", [*_replay(run)]),
        Section("Invariants", [*_invariants(run)]),
        Section("Timeline", [*_timeline(run)]),
        Section("Rounds", [*_rounds(run)]),
        Section("Noise in the sums", [*_noise(run)]),
        Section("Who dropped out when", [*_drops(run)]),
        Section("Messages and bytes per role", [*traffic(run.traffic)] if run.traffic else []),
        Section("Hostile actors", [*_adversaries(run)]),
        Section("Last facts", [*_facts_told(run)]),
        Section("Scenario", [*_options(run)]),
    ]
    return Page(
        kind="Emulation of the production actors",
        title=_title(run),
        badge="nothing broken" if run.ok else "broken",
        verdict="good" if run.ok else "bad",
        answer=_answer(run),
        facts=[*_facts(run)],
        sections=[section for section in sections if section.content],
    )


def _title(run: Emulation) -> str:
    if run.broken:
        names = listed([f"{one.number} ({one.name})" for one in run.broken], 3)
        return f"Invariant{'s' if len(run.broken) > 1 else ''} {names} did not hold"
    if not run.ok:
        return "No invariant was seen broken, but the run is not ok"
    results = Counter(one.result for one in run.outcome.rounds)
    ended = listed([f"{counted(held, 'round')} {result}" for result, held in results.items()]) or "no round held"
    return f"{ended}; nothing that was promised was broken"


def _answer(run: Emulation) -> str:
    """Which faults there were, who contributed, what was spent."""
    reached = sum(fault.reached for fault in run.faults)
    parts = [f"{count(reached)} of {counted(len(run.faults), 'planned fault')} came to pass."]
    done = [one for one in run.outcome.rounds if one.result == "completed"]
    if done:
        last = done[-1]
        spent = f", for epsilon {claimed(last.epsilon)}" if last.epsilon is not None else ""
        needed = f"; at least {count(last.needed)} were needed" if last.needed is not None else ""
        parts.append(f"{count(last.contributors)} of {count(last.clients)} clients are in the last sum{spent}{needed}.")
    if run.outcome.live is not None:
        ended = "finished" if run.outcome.live else f"did not finish: {listed(run.outcome.why) or 'no reason is given'}"
        parts.append(f"Once healed, it {ended}.")
    if run.outcome.further:
        parts.append(f"A further round: {run.outcome.further}.")
    return " ".join(parts)


def _facts(run: Emulation) -> Iterator[tuple[str, str]]:
    yield "seed", UNKNOWN if run.seed is None else str(run.seed)
    yield "checks made", count(sum(one.checked for one in run.invariants))
    yield "virtual time", seconds(run.virtual_s)
    yield "wall time", seconds(run.wall_s)
    yield "digest of the trace", run.digest[:16]


def _replay(run: Emulation) -> Iterator[Child]:
    if run.replay:
        yield code(run.replay)
    yield note(f"The same seed and version give a trace with the digest {run.digest}.")


def _invariants(run: Emulation) -> Iterator[Child]:
    rows = [
        (str(one.number), one.name, count(one.checked), _verdict(one), one.detail or "")
        for one in sorted(run.invariants, key=lambda one: one.number)
    ]
    yield _table(("", "invariant", "checked", "verdict", "what was found"), rows, text_columns=(0, 1, 3, 4))


def _table(header: Sequence[str], rows: Sequence[Sequence[Child]], *, text_columns: Sequence[int]) -> Child:
    """A table, without its last column where nothing stands in it."""
    used = len(header) if any(row[-1] for row in rows) else len(header) - 1
    return table(header[:used], [row[:used] for row in rows], text_columns=text_columns)


def _verdict(one: Invariant) -> Child:
    if not one.ok:
        return element("span", "✗ broken", class_="bad-text")
    return element("span", "✓ holds", class_="good-text") if one.checked else "not checked"


def _timeline(run: Emulation) -> Iterator[Child]:
    """Rounds with their phases, then every fault, all on the same scale of virtual time."""
    rows = []
    for place, one in enumerate(run.outcome.rounds, 1):
        pieces = [
            Piece(begin, end, PHASES.index(phase) if phase in PHASES else 4, f"{phase}: {_ms(begin)} to {_ms(end)}")
            for phase, (begin, end) in one.phases.items()
        ]
        rows.append(Lane(f"round {place}", pieces, text=one.result))
    if run.drops:
        marks = [Mark(one.at_ms, _DROP, f"client {one.client} at {_ms(one.at_ms)}") for one in run.drops]
        rows.append(Lane("clients drop out", marks=marks, text=counted(len(run.drops), "client")))
    rows += [_fault(fault) for fault in sorted(run.faults, key=_first)]
    legend = [*((phase, place) for place, phase in enumerate(PHASES)), ("fault", _FAULT), ("dropout", _DROP)]
    if rows:
        caption = "Virtual time from the scenario's start. A fault that was planned and not reached has no mark."
        yield lanes(rows, _end_ms(run), _ms, caption=caption, legend=legend)


def _first(fault: Fault) -> float:
    return math.inf if fault.at_ms is None or not fault.reached else fault.at_ms


def _fault(fault: Fault) -> Lane:
    label = " ".join(filter(None, (fault.kind, fault.actor or fault.role)))
    if not fault.reached or fault.at_ms is None:
        return Lane(label, text="not reached" if not fault.reached else "throughout")
    if fault.until_ms is None:
        return Lane(label, marks=[Mark(fault.at_ms, _FAULT, label)], text=f"at {_ms(fault.at_ms)}")
    span = f"{_ms(fault.at_ms)} to {_ms(fault.until_ms)}"
    return Lane(label, [Piece(fault.at_ms, fault.until_ms, _FAULT, f"{label}: {span}")], text=span)


def _end_ms(run: Emulation) -> float:
    ends = [end for one in run.outcome.rounds for _, end in one.phases.values()]
    ends += [moment for one in run.faults for moment in (one.at_ms, one.until_ms) if moment is not None and one.reached]
    return max([*ends, *(one.at_ms for one in run.drops)], default=1.0)


def _rounds(run: Emulation) -> Iterator[Child]:
    rows = [
        (one.round_id[:8] or UNKNOWN, one.result, count(one.clients), count(one.contributors), count(one.needed),
         claimed(one.epsilon), one.reason or "")
        for one in run.outcome.rounds[:200]
    ]  # fmt: skip
    if rows:
        header = ("round", "result", "clients", "contributed", "needed", "epsilon", "reason")
        yield _table(header, rows, text_columns=(0, 1, 6))


def _noise(run: Emulation) -> Iterator[Child]:
    """Variances beside the floors, of the rounds that released a sum."""
    for place, one in enumerate(run.outcome.rounds[:20], 1):
        if one.noise_variance is None or one.noise_floor is None:
            continue
        rows = [
            Bar("noise in the sum", one.noise_variance, f"variance {number(one.noise_variance)}", 0),
            Bar("floor: what the claim needs", one.noise_floor, f"variance {number(one.noise_floor)}", 1),
        ]
        ratio = f"{number(one.noise_variance / one.noise_floor)} times the floor" if one.noise_floor else "no floor"
        yield bars(rows, caption=f"Round {place}: {ratio}.")


def _adversaries(run: Emulation) -> Iterator[Child]:
    """Those that the scenario names, in whatever form."""
    named = run.options.get("adversaries")
    if isinstance(named, list) and named:
        rows = [(said(one.get("kind")), said(one.get("actor"))) for one in named[:200] if isinstance(one, dict)]
        yield table(("kind", "actor"), rows, text_columns=(0, 1))


def _facts_told(run: Emulation) -> Iterator[Child]:
    if run.last_facts:
        text = code("\n".join(run.last_facts[-_FACTS_MAX:]))
        told = element("details", element("summary", f"the last {counted(len(run.last_facts), 'fact')}"), text)
        yield told if run.ok else text


def _drops(run: Emulation) -> Iterator[Child]:
    by_phase = Counter(one.phase or "unknown" for one in run.drops)
    if by_phase:
        yield bars(
            [Bar(phase, found, count(found), 1) for phase, found in by_phase.items()], caption="Dropouts by phase."
        )
        rows = [(f"client {one.client}", _ms(one.at_ms), one.phase or UNKNOWN) for one in run.drops[:200]]
        listing = table(("client", "when", "phase"), rows, text_columns=(0, 2))
        yield element("details", element("summary", "every dropout"), listing)


def _options(run: Emulation) -> Iterator[Child]:
    if run.options:
        yield folded("all options, as JSON", run.options)


def _ms(value: float) -> str:
    return seconds(value / 1000)
