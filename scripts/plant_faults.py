#!/usr/bin/env python
"""Plants faults in the protocol, one at a time, and reports the invariant of the emulator that catches each.

    scripts/plant_faults.py                          all of `planted_faults.toml`, two at a time: an hour on two cores
    scripts/plant_faults.py --again                  first the scenario that caught a fault last time: ten minutes
    scripts/plant_faults.py --journal faults.json    stores each outcome; the same call continues an interrupted run
    scripts/plant_faults.py --only forgery --scenarios 50
    scripts/plant_faults.py --only "half the sensitivity" --json -

A fault replaces text of `dca_proto` in a separate process; no file changes. The scenarios are those of
`dca emulate sweep --seeds 0..`, until one breaks an invariant, at most 300. The noise of all of them together is judged
after 30, 100 and 300. Then come the scenarios that were made by hand (`emulator/trials/directed.py`). With `--again`, a
fault that the same scenario catches as last time keeps the table's number of seeds, which is an upper bound. A fault
that breaks nothing survives; the table has the reason. Exit code 4 if fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.machinery
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from dca_proto import engine as engines
from dca_proto.cli.progress import PatientBar
from dca_proto.errors import UsageError
from dca_proto.runtime.files import STDOUT, read_text, write_json

TABLE = Path(__file__).with_name("planted_faults.toml")
SEEDS_MAX, EXIT_FAILED, EXIT_SURVIVED, CAUGHT_PART = 300, 2, 4, 0.95
ACCIDENT = -2  # instead of an invariant: the fault could not be tried
POOLED_AFTER = (30, 100)
KINDS = (
    *("noise", "shape", "secrecy", "forgery", "agreement", "budget", "life cycle", "completion", "durability"),
    *("liveness", "ledger"),
    *("files", "policies", "clock", "verified"),
)
_GET_CODE = importlib.machinery.SourceFileLoader.get_code
_OURS = ("dca_proto", "emulator", "inference")


class Caught(msgspec.Struct, frozen=True):
    """The number of seeds until a catch, and the invariant: 0 is liveness, -1 an error instead of a result.

    `also` has the invariants that break in its place with other noise. `scenario` names the scenario made by hand that
    catches what no seed does; `seeds` is then how many were tried.
    """

    seeds: int
    invariant: int
    also: tuple[int, ...] = ()
    scenario: str = ""


class Fault(msgspec.Struct, frozen=True):
    """A fault.

    Attributes:
        name: a description of the fault. kind: one of `KINDS`.
        patch: replacements: a file of `dca_proto`, its text, and the new text.
        slip: whether somebody could write it by oversight.
        caught: the last measurement; None if it survived. why: the reason that a sweep does not catch it.
    """

    name: str
    kind: str
    patch: tuple[tuple[str, str, str], ...]
    slip: bool = True
    caught: Caught | None = None
    why: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a fault: `broken` has each broken invariant with its checker's message.

    `scenario` names a scenario made by hand that broke them, after so many seeds.
    """

    name: str
    kind: str
    seeds: int
    seconds: float
    broken: dict[int, str] = {}
    scenario: str = ""
    why: str = ""

    @property
    def is_caught(self) -> bool:
        return bool(self.broken) and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """True if the fault could not be tried, because its patch no longer fits or its process ended."""
        return ACCIDENT in self.broken


def faults() -> list[Fault]:
    """Read the table of faults."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8"))["fault"], list[Fault])


def plant(fault: Fault, seeds: int = SEEDS_MAX) -> Found:
    """Plant a fault in a separate process, and sweep until it is caught; first the scenario that caught it before."""
    return next(run([fault], seeds, 1, engines.LOCAL, again=True))


def _sweep(fault: Fault, seeds: int, again: bool) -> Found:
    """Import our packages again with the fault, in the worker process, and run scenarios until one breaks."""
    began_s = time.monotonic()
    install(fault)
    for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
        del sys.modules[name]
    from emulator.shape import ALARM_POOLED, Shape
    from emulator.trials.checkers.noise import NoiseChecker
    from emulator.trials.directed import DIRECTED
    from emulator.trials.sweep import examined
    from emulator.trials.trial import examine

    def tried(scenario: int | str) -> dict[int, str]:
        try:
            outcome = examine(DIRECTED[scenario], compare=False) if isinstance(scenario, str) else examined(scenario)
        except Exception as error:
            return {-1: f"{type(error).__name__}: {error}"}
        shape.add(outcome.shape)
        return outcome.broken

    ran, broken, shape, by = 0, {}, Shape(), ""
    first = fault.caught if again else None
    if first is not None and first.seeds <= seeds and (broken := tried(first.scenario or first.seeds - 1)):
        ran, by = first.seeds, first.scenario
    shape = Shape()
    while ran < seeds and not broken:
        broken = tried(ran)
        ran += 1
        if not broken and (ran == seeds or ran in POOLED_AFTER):  # each look may be wrong once in a million times
            misshapen = shape.verdict(ALARM_POOLED).broken
            broken = {NoiseChecker.number: misshapen[0]} if misshapen else {}
    for name in () if broken else DIRECTED:
        if broken := tried(name):
            by = name
            break
    why, seconds = "" if broken else fault.why, time.monotonic() - began_s
    return Found(name=fault.name, kind=fault.kind, seeds=ran, seconds=seconds, broken=broken, scenario=by, why=why)


def install(fault: Fault) -> None:
    """Make this process import the fault's files with the fault in them."""

    def get_code(loader: Any, fullname: str) -> CodeType | None:
        path = loader.get_filename(fullname)
        patches = [one for one in fault.patch if path.endswith(f"/dca_proto/{one[0]}")]
        return loader.source_to_code(patched(path, patches), path) if patches else _GET_CODE(loader, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment]


