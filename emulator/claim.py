"""The claim that attacks test: how many take part in a secure sum, and what is promised to each client."""

from __future__ import annotations

from typing import Any

import msgspec

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.kinds import ValidatedRound
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import Ask, AskSecureSum, OpenRound
from emulator.counts import check_counts

VICTIM = 0
"""The client that is attacked."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """N, T, c and M, and what is claimed at δ: ε."""

    clients: int = 10
    tolerated: int = 3
    colluders: int = 0
    computes: int = 3
    epsilon: float = 1.0
    delta: float = 1e-6

    @property
    def honest(self) -> int:
        """N - T - 1: how many noises must hide a client."""
        return self.clients - self.tolerated - 1

    @property
    def needed(self) -> int:
        """n_min."""
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
        """The kind of the round, with these Compute nodes where it has any."""
        return AskSecureSum(computes=computes, tolerated=self.tolerated, colluders=self.colluders)

    def question(self, **fields: Any) -> dict[str, Any]:
        """The fields of `OpenRound` but for the round's id and Compute nodes."""
        terms = {"epsilon": self.epsilon, "delta": self.delta, "fraction_bits": FRACTION_BITS}
        return {**terms, "clients_expected": self.clients, **fields}

    def plan(self, **question: Any) -> tuple[OpenRound, ValidatedRound]:
        """A round, and its numbers as every participant works them out. Raises `UsageError` where there are none."""
        nodes = tuple(place.to_bytes(ID_BYTES, "big") for place in range(self.computes))
        request = OpenRound(round_id=bytes(ID_BYTES), ask=self.ask(nodes), **question)
        return request, request.draft(EXACT, Limits())[1]


def box_of(columns: int, bound: float) -> dict[str, Any]:
    """The public parameters of a statistic over so many columns, each within ±bound."""
    names = [f"x{index}" for index in range(columns)]
    return {"columns": names, "centre": [0.0] * columns, "scale": [1.0] * columns, "bound": [bound] * columns}
