"""Results for programs: one JSON value to a file or to stdout. That it can be written is seen before the work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dca_proto.core.errors import UsageError

STDOUT = "-"


def require_writable(path: Path, *, make_folders: bool = False) -> None:
    """Refuse a path that no file can be written to; writes nothing.

    Args:
        make_folders: whether missing folders above it will be made.

    Raises:
        UsageError: what stands in the way.
    """
    folder = path.parent
    while make_folders and not folder.exists():
        folder = folder.parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file")
    if not folder.exists():
        raise UsageError(f"cannot write {path}: folder {folder} does not exist; make it, or name another")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: {folder} is no folder; name another")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied; name another place")


def require_json_target(target: str | None) -> None:
    """Refuse a target of `write_json` that cannot be written. Raises `UsageError`."""
    if target not in (None, STDOUT):
        require_writable(Path(str(target)))


def write_json(value: object, target: str | None) -> None:
    """Write one value to a file, or to stdout for ``-``; to nowhere for None. Raises `UsageError` where it cannot."""
    if target is None:
        return
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    if target == STDOUT:
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from None
