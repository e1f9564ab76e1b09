"""Many seeds, each a scenario of its own, over worker processes: how often which fault was reached, and what broke.

Every tenth seed is also compared with a second run of itself and with one on neighbouring data (invariants 5 and 9).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from emulator import engine as engines
from emulator.engine import LOCAL, Done
from emulator.trials.draw import draw_scenario
from emulator.trials.examination import broken_in, examine, facts_before
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import to_plain
from emulator.trials.shrink import Shrunk, shrink
from emulator.trials.transitions import TRANSITIONS

Work = Callable[[int], dict[str, Any]]
"""Makes plain data of a seed."""
COMPARE_EVERY = 10
SHRUNK_MAX = 3


class Failure(msgspec.Struct, kw_only=True):
    """A seed that failed.

    Attributes:
        seed: whose scenario. invariant: 1 to 11, 0 for liveness, None where there is no result. name: of the invariant.
        detail, facts: what was broken, and what was told before of that round; in the shrunk run if there is one.
        options: the scenario as plain data. replay: the command that repeats it.
        shrunk: a smaller scenario in which the same invariant breaks, as plain data; None where there was no time.
    """

    seed: int
    invariant: int | None
    detail: str
    replay: str
    name: str = ""
    options: dict[str, Any] | None = None
    facts: list[str] = []
    shrunk: dict[str, Any] | None = None


class Sweep(msgspec.Struct, kw_only=True):
    """What a sweep has found so far.

    Attributes:
        seeds: first and last that were asked for. run: how many were run. failed: in the order in which they came.
        coverage: fault kind -> trials that reached it, adversary kind -> trials that had one; all kinds are there.
        transitions: entry of an actor's table -> trials that took it; all entries are there.
        checked: invariant -> single facts held against it; invariants: its name. rounds: result -> how many ended so.
        wall_s: how long it took. interrupted: whether it was ended before all seeds were run.
    """

    seeds: tuple[int, int]
    run: int = 0
    failed: list[Failure] = msgspec.field(default_factory=list)
    coverage: Counter[str] = msgspec.field(default_factory=lambda: Counter(dict.fromkeys((*FAULTS, *HOSTILE), 0)))
    transitions: Counter[str] = msgspec.field(default_factory=lambda: Counter(dict.fromkeys(TRANSITIONS, 0)))
    checked: Counter[int] = msgspec.field(default_factory=Counter)
    invariants: dict[int, str] = msgspec.field(default_factory=dict)
    rounds: Counter[str] = msgspec.field(default_factory=Counter)
    wall_s: float = 0.0
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def never_reached(self) -> list[str]:
        """The kinds of faults and adversaries, and the entries of tables, that no trial had."""
        return [name for counts in (self.coverage, self.transitions) for name, count in counts.items() if not count]

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        rate = self.run / self.wall_s if self.wall_s else 0.0
        checked = {str(number): count for number, count in sorted(self.checked.items())}
        plain["invariants"] = {str(number): name for number, name in sorted(self.invariants.items())}
        return {"kind": "sweep", "ok": self.ok, **plain, "checked": checked, "scenarios_per_s": rate}

    def note(self, done: Done[int, dict[str, Any]]) -> None:
        """Add what came of one seed."""
        self.run += 1
        replay = f"dca emulate replay {done.item}"
        if done.result is None:
            self.failed.append(Failure(seed=done.item, invariant=None, detail=done.trouble, replay=replay))
            return
        result = done.result
        self.coverage.update({fault["kind"] for fault in result["faults"] if fault["reached"]})
        self.coverage.update({adversary["kind"] for adversary in result["options"].get("adversaries", ())})
        self.transitions.update(result["transitions"])
        self.checked.update({one["number"]: one["checked"] for one in result["invariants"]})
        self.invariants.update({one["number"]: one["name"] for one in result["invariants"]})
        self.rounds.update(one["result"] for one in result["outcome"]["rounds"])
        for number, detail in broken_in(result).items():
            failure = Failure(seed=done.item, invariant=number, detail=detail, replay=replay)
            failure.facts, failure.options = facts_before(result, number), result["options"]
            failure.name = self.invariants.get(number, "")
            self.failed.append(failure)


def trial_of(seed: int) -> dict[str, Any]:
    """One seed's trial, as plain data: what a worker does."""
    return examine(draw_scenario(seed), compare=seed % COMPARE_EVERY == 0).to_json()


def sweep(
    first: int,
    last: int,
    *,
    minutes: float | None = None,
    processes: int | None = None,
    engine: str = LOCAL,
    on_done: Callable[[Sweep], None] = lambda _: None,
    work: Work = trial_of,
) -> Sweep:
    """Run the scenarios of the seeds from `first` to `last`.

    Args:
        minutes: hand out no more seeds after that time. processes: how many at once, by default all cores.
        engine: where they run.
        on_done: called whenever another seed is done. work: what is done with a seed.
    """
    began_s = time.monotonic()
    until_s = began_s + 60 * minutes if minutes is not None else float("inf")
    found = Sweep(seeds=(first, last))
    try:
        with engines.open_engine(engine) as chosen:
            for done in chosen.map(work, _seeds(first, last, until_s), processes=processes):
                found.note(done)
                found.wall_s = time.monotonic() - began_s
                on_done(found)
    except KeyboardInterrupt:
        found.interrupted = True
    except engines.WorkerDiedError:
        assert found.failed, "the seeds over which processes have died are told"
    return found


def _seeds(first: int, last: int, until_s: float) -> Iterator[int]:
    for seed in range(first, last + 1):
        if time.monotonic() >= until_s:
            return
        yield seed


def shrink_failures(found: Sweep, seconds: float) -> None:
    """Make the first few failing scenarios smaller, so many seconds each."""
    for failure in found.failed[:SHRUNK_MAX]:
        if failure.invariant is not None:
            take_shrunk(failure, shrink(draw_scenario(failure.seed), failure.invariant, seconds=seconds))


def take_shrunk(failure: Failure, shrunk: Shrunk) -> None:
    """The smaller scenario, and what was told in it before it broke."""
    failure.shrunk = to_plain(shrunk.scenario)
    if shrunk.facts:
        failure.detail, failure.facts = shrunk.detail, list(shrunk.facts)
