"""Sessions: a client's X25519 key for an epoch, and the keys that it shares with each Compute node (DESIGN §2.3, §2.4).

`OwnSession` is the client's side: it makes the key, signs the `Hello`, and agrees on a key with each node once.
`Sessions` is the Compute node's side: it verifies each Hello, and keeps a client's newest two until they expire.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import Keys
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, AgreementKey, Identity, Random, actor_id, check_public, digest
from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Persist, Write
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import Keyring, epoch_bytes
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.records import Records, loaded, signed
from dca_proto.protocol.wire.codec import encode, open_signed, sign, verify_signed
from dca_proto.protocol.wire.messages import Certificate, EpochKey, Hello, Signed

HELLO, SESSIONS = "hello", "session"
_ID = np.dtype(f"S{ID_BYTES}")
_PAIR = b"dca4-pair"


def pair_key(
    own: AgreementKey, peer: bytes, federation: Federation, client: tuple[bytes, int], compute: tuple[bytes, int]
) -> bytes:
    """Return k_ij, the same on both sides. `client` and `compute` are (id, epoch of its key) pairs."""
    binding = [part for actor, epoch in (client, compute) for part in (actor, epoch_bytes(epoch))]
    return own.agree(peer, _PAIR, federation.id, *binding)


def hello_hash(payload: bytes) -> bytes:
    """Return the hash that identifies an encoded Hello."""
    return digest(b"dca4-hello", payload)


class OwnSession:
    """A client's session of the newest epoch."""

    def __init__(
        self,
        identity: Identity,
        certificate: Certificate,
        federation: Federation,
        *,
        records: Records,
        timing: Timing,
        random: Random,
    ) -> None:
        self._identity = identity
        self._certificate = certificate
        self._federation = federation
        self._timing = timing
        self._keys = Keyring(records, timing, identity, random)
        self._agreed: dict[EpochKey, bytes] = {}  # pair keys of the newest epoch, by the node's key
        self._epochs: tuple[EpochKey, ...] = ()  # the nodes' keys in the last round, and the pair keys for them
        self._pair_keys: list[bytes] = []
        self.hello = next((value for table, _, value in records if table == HELLO), b"")
        self.hash = hello_hash(self.hello)
        self._signed = signed(HELLO, self.hello) if self.hello else None

    def renew(self, now_ms: int) -> list[Write]:
        """Make the current epoch's key and its Hello, unless they exist; delete expired keys."""
        writes = self._keys.renew(now_ms)
        last: Hello | None = None  # may name a federation file that was replaced
        if self._signed is not None:
            with contextlib.suppress(PeerError):
                last = open_signed(self._signed, self._identity.public_key, self._federation.id, Hello)
        if last is None or (last.public, last.certificate) != (self._keys.public, self._certificate):
            body = Hello(
                self._certificate,
                self._keys.epoch,
                max(now_ms, last.serial + 1 if last else 0),  # increases even if the clock was set back
                self._keys.public,
                self._keys.expires_ms,
                self._federation.stamp,
            )
            self._signed = sign(self._identity, self._federation.id, body)
            self.hello = encode(self._signed)
            self.hash = hello_hash(self.hello)
            self._agreed.clear()
            self._epochs = ()
            writes.append(Persist(HELLO, b"", self.hello))
        return writes

    def adopt(self, federation: Federation) -> None:
        """Name this file in the next Hello."""
        self._federation = federation

    def covers(self, until_ms: int) -> bool:
        """Return True if the newest key and its session last until `until_ms`."""
        return bool(self.hello) and until_ms <= self._keys.expires_ms + self._timing.epoch_grace_ms

    def turn_ms(self, now_ms: int, spread: float) -> int:
        """Return when to `renew` next: after the epoch's end. `spread`, from 0 to 1, spreads the clients."""
        return self._keys.next_turn_ms(now_ms) + int(spread * self._timing.hello_spread_ms)

    def pair_keys(self, epochs: tuple[EpochKey, ...]) -> list[bytes]:
        """Return the pair keys for the Compute nodes' `epochs` keys, in their order. Raises `PeerError`."""
        if epochs is not self._epochs:  # a process shares one tuple between all rounds with these keys
            self._epochs, self._pair_keys = epochs, [self._agree(key) for key in epochs]
        return self._pair_keys

    def _agree(self, key: EpochKey) -> bytes:
        agreed = self._agreed.get(key)
        if agreed is None:
            own = self._keys.key(self._keys.epoch)
            assert own is not None, "the newest key exists"
            client, compute = (self._identity.id, self._keys.epoch), (key.compute, key.epoch)
            agreed = self._agreed[key] = pair_key(own, key.public, self._federation, client, compute)
        return agreed


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
    """A client's record: its slot, which never changes, and its newest two sessions."""

    slot: int
    current: Session | None = None
    previous: Session | None = None


