"""Faulty copies of production actors in secure sums, for tests of the handling of a broken invariant.

The faults that sweeps must catch are in `scripts/planted_faults.toml`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dca_proto.protocol.announcement import seal_answer
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import ComputeRound
from dca_proto.protocol.effects import Address, Channel, Effect, Report, Send
from dca_proto.protocol.facts import Released, RoundCompleted
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.messages import Body, PartialSum, Signed


class SecondRelease(ComputeNode):
    """Sends a second partial sum, like one over a set with one client fewer."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            self.first = body
        return super()._sign(body)

    def _release_when_complete(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        opened, effects = current.opened, super()._release_when_complete(current, now_ms)
        if not any(isinstance(one, Report) and isinstance(one.fact, Released) for one in effects):
            return effects
        second = msgspec.structs.replace(self.first, vector=bytes(len(self.first.vector)))
        word = seal_answer(super()._sign(second), opened, self._random)
        return [*effects, Send(Address(Channel.TRAINER, current.stored.trainer), current.id, word)]


class AddsOne(ComputeNode):
    """Adds one grid unit to the first coordinate."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            first = (int.from_bytes(body.vector[:8], "little") + 1) % 2**64
            body = msgspec.structs.replace(body, vector=first.to_bytes(8, "little") + body.vector[8:])
        return super()._sign(body)


class NeverTells(Trainer):
    """Stores the result without reporting it."""

    def _complete(self, *given: Any) -> list[Effect]:
        effects = super()._complete(*given)
        return [one for one in effects if not (isinstance(one, Report) and isinstance(one.fact, RoundCompleted))]
