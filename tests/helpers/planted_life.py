"""Faulty copies of production actors that break rules of life cycle and completion: they forget, keep or never repeat.

The table has the number of seeds that `dca emulate sweep --seeds 0..` runs until an invariant breaks, and which.

| planted fault | in | seeds | invariant |
| --- | --- | --- | --- |
| round never forgotten | Compute nodes | 5 | 7 |
| epoch key kept | Compute nodes | 5 | 7 |
| releases outlive their round | trainer | 18 | 7 |
| round kept by its client | clients | 5 | 7 |
| floors not asked about | Compute nodes | 52 | 2 |
| old ledger believed | clients | 37 | 4 |
| owner not told of an old ledger | clients | 116 | 4 |

`HANGS` has those that never repeat messages as they must, each with a fault that completion must survive.
"""

from __future__ import annotations

from typing import Any

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ANNOUNCEMENTS, ROUNDS
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import RELEASED
from dca_proto.protocol.effects import Effect, Forget
from dca_proto.protocol.facts import LedgerReused
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.policy import Floors
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.round import RELEASES
from emulator.trials.scenario import Fault


def _of(kind: str, actor: str, **more: Any) -> Fault:
    return Fault(kind=kind, actor=actor, for_ms=500, **more)


def without(kind: type, *tables: str) -> Any:
    """Return a class whose actors never delete from some tables."""

    class Keeps(kind):  # type: ignore[misc]
        def handle(self, event: Any, now_ms: int) -> list[Effect]:
            effects = super().handle(event, now_ms)
            return [one for one in effects if not (isinstance(one, Forget) and one.table in tables)]

    return Keeps


class NeverForgets(ComputeNode):
    """Keeps ended rounds for ever."""

    def _forget_ms(self, current: Any) -> int:
        return super()._forget_ms(current) * 2


class AnyFloor(ComputeNode):
    """Ignores the owner's floors."""

    def __init__(self, *given: Any, floors: Floors | None = None, **named: Any) -> None:
        super().__init__(*given, floors=Floors(clients_min=1, honest_min=1), **named)


class BelievesOldLedger(Client):
    """Keeps paying, although nodes have reported that its ledger is an old copy."""

    def _on_reused(self, *given: Any) -> list[Effect]:
        effects = super()._on_reused(*given)
        self._outdated = None
        return effects


class SilentOnReuse(Client):
    """Does not warn its owner."""

    def _on_reused(self, *given: Any) -> list[Effect]:
        return [one for one in super()._on_reused(*given) if not isinstance(getattr(one, "fact", None), LedgerReused)]


class ReleasesOnce(ComputeNode):
    """Sends a partial sum once, and not on request."""

    def _messages_for_trainer(self, current: Any) -> list[Effect]:
        return [] if current.phase == RELEASED else super()._messages_for_trainer(current)


class ListsOnce(ComputeNode):
    """Sends lists and answers once, and never requests them."""

    def _resend(self, current: Any, now_ms: int, *, starts: bool = False) -> list[Effect]:
        return []


PLANTS: dict[str, tuple[str, type]] = {
    "round never forgotten": ("compute", NeverForgets),
    "epoch key kept": ("compute", without(ComputeNode, EPOCHS)),
    "releases outlive their round": ("trainer", without(Trainer, RELEASES)),
    "round kept by its client": ("client", without(Client, ROUNDS, ANNOUNCEMENTS)),
    "floors not asked about": ("compute", AnyFloor),
    "old ledger believed": ("client", BelievesOldLedger),
    "owner not told of an old ledger": ("client", SilentOnReuse),
}
"""By fault: the role, and the faulty class."""

HANGS: dict[str, tuple[str, type, Fault]] = {
    "partial sum never resent": ("compute", ReleasesOnce, _of("kill-before", "trainer", phase="done")),
    "lists never resent": ("compute", ListsOnce, _of("kill-torn", "compute 1", phase="answered")),
}
"""By the message that is never repeated: the role, the faulty class, and a fault that makes it matter."""
