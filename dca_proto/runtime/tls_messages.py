"""The messages between a device and a registrar, over TLS: the length in 4 bytes, then MessagePack (DESIGN §2.9)."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Sequence

import msgspec

from dca_proto.protocol.enrolment import Answer, Request

_LENGTH_BYTES = 4
_IPV6_PREFIX = 64  # what one customer has


def decode_request(payload: bytes) -> Request:
    """Decode a device's request. Raises `msgspec.MsgspecError`."""
    request: Request = msgspec.msgpack.decode(payload, type=Request)
    return request


async def send(writer: asyncio.StreamWriter, message: Request | Answer) -> None:
    """Send one message."""
    payload = msgspec.msgpack.encode(message)
    writer.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Receive one message's bytes. Raises `EOFError` if it is too long, or `asyncio.IncompleteReadError`."""
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if size > bytes_max:
        raise EOFError(f"a message of {size} bytes")
    return await reader.readexactly(size)


# --- a registrar's connections ----------------------------------------------------------------------------------------


class Arrival(asyncio.Protocol):
    """Hands over a connection that was accepted."""

    def __init__(self, admit: Callable[[asyncio.Transport], None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand it over."""
        assert isinstance(transport, asyncio.Transport)
        self._admit(transport)


async def start_tls(
    transport: asyncio.Transport, context: ssl.SSLContext, timeout_s: float, bytes_max: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of a connection over which nothing was read yet."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(bytes_max, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    secured = await loop.start_tls(
        transport, protocol, context, server_side=True, ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=timeout_s
    )
    if secured is None:
        raise ConnectionResetError
    protocol.connection_made(secured)
    return reader, asyncio.StreamWriter(secured, protocol, reader, loop)


def peer_of(address: Sequence[object] | None) -> str:
    """Return what stands for a peer: its IPv4 address, or the network of its IPv6 address."""
    host = str(address[0]).partition("%")[0] if address else ""
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((host, _IPV6_PREFIX), strict=False))
    return host
