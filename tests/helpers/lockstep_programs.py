"""Programs that processes run together in the tests of lockstep; new processes import them by name."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from dca_proto.protocol import facts
from dca_proto.testing import TestFederation
from emulator.sim.link import IDEAL
from emulator.sim.lockstep import Region, assign
from emulator.sim.simulator import START_MS, Simulator
from emulator.sim.team import Team, run_together
from emulator.sim.trace import Trace
from emulator.sim.world import World

CLIENTS, COMPUTES, DIMENSION = 23, 4, 5
LARGE = 1 << 20  # bytes, far more than a pipe holds


def world_of(name: str, team: Team, *, always_regional: bool = False) -> World:
    rows = [np.array([[index % DIMENSION + 0.5]]) for index in range(CLIENTS)]
    actors = TestFederation(CLIENTS, COMPUTES, rows=rows, name=name)
    if team.count == 1 and not always_regional:
        return World(actors, Simulator(name, federation=actors.federation.id, link=IDEAL))
    return World(actors, Region(name, team, assign(actors, team.count), federation=actors.federation.id, link=IDEAL))


def hold_rounds(name: str, team: Team) -> dict[str, Any]:
    """Run two rounds; return a summary, which is the same in all processes."""
    world = world_of(name, team)
    for _ in range(2):
        if team.number == 0:
            world.open_round(
                statistic="histogram",
                parameters={"columns": ["x"], "edges": list(range(DIMENSION + 1))},
                rows_max=1,
            )
        world.simulator.run(world.simulator.now_ms + 600_000)
    parts = [msgspec.msgpack.decode(part) for part in team.gather(msgspec.msgpack.encode(state_of(world)))]
    traffic = sum((Counter(part["traffic"]) for part in parts), Counter())
    digests = {actor: digest for part in parts for actor, digest in part["actors"].items()}
    values = [value for part in parts for value in part["values"]]
    whole = hashlib.blake2b(msgspec.msgpack.encode(sorted(digests.items()))).hexdigest()
    held = [len(part["actors"]) for part in parts]
    return {"traffic": dict(traffic), "values": values, "digest": whole, "held": held, "now": parts[0]["now"]}


def state_of(world: World) -> dict[str, Any]:
    """Return this process's traffic by role, a digest of each actor's facts, and the values of results."""
    traffic: Counter[str] = Counter()
    for process in world.simulator.machines:
        for field in ("messages_sent", "bytes_sent", "messages_received", "bytes_received"):
            traffic[f"{process.role.value} {field}"] += getattr(process.traffic, field)
    traces = {process.id: Trace() for process in world.simulator.machines}
    for at_ms, actor, fact in world.simulator.trace.entries:
        traces[actor].note(at_ms, actor, fact)
    results = [entry.fact for entry in world.simulator.trace.entries if isinstance(entry.fact, facts.RoundCompleted)]
    return {
        "traffic": traffic,
        "actors": {actor.hex(): trace.digest() for actor, trace in traces.items()},
        "values": [result.aggregate.value.tobytes().hex() for result in results],
        "now": world.simulator.now_us,
    }


def only_timers(team: Team) -> list[list[int]]:
    """Schedule calls at different instants in each process; return their times and the number of meetings."""
    region = Region("timers", team, {}, link=IDEAL)
    came: list[int] = []
    for after_ms in (7, 7, 10 * (team.number + 1), 1_000_000_000):
        region.after(after_ms, lambda: came.append(region.now_ms - START_MS))
    meetings = Counter[str]()
    swap = team.swap
    team.swap = lambda outgoing: (meetings.update(["one"]), swap(outgoing))[1]  # type: ignore[method-assign]
    region.run(START_MS + 100)
    del team.swap
    found = [*came, region.now_ms - START_MS, meetings["one"]]
    return [msgspec.msgpack.decode(one) for one in team.gather(msgspec.msgpack.encode(found))]


def ended_by_one(team: Team) -> list[int]:
    """Let the last process stop after 20 ms; return the virtual millisecond at which each stopped."""
    region = Region("ended", team, {}, link=IDEAL)
    for tick in range(10, 100, 10):
        region.after(tick, int)
    is_last = team.number == team.count - 1
    ended = region.run_while(lambda: not is_last or region.now_ms < START_MS + 20, START_MS + 100)
    assert ended
    return [msgspec.msgpack.decode(one) for one in team.gather(msgspec.msgpack.encode(region.now_ms - START_MS))]


def swap_large(team: Team) -> bool:
    """Exchange more than pipes hold between all processes, twice; return whether the right data arrived."""
    for _ in range(2):
        out = [bytes([10 * team.number + other]) * LARGE for other in range(team.count)]
        into = [bytes([10 * other + team.number]) * LARGE for other in range(team.count)]
        if team.swap(out) != into:
            return False
    return True


def fail(how: str, team: Team) -> None:
    """Let the last process end in some way while the others wait for it."""
    team.gather(b"")
    if team.number == team.count - 1:
        if how == "raise":
            raise ValueError("no more paper")
        if how == "end of file":  # of its own, not of the pipe
            raise EOFError("half a file")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return
    team.gather(b"")


def work_on(team: Team) -> None:
    """Report the ids of all processes; then process 0 waits for workers that never come."""
    pids = [msgspec.msgpack.decode(pid) for pid in team.gather(msgspec.msgpack.encode(os.getpid()))]
    if team.number == 0:
        sys.stdout.write(f"{pids}\n")
        sys.stdout.flush()
        team.gather(b"")
    elif team.number == 1:
        threading.Event().wait()  # asleep
    else:
        while time.monotonic() > 0:  # at work
            pass


if __name__ == "__main__":
    run_together(work_on, 3)
