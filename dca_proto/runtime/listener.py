"""Who listens on a TCP port, as far as the system tells (Linux, in /proc)."""

from __future__ import annotations

import contextlib
from pathlib import Path

_LISTENING = "0A"  # the state in /proc/net/tcp


def is_anothers(pid: int, port: int) -> bool:
    """Whether sockets listen on the port, and none of them is the process's. False where that cannot be known."""
    try:
        listening = {line for table in ("tcp", "tcp6") for line in _listening(pid, table, port)}
        own = _sockets(pid)
    except OSError:
        return False
    return bool(listening) and not listening & own


def _listening(pid: int, table: str, port: int) -> set[str]:
    """Inodes of the sockets that listen on that port, in the network that the process sees."""
    path = Path(f"/proc/{pid}/net/{table}")
    if not path.exists():
        return set()  # a system without IPv6
    rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()[1:]]
    return {row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port}


def _sockets(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            kind, _, inode = str(descriptor.readlink()).partition(":")
            if kind == "socket":
                found.add(inode.strip("[]"))
    return found
