"""Ports for servers that a test starts, stops and starts again, and for brokers that are not there.

A port that the system picks is one of those that it gives to outgoing connections, of this test or of any other: until
a server listens there, another process may take it, or a connection to it may reach itself. These ports are below that
range, no two processes of pytest-xdist share any, and a process gets each of them once.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket

LOWEST, OF_A_PROCESS, PROCESSES = 20_000, 600, 20
_given: set[int] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens, and that no other test gets."""
    worker = int("0" + os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")) % PROCESSES
    first = LOWEST + worker * OF_A_PROCESS
    left = sorted(set(range(first, first + OF_A_PROCESS)) - _given)
    random.SystemRandom().shuffle(left)
    for port in left:
        _given.add(port)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"all ports from {first} to {first + OF_A_PROCESS - 1} are taken")
