"""Run a broker until Ctrl-C (mosquitto if it is installed, else the embedded one), or clear a federation's messages."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer

from dca_proto.cli import verbatim
from dca_proto.cli.options import Json, completing
from dca_proto.cli.output import keep_earlier, result_console, say, tell
from dca_proto.crypto.sealing import actor_id
from dca_proto.errors import StorageError, UsageError
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.wire.topics import root_of
from dca_proto.results.figure import about
from dca_proto.runtime.access import OPERATOR, Access, BrokerUser
from dca_proto.runtime.broker import LOG_NAME, BrokerKind, BrokerOptions, TlsFiles, launch_broker
from dca_proto.runtime.clearing import clear_retained
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.files import require_input, write_json
from dca_proto.runtime.keyfile import check_private, read_certificate, read_federation, read_password, write_private
from dca_proto.runtime.process import TERMINATED, complete
from dca_proto.runtime.settings import BrokerSettings, is_host
from dca_proto.wording import counted

_KINDS = get_args(BrokerKind)
EXAMPLES = """Examples:

  dca broker                                       mosquitto if installed, else the embedded one; on 127.0.0.1:1883
  dca broker --broker embedded --port 0            on a free port
  dca broker --host 0.0.0.0 --federation demo/federation.toml --passwords demo/passwords \\
      --tls-certificate broker.pem --tls-key broker.key --tls-ca ca.pem
                                                   for members only: give each its password file

A member's user name is its id. A member may write only to topics that end in its own id, and read only its own inbox
and its role's broadcasts. The clients are those with a valid certificate (*.cert) beside the federation file.

An operator's user may read and write all topics of the federation: its password is operator.password.

A certificate for a trial: openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost \\
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout broker.key -out broker.pem    (then --tls-ca broker.pem)
"""
_CLEAR = """Examples:

  dca broker clear demo/federation.toml                        on mqtt://127.0.0.1
  dca broker clear demo/federation.toml --revoked              what revoked members left, which others drop
  dca broker clear demo/federation.toml --url mqtts://broker.example --ca ca.pem \\
      --password-file demo/passwords/operator.password         as the operator, where members have passwords

The broker retains the newest key of each Compute node, each client's session, and a changed federation file. Actors
publish them again within five minutes while they run. So stop them first, or clear a federation that nobody uses any
more. With --revoked, actors may run. RabbitMQ shows no retained messages of many topics at once: there, remove its
store.
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None, help=__doc__, invoke_without_command=True)


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """Retained messages that a broker has forgotten."""

    federation: Annotated[str, about("Its name.")]
    id: Annotated[str, about("The part of its id that is in its topics, in hexadecimal.")]
    url: Annotated[str, about("The broker's.")]
    topics: Annotated[int, about("How many topics had a retained message.")]


OUTPUT = {"clear": Cleared}


