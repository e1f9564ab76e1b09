"""What a client agrees to: its policy, certificate, open rounds and budget against an announcement (DESIGN §4.3).

Consent looks at no row. What depends on the announcement and the policy alone is worked out once in a process: each of
many clients with one policy says the same.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dca_proto.crypto.sealing import actor_id
from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.charges import NUMBER_MAX, WINDOW
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy, Refusal
from dca_proto.protocol.validated import ValidatedRound
from dca_proto.protocol.wire.messages import Announcement, Certificate


class Consent(msgspec.Struct, frozen=True, eq=False):
    """One client's.

    Attributes:
        policy: its limits. mechanism: that it offers for sums. columns: that its data have.
        certificate: its own.
    """

    policy: Policy
    mechanism: Mechanism
    limits: Limits
    certificate: Certificate
    columns: frozenset[str]

    def to_terms(self, opened: OpenedAnnouncement, federation: Federation) -> ValidatedRound | Refusal:
        """The round's numbers, or what every client with this policy and these columns has against it.

        Args:
            federation: by which it was opened; its Compute nodes are to be trusted.
        """
        if federation.is_revoked(actor_id(self.certificate.client_key)):
            return Refusal("revoked", f"{federation.title} revokes this client", "a client that is enrolled")
        key = (id(self.policy), id(self.mechanism), self.columns)
        found = opened.consents.get(key)
        if found is None:  # policy and mechanism are kept with it, so that their ids stay theirs
            found = opened.consents[key] = (self._to_terms(opened, federation), self.policy, self.mechanism)
        return found[0]

    def _to_terms(self, opened: OpenedAnnouncement, federation: Federation) -> ValidatedRound | Refusal:
        try:
            validated = opened.validated(self.mechanism, self.limits)
            validated.statistic.require_libraries()  # or else its contribution would be zero
        except UsageError as error:
            return Refusal("announcement", str(error), "a round that can be held")
        missing = [column for column in validated.statistic.columns if column not in self.columns]
        if missing:
            return Refusal("columns", f"no column {', '.join(missing)}", "columns that this client has")
        without = self.policy.missing_computes(federation, opened.computes)
        return self.policy.check_announcement(opened.body, validated, without) or validated

    def to_charge(
        self, body: Announcement, validated: ValidatedRound, ledger: Ledger, unsent: Collection[int], now_ms: int
    ) -> Refusal | None:
        """What this client's certificate, open rounds and ledger say.

        Args:
            unsent: charge numbers of what has no receipt yet.
        """
        if self.certificate.expires_ms <= body.commit_by_ms:
            found = f"a certificate that ends at {self.certificate.expires_ms}"
            return Refusal("certificate", found, f"one that outlasts the round, {body.commit_by_ms}")
        if unsent and ledger.next_number - min(unsent) >= WINDOW:
            found = f"charge {min(unsent)} without a receipt, and {ledger.next_number} next"
            return Refusal("open-rounds", found, f"fewer than {WINDOW} charges since the oldest open one")
        if ledger.next_number > NUMBER_MAX:
            return Refusal("charge-numbers", f"{NUMBER_MAX} charges", "a new enrolment: all numbers are used")
        return self.policy.check_budget(validated.price, ledger, now_ms)
