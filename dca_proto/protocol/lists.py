"""Lists of contributions, their union, and the set that all nodes agree on (DESIGN §4.7; DCA, Algorithm 1, step 3).

An entry is (client, contribution id, charge number), 36 bytes. A node's list has an entry for each contribution that it
holds, strictly ascending by client. Each client has one holder, so it appears in the union once. Every node checks
every entry of every round, so all functions work on arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, holder_indices
from dca_proto.crypto.sealing import ID_BYTES, digest
from dca_proto.errors import PeerError

TOO_FEW = "too-few"
"""Abort reason; only such an abort states how many contributed and how many were needed."""
TOO_MANY = "too-many"
PEER_SILENT = "peer-silent"
"""Abort reason: a node lacked a peer's list or answer at the round's end."""
Rows = NDArray[np.uint8]
Places = NDArray[np.int64]
_CHARGE_AT = 2 * ID_BYTES


def list_hash(announcement_hash: bytes, compute: bytes, entries: bytes, coin: bytes = b"") -> bytes:
    """Return the hash that identifies a node's frozen list; in a verified sum, its coin as well."""
    return digest(labels.LIST, announcement_hash, compute, entries, *([coin] if coin else []))


def set_hash(announcement_hash: bytes, entries: bytes) -> bytes:
    """Return the hash that identifies the agreed set A."""
    return digest(labels.SET, announcement_hash, entries)


def answer_hash(
    announcement_hash: bytes, compute: bytes, lists: Iterable[bytes], objections: bytes, openings: bytes = b""
) -> bytes:
    """Return the hash that identifies a node's answer; in a verified sum, its openings as well."""
    return digest(labels.ANSWER, announcement_hash, compute, *lists, objections, *([openings] if openings else []))


def check_list(announcement_hash: bytes, entries: bytes, tags: bytes, owner: int, nodes: int, most: int) -> None:
    """Check a peer's list: whole, ascending entries of clients that this peer holds, with one tag each.

    `owner` is the peer's place among the M nodes, `most` is n_max. Raises `PeerError("list")`.
    """
    count, rest = divmod(len(entries), ENTRY_BYTES)
    if count > most:
        raise PeerError("list", found=f"{count} contributions", expected=f"<= {most}")
    if rest or len(tags) != TAG_BYTES * count:
        found = f"{len(entries)} bytes of entries and {len(tags)} of tags"
        raise PeerError("list", found=found, expected=f"{ENTRY_BYTES} and {TAG_BYTES} for each contribution")
    rows = rows_of(entries)
    check_clients("list", rows, announcement_hash, owner, nodes)
    if (charges_of(rows) == 0).any():
        raise PeerError("list", found="charge number 0", expected="1 or more")


def check_clients(code: str, rows: Rows, announcement_hash: bytes, owner: int, nodes: int) -> None:
    """Check that the ids with which rows begin ascend strictly, and that one node is the holder of all these clients.

    `owner` is its place among the M nodes. Raises `PeerError(code)`.
    """
    ids = np.ascontiguousarray(rows[:, :ID_BYTES]).view(">u8")
    high, low = ids[:, 0], ids[:, 1]
    ascends = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    if not ascends.all():
        raise PeerError(code, found="clients out of order, or twice", expected="ids that ascend strictly")
    if (holder_indices(announcement_hash, rows, nodes) != owner).any():
        raise PeerError(code, found="a client of another holder", expected="clients that this node holds")


def rows_of(entries: bytes) -> Rows:
    """View entries as the rows of an array, shape ``(n, 36)``."""
    return np.frombuffer(entries, dtype=np.uint8).reshape(-1, ENTRY_BYTES)


def charges_of(rows: Rows) -> NDArray[np.int64]:
    """Return the charge numbers of entries, shape ``(n,)``."""
    return np.ascontiguousarray(rows[:, _CHARGE_AT:]).view("<u4")[:, 0].astype(np.int64)


def clients_of(entries: bytes) -> list[bytes]:
    """Return the client ids of entries."""
    return [entries[at : at + ID_BYTES] for at in range(0, len(entries), ENTRY_BYTES)]


def encode_places(places: Places) -> bytes:
    """Encode ascending places in the union: 4 bytes each, little-endian."""
    return places.astype("<u4").tobytes()


def parse_places(data: bytes, count: int) -> Places:
    """Decode places in a union of `count` entries. Raises `PeerError("answer")`."""
    if len(data) % 4:
        raise PeerError("answer", found=f"{len(data)} bytes of objections", expected="4 bytes each")
    places = np.frombuffer(data, dtype="<u4").astype(np.int64)
    if places.size and not (np.all(places[1:] > places[:-1]) and places[-1] < count):
        raise PeerError("answer", found="objections out of order", expected=f"ascending places below {count}")
    return places


def agreed(count: int, objections: Sequence[Places]) -> NDArray[np.bool_]:
    """Return A as a mask of shape ``(count,)``: the entries of the union to which nobody objects."""
    in_set = np.ones(count, dtype=np.bool_)
    for places in objections:
        in_set[places] = False
    return in_set
