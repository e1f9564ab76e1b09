"""The file of a registrar: `registrar.toml`.

    [registrar]
    identity = "registrar.key"             made by `dca keygen --role registrar`, named by the federation file
    federation = "federation.toml"         read again when it changes
    book = "registrar.db"                  invitations; `dca federation invite` writes them
    address = "10.0.0.1"                   where devices reach it
    certificate = "registrar.pem"          for that address, signed by the CA
    key = "registrar.pem.key"
    ca = "ca.pem"                          goes into each invitation
    broker = "mqtts://10.0.0.1:8883"       goes into each invitation
    policy = "policy.toml"                 optional: limits that each invitation suggests; a device's owner decides
    broker_certificate = "broker.pem"      optional: it warns before mosquitto's certificate ends
    members = "members.passwords"          hashed passwords of Compute nodes, trainers and the operator
    passwords = "passwords"                mosquitto's files, which the registrar writes
    access = "access"
    pid_file = "mosquitto.pid"             mosquitto reads both files again on SIGHUP

`dca registrar` serves by it (`dca_proto.runtime.registrar`), and `dca federation invite` writes invitations by it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.enrolment import Entrance
from dca_proto.runtime.files import read_text
from dca_proto.runtime.keyfile import read_federation
from dca_proto.runtime.settings import anchored, check_url, convert
from dca_proto.runtime.suggestion import read_suggestion
from dca_proto.wording import parse_toml

PORT = 8884


class RegistrarFile(msgspec.Struct, frozen=True, kw_only=True):
    """The section `[registrar]` of a registrar's file; see the module's head."""

    identity: Path
    federation: Path
    book: Path
    address: str
    port: int = PORT
    listen: str = ""
    certificate: Path
    key: Path
    ca: Path
    broker: str
    policy: Path | None = None
    broker_certificate: Path | None = None
    members: Path
    passwords: Path
    access: Path
    pid_file: Path

    def __post_init__(self) -> None:
        check_url("[registrar] broker", self.broker)
        if not 1 <= self.port <= 65535:
            raise InputError(f"[registrar] port: found {self.port}, expected 1 to 65535")

    def entrance(self, policy: Path | None = None) -> Entrance:
        """Return what goes into each invitation, with a suggested policy. Raises `UsageError`."""
        federation, path = read_federation(self.federation), policy or self.policy
        suggested = "" if path is None else read_suggestion(path, federation)
        return Entrance(self.address, self.port, self.broker, read_text(self.ca), federation.to_toml(), suggested)


def is_registrar_file(path: Path) -> bool:
    """Return True if a file has the section of a registrar. Raises `UsageError` if it cannot be read."""
    lines = read_text(path, "expected an actor's file").splitlines()
    return any(line.partition("#")[0].strip() == "[registrar]" for line in lines)


def read_registrar(path: Path) -> RegistrarFile:
    """Read a registrar's file. Raises `UsageError` that names the file."""
    try:
        tables = parse_toml(read_text(path, "expected a registrar's file"))
        table = tables.get("registrar")
        if not isinstance(table, dict) or len(tables) > 1:
            raise InputError("expected one section, [registrar]; see `dca registrar --help`")
        return anchored(convert("[registrar]", table, RegistrarFile), path.absolute().parent)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
