"""`dca join` makes a device's key and files by an invitation, and starts the client."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli.actor import JsonLogs, serve
from dca_proto.cli.output import tell
from dca_proto.errors import UsageError
from dca_proto.protocol.enrolment import Bundle
from dca_proto.runtime.bundle import SCHEME, parse_link, read_bundle
from dca_proto.runtime.device import load
from dca_proto.runtime.files import require_input
from dca_proto.runtime.joining import Joined, open_link
from dca_proto.runtime.joining import join as join_by
from dca_proto.runtime.joining import renew as renew_by
from dca_proto.runtime.process import complete
from dca_proto.wording import duration, moment

EXAMPLES = """Examples:

  dca join ward-7.bundle --data readings.csv         make the key here, enrol it, and contribute until Ctrl-C
  dca join ward-7.bundle --data readings.csv --no-start
  dca client ward-7/client.toml                      start it again
  dca join ward-7.bundle --renew                     the next certificate, before this one ends
  dca join dca://10.0.0.1:8884/.../... --folder ward-7 --data readings.csv
      the link of a QR code: dca federation invite ward-7 --qr

A join that was interrupted is repeated by the same command. The invitation is secret until it is used, and no more
afterwards: keep it to renew.
"""


def join(
    invitation: Annotated[str, typer.Argument(help="The invitation's file, or its link.")],
    data: Annotated[Path | None, typer.Option(help="A CSV of the device's readings.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="For the device's files; by default the name in the invitation.")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Get the next certificate for a device that joined.")] = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Only write the files.")] = False,
    json_logs: JsonLogs = False,
) -> None:
    """Join a federation by an invitation, and start the client."""
    began = time.monotonic()
    if data is not None:
        require_input(data, "expected a CSV of readings")
    elif not (no_start or renew):
        raise UsageError("found no --data, expected a CSV of readings; or --no-start, if a program passes the data")
    joined = complete(_joined(invitation, data, folder, renew=renew))
    if joined is None:
        return
    state = ("renewed" if joined.ends_later else "as before") if renew else "joined" if joined.is_new else "rejoined"
    took = duration(1000 * (time.monotonic() - began))
    tell(f"{state:<12}{joined.federation.name} as {joined.name}, {joined.id.hex()}, in {took}")
    tell(f"certificate until {moment(joined.certificate.expires_ms)}; then: dca join {_shown(invitation)} --renew")
    if not joined.ends_later:
        tell("            a registrar issues one a day for each client, and none beyond its own time")
    tell(f"file        {joined.config}")
    if not (no_start or renew):
        serve(load(joined.config, roles=("client",)), json_logs)


async def _joined(invitation: str, data: Path | None, folder: Path | None, *, renew: bool) -> Joined:
    if invitation.startswith(SCHEME):
        if folder is None:
            raise UsageError("a link has no name for the device's folder: give --folder")
        link = parse_link(invitation)
        entrance = await open_link(link)
        bundle = Bundle(folder.name, link.code, entrance)
    else:
        bundle = read_bundle(Path(invitation))
        entrance = bundle.entrance
    place = folder or Path(bundle.name)
    return await (renew_by(entrance, place) if renew else join_by(bundle, place, data))


def _shown(invitation: str) -> str:
    return f"{SCHEME}..." if invitation.startswith(SCHEME) else invitation
