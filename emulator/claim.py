"""The claim that attacks test: the size of a secure sum, and the privacy that it promises each client."""

from __future__ import annotations

from typing import Any

import msgspec

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy.accounting import DELTA
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.kinds import ValidatedRound
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import Ask, AskSecureSum, OpenRound
from emulator.counts import check_counts

VICTIM = 0
"""The client that is attacked."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """N, T, c and M of a round, and the (ε, δ) that it claims."""

    clients: int = 10
    tolerated: int = 3
    colluders: int = 0
    computes: int = 3
    epsilon: float = 1.0
    delta: float = DELTA

    @property
    def honest(self) -> int:
        """N - T - 1, the number of noises that must hide a client."""
        return self.clients - self.tolerated - 1

    @property
    def needed(self) -> int:
        """n_min, the number of contributions that a round needs."""
        return self.clients - self.tolerated + self.colluders

    @property
    def swarm(self) -> str:
        """Who takes part, as text."""
        return f"N = {self.clients}, T = {self.tolerated} (c = {self.colluders}), M = {self.computes}"

    @property
    def promise(self) -> str:
        """ε and δ, as text."""
        return claim_words(self.epsilon, self.delta)

    def check_counts(self, dropped: int = 0) -> None:
        """Refuse numbers that no round can have. Raises `UsageError`."""
        check_counts(self.clients, self.computes, self.tolerated, self.colluders, dropped)

    def ask(self, computes: tuple[bytes, ...]) -> Ask:
        """Return the terms of the request, with these Compute nodes if the round has any."""
        return AskSecureSum(computes=computes, tolerated=self.tolerated, colluders=self.colluders)

    def request_fields(self, **fields: Any) -> dict[str, Any]:
        """Return the fields of `OpenRound`, except the round's id and Compute nodes."""
        terms = {"epsilon": self.epsilon, "delta": self.delta, "fraction_bits": FRACTION_BITS}
        return {**terms, "clients_expected": self.clients, **fields}

    def plan(self, **fields: Any) -> tuple[OpenRound, ValidatedRound]:
        """Return a request, and the round as every participant validates it. Raises `UsageError` if it is refused."""
        nodes = tuple(place.to_bytes(ID_BYTES, "big") for place in range(self.computes))
        request = OpenRound(round_id=bytes(ID_BYTES), ask=self.ask(nodes), **fields)
        return request, request.draft(EXACT, Limits())[1]


def box_of(columns: int, bound: float) -> dict[str, Any]:
    """Return the public parameters of a statistic over `columns` columns, each within ±bound."""
    names = [f"x{index}" for index in range(columns)]
    return {"columns": names, "centre": [0.0] * columns, "scale": [1.0] * columns, "bound": [bound] * columns}
