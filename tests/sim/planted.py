"""Faulty copies of production actors in secure sums, for tests of what is done with a broken invariant.

The faults that sweeps must catch are in `scripts/planted_faults.toml`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dca_proto.core.announcement import seal_answer
from dca_proto.core.compute import ComputeActor
from dca_proto.core.compute_round import Round
from dca_proto.core.effects import Address, Channel, Effect, Report, Send
from dca_proto.core.facts import Released, RoundCompleted
from dca_proto.core.messages import Body, PartialSum, Signed
from dca_proto.core.trainer import TrainerActor


class SecondRelease(ComputeActor):
    """Another partial sum follows the first, as one over a set with one client fewer would."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            self.first = body
        return super()._sign(body)

    def _release_when_complete(self, current: Round, now_ms: int) -> list[Effect]:
        opened, effects = current.opened, super()._release_when_complete(current, now_ms)
        if not any(isinstance(one, Report) and isinstance(one.fact, Released) for one in effects):
            return effects
        second = msgspec.structs.replace(self.first, vector=bytes(len(self.first.vector)))
        word = seal_answer(super()._sign(second), opened, self._random)
        return [*effects, Send(Address(Channel.TRAINER, current.stored.trainer), current.id, word)]


class AddsOne(ComputeActor):
    """One grid unit too much in the first coordinate."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            first = (int.from_bytes(body.vector[:8], "little") + 1) % 2**64
            body = msgspec.structs.replace(body, vector=first.to_bytes(8, "little") + body.vector[8:])
        return super()._sign(body)


class NeverTells(TrainerActor):
    """The result is stored, and nobody is told."""

    def _complete(self, *given: Any) -> list[Effect]:
        told = super()._complete(*given)
        return [one for one in told if not (isinstance(one, Report) and isinstance(one.fact, RoundCompleted))]
