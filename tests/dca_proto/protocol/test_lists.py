"""One set of contributions: lists as bytes, what makes one invalid, their union, and the sum over the agreed set."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dca_proto.crypto.masks import entry_of, holder_index
from dca_proto.errors import PeerError
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute.agreement import Agreement
from dca_proto.protocol.compute.round import StoredList
from dca_proto.protocol.contribution import HeldContribution
from dca_proto.protocol.lists import (
    agreed,
    charges_of,
    check_list,
    clients_of,
    encode_places,
    parse_places,
    rows_of,
    set_hash,
)
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.wire.messages import Answer, Signed

AH = hashlib.blake2b(b"ah", digest_size=32).digest()
CLIENTS = sorted(hashlib.blake2b(index.to_bytes(2, "big"), digest_size=16).digest() for index in range(60))
SOME = settings(max_examples=50, deadline=None, derandomize=True)


def held_by(node: int, nodes: int = 3) -> list[bytes]:
    return [client for client in CLIENTS if holder_index(AH, client, nodes) == node]


def entries_of(clients: list[bytes], charge: int = 1) -> bytes:
    return b"".join(entry_of(client, client[::-1], charge) for client in clients)


def ids_of(clients: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(clients), dtype=np.uint8).reshape(-1, 16)


def refusal(entries: bytes, tags: bytes, owner: int = 0, nodes: int = 3, most: int = 1000) -> str | None:
    """Why a list cannot be one, or None."""
    try:
        check_list(AH, entries, tags, owner, nodes, most)
    except PeerError as error:
        return f"{error.found}" if error.code == "list" else error.code
    return None


def test_a_list_of_ascending_clients_of_its_holder_is_one() -> None:
    for node in range(3):
        mine = held_by(node)
        assert refusal(entries_of(mine), bytes(8 * len(mine)), node) is None
    assert refusal(b"", b"") is None, "a node may hold nothing"


def test_what_makes_a_list_invalid() -> None:
    mine, tags = held_by(0), bytes(8 * 4)
    four = entries_of(mine[:4])
    swapped = entries_of([mine[0], mine[2], mine[1], mine[3]])
    assert refusal(four, tags) is None
    assert refusal(swapped, tags) == "clients out of order, or twice"
    assert refusal(entries_of([mine[0], mine[0], *mine[1:3]]), tags) == "clients out of order, or twice"
    assert refusal(four, tags, most=4) is None
    assert refusal(four, tags, most=3) == "4 contributions"
    others = sorted([*mine[:3], held_by(1)[0]])
    assert refusal(entries_of(others), tags) == "a client of another holder"
    assert refusal(four, tags, owner=1) == "a client of another holder"
    assert refusal(entries_of(mine[:4], charge=0), tags) == "charge number 0"
    for cut in (1, 4, 35):
        assert refusal(four[:-cut], tags) == f"{144 - cut} bytes of entries and 32 of tags"
    for short in (tags[:-1], tags[:-8], tags + bytes(8)):
        assert refusal(four, short) == f"144 bytes of entries and {len(short)} of tags"


@pytest.mark.parametrize("differs", range(16))
def test_ids_ascend_by_all_of_their_bytes(differs: int) -> None:
    """Two ids that differ in one byte only, in the wrong order, whichever byte it is; with one holder for all."""
    low = bytes(16)
    high = low[:differs] + b"\x80" + low[differs + 1 :]
    assert refusal(entries_of([low, high]), bytes(16), nodes=1) is None
    assert refusal(entries_of([high, low]), bytes(16), nodes=1) == "clients out of order, or twice"


def test_entries_as_arrays() -> None:
    entries = b"".join(
        entry_of(client, bytes(16), charge) for client, charge in zip(CLIENTS[:3], (1, 2**32 - 1, 258), strict=True)
    )
    assert charges_of(rows_of(entries)).tolist() == [1, 2**32 - 1, 258]
    assert clients_of(entries) == CLIENTS[:3]
    assert rows_of(b"").shape == (0, 36)


@SOME
@given(st.sets(st.integers(0, 299)))
def test_places_come_back(places: set[int]) -> None:
    encoded = encode_places(np.array(sorted(places), dtype=np.int64))
    assert encoded == b"".join(place.to_bytes(4, "little") for place in sorted(places))
    assert parse_places(encoded, 300).tolist() == sorted(places)


@pytest.mark.parametrize("places", [(1, 0), (0, 0), (3,), (0, 2**31), (2**32 - 1,), (0, 1, 3)])
def test_places_ascend_and_are_in_the_union(places: tuple[int, ...]) -> None:
    with pytest.raises(PeerError, match="answer: found objections out of order"):
        parse_places(b"".join(place.to_bytes(4, "little") for place in places), 3)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_objections_are_whole(size: int) -> None:
    with pytest.raises(PeerError, match="expected 4 bytes each"):
        parse_places(bytes(size), 3)


@SOME
@given(st.integers(1, 40), st.lists(st.sets(st.integers(0, 39)), max_size=4))
def test_the_set_is_what_nobody_objects_to(count: int, objections: list[set[int]]) -> None:
    inside = [{place for place in places if place < count} for places in objections]
    kept = agreed(count, [np.array(sorted(places), dtype=np.int64) for places in inside])
    assert set(np.flatnonzero(kept).tolist()) == set(range(count)) - set().union(*inside)


# A node's arithmetic, against sums of Python integers.


class Sessions:
    """Stands in for a node's sessions: the key of each client, or none; and those that were displaced."""

    def __init__(self, keys: dict[bytes, bytes], previous: dict[bytes, bytes] | None = None) -> None:
        self.keys, self.previous = keys, previous or {}
        self.order = sorted(keys)

    def slots_of(self, ids: Any) -> Any:
        clients = [row.tobytes() for row in ids]
        return np.array([self.order.index(one) if one in self.keys else -1 for one in clients], dtype=np.int64)

    def pair_keys(self, epoch: int, slots: Any, now_ms: int) -> tuple[Any, Any]:
        return self._rows(self.keys, slots)

    def previous_keys(self, epoch: int, slots: Any, now_ms: int) -> tuple[Any, Any]:
        return self._rows(self.previous, slots)

    def _rows(self, keys: dict[bytes, bytes], slots: Any) -> tuple[Any, Any]:
        found = [keys.get(self.order[slot]) if slot >= 0 else None for slot in slots.tolist()]
        rows = np.frombuffer(b"".join(key or bytes(32) for key in found), dtype=np.uint8)
        return rows.reshape(-1, 32).copy(), np.array([key is not None for key in found], dtype=np.bool_)


