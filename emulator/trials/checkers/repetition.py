"""Invariant 9: the same seed gives the same run, byte for byte in its trace of facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Witness

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class Repetition(Checker):
    """The digest of this run against that of another one of the same scenario.

    Args:
        before: the other run's digest; None checks nothing.
    """

    number, name = 9, "same seed, same run"

    def __init__(self, world: TrialWorld, witness: Witness, before: str | None = None) -> None:
        super().__init__(world, witness)
        self._before = before

    def finish(self) -> None:
        """Compare the traces."""
        if self._before is not None:
            found = self.world.simulator.trace.digest()
            self.expect(found == self._before, f"the trace has digest {found}, and had {self._before}")
