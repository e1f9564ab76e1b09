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
