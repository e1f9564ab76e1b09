"""Keeps a trainer's latest results beside its store, in `trainer.db-results`, for its next process and the dashboard.

A trainer often runs for one round only. The file is for people who look: nothing depends on it, and a failure to write
it is logged. Only its owner can read it. `dca learn` and `dca trainer --json` write whole results.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from dca_proto.results.status import Result

log = structlog.get_logger("dca.results")
_BYTES_MAX = 1 << 20


def results_path(store: Path) -> Path:
    """Return the path of the file beside a trainer's store."""
    return Path(f"{store}-results")


def read_results(store: Path) -> list[Result]:
    """Return the results in the file, the latest last; none if there is no file that can be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError), results_path(store).open("rb") as file:
        return msgspec.json.decode(file.read(_BYTES_MAX), type=list[Result])
    return []


def keep_results(store: Path, results: Iterable[Result]) -> None:
    """Replace the file."""
    path = results_path(store)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode([*results]))
        draft.replace(path)
    except OSError as error:
        log.warning("latest results not kept", path=str(path), error=error.strerror or str(error))
        draft.unlink(missing_ok=True)