def patched(path: str, patches: list[tuple[str, str, str]]) -> str:
    """Return a file's text with its patches. Raise `UsageError` if it does not have a patch's text exactly once."""
    text = Path(path).read_text(encoding="utf-8")
    for file, old, new in patches:
        if text.count(old) != 1:
            raise UsageError(f"{file} has {old!r} {text.count(old)} times, expected once; change {TABLE.name}")
        text = text.replace(old, new)
    return text


def run(chosen: list[Fault], seeds: int, processes: int, engine: str, *, again: bool = False) -> Iterator[Found]:
    """Plant all faults, as many at once as there are processes; yield each outcome when it is done."""
    with engines.open_engine(engine) as one:
        for done in one.map(functools.partial(_sweep, seeds=seeds, again=again), chosen, processes=processes):
            failed = {ACCIDENT: done.trouble}
            yield done.result or Found(name=done.item.name, kind=done.item.kind, seeds=0, seconds=0, broken=failed)


class Journal:
    """The outcomes of faults that were planted, in a file from which an interrupted run continues.

    Args:
        path: of the file, which need not exist yet; None keeps outcomes in memory only.
        scenarios: for each fault, at most. again: as for `run`.

    Raises:
        UsageError: the file is of other code, of another table or of other options.
    """

    def __init__(self, path: Path | None, scenarios: int, *, again: bool) -> None:
        self.path, self.found = path, list[Found]()
        self._of = {"kind": "planted-faults", "code": _code(), "scenarios": scenarios, "again": again}
        if path is not None and path.exists():
            try:
                stored = msgspec.json.decode(read_text(path), type=dict[str, Any])
                self.found = msgspec.convert(stored.pop("faults", []), list[Found], str_keys=True)
            except msgspec.MsgspecError as error:
                raise UsageError(
                    f"--journal {path}: {error}; expected outcomes of planted faults; name a new file"
                ) from None
            if stored != self._of:
                of = {name: stored.get(name) for name in self._of}
                raise UsageError(f"--journal {path} is of {of}, expected {self._of}; name a new file")

    def missing(self, chosen: list[Fault]) -> list[Fault]:
        """Return the faults without an outcome."""
        done = {one.name for one in self.found}
        return [one for one in chosen if one.name not in done]

    def add(self, found: Found) -> None:
        """Store an outcome. A fault that could not be tried is not stored: the next run tries it again."""
        self.found.append(found)
        if self.path is not None:
            kept = [one for one in self.found if not one.has_failed]
            write_json({**self._of, "faults": msgspec.to_builtins(kept, str_keys=True)}, str(self.path))


def _code() -> str:
    """Return a digest of the code that a run tries, and of its faults."""
    root, digest = Path(__file__).parents[1], hashlib.blake2b(digest_size=16)
    for path in (*sorted(path for name in _OURS[:2] for path in (root / name).rglob("*.py")), TABLE):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def table(found: list[Found]) -> Table:
    """Return the table of catches, by kind."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("fault", "kind", "invariant", "seeds or scenario", "s"):
        made.add_column(name, justify="left" if name in ("fault", "kind", "invariant") else "right")
    for one in sorted(found, key=lambda one: (KINDS.index(one.kind), one.seeds)):
        made.add_row(one.name, one.kind, _by(one), one.scenario or str(one.seeds), f"{one.seconds:.0f}")
    return made


def _by(found: Found) -> str:
    """Describe what caught a fault."""
    by = ", ".join({0: "liveness", -1: "an error"}.get(number, str(number)) for number in found.broken)
    return f"FAILED: {found.broken[ACCIDENT]}" if found.has_failed else by or f"SURVIVED: {found.why}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one kind, or one fault by its name")
    parser.add_argument("--scenarios", type=int, default=SEEDS_MAX, help="scenarios for each fault, at most")
    parser.add_argument("--again", action="store_true", help="first the scenario that caught a fault last time")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--engine", default=engines.LOCAL, help=engines.HELP)
    parser.add_argument("--journal", type=Path, help="store each outcome in this file, and omit those it has")
    parser.add_argument("--json", help="write the outcomes to this file, or - for standard output")
    asked = parser.parse_args()
    chosen = [one for one in faults() if asked.only in (None, one.kind, one.name)]
    if not chosen:
        parser.error(f"--only {asked.only!r} names no fault; kinds are {', '.join(KINDS)}")
    try:
        journal = Journal(asked.journal, asked.scenarios, again=asked.again)
    except UsageError as error:
        parser.error(str(error))
    console, missing = Console(stderr=asked.json == STDOUT), journal.missing(chosen)
    with PatientBar(console, len(missing), "planting faults") as bar:
        for one in run(missing, asked.scenarios, asked.processes, asked.engine, again=asked.again):
            journal.add(one)
            bar.advance(1)
            if not console.is_terminal:
                done = f"{len(journal.found)} of {len(chosen)}: {one.name}: {_by(one)} after {one.seeds} seeds"
                console.print(done, highlight=False, soft_wrap=True)
    names = {one.name for one in chosen}
    found = [one for one in journal.found if one.name in names]
    console.print(table(found))
    caught = sum(one.is_caught for one in found)
    console.print(f"{caught} of {len(found)} caught within {asked.scenarios} seeds")
    plain = {"kind": "planted-faults", "caught": caught, "faults": msgspec.to_builtins(found, str_keys=True)}
    write_json(plain, asked.json)
    if any(one.has_failed for one in found):
        return EXIT_FAILED
    return 0 if caught >= CAUGHT_PART * len(found) else EXIT_SURVIVED


if __name__ == "__main__":
    import plant_faults  # under the name by which worker processes find it

    sys.exit(plant_faults.main())
