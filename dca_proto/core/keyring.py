"""X25519 keys by epoch: one agreement per pair and epoch, forward secrecy by epochs (DESIGN §2).

A key is deleted when its epoch, a time of grace and the open rounds that use it are over. Epoch numbers never go back,
whatever the clock does.
"""

from __future__ import annotations

from collections.abc import Iterable

from dca_proto.core.effects import Forget, Persist, Write
from dca_proto.core.errors import PeerError
from dca_proto.core.messages import EpochKey
from dca_proto.core.params import Timing
from dca_proto.core.records import sized
from dca_proto.core.sealing import KEY_BYTES, AgreementKey, Random

TABLE = "epoch"
SEEN = "seen"
_EPOCH_BYTES = 4


class Keyring:
    """An actor's own epoch keys, restored from its store, and the keys agreed with peers.

    Args:
        records: (table, key, value) of the store. timing: how long an epoch lasts. random: for new keys.
    """

    def __init__(self, records: Iterable[tuple[str, bytes, bytes]], timing: Timing, random: Random) -> None:
        stored = ((_epoch(key), sized(TABLE, value, KEY_BYTES)) for table, key, value in records if table == TABLE)
        self._keys = {epoch: AgreementKey(secret) for epoch, secret in stored}
        self._epoch_ms = timing.epoch_ms
        self._grace_ms = timing.epoch_grace_ms
        self._random = random
        self._agreed: dict[tuple[int, bytes], bytes] = {}

    @property
    def epoch(self) -> int:
        """The newest epoch that there is a key of."""
        return max(self._keys)

    @property
    def public(self) -> bytes:
        """The newest epoch's public key."""
        return self._keys[self.epoch].public

    @property
    def expires_ms(self) -> int:
        """When the newest epoch ends."""
        return (self.epoch + 1) * self._epoch_ms

    def next_turn_ms(self, now_ms: int) -> int | None:
        """When there is a key to make or to delete next; None without keys."""
        turns = [at_ms for epoch in self._keys for at_ms in ((epoch + 1) * self._epoch_ms, self._over_ms(epoch))]
        return min((at_ms for at_ms in turns if at_ms > now_ms), default=None)

    def _over_ms(self, epoch: int) -> int:
        return (epoch + 1) * self._epoch_ms + self._grace_ms

    def is_current(self, now_ms: int) -> bool:
        """Whether the newest key is of the current epoch (or of a later one, where the clock went back)."""
        return bool(self._keys) and self.epoch >= now_ms // self._epoch_ms

    def holds(self, epoch: int, public: bytes) -> bool:
        """Whether the secret of that public key is kept here."""
        return epoch in self._keys and self._keys[epoch].public == public

    def renew(self, now_ms: int, in_use: Iterable[int]) -> list[Write]:
        """Make the current epoch's key if there is none, and delete what is over."""
        writes: list[Write] = []
        if not self.is_current(now_ms):
            epoch, secret = now_ms // self._epoch_ms, self._random(KEY_BYTES)
            self._keys[epoch] = AgreementKey(secret)
            writes.append(Persist(TABLE, _key(epoch), secret))
        return [*writes, *self.expire(now_ms, in_use)]

    def expire(self, now_ms: int, in_use: Iterable[int]) -> list[Write]:
        """Delete the keys of past epochs that no open round uses, once their grace is over."""
        past = {epoch for epoch in self._keys if self._over_ms(epoch) <= now_ms}
        if not past:
            return []  # as nearly always: looks neither at the open rounds nor at the agreed keys
        past.difference_update(in_use)
        for epoch in past:
            del self._keys[epoch]
        self._agreed = {pair: key for pair, key in self._agreed.items() if pair[0] not in past}
        return [Forget(TABLE, _key(epoch)) for epoch in sorted(past)]

    def agree(self, epoch: int, peer_public: bytes) -> bytes:
        """The key shared with a peer in one of the own epochs, computed once. Raises `PeerError`."""
        agreed = self._agreed.get((epoch, peer_public))
        if agreed is None:
            own = self._keys.get(epoch)
            if own is None:
                raise PeerError("epoch", found=f"epoch {epoch}", expected="one whose key is kept here")
            agreed = self._agreed[epoch, peer_public] = own.agree(peer_public)
        return agreed

    def __repr__(self) -> str:
        return f"Keyring(epochs={sorted(self._keys)})"


class SeenEpochs:
    """The highest epoch seen of each Compute node: a lower one is of a copy that was restored, or of a replay.

    Args:
        records: (table, key, value) of the store. timing: how long a key outlives its epoch.
    """

    def __init__(self, records: Iterable[tuple[str, bytes, bytes]], timing: Timing) -> None:
        self._grace_ms = timing.epoch_grace_ms
        stored = ((key, sized(SEEN, value, _EPOCH_BYTES)) for table, key, value in records if table == SEEN)
        self._seen = {key: _epoch(value) for key, value in stored}

    def check(self, keys: Iterable[EpochKey], now_ms: int) -> None:
        """Raises `PeerError("epoch")` for an epoch below one seen before; the one before it is good in its grace."""
        for key in keys:
            least = self._seen.get(key.compute, 0)
            in_grace = key.epoch == least - 1 and now_ms < key.expires_ms + self._grace_ms
            if key.epoch < least and not in_grace:
                raise PeerError("epoch", found=f"epoch {key.epoch}", expected=f"{least} or later")

    def note(self, keys: Iterable[EpochKey]) -> list[Write]:
        """Remember those that are higher."""
        newer = [key for key in keys if key.epoch > self._seen.get(key.compute, 0)]
        self._seen.update((key.compute, key.epoch) for key in newer)
        return [Persist(SEEN, key.compute, _key(key.epoch)) for key in newer]


def _key(epoch: int) -> bytes:
    return epoch.to_bytes(_EPOCH_BYTES, "big")


def _epoch(key: bytes) -> int:
    return int.from_bytes(key, "big")
