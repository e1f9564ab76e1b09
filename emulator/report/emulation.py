"""An emulated run: whether every invariant held, what was done to it, when, and how to see it again.

Terminals show the tables of the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dca_proto.wording import counted
from emulator.report.blocks import Block, Cell, Code, Folded, Heading, Note, Page, Section, as_json, roles_table, table
from emulator.report.charts import Lane, timeline
from emulator.report.figures import UNKNOWN, claimed, count, listed, number, seconds
from emulator.trials.fault import FaultOutcome
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.outcome import LIVENESS, LIVENESS_NAME, InvariantOutcome, Outcome, RoundOutcome

PHASES = ("collect", "commit")
_FAULT, _DROP, _OTHER = 4, -1, 3
_FACTS_MAX = 200
_MARGIN = 0.03


def page(run: Outcome) -> Page:
    """The page of an emulation."""
    again = [Note(f"The same seed and version give a trace with the digest {run.digest}.")]
    sections: list[Section] = [
        ("How to see it again", [*([Code(run.replay)] if run.replay else []), *again]),
        ("Invariants", invariants(run)),
        ("Rounds", rounds(run)),
        ("Timeline", _timeline(run)),
        ("Faults", faults(run)),
        ("Who dropped out when", _drops(run)),
        ("Sent and used by each role", roles_table(run.traffic)),
        ("Hostile actors", adversaries(run)),
        ("Last facts", _last_facts(run)),
        ("Scenario", as_json("all options, as JSON", run.options)),
    ]
    reached, planned = sum(one.reached for one in run.faults), len(run.faults)
    return Page(
        kind="Emulation of the production actors",
        title=_title(run),
        badge="nothing broken" if run.ok else "broken",
        verdict="good" if run.ok else "bad",
        answer=_answer(run),
        facts=[
            ("seed", UNKNOWN if run.seed is None else str(run.seed)),
            ("checks made", count(sum(one.checked for one in run.invariants))),
            ("faults reached, of planned", f"{count(reached)} of {count(planned)}"),
            ("virtual time", seconds(run.virtual_s)),
            ("wall time", seconds(run.wall_s)),
        ],
        sections=sections,
    )


def _broken(run: Outcome) -> list[InvariantOutcome]:
    return [one for one in run.invariants if not one.ok]


def _title(run: Outcome) -> str:
    if broken := _broken(run):
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


# --- tables -----------------------------------------------------------------------------------------------------------


def invariants(run: Outcome) -> list[Block]:
    """All of them, and whether the run became live after healing."""

    def verdict(one: InvariantOutcome) -> Cell:
        if not one.ok:
            return Cell("✗ broken", tone="bad")
        return Cell("✓ holds", tone="good") if one.checked else Cell("not checked")

    shown, ended = sorted(run.invariants, key=lambda one: one.number), run.ended
    if ended.live is not None:
        found = (ended.further or "") if ended.live else "; ".join(ended.why)
        live = InvariantOutcome(number=LIVENESS, name=LIVENESS_NAME, checked=1, ok=ended.live, detail=found)
        shown.append(live)
    columns: dict[str, Callable[[InvariantOutcome], str | Cell]] = {
        "": lambda one: str(one.number or ""),
        "invariant": lambda one: one.name,
        "checked": lambda one: count(one.checked),
        "verdict": verdict,
        "what was found": lambda one: one.detail or "",
    }
    return table(shown, columns)


def rounds(run: Outcome) -> list[Block]:
    """How each ended, and its noise's variance; those beyond what the scenario asks for come after healing."""
    asked = run.options.get("rounds")
    planned = asked.get("count") if isinstance(asked, dict) else None

    def ended(one: tuple[int, RoundOutcome]) -> str:
        after = " (the one after healing)" if isinstance(planned, int) and one[0] > planned else ""
        return f"{one[1].result}{f': {one[1].reason}' if one[1].reason else ''}{after}"

    def over_floor(one: tuple[int, RoundOutcome]) -> str:
        variance, floor = one[1].noise_variance, one[1].noise_floor
        return UNKNOWN if variance is None or not floor else number(variance / floor)

    columns: dict[str, Callable[[tuple[int, RoundOutcome]], str | Cell]] = {
        "round": lambda one: f"{one[0]} {one[1].round_id[:8]}",
        "clients": lambda one: count(one[1].clients),
        "contributed": lambda one: count(one[1].contributors),
        "needed": lambda one: count(one[1].needed),
        "epsilon": lambda one: claimed(one[1].epsilon),
        "noise\n/ floor": over_floor,
        "ended": ended,
    }
    return table(enumerate(run.ended.rounds, 1), columns)


