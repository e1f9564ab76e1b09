"""The live backend: the same rounds by a fleet of client processes over mosquitto, with sockets and durable records.

Wall times are those of real time; the broker's core seconds stand beside the roles'. The drop rate is held exactly: as
many clients as it comes to vanish in each round. A fleet ends with its first abort, so fewer rounds may be seen.
"""

from __future__ import annotations

from emulator.results import Round
from emulator.scaling.cell import MOSQUITTO, Cell
from emulator.scaling.held import Held, Observed
from emulator.swarm.options import SwarmOptions
from emulator.swarm.synthetic import run_rounds


def hold_live(cell: Cell) -> Observed:
    """Hold a cell's rounds over mosquitto: the first stands for all where it was aborted; nobody weighs actors."""
    done = run_rounds(
        SwarmOptions(
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
    first, *others = [held_of(one) for one in done.rounds]
    assert done.sessions is not None, "a fleet reports it"
    return Observed(
        sessions_s=done.sessions.core_s or 0.0,
        sessions_wall_s=done.sessions.wall_s,
        first=first,
        rounds=others or [first],
        memory=None,
        peak_rss_mb=done.peak_rss_mb or 0.0,
    )


def held_of(one: Round) -> Held:
    """What a fleet says of one round."""
    is_done = one.ok and one.mu is not None
    assert one.wall_s is not None, "a fleet times its rounds"
    return Held(
        wall_s=one.wall_s,
        phases=one.phases,
        core_s=one.core_s_by_role,
        messages={role: sent.messages for role, sent in one.roles.items()},
        bytes={role: round(sent.bytes) for role, sent in one.roles.items()},
        completed=one.ok,
        contributors=one.contributors or 0,
        noise_sd=one.noise_sd if is_done else None,
        noise_sd_ideal=one.floor_sd if is_done else None,
    )
