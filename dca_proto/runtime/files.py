"""Opens the files that a person names, writes files as a whole, and checks beforehand that they can be written.

`open_input` is the one door for input. It takes regular files up to a limit. A pipe or a terminal would make a command
wait in silence, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import codecs
import errno
import itertools
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from dca_proto.errors import InputError, StorageError

STDOUT = "-"
TEXT_BYTES_MAX = 64 << 20
"""The largest text file of a person, but for data and results."""


def open_input(path: Path, advice: str = "", *, bytes_max: int = TEXT_BYTES_MAX) -> BinaryIO:
    """Open a file that a person names as input.

    Args:
        advice: ends the error, as in "expected an actor's configuration file".

    Raises:
        InputError: the file cannot be read, is not a regular file, or has more than `bytes_max` bytes.
    """
    try:  # a pipe without a writer must not block; for a regular file, the flag has no effect
        file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb")  # noqa: PTH123, SIM115
    except IsADirectoryError:
        raise _not_regular(path, stat.S_IFDIR, advice) from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _not_regular(path, stat.S_IFSOCK, advice) from None
        raise unreadable(path, error, advice) from None
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and about.st_size <= bytes_max:
        return file
    file.close()
    if not stat.S_ISREG(about.st_mode):
        raise _not_regular(path, about.st_mode, advice)
    raise _too_large(path, bytes_max, advice)


def read_input(path: Path, advice: str = "", *, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Return the content of a file that a person names as input. Raises as `open_input`."""
    try:
        with open_input(path, advice, bytes_max=bytes_max) as file:
            content: bytes | None = file.read(bytes_max + 1)
    except OSError as error:
        raise unreadable(path, error, advice) from None
    if content is None:  # one of those in /proc from which nothing can be read yet
        raise unreadable(path, BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), advice)
    if len(content) > bytes_max:  # it has grown, or is one of those in /proc, whose size is stated as 0
        raise _too_large(path, bytes_max, advice)
    return content


def require_input(path: Path, advice: str = "") -> None:
    """Raise as `open_input` if a file cannot be read; for files that a library reads itself."""
    open_input(path, advice).close()


def require_unopened(path: Path, advice: str = "") -> None:
    """Raise as `open_input` if a file cannot be read, without opening it.

    For databases: whoever closes a file loses all locks that his process has on it, SQLite's included
    (https://www.sqlite.org/howtocorrupt.html, 2.2).
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise unreadable(path, error, advice) from None
    if not stat.S_ISREG(mode):
        raise _not_regular(path, mode, advice)
    if not os.access(path, os.R_OK):
        raise unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)), advice)


def _not_regular(path: Path, mode: int, advice: str) -> InputError:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    what = kinds.get(stat.S_IFMT(mode), "a device")
    return InputError(f"{path} is {what}, not a regular file; name a file{f'; {advice}' * bool(advice)}")


def _too_large(path: Path, bytes_max: int, advice: str) -> InputError:
    most = f"{bytes_max >> 20} MiB" if bytes_max >> 20 else f"{bytes_max} bytes"
    return InputError(f"{path} is larger than {most}; name another file{f'; {advice}' * bool(advice)}")


def read_text(path: Path, advice: str = "", *, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Return the text of a file that a person may have written.

    The text is UTF-8, with or without a byte order mark, and with any line ends.

    Raises:
        InputError: as `open_input`, or the file is not UTF-8.
    """
    return decode_text(read_input(path, advice, bytes_max=bytes_max), path, advice)


def decode_text(content: bytes, path: Path, advice: str = "") -> str:
    """Return the text of a file's bytes; see `read_text`. The error has no byte of it, since it may be secret."""
    wrong = ""
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in content[:2]:
        wrong = "is not UTF-8 text: it is UTF-16 or binary"
    else:
        try:
            return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            wrong = f"is not UTF-8 text: see line {line}"
    raise InputError(f"{path} {wrong}; save it as UTF-8{f'; {advice}' * bool(advice)}")


def unreadable(path: Path, error: OSError, advice: str = "") -> InputError:
    """Return the error of a file that cannot be read."""
    named = "" if path.is_absolute() else f" {full(path)}"
    check = f"check the path{named} and its rights"
    return InputError(f"cannot read {path}: {error.strerror or error}; {check}{f'; {advice}' * bool(advice)}")


def full(path: Path) -> Path:
    """Return where a path leads from the present folder, also if that was removed."""
    try:
        return path.absolute()
    except FileNotFoundError:
        return path


def require_writable(path: Path, *, make_folders: bool = False) -> None:
    """Raise `UsageError` if no file can be written to a path; with `make_folders`, folders may be missing."""
    folder = path.parent
    while make_folders and not folder.exists():
        folder = folder.parent
    if path.is_dir():
        raise StorageError(f"cannot write {path}: it is a folder; name a file")
    if not folder.exists():
        raise StorageError(f"cannot write {path}: folder {folder} does not exist; make it, or name another")
    if not folder.is_dir():
        raise StorageError(f"cannot write {path}: {folder} is not a folder; name another")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise StorageError(f"cannot write {path}: permission denied; name another place")
    if not path.exists():
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:  # for example in /proc
            raise StorageError(f"cannot write {path}: {error.strerror}; name another place") from None


def keep(paths: Iterable[Path]) -> dict[Path, Path]:
    """Copy the files that exist to numbered names beside them, and return these: result.json to result.1.json.

    All get one number, the first that is free for all. Empty files, devices and pipes are not copied. Raises `OSError`.
    """
    held = [path for path in dict.fromkeys(paths) if path.is_file() and path.stat().st_size]
    for number in itertools.count(1):
        copies = {path: path.with_name(f"{path.stem}.{number}{path.suffix}") for path in held}
        if not any(copy.exists() for copy in copies.values()):
            break
    for path, copy in copies.items():
        shutil.copy2(path, copy)
    return copies


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that the names of new files are durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Replace the file at `path` when the block ends; leave it unchanged if the block fails.

    Yields the path of a new file beside it, with the same suffix. Yields `path` itself if it must not be replaced: a
    link (such as /dev/stdout), a device, a pipe, or a file in a folder that is not writable. Raises `UsageError` if the
    file cannot be written, for example because the disk is full.
    """
    in_place = path.is_symlink() or (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK)
    place = path if in_place else path.with_name(f".dca-{secrets.token_hex(8)}{path.suffix}")
    try:
        if not in_place and path.exists():
            place.touch()
            shutil.copymode(path, place)  # while it is still empty
        yield place
        if not in_place:
            place.replace(path)
    except BrokenPipeError:
        raise  # not an error: the reader closed the pipe
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free space or name another place"
        ) from None
    finally:
        if not in_place:
            place.unlink(missing_ok=True)


def write_json(value: object, target: str | None) -> None:
    """Write a record or plain values as JSON to a file, or to stdout for ``-``; None writes nothing."""
    if target is None:
        return
    text = json.dumps(msgspec.to_builtins(value), indent=2, allow_nan=False) + "\n"
    if target == STDOUT:
        sys.stdout.write(text)
        return
    with whole_file(Path(target)) as place:
        place.write_text(text, encoding="utf-8")
