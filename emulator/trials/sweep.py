"""Runs the scenarios of many seeds on worker processes, and counts what they reached and what broke.

Every tenth seed is also compared with a second run of itself and with a run on neighbouring data (invariants 5, 9).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec

from emulator import engine as engines
from emulator.engine import LOCAL, Done
from emulator.results import Amount, Count
from emulator.trials.draw import draw_scenario
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import to_plain
from emulator.trials.shrink import Shrunk, shrink
from emulator.trials.trial import TRANSITIONS, examine

COMPARE_EVERY = 10
SHRUNK_MAX = 3


class Failure(msgspec.Struct, kw_only=True):
    """A failed seed. The terminal and the page show it, `--json` writes it.

    Attributes:
        seed: of the scenario. invariant: 1 to 11, 0 for liveness, None if the trial gave no result. name: its name.
        detail, facts: what broke, and the facts of that round before; of the shrunk run if there is one.
        options: the scenario as plain data. replay: the command that repeats it.
        shrunk: a smaller scenario in which the same invariant breaks, as plain data; None if not shrunk.
    """

    seed: int | str
    invariant: int | str | None = None
    detail: str | None = None
    replay: str | None = None
    name: str = ""
    options: dict[str, Any] | None = None
    facts: tuple[str, ...] = ()
    shrunk: dict[str, Any] | None = None

    def take_shrunk(self, shrunk: Shrunk) -> None:
        """Store the smaller scenario, and how it breaks."""
        self.shrunk = to_plain(shrunk.scenario)
        if shrunk.detail:
            self.detail, self.facts = shrunk.detail, shrunk.facts


class Sweep(msgspec.Struct, kw_only=True):
    """The results of a sweep so far. The terminal and the page show them, `--json` writes them.

    Attributes:
        ok: nothing failed. seeds: first and last requested. run: number of seeds run. failed: in order of completion.
        coverage: fault kind -> trials that reached it; adversary kind -> trials that had one. Includes all kinds.
        transitions: entry of an actor's table -> trials that took it. Includes all entries.
        checked: invariant -> facts checked. invariants: number -> name. rounds: result -> number of rounds.
        wall_s: duration. scenarios_per_s: rate. interrupted: ended by Ctrl-C.
    """

    ok: bool
    run: Count
    failed: list[Failure]
    coverage: dict[str, Count]
    transitions: dict[str, Count] = {}
    checked: dict[str, Count] = {}
    invariants: dict[str, str] = {}
    rounds: dict[str, Count] = {}
    interrupted: bool = False
    seeds: tuple[Count, Count] | None = None
    wall_s: Amount | None = None
    scenarios_per_s: Amount | None = None
    kind: str = "sweep"

    @classmethod
    def begun(cls, first: int, last: int) -> Sweep:
        """Return an empty sweep."""
        kinds, entries = dict.fromkeys((*FAULTS, *HOSTILE), 0), dict.fromkeys(TRANSITIONS, 0)
        return cls(ok=True, run=0, failed=[], coverage=kinds, transitions=entries, seeds=(first, last))

    @property
    def never_reached(self) -> list[str]:
        """The kinds of faults and adversaries, and the entries of tables, that no trial reached."""
        return [name for counts in (self.coverage, self.transitions) for name, count in counts.items() if not count]

    def note(self, done: Done[int, Outcome], wall_s: float) -> None:
        """Add the result of one seed. `wall_s`: time since the sweep began."""
        self.run += 1
        self.wall_s, self.scenarios_per_s = wall_s, self.run / wall_s if wall_s else None
        replay, outcome = f"dca emulate replay {done.item}", done.result
        if outcome is None:
            self.failed.append(Failure(seed=done.item, detail=done.trouble, replay=replay))
        else:
            adversaries = {adversary["kind"] for adversary in outcome.options.get("adversaries", ())}
            reached = adversaries | {fault.kind for fault in outcome.faults if fault.reached}
            results = (entry.result for entry in outcome.ended.rounds)
            counted = ((self.coverage, reached), (self.transitions, outcome.transitions), (self.rounds, results))
            for counts, names in counted:
                for name in names:
                    counts[name] = counts.get(name, 0) + 1
            for invariant in outcome.invariants:
                number = str(invariant.number)
                self.checked[number] = self.checked.get(number, 0) + invariant.checked
                self.invariants[number] = invariant.name
            self.failed += failures_of(outcome, replay)
        self.ok = not self.failed


def failures_of(outcome: Outcome, replay: str) -> list[Failure]:
    """Return a failure for each invariant that a trial broke."""
    names = {invariant.number: invariant.name for invariant in outcome.invariants}
    return [
        Failure(
            seed=outcome.seed if outcome.seed is not None else "",
            invariant=number,
            detail=detail,
            replay=replay,
            name=names.get(number, ""),
            options=outcome.options,
            facts=outcome.facts_before(number),
        )
        for number, detail in outcome.broken.items()
    ]


def trial_of(seed: int) -> Outcome:
    """Run the trial of one seed, in a worker."""
    return examine(draw_scenario(seed), compare=seed % COMPARE_EVERY == 0)


def sweep(
    first: int,
    last: int,
    *,
    minutes: float | None = None,
    processes: int | None = None,
    engine: str = LOCAL,
    on_done: Callable[[Sweep], None] = lambda _: None,
    work: Callable[[int], Outcome] = trial_of,
) -> Sweep:
    """Run the scenarios of the seeds from `first` to `last`.

    Args:
        minutes: start no more trials after this time. processes: trials that run at once, by default one per core.
        engine: where they run. on_done: called after each seed. work: runs one seed.
    """
    began_s = time.monotonic()
    until_s = began_s + 60 * minutes if minutes is not None else float("inf")
    result = Sweep.begun(first, last)
    try:
        with engines.open_engine(engine) as chosen:
            seeds = itertools.takewhile(lambda _: time.monotonic() < until_s, range(first, last + 1))
            for done in chosen.map(work, seeds, processes=processes):
                result.note(done, time.monotonic() - began_s)
                on_done(result)
    except KeyboardInterrupt:
        result.interrupted = True
    except engines.WorkerDiedError:
        assert result.failed, "the seeds whose processes died are recorded as failures"
    return result


def shrink_failures(result: Sweep, seconds: float) -> None:
    """Shrink the first few failing scenarios, for at most `seconds` each."""
    for failure in result.failed[:SHRUNK_MAX]:
        if isinstance(failure.invariant, int):
            failure.take_shrunk(shrink(draw_scenario(int(failure.seed)), failure.invariant, seconds=seconds))
