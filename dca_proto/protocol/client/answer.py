"""What a client answers to an announcement: consent or not, and the message for it (DESIGN §4.3, §4.4, §5).

Consent compares an announcement with the policy, the certificate, the open rounds and the budget. It looks at no row.
What depends on the announcement and the policy alone is worked out once in a process: each of many clients with one
policy says the same. What is sent is the statistic with noise, for the holder or for the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import Identity, Random, actor_id
from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.charges import NUMBER_MAX, WINDOW
from dca_proto.protocol.contribution import Outbound, make_contribution
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.kinds import ValidatedRound
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy, Refusal
from dca_proto.protocol.release import make_release, randomiser_of
from dca_proto.protocol.sessions import OwnSession
from dca_proto.protocol.wire.messages import Announcement, Body, Certificate, Signed
from dca_proto.statistics.contribution import contribution, counted_rows

Rows = Callable[[tuple[str, ...]], NDArray[np.float64]]
"""A client's data: returns the rows, shape (m, number of columns), of the named columns. NaN marks a missing value."""


class Composer(msgspec.Struct, frozen=True, eq=False):
    """Makes one client's messages of statistic and noise. It signs with the client's identity."""

    rows: Rows
    session: OwnSession
    mechanism: Mechanism
    identity: Identity
    certificate: Certificate
    sign: Callable[[Body], Signed]
    random: Random

    def compose(self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> tuple[Outbound, list[str]]:
        """The message for the round's holder, and the type of the first error of the data, if there was one.

        `charge` is the number in the ledger of the charge that pays.
        """
        value, rows, trouble = self._value(validated, opened.body)
        if not validated.terms.is_summed:
            made = make_release(
                value,
                rows,
                randomiser=randomiser_of(validated, self.mechanism),
                opened=opened,
                identity=self.identity,
                certificate=self.certificate,
                charge=charge,
                sign=self.sign,
                random=self.random,
            )
            return made, trouble
        holder, keys = opened.holder(self.identity.id), self.session.pair_keys(opened.epochs)
        made = make_contribution(
            value,
            validated=validated,
            mechanism=self.mechanism,
            identity=self.identity,
            hello=self.session.hash,
            round_id=opened.body.round_id,
            announcement_hash=opened.hash,
            charge=charge,
            holder=holder.id,
            holder_key=keys[opened.computes.index(holder.id)],
            pair_keys=keys,
            random=self.random,
        )
        return made, trouble

    def _value(self, validated: ValidatedRound, body: Announcement) -> tuple[NDArray[np.int64], int, list[str]]:
        """The client's value, and how many rows it is of, whatever is in them.

        Data that cannot be read count as zero, and so does a row on which the statistic fails: taking part never
        depends on rows.
        """
        statistic = validated.statistic
        value, counted = None, 0
        failures: list[Exception] = []
        try:
            rows = self.rows(statistic.columns)
            counted = counted_rows(statistic, len(rows), body.rows_max)
            value = contribution(statistic, rows, body.rows_max, body.fraction_bits, failures=failures)
        except Exception as error:  # whatever a data source does
            failures.append(error)
        if value is None:
            value = np.zeros(statistic.dimension, dtype=np.int64)
        return value, counted, [type(error).__name__ for error in failures[:1]]  # without texts, which may hold data


class Consent(msgspec.Struct, frozen=True, eq=False):
    """Decides whether one client takes part in a round.

    `mechanism` is the one that it offers for sums, `columns` are the names of its data's columns.
    """

    policy: Policy
    mechanism: Mechanism
    limits: Limits
    certificate: Certificate
    columns: frozenset[str]

    def to_terms(self, opened: OpenedAnnouncement, federation: Federation) -> ValidatedRound | Refusal:
        """The round's numbers, or why every client with this policy and these columns refuses it.

        The announcement was opened by `federation`, whose Compute nodes are to be trusted.
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
        """Why this client's certificate, open rounds or ledger forbid the round; None if they allow it.

        `unsent` are the charge numbers of what has no receipt yet.
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
