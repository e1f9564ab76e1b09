"""The section `[broker]` of an actor's file: the broker's address, and how both sides authenticate."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.terms import check_range
from dca_proto.runtime.files import require_input
from dca_proto.runtime.keyfile import check_private, read_password
from dca_proto.runtime.parts import PART_BYTES_DEFAULT, PART_BYTES_LEAST
from dca_proto.wording import in_words, nearest

T = TypeVar("T", bound=msgspec.Struct)
Version = Literal["3.1.1", "5"]
"""A version of MQTT."""
_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_TLS, _WEBSOCKETS = ("mqtts", "wss"), ("ws", "wss")
_PROXIES = {"http": 8080, "socks5": 1080}
_URL = "mqtt://host[:port], mqtts://host[:port], ws://host[:port][/path] or wss://host[:port][/path]"
_PROXY_URL = "http://host[:port] or socks5://host[:port]"


class Proxy(msgspec.Struct, frozen=True):
    """A proxy; `scheme` is ``http`` or ``socks5``."""

    scheme: str
    host: str
    port: int
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.scheme!r}, {self.host!r}, {self.port!r})"


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An actor's settings for its connection to the broker.

    Args:
        url: ``mqtt://host[:port]`` or, with TLS, ``mqtts://host[:port]``; through WebSockets ``ws://host[:port][/path]``
            or, with TLS, ``wss://host[:port][/path]``. The default path is ``/mqtt``.
        failover: URLs of further brokers of one cluster, or bridged, with the same names and passwords. An actor that
            cannot reach a broker, or is refused, tries the next one, and after the last one the first.
        ca: trusted CA certificates (PEM); by default the system's. Only with TLS.
        certificate: the actor's own certificate (PEM), if the broker requires one. Needs `key`.
        key: the private key (PEM) of `certificate`; readable by the owner only.
        username: user name; by default the actor's id if there is a password file, else none.
        password_file: a file with the password in its first line; readable by the owner only.
        proxy: ``http://host[:port]`` (HTTP CONNECT, by default port 8080) or ``socks5://host[:port]``. Needs the extra
            ``proxy``.
        proxy_username: for the proxy. Needs `proxy_password_file`.
        proxy_password_file: a file with the proxy's password in its first line; readable by the owner only.
        client: the MQTT client. ``aiomqtt`` suits everybody. ``fleet`` is our own, takes a fifth of its CPU a packet,
            and suits hundreds of connections in a process, or a Compute node under heavy load. It has no WebSockets and
            no proxies; with version 5, it needs the extra ``fleet``.
        version: of MQTT: ``3.1.1`` or ``5``; ``auto`` asks the broker, by one more connection at the start, and takes
            5 if it can.
        keepalive_s: the broker treats a connection as dead after 1.5 times this without a packet.
        session_expiry_s: 0 requests a clean session; any other value one that the broker keeps so long while the actor
            is away. MQTT 3.1.1 cannot transmit the duration: the broker's configuration sets it.
        part_bytes_max: the largest payload of one packet, at most 256 KiB; larger messages are sent in parts.
    """

    url: str
    failover: tuple[str, ...] = ()
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    proxy: str | None = None
    proxy_username: str | None = None
    proxy_password_file: Path | None = None
    client: Literal["aiomqtt", "fleet"] = "aiomqtt"
    version: Literal["auto", "3.1.1", "5"] = "3.1.1"
    keepalive_s: int = 60
    session_expiry_s: int = 7 * 24 * 3600
    part_bytes_max: int = PART_BYTES_DEFAULT

    def __post_init__(self) -> None:
        _check_address("url", self.url, _PORTS, _URL)
        for url in self.failover:
            _check_address("failover", url, _PORTS, _URL)
        if self.proxy is not None:
            _check_address("proxy", self.proxy, _PROXIES, _PROXY_URL)
        self._check_pairs()
        self._check_range("keepalive_s", 1, 65535)
        self._check_range("session_expiry_s", 0, 10 * 366 * 24 * 3600)
        self._check_range("part_bytes_max", PART_BYTES_LEAST, PART_BYTES_DEFAULT)

    def _check_pairs(self) -> None:
        """Check the settings that need others."""
        urls = (self.url, *self.failover)
        if len({urlsplit(url).scheme in _TLS for url in urls}) > 1:  # a password would travel in clear
            raise InputError("[broker] failover: found URLs with and without TLS, expected TLS in all or in none")
        if (self.ca or self.certificate) and not self.tls:
            raise InputError(
                f"[broker] ca and certificate need TLS: found {self.url!r}, expected mqtts://... or wss://..."
            )
        if (self.certificate is None) != (self.key is None):
            raise InputError("[broker] certificate and key: found one, expected both or neither")
        if (self.proxy_username is None) != (self.proxy_password_file is None):
            raise InputError("[broker] proxy_username and proxy_password_file: found one, expected both or neither")
        if self.proxy_username is not None and self.proxy is None:
            raise InputError(f"[broker] proxy_username: found no proxy, expected {_PROXY_URL}")
        if self.client == "fleet" and (self.proxy or any(urlsplit(url).scheme in _WEBSOCKETS for url in urls)):
            raise InputError('[broker] client = "fleet" has no WebSockets and no proxies; expected client = "aiomqtt"')

    def _check_range(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise InputError(f"[broker] {name}: found {value}, expected {least} to {most}")

    @property
    def tls(self) -> bool:
        return urlsplit(self.url).scheme in _TLS

    @property
    def websocket_path(self) -> str | None:
        """The path of a URL for WebSockets, else None."""
        parts = urlsplit(self.url)
        return (parts.path or "/mqtt") if parts.scheme in _WEBSOCKETS else None

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or _PORTS[parts.scheme]

    def brokers(self) -> tuple[BrokerSettings, ...]:
        """Return the settings for each broker, in the order in which they are tried."""
        return tuple(msgspec.structs.replace(self, url=url, failover=()) for url in (self.url, *self.failover))

    def read_password(self) -> str | None:
        """Return the password, or None. Raises `UsageError` if the file is missing, empty or open to others."""
        return None if self.password_file is None else read_password(self.password_file)

    def read_proxy(self) -> Proxy | None:
        """Return the proxy with its password, or None. Raises as `read_password`."""
        if self.proxy is None:
            return None
        parts = urlsplit(self.proxy)
        file = self.proxy_password_file
        password = None if file is None else read_password(file)
        return Proxy(
            parts.scheme, str(parts.hostname), parts.port or _PROXIES[parts.scheme], self.proxy_username, password
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context that verifies the broker's certificate and host name; None without TLS.

        Raises `UsageError` if a file is missing or damaged, or the private key is open to others.
        """
        if not self.tls:
            return None
        if self.key is not None:
            check_private(self.key)
        for path in (self.ca, self.certificate):
            if path is not None:
                require_input(path)
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # includes ssl.SSLError
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise InputError(f"cannot load TLS files ({files}): {error.strerror or error}") from None
        return context


def _check_address(name: str, url: str, schemes: Mapping[str, int], expected: str) -> None:
    """Raise `InputError` unless this is a URL with one of the schemes, and with a path only for WebSockets."""
    if "@" in url:  # before any error that quotes it: a password may have any character in it
        kind = "proxy_username and proxy_password_file" if name == "proxy" else "username and password_file"
        raise InputError(f"[broker] {name} has a user name or password in it; expected {expected}, with {kind}")
    try:
        parts = urlsplit(url)
        port_given = parts.port
    except ValueError as error:
        raise InputError(f"[broker] {name} {url!r}: {error}; expected {expected}") from None
    if parts.hostname and not is_host(parts.hostname):
        raise InputError(f"[broker] {name} {url!r}: {parts.hostname!r} is no host name; expected {expected}")
    path = "" if parts.scheme in _WEBSOCKETS else parts.path.strip("/")
    odd = path or parts.query or parts.fragment or not url.isprintable() or " " in url
    if parts.scheme not in schemes or not parts.hostname or odd or port_given == 0:
        raise InputError(f"[broker] {name}: found {url!r}, expected {expected}")


def is_host(text: str) -> bool:
    """Return True if a text can be the name or the address of a machine; looking up any other one raises errors."""
    try:
        text.encode("idna")
    except UnicodeError:  # an empty label, as in a..b, or one of more than 63 characters
        return False
    return text.isprintable() and bool(text)


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
    for field in msgspec.structs.fields(kind):
        check_range(field.name, table.get(field.name), field.type, f"{where} ")
    try:
        return msgspec.convert(dict(table), kind, dec_hook=_path)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UsageError):
            raise error.__cause__ from None
        raise InputError(f"{where} {in_words(error)}") from None


def check_keys(what: str, table: Mapping[str, object], allowed: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown key; it names the nearest known one."""
    names = tuple(allowed)
    for key in table:
        if key not in names:
            raise InputError(f"unknown key {key!r}{nearest(key, names)}; {what}: {', '.join(names)}")


def anchored(settings: T, directory: Path) -> T:
    """Return the settings with their file names resolved against a directory."""
    paths = {name: value for name, value in msgspec.structs.asdict(settings).items() if isinstance(value, Path)}
    return msgspec.structs.replace(settings, **{name: directory / value for name, value in paths.items()})


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and "\0" not in value:
        return Path(value).expanduser()
    raise ValueError(f"expected the name of a file, got `{type(value).__name__}`")
