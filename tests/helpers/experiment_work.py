"""Work for the processes of an experiment: functions that a new process imports by name."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

from rich.console import Console

QUIET = Console(file=io.StringIO())


def squared(number: int) -> dict[str, Any]:
    """Work that a fresh process can import."""
    if number == 13:
        raise ValueError("thirteen")
    return {"square": number**2, "process": os.getpid(), "threads": os.environ.get("OPENBLAS_NUM_THREADS")}


def deadly(number: int) -> dict[str, Any]:
    """Work that one cell's process does not survive."""
    if number == 13:
        os._exit(9)
    return {"square": number**2}


def endless(number: int) -> dict[str, Any]:
    """Work without an end, whose process has written its id."""
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    while True:
        time.monotonic()
