"""`dca status` asks running actors how they are: connection, rounds and whom they wait for, budget, store, warnings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from dca_proto.cli.options import Json
from dca_proto.cli.output import result_console, say
from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import at_most
from dca_proto.results.figure import Figure, figures_of
from dca_proto.results.status import STATUS, LastRound, RoundStatus, ScheduledJob, Status, Statuses
from dca_proto.runtime.config import ClientFiles, is_actor_file, read_config
from dca_proto.runtime.files import write_json
from dca_proto.runtime.registrar_file import is_registrar_file, read_registrar
from dca_proto.runtime.sleep import sleeping
from dca_proto.runtime.status import ask_status, status_path
from dca_proto.wording import counted, duration, listed

NEEDS_ATTENTION = 1
"""The exit code of `--check`."""
_AT_ONCE = 8
_SERVERS = ("compute", "registrar")
EXAMPLES = """Examples:

  dca status                                   this folder: its nodes, registrar, clients that ran, trainers that run
  dca status demo                              those of a folder, or of the machines' folders in it
  dca status demo/compute-1.toml               one actor in full
  dca status --check /etc/dca/*.toml           exit code 1 if one needs attention or does not run
  dca status --json - | jq '.actors[].rounds[].waits_for'

An actor answers at a socket beside its store, to processes of its own user and of root. A client that sleeps between
connections states sleep_max_s under [client]: then --check fails only if it overslept, or ended by an error.
"""


OUTPUT = Statuses


def status(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Their TOML files, or folders; by default all here that have run.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if an actor needs attention or does not run.")
    ] = False,
    json_to: Json = None,
) -> int:
    """Show how running actors and registrars are, and whom rounds wait for."""
    console = result_console(json_to)
    actors = actors_of(files)
    result = ask_all(actors, alone=len(actors) == 1)
    write_json(result, json_to)
    show(console, result, in_full=len(actors) == 1)
    return 0 if result.is_well or not check else NEEDS_ATTENTION


class Place(NamedTuple):
    """An actor, or a registrar, and its store, beside which it answers."""

    role: str
    store: Path
    sleep_max_s: float = 0  # of a client that sleeps by plan


Actors = dict[str, Place | UsageError]
"""Actors by the name of their file, or why a file cannot be used."""


def actors_of(files: list[Path] | None, *, idle: bool = False) -> Actors:
    """Return the actors of some files, or of folders that have run; by default, of this folder. Raises `UsageError`.

    Of several files, those that are no actor's are left out, as `*.toml` also names federation files.

    Args:
        idle: in a folder, include trainers that do not run now.
    """
    found: Actors = {}
    for named in files or [Path()]:
        try:
            paths = _in_folder(named, idle=idle) if _seen(named.is_dir) else [named]
        except UsageError as error:  # hides no other, unless it stands alone
            if not files or len(files) == 1:
                raise
            found[str(named)] = error
            continue
        for path in paths:
            try:
                found[str(path)] = _place(path)
            except UsageError as error:
                if path != named or len(files or [named]) == 1 or not _seen(path.exists) or _may_be_actor_file(path):
                    found[str(path)] = error
    return found


def _place(path: Path) -> Place:
    if is_registrar_file(path):
        return Place("registrar", read_registrar(path).book)
    config = read_config(path)
    files = config.files
    return Place(config.role, files.store, files.sleep_max_s if isinstance(files, ClientFiles) else 0)


def actor_of(store: Path) -> tuple[Path, str] | None:
    """Return the file beside a store whose actor has it, and the actor's role; None if there is none."""
    for path in sorted(store.parent.glob("*.toml")):
        with contextlib.suppress(UsageError):
            place = _place(path)
            if place.store.resolve() == store.resolve():
                return path, place.role
    return None


def ask_all(actors: Actors, *, alone: bool = False) -> Statuses:
    """Ask all actors. One that does not answer hides no other, and raises its error if it is `alone`."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(actors, pool.map(_ask, actors.values()), strict=True))
    for one in answers.values():
        if alone and isinstance(one, UsageError):
            raise one
    return Statuses(
        actors=[one for one in answers.values() if isinstance(one, Status)],
        stopped=[path for path, one in answers.items() if one is None and not _rests(actors[path])],
        resting=[path for path, one in answers.items() if one is None and _rests(actors[path])],
        failed={path: str(one) for path, one in answers.items() if isinstance(one, UsageError)},
    )


def _rests(actor: Place | UsageError) -> bool:
    """Return True for a trainer that does not run, and has not left its socket behind, as one that is killed does."""
    return isinstance(actor, Place) and actor.role == "trainer" and not _seen(status_path(actor.store).exists)


def _ask(actor: Place | UsageError) -> Status | UsageError | None:
    try:
        if isinstance(actor, UsageError):
            return actor
        found = ask_status(actor.store)
        return sleeping(actor.store, actor.sleep_max_s) if found is None and actor.sleep_max_s else found
    except UsageError as error:
        return error


def _in_folder(folder: Path, *, idle: bool = False) -> list[Path]:
    """Return the files of a folder's actors that have run; of the folders in it, if it has no file of an actor.

    A node or a registrar beside an actor that has run is included: it may have failed before it had a store.
    """
    ran: list[Path] = []
    never: list[tuple[str, Path]] = []  # with their roles
    for pattern in ("*.toml", "*/*.toml"):  # a deployment has one folder for each machine
        for path in sorted(folder.glob(pattern)):
            try:
                role, store, _ = _place(path)
            except UsageError:  # another kind of file, or an actor's that is damaged
                ran += [path] if _seen(path.is_file) and _may_be_actor_file(path) else []
                continue
            is_trainer = role == "trainer"  # it ends with its job
            proofs = (status_path(store),) if is_trainer else (store, path.with_suffix(".log"))  # of a unit
            if (idle and is_trainer) or any(_seen(proof.exists, unknown=True) for proof in proofs):
                ran.append(path)
            else:
                never.append((role, path))
        if ran:
            here = {path.parent for path in ran}
            return sorted([*ran, *(path for role, path in never if role in _SERVERS and path.parent in here)])
    raise UsageError(_none_ran("this folder" if folder == Path() else str(folder), never))


