"""Faults of owners over time: stores restored from old copies, certificates that end, floors, and data that fail."""

from __future__ import annotations

from dca_proto.protocol.effects import Channel
from emulator.trials.fault import Injection

RESTORED_AFTER_MS = 5_000


class Restored(Injection):
    """A copy of the store is made, and put in its place `for_ms` later: what was stored since is forgotten."""

    def begin(self) -> None:
        self._copies = {process: process.disk.copy() for process in self.targets}
        self.simulator.after(self.fault.for_ms or RESTORED_AFTER_MS, self.stop)

    def end(self) -> None:
        for process, copy in self._copies.items():
            (self.world.restored if process.role is Channel.CLIENT else self.world.twinned).add(process.id)
            self.reached(process)
            process.restore(copy)
            self.world.revive(process)


class CertificateEnds(Injection):
    """The certificate was made to end at this time (`cast.ends_ms`). Its owner has it renewed, and starts anew."""

    def begin(self) -> None:
        for process in self.targets:
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            self.world.cast.ends_ms.pop(process.id, None)
            self.world.revive(process)


class FloorsRaised(Injection):
    """A Compute node starts anew with floors that no round meets, and later with those that it had."""

    def begin(self) -> None:
        self.world.cast.refusing.update(process.id for process in self.targets)
        for process in self.targets:
            self.reached(process)
            self.world.revive(process)

    def end(self) -> None:
        self.world.cast.refusing.difference_update(process.id for process in self.targets)
        for process in self.targets:
            self.world.revive(process)


class DataFail(Injection):
    """The data of a client cannot be read."""

    def begin(self) -> None:
        self.world.cast.failing.update(process.id for process in self.targets)
        for process in self.targets:
            self.reached(process)

    def end(self) -> None:
        self.world.cast.failing.difference_update(process.id for process in self.targets)
