"""Proxies on the loopback interface: HTTP CONNECT and SOCKS5, with a name and a password where they have some."""

from __future__ import annotations

import asyncio
import base64
import contextlib


class LoopbackProxy:
    """A proxy that a test runs. `served` lists the targets that it has connected to; `refused` counts attempts."""

    def __init__(self, kind: str, login: tuple[str, str] | None = None) -> None:
        self._kind, self._login = kind, login
        self.served: list[tuple[str, int]] = []
        self.refused = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> LoopbackProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"{self._kind}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            target = await (self._http if self._kind == "http" else self._socks)(reader, writer)
            if target is None:
                self.refused += 1
            else:
                self.served.append(target)
                there_reader, there = await asyncio.open_connection(*target)
                self._writers.add(there)
                await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
        writer.close()

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n")[0].split(" ")
        assert method == "CONNECT"
        if self._login is not None:
            proof = base64.b64encode(":".join(self._login).encode()).decode()
            if f"basic {proof}".lower() not in head.lower():
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return None
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        host, _, port = target.rpartition(":")
        return host, int(port)

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        _, count = await reader.readexactly(2)
        await reader.readexactly(count)
        writer.write(b"\x05\x02" if self._login else b"\x05\x00")
        if self._login:
            _, size = await reader.readexactly(2)
            name = (await reader.readexactly(size)).decode()
            (size,) = await reader.readexactly(1)
            if (name, (await reader.readexactly(size)).decode()) != self._login:
                writer.write(b"\x01\x01")
                return None
            writer.write(b"\x01\x00")
        _, _, _, kind = await reader.readexactly(4)
        if kind == 1:
            host = ".".join(map(str, await reader.readexactly(4)))
        else:
            (size,) = await reader.readexactly(1)
            host = (await reader.readexactly(size)).decode()
        port = int.from_bytes(await reader.readexactly(2), "big")
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        return host, port


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        to.write(data)
        await to.drain()
    to.close()
