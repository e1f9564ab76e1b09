"""What the actors of a swarm accept, no more than its rounds need; and how its parts fail together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from dca_proto.privacy.policy import Floors, Policy

T = TypeVar("T")
_CERTIFICATE_DAYS = 30


def floors(clients: int, tolerated: int, colluders: int) -> Floors:
    """Of a Compute node in rounds of N clients, of which T may drop or collude, and c of these only collude."""
    fewest = clients - tolerated + colluders
    return Floors(clients_min=fewest, honest_min=fewest - 1 - colluders)


def policy(clients: int, tolerated: int, colluders: int, *, computes: int, epsilon: float, delta: float) -> Policy:
    """Of a client, whose whole budget may go to one round.

    Args:
        clients: N. tolerated: T. colluders: c. computes: M. epsilon, delta: of all rounds together.
    """
    least = floors(clients, tolerated, colluders)
    return Policy(
        epsilon_per_round_max=epsilon,
        epsilon_per_period_max=epsilon,
        delta_max=delta,
        clients_min=least.clients_min,
        honest_min=least.honest_min,
        colluders_min=colluders,
        computes_min=computes,
    )


def node_policy(epsilon: float, delta: float) -> Policy:
    """Of a data node that releases by itself: its rows are different people's, each of whom spends the budget once."""
    return Policy(epsilon_per_round_max=epsilon, epsilon_per_period_max=epsilon, delta_max=delta, rows_of_many=True)


def reporter_policy(epsilon: float, delta: float) -> Policy:
    """Of a client that reports by itself, whose whole budget may go to one report; nobody else is relied on."""
    return Policy(epsilon_per_round_max=epsilon, epsilon_per_period_max=epsilon, delta_max=delta)


def certificate_expiry_ms() -> int:
    """When certificates that are made now expire."""
    return int((time.time() + _CERTIFICATE_DAYS * 24 * 3600) * 1000)


async def unless_one_ends(waiting: Coroutine[Any, Any, T], watched: Sequence[asyncio.Task[None]]) -> T:
    """The result of `waiting`, or the failure of whichever task of `watched`, which are all to go on, ended first."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait([task, *watched], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [one for one in watched if one.done()]
        if not task.done():
            task.cancel()
        await asyncio.wait([task])
    for one in ended:
        one.result()
    return task.result()
