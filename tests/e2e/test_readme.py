"""The README does what it says: its own blocks are executed in order, with only the broker's port put in."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from dca_proto.cli import main
from dca_proto.net.broker import Broker

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TIMEOUT_S = 90


def section(title: str) -> str:
    """The text under a heading of the second level."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks in order: language and content."""
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def shown(line: str) -> str:
    """What a line of output that the README shows must look like: other digits, and anything for `...`."""
    wild = re.escape(line).replace(re.escape("..."), ".*")
    return rf"(?m)^{re.sub(r'[0-9]+', '[0-9]+', wild)}$"


class Shell:
    """A person at bash, who types a block and waits until it has printed what the README shows.

    Args:
        folder: where. port: of the broker, in place of the usual one.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._path = folder / "printed"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with self._path.open("w") as printed:
            self._bash = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env={**os.environ, "PATH": path},
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self._path.read_text()

    def follow(self, language: str, content: str) -> None:
        """Save a program under the name in its first line, or type a console block's commands one by one."""
        if language == "python":
            name = content.partition("\n")[0].removeprefix("# ")
            (self._folder / name).write_text(content)
            return
        for part in re.split(r"(?m)^\$ ", content)[1:]:
            command, *lines = part.strip("\n").split("\n")
            self._type(command)
            for line in filter(None, lines):
                self._wait_for(shown(self._with_port(line)))

    def _type(self, command: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(self._with_port(command) + "\n")
        self._bash.stdin.flush()

    def _with_port(self, text: str) -> str:
        text = re.sub(r"mqtt://127\.0\.0\.1(:1883)?", f"mqtt://127.0.0.1:{self._port}", text)
        return text.replace("dca broker", f"dca broker --port {self._port}")

    def _wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.printed):
            assert time.monotonic() < deadline, f"{pattern} is not in:\n{self.printed}{self._log()}"
            time.sleep(0.05)  # between looks; nothing is timed

    def _log(self) -> str:
        log = self._folder / "demo" / "log"
        return log.read_text()[-2000:] if log.exists() else ""

    def close(self) -> int:
        """The end of input, and bash's exit code; whatever it started is stopped, whatever happened."""
        assert self._bash.stdin is not None
        try:
            self._bash.stdin.close()
            return self._bash.wait(TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(self._bash.pid, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    opened = Shell(tmp_path, port)
    yield opened
    opened.close()


def test_embedding_a_client_can_be_followed_to_the_letter(shell: Shell) -> None:
    for language, content in blocks(section("Embed a client")):
        shell.follow(language, content)
    told = re.search(r"^temperature: (-?[\d.]+) ± ([\d.]+)$", shell.printed, re.MULTILINE)
    assert told is not None
    mean, noise = map(float, told.groups())
    held = [18.5 + i % 5 for i in range(1, 25)] + [21.75]
    assert abs(mean - np.mean(held)) < 6 * noise + 0.1  # fails by chance once in 10^9 runs
    assert noise < 0.2 * mean, "an answer that one can use"
    assert "Contributed(" in shell.printed
    assert "[info" not in shell.printed, "the library logs nothing between a program's results"
    assert "Traceback" not in shell.printed


def test_your_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedded_broker: Broker) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(3).uniform((1, 20, 5e4), (9, 300, 9e5), (60, 3))
    np.savetxt("houses.csv", rows, delimiter=",", header="rooms,area,price", comments="")
    ((_, command),) = blocks(section("Your own data"))
    words = [word.strip('"') for word in command.removeprefix("$ dca ").split()]
    assert main([*words, "--broker", embedded_broker.url]) == 0


def test_commands_and_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"\bdca ([a-z]+)\b", README))
    assert named
    assert named <= {entry.name for entry in entry_points(group="dca.commands")}
    for path in re.findall(r"\b(?:scripts|dca_proto|emulator|inference)/[a-z0-9_/]+(?:\.py|\.md)?", README):
        assert (ROOT / path).exists(), path