def pad(key: bytes, entry: bytes, dimension: int) -> tuple[bytes, list[int]]:
    data = hashlib.shake_128(key + b"dca5-mask" + AH + entry).digest(8 + 8 * dimension)
    return data[:8], [int.from_bytes(data[at : at + 8], "little") for at in range(8, len(data), 8)]


def key_of(client: bytes, node: int) -> bytes:
    return hashlib.blake2b(client + bytes((node,)), digest_size=32).digest()


class Table:
    """A round of three nodes with all lists, seen by node 0; and what each client's masks are there."""

    DIMENSION, NODES = 2, (b"a" * 16, b"b" * 16, b"c" * 16)

    def __init__(self, charge: int = 1, wrong: tuple[bytes, ...] = (), zero: tuple[bytes, ...] = ()) -> None:
        """Tags of `wrong` clients hold under no key, those of `zero` under a key of zeros."""
        self.lists: dict[bytes, StoredList] = {}
        self.masks: dict[bytes, list[int]] = {}
        self.values = {client: [index, 2**64 - 1 - index] for index, client in enumerate(CLIENTS)}
        for node, name in enumerate(self.NODES):
            mine = held_by(node)
            entries, tags = entries_of(mine, charge), b""
            for client in mine:
                entry = entry_of(client, client[::-1], charge)
                tag, self.masks[client] = pad(key_of(client, 0), entry, self.DIMENSION)
                of_zeros, _ = pad(bytes(32), entry, self.DIMENSION)
                tags += bytes(8) if client in wrong else of_zeros if client in zero else tag
            self.lists[name] = StoredList(Signed(b"", bytes(64)), bytes(32), entries, tags)
        self.union = [client for node in range(3) for client in held_by(node)]
        words = {client: b"".join(one.to_bytes(8, "little") for one in y) for client, y in self.values.items()}
        number = charge.to_bytes(4, "little")
        kept = {one: HeldContribution(one + one[::-1] + b"\0" + number + words[one]) for one in held_by(0)}
        self.round = SimpleNamespace(
            hash=AH,
            computes=self.NODES,
            own=self.NODES[0],
            lists=self.lists,
            kept=kept,
            validated=SimpleNamespace(dimension=self.DIMENSION, statement=None),
            stored=SimpleNamespace(epoch=1),
        )
        self.sessions = Sessions({client: key_of(client, 0) for client in CLIENTS})

    def agreement(self) -> Agreement:
        return Agreement(self.round, self.sessions, 0, Pool())  # type: ignore[arg-type]

    def total(self, clients: list[bytes], *, masks: bool = True) -> list[int]:
        rows = [self.masks[client] if masks else self.values[client] for client in clients]
        return [sum(row[at] for row in rows) % 2**64 for at in range(self.DIMENSION)]

    def sum_of(self, agreement: Agreement, objections: bytes) -> list[int]:
        """This node's masks over the union without some objections: its partial sum less what it holds."""
        clients, vector = agreement.partial_sum(agreement.agree(answers(objections)))
        held = [clients[at : at + 16] for at in range(0, len(clients), 16)]
        values = self.total(held, masks=False)
        return [(word - value) % 2**64 for word, value in zip(words_of(vector), values, strict=True)]


def answers(*objections: bytes) -> list[Answer]:
    return [Answer(bytes(16), AH, bytes(16), (), one) for one in objections]


