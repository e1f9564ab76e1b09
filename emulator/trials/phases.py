"""The phases of rounds that an actor enters, read from the effects that store them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dca_proto.protocol.actor import Stored
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.effects import Effect, Persist
from dca_proto.protocol.trainer import round as trainer_round

_STORED: dict[str, type[Stored]] = {
    client_round.ROUNDS: client_round.StoredClientRound,
    compute_round.ROUNDS: compute_round.StoredComputeRound,
    trainer_round.ROUNDS: trainer_round.StoredTrainerRound,
}


def entered(effects: Sequence[Effect]) -> list[str]:
    """Return the phases that these effects store, in order; `COLLECTING` for a contribution or release alone."""
    stored = [effect for effect in effects if isinstance(effect, Persist) and effect.table in _STORED]
    if stored:
        return [msgspec.msgpack.decode(write.value, type=_STORED[write.table]).phase for write in stored]
    keeping = (trainer_round.RELEASES, compute_round.CONTRIBUTIONS)
    keeps = any(isinstance(effect, Persist) and effect.table in keeping for effect in effects)
    return [compute_round.COLLECTING] if keeps else []
