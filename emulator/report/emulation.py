"""The page of an emulated run: whether every invariant held, which faults struck when, and how to replay it.

Terminals show the page's tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dca_proto.report.blocks import (
    Block,
    Code,
    Folded,
    Heading,
    Note,
    Page,
    Section,
    StyledCell,
    as_json,
    roles_table,
    table,
)
from dca_proto.report.charts import TimelineRow, timeline
from dca_proto.report.formats import UNKNOWN, claimed, count, listed, number, seconds
from dca_proto.wording import counted
from emulator.trials.fault import FaultOutcome
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.outcome import LIVENESS, LIVENESS_NAME, InvariantOutcome, Outcome, RoundOutcome

PHASES = ("collect", "commit")
_FAULT, _DROP, _OTHER = 4, -1, 3
_FACTS_MAX = 200
_MARGIN = 0.03


def page(run: Outcome) -> Page:
    """Return the page of an emulation."""
    digest = Note(f"The same seed and version give a trace with the digest {run.digest}.")
    sections: list[Section] = [
        ("How to replay it", [*([Code(run.replay)] if run.replay else []), digest]),
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
    reached, planned = sum(fault.reached for fault in run.faults), len(run.faults)
    return Page(
        kind="Emulation of the production actors",
        title=_title(run),
        badge="nothing broken" if run.ok else "broken",
        verdict="good" if run.ok else "bad",
        answer=_answer(run),
        facts=[
            ("seed", UNKNOWN if run.seed is None else str(run.seed)),
            ("checks made", count(sum(invariant.checked for invariant in run.invariants))),
            ("faults reached, of planned", f"{count(reached)} of {count(planned)}"),
            ("virtual time", seconds(run.virtual_s)),
            ("wall time", seconds(run.wall_s)),
        ],
        sections=sections,
    )


def _broken(run: Outcome) -> list[InvariantOutcome]:
    return [invariant for invariant in run.invariants if not invariant.ok]


def _title(run: Outcome) -> str:
    if broken := _broken(run):
        names = listed([f"{invariant.number} ({invariant.name})" for invariant in broken], 3)
        return f"Invariant{'s' if len(broken) > 1 else ''} {names} did not hold"
    if not run.ok:
        return "No invariant was seen to break, but the run is not ok"
    results = Counter(round_.result for round_ in run.ended.rounds)
    ended = listed([f"{counted(rounds, 'round')} {result}" for result, rounds in results.items()]) or "no round ran"
    return f"{ended}; every promise was kept"


def _answer(run: Outcome) -> str:
    """Return a few sentences: which faults occurred, who contributed, what was spent."""
    reached = sum(fault.reached for fault in run.faults)
    parts = [f"{count(reached)} of {counted(len(run.faults), 'planned fault')} occurred."]
    done = [round_ for round_ in run.ended.rounds if round_.result == "completed"]
    if done:
        last = done[-1]
        spent = f", for epsilon {claimed(last.epsilon)}" if last.epsilon is not None else ""
        needed = f"; at least {count(last.needed)} were needed" if last.needed is not None else ""
        parts.append(f"{count(last.contributors)} of {count(last.clients)} clients are in the last sum{spent}{needed}.")
    if why := all_declined(run):
        parts.append(f"{why[0].upper()}{why[1:]}.")
    if run.ended.live is not None:
        ended = "finished" if run.ended.live else f"did not finish: {listed([*run.ended.why]) or 'no reason is given'}"
        parts.append(f"After healing, it {ended}.")
    if run.ended.further:
        parts.append(f"A further round: {run.ended.further}.")
    return " ".join(parts)


# --- tables -----------------------------------------------------------------------------------------------------------


def invariants(run: Outcome) -> list[Block]:
    """Return a table of all invariants, and of liveness after healing."""

    def verdict(invariant: InvariantOutcome) -> StyledCell:
        if not invariant.ok:
            return StyledCell("✗ broken", tone="bad")
        return StyledCell("✓ holds", tone="good") if invariant.checked else StyledCell("not checked")

    shown, ended = sorted(run.invariants, key=lambda invariant: invariant.number), run.ended
    if ended.live is not None:
        detail = (ended.further or "") if ended.live else "; ".join(ended.why)
        live = InvariantOutcome(number=LIVENESS, name=LIVENESS_NAME, checked=1, ok=ended.live, detail=detail)
        shown.append(live)
    columns: dict[str, Callable[[InvariantOutcome], str | StyledCell]] = {
        "": lambda invariant: str(invariant.number or ""),
        "invariant": lambda invariant: invariant.name,
        "checked": lambda invariant: count(invariant.checked),
        "verdict": verdict,
        "what was found": lambda invariant: invariant.detail or "",
    }
    return table(shown, columns)


def rounds(run: Outcome) -> list[Block]:
    """Return a table of the rounds, their results and their noise. Rounds beyond the planned count follow healing."""
    wanted = run.options.get("rounds")
    planned = wanted.get("count") if isinstance(wanted, dict) else None

    def ended(item: tuple[int, RoundOutcome]) -> str:
        place, round_ = item
        after = " (the one after healing)" if isinstance(planned, int) and place > planned else ""
        declined = "" if not round_.declined else f"; {counted(round_.declined, 'client')} declined"
        return f"{round_.result}{f': {round_.reason}' if round_.reason else ''}{declined}{after}"

    def over_floor(item: tuple[int, RoundOutcome]) -> str:
        variance, floor = item[1].noise_variance, item[1].noise_floor
        return UNKNOWN if variance is None or not floor else number(variance / floor)

    columns: dict[str, Callable[[tuple[int, RoundOutcome]], str | StyledCell]] = {
        "round": lambda item: f"{item[0]} {item[1].round_id[:8]}",
        "clients": lambda item: count(item[1].clients),
        "contributed": lambda item: count(item[1].contributors),
        "needed": lambda item: count(item[1].needed),
        "epsilon": lambda item: claimed(item[1].epsilon),
        "noise\n/ floor": over_floor,
        "ended": ended,
    }
    return table(enumerate(run.ended.rounds, 1), columns)


def all_declined(run: Outcome) -> str:
    """Return in how many rounds everybody declined, and why; empty if there is none."""
    alike = Counter[str]()
    for round_ in run.ended.rounds:
        if round_.everybody_declined:
            alike.update(round_.why_declined)
    rounds_ = sum(round_.everybody_declined for round_ in run.ended.rounds)
    if not rounds_:
        return ""
    which = f"all {counted(rounds_, 'round')}" if rounds_ == len(run.ended.rounds) > 1 else counted(rounds_, "round")
    return f"everybody declined {which}: {listed([f'{why} ({count(times)})' for why, times in alike.items()], 3)}"


def by_kind(run: Outcome) -> dict[str, list[FaultOutcome]]:
    """Return the faults by kind, the earliest first."""
    ordered = sorted(run.faults, key=lambda fault: (not fault.reached, fault.at_ms))
    kinds: dict[str, list[FaultOutcome]] = {}
    for fault in ordered:
        kinds.setdefault(fault.kind, []).append(fault)
    return kinds


def faults(run: Outcome) -> list[Block]:
    """Return a table of the planned faults by kind: how many occurred, whom they struck, and when."""

    def struck(item: tuple[str, list[FaultOutcome]]) -> str:
        spans = [(hit, "" if hit.until_ms is None else f" to {_ms(hit.until_ms)}") for hit in item[1] if hit.reached]
        return listed([f"{hit.actor} at {_ms(hit.at_ms)}{until}" for hit, until in spans], 8) or UNKNOWN

    columns: dict[str, Callable[[tuple[str, list[FaultOutcome]]], str | StyledCell]] = {
        "fault": lambda item: StyledCell(item[0], FAULTS[item[0]].does if item[0] in FAULTS else ""),
        "reached/planned": lambda item: f"{sum(fault.reached for fault in item[1])}/{len(item[1])}",
        "whom, when": struck,
    }
    return table(by_kind(run).items(), columns)


def adversaries(run: Outcome) -> list[Block]:
    """Return a table of the hostile actors that the scenario names."""
    named = run.options.get("adversaries")
    entries = [entry for entry in named if isinstance(entry, dict)] if isinstance(named, list) else []
    does = {kind: hostile.does for kind, hostile in HOSTILE.items()}
    kinds = [(str(entry.get("kind")), str(entry.get("actor"))) for entry in entries]
    return table(
        kinds, {"hostile": lambda pair: StyledCell(pair[0], does.get(pair[0], "")), "actor": lambda pair: pair[1]}
    )


def _drops(run: Outcome) -> list[Block]:
    every = table(
        run.drops,
        {
            "client": lambda drop: f"client {drop.client}",
            "when": lambda drop: _ms(drop.at_ms),
            "phase": lambda drop: drop.phase,
        },
    )
    by_phase = Counter(drop.phase for drop in run.drops)
    counts = table(by_phase.items(), {"phase": lambda item: item[0], "dropouts": lambda item: count(item[1])})
    return [*counts, *(Folded("every dropout", block) for block in every)]


# --- what happened when -----------------------------------------------------------------------------------------------


def _timeline(run: Outcome) -> list[Block]:
    """Return a chart of the rounds' phases and of each kind of fault, over the time of all rounds."""
    ends = [moment for round_ in run.ended.rounds for span in round_.phases.values() for moment in span]
    if not ends:
        return []
    margin = _MARGIN * (max(ends) - min(ends)) or 1.0
    low, high = max(0.0, min(ends) - margin), max(ends) + margin  # in ms, as all times here
    lanes = []
    for place, round_ in enumerate(run.ended.rounds, 1):
        pieces = [
            (begin / 1000, end / 1000, PHASES.index(name) if name in PHASES else _OTHER)
            for name, (begin, end) in round_.phases.items()
        ]
        lanes.append(TimelineRow(f"round {place}, {round_.result}", pieces))
    if run.drops:
        lanes.append(TimelineRow("clients drop out", marks=[(drop.at_ms / 1000, _DROP) for drop in run.drops]))
    beyond = 0
    for kind, planned in by_kind(run).items():
        reached = [hit for hit in planned if hit.reached]
        shown = [hit for hit in reached if hit.at_ms <= high and (hit.until_ms or hit.at_ms) >= low]
        beyond += len(reached) - len(shown)
        lasting = [(hit.at_ms / 1000, hit.until_ms / 1000, _FAULT) for hit in shown if hit.until_ms is not None]
        moments = [(hit.at_ms / 1000, _FAULT) for hit in shown if hit.until_ms is None]
        lanes.append(TimelineRow(f"{kind} {len(reached)}/{len(planned)}", lasting, moments))
    caption = (
        "Virtual time, from the first announcement to the end of the last round. Faults: reached/planned, by kind."
    )
    caption += f" {counted(beyond, 'fault')} struck before or after." if beyond else ""
    legend = {phase: place for place, phase in enumerate(PHASES)} | {"fault": _FAULT, "dropout": _DROP}
    return [timeline(lanes, low / 1000, high / 1000, legend, caption=caption)]


def _last_facts(run: Outcome) -> list[Block]:
    """Return the facts before each break, and the last facts, folded."""
    blocks: list[Block] = []
    for broken in _broken(run):
        if broken.facts:
            heading = Heading(f"Before invariant {broken.number} ({broken.name}) broke")
            blocks += [heading, Code("\n".join(broken.facts))]
    if run.last_facts:
        last = Code("\n".join(run.last_facts[-_FACTS_MAX:]))
        blocks.append(Folded(f"the last {counted(min(len(run.last_facts), _FACTS_MAX), 'fact')}", last))
    return blocks


def _ms(value: float) -> str:
    return seconds(value / 1000)
