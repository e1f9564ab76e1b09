"""What a process uses: processor time, memory and open files, without any library but Python's own."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

from dca_proto.errors import UsageError

_SPARE_FILES = 64  # beside connections: stores, pipes, libraries
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def core_s() -> float:
    """Processor seconds of this process so far, all threads."""
    return time.process_time()


def core_s_of(pid: int) -> float | None:
    """Processor seconds of another process; None where the system does not report it (Linux does, in /proc)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_rss_bytes(pid: int | None = None) -> int | None:
    """The most memory that a process has had, by default this one; None where the system does not report it."""
    try:  # better than getrusage, which counts what the parent had when it started this process
        lines = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        if pid is not None:
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def require_connections(here: int, at_broker: int | None, advice: str = "use --connections shared") -> None:
    """Let this process and those that it starts open as many files as they may, and refuse what will not fit.

    Args:
        here: connections of the largest single process. at_broker: of all at a broker that we start; None: not ours.
        advice: what the caller can do about it, besides asking the system for more.

    Raises:
        UsageError: the system allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    needed = max(here, at_broker or 0) + _SPARE_FILES
    if needed > most:
        raise UsageError(
            f"a process would need {needed} open files, for a connection each, and may have {most}: raise it with "
            f"`ulimit -Hn`, or {advice}"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    if at_broker is not None and at_broker > _ports():
        raise UsageError(
            f"{at_broker} connections to one broker on this machine need as many local ports, and there are "
            f"{_ports()}: widen net.ipv4.ip_local_port_range, or {advice}"
        )


def _ports() -> int:
    """How many connections one address can have to one listener."""
    try:
        first, last = map(int, _PORTS.read_text(encoding="ascii").split())
    except OSError:
        return 1 << 14  # of other systems: 49152 to 65535
    return last - first + 1
