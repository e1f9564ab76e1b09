"""A client's side of its session: its X25519 key for an epoch, and the keys that it shares with each Compute node.

It makes the key, signs the `Hello`, and agrees on a key with each node once (DESIGN §2.3, §2.4).
"""

from __future__ import annotations

import contextlib

from dca_proto.crypto.sealing import Identity, Random
from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Persist, Write
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import Keyring
from dca_proto.protocol.pairing import hello_hash, pair_key
from dca_proto.protocol.params import Timing
from dca_proto.protocol.records import Records, signed
from dca_proto.protocol.wire.codec import encode, open_signed, sign
from dca_proto.protocol.wire.messages import Certificate, EpochKey, Hello

HELLO = "hello"


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
            self._epochs, self._pair_keys = (), []
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
            agreed = self._agreed[key] = pair_key(own, key.public, self._federation.id, client, compute)
        return agreed
