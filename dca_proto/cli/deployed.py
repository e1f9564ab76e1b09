"""Runs a deployment's units on this machine without systemd, for a trial (`dca federation run`)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import getpass
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dca_proto.cli.output import tell
from dca_proto.cli.restarts import keep_running
from dca_proto.deploy.plan import OWNER
from dca_proto.errors import StorageError, UsageError
from dca_proto.runtime import parent_death
from dca_proto.runtime.broker import find_mosquitto
from dca_proto.runtime.locks import locked, release
from dca_proto.runtime.registrar_file import read_registrar

_STOP_S = 10.0
_EXEC = "ExecStart="
_LOCK = ".running"


class Unit(NamedTuple):
    """A unit of a machine: its name, the machine's folder, and the command without the program."""

    name: str
    folder: Path
    arguments: list[str]


def is_deployment(folder: Path) -> bool:
    """Return True for a folder that `dca federation deploy` has written."""
    return (folder / OWNER).is_dir()


def units_of(folder: Path) -> list[Unit]:
    """Return the units of all machines, brokers first."""
    found = []
    for path in sorted(folder.glob("*/dca-*.service")):
        (line,) = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(_EXEC)]
        found.append(Unit(path.stem.removeprefix("dca-"), path.parent, line.removeprefix(_EXEC).split()[1:]))
    return found


async def run_deployment(folder: Path) -> None:
    """Run all units, and start each again when it ends, until cancelled. Raises `StorageError` if they run already."""
    with _alone(folder):
        await _run_units(folder)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no other process runs its units: a second broker would remove the first one's pid_file.

    Raises `StorageError` if another process has the lock. The file stays: whoever removed it could remove another's.
    """
    remedy = "end that process first, or leave it alone"
    try:
        lock = locked(folder / _LOCK, os.O_RDWR | os.O_CREAT, f"the deployment {folder}", remedy)
    except OSError as error:
        raise StorageError(f"cannot write {folder / _LOCK}: {error.strerror}") from None
    try:
        yield
    finally:
        release(lock)


async def _run_units(folder: Path) -> None:
    units = units_of(folder)
    mosquitto = find_mosquitto()
    if mosquitto is None:
        raise UsageError("mosquitto is not installed: apt install mosquitto (Debian)")
    for unit in units:
        if taken := _taken(unit):  # another's broker there would refuse all actors, who cannot say why
            raise UsageError(taken)
    tell(f"units   {', '.join(f'{unit.name} of {unit.folder.name}' for unit in units)}")
    tell("        log: UNIT.log in each machine's folder; Ctrl-C stops them")
    with tempfile.TemporaryDirectory(prefix="dca-run-") as place:
        async with asyncio.TaskGroup() as tasks:
            for unit in units:
                run = partial(_run_unit, unit, _command(unit, mosquitto, Path(place)))
                tasks.create_task(keep_running(f"{unit.name} of {unit.folder.name}", run))


def _taken(unit: Unit) -> str:
    """Return what to do about a port that a unit needs and another process has; "" if it is free."""
    listened = _listened(unit)
    if listened is None:
        return ""
    host, port = listened
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return ""
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return ""  # the unit itself says what is wrong
    return (
        f"port {port} is in use, so the {unit.name} of {unit.folder.name} cannot have it; by whom is not known; end "
        "that process, or deploy another folder with --port"
    )


def _listened(unit: Unit) -> tuple[str, int] | None:
    """Return the address and port at which a unit listens, by its file; None if it does not, or its file is wrong."""
    named = [unit.folder / word for word in unit.arguments if word.endswith((".conf", ".toml"))]
    if unit.name == "registrar":
        with contextlib.suppress(UsageError):
            file = read_registrar(named[0])
            return file.listen or file.address, file.port
    elif unit.name == "broker" and (
        found := re.search(r"(?m)^listener (\d+)(?: (\S+))?", named[0].read_text(encoding="utf-8"))
    ):
        return found[2] or "", int(found[1])
    return None


def _command(unit: Unit, mosquitto: str, place: Path) -> list[str]:
    if unit.name != "broker":
        words = [str(unit.folder / word) if word.endswith(".toml") else word for word in unit.arguments]
        return [sys.executable, "-m", "dca_proto.cli", *words]  # a list of processes tells the machines apart
    path = place / f"{unit.folder.name}.conf"
    own = (unit.folder / unit.arguments[-1]).read_text(encoding="utf-8")
    path.write_text(f"{own}user {getpass.getuser()}\n", encoding="utf-8")  # as root, it would switch to another one
    return [mosquitto, *unit.arguments[:-1], str(path)]


async def _run_unit(unit: Unit, command: list[str]) -> str:
    """Run one unit until it ends, and return why it did."""
    guarded = [sys.executable, "-IS", parent_death.__file__, str(os.getpid()), *command]
    with (unit.folder / f"{unit.name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *guarded, cwd=unit.folder, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            raise
    return f"ended with {code}; {_taken(unit) or f'its log says why: {unit.folder / unit.name}.log'}"
