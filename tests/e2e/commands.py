"""Running a command in its test's own process: what the fixture `dca` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """What a run left: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Dca = Callable[..., Done]
