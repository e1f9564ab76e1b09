"""A Compute node's side of sessions: clients' X25519 keys for an epoch, and the keys that it shares with each client.

It verifies each Hello, and keeps a client's newest two until they expire (DESIGN §2.3, §2.4). `own_session` is the
client's side.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import Keys
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, actor_id, check_public
from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Persist, Write
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import Keyring, too_far_ahead
from dca_proto.protocol.names import open_name
from dca_proto.protocol.pairing import (
    CERTIFIED_BYTES,
    AgreedKeys,
    AgreeWork,
    CheckedHello,
    HelloWork,
    WaitingHello,
    agree_all,
    certified_bytes,
    check_hellos,
    hello_hash,
    pair_key,
)
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.records import Records, decoded, unreadable
from dca_proto.protocol.wire.codec import encode, verify_signed
from dca_proto.protocol.wire.messages import Hello, Signed
from dca_proto.wording import moment

SESSIONS = "session"
_ID = np.dtype(f"S{ID_BYTES}")
_SIGNED, _HELLO_BYTES_MAX = b"\x94\x01", 1024  # how a signed frame begins, and more bytes than a Hello has
_NO_RANK = (-1, 0, b"")  # below that of each session
_HELLO_US, _AGREE_US = 150.0, 40.0  # of two signatures and two agreements; of one agreement


class Session(msgspec.Struct, frozen=True, gc=False):
    """The fields of a Hello that a Compute node stores."""

    epoch: int
    serial: int
    hash: bytes
    public: bytes
    expires_ms: int
    certificate_ms: int

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """The session with the highest rank is the newest."""
        return self.epoch, self.serial, self.hash


class StoredSession(msgspec.Struct, frozen=True):
    """A client's record: its slot, which never changes, its newest two sessions, and its name if it has one.

    `registrar` is the key of the registrar that signed its certificate; empty for the enrolment key.
    """

    slot: int
    current: Session | None = None
    previous: Session | None = None
    name: str = ""
    registrar: bytes = b""


class SessionTable:
    """All clients' sessions at one Compute node, whose id is `own` and whose epoch keys are `keys`.

    A session takes a few hundred bytes: records stay encoded, and what all of them need is in arrays.

    Attributes:
        slots: the slot of each known client, which never changes.
    """

    def __init__(
        self,
        records: Records,
        federation: Federation,
        own: bytes,
        keys: Keyring,
        pool: Pool,
        *,
        limits: Limits,
        timing: Timing,
        name_key: bytes | None = None,
    ) -> None:
        self._federation = federation
        self._name_key = name_key
        self._own = own
        self._keys = keys
        self._limits = limits
        self._timing = timing
        self._pool = pool
        self.slots: dict[bytes, int] = {}
        self._ahead: dict[bytes, CheckedHello] = {}  # Hellos that were checked ahead, by their hash
        self._ahead_epoch = 0
        self._agreed: dict[int, AgreedKeys] = {}  # pair keys of current sessions, by the node's epoch
        self._order = np.zeros(0, dtype=np.int64)  # slots in the order of ids, as `slots_of` last sorted them
        self._sorted = np.zeros(0, dtype=_ID)
        self._restore([(client, record) for table, client, record in records if table == SESSIONS])

    def _restore(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Place stored records by their slots; decoded ones are not kept, for there may be millions."""
        count = len(rows)
        self._certified: Counter[bytes] = Counter()  # clients by registrar, also those whose session has ended
        self._records, self._clients = [b""] * count, [b""] * count
        self._ends, self._certificates = array("q", bytes(8 * count)), bytearray(CERTIFIED_BYTES * count)
        for client, record in rows:
            stored = decoded(SESSIONS, record, StoredSession)
            if not 0 <= stored.slot < count or self._records[stored.slot]:
                raise unreadable(SESSIONS, f"slot {stored.slot} of {count}")
            self._records[stored.slot], self._clients[stored.slot] = record, client
            self._ends[stored.slot] = self._ends_ms(stored.current)
            self._certified[stored.registrar] += bool(stored.registrar)
        self.slots = {client: slot for slot, client in enumerate(self._clients)}

    def __len__(self) -> int:
        """Return how many clients ever had a session."""
        return len(self._records)

    def name_of(self, client: bytes) -> str:
        """Return a client's name; empty if it has none, or never had a session here."""
        slot = self.slots.get(client)
        return "" if slot is None else self._stored(slot).name

    def valid(self, now_ms: int) -> list[bytes]:
        """Return the clients that have a valid session now."""
        return [client for client, end_ms in zip(self._clients, self._ends, strict=True) if now_ms < end_ms]

    def count_valid(self, now_ms: int) -> int:
        """Return how many clients have a valid session now."""
        return int((np.array(self._ends, dtype=np.int64) > now_ms).sum())

    def _place(self, client: bytes, stored: StoredSession, record: bytes) -> None:
        assert stored.slot == len(self._records), "slots are assigned in order"
        self.slots[client] = stored.slot
        self._records.append(record)
        self._clients.append(client)
        self._ends.append(self._ends_ms(stored.current))
        self._certificates += bytes(CERTIFIED_BYTES)

    def _stored(self, slot: int) -> StoredSession:
        return decoded(SESSIONS, self._records[slot], StoredSession)

    def _keep(self, client: bytes, kept: StoredSession) -> Persist:
        """Replace a client's record; its pair keys are agreed on anew."""
        record = self._records[kept.slot] = encode(kept)
        self._ends[kept.slot] = self._ends_ms(kept.current)
        self._forget_agreed(kept.slot)
        return Persist(SESSIONS, client, record)

    def adopt(self, federation: Federation) -> list[Write]:
        """Switch to a newer federation file, and end the sessions of clients that it revokes, or whose registrar."""
        self._federation = federation
        gone = {key for key, count in self._certified.items() if count and federation.registrar(key) is None}
        revoked = [client for client in federation.revoked if client in self.slots]
        held = [(client, self._stored(self.slots[client])) for client in (self._clients if gone else revoked)]
        return [
            self._keep(client, StoredSession(old.slot, name=old.name, registrar=old.registrar))
            for client, old in held
            if old.current is not None and (old.registrar in gone or federation.is_revoked(client))
        ]

    def look_ahead(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Check the signatures of Hellos among (sender, payload) pairs before `take` needs them, if that pays.

        No outcome depends on it: `take` checks what was not checked here. What `take` refuses or ignores without a
        look at signatures costs none here: copies, known and older Hellos, and those of revoked clients.
        """
        hellos = {
            hello_hash(payload): (sender, payload)
            for sender, payload in messages
            if len(payload) <= _HELLO_BYTES_MAX and payload.startswith(_SIGNED)
        }
        is_same = self._ahead_epoch == self._keys.epoch
        self._ahead = {found: one for found, one in self._ahead.items() if is_same and found in hellos}
        waiting = [
            self._waiting(*hello)
            for found, hello in hellos.items()
            if found not in self._ahead and not self._federation.is_revoked(hello[0])
        ]
        own = self._keys.key(self._keys.epoch)
        if own is None or not self._pool.pays(len(waiting), _HELLO_US):
            return
        fields = (self._federation.id, self._federation.signers, self._own, self._keys.epoch, own.secret)

        def part(start: int, end: int) -> HelloWork:
            return HelloWork(*fields, waiting[start:end])

        found = self._pool.spread(check_hellos, len(waiting), _HELLO_US, part)
        self._ahead_epoch = self._keys.epoch
        self._ahead.update((one.hash, one) for part_of in found for one in part_of if one is not None)

    def _waiting(self, sender: bytes, payload: bytes) -> WaitingHello:
        slot = self.slots.get(sender)
        stored = StoredSession(-1) if slot is None else self._stored(slot)
        rank = _NO_RANK if stored.current is None else stored.current.rank
        return WaitingHello(sender, payload, self._certificate(slot), self._signer(stored), rank)

    def _signer(self, stored: StoredSession) -> bytes:
        return stored.registrar or self._federation.enrolment_key

    def _certificate(self, slot: int | None) -> bytes:
        if slot is None:
            return bytes(CERTIFIED_BYTES)
        return bytes(self._certificates[CERTIFIED_BYTES * slot : CERTIFIED_BYTES * (slot + 1)])

    def take(self, sender: bytes, frame: Signed, body: Hello, now_ms: int) -> list[Write]:
        """Store a client's Hello if it verifies and is the newest; ignore a known one. Raises `PeerError`."""
        frame_hash = hello_hash(encode(frame))
        slot = self.slots.get(sender)
        stored = StoredSession(len(self)) if slot is None else self._without_future(self._stored(slot), now_ms)
        newest = Session(body.epoch, body.serial, frame_hash, body.public, body.expires_ms, body.certificate.expires_ms)
        if stored.current is not None and newest.rank <= stored.current.rank:
            if frame_hash in (stored.current.hash, stored.previous.hash if stored.previous else b""):
                return []
            raise PeerError("hello", found=f"epoch {body.epoch}, an older Hello", expected="a newer one")
        ahead = self._ahead.get(frame_hash)
        registrar = self._check(sender, frame, body, now_ms, stored, ahead)
        if slot is None and len(self) >= self._limits.sessions_max:
            raise PeerError("sessions", found=f"{len(self)} sessions", expected="fewer")
        name = "" if self._name_key is None else open_name(self._name_key, body.certificate)
        kept = StoredSession(stored.slot, newest, stored.current, name, registrar)
        if slot is None:
            self._place(sender, kept, b"")
        if registrar != stored.registrar:
            self._certified[registrar] += bool(registrar)
            self._certified[stored.registrar] -= bool(stored.registrar)
        write = self._keep(sender, kept)
        at = CERTIFIED_BYTES * kept.slot
        self._certificates[at : at + CERTIFIED_BYTES] = certified_bytes(body.certificate)
        self._ahead.pop(frame_hash, None)
        if ahead is not None and self._keys.key(self._ahead_epoch) is not None:  # the epoch may have ended meanwhile
            self._agreed_in(self._ahead_epoch).note(kept.slot, ahead.key)
        return [write]

    def ends_one(self, client: bytes, frame: Signed, body: Hello, at_ms: int, *, alone: bool) -> bool:
        """Return True if a Hello would end a session that lasts: the older of two, or all others if it is `alone`."""
        slot = self.slots.get(client)
        stored = StoredSession(-1) if slot is None else self._stored(slot)
        rank = (body.epoch, body.serial, hello_hash(encode(frame)))
        is_newer = stored.current is not None and rank > stored.current.rank
        gone = (stored.previous if alone or is_newer else None, stored.current if alone and is_newer else None)
        return any(at_ms < self._ends_ms(session) for session in gone)

    def take_alone(self, sender: bytes, frame: Signed, body: Hello, now_ms: int) -> list[Write]:
        """Take a client's Hello, and forget its earlier session; no contribution under that counts any more (§8.1).

        Raises `PeerError`, also if the Hello is not the client's newest.
        """
        writes = self.take(sender, frame, body, now_ms)
        stored = self._stored(self.slots[sender])
        if stored.current is None or stored.current.hash != hello_hash(encode(frame)):
            raise PeerError("hello", found=f"epoch {body.epoch}, an older Hello", expected="the client's newest")
        if stored.previous is None:
            return writes
        return [self._keep(sender, msgspec.structs.replace(stored, previous=None))]

    def _without_future(self, stored: StoredSession, now_ms: int) -> StoredSession:
        """Drop sessions of future epochs, made while both clocks ran ahead: no later Hello could replace them."""
        latest = now_ms // self._timing.epoch_ms + 1
        sessions = (stored.current, stored.previous)
        current, previous, *_ = (*(s for s in sessions if s is not None and s.epoch <= latest), None, None)
        return StoredSession(stored.slot, current, previous, stored.name, stored.registrar)

    def _check(
        self, sender: bytes, frame: Signed, body: Hello, now_ms: int, stored: StoredSession, ahead: CheckedHello | None
    ) -> bytes:
        """Check a Hello; its signatures and its key only unless `look_ahead` did. Raises `PeerError`.

        Returns the key of the registrar that signed the certificate; empty for the enrolment key.
        """
        if actor_id(body.certificate.client_key) != sender:
            raise PeerError("sender", found=sender.hex(), expected="the client of the certificate")
        self._federation.check_stamp(body.file)
        if (
            not now_ms
            < body.expires_ms + self._timing.epoch_grace_ms
            <= now_ms + 2 * self._timing.epoch_ms + self._timing.epoch_grace_ms
        ):
            found, expected = f"an epoch that ends on {moment(body.expires_ms)}", f"the one of {moment(now_ms)}"
            raise PeerError("hello", found=found, expected=f"{expected} by this clock; one of the two clocks is wrong")
        if body.epoch > now_ms // self._timing.epoch_ms + 1:  # no later Hello could replace it
            expected = too_far_ahead(body.epoch, self._timing.epoch_ms, now_ms)
            raise PeerError("hello", found=f"epoch {body.epoch}", expected=expected)
        if ahead is not None:
            signer = ahead.signer
        elif certified_bytes(body.certificate) == self._certificate(self.slots.get(sender)):
            signer = self._signer(stored)
        else:
            signer = self._federation.signer_of(body.certificate)
        self._federation.check_certificate(body.certificate, now_ms, signer=signer)
        if ahead is None:
            verify_signed(frame, body.certificate.client_key, self._federation.id)
            check_public(body.public)
        registrar = self._federation.registrar(signer)
        if registrar is None:
            return b""
        if stored.registrar != signer and self._certified[signer] >= registrar.clients:
            found, expected = f"another client of registrar {registrar.name}", f"at most {registrar.clients}"
            raise PeerError("registrar", found=found, expected=expected)
        return signer

    def _forget_agreed(self, slot: int) -> None:
        for agreed in self._agreed.values():
            agreed.forget(slot)

    def expire(self, epochs: Iterable[int]) -> None:
        """Forget the pair keys of all epochs of the node except `epochs`."""
        kept = set(epochs)
        if self._ahead_epoch not in kept:
            self._ahead.clear()
        self._agreed = {epoch: agreed for epoch, agreed in self._agreed.items() if epoch in kept}

    def slots_of(self, ids: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the slots of clients, -1 for unknown ones. The ids are the rows of ``ids``, shape ``(n, 16)``."""
        if not self._records:
            return np.full(len(ids), -1, dtype=np.int64)
        if len(self._order) < len(self):  # numpy ignores trailing zero bytes, but all ids have one length
            known = np.array(self._clients, dtype=_ID)
            self._order = np.argsort(known)
            self._sorted = known[self._order]
        wanted = np.ascontiguousarray(ids).view(_ID)[:, 0]
        place = np.minimum(np.searchsorted(self._sorted, wanted), len(self._order) - 1)
        return np.where(self._sorted[place] == wanted, self._order[place], -1)

    def _ends_ms(self, session: Session | None) -> int:
        """Return when a session ends: with its epoch's grace period or with the client's certificate."""
        if session is None:
            return 0
        return min(session.expires_ms + self._timing.epoch_grace_ms, session.certificate_ms)

    def _agreed_in(self, epoch: int) -> AgreedKeys:
        """Return the pair keys of an epoch of the node, with room for all slots."""
        agreed = self._agreed.get(epoch)
        if agreed is None:
            agreed = self._agreed[epoch] = AgreedKeys()
        agreed.grow(len(self))
        return agreed

    def pair_keys(self, epoch: int, slots: NDArray[np.int64], now_ms: int) -> tuple[Keys, NDArray[np.bool_]]:
        """Return the pair keys for an epoch of the node, shape ``(n, 32)``, and which clients have a valid session."""
        agreed = self._agreed_in(epoch)
        ends_ms = np.array(self._ends, dtype=np.int64)
        valid = (slots >= 0) & (ends_ms[slots] > now_ms) if len(ends_ms) else np.zeros(slots.size, dtype=np.bool_)
        if not valid.any():
            return np.zeros((slots.size, KEY_BYTES), dtype=np.uint8), valid
        self._agree_all(epoch, slots[valid & ~agreed.known[slots]])
        valid &= agreed.known[slots]
        return agreed.keys[slots], valid

    def _agree_all(self, epoch: int, slots: NDArray[np.int64]) -> None:
        """Agree on the pair keys of clients that have a current session."""
        own, agreed = self._keys.key(epoch), self._agreed_in(epoch)
        if own is None:
            return
        fields = (self._federation.id, self._own, epoch, own.secret)

        def part(start: int, end: int) -> AgreeWork:
            return AgreeWork(*fields, [self._public(slot) for slot in slots[start:end].tolist()])

        keys = b"".join(self._pool.spread(agree_all, slots.size, _AGREE_US, part))
        agreed.keys[slots] = np.frombuffer(keys, dtype=np.uint8).reshape(-1, KEY_BYTES)
        agreed.known[slots] = True

    def _public(self, slot: int) -> tuple[bytes, int, bytes]:
        """Return a client's id, and the epoch and the key of its current session, which exists."""
        current = self._stored(slot).current
        assert current is not None, "the caller chose clients with a session"
        return self._clients[slot], current.epoch, current.public

    def _current_key(self, epoch: int, slot: int, now_ms: int) -> bytes | None:
        """Return the pair key of a client's newest session; None without one."""
        if slot < 0 or now_ms >= self._ends[slot]:
            return None
        agreed = self._agreed_in(epoch)
        key = agreed.get(slot)
        if key is None:
            key = self._agree(epoch, slot, self._stored(slot).current)
            if key is not None:
                agreed.note(slot, key)
        return key

    def keys_of(self, client: bytes, epoch: int, now_ms: int) -> Iterator[bytes]:
        """Yield the pair keys for one client in an epoch of the node: of its newest session, then of the previous."""
        slot = self.slots.get(client, -1)
        for find in (self._current_key, self.previous_key):
            if (key := find(epoch, slot, now_ms)) is not None:
                yield key

    def previous_key(self, epoch: int, slot: int, now_ms: int) -> bytes | None:
        """Return the pair key of the session before the current one, if it has not expired."""
        previous = self._previous(slot, now_ms)
        return None if previous is None else self._agree(epoch, slot, previous)

    def previous_keys(self, epoch: int, slots: NDArray[np.int64], now_ms: int) -> tuple[Keys, NDArray[np.bool_]]:
        """Return `previous_key` for many clients, shape ``(n, 32)``, and which have one.

        After an epoch's end these may be all clients of a round, so the pool agrees on the keys.
        """
        own = self._keys.key(epoch)
        keys, valid = np.zeros((slots.size, KEY_BYTES), dtype=np.uint8), np.zeros(slots.size, dtype=np.bool_)
        if own is None:
            return keys, valid
        fields = (self._federation.id, self._own, epoch, own.secret)

        def part(start: int, end: int) -> AgreeWork:
            clients = []
            for place, slot in enumerate(slots[start:end].tolist(), start):
                previous = self._previous(slot, now_ms)
                if previous is not None:
                    valid[place] = True
                    clients.append((self._clients[slot], previous.epoch, previous.public))
            return AgreeWork(*fields, clients)

        found = b"".join(self._pool.spread(agree_all, slots.size, _AGREE_US, part))
        keys[valid] = np.frombuffer(found, dtype=np.uint8).reshape(-1, KEY_BYTES)
        return keys, valid

    def _previous(self, slot: int, now_ms: int) -> Session | None:
        """Return a client's session before the current one, if it has not expired."""
        previous = self._stored(slot).previous if slot >= 0 else None
        return None if previous is None or now_ms >= self._ends_ms(previous) else previous

    def _agree(self, epoch: int, slot: int, session: Session | None) -> bytes | None:
        own = self._keys.key(epoch)
        if own is None or session is None:
            return None
        client = (self._clients[slot], session.epoch)
        return pair_key(own, session.public, self._federation.id, client, (self._own, epoch))
