"""The page of a sweep over seeds: how many scenarios ran, which faults occurred, and how to replay failures."""

from __future__ import annotations

from collections.abc import Iterator

from dca_proto.drawing import ROWS_MAX
from dca_proto.report.blocks import Block, Code, Folded, Heading, Note, Page, as_json, settings, table
from dca_proto.report.charts import bars
from dca_proto.report.formats import count, listed, number, seconds
from dca_proto.wording import counted
from emulator.trials.sweep import PooledNoise, Sweep

_FAILURES_MAX, _FACTS_MAX = 50, 100


def page(run: Sweep) -> Page:
    """Return the page of a sweep."""
    failed = len({failure.seed for failure in run.failed})
    title = f"{counted(failed, 'scenario')} of {count(run.run)} broke an invariant" if failed else (
        f"No invariant was broken in {counted(run.run, 'random scenario')}"
    )  # fmt: skip
    return Page(
        kind="Sweep over random scenarios",
        title=title,
        badge="nothing broken" if run.ok else "broken",
        verdict="good" if run.ok else "bad",
        answer=_answer(run),
        facts=[
            ("seeds", f"{run.seeds[0]} to {run.seeds[1]}" if run.seeds else "not recorded"),  # names: no separators
            ("scenarios run", count(run.run)),
            ("failures", count(len(run.failed))),
            ("wall time", seconds(run.wall_s)),
            ("scenarios per second", number(run.scenarios_per_s)),
        ],
        sections=[
            ("Failures", [*_failures(run)]),
            ("Rounds", settings((f"rounds {result}", count(rounds)) for result, rounds in run.rounds.items())),
            ("Fault kinds reached", [*_coverage(run)]),
            ("Shape of the noise", [*_noise(run)]),
            ("Transitions taken", [*_transitions(run)]),
            ("Checks made", table(run.checked.items(), {
                "invariant": lambda item: f"{item[0]} {run.invariants.get(item[0], '')}".strip(),
                "facts checked, over all scenarios": lambda item: count(item[1]) if item[1] else "never",
            })),
        ],
    )  # fmt: skip


def _answer(run: Sweep) -> str:
    missed = [kind for kind, times in run.coverage.items() if not times]
    kinds = f"{count(len(run.coverage) - len(missed))} of {counted(len(run.coverage), 'fault kind')} occurred"
    took = f" The sweep took {seconds(run.wall_s)}." if run.wall_s is not None else ""
    stopped = " It was interrupted before all seeds were run." if run.interrupted else ""
    return f"{kinds}{'; the others are listed below' if missed else ''}.{took}{stopped}"


def _failures(run: Sweep) -> Iterator[Block]:
    for failure in run.failed[:_FAILURES_MAX]:
        name = failure.name or run.invariants.get(str(failure.invariant), "")
        which = f", invariant {failure.invariant}{f' ({name})' if name else ''}" if failure.invariant else ", not live"
        yield Heading(f"Seed {failure.seed}{'' if failure.invariant is None else which}")
        if failure.detail:
            yield Note(failure.detail)
        if failure.replay:
            yield Code(failure.replay)
        yield from as_json("the smaller scenario", failure.shrunk)
        if failure.facts:
            yield Folded("the facts before it broke", Code("\n".join(failure.facts[-_FACTS_MAX:])))
    if len(run.failed) > _FAILURES_MAX:
        yield Note(f"{count(len(run.failed) - _FAILURES_MAX)} more are in the JSON.")


def _coverage(run: Sweep) -> Iterator[Block]:
    reached = sorted((item for item in run.coverage.items() if item[1]), key=lambda item: -item[1])
    if reached:
        rows = [(kind, float(times), count(times)) for kind, times in reached]
        yield bars(rows, caption="In how many scenarios each kind of fault or hostile actor occurred.")
    missed = [kind for kind, times in run.coverage.items() if not times]
    if missed:
        yield Note(f"Never occurred: {listed(missed, ROWS_MAX)}.")


def noise_line(noise: PooledNoise) -> str:
    """Return how much noise was judged together, and the result."""
    if not noise.tests:
        return "none"
    what = ", ".join(f"{count(values)} of {law}" for law, values in sorted(noise.draws.items()))
    return f"values judged together: {what}; {counted(noise.tests, 'test')} of their shape, p {_below(noise)}"


def _below(noise: PooledNoise) -> str:
    return f"< {noise.p_value:.2g}, misshapen" if noise.p_value < noise.false_alarm else f"<= {noise.p_value:.2g}"


def _noise(run: Sweep) -> Iterator[Block]:
    if run.noise is not None:
        yield Note(f"{noise_line(run.noise)}.")
        yield Note(
            f"Correct noise fails these tests with a probability of at most {run.noise.false_alarm:g}, and those of "
            f"a single scenario with at most {run.noise.false_alarm_trial:g}."
        )


def _transitions(run: Sweep) -> Iterator[Block]:
    missed = [entry for entry, times in run.transitions.items() if not times]
    if run.transitions:
        taken = len(run.transitions) - len(missed)
        yield Note(f"{count(taken)} of {count(len(run.transitions))} entries of the actors' tables were taken.")
    if missed:
        yield Note(f"Never taken: {listed(missed, ROWS_MAX)}.")
