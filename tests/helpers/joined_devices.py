"""A registrar that runs in the test, invitations to it, and devices that join."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.cli import main
from dca_proto.protocol.federation import sign_federation
from dca_proto.runtime.bundle import read_bundle
from dca_proto.runtime.joining import Joined, join
from dca_proto.runtime.keyfile import read_federation, read_identity, replace_file
from dca_proto.runtime.registrar import RegistrarServer
from dca_proto.runtime.registrar_file import read_registrar

HOSTS = "berlin=127.0.0.1,paris=127.0.0.2"


def invite(host: Path, *names: str, **options: Any) -> list[Path]:
    given = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    arguments = [
        "federation",
        "invite",
        *names,
        "--registrar",
        str(host / "registrar.toml"),
        "--output",
        str(host / "b"),
    ]
    assert main([*arguments, *given]) == 0
    return [host / f"b/{name}.bundle" for name in names]


@contextlib.asynccontextmanager
async def serving(host: Path) -> AsyncIterator[RegistrarServer]:
    """Run the registrar."""
    running, ready = RegistrarServer(read_registrar(host / "registrar.toml")), asyncio.Event()
    task = asyncio.create_task(running.run(ready))
    try:
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert ready.is_set()
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task])


def play(host: Path, scene: Callable[[RegistrarServer], Coroutine[Any, Any, Any]]) -> Any:
    """Play a scene while the registrar serves."""

    async def whole() -> Any:
        async with serving(host) as running:
            return await scene(running)

    return asyncio.run(whole())


def joins(host: Path, bundle: Path, folder: Path, data: Path | None = None) -> Joined:
    return play(host, lambda running: join(read_bundle(bundle), folder, data))  # type: ignore[no-any-return]


def clients_of(host: Path) -> set[str]:
    """The users in mosquitto's list that only the registrar writes."""
    members = (host / "members.passwords").read_text().splitlines()
    return {line.partition(":")[0] for line in (host / "passwords").read_text().splitlines() if line not in members}


def next_file(host: Path, **changes: Any) -> None:
    """The owner's next file reaches the registrar."""
    owner = read_identity(host.parent / "owner/authority.key", "authority")
    old = read_federation(host / "federation.toml")
    new = sign_federation(owner, msgspec.structs.replace(old, number=old.number + 1, **changes))
    replace_file(host / "federation.toml", new.to_toml())