def by_kind(run: Outcome) -> dict[str, list[FaultOutcome]]:
    """The faults by kind, those that struck first on top."""
    first = sorted(run.faults, key=lambda one: (not one.reached, one.at_ms))
    return {kind: [one for one in first if one.kind == kind] for kind in dict.fromkeys(one.kind for one in first)}


def faults(run: Outcome) -> list[Block]:
    """What was to go wrong, how often it did, and whom it struck when."""

    def struck(one: tuple[str, list[FaultOutcome]]) -> str:
        spans = [(hit, "" if hit.until_ms is None else f" to {_ms(hit.until_ms)}") for hit in one[1] if hit.reached]
        return listed([f"{hit.actor} at {_ms(hit.at_ms)}{until}" for hit, until in spans], 8) or UNKNOWN

    columns: dict[str, Callable[[tuple[str, list[FaultOutcome]]], str | Cell]] = {
        "fault": lambda one: Cell(one[0], FAULTS[one[0]].does if one[0] in FAULTS else ""),
        "reached/planned": lambda one: f"{sum(fault.reached for fault in one[1])}/{len(one[1])}",
        "whom, when": struck,
    }
    return table(by_kind(run).items(), columns)


def adversaries(run: Outcome) -> list[Block]:
    """Those that the scenario names."""
    named = run.options.get("adversaries")
    found = [one for one in named if isinstance(one, dict)] if isinstance(named, list) else []
    does = {kind: one.does for kind, one in HOSTILE.items()}
    kinds = [(str(one.get("kind")), str(one.get("actor"))) for one in found]
    return table(kinds, {"hostile": lambda one: Cell(one[0], does.get(one[0], "")), "actor": lambda one: one[1]})


def _drops(run: Outcome) -> list[Block]:
    every = table(
        run.drops,
        {
            "client": lambda one: f"client {one.client}",
            "when": lambda one: _ms(one.at_ms),
            "phase": lambda one: one.phase,
        },
    )
    by_phase = Counter(one.phase for one in run.drops)
    counts = table(by_phase.items(), {"phase": lambda one: one[0], "dropouts": lambda one: count(one[1])})
    return [*counts, *(Folded("every dropout", one) for one in every)]


# --- what happened when -----------------------------------------------------------------------------------------------


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
    for kind, planned in by_kind(run).items():
        there = [one for one in planned if one.reached]
        seen = [one for one in there if one.at_ms <= high and (one.until_ms or one.at_ms) >= low]
        beyond += len(there) - len(seen)
        lasting = [(one.at_ms / 1000, one.until_ms / 1000, _FAULT) for one in seen if one.until_ms is not None]
        moments = [(one.at_ms / 1000, _FAULT) for one in seen if one.until_ms is None]
        lanes.append(Lane(f"{kind} {len(there)}/{len(planned)}", lasting, moments))
    caption = "Virtual time, from the first announcement to the last round's end. Faults are by kind, reached/planned."
    caption += f" {counted(beyond, 'fault')} struck before or after." if beyond else ""
    legend = {phase: place for place, phase in enumerate(PHASES)} | {"fault": _FAULT, "dropout": _DROP}
    return [timeline(lanes, low / 1000, high / 1000, legend, caption=caption)]


def _last_facts(run: Outcome) -> list[Block]:
    """The facts before a break; else the last facts, folded away."""
    told: list[Block] = []
    for one in _broken(run):
        if one.facts:
            told += [Heading(f"Before invariant {one.number} ({one.name}) broke"), Code("\n".join(one.facts))]
    if run.last_facts:
        last = Code("\n".join(run.last_facts[-_FACTS_MAX:]))
        told.append(Folded(f"the last {counted(min(len(run.last_facts), _FACTS_MAX), 'fact')}", last))
    return told


def _ms(value: float) -> str:
    return seconds(value / 1000)
