"""What a trainer's store holds, in memory again: rounds, what was released, and charges (DESIGN §8)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.federation import Federation
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.ledger import Charge
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import Signed
from dca_proto.core.params import Limits
from dca_proto.core.records import decoded
from dca_proto.core.sealing import ID_BYTES
from dca_proto.core.trainer_round import RELEASES, ROUNDS, Round, StoredRound


class TrainerRecords:
    """The records of a trainer's store.

    Attributes:
        charges: of its account. rounds: those that can be read now, by id.
        unreadable: ids of those of a replaced federation file, or of a statistic that is not known here now; their
            records stay, should that come back.

    Raises:
        UsageError: a record is damaged.
    """

    def __init__(
        self,
        records: Iterable[tuple[str, bytes, bytes]],
        federation: Federation,
        mechanism: Mechanism,
        limits: Limits,
    ) -> None:
        stored: list[StoredRound] = []
        releases: defaultdict[bytes, list[tuple[bytes, Signed]]] = defaultdict(list)
        self.charges: list[Charge] = []
        for table, key, value in records:
            if table == LEDGER:
                self.charges.append(decoded(LEDGER, value, Charge))
            elif table == ROUNDS:
                stored.append(decoded(ROUNDS, value, StoredRound))
            elif table == RELEASES:
                releases[key[:ID_BYTES]].append((key[ID_BYTES:], decoded(RELEASES, value, Signed)))
        self.rounds: dict[bytes, Round] = {}
        self.unreadable: set[bytes] = set()
        for one in stored:
            round_id = one.request.round_id
            try:
                current = Round.restored(one, federation, limits, releases[round_id])
                current.validated(mechanism, limits)
            except (PeerError, UsageError):
                self.unreadable.add(round_id)
            else:
                self.rounds[round_id] = current