@app.callback(epilog=verbatim(EXAMPLES))
def broker(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 1883,
    host: Annotated[str, typer.Option(help="Address to listen on; by default only for this machine.")] = "127.0.0.1",
    kind: Annotated[
        str,
        typer.Option("--broker", help=f"{', '.join(_KINDS)}.", autocompletion=completing(_KINDS)),
    ] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Folder for configuration, sessions and log; by default a temporary one.")
    ] = None,
    federation: Annotated[Path | None, typer.Option(help="Let in members of this federation file only.")] = None,
    passwords: Annotated[
        Path | None, typer.Option(help="Folder of the members' password files; missing ones are created.")
    ] = None,
    certificates: Annotated[
        Path | None, typer.Option(help="Folder of the clients' certificates; by default the federation file's.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="The broker's certificate (PEM): listen with TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="The CA that signs clients' TLS certificates (PEM).")] = None,
    require_certificate: Annotated[
        bool, typer.Option("--require-certificate", help="Refuse clients without a TLS certificate of that CA.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Trial: accept other machines without passwords or TLS.")
    ] = False,
) -> None:
    """Run a broker until Ctrl-C: mosquitto if it is installed, else the embedded one."""
    if context.invoked_subcommand is not None:
        return
    if kind not in _KINDS:
        raise UsageError(f"--broker {kind!r}: expected one of {', '.join(_KINDS)}")
    if not is_host(host):
        raise UsageError(f"--host {host!r}: expected the name or the address of this machine")
    options = BrokerOptions(
        kind=msgspec.convert(kind, BrokerKind),
        host=host,
        port=port,
        tls=_tls(tls_certificate, tls_key, tls_ca, require_certificate),
        access=_access(federation, passwords, certificates),
    )
    if not insecure:
        _require_secured(options)
    if output is not None:
        complete(_serve(output, options))
        return
    with _folder() as folder:
        complete(_serve(folder, options))


@app.command(epilog=verbatim(_CLEAR))
def clear(
    federation: Annotated[Path, typer.Argument(help="The federation file.")],
    url: Annotated[str, typer.Option(help="The broker's, as in an actor's file.")] = "mqtt://127.0.0.1",
    ca: Annotated[Path | None, typer.Option(help="Trusted CA certificates (PEM); by default the system's.")] = None,
    password_file: Annotated[Path | None, typer.Option(help="The operator's, from `dca broker --passwords`.")] = None,
    username: Annotated[str | None, typer.Option(help=f"By default {OPERATOR}, with a password file.")] = None,
    revoked: Annotated[
        bool, typer.Option("--revoked", help="Only of members and clients that the federation file revokes.")
    ] = False,
    json_to: Json = None,
) -> int | None:
    """Remove the messages that a broker retains for a federation, of all its members or of the revoked ones."""
    found = read_federation(federation)
    user = username or (OPERATOR if password_file else None)
    settings = BrokerSettings(url=url, ca=ca, username=user, password_file=password_file)
    console = result_console(json_to)
    senders = frozenset(one.hex() for one in found.revoked) if revoked else None
    topics = complete(clear_retained(settings, root_of(found.id), senders=senders))
    if topics is None:
        return TERMINATED
    cleared = Cleared(federation=found.name, id=root_of(found.id).rpartition("/")[2], url=url, topics=topics)
    keep_earlier(console, json_to)
    write_json(cleared, json_to)
    say(console, "cleared", f"{counted(topics, 'retained message')} of {found.name} ({cleared.id[:8]}) at {url}")
    return None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder and remove it at the end. If the broker failed, keep its log, which the error names."""
    folder = Path(tempfile.mkdtemp(prefix="dca-broker-"))
    kept = None
    try:
        yield folder
    except UsageError:
        kept = folder / LOG_NAME
        raise
    finally:
        for path in folder.iterdir():
            if path != kept:
                path.unlink()
        with contextlib.suppress(OSError):  # not empty: the log is in it
            folder.rmdir()


async def _serve(folder: Path, options: BrokerOptions) -> None:
    async with launch_broker(folder, options) as running:
        tell(f"broker  {running.kind} {running.version} at {running.url}; log {running.log_path}")
        tell("        Ctrl-C stops it")
        await running.ended()


def _require_secured(options: BrokerOptions) -> None:
    """Raise `UsageError` if other machines can reach the broker without passwords or without TLS."""
    with contextlib.suppress(OSError):
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(options.host, None)}
        if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
            return
    required = (("--federation", options.access), ("--tls-certificate", options.tls))
    missing = [option for option, given in required if not given]
    if missing:
        raise UsageError(
            f"other machines can reach --host {options.host}: found no {' and no '.join(missing)}, expected passwords "
            "for members and TLS; give both (dca broker --help), listen on 127.0.0.1, or add --insecure for a trial in "
            "a network that you trust"
        )


def _tls(certificate: Path | None, key: Path | None, ca: Path | None, require: bool) -> TlsFiles | None:
    given = (certificate, key, ca)
    if not any(given) and not require:
        return None
    if certificate is None or key is None or ca is None:
        raise UsageError("TLS needs --tls-certificate, --tls-key and --tls-ca: give all three or none")
    for path in (certificate, key, ca):
        require_input(path, "expected a TLS file (PEM)")
    check_private(key)
    return TlsFiles(ca, certificate, key, require)


def _access(federation: Path | None, passwords: Path | None, certificates: Path | None) -> Access | None:
    if federation is None:
        if passwords or certificates:
            raise UsageError("--passwords and --certificates need --federation FILE")
        return None
    if passwords is None:
        raise UsageError("--federation needs --passwords FOLDER, the folder of the members' password files")
    members_of = read_federation(federation)
    members = list(_members(members_of, certificates or federation.absolute().parent))
    names = Counter([OPERATOR, *(name.casefold() for _, name, _ in members)])
    twice = [name for _, name, _ in members if names[name.casefold()] > 1]
    if twice:
        shared = f"two members would share {twice[0]}.password"
        raise UsageError(f"{shared}: give the certificate {twice[-1]}.cert another name")
    try:
        passwords.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make folder {passwords}: {error.strerror}") from None
    return Access(
        members_of.id,
        tuple(BrokerUser(role, member, _password(passwords / f"{name}.password")) for role, name, member in members),
        _password(passwords / f"{OPERATOR}.password"),
    )


def _members(federation: Federation, certificates: Path) -> Iterator[tuple[Channel, str, bytes]]:
    """Yield the role, name and id of everyone who may use the broker."""
    for role, named in ((Channel.COMPUTE, federation.computes), (Channel.TRAINER, federation.trainers)):
        for member in named:
            yield role, member.name, member.id
    now = now_ms()
    for path in sorted(certificates.glob("*.cert")):
        try:
            certificate = read_certificate(path, federation, now)
        except UsageError as error:  # must not lock out the other clients
            tell(f"left out  {error}", stderr=True)
        else:
            yield Channel.CLIENT, path.stem, actor_id(certificate.client_key)


def _password(path: Path) -> str:
    """Read the password from a member's file; create the file if it is missing."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24) + "\n")
    return read_password(path)
