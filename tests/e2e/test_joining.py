"""A deployment with mosquitto, on three addresses: devices join while it runs, contribute, and are revoked."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S
from ports import free_port

from dca_proto.cli import main
from dca_proto.errors import UsageError
from dca_proto.runtime import joining
from dca_proto.runtime.bundle import read_bundle
from dca_proto.runtime.device import Device, load
from dca_proto.runtime.joining import Joined, join
from dca_proto.runtime.settings import BrokerSettings

HOSTS = "berlin=127.0.0.1,paris=127.0.0.2,rome=127.0.0.3"
CLIENTS = 25
ROUND = (
    "--statistic", "mean", "--columns", "temperature", "--bounds", "temperature=15:27", "--clients", str(CLIENTS),
    "--tolerate", "2", "--epsilon", "1", "--delta", "1e-5",
)  # fmt: skip


def two_ports() -> int:
    """The first of two free ports."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port


@pytest.fixture
def running(mosquitto_installed: None, tmp_path: Path) -> Iterator[Path]:
    """A deployment whose units run."""
    folder = tmp_path / "hearts"
    port = two_ports()
    assert main(["federation", "deploy", str(folder), "--hosts", HOSTS, "--port", str(port)]) == 0
    command = [sys.executable, "-m", "dca_proto.cli", "federation", "run", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: all('"event": "Connected"' in log_of(folder, host) for host in ("berlin", "paris", "rome")))
        until(lambda: answers(port + 1))
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def log_of(folder: Path, host: str) -> str:
    """What the Compute node of a machine has logged."""
    path = folder / host / "compute.log"
    return path.read_text() if path.exists() else ""


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def invite(folder: Path, *names: str) -> list[Path]:
    output = folder.parent / "invitations"
    file = folder / "berlin/registrar.toml"
    assert main(["federation", "invite", *names, "--registrar", str(file), "--output", str(output)]) == 0
    return [output / f"{name}.bundle" for name in names]


async def joined(bundle: Path, index: int) -> Joined:
    data = bundle.with_name(f"{bundle.stem}.csv")
    data.write_text(f"temperature\n{18 + index % 5}.5\n")
    return await join(read_bundle(bundle), bundle.with_suffix(""), data)


async def trained(folder: Path) -> str:
    """Run a round as the trainer; what it printed."""
    command = [sys.executable, "-m", "dca_proto.cli", "trainer", str(folder / "rome/trainer.toml"), *ROUND]
    trainer = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await trainer.communicate()
    assert trainer.returncode == 0, output.decode()
    return output.decode()


async def admitted(device: Device) -> None:
    broker = device.config.broker
    settings = BrokerSettings(url=broker.url, ca=broker.ca, password_file=broker.password_file, session_expiry_s=0)
    await joining._admitted(settings, device.id)


@pytest.mark.long
def test_devices_join_a_running_federation_contribute_and_are_revoked(
    running: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *others, last = [f"device-{index}" for index in range(CLIENTS)]
    bundles = invite(running, *others)

    async def scene() -> tuple[Joined, float]:
        first = [await joined(bundle, index) for index, bundle in enumerate(bundles)]
        devices = [load(one.config) for one in first]
        tasks = [asyncio.create_task(device.run(lambda fact: None)) for device in devices]
        began = time.monotonic()
        (bundle,) = await asyncio.to_thread(invite, running, last)
        newest = await joined(bundle, CLIENTS)
        tasks.append(asyncio.create_task(load(newest.config).run(lambda fact: None)))
        printed = await trained(running)
        took_s = time.monotonic() - began
        assert f"from       {CLIENTS} of {CLIENTS} clients" in printed
        for task in tasks:
            assert not task.done()
            task.cancel()
        await asyncio.wait(tasks)
        await admitted(load(newest.config))
        return newest, took_s

    newest, took_s = asyncio.run(scene())
    with capsys.disabled():
        print(f"\nfrom the invitation to the result of a round with the new device: {took_s:.1f} s")
    for host in ("paris", "rome"):
        assert '"event": "Disconnected"' not in log_of(running, host), "nobody else noticed that clients joined"

    owner = running / "owner"
    keys = ["--federation", str(owner / "federation.toml"), "--authority", str(owner / "authority.key")]
    assert main(["federation", "revoke", newest.id.hex(), *keys]) == 0
    shutil.copy(owner / "federation.toml", running / "berlin/federation.toml")
    until(lambda: newest.id.hex() not in (running / "berlin/passwords").read_text())
    monkeypatch.setattr(joining, "_TRIES", 1)

    def is_refused() -> bool:
        try:
            asyncio.run(admitted(load(running.parent / f"invitations/{last}/client.toml")))
        except UsageError:
            return True
        return False

    until(is_refused)


def steps(title: str) -> str:
    """What a section of the page on operation types, as a script that stops at the first failure."""
    section = (Path(__file__).parents[2] / "docs/operate.md").read_text().split(f"# {title}\n", 1)[1].split("\n#", 1)[0]
    (block,) = re.findall(r"(?s)```console\n(.*?)```", section)
    commands = re.findall(r"(?m)^\$ ((?:.*\\\n)*.*)$", block)
    return "\n".join(["set -e", f'dca() {{ {sys.executable} -m dca_proto.cli "$@"; }}', *commands])


@pytest.mark.long
def test_a_node_that_is_down_for_good_is_replaced_while_all_others_run(running: Path) -> None:
    bundles = invite(running, *(f"device-{index}" for index in range(CLIENTS)))

    async def scene() -> None:
        devices = [load((await joined(bundle, index)).config) for index, bundle in enumerate(bundles)]
        tasks = [asyncio.create_task(device.run(lambda fact: None)) for device in devices]
        typing = await asyncio.create_subprocess_exec(
            "bash", "-c", steps("A node is down for good"), cwd=running.parent
        )
        assert await asyncio.wait_for(typing.wait(), PATIENCE_S) == 0
        lyon = load(running / "lyon/compute.toml")
        tasks.append(asyncio.create_task(lyon.run(lambda fact: None)))
        wanted = lyon.config.federation.number
        deadline = time.monotonic() + PATIENCE_S
        while any(one.actor.federation.number < wanted for one in devices):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        shutil.copy(running / "owner/federation.toml", running / "rome/federation.toml")
        assert f"from       {CLIENTS} of {CLIENTS} clients" in await trained(running)
        for task in tasks:
            assert not task.done()
            task.cancel()
        await asyncio.wait(tasks)
        await admitted(lyon)

    asyncio.run(scene())
    assert '"event": "Disconnected"' not in log_of(running, "rome"), "the broker went on"
