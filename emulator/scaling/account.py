"""What each process of an emulated population saw of one round, and the round that this comes to.

Times of facts are of `time.perf_counter`, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol import facts
from emulator.scaling.held import PHASES, Held
from emulator.scaling.meter import ROLES, Tally


class Clock:
    """When a round began here, and when the facts occurred here that end its phases.

    Attributes:
        ended: the fact that ended the round, where the trainer is.
    """

    _ENDS: ClassVar[dict[type, str]] = {
        facts.Closed: "collect",
        facts.RoundCompleted: "agree",
        facts.RoundFailed: "agree",
    }

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A round begins."""
        self.ended: facts.RoundCompleted | facts.RoundFailed | None = None
        self.began_s = time.perf_counter()
        self.at_s: dict[str, float] = {}

    def note(self, fact: object) -> None:
        """A fact occurs now."""
        phase = self._ENDS.get(type(fact))
        if phase is not None:
            self.at_s[phase] = time.perf_counter()
        if isinstance(fact, facts.RoundCompleted | facts.RoundFailed):
            self.ended = fact


class Outcome(msgspec.Struct, frozen=True):
    """A result: how many are in it, and its noise as `Held` gives it."""

    contributors: int
    noise_sd: float
    noise_sd_ideal: float


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a round.

    Attributes:
        core_s, waiting_s: of the process, working and waiting for others. awake_s: wall seconds without the waiting.
        tallies: what its actors used, by role.
        began_s, at_s: as in `Clock`. outcome: the result, where the trainer is and if there is one.
    """

    core_s: float
    waiting_s: float
    awake_s: float
    tallies: dict[str, Tally]
    began_s: float
    at_s: dict[str, float]
    outcome: Outcome | None

    def role_s(self, role: str) -> float:
        """Core seconds of a role: its part of the time that the process was awake is its part of the core's."""
        return self.tallies[role].busy_ns / 1e9 * self.core_s / self.awake_s


def outcome_of(ended: facts.RoundCompleted | facts.RoundFailed | None) -> Outcome | None:
    """What a round's last fact says of its result."""
    if not isinstance(ended, facts.RoundCompleted):
        return None
    aggregate: NoisyAggregate = ended.aggregate
    assert aggregate.mu is not None
    return Outcome(aggregate.contributors, math.sqrt(aggregate.noise_variance), aggregate.sensitivity / aggregate.mu)


def held_of(accounts: Sequence[Account]) -> Held:
    """A round, from what all processes saw of it; the trainer's is the first."""
    tallies = {role: sum((one.tallies[role] for one in accounts), Tally()) for role in ROLES}
    roles = {role: math.fsum(one.role_s(role) for one in accounts) for role in ROLES}
    core_s = math.fsum(one.core_s for one in accounts)
    phases, outcome = _phases(accounts), accounts[0].outcome
    return Held(
        wall_s=math.fsum(phases.values()),
        waiting_s=math.fsum(one.waiting_s for one in accounts),
        phases=phases,
        core_s={**roles, "emulator": max(0.0, core_s - math.fsum(roles.values()))},
        messages={role: tally.sent for role, tally in tallies.items()},
        bytes={role: tally.sent_bytes for role, tally in tallies.items()},
        received={role: tally.received for role, tally in tallies.items()},
        received_bytes={role: tally.received_bytes for role, tally in tallies.items()},
        completed=outcome is not None,
        **({} if outcome is None else msgspec.structs.asdict(outcome)),
    )


def _phases(accounts: Sequence[Account]) -> dict[str, float]:
    """Wall seconds of each phase, up to its last fact anywhere; 0 for one that the round did not come to."""
    seconds, last_s = {}, accounts[0].began_s
    for name in PHASES:
        at_s = max((one.at_s[name] for one in accounts if name in one.at_s), default=last_s)
        seconds[name], last_s = at_s - last_s, at_s
    return seconds
