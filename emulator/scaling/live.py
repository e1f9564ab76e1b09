"""The live backend: the same rounds by a fleet of client processes over mosquitto, with sockets and durable records.

Wall times are those of real time; the broker's core seconds stand beside the roles'. The drop rate is held exactly: as
many clients as it comes to vanish in each round. A fleet ends with its first abort, so fewer rounds may be seen.
"""

from __future__ import annotations

import math
from typing import Any

from emulator.scaling.cell import MOSQUITTO, Cell
from emulator.scaling.held import Held, Memory, SetUp
from emulator.swarm.fleet import run_fleet
from emulator.swarm.fleet_options import FleetOptions

_Row = dict[str, Any]


def hold_live(cell: Cell) -> tuple[SetUp, list[Held], Memory | None, float]:
    """Hold a cell's rounds over mosquitto.

    Returns:
        How sessions and keys came to be, the measured rounds (the first again, where it was aborted), no weights of
        actors, and the peak of memory of the largest process in MiB.
    """
    done = run_fleet(
        FleetOptions(
            clients=cell.clients,
            dimension=cell.dimension,
            computes=cell.computes,
            rounds=cell.repeats + 1,
            tolerated=cell.tolerated,
            dropped=round(cell.drop_rate * cell.clients),
            processes=cell.processes,
            broker=MOSQUITTO,
        )
    )
    first, *others = [held_of(row) for row in done["rounds"]]
    set_up = SetUp(sessions_s=done["sessions"]["core_s"], sessions_wall_s=done["sessions"]["wall_s"], first=first)
    return set_up, others or [first], None, done["peak_rss_mb"]


def held_of(row: _Row) -> Held:
    """What a fleet says of one round."""
    is_done = row["ok"] and row["mu"] is not None
    return Held(
        wall_s=row["wall_s"],
        phases=row["phases"],
        core_s=row["core_s_by_role"],
        messages={role: sent["messages"] for role, sent in row["roles"].items()},
        bytes={role: sent["bytes"] for role, sent in row["roles"].items()},
        completed=row["ok"],
        contributors=row["contributors"] or 0,
        noise_sd=math.sqrt(row["noise_variance"]) if is_done else None,
        noise_sd_ideal=row["sensitivity"] / row["mu"] if is_done else None,
    )
