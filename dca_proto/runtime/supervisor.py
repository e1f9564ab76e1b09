"""Tells systemd that an actor is ready, alive and stopping: Type=notify and WatchdogSec= (sd_notify(3)).

Without systemd's variables in the environment, nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable


class Supervisor:
    """The supervisor that the environment names, if there is one."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        usec, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        is_mine = process in ("", str(os.getpid()))
        self._every_s = int(usec) / 2e6 if usec.isascii() and usec.isdigit() and is_mine else 0.0

    def tell(self, *lines: str) -> None:
        """Send assignments such as ``READY=1``. A supervisor that does not listen changes nothing."""
        if not self._address.startswith(("/", "@")):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            sending.sendto("\n".join(lines).encode(), address)

    def connection(self, away_because: str) -> None:
        """Say that the actor is connected, or in one line why it is not."""
        if away_because:
            self.tell(f"STATUS=no connection: {away_because}")
        else:
            self.tell("READY=1", "STATUS=connected")

    def alive(self) -> None:
        """Say that the actor works, if there is a watchdog."""
        if self._every_s > 0:
            self.tell("WATCHDOG=1")

    async def run(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        """Say that the event loop turns, twice in each period of the watchdog, until cancelled.

        While the actor `is_busy` in a thread, its work has to say that it goes on.
        """
        while self._every_s > 0:
            if not is_busy():
                self.alive()
            await asyncio.sleep(self._every_s)
