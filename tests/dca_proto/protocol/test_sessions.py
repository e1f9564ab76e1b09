"""Sessions: a client's key for an epoch, its Hello, and the keys that it shares with each Compute node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from nacl import bindings

from dca_proto.crypto.sealing import Identity
from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol.effects import Persist
from dca_proto.protocol.federation import enrol
from dca_proto.protocol.keyring import Keyring
from dca_proto.protocol.own_session import HELLO, OwnSession
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.sessions import SESSIONS, SessionTable, StoredSession
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign
from dca_proto.protocol.wire.messages import EpochKey, Hello, Signed
from dca_proto.testing import TestFederation, seeded

EPOCH_MS, GRACE_MS = 1_000_000, 200_000
NOW_MS = 50 * EPOCH_MS + 500_000
TIMING = Timing(epoch_ms=EPOCH_MS, epoch_grace_ms=GRACE_MS, hello_spread_ms=1000)
CAST = TestFederation(4, 3, timing=TIMING)


def own(index: int = 0, records: Any = (), *, name: str = "own", expires_ms: int = 1 << 52) -> OwnSession:
    certificate = CAST.certificate(index, expires_ms)
    identity = CAST.client_identities[index]
    return OwnSession(
        identity, certificate, CAST.federation, records=tuple(records), timing=TIMING, random=seeded(name)
    )


class Node:
    """One Compute node's keys and sessions."""

    def __init__(self, index: int = 0, records: Any = (), limits: Limits | None = None, now_ms: int = NOW_MS) -> None:
        self.identity = CAST.compute_identities[index]
        self.keys = Keyring((), TIMING, self.identity, seeded(f"node {index}"))
        self.keys.renew(now_ms)
        self.sessions = SessionTable(
            records, CAST.federation, self.identity.id, self.keys, Pool(), limits=limits or Limits(), timing=TIMING
        )

    def key(self) -> EpochKey:
        keys = self.keys
        stamp = CAST.federation.stamp
        return EpochKey(self.identity.id, keys.epoch, keys.public, keys.expires_ms, stamp)

    def take(self, sender: bytes, payload: bytes, now_ms: int = NOW_MS) -> list[Any]:
        frame = decode_frame(payload)
        assert isinstance(frame, Signed)
        body = decode_body(frame.body)
        assert isinstance(body, Hello)
        return self.sessions.take(sender, frame, body, now_ms)

    def pair_key(self, client: bytes, now_ms: int = NOW_MS, epoch: int = 50) -> bytes | None:
        (key,) = self.pair_keys(self.slots([client]), now_ms, epoch)
        return key

    def slots(self, clients: Sequence[bytes]) -> list[int]:
        ids = np.frombuffer(b"".join(clients), dtype=np.uint8).reshape(-1, 16)
        found: list[int] = self.sessions.slots_of(ids).tolist()
        return found

    def pair_keys(self, slots: Sequence[int], now_ms: int = NOW_MS, epoch: int = 50) -> list[bytes | None]:
        keys, valid = self.sessions.pair_keys(epoch, np.array(slots, dtype=np.int64), now_ms)
        return [bytes(key) if holds else None for key, holds in zip(keys, valid, strict=True)]

    def previous(self, client: bytes, now_ms: int = NOW_MS) -> bytes | None:
        slot = self.sessions.slots[client]
        key = self.sessions.previous_key(50, slot, now_ms)
        assert self.previous_keys([slot], now_ms) == [key]
        return key

    def previous_keys(self, slots: Sequence[int], now_ms: int = NOW_MS, epoch: int = 50) -> list[bytes | None]:
        keys, valid = self.sessions.previous_keys(epoch, np.array(slots, dtype=np.int64), now_ms)
        return [bytes(key) if holds else None for key, holds in zip(keys, valid, strict=True)]

    def refuses(self, code: str, sender: bytes, payload: bytes, now_ms: int = NOW_MS) -> None:
        before = (dict(self.sessions.slots), list(self.sessions._records))
        with pytest.raises(PeerError) as caught:
            self.take(sender, payload, now_ms)
        assert caught.value.code == code
        assert (self.sessions.slots, self.sessions._records) == before


