"""Test the protocol in virtual time: faults, adversaries, invariants.

Real actors and real cryptography run without waiting. The same seed gives the same run, byte for byte.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TimeRemainingColumn

from dca_proto import engine as engines
from dca_proto.cli import INTERRUPTED, REFUTED, verbatim
from dca_proto.cli.emulate_output import show_failure, show_sweep, show_trial
from dca_proto.cli.options import Json
from dca_proto.cli.output import keep_earlier, result_console, say
from dca_proto.cli.progress import PatientBar, Words
from dca_proto.errors import UsageError
from dca_proto.runtime.files import require_writable, whole_file, write_json
from emulator.sim.events import Observer
from emulator.trials.draw import draw_scenario
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import Scenario, to_plain
from emulator.trials.scenario_file import example_toml, from_plain, load_scenario, to_toml
from emulator.trials.shrink import shrink
from emulator.trials.sweep import Failure, Sweep, failures_of, shrink_failures
from emulator.trials.sweep import sweep as sweep_seeds
from emulator.trials.trial import examine
from emulator.trials.world import TrialWorld

_SEED_MAX = (1 << 63) - 1
_RANGE = re.compile(r"(\d{1,19})\.\.(\d{1,19})")
_PROCESSES_MAX = 4096
_NAME = "failed-{}.toml"

_RUN = """Examples:

  dca emulate example > scenario.toml     a scenario to start from, with a comment on each line

  dca emulate run scenario.toml           faults, then healing, then liveness; exit code 4 if anything is broken

  dca emulate run scenario.toml --seed 7 --json run.json && dca report run.json
"""
_REPLAY = """Examples:

  dca emulate replay 17                   the scenario of seed 17, checked against all invariants

  dca emulate replay 17 --json -          digest, outcome, invariants, faults, options
"""
_SWEEP = """Examples:

  dca emulate sweep --seeds 0..199        two hundred scenarios on all cores

  dca emulate sweep --seeds 0..1999 --minutes 10 --json sweep.json

  dca emulate sweep --seeds 0..999999 --engine ray://head:10001      on a cluster
"""
_EXAMPLE = """Example:

  dca emulate example > scenario.toml && dca emulate run scenario.toml
"""
_GROUP = """Examples:

  dca emulate replay 17                   one scenario, drawn by a seed

  dca emulate sweep --seeds 0..199        two hundred of them

  dca emulate run -h                      more about one of these commands