def _seen(look: Callable[[], bool], *, unknown: bool = False) -> bool:
    """Return what a look at a path says; `unknown` if it cannot be looked at."""
    try:
        return look()
    except OSError:
        return unknown


def _may_be_actor_file(path: Path) -> bool:
    """Return True if a file is an actor's, or cannot be read; then its error is shown, and hides no other actor."""
    try:
        return is_actor_file(path) or is_registrar_file(path)
    except UsageError:
        return True


def _none_ran(folder: str, never: list[tuple[str, Path]]) -> str:
    """Return why a folder has nothing to show, and what to do."""
    if not never:
        return (
            f"{folder} has no actor's file, and neither has a folder in it: expected *.toml with [client], [compute], "
            "[trainer] or [registrar]; name the actors' folder, as of a deployment: dca status FOLDER"
        )
    role, path = next((one for one in never if one[0] != "trainer"), never[0])
    return (
        f"no client or node of {folder} has ever run on this machine, and no trainer runs: found "
        f"{counted(len(never), 'file')} of actors; start one, such as dca {role} {path}, or type dca status on the "
        "machine where it runs"
    )


def show(console: Console, result: Statuses, *, in_full: bool = False) -> None:
    """Print a line for each actor, then its warnings, rounds and, `in_full`, all figures."""
    for one in result.actors:
        console.print(line(one), soft_wrap=True)
        for round_ in one.rounds:
            console.print(f"  {round_line(round_, one.role)}", soft_wrap=True)
        for job in one.schedule:
            console.print(f"  {schedule_line(job)}", soft_wrap=True)
        if one.last is not None:
            console.print(f"  {last_line(one.last)}", soft_wrap=True)
        if in_full:
            for label, text in details(one):
                console.print(f"  {label:<17} {text}", soft_wrap=True)
        for warning in one.warnings:
            say(console, "warning", f"{one.role} {one.name}: {warning}")
    for text in result.down:
        say(console, "warning", text)
    for text in result.at_rest:
        say(console, "trainer", text)


