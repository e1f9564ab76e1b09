"""Keeps a trainer's latest results beside its store, in `trainer.db-results`, for its next process and the dashboard.

A trainer often runs for one round only. The file is for people who look: nothing depends on it, and a failure to write
it is logged. Only its owner can read it. `dca learn` and `dca trainer --json` write whole results.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec
import structlog

from dca_proto.errors import UsageError
from dca_proto.results.status import StatedResult
from dca_proto.runtime.files import read_input

log = structlog.get_logger("dca.results")
_BYTES_MAX = 1 << 20


def results_path(store: Path) -> Path:
    """Return the path of the file beside a trainer's store."""
    return Path(f"{store}-results")


def read_results(store: Path) -> list[StatedResult]:
    """Return the results in the file, the latest last; none if there is no file that can be read."""
    with contextlib.suppress(UsageError, ValueError):
        found = msgspec.json.decode(read_input(results_path(store), bytes_max=_BYTES_MAX), type=list[StatedResult])
        return [one for one in found if datetime.fromisoformat(one.at).tzinfo is not None]
    return []


def keep_results(store: Path, results: Iterable[StatedResult]) -> None:
    """Replace the file."""
    path = results_path(store)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)  # of a process that was killed
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode([*results]))
        draft.replace(path)
    except OSError as error:
        log.warning("latest results not kept", path=str(path), error=error.strerror or str(error))
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