def hello(index: int = 0, signer: Identity | None = None, **changes: Any) -> bytes:
    """A Hello with some fields changed, signed by its client."""
    one = own(index, name=f"hello {index}")
    one.renew(NOW_MS)
    frame = decode_frame(one.hello)
    assert isinstance(frame, Signed)
    body = msgspec.structs.replace(decode_body(frame.body), **changes)
    return encode(sign(signer or CAST.client_identities[index], CAST.federation.id, body))


def by_hand(secret: bytes, peer: bytes, client: tuple[bytes, int], compute: tuple[bytes, int]) -> bytes:
    """§2.4: BLAKE2b of the point, public keys, federation, ids and epochs, each behind its length."""
    publics = sorted((bindings.crypto_scalarmult_base(secret), peer))
    binding = [part for one, epoch in (client, compute) for part in (one, epoch.to_bytes(4, "big"))]
    parts = [bindings.crypto_scalarmult(secret, peer), *publics, CAST.federation.id, *binding]
    framed = b"".join(piece for part in parts for piece in (len(part).to_bytes(8, "little"), part))
    return hashlib.blake2b(framed, digest_size=32, person=b"dca5-pair").digest()


# Both sides


def test_a_client_and_each_node_agree_on_the_key_of_the_design() -> None:
    client, session = CAST.clients[0], own()
    (secret, _) = session.renew(NOW_MS)
    nodes = [Node(index) for index in range(3)]
    for node in nodes:
        node.take(client, session.hello)
    keys = session.pair_keys(tuple(node.key() for node in nodes))
    assert keys == [node.pair_key(client) for node in nodes]
    for node, key in zip(nodes, keys, strict=True):
        assert key == by_hand(secret.value, node.keys.public, (client, 50), (node.identity.id, 50))
    assert len(set(keys)) == 3


def test_a_node_that_shows_another_nodes_key_as_its_own_gets_no_key_of_that_pair() -> None:
    """Keys are bound to ids. What is shared with the honest node is shared with nobody else, in either order."""
    session, honest, thief = own(), Node(0).key(), Node(1).key()
    session.renew(NOW_MS)
    stolen = msgspec.structs.replace(thief, public=honest.public)
    first, second = session.pair_keys((honest, stolen))
    assert first != second
    assert session.pair_keys((stolen, honest)) == [second, first]


# The client's side


def test_a_hello_is_made_once_an_epoch_and_stored_before_it_is_used() -> None:
    session = own()
    secret, kept = session.renew(NOW_MS)
    assert (kept.table, kept.key, kept.value) == (HELLO, b"", session.hello)
    assert isinstance(secret, Persist)
    body = decode_body(decode_frame(session.hello).body)  # type: ignore[union-attr]
    assert isinstance(body, Hello)
    assert (body.epoch, body.serial, body.expires_ms) == (50, NOW_MS, 51 * EPOCH_MS)
    assert body.public == bindings.crypto_scalarmult_base(secret.value)
    assert session.renew(NOW_MS + 1) == []
    first = session.hello
    session.renew(NOW_MS + EPOCH_MS)
    assert session.hello != first


def test_a_restart_goes_on_with_the_stored_hello_and_its_key() -> None:
    session = own()
    writes = session.renew(NOW_MS)
    again = own(records=[(write.table, write.key, write.value) for write in writes], name="another start")
    assert again.renew(NOW_MS + 1) == []
    assert (again.hello, again.hash) == (session.hello, session.hash)
    node = Node().key()
    assert again.pair_keys((node,)) == session.pair_keys((node,))


