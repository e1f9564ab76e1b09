"""Faulty copies of production actors that forget, keep or never repeat what they must: life cycle and completion.

The seeds are how many `dca emulate sweep --seeds 0..` runs until an invariant breaks, and which.

| planted fault | in | seeds | invariant |
| --- | --- | --- | --- |
| round never forgotten | Compute nodes | 1 | 7 |
| epoch key kept | Compute nodes | 1 | 7 |
| releases outlive their round | trainer | 1 | 7 |
| round kept by its client | clients | 1 | 7 |
| floors not asked about | Compute nodes | 1 | 2 |
| certificates never end | all | 1 | 2 |
| old ledger believed | clients | 1 | 4 |
| used number let in | Compute nodes | 1 | 4 |
| contribution never resent | clients | 1 | 11 |
| partial sum never resent | Compute nodes | 1 | 11 |
| lists never resent | Compute nodes | 1 | 11 |
| close never repeated | trainer | 1 | 11 |
| announcement never repeated | trainer | 1 | 11 |
| no word of progress | Compute nodes | 1 | 11 |
"""

from __future__ import annotations

from typing import Any

from dca_proto.core.charges import SeenCharges
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import ANNOUNCEMENTS, ROUNDS
from dca_proto.core.compute import ComputeActor
from dca_proto.core.compute_round import ENDS, RELEASED
from dca_proto.core.effects import Effect, Forget, Send, SetTimer
from dca_proto.core.events import Timer
from dca_proto.core.facts import LedgerReused
from dca_proto.core.machine import RESEND
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.trainer_round import COLLECTING, RELEASES
from dca_proto.crypto.keyring import TABLE as EPOCHS
from dca_proto.privacy.policy import Floors


def without(kind: type, *tables: str) -> Any:
    """A class whose actors never delete what is in some tables."""

    class Keeps(kind):  # type: ignore[misc]
        def handle(self, event: Any, now_ms: int) -> list[Effect]:
            effects = super().handle(event, now_ms)
            return [one for one in effects if not (isinstance(one, Forget) and one.table in tables)]

    return Keeps


class NeverForgets(ComputeActor):
    """An ended round stays for ever."""

    def _forget_ms(self, current: Any) -> int:
        return super()._forget_ms(current) * 2


class AnyFloor(ComputeActor):
    """Whatever the owner's floors are."""

    def __init__(self, *given: Any, floors: Floors | None = None, **named: Any) -> None:
        super().__init__(*given, floors=Floors(clients_min=1, honest_min=1), **named)


class NeverReused(SeenCharges):
    """No number was ever used."""

    def is_used(self, slot: int, number: int) -> bool:
        return False


class LetsUsedIn(ComputeActor):
    """A number counts as often as it comes."""

    def _restore(self, records: Any) -> None:
        super()._restore(records)
        self._charges.__class__ = NeverReused


class BelievesOldLedger(ClientActor):
    """Pays on, though nodes have said that its ledger is an old copy."""

    def _on_reused(self, *given: Any) -> list[Effect]:
        effects = super()._on_reused(*given)
        self._outdated = None
        return effects


class SilentOnReuse(ClientActor):
    """Does not tell its owner."""

    def _on_reused(self, *given: Any) -> list[Effect]:
        return [one for one in super()._on_reused(*given) if not isinstance(getattr(one, "fact", None), LedgerReused)]


class SendsOnce(ClientActor):
    """What has no receipt is never sent again."""

    def _resend(self, current: Any, now_ms: int) -> list[Effect]:
        return [one for one in super()._resend(current, now_ms) if not isinstance(one, Send)]


class ReleasesOnce(ComputeActor):
    """A partial sum is sent once, and not when it is asked for."""

    def _words_for_trainer(self, current: Any) -> list[Effect]:
        return [] if current.phase == RELEASED else super()._words_for_trainer(current)


class ListsOnce(ComputeActor):
    """Lists and answers are sent once, and never asked for."""

    def _resend(self, current: Any, now_ms: int) -> list[Effect]:
        return []


class NoProgress(ComputeActor):
    """The trainer hears nothing of what arrives."""

    def _words_for_trainer(self, current: Any) -> list[Effect]:
        return super()._words_for_trainer(current) if current.phase in ENDS else []


class AsksOnce(TrainerActor):
    """The timer that repeats what a trainer says after the close is dropped."""

    def handle(self, event: Any, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        closed = {one.id for one in self._rounds.values() if one.phase != COLLECTING}
        return [one for one in effects if not (isinstance(one, SetTimer) and self._repeats(one.timer, closed))]

    def _repeats(self, timer: Timer, rounds: set[bytes]) -> bool:
        return timer.purpose == RESEND and timer.round_id in rounds


class AnnouncesOnce(AsksOnce):
    """The timer that repeats an announcement is dropped."""

    def _repeats(self, timer: Timer, rounds: set[bytes]) -> bool:
        return timer.purpose == RESEND and timer.round_id not in rounds


PLANTS: dict[str, tuple[str, type]] = {
    "round never forgotten": ("compute", NeverForgets),
    "epoch key kept": ("compute", without(ComputeActor, EPOCHS)),
    "releases outlive their round": ("trainer", without(TrainerActor, RELEASES)),
    "round kept by its client": ("client", without(ClientActor, ROUNDS, ANNOUNCEMENTS)),
    "floors not asked about": ("compute", AnyFloor),
    "old ledger believed": ("client", BelievesOldLedger),
    "owner not told of an old ledger": ("client", SilentOnReuse),
    "used number let in": ("compute", LetsUsedIn),
    "contribution never resent": ("client", SendsOnce),
    "partial sum never resent": ("compute", ReleasesOnce),
    "lists never resent": ("compute", ListsOnce),
    "no word of progress": ("compute", NoProgress),
    "close never repeated": ("trainer", AsksOnce),
    "announcement never repeated": ("trainer", AnnouncesOnce),
}
"""By what goes wrong: the role, and the faulty class."""
