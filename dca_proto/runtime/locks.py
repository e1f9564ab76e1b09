"""Locks on files and folders that one process at a time may use, by one name.

A lock belongs to an open file (flock(2)). It ends when the process ends, in whatever way, so none is left behind.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from dca_proto.errors import StorageError
from dca_proto.wording import duration

_TABLE = Path("/proc/locks")  # of Linux: see proc_locks(5)
_UNKNOWN = "another process"


def locked(path: Path, flags: int, what: str, remedy: str, *, wait: bool = False) -> int:
    """Open a file or a folder and lock it for this process alone. Return its descriptor, which `release` frees.

    Args:
        flags: as of `os.open`. A file that is made has mode 0600.
        what: the thing that it protects, with its name. remedy: what to do if another process has it.
        wait: wait for another process instead.

    Raises:
        OSError: it cannot be opened.
        StorageError: another process has the lock, or the file system has no locks.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        error = f"{what} is in use by {_holder(descriptor)}; {remedy}"
    except OSError as failed:
        error = f"cannot lock {what}: {failed.strerror}; put it on another file system"
    else:
        return descriptor
    os.close(descriptor)
    raise StorageError(error)


def require_one_name(path: Path) -> None:
    """Raise `StorageError` if a file has several hard links.

    For files that are replaced as a whole, and for databases, whose logs are beside each name: what is written by one
    name would be missing by the others. Symbolic links do no harm, once they are resolved.
    """
    links = path.stat().st_nlink if path.is_file() else 1
    if links > 1:
        raise StorageError(
            f"{path} has {links} names (hard links), expected one: what is written by one name would be missing by the "
            f"others; keep one (find / -samefile {path} lists them)"
        )


def unlock(descriptor: int) -> None:
    """Unlock a file, also for forked children that have inherited it."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def release(descriptor: int) -> None:
    """Unlock a file and close it."""
    unlock(descriptor)
    os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Return which process has locked an open file."""
    about = os.fstat(descriptor)
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        lines = _TABLE.read_text(encoding="ascii").splitlines()
    except OSError:  # another system
        return _UNKNOWN
    holders = [words[4] for line in lines if (words := line.split())[1] == "FLOCK" and words[5] == place]
    return f"process {holders[0]}{_began(holders[0])}" if holders else _UNKNOWN  # none from within another container


def _began(process: str) -> str:
    """Return when a process began, as a clause; "" if that is not known."""
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except (OSError, UnicodeDecodeError):  # it has ended, and its child has the file
        return ""
    since_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return f", which began {duration(1000 * since_s)} ago"
