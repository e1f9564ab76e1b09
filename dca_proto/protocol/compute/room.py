"""What the rounds of a Compute node take: their number and bytes, of each trainer and in all (DESIGN §7).

Open rounds have their announcement, invited ids, contributions and lists in memory and in the store. Of an ended round,
the record remains: its hash, its members, and the aborts. A released sum and the list of its contributions also remain
until `Timing.abort_grace_ms` after the end.
"""

from __future__ import annotations

from dca_proto.errors import PeerError
from dca_proto.protocol.compute.round import ComputeRound
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.room import Amounts, Rooms, Used

_RECORD_BYTES = 512  # of an ended round without its aborts


class NodeRoom(Rooms[ComputeRound]):
    """The used parts of all limits on a Compute node's rounds."""

    def __init__(self) -> None:
        self.open, self.announcements, self.contributions = Used(), Used(), Used()
        self.rounds, self.records = Used(), Used()

    def amounts(self, current: ComputeRound) -> Amounts:
        is_open = current.is_open
        records = 0 if is_open else _RECORD_BYTES + current.aborts_bytes
        return (int(is_open), current.announcement_bytes, current.contributions_bytes, 1, records)

    def note_contributions(self, current: ComputeRound) -> None:
        """Count a round's contributions, lists and answers as they are now; a round has up to a million of them."""
        is_open, announcement, before, *others = current.amounts
        after = current.contributions_bytes
        self.contributions.add(current.stored.trainer, after - before)
        current.amounts = (is_open, announcement, after, *others)

    def require_record(self, limits: Limits, trainer: bytes, more: int = _RECORD_BYTES, *, rounds: int = 1) -> None:
        """Check that `more` bytes of records have room, by default the record of one more round.

        Raises `PeerError`: without a record, nothing is signed.
        """
        refusal = self.rounds.refusal(limits.node_rounds, trainer, rounds)
        _require(refusal or self.records.refusal(limits.node_records, trainer, more))

    def is_half_full(self, limits: Limits, trainer: bytes) -> bool:
        """Return True if records take more than half of the room, of this trainer or in all."""
        counts = ((self.rounds, limits.node_rounds), (self.records, limits.node_records))
        return any(2 * u.of(trainer) > room.most_of_trainer or 2 * u.total > room.most for u, room in counts)

    def refusal(self, limits: Limits, trainer: bytes, announcement_bytes: int) -> Refusal | None:
        """Return a refusal if one more open round has no room; its record has."""
        return (
            self.open.refusal(limits.node_open, trainer, 1)
            or self.announcements.refusal(limits.node_announcements, trainer, announcement_bytes)
            or self.contributions.refusal(limits.node_contributions, trainer, 1)
        )

    def require(self, limits: Limits, current: ComputeRound, more: int) -> None:
        """Check that `more` bytes of contributions or lists of a round have room. Raises `PeerError`."""
        _require(self.contributions.refusal(limits.node_contributions, current.stored.trainer, more))


def _require(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise PeerError("room", found=refusal.found, expected=refusal.expected)