@pytest.mark.parametrize("lost", ["hello", "key", "certificate"])
def test_a_hello_that_does_not_fit_is_made_anew(lost: str) -> None:
    """Without a stored Hello, with one of a lost key, and with another certificate."""
    writes = own().renew(NOW_MS)
    records = [(write.table, write.key, write.value) for write in writes]
    if lost in ("hello", "key"):
        records = [record for record in records if (record[0] == HELLO) == (lost == "key")]
    again = own(records=records, name="again", expires_ms=1 << 51 if lost == "certificate" else 1 << 52)
    made = again.renew(NOW_MS + 1)
    assert [write.table for write in made if write.table == HELLO] == [HELLO]
    Node().take(CAST.clients[0], again.hello)


def test_a_damaged_hello_stops_the_start() -> None:
    records = [(write.table, write.key, write.value) for write in own().renew(NOW_MS)]
    with pytest.raises(UsageError, match="table 'hello' cannot be read"):
        own(records=[(table, key, value[:-1] if table == HELLO else value) for table, key, value in records])


def test_a_client_whose_clock_went_back_replaces_its_hello_all_the_same() -> None:
    """Within one epoch: its serial is one above the last, whatever the clock says, so that every node takes it."""
    ahead, client, node = own(), CAST.clients[0], Node()
    writes = ahead.renew(NOW_MS + 300_000)
    node.take(client, ahead.hello)
    records = [(write.table, write.key, write.value) for write in writes]
    for number in (1, 2):
        again = own(records=records, name=f"again {number}", expires_ms=(1 << 52) - number)
        renewed = again.renew(NOW_MS + number)
        assert [write.table for write in renewed] == [HELLO], "the key stays"
        assert len(node.take(client, again.hello)) == 1
        body = decode_body(decode_frame(again.hello).body)  # type: ignore[union-attr]
        assert isinstance(body, Hello)
        assert (body.epoch, body.serial) == (50, NOW_MS + 300_000 + number)
        records = [record for record in records if record[0] != HELLO] + [(HELLO, b"", again.hello)]


def test_keys_of_a_new_epoch_are_agreed_anew() -> None:
    """The cache of pair keys ends with the own key."""
    session, node = own(), Node().key()
    session.renew(NOW_MS)
    epochs = (node,)
    (first,) = session.pair_keys(epochs)
    session.renew(NOW_MS + EPOCH_MS)
    assert session.pair_keys(epochs) != [first]


def test_a_key_covers_a_round_until_the_end_of_its_grace() -> None:
    session = own()
    assert not session.covers(NOW_MS), "before there is one"
    session.renew(NOW_MS)
    end_ms = 51 * EPOCH_MS + GRACE_MS
    assert session.covers(end_ms)
    assert not session.covers(end_ms + 1)


def test_clients_turn_spread_after_the_end_of_the_epoch() -> None:
    session = own()
    session.renew(NOW_MS)
    assert [session.turn_ms(NOW_MS, spread) - 51 * EPOCH_MS for spread in (0.0, 0.5, 1.0)] == [0, 500, 1000]


# The node's side


def test_a_hello_is_kept_once_and_stored() -> None:
    node, payload = Node(), hello()
    (kept,) = node.take(CAST.clients[0], payload)
    assert (kept.table, kept.key) == (SESSIONS, CAST.clients[0])
    assert node.take(CAST.clients[0], payload) == []
    assert (len(node.sessions), node.sessions.count_valid(NOW_MS)) == (1, 1)
    again = Node(records=[(kept.table, kept.key, kept.value)])
    assert again.pair_key(CAST.clients[0]) == node.pair_key(CAST.clients[0]) is not None
    assert again.take(CAST.clients[0], payload) == []


def test_the_highest_epoch_then_serial_then_hash_wins_in_any_order() -> None:
    """Two copies of a client race with Hellos of one serial: every node decides alike."""
    client = CAST.clients[0]
    secret = bindings.crypto_scalarmult_base(b"\2" * 32)
    newer = [hello(serial=NOW_MS + 1), hello(epoch=51, serial=0), hello(public=secret)]
    for payload in newer[:2]:
        node = Node()
        node.take(client, hello())
        (write,) = node.take(client, payload)
        assert write.key == client
        node.refuses("hello", client, hello(serial=NOW_MS - 1))
    one, other = Node(), Node()
    pair = (hello(), newer[2])
    for node, order in ((one, pair), (other, pair[::-1])):
        for payload in order:
            try:
                node.take(client, payload)
            except PeerError as error:
                assert error.code == "hello"  # noqa: PT017 - one of the two loses, by its hash
    assert one.pair_key(client) == other.pair_key(client) is not None