def line(one: Status) -> str:
    """Return a line on an actor."""
    since = duration(1000 * one.since_s)
    if one.role == "registrar":
        most = "" if one.enrolled_most is None else f" of at most {counted(one.enrolled_most, 'client')}"
        codes = counted(one.invited or 0, "open invitation")
        return f"{one.role:<9} {one.name:<12} serving for {since}, {one.enrolled or 0:,}{most} enrolled, {codes}"
    state = f"connected for {since}" if one.connected else f"AWAY for {since}"
    if one.asleep_s is not None:
        state = f"OVERSLEPT, away for {since}" if one.overslept else f"asleep for {since}"
    parts = [state, f"epoch {one.epoch}"]
    if one.sessions is not None:
        parts.append(counted(one.sessions, "session"))
    parts.append(counted(len(one.rounds), "open round") if one.rounds else "no open round")
    if one.epsilon_left is not None and one.epsilon_allowed is not None:
        parts.append(f"epsilon {at_most(one.epsilon_left)} left of {at_most(one.epsilon_allowed)}")
    return f"{one.role:<9} {one.name:<12} {', '.join(parts)}"


def round_line(one: RoundStatus, role: str) -> str:
    """Return a line on an open round of an actor: its phase, and whom it waits for."""
    held = "its " if role == "compute" else ""  # a node expects the clients that it holds, not all of the round
    of = f" of {held}{counted(one.expected, 'client')}" if one.expected is not None else ""
    arrived = f", {one.arrived:,}{of} have answered" if one.arrived is not None else ""
    names = listed(one.waits_for, 8) if not one.more else f"{listed(one.waits_for, 8)}, and {one.more:,} others"
    until = f", until {one.until}" if one.until else ""
    waits = f"; waits for {names}" if one.waits_for else ""
    about = f" {one.statistic}" if one.statistic else ""
    return f"round {one.round_id[:8]}{about}: {one.phase}{until}{arrived}{waits}"


def last_line(one: LastRound) -> str:
    """Return a line on the last round that ended: what happened, who was absent, and whose proofs failed."""
    others = f" and {one.absent_more:,} others" if one.absent_more else ""
    absent = f"; absent: {listed(one.absent, 8)}{others}" if one.absent else ""
    more = f" and {one.unproven_more:,} others" if one.unproven_more else ""
    unproven = f"; unproven: {listed(one.unproven, 8)}{more}" if one.unproven else ""
    return f"last {one.at}, round {one.round_id[:8]}: {one.what}{absent}{unproven}"


def schedule_line(job: ScheduledJob) -> str:
    """Return a line on a standing job: its next slot, how many are done, and how long the budget lasts."""
    following = "over" if job.next is None else f"next {job.next}"
    gaps = f", {counted(job.gaps, 'gap')}" if job.gaps else ""
    return f"schedule {job.title!r}: {following}, {job.done:,} of {job.of:,} done{gaps}, budget lasts to {job.lasts_to}"


def details(one: Status) -> list[tuple[str, str]]:
    """Return a label and a text for each figure with a value, from the record's fields."""
    since_start = " in its last wake" if one.asleep_s is not None else ""
    rows = [
        (figure.title, _text(value, figure.unit) + (since_start if _is_since_start(figure) else ""))
        for name, figure in figures_of(Status).items()
        if figure.table == STATUS and (value := getattr(one, name)) not in (None, "")
    ]
    rows += [(f"{what} ends" if len(what) < 13 else what, end) for what, end in one.certificates.items()]
    rows += [("dropped", f"{count:,} {code}{since_start}") for code, count in one.dropped.items()]
    rows += [("dropped", f"{count:,} data: {reason}{since_start}") for reason, count in one.data_dropped.items()]
    rows += [("clock", f"{name} is {offset:+.3g} s ahead") for name, offset in one.clock_offset_s.items()]
    return rows


def _is_since_start(figure: Figure) -> bool:
    """Return True if a figure counts from the start of the process on: at a client that sleeps, from its last wake."""
    return figure.metric is not None and figure.metric.is_since_start


def _text(value: Any, unit: str) -> str:
    if unit == "s":
        return duration(1000 * value)
    if unit == "bytes":
        return f"{value / 1e6:,.2f} MB" if value >= 1e5 else f"{value / 1e3:,.1f} kB"
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
