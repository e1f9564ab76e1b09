"""The kinds of run that have a page: what is read of each, and what makes its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from emulator.report import audit, collusion, emulation, learning, run, scaling, swarm, sweep
from emulator.report.page import Page


class Kind(NamedTuple):
    """What is read of a run, the function that makes its page, and the command that writes such a file."""

    read: Any
    page: Callable[[Any], Page]
    command: str


KINDS = {
    "swarm": Kind(run.Swarm, swarm.page, "dca swarm"),
    "emulation": Kind(emulation.Emulation, emulation.page, "dca emulate run SCENARIO"),
    "sweep": Kind(sweep.Sweep, sweep.page, "dca emulate sweep"),
    "collusion": Kind(collusion.Collusion, collusion.page, "dca emulate collude"),
    "scaling": Kind(scaling.Scaling, scaling.page, "dca scaling"),
    "learn": Kind(learning.Learning, learning.page, "dca learn trainer.toml"),
    "audit": Kind(audit.Audit, audit.page, "dca audit"),
}
