"""The charge numbers that a Compute node has seen of each client: what notices a restored ledger (DESIGN §4.4, §7).

A client numbers its charges 1, 2, ... and never uses a number twice. One that was restored from an old copy has
forgotten what it spent since, and goes on with numbers that were used before. As in IPsec's protection against replays
(RFC 4303, section 3.4.3; RFC 6479), a node remembers of each client the highest number, and which of the last `WINDOW`
it has seen: concurrent rounds may come in any order, but no number twice, and none from long ago.

Numbers are all that is compared. A number whose shares never arrived is new when it comes again, also after later ones;
and a forgotten number may be charged anew for a round that costs less (DESIGN §9).

A record is 32 bytes with its key, and is never forgotten: a copy may come back after years. There are no more of them
than clients were ever enrolled, for only an authentic share of a client on a roster leaves one.
"""

from __future__ import annotations

from collections.abc import Iterable

from dca_proto.core.effects import Persist
from dca_proto.core.errors import PeerError
from dca_proto.core.messages import Behind
from dca_proto.core.records import sized

TABLE = "charges"
WINDOW = 64
_MASK = (1 << WINDOW) - 1
_RECORD_BYTES = 16


def check_behind(word: Behind, number: int, next_number: int) -> None:
    """At a client: whether a Compute node's word can be true that a charge's number was used before.

    Args:
        number: of the charge. next_number: of the next one in its ledger.

    Raises:
        PeerError: the word is about another number, or the share was merely late.
    """
    if word.charge != number:
        raise PeerError("ledger", found=f"charge {word.charge}", expected=f"charge {number}, which was sent")
    if word.highest < next_number and word.highest - number >= WINDOW:
        late = f"a share {word.highest - number} charges late"  # all of these this ledger has made itself
        raise PeerError("ledger", found=late, expected="a number that was used twice")


class SeenCharges:
    """Per client: the highest charge number seen, and which of the last `WINDOW`.

    A client's window is one integer: the highest number, and below it a mask of `WINDOW` bits, whose bit i says that
    the number i below the highest was seen.

    Args:
        records: (table, key, value) of the store.
    """

    def __init__(self, records: Iterable[tuple[str, bytes, bytes]]) -> None:
        stored = ((key, sized(TABLE, value, _RECORD_BYTES)) for table, key, value in records if table == TABLE)
        self._windows = {key: int.from_bytes(value, "big") for key, value in stored}

    def highest(self, client: bytes) -> int:
        """The highest number seen of a client; 0 before the first."""
        return self._windows.get(client, 0) >> WINDOW

    def check(self, client: bytes, number: int) -> None:
        """Raises `PeerError("ledger-rollback")` for a number that was seen before, or that is too old to tell."""
        window = self._windows.get(client, 0)
        highest = window >> WINDOW
        age = highest - number
        if age >= WINDOW or (age >= 0 and window >> age & 1):
            raise PeerError("ledger-rollback", found=f"charge {number} again", expected=f"one above {highest}")

    def note(self, client: bytes, number: int) -> Persist:
        """Remember a number that `check` lets through; durable together with the share that carried it."""
        window = self._windows.get(client, 0)
        ahead = number - (window >> WINDOW)
        if ahead <= 0:
            window |= 1 << -ahead
        else:
            mask = (window & _MASK) << ahead & _MASK if ahead < WINDOW else 0
            window = number << WINDOW | mask | 1
        self._windows[client] = window
        return Persist(TABLE, client, window.to_bytes(_RECORD_BYTES, "big"))
