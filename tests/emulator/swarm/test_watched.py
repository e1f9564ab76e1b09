"""Work of a swarm that is cancelled while the swarm watches its processes, as by SIGTERM."""

from __future__ import annotations

import asyncio
import gc

import pytest

from emulator.swarm.live import unless_one_ends


def test_cancelled_work_leaves_no_error_unread() -> None:
    """`asyncio.gather` ends with an error when it is cancelled, and asyncio complains of one that nobody reads."""

    async def scenario() -> list[str]:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

        async def work() -> None:
            await unless_one_ends(asyncio.gather(asyncio.Event().wait(), asyncio.Event().wait()), [])

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        del working
        gc.collect()
        return complaints

    assert asyncio.run(scenario()) == []
