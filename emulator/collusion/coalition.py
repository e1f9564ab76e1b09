"""The members of a coalition, the round that they attack, and whether the claim covers them.

Client 0 is the victim. After it come the coalition's clients that reveal their noise, then those that omit it. The last
clients are the coalition's silent ones, which have a session and send nothing. All others are honest. The first K
Compute nodes collude; they may leave some honest clients out of the sum.

Each client that reveals or omits its noise, is silent or left out, reduces the noises unknown to the coalition by one.
The claim needs n_min - 1 - c = N - T - 1 unknown noises, and one Compute node that does not collude (PRIVACY.md). A
round that lacks more than T - c clients is aborted.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from dca_proto.errors import UsageError
from dca_proto.wording import counted
from emulator import reference
from emulator.claim import VICTIM, Claim, box_of

BOUND = 1.0
"""Every column is clamped to ±BOUND; these are the victim's values in the two worlds."""
DIMENSION_MAX = 4096


class Setting(Claim, frozen=True, kw_only=True):
    """The round, a sum of `dimension` columns, and its privacy claim."""

    dimension: int = 32

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of `OpenRound` that the setting determines."""
        return self.request_fields(statistic="sum", parameters=box_of(self.dimension, BOUND))

    def check(self) -> None:
        """Refuse numbers that no round can have. Raises `UsageError`."""
        self.check_counts()
        if not 1 <= self.dimension <= DIMENSION_MAX:
            raise UsageError(f"--dimension {self.dimension}: expected 1 to {DIMENSION_MAX} columns")

    @property
    def l2(self) -> float:
        """Δ₂ of one client's columns."""
        return reference.sensitivity("sum", [BOUND] * self.dimension)[1]


class Coalition(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a coalition.

    Attributes:
        nodes: K Compute nodes. broker, trainer: whether they belong to it.
        revealing: A clients that reveal their noise, including the curious one. omitting: B clients that add none.
        silent: C clients that have a session and send nothing.
        left_out: D honest clients whose messages the colluding Compute nodes ignore.
    """

    nodes: int = 0
    revealing: int = 0
    omitting: int = 0
    silent: int = 0
    left_out: int = 0
    broker: bool = False
    trainer: bool = False

    @property
    def clients(self) -> int:
        return self.revealing + self.omitting + self.silent

    def __str__(self) -> str:
        nouns = {"nodes": "Compute node", **{name: f"{name} client" for name in ("revealing", "omitting", "silent")}}
        counts = {noun: getattr(self, name) for name, noun in nouns.items()}
        members = [counted(count, noun) for noun, count in counts.items() if count]
        members += [name for name in ("broker", "trainer") if getattr(self, name)]
        members += [f"{counted(self.left_out, 'honest client')} left out"] * bool(self.left_out)
        return ", ".join(members) or "nobody"

    def check(self, setting: Setting) -> None:
        """Refuse more members than a round has. Raises `UsageError`."""
        counts = {"colluding-computes": self.nodes, "revealing": self.revealing, "omitting": self.omitting}
        for option, count in {**counts, "silent": self.silent, "left-out": self.left_out}.items():
            if count < 0:
                raise UsageError(f"--{option} {count}: expected 0 or more")
        if self.left_out and not self.nodes:
            raise UsageError(
                f"--left-out {self.left_out}: only colluding Compute nodes can leave clients out; raise "
                "--colluding-computes"
            )
        if self.nodes > setting.computes:
            raise UsageError(
                f"--colluding-computes {self.nodes}: there are M = {setting.computes} Compute nodes; take at most "
                f"{setting.computes}, or raise --computes"
            )
        if self.clients + self.left_out >= setting.clients:
            raise UsageError(
                f"--revealing {self.revealing} --omitting {self.omitting} --silent {self.silent} --left-out "
                f"{self.left_out}: there are {setting.clients - 1} clients besides the victim; take at most that many, "
                "or raise --clients"
            )


class Case:
    """A coalition in a round.

    Attributes:
        setting, coalition: as given. plan: the round's numbers.
        revealing, omitting, silent: indices of the coalition's clients.
        left_out: indices of the honest clients that the colluding nodes ignore.
        honest: indices of the honest clients in the sum; the victim comes first.

    Raises:
        UsageError: no round has such numbers, or not so many can collude.
    """

    def __init__(self, setting: Setting, coalition: Coalition) -> None:
        setting.check()
        coalition.check(setting)
        self.setting = setting
        self.coalition = coalition
        _, self.plan = setting.plan(**setting.asked)
        first, last = 1 + coalition.revealing, setting.clients - coalition.silent
        self.revealing = range(1, first)
        self.omitting = range(first, first + coalition.omitting)
        self.left_out = range(last - coalition.left_out, last)
        self.honest = (VICTIM, *range(self.omitting.stop, self.left_out.start))
        self.silent = range(last, setting.clients)

    @property
    def contributors(self) -> int:
        """|A|: all clients except the silent and those left out."""
        return self.setting.clients - self.coalition.silent - self.coalition.left_out

    @property
    def is_released(self) -> bool:
        """True if the Compute nodes may release: |A| >= n_min."""
        return self.contributors >= self.setting.needed

    @property
    def has_all_nodes(self) -> bool:
        """True if no Compute node is honest."""
        return self.coalition.nodes == self.setting.computes

    @cached_property
    def noises_left(self) -> int:
        """The number of noises that hide the victim: 1 if all M Compute nodes collude, else one per honest client."""
        return 1 if self.has_all_nodes else len(self.honest)

    @property
    def is_covered(self) -> bool:
        """True if the claim covers this coalition; also for an aborted round, unless all M Compute nodes collude."""
        return not self.has_all_nodes and (not self.is_released or self.noises_left >= self.setting.honest)


def worst_revealing(setting: Setting, others: int) -> int:
    """Return how many revealing clients the claim covers in addition to `others` of the coalition: T + 1 in all."""
    return max(0, min(setting.tolerated + 1, setting.clients - 1) - others)