def words_of(vector: bytes) -> list[int]:
    return [int.from_bytes(vector[at : at + 8], "little") for at in range(0, len(vector), 8)]


def test_a_node_objects_to_what_does_not_hold_and_remembers_the_rest() -> None:
    """Whoever has no session is objected to, also with the tag of the zeros that stand where its key would."""
    table = Table(wrong=(CLIENTS[5],), zero=(CLIENTS[9],))
    del table.sessions.keys[CLIENTS[9]]
    charges = SeenCharges(())
    slot = int(table.sessions.slots_of(ids_of([CLIENTS[12]]))[0])
    charges.note(np.array([slot]), np.array([1]))
    agreement = table.agreement()
    judged = agreement.judge(charges)
    bad = [CLIENTS[5], CLIENTS[9], CLIENTS[12]]
    assert [table.union[place] for place in judged.objections] == [one for one in table.union if one in bad]
    masks = table.sum_of(agreement, encode_places(judged.objections))
    assert masks == table.total([one for one in table.union if one not in bad])
    assert judged.reused == ((CLIENTS[12], 1),)
    again = Table().agreement().judge(charges)
    assert [client for client, _ in again.reused] == [one for one in table.union if one not in bad[:2]]


def test_a_number_whose_tag_fails_is_not_recorded() -> None:
    """Otherwise a lying holder could make a client's later charges look used."""
    table, charges = Table(wrong=(CLIENTS[5],)), SeenCharges(())
    table.agreement().judge(charges)
    slots = table.sessions.slots_of(ids_of([CLIENTS[5], CLIENTS[6]])).tolist()
    assert [charges.highest(slot) for slot in slots] == [0, 1]


def test_a_displaced_session_still_opens_and_its_mask_is_the_one_that_is_summed() -> None:
    table = Table()
    newest = {CLIENTS[4]: bytes(32), CLIENTS[20]: bytes(32)}
    table.sessions.previous = {CLIENTS[4]: key_of(CLIENTS[4], 0)}
    table.sessions.keys.update(newest)
    agreement = table.agreement()
    judged = agreement.judge(SeenCharges(()))
    assert [table.union[place] for place in judged.objections] == [CLIENTS[20]]
    masks = table.sum_of(agreement, encode_places(judged.objections))
    assert masks == table.total([one for one in table.union if one != CLIENTS[20]])


@pytest.mark.parametrize("restarted", [False, True])
def test_the_partial_sum_is_of_the_agreed_set_with_or_without_a_restart(restarted: bool) -> None:
    """Others object to two more; the node's sum is that of what it holds of S, and of its masks over all of S."""
    table = Table(wrong=(CLIENTS[5],))
    agreement = table.agreement()
    own = encode_places(agreement.judge(SeenCharges(())).objections)
    agreement = table.agreement() if restarted else agreement
    places = sorted(table.union.index(client) for client in (CLIENTS[0], CLIENTS[1]))
    chosen = agreement.agree(answers(own, encode_places(np.array(places)), b""))
    inside = [client for client in table.union if client not in (CLIENTS[0], CLIENTS[1], CLIENTS[5])]
    assert chosen.count == len(inside)
    entries = b"".join(entry_of(client, client[::-1], 1) for client in inside)
    parts = [len(AH).to_bytes(8, "little"), AH, len(entries).to_bytes(8, "little"), entries]
    assert chosen.hash == hashlib.blake2b(b"".join(parts), digest_size=32, person=b"dca5-set").digest()
    clients, vector = agreement.partial_sum(chosen)
    held = [client for client in held_by(0) if client in inside]
    assert clients == b"".join(held)
    masks, values = table.total(inside), table.total(held, masks=False)
    assert words_of(vector) == [(mask + value) % 2**64 for mask, value in zip(masks, values, strict=True)]


def test_after_a_restart_no_sum_is_made_without_the_sessions_of_the_answer() -> None:
    table = Table()
    del table.sessions.keys[CLIENTS[3]]
    agreement = table.agreement()
    with pytest.raises(PeerError, match="session: found 1 sessions missing"):
        agreement.partial_sum(agreement.agree(answers(b"", b"", b"")))


def test_a_session_that_changes_after_the_answer_changes_no_sum() -> None:
    """Two Hellos between answer and release: the mask is still that of the key whose tag held."""
    table = Table()
    agreement = table.agreement()
    own = encode_places(agreement.judge(SeenCharges(())).objections)
    table.sessions.keys[CLIENTS[3]] = bytes(32)
    places = encode_places(np.array([table.union.index(CLIENTS[3])]))
    assert table.sum_of(agreement, own) == table.total(table.union)
    assert table.sum_of(agreement, places) == table.total([one for one in table.union if one != CLIENTS[3]])


def test_sets_differ_by_announcement_and_entries() -> None:
    entries = entries_of(CLIENTS[:3])
    assert len({set_hash(AH, entries), set_hash(bytes(32), entries), set_hash(AH, entries[:36])}) == 3
