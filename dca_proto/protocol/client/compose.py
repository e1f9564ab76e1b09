"""What a client sends for a round: its statistic, with noise, for its holder or for the trainer (DESIGN §4.4, §5)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import Identity, Random
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.contribution import Outbound, make_contribution
from dca_proto.protocol.release import make_release, randomiser_of
from dca_proto.protocol.sessions import OwnSession
from dca_proto.protocol.validated import ValidatedRound
from dca_proto.protocol.wire.messages import Announcement, Body, Certificate, Signed
from dca_proto.statistics.contribution import contribution, counted_rows

Rows = Callable[[tuple[str, ...]], NDArray[np.float64]]
"""A client's data: returns the rows, shape (m, number of columns), of the named columns. NaN marks a missing value."""


class Composer(msgspec.Struct, frozen=True, eq=False):
    """One client's.

    Attributes:
        rows: reads its data. session: the keys that it shares with Compute nodes.
        mechanism: of its noise. sign: with its identity. random: the operating system's generator.
    """

    rows: Rows
    session: OwnSession
    mechanism: Mechanism
    identity: Identity
    certificate: Certificate
    sign: Callable[[Body], Signed]
    random: Random

    def compose(self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> tuple[Outbound, list[str]]:
        """The message for the round's holder, and the type of the first error of the data, if there was one.

        Args:
            charge: the number in the ledger of the charge that pays.
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