"""
OUTPUT = {"run": Outcome, "replay": Outcome, "sweep": Sweep}

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help=__doc__, epilog=verbatim(_GROUP), no_args_is_help=True
)

Shrink = Annotated[float, typer.Option(help="Seconds to shrink a failing scenario; 0: do not.")]
Save = Annotated[Path, typer.Option("--output", help="Folder for failing scenarios, shrunk, as TOML.")]


@app.command("run", short_help="A scenario file: faults, healing, liveness.", epilog=verbatim(_RUN))
def run(
    scenario: Annotated[Path, typer.Argument(help="A scenario file; `dca emulate example` prints one.")],
    seed: Annotated[int | None, typer.Option(help="Seed to use instead of the scenario's own.")] = None,
    shrink_s: Shrink = 30.0,
    save: Save = Path(),
    json_to: Json = None,
) -> int:
    """Run a scenario: safety under its faults, then healing, then liveness; exit code 4 if an invariant is broken."""
    console = _console(save, json_to, shrink_s)
    loaded = load_scenario(scenario)
    if seed is not None:
        loaded = from_plain(to_plain(msgspec.structs.replace(loaded, seed=_seed(seed))))
    again = f"dca emulate run {scenario}" + ("" if seed is None else f" --seed {seed}")
    return _trial(console, loaded, again, shrink_s, save, json_to)


@app.command("replay", short_help="The scenario that a seed draws.", epilog=verbatim(_REPLAY))
def replay(
    seed: Annotated[int, typer.Argument(help="Seed of the scenario to draw and run.", min=0)],
    shrink_s: Shrink = 30.0,
    save: Save = Path(),
    json_to: Json = None,
) -> int:
    """Run the scenario that a seed draws, as a sweep does; exit code 4 if an invariant is broken.

    `dca schema emulate replay` describes the fields of the JSON object.
    """
    console = _console(save, json_to, shrink_s)
    return _trial(console, draw_scenario(_seed(seed)), f"dca emulate replay {seed}", shrink_s, save, json_to)


def _console(save: Path, json_to: str | None, shrink_s: float) -> Console:
    """Return the console. Checks before any work that output files are writable, and the time limit finite."""
    require_writable(save / _NAME.format(0), make_folders=True)
    if not 0 <= shrink_s < float("inf"):
        raise UsageError(f"--shrink-s {shrink_s:g}: expected a finite number, 0 or above")
    return result_console(json_to)


def _seed(seed: int) -> int:
    if not 0 <= seed <= _SEED_MAX:
        raise UsageError(f"seed {seed}: expected a whole number from 0 to {_SEED_MAX}")
    return seed


def _trial(console: Console, scenario: Scenario, again: str, shrink_s: float, save: Path, json_to: str | None) -> int:
    columns = (Words("{task.description:<12}"), BarColumn(bar_width=30), TaskProgressColumn())
    with PatientBar(console, max(1, scenario.healed_ms), "", *columns) as bar:
        outcome = examine(scenario, on_world=_VirtualTime(bar).watch)
    outcome.replay = again
    show_trial(console, outcome)
    for failure in failures_of(outcome, again)[:1]:
        if shrink_s > 0 and isinstance(failure.invariant, int):
            say(console, "shrinking", f"for at most {shrink_s:g} s")
            failure.take_shrunk(shrink(scenario, failure.invariant, seconds=shrink_s))
            outcome.shrunk = failure.shrunk
        show_failure(console, failure)
        _save(console, failure, save)
    keep_earlier(console, json_to)
    write_json(outcome.to_json(), json_to)
    return 0 if outcome.ok else REFUTED


def _save(console: Console, failure: Failure, folder: Path) -> None:
    """Write a failing scenario to a file that `dca emulate run` accepts."""
    plain = failure.shrunk or failure.options
    if plain is None:
        return
    path = folder / _NAME.format(failure.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as place:
        place.write_text(to_toml(from_plain(plain)), encoding="utf-8")
    say(console, "saved", f"{path}; run it with `dca emulate run {path}`")


class _VirtualTime(Observer):
    """Shows the progress of virtual time on a bar, for one trial after another."""

    def __init__(self, bar: PatientBar) -> None:
        self._bar = bar
        self._world: TrialWorld | None = None
        self._run = 0

    def watch(self, world: TrialWorld) -> None:
        """Follow the next of the three runs. The third run is compared with the first two."""
        self._world = world
        self._run += 1
        world.simulator.observers.append(self)

    def on_handled(self, *happened: Any) -> None:
        if self._world is not None:
            simulator = self._world.simulator
            self._bar.reach(simulator.now_ms - simulator.start_ms, f"run {self._run} of 3")


@app.command("sweep", short_help="Run many seeds; report failures and coverage.", epilog=verbatim(_SWEEP))
def sweep(
    seeds: Annotated[str, typer.Option(help="First and last seed, A..B.")] = "0..99",
    minutes: Annotated[float | None, typer.Option(help="Start no more trials after this time.")] = None,
    processes: Annotated[int | None, typer.Option(help="Trials that run at once; by default one per core.")] = None,
    engine: Annotated[str, typer.Option(help=engines.HELP)] = engines.LOCAL,
    shrink_s: Shrink = 30.0,
    save: Save = Path(),
    json_to: Json = None,
) -> int:
    """Run the scenarios of many seeds; exit code 4 if an invariant is broken in any of them.

    `dca schema emulate sweep` describes the fields of the JSON object.
    """
    console = _console(save, json_to, shrink_s)
    match = _RANGE.fullmatch(seeds.strip())
    if match is None or int(match[1]) > int(match[2]) or int(match[2]) > _SEED_MAX:
        raise UsageError(f"--seeds {seeds}: expected first..last with first <= last, such as 0..199")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise UsageError(f"--minutes {minutes:g}: expected a finite number above 0")
    if processes is not None and not 1 <= processes <= _PROCESSES_MAX:
        raise UsageError(f"--processes {processes}: expected 1 to {_PROCESSES_MAX}, at most the number of cores")
    first, last = int(match[1]), int(match[2])
    requested = last - first + 1
    description = Words("{task.description:<12}")
    columns = (description, BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with PatientBar(console, requested, "scenarios", *columns) as bar:
        result = sweep_seeds(
            first,
            last,
            minutes=minutes,
            processes=processes,
            engine=engine,
            on_done=lambda so_far: bar.reach(
                so_far.run, f"{len(so_far.failed)} failed" if so_far.failed else "scenarios"
            ),
        )
    if shrink_s > 0 and not result.interrupted:
        if result.failed:
            say(console, "shrinking", f"the first failures, for at most {shrink_s:g} s each")
        shrink_failures(result, shrink_s)
    show_sweep(console, result)
    for failure in result.failed:
        if failure.shrunk:
            _save(console, failure, save)
    keep_earlier(console, json_to)
    write_json(result, json_to)
    if result.run < requested:
        say(console, "interrupted" if result.interrupted else "ended", f"after {result.run} of {requested} scenarios")
    if result.interrupted:
        return INTERRUPTED
    return 0 if result.ok else REFUTED


@app.command("example", short_help="Print a scenario to start from.", epilog=verbatim(_EXAMPLE))
def example() -> None:
    """Print a scenario to start from, with a comment on each line and all kinds of faults and adversaries."""
    typer.echo(example_toml(), nl=False)
