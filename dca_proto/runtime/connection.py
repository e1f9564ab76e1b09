"""The interface of one MQTT connection, from CONNECT to its end. It is never used again after that.

Two clients implement it: aiomqtt (`dca_proto.runtime.aiomqtt_connection`), and one of our own that costs less CPU a
packet (`dca_proto.runtime.fleet_connection`). `dca_proto.runtime.mqtt` keeps either connected.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from dca_proto.errors import LoginError, TransportError
from dca_proto.runtime.parts import PART_BYTES_DEFAULT
from dca_proto.runtime.settings import BrokerSettings, Proxy, Version

UNSUPPORTED_VERSION = 132
NUMBERS = 65_535
"""How many numbers there are for publishes under way."""
TOPIC_BYTES_MAX = 65_535
PACKET_BYTES_MAX = PART_BYTES_DEFAULT + TOPIC_BYTES_MAX + 1024
"""The largest packet that an actor takes: the largest part, any topic, and room for heads and properties."""
REFUSED = 128
"""The reason codes of publishes and subscriptions that a broker refuses begin here."""
LOGIN_REFUSED = (134, 135)  # bad user name or password, not authorized
UNACKNOWLEDGED_MAX = 256
"""How many publishes may be under way on a connection; more only slow a broker down."""
FILTERS_MAX = 256
"""How many topic filters one SUBSCRIBE packet holds; a gateway has thousands."""


class LostWhileConnecting(TransportError):  # noqa: N818 - not an error of its own, but when one occurred
    """The broker ended the connection before it accepted or refused it."""


class ConnectRefused(TransportError):  # noqa: N818 - the broker's answer
    """The broker refused the connection. `code` is the reason code of MQTT 5, also where the broker speaks 3.1.1."""

    def __init__(self, code: int, name: str) -> None:
        super().__init__(f"it refused the connection: {name.lower()} ({code})")
        self.code = code


class Published(msgspec.Struct, frozen=True):
    """A message from the broker.

    Attributes:
        topic: None if it is not valid UTF-8. number: of the packet to acknowledge, if that is left to us.
    """

    topic: str | None
    payload: bytes
    is_retained: bool
    number: int | None = None


class Connect(msgspec.Struct, frozen=True):
    """The content of CONNECT, and where to send it.

    Attributes:
        settings: the broker's. client_id: the actor's id in hexadecimal. tls: None without TLS.
        username, password: None if there are none. answer_timeout_s: how long the broker may take to answer.
        version: of MQTT. is_probe: to learn whether the broker speaks this version, without properties or a session.
        proxy: None without one. will: the topic of the last will, an empty message; None without one.
    """

    settings: BrokerSettings
    client_id: str
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    answer_timeout_s: float = 10.0
    version: Version = "3.1.1"
    is_probe: bool = False
    proxy: Proxy | None = None
    will: str | None = None

    @property
    def session_expiry_s(self) -> int:
        """How long the broker keeps the session; 0 for a clean one."""
        return 0 if self.is_probe else self.settings.session_expiry_s

    def __repr__(self) -> str:
        return f"Hello({self.settings.url!r}, {self.client_id!r})"


class Listener(msgspec.Struct, frozen=True):
    """The functions that a connection calls.

    Attributes:
        deliver: takes each message that arrives, and returns whether it did. Only then is the message acknowledged;
            after a False, no message is.
        acknowledged: takes the number of each publish that the broker has acknowledged.
        refused: takes the number of each publish that the broker refused, and why (not in MQTT 3.1.1, nor by aiomqtt).
        dropped: takes why a message was not delivered.
    """

    deliver: Callable[[Published], bool]
    acknowledged: Callable[[int], None]
    refused: Callable[[int, str], None] = lambda number, reason: None
    dropped: Callable[[str], None] = lambda reason: None


class Connection(Protocol):
    """A connection to a broker.

    Attributes:
        lost: resolves to the reason, in words, when the connection ends.
        unacknowledged_max: how many publishes may be under way.
        certificate_end_ms: when the broker's certificate ends, in Unix milliseconds; None without TLS.
    """

    lost: asyncio.Future[str]
    unacknowledged_max: int
    certificate_end_ms: int | None

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError: no connection could be made.
            ConnectRefused: the broker refused it.
            TransportError: it was lost.
        """

    async def subscribe(self, topic_filters: Sequence[str]) -> Sequence[int]:
        """Subscribe to any number of filters. Return the code of each: from 128 on, the broker refused it.

        Raises `TransportError` if the connection was lost.
        """

    def publish(self, number: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> None:
        """Send a message with QoS 1. `number`, 1 to 65,535, is not that of another publish under way.

        MQTT 5 tells the broker `expiry_s`, for how many seconds the message is of use; None for ever.
        """

    async def leave(self) -> None:
        """Disconnect and free everything, even before the connection is complete."""


def end_of(certificate: Mapping[str, Any] | None) -> int | None:
    """Return when a peer's certificate ends, as the `ssl` module decodes it; None if there is none."""
    end = (certificate or {}).get("notAfter")
    return None if end is None else int(ssl.cert_time_to_seconds(end)) * 1000


def check_topic(topic: str) -> None:
    """Raise `ValueError` if this is not a valid topic to publish on."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic or len(topic.encode()) > TOPIC_BYTES_MAX:
        expected = f"text without wildcards, of at most {TOPIC_BYTES_MAX} bytes"
        raise ValueError(f"a topic to publish on: found {topic[:200]!r}, expected {expected}")


_OTHER_HOST = "the broker's certificate has another host in its subjectAltName: check the URL, or renew the certificate"
_OTHER_TIME = "check the clock, or renew the broker's certificate"
_CERTIFICATE_ADVICE = {9: _OTHER_TIME, 10: _OTHER_TIME, 62: _OTHER_HOST, 64: _OTHER_HOST}
"""By OpenSSL's code of a failed check: not valid yet, expired; another host name, another IP address."""


def login_error(url: str, username: str | None) -> LoginError:
    """Return the error of a broker that refuses a name or a password; it does so after a revocation, too."""
    advice = "check username and password_file, or this member was revoked: ask the federation's owner"
    return LoginError(f"broker {url} refused user name ({username or 'none given'}) or password: {advice}")


def certificate_advice(error: ssl.SSLCertVerificationError) -> str:
    """Return what to do about a broker's certificate that was refused."""
    return _CERTIFICATE_ADVICE.get(error.verify_code, "check ca")


def in_words(error: Exception) -> str:
    """Return the reason of an operating system or TLS error, without numbers and addresses."""
    known = re.search(r"\[Errno (\d+)\]", str(error))  # the first, if several addresses were tried
    reason = os.strerror(int(known[1])) if known else getattr(error, "strerror", None) or str(error)
    return reason[:1].lower() + reason[1:]
