"""Entries of lists; of a verified sum, their shares, and the words that these give together (DESIGN §12, step 5)."""

from __future__ import annotations

from typing import NamedTuple

from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.contribution import HeldContribution
from emulator import verified
from emulator.derivations import TAG_BYTES
from emulator.pairs import Pairs
from emulator.wire import Accepted, statement_of


class Entry(NamedTuple):
    """An entry of a list. `holder`: the node that made the list."""

    client: bytes
    contribution: bytes
    charge: int
    holder: bytes

    @property
    def encoded(self) -> bytes:
        return self.client + self.contribution + self.charge.to_bytes(4, "little")


def entries_in(data: bytes, holder: bytes) -> list[Entry]:
    """Decode the entries of a list, the length of which an honest actor has checked."""
    parts = (data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES))
    return [
        Entry(part[:ID_BYTES], part[ID_BYTES : 2 * ID_BYTES], int.from_bytes(part[2 * ID_BYTES :], "little"), holder)
        for part in parts
    ]


def places_in(objections: bytes) -> list[int]:
    """Return the indices in U of the entries that an answer objects to."""
    return [int.from_bytes(objections[at : at + 4], "little") for at in range(0, len(objections), 4)]


def words_of(pairs: Pairs, accepted: Accepted, entry: Entry, kept: HeldContribution) -> verified.Elements | None:
    """Return a contribution's words: y and the shares of all nodes; None if no keys of its client give its tags."""
    total = verified.elements_in(kept.y)
    for place in range(len(accepted.epochs)):
        share = share_of(pairs, accepted, place, entry, kept.tags[TAG_BYTES * place : TAG_BYTES * (place + 1)])
        if share is None or share.size != total.size:
            return None
        total = (total + share) % verified.PRIME
    return total


def share_of(pairs: Pairs, accepted: Accepted, place: int, entry: Entry, tag: bytes) -> verified.Elements | None:
    """Return the share of an entry's words that a node derives; None if no key of its client gives that tag."""
    statement = statement_of(accepted.body)
    key = pairs.key_of(accepted.epochs[place], entry.client, tag, accepted.hash, entry.encoded)
    if key is None or statement is None:
        return None
    return verified.share_of(key, accepted.hash, entry.encoded, statement.words)
