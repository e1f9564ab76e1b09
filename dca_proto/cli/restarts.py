"""Starts again what ends, for the trials and deployments of `dca federation run`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from dca_proto.cli.output import tell
from dca_proto.wording import duration


class Pauses(NamedTuple):
    """The pauses before something is started again.

    Attributes:
        first_s, most_s: each pause is twice the one before, between these.
        healthy_s: after a run of this length, the next pause is the first again.
    """

    first_s: float = 1.0
    most_s: float = 60.0
    healthy_s: float = 60.0


async def keep_running(
    name: str,
    run: Callable[[], Awaitable[str]],
    pauses: Pauses = Pauses(),  # noqa: B008 - never changes
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run something, and start it again whenever it ends, until cancelled.

    Args:
        name: what it is, for people. run: runs it once, and returns why it ended.
    """
    pause_s = pauses.first_s
    while True:
        began_s = clock()
        why = await run()
        if clock() - began_s >= pauses.healthy_s:
            pause_s = pauses.first_s
        tell(f"{name} {why}; it is started again in {duration(1000 * pause_s)}", stderr=True)
        await sleep(pause_s)
        pause_s = min(2 * pause_s, pauses.most_s)
