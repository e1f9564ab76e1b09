"""`dca dashboard` serves one live page for a federation's actors of this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli.output import tell
from dca_proto.cli.status import actors_of, ask_all
from dca_proto.errors import UsageError
from dca_proto.results.status import Result, Statuses
from dca_proto.runtime.config import Config
from dca_proto.runtime.latest import read_results
from dca_proto.runtime.listen import parse_listen
from dca_proto.wording import to_install

EXAMPLES = """Examples:

  dca dashboard                                clients and nodes of this folder that have run; trainers that run
  dca dashboard demo/*.toml                    these; those that do not run yet appear when they do
  dca dashboard --listen 127.0.0.1:8000 /etc/dca/trainer.toml

Open the address that it prints. It contains a token: whoever has it can read the page, and nobody can change anything.
To see it from elsewhere: ssh -L 9465:127.0.0.1:9465 HOST
"""
_NEEDED = ("starlette", "uvicorn", "jinja2", "matplotlib")
LISTEN = "127.0.0.1:9465"


def dashboard(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Actors' TOML files; by default all of this folder that have run.")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve the page; port 0 for a free one.")
    ] = LISTEN,
    beyond_loopback: Annotated[
        bool,
        typer.Option("--beyond-loopback", help="Allow an address that other machines reach. It has no encryption."),
    ] = False,
) -> None:
    """Serve a live page on running actors, until Ctrl-C."""
    require_dashboard()
    from dca_proto.dashboard.server import Board, Dashboard

    address = parse_listen("--listen", listen)
    if not beyond_loopback and not address.is_loopback:
        raise UsageError(
            f"--listen: found {address}, which other machines reach, expected a loopback address; --beyond-loopback "
            "allows it, without encryption"
        )
    actors = actors_of(files, idle=True)
    errors = [one for one in actors.values() if isinstance(one, UsageError)]
    if errors and len(errors) == len(actors):  # one of several stands on the page
        raise errors[0]
    trainers = {
        path: one.files.store for path, one in actors.items() if isinstance(one, Config) and one.role == "trainer"
    }

    def look() -> tuple[Statuses, list[Result]]:
        statuses = ask_all(actors)
        resting = [store for path, store in trainers.items() if path in statuses.stopped]
        return statuses, [result for store in resting for result in read_results(store)]

    served = Dashboard(Board(look, resting=trainers), address)
    tell(f"dashboard   {served.url}")
    served.run()


def require_dashboard() -> None:
    """Raise `UsageError` if a package that the page needs is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the dashboard needs {missing[0]}, which is not installed: {to_install('dashboard')}")
