"""Files with secrets: readable by their owner only from their first moment on, and not used in any other state."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dca_proto.errors import InputError, StorageError, UsageError

_OWNER_ONLY = 0o600
_BYTES_MAX = 1 << 16


def write_private(path: Path, text: str) -> None:
    """Write a new file of mode 0600. Raises `UsageError` where it exists or cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    except FileExistsError:
        raise StorageError(f"{path} exists already and is not replaced; name another file, or move it away") from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        path.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def read_private(path: Path) -> str:
    """The text of a secret file, whose mode is checked on the open file.

    Raises:
        UsageError: the file cannot be read, or others can read or change it.
        UnicodeDecodeError: it is not a text.
    """
    try:
        with path.open("rb") as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode)
            return file.read(_BYTES_MAX).decode()
    except OSError as error:
        raise _unreadable(path, error) from None


def read_password(path: Path) -> str:
    """The first line of a secret file. Raises `UsageError`, also where it is empty or not a text."""
    try:
        lines = read_private(path).splitlines()
    except UnicodeDecodeError:
        raise InputError(f"password file {path} is not a text in UTF-8") from None
    if not lines or not lines[0]:
        raise InputError(f"password file {path} is empty: put the password in its first line")
    return lines[0]


def check_private(path: Path) -> None:
    """Raise `UsageError` where a secret file, which a library will read itself, is missing or open to others."""
    try:
        _check_mode(path, path.stat().st_mode)
    except OSError as error:
        raise _unreadable(path, error) from None


def _check_mode(path: Path, mode: int) -> None:
    if mode & 0o077:
        raise InputError(
            f"{path} can be read or changed by others: found mode {stat.S_IMODE(mode):04o}, expected 0600; "
            f"run: chmod 600 {path}"
        )


def _unreadable(path: Path, error: OSError) -> UsageError:
    return InputError(f"cannot read {path}: {error.strerror}; check the path and its rights")
