"""An emulated run: whether every invariant held, what was done to it, when, and how to see it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from emulator.report.charts import Lane, timeline
from emulator.report.figures import UNKNOWN, claimed, count, counted, listed, number, seconds
from emulator.report.page import Block, Cell, Code, Folded, Heading, Note, Page, Section, Table, as_json
from emulator.report.swarm import traffic_table
from emulator.trials.fault import FaultOutcome
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.outcome import InvariantOutcome, Outcome, RoundOutcome

PHASES = ("collect", "commit")
_FAULT, _DROP, _OTHER = 4, -1, 3
_FACTS_MAX, _ROWS_MAX = 200, 200
_MARGIN = 0.03


def by_kind(run: Outcome) -> dict[str, list[FaultOutcome]]:
    """The faults by kind, those that struck first on top."""
    first = sorted(run.faults, key=lambda one: (not one.reached, one.at_ms))
    return {kind: [one for one in first if one.kind == kind] for kind in dict.fromkeys(one.kind for one in first)}


def page(run: Outcome) -> Page:
    """The page of an emulation."""
    sections: list[Section] = [
        ("How to see it again", [*_replay(run)]),
        ("Invariants", _invariants(run)),
        ("Rounds", _rounds(run)),
        ("Timeline", _timeline(run)),
        ("Faults", _faults(run)),
        ("Who dropped out when", _drops(run)),
        ("Messages and bytes per role", traffic_table(run.traffic)),
        ("Hostile actors", _adversaries(run)),
        ("Last facts", _last_facts(run)),
        ("Scenario", as_json("all options, as JSON", run.options)),
    ]
    return Page(
        kind="Emulation of the production actors",
        title=_title(run),
        badge="nothing broken" if run.ok else "broken",
        verdict="good" if run.ok else "bad",
        answer=_answer(run),
        facts=[
            ("seed", UNKNOWN if run.seed is None else str(run.seed)),
            ("checks made", count(sum(one.checked for one in run.invariants))),
            ("faults reached, of planned", f"{count(sum(one.reached for one in run.faults))} of {len(run.faults)}"),
            ("virtual time", seconds(run.virtual_s)),
            ("wall time", seconds(run.wall_s)),
        ],
        sections=sections,
    )


def _broken(run: Outcome) -> list[InvariantOutcome]:
    """Those that did not hold."""
    return [one for one in run.invariants if not one.ok]


def _title(run: Outcome) -> str:
    broken = _broken(run)
    if broken:
        names = listed([f"{one.number} ({one.name})" for one in broken], 3)
        return f"Invariant{'s' if len(broken) > 1 else ''} {names} did not hold"
    if not run.ok:
        return "No invariant was seen broken, but the run is not ok"
    results = Counter(one.result for one in run.ended.rounds)
    ended = listed([f"{counted(held, 'round')} {result}" for result, held in results.items()]) or "no round held"
    return f"{ended}; nothing that was promised was broken"


def _answer(run: Outcome) -> str:
    """Which faults there were, who contributed, what was spent."""
    reached = sum(fault.reached for fault in run.faults)
    parts = [f"{count(reached)} of {counted(len(run.faults), 'planned fault')} came to pass."]
    done = [one for one in run.ended.rounds if one.result == "completed"]
    if done:
        last = done[-1]
        spent = f", for epsilon {claimed(last.epsilon)}" if last.epsilon is not None else ""
        needed = f"; at least {count(last.needed)} were needed" if last.needed is not None else ""
        parts.append(f"{count(last.contributors)} of {count(last.clients)} clients are in the last sum{spent}{needed}.")
    if run.ended.live is not None:
        ended = "finished" if run.ended.live else f"did not finish: {listed([*run.ended.why]) or 'no reason is given'}"
        parts.append(f"Once healed, it {ended}.")
    if run.ended.further:
        parts.append(f"A further round: {run.ended.further}.")
    return " ".join(parts)


def _replay(run: Outcome) -> Iterator[Block]:
    if run.replay:
        yield Code(run.replay)
    yield Note(f"The same seed and version give a trace with the digest {run.digest}.")


def _invariants(run: Outcome) -> list[Block]:
    rows = [
        (str(one.number), one.name, count(one.checked), _verdict(one), one.detail or "")
        for one in sorted(run.invariants, key=lambda one: one.number)
    ]
    used = 5 if _broken(run) else 4
    header = ("", "invariant", "checked", "verdict", "what was found")
    return [Table(header[:used], [row[:used] for row in rows], text_columns=(0, 1, 3, 4))]


def _verdict(one: InvariantOutcome) -> Cell:
    if not one.ok:
        return Cell("✗ broken", tone="bad")
    return Cell("✓ holds", tone="good") if one.checked else Cell("not checked")


def _timeline(run: Outcome) -> list[Block]:
    """Rounds with their phases, then a lane for each kind of fault, from the first round's begin to the last's end."""
    ends = [moment for one in run.ended.rounds for span in one.phases.values() for moment in span]
    if not ends:
        return []
    margin = _MARGIN * (max(ends) - min(ends)) or 1.0
    low, high = max(0.0, min(ends) - margin), max(ends) + margin  # in ms, as all times here
    lanes = []
    for place, one in enumerate(run.ended.rounds, 1):
        pieces = [
            (begin / 1000, end / 1000, PHASES.index(name) if name in PHASES else _OTHER)
            for name, (begin, end) in one.phases.items()
        ]
        lanes.append(Lane(f"round {place}, {one.result}", pieces))
    if run.drops:
        lanes.append(Lane("clients drop out", marks=[(one.at_ms / 1000, _DROP) for one in run.drops]))
    beyond = 0
    for kind, faults in by_kind(run).items():
        there = [one for one in faults if one.reached]
        seen = [one for one in there if one.at_ms <= high and (one.until_ms or one.at_ms) >= low]
        beyond += len(there) - len(seen)
        lasting = [(one.at_ms / 1000, one.until_ms / 1000, _FAULT) for one in seen if one.until_ms is not None]
        moments = [(one.at_ms / 1000, _FAULT) for one in seen if one.until_ms is None]
        lanes.append(Lane(f"{kind} {len(there)}/{len(faults)}", lasting, moments))
    caption = "Virtual time, from the first announcement to the last round's end. Faults are by kind, reached/planned."
    caption += f" {counted(beyond, 'fault')} struck before or after." if beyond else ""
    caption += f" Of {count(len(lanes))} lanes, the first are shown." if len(lanes) > 60 else ""
    legend = {phase: place for place, phase in enumerate(PHASES)} | {"fault": _FAULT, "dropout": _DROP}
    return [timeline(lanes, low / 1000, high / 1000, legend, caption=caption)]


def _faults(run: Outcome) -> list[Block]:
    """Each kind of fault with what it is, how many were reached of those planned, and whom they struck when."""
    rows = [
        (Cell(kind, FAULTS[kind].does if kind in FAULTS else ""),
         f"{sum(one.reached for one in faults)}/{len(faults)}",
         listed([_struck(one) for one in faults if one.reached], 8) or UNKNOWN)
        for kind, faults in by_kind(run).items()
    ]  # fmt: skip
    return [Table(("kind", "reached/planned", "whom, when"), rows[:_ROWS_MAX], text_columns=(0, 2))] if rows else []


def _struck(one: FaultOutcome) -> str:
    until = "" if one.until_ms is None else f" to {_ms(one.until_ms)}"
    return f"{one.actor} at {_ms(one.at_ms)}{until}"


def _rounds(run: Outcome) -> list[Block]:
    """How each ended, and the noise in its sum beside the floor that the claim needs."""
    reasons = any(one.reason for one in run.ended.rounds)
    rows = [
        (Cell(str(place), one.round_id[:8]), one.result, count(one.clients), count(one.contributors),
         count(one.needed), claimed(one.epsilon), _over_floor(one), *((one.reason or "",) if reasons else ()))
        for place, one in enumerate(run.ended.rounds[:_ROWS_MAX], 1)
    ]  # fmt: skip
    header = ("round", "result", "clients", "contributed", "needed", "epsilon", "noise variance / floor")
    return [Table((*header, *(("why",) if reasons else ())), rows, text_columns=(0, 1, 7))] if rows else []


def _over_floor(one: RoundOutcome) -> str:
    if one.noise_variance is None or not one.noise_floor:
        return UNKNOWN
    return number(one.noise_variance / one.noise_floor)


def _drops(run: Outcome) -> list[Block]:
    if not run.drops:
        return []
    by_phase = Counter(one.phase for one in run.drops)
    rows = [(f"client {one.client}", _ms(one.at_ms), one.phase) for one in run.drops[:_ROWS_MAX]]
    every = Folded("every dropout", Table(("client", "when", "phase"), rows, text_columns=(0, 2)))
    return [Table(("phase", "dropouts"), [(phase, count(found)) for phase, found in by_phase.items()]), every]


def _adversaries(run: Outcome) -> list[Block]:
    """Those that the scenario names."""
    named = run.options.get("adversaries")
    found = [one for one in named[:_ROWS_MAX] if isinstance(one, dict)] if isinstance(named, list) else []
    rows = []
    for one in found:
        kind = str(one.get("kind"))
        rows.append((Cell(kind, HOSTILE[kind].does if kind in HOSTILE else ""), str(one.get("actor"))))
    return [Table(("kind", "actor"), rows, text_columns=(0, 1))] if rows else []


def _last_facts(run: Outcome) -> list[Block]:
    """What was told before a break; else the last facts, folded away."""
    told: list[Block] = []
    for one in _broken(run):
        if one.facts:
            told += [Heading(f"Before invariant {one.number} ({one.name}) broke"), Code("\n".join(one.facts))]
    if run.last_facts:
        last = Code("\n".join(run.last_facts[-_FACTS_MAX:]))
        told.append(Folded(f"the last {counted(len(run.last_facts), 'fact')}", last))
    return told


def _ms(value: float) -> str:
    return seconds(value / 1000)
