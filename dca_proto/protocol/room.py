"""How much state of rounds an actor keeps, by trainer and in all, against the limits of `params.Limits` (DESIGN §7).

A trainer's rounds take at most a quarter of each limit, so that a hostile trainer leaves room to the others. A refusal
names the limit and the figures. Nothing here decides what happens to a round that has no room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from dca_proto.protocol.params import Room
from dca_proto.protocol.policy import Refusal


class Used:
    """The used part of one `Room`, in all and by trainer."""

    __slots__ = ("_of_trainer", "total")

    def __init__(self) -> None:
        self._of_trainer: dict[bytes, int] = {}
        self.total = 0

    def of(self, trainer: bytes) -> int:
        """Return the amount of one trainer's rounds."""
        return self._of_trainer.get(trainer, 0)

    def add(self, trainer: bytes, more: int) -> None:
        """Count more of a trainer's state, or less if `more` is negative."""
        self.total += more
        of_trainer = self._of_trainer.get(trainer, 0) + more
        if of_trainer:
            self._of_trainer[trainer] = of_trainer
        else:
            self._of_trainer.pop(trainer, None)

    def fits(self, room: Room, trainer: bytes) -> bool:
        """Return True if this trainer and all are within the limit."""
        most = room.most_of_trainer
        return self.total <= most or (self.total <= room.most and self.of(trainer) <= most)

    def refusal(self, room: Room, trainer: bytes, more: int) -> Refusal | None:
        """Return a refusal if `more` has no room, for this trainer or in all; it names the limit and the figures."""
        if self.total + more <= room.most_of_trainer:
            return None  # most often: it fits even if all rounds are this trainer's
        of_trainer, in_all = (self.of(trainer), room.most_of_trainer), (self.total, room.most)
        for (used, most), whose in ((of_trainer, "one trainer"), (in_all, "all")):
            if used + more > most:
                found = f"{room.kind}: {room.words(used + more)} with this one"
                return Refusal("room", found, f"at most {room.words(most)} for {whose}")
        return None


Amounts = tuple[int, ...]
"""What a round takes of each kind, in the order of its actor's `Rooms`; empty if it takes nothing."""
R = TypeVar("R", bound="Countable")


class Countable(Protocol):
    """A round of an actor. `amounts` is what the actor's `Rooms` count of it now."""

    amounts: Amounts
    stored: Any


class Rooms(ABC, Generic[R]):
    """The used parts of an actor's limits: each attribute is a `Used`."""

    @abstractmethod
    def amounts(self, current: R) -> Amounts:
        """Return what a round takes now, in the order of the attributes."""

    def note(self, current: R) -> None:
        """Count a round as it is now."""
        self._count(current, self.amounts(current))

    def forget(self, current: R) -> None:
        """Count a round no longer."""
        self._count(current, ())

    def _count(self, current: R, after: Amounts) -> None:
        before, current.amounts = current.amounts, after
        if before != after:
            nothing, trainer = (0,) * len(before or after), current.stored.trainer
            for used, old, new in zip(vars(self).values(), before or nothing, after or nothing, strict=True):
                if old != new:
                    used.add(trainer, new - old)
