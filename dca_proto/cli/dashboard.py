"""`dca dashboard` serves one live page for a federation's actors of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dca_proto.cli.output import tell
from dca_proto.cli.status import Actors, Place, actors_of, ask_all
from dca_proto.dashboard.memory import Seen
from dca_proto.errors import UsageError
from dca_proto.jobs.series import Series
from dca_proto.results.series import SeriesSlot
from dca_proto.runtime.files import read_text
from dca_proto.runtime.latest import read_results
from dca_proto.runtime.listen import parse_listen
from dca_proto.wording import to_install

EXAMPLES = """Examples:

  dca dashboard                                this folder: its nodes, registrar, trainers, and clients that have run
  dca dashboard demo/*.toml                    these; those that do not run yet appear when they do
  dca dashboard trainer.toml jobs.toml         also what standing jobs have found, from their database of results
  dca dashboard --listen 127.0.0.1:8000 /etc/dca/trainer.toml

Open the address that it prints. It contains a token: whoever has it can read the page, and nobody can change anything.
To see it from elsewhere: ssh -L 9460:127.0.0.1:9460 HOST
"""
_NEEDED = ("starlette", "uvicorn", "jinja2", "matplotlib")
_SLOTS_MAX = 400  # a year of days
LISTEN = "127.0.0.1:9460"


def dashboard(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of actors and of standing jobs; by default all here that have run."),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve the page; port 0 for a free one.")
    ] = LISTEN,
    beyond_loopback: Annotated[
        bool,
        typer.Option("--beyond-loopback", help="Allow an address that other machines reach. It has no encryption."),
    ] = False,
) -> None:
    """Serve a live page on running actors and standing jobs, until Ctrl-C."""
    require_dashboard()
    from dca_proto.dashboard.server import Board, Dashboard

    address = parse_listen("--listen", listen)
    if not beyond_loopback and not address.is_loopback:
        raise UsageError(
            f"--listen: found {address}, which other machines reach, expected a loopback address; --beyond-loopback "
            "allows it, without encryption"
        )
    histories = {path: History(path) for path in files or sorted(Path().glob("*.toml")) if _is_schedule(path)}
    actors = _actors([path for path in files if path not in histories] if files else None, alone=not histories)
    errors = [one for one in actors.values() if isinstance(one, UsageError)]
    if errors and len(errors) == len(actors):  # one of several stands on the page
        raise errors[0]
    trainers = {path: one.store for path, one in actors.items() if isinstance(one, Place) and one.role == "trainer"}

    def look() -> Seen:
        statuses = ask_all(actors)
        resting = [store for path, store in trainers.items() if path in (*statuses.stopped, *statuses.resting)]
        slots: dict[str, list[SeriesSlot]] = {}
        failed = {}
        for path, history in histories.items():
            try:
                slots |= history.read()
            except UsageError as error:
                failed[str(path)] = str(error)
        statuses = msgspec.structs.replace(statuses, failed={**statuses.failed, **failed})
        return Seen(statuses, [result for store in resting for result in read_results(store)], slots)

    served = Dashboard(Board(look), address)
    tell(f"dashboard   {served.url}")
    served.run()


def _actors(files: list[Path] | None, *, alone: bool) -> Actors:
    """Return the actors of these files, or of this folder; none if there are none, unless they are `alone`."""
    if files == []:
        return {}
    try:
        return actors_of(files, idle=True)
    except UsageError:
        if alone or files is not None:
            raise
        return {}


def _is_schedule(path: Path) -> bool:
    return path.is_file() and "[schedule]" in read_text(path, "expected a TOML file").splitlines()


class History:
    """The slots of a schedule's jobs, from its database of results. It is read again when it has changed."""

    def __init__(self, schedule: Path) -> None:
        from dca_proto.cli.schedule_file import results_path  # needs what jobs need

        self._path = results_path(schedule)
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._slots: dict[str, list[SeriesSlot]] = {}

    def read(self) -> dict[str, list[SeriesSlot]]:
        """Return the latest slots of each job, by its title; none before the first has begun. Raises `UsageError`."""
        stamp = tuple((at.st_mtime_ns, at.st_size) for at in map(_about, (self._path, Path(f"{self._path}-wal"))) if at)
        if stamp and stamp != self._stamp:
            with Series(self._path, read_only=True) as series:
                self._slots = {title: series.slots(title, _SLOTS_MAX) for title in series.jobs()}
            self._stamp = stamp
        return self._slots


def _about(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return path.stat()
    return None


def require_dashboard() -> None:
    """Raise `UsageError` if a package that the page needs is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the dashboard needs {missing[0]}, which is not installed: {to_install('dashboard')}")
