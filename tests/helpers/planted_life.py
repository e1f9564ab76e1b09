"""Faulty copies of production actors that never repeat a message as they must.

Faults of life cycle and completion that sweeps must catch are in `scripts/planted_faults.toml`.
"""

from __future__ import annotations

from typing import Any

from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import RELEASED
from dca_proto.protocol.effects import Effect
from emulator.trials.scenario import Fault


def _of(kind: str, actor: str, **more: Any) -> Fault:
    return Fault(kind=kind, actor=actor, for_ms=500, **more)


class ReleasesOnce(ComputeNode):
    """Sends a partial sum once, and not on request."""

    def _messages_for_trainer(self, current: Any) -> list[Effect]:
        return [] if current.phase == RELEASED else super()._messages_for_trainer(current)


class ListsOnce(ComputeNode):
    """Sends lists and answers once, and never requests them."""

    def _resend(self, current: Any, now_ms: int, *, starts: bool = False) -> list[Effect]:
        return []


HANGS: dict[str, tuple[str, type, Fault]] = {
    "partial sum never resent": ("compute", ReleasesOnce, _of("kill-before", "trainer", phase="done")),
    "lists never resent": ("compute", ListsOnce, _of("kill-torn", "compute 1", phase="answered")),
}
"""By the message that is never repeated: the role, the faulty class, and a fault that makes it matter."""
