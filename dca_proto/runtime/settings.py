"""The section `[broker]` of an actor's file: the broker's address, and how both sides authenticate."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.runtime.keyfile import check_private, read_password
from dca_proto.runtime.parts import PART_BYTES_DEFAULT, PART_BYTES_LEAST
from dca_proto.wording import in_words, nearest

T = TypeVar("T", bound=msgspec.Struct)
_PORTS = {"mqtt": 1883, "mqtts": 8883}


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An actor's settings for its connection to the broker.

    Args:
        url: ``mqtt://host[:port]`` or, with TLS, ``mqtts://host[:port]``.
        ca: trusted CA certificates (PEM); by default the system's. Only with mqtts.
        certificate: the actor's own certificate (PEM), if the broker requires one. Needs `key`.
        key: the private key (PEM) of `certificate`; readable by the owner only.
        username: user name; by default the actor's id if there is a password file, else none.
        password_file: a file with the password in its first line; readable by the owner only.
        keepalive_s: the broker treats a connection as dead after 1.5 times this without a packet.
        session_expiry_s: 0 requests a clean session; any other value one that the broker keeps while the actor is
            away. MQTT 3.1.1 cannot transmit the duration: the broker's configuration sets it.
        part_bytes_max: the largest payload of one packet, at most 256 KiB; larger messages are sent in parts.
    """

    url: str
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    keepalive_s: int = 60
    session_expiry_s: int = 7 * 24 * 3600
    part_bytes_max: int = PART_BYTES_DEFAULT

    def __post_init__(self) -> None:
        self._check_url()
        if not self.tls and (self.ca or self.certificate):
            raise InputError(f"[broker] ca and certificate need TLS: found {self.url!r}, expected mqtts://...")
        if (self.certificate is None) != (self.key is None):
            raise InputError("[broker] certificate and key: found one, expected both or neither")
        self._check_range("keepalive_s", 1, 65535)
        self._check_range("session_expiry_s", 0, 10 * 366 * 24 * 3600)
        self._check_range("part_bytes_max", PART_BYTES_LEAST, PART_BYTES_DEFAULT)

    def _check_url(self) -> None:
        expected = "mqtt://host[:port] or mqtts://host[:port]"
        try:
            parts = urlsplit(self.url)
            port_given = parts.port
        except ValueError as error:
            raise InputError(f"[broker] url {self.url!r}: {error}; expected {expected}") from None
        if "@" in parts.netloc:
            raise InputError(
                f"[broker] url has a user name or password in it; expected {expected}, with username and password_file"
            )
        odd = parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme not in _PORTS or not parts.hostname or odd or port_given == 0:
            raise InputError(f"[broker] url: found {self.url!r}, expected {expected}")

    def _check_range(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise InputError(f"[broker] {name}: found {value}, expected {least} to {most}")

    @property
    def tls(self) -> bool:
        return urlsplit(self.url).scheme == "mqtts"

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or _PORTS[parts.scheme]

    def read_password(self) -> str | None:
        """Return the password, or None. Raises `UsageError` if the file is missing, empty or open to others."""
        return None if self.password_file is None else read_password(self.password_file)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context that verifies the broker's certificate and host name; None without TLS.

        Raises `UsageError` if a file is missing or damaged, or the private key is open to others.
        """
        if not self.tls:
            return None
        if self.key is not None:
            check_private(self.key)
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # includes ssl.SSLError
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise InputError(f"cannot load TLS files ({files}): {error.strerror or error}") from None
        return context


def check_url(option: str, url: str) -> None:
    """Raise `UsageError`, which names the command's option, if the URL is not a broker's."""
    try:
        BrokerSettings(url=url)
    except UsageError as error:
        raise UsageError(f"{option}: {str(error).removeprefix('[broker] ')}") from None


# --- any table of a file ----------------------------------------------------------------------------------------------


def convert(where: str, table: Mapping[str, object], kind: type[T]) -> T:
    """Convert a table of a file to a `kind`; the kind's fields are the allowed keys.

    Raises `UsageError` for an unknown key (naming the nearest), a missing key or a wrong value.
    """
    check_keys(f"{where} keys", table, [field.name for field in msgspec.structs.fields(kind)])
    try:
        return msgspec.convert(dict(table), kind, dec_hook=_path)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UsageError):
            raise error.__cause__ from None
        raise InputError(f"{where} {in_words(error)}") from None


def check_keys(what: str, table: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown key; it names the nearest known one."""
    names = tuple(known)
    for key in table:
        if key not in names:
            raise InputError(f"unknown key {key!r}{nearest(key, names)}; {what}: {', '.join(names)}")


def anchored(settings: T, directory: Path) -> T:
    """Return the settings with their file names resolved against a directory."""
    paths = {name: value for name, value in msgspec.structs.asdict(settings).items() if isinstance(value, Path)}
    return msgspec.structs.replace(settings, **{name: directory / value for name, value in paths.items()})


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise ValueError(f"expected the name of a file, got `{type(value).__name__}`")
