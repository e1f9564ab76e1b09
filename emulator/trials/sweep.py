"""Runs the scenarios of many seeds on worker processes, and counts what they reached and what broke.

Every tenth seed is also compared with a second run of itself and with a run on neighbouring data (invariants 5, 9).
At the end, the noise of all seeds is judged together (invariant 10).
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from nacl import bindings

from dca_proto import engine as engines
from dca_proto.engine import LOCAL, Done
from dca_proto.results.figure import Amount, Count, about
from dca_proto.wording import JsonObject
from emulator.shape import ALARM, ALARM_POOLED, Shape
from emulator.trials import refusals
from emulator.trials.checkers.noise import NoiseChecker
from emulator.trials.draw import draw_scenario
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import to_plain
from emulator.trials.shrink import Shrunk, shrink
from emulator.trials.trial import TRANSITIONS, examine

COMPARE_EVERY = 10
JUDGED = 300
"""How many seeds, the first ones, count for refusals: `scripts/check_scenarios.py` expects each in three of them."""
SHRUNK_MAX = 3
_PURE = ("crypto_sign", "crypto_sign_open", "crypto_scalarmult", "crypto_scalarmult_base")
MISSHAPEN_MAX = 3  # failures that one misshapen noise makes


class Failure(msgspec.Struct, kw_only=True):
    """A failed seed. The terminal and the page show it, `--json` writes it."""

    seed: Annotated[int | str, about("Of the scenario; the range of seeds if the noise of all is misshapen.")]
    invariant: Annotated[int | str | None, about("1 to 18, 0 for liveness, null if the trial gave no result.")] = None
    detail: Annotated[str | None, about("What broke, in the smaller scenario if there is one.")] = None
    replay: Annotated[str | None, about("The command that repeats it.")] = None
    name: Annotated[str, about("Of the invariant.")] = ""
    options: Annotated[JsonObject | None, about("The scenario as plain data.")] = None
    facts: Annotated[tuple[str, ...], about("The facts of that round before it broke.")] = ()
    shrunk: Annotated[
        JsonObject | None,
        about("A smaller scenario in which the same invariant breaks, as plain data; null if not shrunk."),
    ] = None

    def take_shrunk(self, shrunk: Shrunk) -> None:
        """Store the smaller scenario, and how it breaks."""
        self.shrunk = to_plain(shrunk.scenario)
        if shrunk.detail:
            self.detail, self.facts = shrunk.detail, shrunk.facts


class PooledNoise(msgspec.Struct, frozen=True, kw_only=True):
    """The noise of all trials together."""

    draws: Annotated[dict[str, Count], about("Number of values by law.")]
    tests: Annotated[Count, about("Number of tests of their shape.")]
    p_value: Annotated[Amount, about("A bound on that of all tests together.")]
    false_alarm: Annotated[Amount, about("Correct noise fails with at most this probability.")] = ALARM_POOLED
    false_alarm_trial: Annotated[Amount, about("The same, in each single trial.")] = ALARM


class Sweep(msgspec.Struct, kw_only=True):
    """The results of a sweep so far. The terminal and the page show them, `--json` writes them."""

    ok: Annotated[bool, about("Whether nothing failed.")]
    run: Annotated[Count, about("Number of seeds run.")]
    failed: Annotated[list[Failure], about("In order of completion.")]
    coverage: Annotated[
        dict[str, Count],
        about(
            "By kind of fault, how many trials reached it; by kind of adversary, how many had one. Includes all kinds "
            "that are drawn."
        ),
    ]
    transitions: Annotated[
        dict[str, Count], about("By entry of an actor's table, how many trials took it. Includes all entries.")
    ] = {}
    refusals: Annotated[
        dict[str, Count],
        about("By place where an actor refuses, how many of the first 300 trials executed it. Includes all places."),
    ] = {}
    checked: Annotated[dict[str, Count], about("Facts checked, by invariant.")] = {}
    invariants: Annotated[dict[str, str], about("Their names by number.")] = {}
    rounds: Annotated[dict[str, Count], about("Number of rounds by result.")] = {}
    declined: Annotated[
        dict[str, Count], about("By reason, number of rounds that everybody declined, most of them for that reason.")
    ] = {}
    noise: Annotated[PooledNoise | None, about("The shape of the noise of all trials; null before the end.")] = None
    interrupted: Annotated[bool, about("Whether Ctrl-C ended it.")] = False
    seeds: Annotated[tuple[Count, Count] | None, about("The first and the last requested.")] = None
    wall_s: Annotated[Amount | None, about("Its duration.", unit="s")] = None
    scenarios_per_s: Annotated[Amount | None, about("Its rate.")] = None
    kind: Annotated[str, about("The kind of run.")] = "sweep"

    @classmethod
    def begun(cls, first: int, last: int) -> Sweep:
        """Return an empty sweep."""
        drawn = [name for name, kind in HOSTILE.items() if not kind.is_directed]
        kinds, entries = dict.fromkeys((*FAULTS, *drawn), 0), dict.fromkeys(TRANSITIONS, 0)
        places = dict.fromkeys(refusals.sites(), 0)
        return cls(ok=True, run=0, failed=[], coverage=kinds, transitions=entries, refusals=places, seeds=(first, last))

    @property
    def first(self) -> int:
        """The first seed."""
        return self.seeds[0] if self.seeds else 0

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
            reasons = [next(iter(one.why_declined)) for one in outcome.ended.rounds if one.everybody_declined]
            refused = [reason.split(":")[0] for reason in reasons]
            found = (
                (self.coverage, reached),
                (self.transitions, outcome.transitions),
                (self.refusals, outcome.refusals if int(done.item) - self.first < JUDGED else ()),
                (self.rounds, results),
                (self.declined, refused),
            )
            for counts, names in found:
                for name in names:
                    counts[name] = counts.get(name, 0) + 1
            for invariant in outcome.invariants:
                number = str(invariant.number)
                self.checked[number] = self.checked.get(number, 0) + invariant.checked
                self.invariants[number] = invariant.name
            self.failed += failures_of(outcome, replay)
        self.ok = not self.failed

    def judge(self, shape: Shape) -> None:
        """Judge the noise of all trials; each sentence against it is a failure of the whole range of seeds."""
        verdict, (first, last) = shape.verdict(ALARM_POOLED), self.seeds or (0, 0)
        self.noise = PooledNoise(draws=shape.draws, tests=verdict.tests, p_value=verdict.p_value)
        seeds = f"{first}..{last}"
        self.failed += [
            Failure(seed=seeds, invariant=NoiseChecker.number, name=NoiseChecker.name, detail=sentence,
                    replay=f"dca emulate sweep --seeds {seeds}")
            for sentence in verdict.broken[:MISSHAPEN_MAX]
        ]  # fmt: skip
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
    """Run the trial of one seed, in a worker, and collect the refusals that it reaches."""
    with refusals.noted() as executed:
        outcome = examined(seed)
    return msgspec.structs.replace(outcome, refusals=tuple(sorted(executed)))


def examined(seed: int) -> Outcome:
    """Run the trial of one seed."""
    with _remembered():
        return examine(draw_scenario(seed), compare=seed % COMPARE_EVERY == 0)


@contextmanager
def _remembered() -> Iterator[None]:
    """Remember what libsodium computed in a trial: all actors check the same signatures, and a trial may run thrice."""
    known = {name: getattr(bindings, name) for name in _PURE}
    vars(bindings).update({name: functools.lru_cache(1 << 14)(function) for name, function in known.items()})
    try:
        yield
    finally:
        vars(bindings).update(known)


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
    result, shape = Sweep.begun(first, last), Shape()
    try:
        with engines.open_engine(engine) as chosen:
            seeds = itertools.takewhile(lambda _: time.monotonic() < until_s, range(first, last + 1))
            for done in chosen.map(work, seeds, processes=processes):
                result.note(done, time.monotonic() - began_s)
                shape.add(done.result.shape if done.result is not None else Shape())
                on_done(result)
    except KeyboardInterrupt:
        result.interrupted = True
    except engines.WorkerDiedError:
        assert result.failed, "the seeds whose processes died are recorded as failures"
    result.judge(shape)
    return result


def shrink_failures(result: Sweep, seconds: float) -> None:
    """Shrink the first few failing scenarios, for at most `seconds` each."""
    for failure in result.failed[:SHRUNK_MAX]:
        if isinstance(failure.invariant, int) and isinstance(failure.seed, int):
            failure.take_shrunk(shrink(draw_scenario(failure.seed), failure.invariant, seconds=seconds))