class Sessions:
    """All clients' sessions at one Compute node, whose id is `own` and whose epoch keys are `keys`.

    Attributes:
        slots: the slot of each known client, which never changes.
    """

    def __init__(
        self,
        records: Iterable[tuple[str, bytes, bytes]],
        federation: Federation,
        *,
        own: bytes,
        keys: Keyring,
        limits: Limits,
        timing: Timing,
    ) -> None:
        self._federation = federation
        self._own = own
        self._keys = keys
        self._limits = limits
        self._timing = timing
        self.slots: dict[bytes, int] = {}
        self._stored: list[StoredSession] = []
        self._clients: list[bytes] = []
        self._ends: list[int] = []  # when each client's current session ends, by slot
        self._agreed: dict[int, _AgreedKeys] = {}  # pair keys of current sessions, by the node's epoch
        self._order = np.zeros(0, dtype=np.int64)  # slots in the order of ids, as `slots_of` last sorted them
        self._sorted = np.zeros(0, dtype=_ID)
        for client, stored in sorted(loaded(records, SESSIONS, StoredSession).items(), key=lambda item: item[1].slot):
            self._place(client, stored)

    def __len__(self) -> int:
        """Return how many clients ever had a session."""
        return len(self._stored)

    def count_valid(self, now_ms: int) -> int:
        """Return how many clients have a valid session now."""
        return sum(now_ms < end_ms for end_ms in self._ends)

    def _place(self, client: bytes, stored: StoredSession) -> None:
        assert stored.slot == len(self._stored), "slots are assigned in order"
        self.slots[client] = stored.slot
        self._stored.append(stored)
        self._clients.append(client)
        self._ends.append(self._ends_ms(stored.current))

    def adopt(self, federation: Federation) -> list[Write]:
        """Switch to a newer federation file, and end the sessions of the clients that it revokes."""
        self._federation = federation
        writes: list[Write] = []
        for client in federation.revoked:
            slot = self.slots.get(client)
            if slot is not None and self._stored[slot].current is not None:
                self._stored[slot], self._ends[slot] = StoredSession(slot), 0
                self._forget_agreed(slot)
                writes.append(Persist(SESSIONS, client, encode(self._stored[slot])))
        return writes

    def take(self, sender: bytes, frame: Signed, body: Hello, now_ms: int) -> list[Write]:
        """Store a client's Hello if it verifies and is the newest; ignore a known one. Raises `PeerError`."""
        frame_hash = hello_hash(encode(frame))
        slot = self.slots.get(sender)
        stored = StoredSession(len(self._stored)) if slot is None else self._without_future(self._stored[slot], now_ms)
        newest = Session(body.epoch, body.serial, frame_hash, body.public, body.expires_ms, body.certificate.expires_ms)
        if stored.current is not None and newest.rank <= stored.current.rank:
            if frame_hash in (stored.current.hash, stored.previous.hash if stored.previous else b""):
                return []
            raise PeerError("hello", found=f"epoch {body.epoch}, an older Hello", expected="a newer one")
        self._check(sender, frame, body, now_ms)
        if slot is None and len(self._stored) >= self._limits.sessions_max:
            raise PeerError("sessions", found=f"{len(self._stored)} sessions", expected="fewer")
        kept = StoredSession(stored.slot, newest, stored.current)
        if slot is None:
            self._place(sender, kept)
        else:
            self._stored[slot], self._ends[slot] = kept, self._ends_ms(newest)
            self._forget_agreed(slot)
        return [Persist(SESSIONS, sender, encode(kept))]

    def _without_future(self, stored: StoredSession, now_ms: int) -> StoredSession:
        """Drop sessions of future epochs, made while both clocks ran ahead: no later Hello could replace them."""
        latest = now_ms // self._timing.epoch_ms + 1
        sessions = (stored.current, stored.previous)
        return StoredSession(stored.slot, *(s for s in sessions if s is not None and s.epoch <= latest))

    def _check(self, sender: bytes, frame: Signed, body: Hello, now_ms: int) -> None:
        if actor_id(body.certificate.client_key) != sender:
            raise PeerError("sender", found=sender.hex(), expected="the client of the certificate")
        self._federation.check_stamp(body.file)
        if (
            not now_ms
            < body.expires_ms + self._timing.epoch_grace_ms
            <= now_ms + 2 * self._timing.epoch_ms + self._timing.epoch_grace_ms
        ):
            raise PeerError("hello", found=f"an epoch that ends at {body.expires_ms}", expected=f"the one at {now_ms}")
        if body.epoch > now_ms // self._timing.epoch_ms + 1:  # no later Hello could replace it
            raise PeerError("hello", found=f"epoch {body.epoch}", expected=f"the one at {now_ms}, or the next")
        self._federation.check_certificate(body.certificate, now_ms)
        verify_signed(frame, body.certificate.client_key, self._federation.id)
        check_public(body.public)

    def _forget_agreed(self, slot: int) -> None:
        for agreed in self._agreed.values():
            agreed.forget(slot)

    def expire(self, epochs: Iterable[int]) -> None:
        """Forget the pair keys of all epochs of the node except `epochs`."""
        kept = set(epochs)
        self._agreed = {epoch: agreed for epoch, agreed in self._agreed.items() if epoch in kept}

    def slots_of(self, ids: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the slots of clients, -1 for unknown ones. The ids are the rows of ``ids``, shape ``(n, 16)``."""
        if not self._stored:
            return np.full(len(ids), -1, dtype=np.int64)
        if len(self._order) < len(self._stored):  # numpy ignores trailing zero bytes, but all ids have one length
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

    def pair_keys(self, epoch: int, slots: NDArray[np.int64], now_ms: int) -> tuple[Keys, NDArray[np.bool_]]:
        """Return the pair keys for an epoch of the node, shape ``(n, 32)``, and which clients have a valid session."""
        agreed = self._agreed.setdefault(epoch, _AgreedKeys())
        agreed.grow(len(self._stored))
        ends_ms = np.array(self._ends, dtype=np.int64)
        valid = (slots >= 0) & (ends_ms[slots] > now_ms) if len(ends_ms) else np.zeros(slots.size, dtype=np.bool_)
        if not valid.any():
            return np.zeros((slots.size, KEY_BYTES), dtype=np.uint8), valid
        for slot in slots[valid & ~agreed.known[slots]].tolist():
            self._current_key(epoch, slot, now_ms)
        valid &= agreed.known[slots]
        return agreed.keys[slots], valid

    def _current_key(self, epoch: int, slot: int, now_ms: int) -> bytes | None:
        """Return the pair key of a client's newest session; None without one."""
        if slot < 0 or now_ms >= self._ends[slot]:
            return None
        agreed = self._agreed.setdefault(epoch, _AgreedKeys())
        agreed.grow(len(self._stored))
        if agreed.known[slot]:
            return bytes(agreed.keys[slot])
        key = self._agree(epoch, slot, self._stored[slot].current)
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
        previous = self._stored[slot].previous if slot >= 0 else None
        if previous is None or now_ms >= self._ends_ms(previous):
            return None
        return self._agree(epoch, slot, previous)

    def _agree(self, epoch: int, slot: int, session: Session | None) -> bytes | None:
        own = self._keys.key(epoch)
        if own is None or session is None:
            return None
        client = (self._clients[slot], session.epoch)
        return pair_key(own, session.public, self._federation, client, (self._own, epoch))


class _AgreedKeys:
    """The pair keys of one epoch, by slot."""

    def __init__(self) -> None:
        self.keys = np.zeros((0, KEY_BYTES), dtype=np.uint8)
        self.known = np.zeros(0, dtype=np.bool_)

    def grow(self, slots: int) -> None:
        more = max(slots, 2 * len(self.known)) - len(self.known)
        if slots > len(self.known):
            self.keys = np.concatenate([self.keys, np.zeros((more, KEY_BYTES), dtype=np.uint8)])
            self.known = np.concatenate([self.known, np.zeros(more, dtype=np.bool_)])

    def note(self, slot: int, key: bytes) -> None:
        self.keys[slot], self.known[slot] = np.frombuffer(key, dtype=np.uint8), True

    def forget(self, slot: int) -> None:
        if slot < len(self.known):
            self.keys[slot], self.known[slot] = 0, False
