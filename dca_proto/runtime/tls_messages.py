"""The messages between a device and a registrar, over TLS: the length in 4 bytes, then MessagePack (DESIGN §2.9)."""

from __future__ import annotations

import asyncio

import msgspec

from dca_proto.protocol.enrolment import Answer, Request

_LENGTH_BYTES = 4


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
