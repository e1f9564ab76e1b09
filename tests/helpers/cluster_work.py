"""Work for a test's cluster: functions and a class that every process imports by name."""

from __future__ import annotations

import os

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


class Holder:
    """An object with a state."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def die(self) -> None:
        os._exit(7)
