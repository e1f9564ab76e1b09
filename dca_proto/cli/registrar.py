"""`dca registrar` lets devices join with one-time codes, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli.actor import JsonLogs
from dca_proto.cli.output import tell
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.process import complete
from dca_proto.runtime.registrar import RegistrarServer
from dca_proto.runtime.registrar_file import read_registrar

EXAMPLES = """Examples:

  dca registrar registrar.toml                 beside mosquitto, as its user
  dca registrar registrar.toml --log-json      log JSON lines

`dca federation deploy` writes registrar.toml. `dca federation invite` makes invitations, `dca join` uses them.
"""


def registrar(
    config: Annotated[Path, typer.Argument(help="The registrar's TOML file.", metavar="CONFIG")],
    json_logs: JsonLogs = False,
) -> None:
    """Run a registrar, which enrols devices that have an invitation, until Ctrl-C."""
    configure_logs(json=json_logs)
    file = read_registrar(config)
    running = RegistrarServer(file)
    tell(f"registrar  of federation {running.federation.name} at {file.address}:{file.port}", stderr=True)
    complete(running.run())