def test_a_displaced_hello_is_known_still_and_the_one_before_it_is_refused() -> None:
    client, node = CAST.clients[0], Node()
    first, second, third = (hello(serial=NOW_MS + step) for step in range(3))
    keys = []
    for payload in (first, second, third):
        node.take(client, payload)
        keys.append(node.pair_key(client))
    assert node.take(client, second) == []
    node.refuses("hello", client, first)
    assert node.previous(client) == keys[1]
    assert len(node.sessions) == 1


def test_displaced_sessions_have_keys_of_their_own() -> None:
    client, node = CAST.clients[0], Node()
    publics = [bindings.crypto_scalarmult_base(bytes((byte,)) * 32) for byte in (2, 3)]
    for step, public in enumerate(publics):
        node.take(client, hello(serial=NOW_MS + step, public=public))
        if not step:
            first = node.pair_key(client)
            assert node.previous(client) is None
    assert node.previous(client) == first
    assert node.pair_key(client) not in (first, None)


REFUSED: dict[str, tuple[str, Callable[[], tuple[bytes, bytes]]]] = {
    "of another sender": ("sender", lambda: (CAST.clients[1], hello())),
    "signed by another client": ("signature", lambda: (CAST.clients[0], hello(signer=CAST.client_identities[1]))),
    "with a certificate of nobody": (
        "signature", lambda: (CAST.clients[0], hello(certificate=msgspec.structs.replace(
            CAST.certificate(0), expires_ms=1 << 51)))),
    "with a certificate that has ended": (
        "certificate", lambda: (CAST.clients[0], hello(certificate=enrol(
            CAST.authority, CAST.federation, CAST.client_identities[0].public_key, NOW_MS)))),
    "of a point of low order": ("key", lambda: (CAST.clients[0], hello(public=bytes(32)))),
    "of an epoch that is over": ("hello", lambda: (CAST.clients[0], hello(expires_ms=NOW_MS - GRACE_MS))),
    "that would live too long": ("hello", lambda: (CAST.clients[0], hello(expires_ms=NOW_MS + 2 * EPOCH_MS + 1))),
    "of an epoch far ahead": ("hello", lambda: (CAST.clients[0], hello(epoch=52))),
}  # fmt: skip


@pytest.mark.parametrize(("code", "make"), REFUSED.values(), ids=REFUSED.keys())
def test_a_hello_is_verified_before_it_displaces_another(code: str, make: Callable[[], tuple[bytes, bytes]]) -> None:
    """Of a client that is not known, and over a session that stands: this one goes on."""
    sender, payload = make()
    Node().refuses(code, sender, payload)
    node = Node()
    for client, valid in zip(CAST.clients, (hello(0, serial=1), hello(1, serial=1)), strict=False):
        node.take(client, valid)
    key = node.pair_key(sender)
    node.refuses(code, sender, payload)
    assert node.pair_key(sender) == key is not None


def test_the_limits_of_time_are_to_the_millisecond() -> None:
    client = CAST.clients[0]
    for changes in ({"expires_ms": NOW_MS - GRACE_MS + 1}, {"expires_ms": NOW_MS + 2 * EPOCH_MS}, {"epoch": 51}):
        assert len(Node().take(client, hello(**changes))) == 1


