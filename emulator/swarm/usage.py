"""Measures what processes use: messages, processor time, memory and open files."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.errors import UsageError
from dca_proto.results.round import Traffic

_SPARE_FILES = 64  # beside connections: stores, pipes, libraries
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


ALL = "all"
"""The name of the host that runs all clients and Compute nodes, in the trainer's process."""
ROLES = (CLIENT, COMPUTE, TRAINER) = ("client", "compute", "trainer")
BROKER = "broker"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What processes have sent and used since their start.

    Attributes:
        sent: by role, the traffic that reached the broker.
        core_s, peak_rss_bytes: processor seconds and peak memory by process name, which begins with the role if the
            process runs only one. An external broker is not included.
        facts: how many facts of each kind the clients and Compute nodes reported; dropped messages by code.
        late: the last clients, by number, to get a receipt since `Host.prepare`, and how many seconds ago.
        at_s: when this was measured; monotonic.
    """

    sent: dict[str, Traffic] = {}
    core_s: dict[str, float] = {}
    peak_rss_bytes: dict[str, int] = {}
    facts: dict[str, int] = {}
    late: tuple[tuple[int, float], ...] = ()
    at_s: float = msgspec.field(default_factory=time.monotonic)

    @classmethod
    def here(cls, name: str, **fields: Any) -> Usage:
        """Return the usage of this process, with further fields."""
        return cls(core_s={name: time.process_time()}, peak_rss_bytes={name: peak_rss_bytes() or 0}, **fields)

    @classmethod
    def of(cls, parts: Iterable[Usage]) -> Usage:
        """Return the usage of all these processes together."""
        whole = cls()
        for part in parts:
            sent = {role: whole.sent.get(role, Traffic()) + traffic for role, traffic in part.sent.items()}
            whole = cls(
                sent=whole.sent | sent,
                core_s=whole.core_s | part.core_s,
                peak_rss_bytes=whole.peak_rss_bytes | part.peak_rss_bytes,
                facts=Counter(whole.facts) + Counter(part.facts),
                late=whole.late + part.late,
            )
        return whole

    def core_s_by_role(self) -> dict[str, float]:
        """Return processor seconds by role, including the broker; empty if one process runs all roles."""
        if ALL in self.core_s:
            return {}
        by_role = {role: sum(s for name, s in self.core_s.items() if name.startswith(role)) for role in ROLES}
        return by_role | ({BROKER: self.core_s[BROKER]} if BROKER in self.core_s else {})


def core_s_of(pid: int) -> float | None:
    """Return the processor seconds of another process; None if the system does not report them (Linux does)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def broker_usage(pid: int | None) -> Usage:
    """Return the usage of the broker's process; empty without a process id."""
    core_s, peak = (None, None) if pid is None else (core_s_of(pid), peak_rss_bytes(pid))
    return Usage(
        core_s={} if core_s is None else {BROKER: core_s}, peak_rss_bytes={} if peak is None else {BROKER: peak}
    )


def peak_rss_bytes(pid: int | None = None) -> int | None:
    """Return the peak memory of a process, by default this one; None if the system does not report it."""
    try:  # better than getrusage, which counts what the parent had when it started this process
        lines = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        if pid is not None:
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def require_connections(here: int, at_broker: int | None, advice: str = "use --connections shared") -> None:
    """Raise the limit of open files for this process and its children, and refuse more than the system allows.

    Args:
        here: connections of the largest single process.
        at_broker: connections of all processes at a broker that the swarm starts; None for another broker.
        advice: what the user can do besides raising the system's limits.

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
    try:
        first, last = map(int, _PORTS.read_text(encoding="ascii").split())
    except OSError:
        first, last = 49_152, 65_535  # the range of other systems
    if at_broker is not None and at_broker > last - first + 1:
        raise UsageError(
            f"{at_broker} connections to one broker on this machine need as many local ports, and there are "
            f"{last - first + 1}: widen net.ipv4.ip_local_port_range, or {advice}"
        )
