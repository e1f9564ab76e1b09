"""The README's examples do what it says: its blocks are taken from the text and executed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dca_proto.cli import main
from dca_proto.net.broker import Broker

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
TIMEOUT_S = 90

# The members of the example's federation that the README leaves to others: the other clients, and the Compute nodes.
OTHERS = """
import asyncio, sys
from pathlib import Path
import numpy as np
from dca_proto import device
from dca_proto.table import Table

async def main():
    table = Table(["temperature"], np.array([[19.0]]))
    clients = [device.load(Path(f"other-{i}.toml"), table) for i in range(2, 26)]
    nodes = [device.load(Path(f"compute-{i}.toml")) for i in range(1, 4)]
    await asyncio.gather(*(one.run() for one in [*clients, *nodes]))

asyncio.run(main())
"""


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedded_broker: Broker) -> Path:
    """A folder with the federation that the README makes and a file for each member."""
    monkeypatch.chdir(tmp_path)
    (init,) = [line for line in README.splitlines() if line.startswith("$ dca federation init")]
    assert main(init.split()[2:]) == 0
    (client,) = blocks("toml")
    broker = f'\n[broker]\nurl = "{embedded_broker.url}"\n'
    Path("client.toml").write_text(client.replace("mqtt://127.0.0.1:1883", embedded_broker.url))
    for index in range(2, 26):
        other = f'identity = "demo/client-{index}.key"\nfederation = "demo/federation.toml"\nstore = "{index}.db"\n'
        Path(f"other-{index}.toml").write_text(f"[client]\n{other}{broker}")
    for role, name in [("trainer", "trainer"), *(("compute", f"compute-{index}") for index in range(1, 4))]:
        files = f'identity = "demo/{name}.key"\nfederation = "demo/federation.toml"\nstore = "{name}.db"\n'
        Path(f"{name}.toml").write_text(f"[{role}]\n{files}{broker}")
    return tmp_path


@pytest.fixture
def client_output(folder: Path) -> Iterator[Path]:
    """The client of the README's program runs, beside all others; what it prints goes to this file."""
    output = folder / "client.out"
    with (
        output.open("w") as printed,
        subprocess.Popen(
            [sys.executable, "-c", OTHERS], cwd=folder, stdout=printed, stderr=subprocess.STDOUT
        ) as others,
        subprocess.Popen(
            [sys.executable, "-u", "-c", blocks("python")[0]], cwd=folder, stdout=printed, stderr=subprocess.STDOUT
        ) as client,
    ):
        yield output
        for process in (client, others):
            process.send_signal(signal.SIGINT)


def test_the_embedded_client_takes_part_in_the_embedded_trainers_round(folder: Path, client_output: Path) -> None:
    trainer = subprocess.run(
        [sys.executable, "-c", blocks("python")[1]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert trainer.returncode == 0, trainer.stderr + client_output.read_text()
    printed = re.search(r"^temperature: (-?[\d.]+) ± ([\d.]+)$", trainer.stdout, re.MULTILINE)
    assert printed is not None, trainer.stdout
    mean, noise = map(float, printed.groups())
    assert abs(mean - (24 * 19.0 + 21.75) / 25) < 6 * noise  # fails by chance once in 10^9 runs
    assert "Contributed(" in client_output.read_text()


def test_commands_of_the_readme_exist() -> None:
    commands = set(re.findall(r"\bdca ([a-z]+)\b", README)) - {"proto"}
    listed = {"broker", "client", "compute", "federation", "inspect", "keygen", "swarm", "trainer"}
    assert commands <= listed
    for script in re.findall(r"scripts/[a-z_]+(?:\.py)?", README):
        assert (Path(__file__).parents[2] / script).exists(), script
