"""What a backup of a store has, and what a store that is made from it begins with (DESIGN §8.1).

A copy of a store's files would go on as if nothing had happened since. So a backup has no epoch secret, no contribution
and no open round, and a restored store begins in a state that is safe whatever it has forgotten: a client asks the
Compute nodes for its charges first (`client.asking`), a node has a new epoch key, and a trainer's account counts what
its owner states, or all of its budget.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.charges import TABLE as CHARGES
from dca_proto.protocol.client.round import DECLINES
from dca_proto.protocol.client.trust import PIN
from dca_proto.protocol.federation import FILES, Federation, newest_file
from dca_proto.protocol.keyring import SEEN
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.policy import BudgetLimit, Policy
from dca_proto.protocol.records import decoded, loaded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.wire.codec import encode
from dca_proto.wording import moment

RESTORED = "restored"
"""The store's table of the mark of a client that has to ask first, and the statistic of what it then books."""
_TABLES = {
    "client": (LEDGER, DECLINES, FILES, PIN, SEEN, RESTORED),
    "compute": (CHARGES, SESSIONS, FILES, SEEN),
    "trainer": (LEDGER, FILES),
}
Rows = list[tuple[str, bytes, bytes]]


class Mark(msgspec.Struct, frozen=True):
    """The record of a client that has been restored and has not heard all Compute nodes. Its backup has it.

    Attributes:
        backup_ms: when the backup was made; the oldest one, if the store was restored twice before it knew all.
        computes: ids of the Compute nodes of that time, by the file that the client then had.
        sums_only: True if its policy allowed secure sums only at that time.
        epsilon, delta: the most that its policy allowed a round at that time.
    """

    backup_ms: int
    computes: tuple[bytes, ...]
    sums_only: bool = False
    epsilon: float = 0.0
    delta: float = 0.0


def kept_in_backup(
    role: str, records: Rows, federation: Federation, backup_ms: int, policy: Policy | None = None
) -> Rows:
    """Return the records of a store that its backup has.

    Args:
        federation: the file given to the actor; a newer one in its store replaces it. policy: a client's.
    """
    kept = [
        (table, key, _without_sessions(value) if table == SESSIONS else value)
        for table, key, value in records
        if table in _TABLES[role]
    ]
    if role != "client" or mark_of(kept) is not None:  # a client with a mark has paid for nothing since that backup
        return kept
    limits = policy or Policy()
    nodes = tuple(member.id for member in newest_file(federation, kept).computes)
    mark = Mark(backup_ms, nodes, limits.sums_only, limits.epsilon_per_round_max, limits.delta_max)
    return [*kept, (RESTORED, b"", msgspec.msgpack.encode(mark))]


def _without_sessions(record: bytes) -> bytes:
    """Return a Compute node's record of a client without its sessions: its slot, which the charge numbers need."""
    stored = decoded(SESSIONS, record, StoredSession)
    return encode(StoredSession(stored.slot, name=stored.name, registrar=stored.registrar))


def spent_since(
    records: Rows, limit: BudgetLimit, epsilon: float | None, round_id: bytes, trainer: bytes, now_ms: int
) -> tuple[str, bytes, bytes]:
    """Return the charge of what a restored trainer has spent since its backup, by its owner, for its account.

    Args:
        epsilon: of Gaussian rounds, at the account's δ; None books all that the account allows.
        round_id: 16 fresh random bytes.

    Raises `UsageError` for an ε that is no number above 0.
    """
    ledger = Ledger(loaded(records, LEDGER, Charge).values())
    amount = limit.epsilon if epsilon is None else epsilon
    if not 0 < amount <= limit.epsilon:
        expected = f"a number above 0, and at most the account's {at_most(limit.epsilon)}"
        raise UsageError(f"spent: found epsilon {at_least(amount)}, expected {expected}")
    cost = (mu_of(amount, limit.delta), amount, limit.delta)
    charge = Charge(round_id, RESTORED, trainer, *cost, now_ms, ledger.next_number)
    return LEDGER, round_id, msgspec.msgpack.encode(charge)


def mark_of(records: Iterable[tuple[str, bytes, bytes]]) -> Mark | None:
    """Return a store's mark; None if its client need not ask. Raises `UsageError` if it cannot be read."""
    return loaded(records, RESTORED, Mark).get(b"")


def words(mark: Mark) -> str:
    """Return a mark for people."""
    return f"a store that was restored from the backup of {moment(mark.backup_ms)}"
