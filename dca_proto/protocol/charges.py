"""The charge numbers that a Compute node has seen from each client: they expose a restored ledger (DESIGN §4.6).

A client numbers its charges 1, 2, ... and never uses a number twice. A client restored from an old copy has forgotten
its charges since, and reuses their numbers. As IPsec does against replays (RFC 4303, section 3.4.3; RFC 6479), a node
remembers each client's highest number and which of the last `WINDOW` numbers it has seen. Concurrent rounds may arrive
in any order, but no number may arrive twice, or `WINDOW` or more behind.

Only numbers are compared. A number that never arrived is accepted later, even after higher ones. So a restored client
can use a forgotten number again for a cheaper round (DESIGN §10).

Each client has a *slot*, which `sessions` assigns. The numbers are two arrays, stored in pages of `PAGE` slots with 12
bytes per slot. They are never deleted, for an old copy may return after years.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Persist
from dca_proto.protocol.records import Records, sized
from dca_proto.protocol.wire.messages import ChargeReused

TABLE = "charges"
WINDOW = 64
NUMBER_MAX = (1 << 32) - 1
"""The largest charge number that fits the four bytes of an entry."""
PAGE = 512
_HIGHEST_BYTES, _SEEN_BYTES = 4, 8
Slots = NDArray[np.int64]


def check_reused(claim: ChargeReused, number: int, next_number: int) -> None:
    """Check, at a client, a Compute node's claim that a charge number was used before.

    `number` is the charge's number, `next_number` the next one in the client's ledger. Raises `PeerError` if the claim
    names another number, or if the contribution was merely late.
    """
    if claim.charge != number:
        raise PeerError("ledger", found=f"charge {claim.charge}", expected=f"charge {number}, which was sent")
    if claim.highest < next_number and claim.highest - number >= WINDOW:
        late = f"a contribution {claim.highest - number} charges late"  # this ledger made all charges up to `highest`
        raise PeerError("ledger", found=late, expected="a number used twice")


class SeenCharges:
    """For each slot, the highest charge number seen, and a bit for each of the last `WINDOW` numbers.

    Bit i is set if the number i below the highest was seen. `records` are the store's.
    """

    def __init__(self, records: Records) -> None:
        self._highest = np.zeros(PAGE, dtype="<u4")
        self._seen = np.zeros(PAGE, dtype="<u8")
        for table, key, value in records:
            if table == TABLE:
                page = sized(TABLE, value, PAGE * (_HIGHEST_BYTES + _SEEN_BYTES))
                start = PAGE * int.from_bytes(key, "big")
                self._grow(start + PAGE)
                self._highest[start : start + PAGE] = np.frombuffer(page[: PAGE * _HIGHEST_BYTES], dtype="<u4")
                self._seen[start : start + PAGE] = np.frombuffer(page[PAGE * _HIGHEST_BYTES :], dtype="<u8")

    def _grow(self, slots: int) -> None:
        if slots > self._highest.size:
            size = -(-max(slots, 2 * self._highest.size) // PAGE) * PAGE
            self._highest = np.concatenate([self._highest, np.zeros(size - self._highest.size, dtype="<u4")])
            self._seen = np.concatenate([self._seen, np.zeros(size - self._seen.size, dtype="<u8")])

    def highest(self, slot: int) -> int:
        """Return the highest number seen in a slot; 0 before the first."""
        return int(self._highest[slot]) if slot < self._highest.size else 0

    def is_used(self, slot: int, number: int) -> bool:
        """Return True if a number was seen before, or is too old to tell."""
        age = self.highest(slot) - number
        return age >= WINDOW or (age >= 0 and bool(int(self._seen[slot]) >> age & 1))

    def used(self, slots: Slots, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each number, what `is_used` returns; all arrays have shape ``(n,)``."""
        if slots.size:
            self._grow(int(slots.max()) + 1)
        age = self._highest[slots].astype(np.int64) - numbers
        shift = np.clip(age, 0, WINDOW - 1).astype(np.uint64)
        used: NDArray[np.bool_] = (age >= WINDOW) | ((age >= 0) & ((self._seen[slots] >> shift) & np.uint64(1) == 1))
        return used

    def note(self, slots: Slots, numbers: NDArray[np.int64]) -> list[Persist]:
        """Record unused numbers of distinct clients. The writes are the pages that changed."""
        if not slots.size:
            return []
        ahead = numbers - self._highest[slots].astype(np.int64)
        seen, bit = self._seen[slots], np.uint64(1)
        back = np.clip(-ahead, 0, WINDOW - 1).astype(np.uint64)
        up = np.clip(ahead, 0, WINDOW - 1).astype(np.uint64)
        shifted = np.where(ahead < WINDOW, seen << up, np.uint64(0)) | bit
        self._seen[slots] = np.where(ahead > 0, shifted, seen | bit << back)
        self._highest[slots] = np.where(ahead > 0, numbers, self._highest[slots]).astype("<u4")
        pages = ((page, slice(page * PAGE, (page + 1) * PAGE)) for page in np.unique(slots // PAGE).tolist())
        return [
            Persist(TABLE, page.to_bytes(4, "big"), self._highest[part].tobytes() + self._seen[part].tobytes())
            for page, part in pages
        ]
