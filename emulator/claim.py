"""The claim that attacks test: the size of a secure sum, and the privacy that it promises each client."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from dca_proto.aggregate import PublicParameters
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy.accounting import DELTA
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.params import Limits
from dca_proto.protocol.terms import Clients, CountedTerms, Delta, Epsilon, Tolerate
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.kinds import Kind
from emulator.counts import check_dropped

VICTIM = 0
"""The client that is attacked."""


class Claim(CountedTerms, frozen=True, kw_only=True):
    """N, T, c and M of a round, and the (ε, δ) that it claims."""

    clients: Clients = 10
    tolerate: Tolerate = 3
    epsilon: Annotated[Epsilon, Meta(description="Epsilon of the claim to test.")] = 1.0
    delta: Annotated[Delta, Meta(description="Delta of the claim to test.")] = DELTA

    @property
    def swarm(self) -> str:
        """Who takes part, as text."""
        return f"N = {self.clients}, T = {self.tolerate} (c = {self.colluders}), M = {self.computes}"

    @property
    def promise(self) -> str:
        """ε and δ, as text."""
        return claim_words(self.epsilon, self.delta)

    def check_counts(self, dropped: int = 0) -> None:
        """Refuse numbers that no round can have. Raises `UsageError`."""
        self.check_terms()
        check_dropped(dropped, self.clients)

    @property
    def kind(self) -> Kind:
        """The kind of the round, with its terms."""
        return self.secure_sum

    def request_fields(self, **fields: Any) -> dict[str, Any]:
        """Return the fields of `OpenRound`, except the round's id and Compute nodes."""
        terms = {"epsilon": self.epsilon, "delta": self.delta, "fraction_bits": FRACTION_BITS}
        return {"kind": self.kind, **terms, **fields}

    def plan(self, **fields: Any) -> tuple[OpenRound, ValidatedRound]:
        """Return a request, and the round as every participant validates it. Raises `UsageError` if it is refused."""
        count = self.computes if self.kind.is_summed else 0
        nodes = tuple(place.to_bytes(ID_BYTES, "big") for place in range(count))
        request = OpenRound(round_id=bytes(ID_BYTES), computes=nodes, **fields)
        return request, request.draft(EXACT, Limits())[1]


def box_of(columns: int, bound: float) -> PublicParameters:
    """Return the public parameters of a statistic over `columns` columns, each within ±bound."""
    names = [f"x{index}" for index in range(columns)]
    return {"columns": names, "centre": [0.0] * columns, "scale": [1.0] * columns, "bound": [bound] * columns}