def test_a_session_ends_with_its_grace_or_its_certificate() -> None:
    client = CAST.clients[0]
    end_ms = 51 * EPOCH_MS + GRACE_MS
    soon = enrol(CAST.authority, CAST.federation, CAST.client_identities[0].public_key, NOW_MS + 10)
    for payload, last_ms in ((hello(), end_ms - 1), (hello(certificate=soon), NOW_MS + 9)):
        node = Node()
        node.take(client, payload)
        assert node.pair_key(client, last_ms) is not None
        assert node.pair_key(client, last_ms + 1) is None
        assert [node.sessions.count_valid(at_ms) for at_ms in (last_ms, last_ms + 1)] == [1, 0]
        node.take(client, hello(serial=NOW_MS + 5, expires_ms=NOW_MS + 2 * EPOCH_MS))
        assert node.previous(client, last_ms) is not None
        assert node.previous(client, last_ms + 1) is None


def test_a_full_node_takes_no_further_client_but_newer_hellos_of_those_it_knows() -> None:
    node = Node(limits=Limits(sessions_max=2))
    for index in range(2):
        node.take(CAST.clients[index], hello(index))
    node.refuses("sessions", CAST.clients[2], hello(2))
    assert len(node.take(CAST.clients[0], hello(0, serial=NOW_MS + 1))) == 1


def test_slots_are_dealt_out_once_and_restored_in_order() -> None:
    node, writes = Node(), {}
    for index in (2, 0, 1):
        (write,) = node.take(CAST.clients[index], hello(index))
        writes[index] = write
    (writes[2],) = node.take(CAST.clients[2], hello(2, serial=NOW_MS + 1))
    slots = {CAST.clients[2]: 0, CAST.clients[0]: 1, CAST.clients[1]: 2}
    assert node.sessions.slots == slots
    records = [(write.table, write.key, write.value) for write in sorted(writes.values(), key=lambda one: one.key)]
    assert Node(records=records).sessions.slots == slots
    assert node.slots([CAST.clients[1], CAST.clients[3]]) == [2, -1]


@pytest.mark.parametrize("slots", [(0, 0), (0, 2), (1, 2), (-1, 0)])
def test_records_whose_slots_are_not_all_dealt_out_stop_the_start(slots: tuple[int, int]) -> None:
    records = [(SESSIONS, bytes([place]) * 16, encode(StoredSession(slot))) for place, slot in enumerate(slots)]
    with pytest.raises(UsageError, match="table 'session' cannot be read"):
        Node(records=records)


def test_keys_of_many_are_those_of_each_and_of_nobody_none() -> None:
    """In any order, again from memory, and after a Hello has displaced one of them."""
    node = Node()
    for index in range(3):
        node.take(CAST.clients[index], hello(index))
    each = [node.pair_key(client) for client in CAST.clients[:3]]
    slots = [*node.slots(CAST.clients), 0]
    for _ in range(2):
        assert node.pair_keys(slots) == [*each, None, each[0]]
    node.take(CAST.clients[1], hello(1, serial=NOW_MS + 1, public=bindings.crypto_scalarmult_base(b"\2" * 32)))
    found = node.pair_keys(slots)
    assert (found[0], found[2]) == (each[0], each[2])
    assert found[1] not in (each[1], None)
    node.take(CAST.clients[2], hello(2, serial=NOW_MS + 1))
    assert node.previous_keys(slots) == [None, each[1], each[2], None, None]
    assert node.previous_keys(slots, epoch=49) == [None] * 5, "its secret is gone"
    assert node.previous_keys([]) == []


def test_an_epoch_of_the_node_whose_key_is_gone_has_no_keys() -> None:
    node, client = Node(), CAST.clients[0]
    node.take(client, hello())
    assert node.pair_key(client) is not None
    assert node.pair_key(client, epoch=49) is None
    later_ms = 51 * EPOCH_MS + GRACE_MS
    node.keys.renew(later_ms)
    node.sessions.expire(node.keys.epochs)
    node.take(client, hello(serial=NOW_MS + 9, expires_ms=53 * EPOCH_MS), later_ms)
    assert node.pair_key(client, later_ms) is None, "the secret of epoch 50 is deleted"
    assert node.pair_key(client, later_ms, epoch=51) is not None
