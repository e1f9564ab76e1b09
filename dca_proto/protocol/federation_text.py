"""The text of the federation file, in TOML (DESIGN §2.1): what `Federation` writes and reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from dca_proto.protocol.wire.fields import COLLUDING_MAX
from dca_proto.protocol.wire.messages import Registrar
from dca_proto.wording import toml_text

if TYPE_CHECKING:
    from dca_proto.protocol.federation import Federation


class FileMember(msgspec.Struct, forbid_unknown_fields=True):
    """A Compute node or a trainer in the text. Keys are in hexadecimal."""

    name: str
    key: str
    name_key: str = ""

    @property
    def fields(self) -> tuple[str, bytes, bytes]:
        """Name, key, and sealed name key. Raises `ValueError` for what is not hexadecimal."""
        return self.name, bytes.fromhex(self.key), bytes.fromhex(self.name_key)


class FileRegistrar(msgspec.Struct, forbid_unknown_fields=True):
    """A registrar in the text."""

    name: str
    key: str
    until_ms: int
    clients: int
    days: int
    per_day: int
    name_key: str = ""

    @property
    def registrar(self) -> Registrar:
        """The registrar. Raises as `FileMember.fields`."""
        limits = (self.until_ms, self.clients, self.days, self.per_day)
        return Registrar(self.name, bytes.fromhex(self.key), bytes.fromhex(self.name_key), *limits)


class FileText(msgspec.Struct, forbid_unknown_fields=True):
    """The whole text."""

    name: str
    number: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    enrolment_key: str
    signature: str
    revoked: list[str] = []
    colluding: Annotated[int, msgspec.Meta(ge=0, le=COLLUDING_MAX)] = 0
    computes: list[FileMember] = []
    trainers: list[FileMember] = []
    registrars: list[FileRegistrar] = []


def text_of(file: Federation) -> str:
    """Return a federation file's text."""
    lines = [
        "# `dca federation` makes and signs this file. A change by hand breaks the signature.",
        f'name = "{file.name}"',
        f"number = {file.number}",
        f'enrolment_key = "{file.enrolment_key.hex()}"',
        f"revoked = {_quoted([member_id.hex() for member_id in file.revoked])}",
        f"colluding = {file.colluding}",
        f'signature = "{file.signature.hex()}"',
    ]
    for table, members in (("computes", file.computes), ("trainers", file.trainers)):
        for member in members:
            lines += ["", f"[[{table}]]", f"name = {toml_text(member.name)}", f'key = "{member.key.hex()}"']
            lines += [f'name_key = "{member.name_key.hex()}"'] * bool(member.name_key)
    for one in file.registrars:
        lines += ["", "[[registrars]]", f"name = {toml_text(one.name)}", f'key = "{one.key.hex()}"']
        lines += [f'name_key = "{one.name_key.hex()}"', f"until_ms = {one.until_ms}"]
        lines += [f"clients = {one.clients}", f"days = {one.days}", f"per_day = {one.per_day}"]
    return "\n".join(lines) + "\n"


def _quoted(values: list[str]) -> str:
    return f"[{', '.join(map(toml_text, values))}]"
