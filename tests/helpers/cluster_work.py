"""Work for a test's cluster: functions and a class that every process imports by name."""

from __future__ import annotations

import contextlib
import hashlib
import os
from itertools import chain

from dca_proto.engine import open_engine
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.pool import Pool
from dca_proto.runtime.pool import ProcessPool
from dca_proto.testing import TestFederation
from emulator.trials.draw import draw_scenario
from emulator.trials.trial import examine


def digest(seed: int) -> tuple[str, str]:
    """Return a trial's digest, and the node that ran it."""
    node = "here"
    if "RAY_JOB_ID" in os.environ or "RAY_RAYLET_PID" in os.environ:
        import ray

        node = ray.get_runtime_context().get_node_id()
    return examine(draw_scenario(seed), compare=False).digest, node


def dies_at_three(number: int) -> int:
    """Kill its process at 3."""
    if number == 3:
        os._exit(7)
    return number


def pooled_round(engine: str) -> str:
    """Return the digest of all messages of a round whose Compute nodes have a pool of that engine; "none" for none."""
    pool = (
        contextlib.nullcontext(Pool())
        if engine == "none"
        else ProcessPool(open_engine(engine), 2, start_us=0, pays_us=0)
    )
    with pool as given:
        if isinstance(given, ProcessPool):
            given.wait()
            assert given.pays(1, 1.0), "processes have started"
        actors = TestFederation(8, 2, name="pooled", pool=given)
        network = actors.network()
        network.command(actors.trainer_identity.id, actors.request(clients=8, tolerate=1))
        network.advance(network.now_ms + 3_600_000)
    assert len(network.reported(RoundCompleted)) == 1
    return hashlib.sha256(b"".join([one.payload for one in network.sent])).hexdigest()


def squares(numbers: range) -> list[int]:
    """Return the squares."""
    return [number**2 for number in numbers]


def lost_cluster(engine: str) -> list[bool]:
    """Return whether a pool's squares are right, and whether it has processes, before and after its cluster is lost."""
    found = []
    with ProcessPool(open_engine(engine), 2, start_us=0, pays_us=0) as pool:
        import ray  # not before the engine does, which keeps it from joining clusters by itself

        pool.wait()
        for _ in range(2):
            parts = pool.spread(squares, 9, 1.0, lambda start, end: range(start, end))
            found += [[*chain(*parts)] == squares(range(9)), pool.pays(1, 1.0)]
            ray.shutdown()
    return found


class Holder:
    """An object with a state."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def die(self) -> None:
        os._exit(7)
