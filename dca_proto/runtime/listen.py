"""The address at which an actor's metrics, or the dashboard, can be read with HTTP.

Anybody on the machine can read from a loopback address. A page in a browser cannot, unless its own name is made to lead
to that address; so a request has to name the address as its host.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import msgspec

from dca_proto.errors import InputError
from dca_proto.runtime.settings import is_host

_LOCALHOST = "localhost"


class Listen(msgspec.Struct, frozen=True):
    """A host, which is a name or an address, and a port; 0 for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine reaches it."""
        return is_loopback(self.host)

    def is_named_by(self, header: str) -> bool:
        """Return True if the header ``Host`` of a request names this address, whatever the port.

        Beyond loopback, a machine has names that it does not know: any address, or the host itself, will do.
        """
        try:
            name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if is_loopback(name):
            return True
        return not self.is_loopback and (name == self.host.lower() or _address(name) is not None)


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[metrics]` of an actor's file. Without it, nothing listens.

    Args:
        listen: ``host:port``, as in ``127.0.0.1:9464``. Needs the extra ``metrics``.
        beyond_loopback: allows an address that other machines reach. There is neither a password nor encryption: put a
            firewall or a proxy before it.
    """

    listen: str
    beyond_loopback: bool = False

    def __post_init__(self) -> None:
        listen = parse_listen("[metrics] listen", self.listen)
        if not self.beyond_loopback and not listen.is_loopback:
            raise InputError(
                f"[metrics] listen: found {listen}, which other machines reach, expected a loopback address; "
                "beyond_loopback = true allows it, without a password"
            )

    @property
    def address(self) -> Listen:
        """The address."""
        return parse_listen("[metrics] listen", self.listen)


def parse_listen(where: str, text: str) -> Listen:
    """Parse ``host:port``. Raises `InputError` that names `where` it stands."""
    expected = "expected host:port, as in 127.0.0.1:9464"
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if port is None or not is_host(host) or " " in text or "@" in text or parts.netloc != text:
        raise InputError(f"{where}: found {text!r}, {expected}")
    return Listen(host, port)


def is_loopback(name: str) -> bool:
    """Return True if a host's name or address stays on this machine."""
    address = _address(name)
    return name == _LOCALHOST if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
