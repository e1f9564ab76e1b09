"""`dca join` makes a device's key and files by an invitation, and starts the client."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli.actor import JsonLogs, serve
from dca_proto.cli.output import tell
from dca_proto.errors import UsageError
from dca_proto.protocol.enrolment import Bundle, Entrance
from dca_proto.protocol.federation import Federation
from dca_proto.runtime.bundle import SCHEME, parse_link, read_bundle
from dca_proto.runtime.config import SLEEP_S_MAX
from dca_proto.runtime.device import load
from dca_proto.runtime.files import require_input
from dca_proto.runtime.joining import CONFIG, POLICY, Joined, open_link
from dca_proto.runtime.joining import join as join_by
from dca_proto.runtime.joining import renew as renew_by
from dca_proto.runtime.process import complete
from dca_proto.runtime.suggestion import Line, lines_of, read_suggestion, text_of
from dca_proto.wording import duration, moment

EXAMPLES = """Examples:

  dca join ward-7.bundle --data readings.csv         make the key here, enrol it, and contribute until Ctrl-C
  dca join ward-7.bundle --data readings.csv --no-start
  dca client ward-7/client.toml                      start it again
  dca join ward-7.bundle --data readings.csv --policy policy.toml        with limits of your own, for many devices
  dca join ward-7.bundle --data readings.csv --accept-policy             with those that the invitation suggests
  dca join gateway-7.bundle --no-start --sleep-max 2400        a program runs it, and sleeps for 40 minutes at most
  dca join ward-7.bundle --renew                     the next certificate, before this one ends
  dca join dca://10.0.0.1:8884/.../... --folder ward-7 --data readings.csv
      the link of a QR code: dca federation invite ward-7 --qr

A join that was interrupted is repeated by the same command. The invitation is secret until it is used, and no more
afterwards: keep it to renew.

An invitation may suggest limits (`[policy]`). They count only if you accept them: without an option, the command shows
them beside the defaults, and stops. `dca client --help` explains each.
"""


def join(
    invitation: Annotated[str, typer.Argument(help="The invitation's file, or its link.")],
    data: Annotated[Path | None, typer.Option(help="A CSV of the device's readings.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="For the device's files; by default the name in the invitation.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A policy file of your own; all devices that you give it share it.")
    ] = None,
    accept_policy: Annotated[
        bool | None,
        typer.Option(
            "--accept-policy/--refuse-policy", help="Take the policy that the invitation suggests, or the default one."
        ),
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Get the next certificate for a device that joined.")] = False,
    sleep_max: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=SLEEP_S_MAX,
            metavar="SECONDS",
            help="The device sleeps so long between connections, at most: sleep_max_s of its file.",
        ),
    ] = None,
    no_start: Annotated[bool, typer.Option("--no-start", help="Only write the files.")] = False,
    json_logs: JsonLogs = False,
) -> None:
    """Join a federation by an invitation, and start the client."""
    began = time.monotonic()
    if data is not None:
        require_input(data, "expected a CSV of readings")
    elif not (no_start or renew):
        raise UsageError("found no --data, expected a CSV of readings; or --no-start, if a program passes the data")
    _check_options(policy, accept_policy, sleep_max, renew=renew)
    choice = Choice(policy, accept_policy)
    joined = complete(_joined(invitation, data, folder, None if renew else choice, sleep_max or 0))
    if joined is None:
        return
    state = ("renewed" if joined.ends_later else "as before") if renew else "joined" if joined.is_new else "rejoined"
    took = duration(1000 * (time.monotonic() - began))
    tell(f"{state:<12}{joined.federation.name} as {joined.name}, {joined.id.hex()}, in {took}")
    tell(f"certificate until {moment(joined.certificate.expires_ms)}; then: dca join {_shown(invitation)} --renew")
    if not joined.ends_later:
        tell("            a registrar issues one a day for each client, and none beyond its own time")
    if not renew:
        choice.tell(joined)
    if sleep_max is not None and not joined.is_new:
        tell(f"sleep       as before: {joined.config} is kept; set sleep_max_s there")
    tell(f"file        {joined.config}")
    if not (no_start or renew):
        serve(load(joined.config, roles=("client",)), json_logs)


def _check_options(policy: Path | None, accept: bool | None, sleep_max: float | None, *, renew: bool) -> None:
    """Refuse options that contradict each other, and a policy file that is missing. Raises `UsageError`."""
    if policy is not None:
        require_input(policy, "expected a policy file")
    if policy is not None and accept is not None:
        raise UsageError("found --policy and --accept-policy or --refuse-policy, expected one of them")
    if renew and (policy is not None or accept is not None):
        raise UsageError(
            "found --renew with an option of the policy; a renewal keeps the policy: edit the device's file"
        )
    if renew and sleep_max is not None:
        raise UsageError("found --renew with --sleep-max; a renewal keeps the device's file: set sleep_max_s there")


class Choice:
    """Which policy the device's owner chose: their own file, or to accept or refuse what the invitation suggests."""

    def __init__(self, own: Path | None, accept: bool | None) -> None:
        self.own = None if own is None else own.absolute()
        self._accept = accept
        self._lines: list[Line] = []

    def limits(self, entrance: Entrance, folder: Path) -> str:
        """Return the policy that the owner accepts, or "". Raises `UsageError` if they have to choose."""
        federation = Federation.from_toml(entrance.federation)
        if self.own is not None:
            read_suggestion(self.own, federation)
        if self._accept and not entrance.policy:
            raise UsageError("found --accept-policy, but the invitation suggests no policy; leave out that option")
        self._lines = lines_of(entrance.policy, federation)
        if self.own is None and self._accept is None and self._lines and not (folder / CONFIG).exists():
            tell("policy      the invitation suggests these limits for this device:")
            tell_lines(self._lines)
            raise UsageError(
                "the invitation suggests a policy, and you decide: give --accept-policy, --refuse-policy (the default "
                "limits) or --policy FILE; nothing is enrolled or written yet"
            )
        return text_of(self._lines) if self._accept else ""

    def tell(self, joined: Joined) -> None:
        """Print what the device's file has now."""
        if not joined.is_new:
            if self.own is not None or self._accept is not None:
                tell(f"policy      as before: {joined.config} is kept; edit the policy there")
        elif self.own is not None:
            tell(f"policy      {self.own}, which the device reads at each start")
        elif self._accept:
            tell(f"policy      as the invitation suggests; change it in {joined.config.parent / POLICY}:")
            tell_lines(self._lines)
        elif self._lines:
            tell("policy      the default limits; what the invitation suggests was refused")


def tell_lines(lines: list[Line]) -> None:
    """Print the lines of a suggested policy, each beside the default."""
    width = max(len(str(line)) for line in lines)
    for line in lines:
        tell(f"            {line!s:<{min(width, 48)}}  {line.difference}")


async def _joined(
    invitation: str, data: Path | None, folder: Path | None, choice: Choice | None, sleep_max_s: float
) -> Joined:
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
    if choice is None:
        return await renew_by(entrance, place)
    return await join_by(bundle, place, data, choice.own, choice.limits(entrance, place), sleep_max_s=sleep_max_s)


def _shown(invitation: str) -> str:
    return f"{SCHEME}..." if invitation.startswith(SCHEME) else invitation
