"""How many Compute nodes a client takes for corrupt, and when aborts return a charge (DESIGN §2.7, §4.8)."""

from __future__ import annotations

from dca_proto.protocol.client.round import StoredClientRound
from dca_proto.protocol.effects import Effect, Persist
from dca_proto.protocol.federation import ALL_BUT_ONE, Federation
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.records import Records, sized

PIN = "pin"
"""The store's table of the largest p that the client has seen."""
_PIN_BYTES = 2


class Trust:
    """A client's trust in the Compute nodes: the largest p of all federation files that it followed, and its policy."""

    def __init__(self, policy: Policy, records: Records) -> None:
        self._policy = policy
        pins = [sized(PIN, value, _PIN_BYTES) for table, _, value in records if table == PIN]
        self._pinned = max([int.from_bytes(value, "big") for value in pins], default=0)
        self._counted: tuple[Federation, int] | None = None  # the last file, and its p

    def pin(self, federation: Federation) -> list[Effect]:
        """Remember a file's p if it is the largest; only the client's owner accepts a smaller one."""
        accepted = self._policy.accept_p or ALL_BUT_ONE
        pinned = max(min(self._pinned, accepted), federation.stated)
        if pinned == self._pinned:
            return []
        self._pinned, self._counted = pinned, None
        return [Persist(PIN, b"", pinned.to_bytes(_PIN_BYTES, "big"))]

    def p(self, federation: Federation) -> int:
        """Return how many Compute nodes may be corrupt."""
        if self._counted is None or self._counted[0] is not federation:
            self._counted = federation, federation.p_beside(self._pinned)
        return self._counted[1]

    def returns(self, stored: StoredClientRound, aborted_by: tuple[bytes, ...], federation: Federation) -> bool:
        """Return True if these nodes' aborts return a round's charge.

        More than p of them are in the federation file, by what p was when it was charged and by what it is now, and
        they include all nodes that the policy trusted then or trusts now.
        """
        present = federation.computes_among(aborted_by)
        missing = self._policy.missing_computes(federation, present)
        enough = len(present) > max(stored.colluding, self.p(federation))
        return enough and not missing and present.issuperset(stored.trusted)
