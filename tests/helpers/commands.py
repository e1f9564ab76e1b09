"""Lists all commands, and runs one in its test's own process, for the fixture `dca`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from dca_proto.cli import GROUP, main


class Done(NamedTuple):
    """The exit code and output of a run."""

    returncode: int
    stdout: str
    stderr: str


Dca = Callable[..., Done]


def one_line(text: str) -> str:
    """Return a text with its line breaks and runs of spaces as single spaces."""
    return " ".join(text.split())


def federation_folder(factory: pytest.TempPathFactory, broker: str) -> Path:
    """Make a folder with a federation of two Compute nodes and a client, and the keys of another node and trainer."""
    folder = factory.mktemp("members") / "demo"
    init = ["federation", "init", str(folder), "--computes", "2", "--clients", "1", "--broker", broker]
    assert main(init) == 0
    for name, role in (("c", "compute"), ("u", "trainer")):
        assert main(["keygen", str(folder / f"{name}.key"), "--role", role]) == 0
    return folder


def commands() -> list[tuple[str, ...]]:
    """Every command and, of a group, every command in it, as typed after `dca`."""
    found: list[tuple[str, ...]] = [()]
    for entry in importlib.metadata.entry_points(group=GROUP):
        command = entry.load()
        found.append((entry.name,))
        if isinstance(command, typer.Typer):
            found += [(entry.name, name) for name in vars(typer.main.get_command(command))["commands"]]
    return sorted(found)
