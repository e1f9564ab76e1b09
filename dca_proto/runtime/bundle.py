"""Bundles: the file, or the link, with which a device enrols (DESIGN §2.9).

The file is TOML, and has all that a device needs. The link has no room for that: it names the registrar, the code and
a digest, with which the device checks what the registrar sends it: ``dca://HOST:PORT/CODE/DIGEST``.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.enrolment import CODE_BYTES, Bundle, Entrance
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.names import check_name
from dca_proto.runtime.files import read_text
from dca_proto.runtime.keyfile import write_private
from dca_proto.runtime.settings import check_url
from dca_proto.runtime.suggestion import lines_of
from dca_proto.wording import parse_toml, toml_text

SUFFIX = ".bundle"
SCHEME = "dca://"
_LINK = re.compile(r"dca://(\[[0-9a-f:]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})/([0-9a-f]{32})/([0-9a-f]{32})")
_ADVICE = "`dca federation invite` writes one"


class _BundleText(Entrance, array_like=False, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    code: str

    @property
    def entrance(self) -> Entrance:
        return Entrance(**{field: getattr(self, field) for field in Entrance.__struct_fields__})


class InvitationLink(msgspec.Struct, frozen=True):
    """A link to an entrance. The code is secret until it is spent."""

    host: str
    port: int
    code: bytes
    digest: bytes

    def __repr__(self) -> str:
        return f"Link({self.host}:{self.port}, code=<hidden>)"


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Write a bundle to a new file of mode 0600. Raises `StorageError`."""
    entrance = bundle.entrance
    policy = f'policy = """\n{_escaped(entrance.policy)}"""\n' if entrance.policy else ""
    write_private(
        path,
        f"# Enrols the dca client {bundle.name}, once: dca join {path.name} --data readings.csv\n"
        f"# Secret until then. Whoever uses it first is {bundle.name}.\n"
        f'name = {toml_text(bundle.name)}\ncode = "{bundle.code.hex()}"\n'
        f"host = {toml_text(entrance.host)}\nport = {entrance.port}\nbroker = {toml_text(entrance.broker)}\n"
        f'ca = """\n{_escaped(entrance.ca)}"""\nfederation = """\n{_escaped(entrance.federation)}"""\n{policy}',
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def read_bundle(path: Path) -> Bundle:
    """Read a bundle's file. Raises `InputError`."""
    try:
        raw = msgspec.convert(parse_toml(read_text(path, _ADVICE, bytes_max=1 << 20)), _BundleText)
        code = bytes.fromhex(raw.code)
    except UsageError:
        raise
    except ValueError:
        raise InputError(f"{path} is not an invitation; {_ADVICE}") from None
    bundle = Bundle(raw.name, code, raw.entrance)
    try:
        check_name(raw.name)
        check_entrance(bundle.entrance)
        if len(code) != CODE_BYTES:
            raise InputError(f"the code has {len(code)} bytes, expected {CODE_BYTES}")
    except UsageError as error:
        raise InputError(f"{path} is damaged: {error}; get it again") from None
    return bundle


def check_entrance(entrance: Entrance) -> Federation:
    """Check an entrance's addresses, federation file and policy. Return the file. Raises `UsageError`."""
    check_url("broker", entrance.broker)
    federation = Federation.from_toml(entrance.federation)
    lines_of(entrance.policy, federation)
    return federation


def link_of(bundle: Bundle) -> str:
    """Return the link of a bundle, for a QR code."""
    host = f"[{bundle.entrance.host}]" if ":" in bundle.entrance.host else bundle.entrance.host
    return f"{SCHEME}{host}:{bundle.entrance.port}/{bundle.code.hex()}/{bundle.entrance.digest.hex()}"


def parse_link(text: str) -> InvitationLink:
    """Parse a link. Raises `UsageError`, which has no secret."""
    found = _LINK.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise UsageError("this is no invitation's link: expected dca://HOST:PORT/CODE/DIGEST, whole")
    return InvitationLink(found[1].strip("[]"), int(found[2]), bytes.fromhex(found[3]), bytes.fromhex(found[4]))
