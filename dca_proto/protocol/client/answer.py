"""A client's answer to an announcement: its consent, and the message it sends (DESIGN §4.3, §4.4, §5).

Consent compares an announcement with the policy, the certificate, the open rounds and the budget. It reads no row. The
part that depends only on the announcement and the policy is computed once per process, for all clients with that
policy. The message holds the statistic with noise, for the holder or for the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import KEY_BYTES, Identity, Random, derive
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement, seal_answer
from dca_proto.protocol.charges import NUMBER_MAX, WINDOW
from dca_proto.protocol.client.rows import MemberRows, Rows
from dca_proto.protocol.contribution import (
    ClientMessage,
    contribution_id,
    hedged_root,
    make_contribution,
    noise_key,
    value_bits,
)
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.own_session import OwnSession
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy, Refusal
from dca_proto.protocol.release import randomised, receipt_tags
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.messages import Announcement, Body, Certificate, Release, Signed
from dca_proto.statistics.categories import lists_apart
from dca_proto.statistics.contribution import contribution, counted_rows
from dca_proto.wording import counted, moment


class Composer(msgspec.Struct, frozen=True, eq=False):
    """Composes a client's contributions, releases and reports. `sign` signs with the client's identity."""

    rows: Rows
    session: OwnSession
    mechanism: Mechanism
    identity: Identity
    certificate: Certificate
    sign: Callable[[Body], Signed]
    random: Random

    def compose(
        self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[ClientMessage, list[str]]:
        """Return the message for the round's holder, and the type of the data's first error in a list (or none).

        `charge` is the number of the charge in the client's ledger.
        """
        value, rows, errors = self._value(validated, opened.body, value_bits(validated, opened.body.fraction_bits))
        if not validated.kind.is_summed:
            return self._release(value, rows, opened, validated, charge), errors
        holder, keys = opened.holder(self.identity.id), self.session.pair_keys(opened.epochs)
        message = make_contribution(
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
            failures=errors,
        )
        return message, errors

    def _release(
        self, value: NDArray[np.int64], rows: int, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> ClientMessage:
        """Randomise, sign and seal the client's value, which covers `rows` rows."""
        root = hedged_root(self.identity, self.random(KEY_BYTES), b"", opened.hash, charge, value)
        release_id = contribution_id(root)
        rows_stated, vector = randomised(validated, self.mechanism, value, rows, noise_key(root))
        receipt_key = derive(root, labels.RECEIPT_KEY)
        body = Release(
            opened.body.round_id, opened.hash, self.certificate, rows_stated, release_id, receipt_key, vector
        )
        return ClientMessage(release_id, seal_answer(self.sign(body), opened, self.random), *receipt_tags(receipt_key))

    def _value(
        self, validated: ValidatedRound, body: Announcement, fraction_bits: int
    ) -> tuple[NDArray[np.int64], int, list[str]]:
        """Return the client's value on a grid, the number of rows that it covers, and the type of the first error.

        Data that cannot be read count as zero, and so does a row on which the statistic fails. So whether the client
        takes part never depends on its rows.
        """
        statistic = validated.statistic
        value, covered = None, 0
        failures: list[Exception] = []
        try:
            if isinstance(self.rows, MemberRows):
                value, covered = self.rows.value(statistic, body.rows_max, fraction_bits) or (None, 0)
            if value is None:
                rows = self.rows(statistic.columns)
                covered = counted_rows(statistic, len(rows), body.rows_max)
                value = contribution(statistic, rows, body.rows_max, fraction_bits, failures=failures)
        except Exception as error:  # a data source may raise anything
            failures.append(error)
        if value is None:
            value = np.zeros(statistic.dimension, dtype=np.int64)
        return value, covered, [type(error).__name__ for error in failures[:1]]  # no messages: they may contain data


