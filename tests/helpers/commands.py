"""Runs a command in its test's own process, for the fixture `dca`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """The exit code and output of a run."""

    returncode: int
    stdout: str
    stderr: str


Dca = Callable[..., Done]


def one_line(text: str) -> str:
    """Return a text with its line breaks and runs of spaces as single spaces."""
    return " ".join(text.split())