class Consent(msgspec.Struct, frozen=True, eq=False):
    """Decides whether a client takes part in a round.

    `mechanism` is the one that it offers for sums; `columns` are the names of its data's columns. Its rows are of the
    last `window_s` seconds; 0 without a window.
    """

    policy: Policy
    mechanism: Mechanism
    limits: Limits
    certificate: Certificate
    columns: frozenset[str]
    window_s: int = 0

    def to_terms(self, opened: OpenedAnnouncement, federation: Federation, p: int) -> ValidatedRound | Refusal:
        """Return the validated round, or a refusal.

        `federation` is the file with which the announcement was opened. `p` is how many Compute nodes may be corrupt,
        as this client counts: one of the round's nodes must be honest.
        """
        if federation.revoked:  # a registrar that is no longer named is among them
            try:
                revoked = federation.is_revoked(federation.certified_client(self.certificate))
            except PeerError:
                revoked = True
            if revoked:
                found = f"{federation.title} revokes this client or its registrar"
                return Refusal("revoked", found, "a client that is enrolled")
        key = (id(self.policy), id(self.mechanism), self.limits.dimension_max, self.columns, self.window_s)
        cached = opened.consents.get(key)  # of all clients with this policy, limit and columns
        if cached is None:  # the entry keeps policy and mechanism alive, so that no other object gets their ids
            cached = opened.consents[key] = (self._to_terms(opened, federation), self.policy, self.mechanism)
        if opened.body.kind.is_summed and len(opened.computes) <= p and not isinstance(cached[0], Refusal):
            nodes = counted(len(opened.computes), "Compute node")
            why = f"at least {p + 1}, because {p} of them may be corrupt"
            pinned = f" by an earlier federation file; with accept_p = {federation.p}, {federation.p + 1} are enough"
            return Refusal("p", nodes, why + (pinned if p > federation.p else ""))
        return cached[0]

    def _to_terms(self, opened: OpenedAnnouncement, federation: Federation) -> ValidatedRound | Refusal:
        try:
            validated = opened.validated(self.mechanism, self.limits)
            validated.statistic.require_libraries()  # without them, its contribution would be zero
        except UsageError as error:
            return Refusal("announcement", str(error), "a valid round that this client can compute")
        missing = [column for column in validated.statistic.columns if column not in self.columns]
        if missing:
            apart = next(filter(None, (lists_apart(column, self.columns) for column in missing)), None)
            lacking = f"no column {', '.join(missing)}", "columns that this client has"
            return Refusal("columns", *(apart or lacking))
        if opened.body.window_s not in (0, self.window_s):
            return Refusal("window", f"a window of {_window(opened.body.window_s)}", _window(self.window_s))
        missing_computes = self.policy.missing_computes(federation, opened.computes)
        return self.policy.check_announcement(opened.body, validated, missing_computes) or validated

    def to_charge(
        self, body: Announcement, validated: ValidatedRound, ledger: Ledger, pending: Collection[int], now_ms: int
    ) -> Refusal | None:
        """Return a refusal if this client's certificate, open rounds or ledger forbid the round, else None.

        `pending` are the charge numbers of contributions to secure sums without a receipt.
        """
        if self.certificate.expires_ms <= body.commit_by_ms:
            found = f"a certificate until {moment(self.certificate.expires_ms)}"
            return Refusal("certificate", found, f"one that outlasts the round, which ends {moment(body.commit_by_ms)}")
        if pending and ledger.next_number - min(pending) >= WINDOW:
            found = f"charge {min(pending)} without a receipt, and {ledger.next_number} next"
            return Refusal("open-rounds", found, f"fewer than {WINDOW} charges since the oldest open one")
        if ledger.next_number > NUMBER_MAX:
            return Refusal("charge-numbers", f"{NUMBER_MAX} charges", "a new enrolment: all numbers are used")
        return self.policy.check_budget(validated.cost, ledger, now_ms)


def _window(window_s: int) -> str:
    """Return a window for people: its seconds, since two that differ may be equal to two digits."""
    return f"{window_s:,} s" if window_s else "0: this client's source has no window"
