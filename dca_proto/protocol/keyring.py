"""X25519 keys by epoch: one key agreement per pair and epoch, forward secrecy by epoch (DESIGN §2.2, §2.4).

A key is deleted when its epoch and a grace period are over: no round that uses it may end later (§4.1). A key of an
epoch far in the future, made while the clock ran ahead, is deleted as well.
"""

from __future__ import annotations

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import KEY_BYTES, AgreementKey, Identity, Random
from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Forget, Persist, Write
from dca_proto.protocol.params import Timing
from dca_proto.protocol.records import Records, sized
from dca_proto.protocol.wire.messages import EpochKey
from dca_proto.wording import duration, moment

TABLE = "epoch"
SEEN = "seen"
_EPOCH_BYTES = 4


class Keyring:
    """An actor's own epoch keys, restored from its store. New keys also depend on the identity's secret.

    Attributes:
        epoch: the newest that has a key.
    """

    def __init__(self, records: Records, timing: Timing, identity: Identity, random: Random) -> None:
        stored = ((epoch_of(key), sized(TABLE, value, KEY_BYTES)) for table, key, value in records if table == TABLE)
        self._keys = {epoch: AgreementKey(secret) for epoch, secret in stored}
        self._timing = timing
        self._identity = identity
        self._random = random
        self.epoch = max(self._keys, default=0)

    @property
    def public(self) -> bytes:
        """The newest epoch's public key."""
        return self._keys[self.epoch].public

    @property
    def expires_ms(self) -> int:
        """The end of the newest epoch."""
        return (self.epoch + 1) * self._timing.epoch_ms

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs that have a key."""
        return tuple(self._keys)

    def next_turn_ms(self, now_ms: int) -> int:
        """Return when the next key must be made or deleted."""
        ends = ((epoch + 1) * self._timing.epoch_ms for epoch in self._keys)
        turns = [at_ms for end_ms in ends for at_ms in (end_ms, end_ms + self._timing.epoch_grace_ms)]
        return min((at_ms for at_ms in turns if at_ms > now_ms), default=now_ms)

    def key(self, epoch: int) -> AgreementKey | None:
        """Return the key of an epoch; None if there is none."""
        return self._keys.get(epoch)

    def renew(self, now_ms: int) -> list[Write]:
        """Make the current epoch's key if there is none, and delete keys that are over or far ahead of the clock."""
        timing, current = self._timing, now_ms // self._timing.epoch_ms
        over = [
            epoch
            for epoch in sorted(self._keys)
            if epoch > current + 1 or (epoch + 1) * timing.epoch_ms + timing.epoch_grace_ms <= now_ms
        ]
        writes: list[Write] = [Forget(TABLE, epoch_bytes(epoch)) for epoch in over]
        for epoch in over:
            del self._keys[epoch]
        if not any(epoch >= current for epoch in self._keys):  # the clock may have been set back
            fresh = self._random(KEY_BYTES) + epoch_bytes(current) + now_ms.to_bytes(8, "big")
            secret = self._identity.hedged(labels.EPOCH, fresh)
            self._keys[current] = AgreementKey(secret)
            writes.append(Persist(TABLE, epoch_bytes(current), secret))
        self.epoch = max(self._keys)
        return writes

    def __repr__(self) -> str:
        return f"Keyring(epochs={sorted(self._keys)})"


class SeenEpochs:
    """The highest epoch seen from each Compute node. A lower one comes from a restored copy or a replay.

    Epochs more than one ahead of this clock are refused. One remembered while this clock ran ahead is ignored.
    """

    def __init__(self, records: Records, timing: Timing) -> None:
        self._grace_ms = timing.epoch_grace_ms
        self._epoch_ms = timing.epoch_ms
        stored = ((key, sized(SEEN, value, _EPOCH_BYTES)) for table, key, value in records if table == SEEN)
        self._seen = {key: epoch_of(value) for key, value in stored}
        self._noted: tuple[EpochKey, ...] | None = None  # keys of the last `note`, shared by a process
        self._noted_ms = self._noted_until_ms = 0

    def check(self, keys: tuple[EpochKey, ...], now_ms: int) -> None:
        """Refuse keys if `wrong` returns one. Raises `PeerError("epoch")`."""
        wrong = self.wrong(keys, now_ms)
        if wrong is not None:
            raise PeerError("epoch", found=f"epoch {wrong[0].epoch}", expected=wrong[1])

    def wrong(self, keys: tuple[EpochKey, ...], now_ms: int) -> tuple[EpochKey, str] | None:
        """Return a key that is too far ahead or outdated, and the expected epoch in words; None if all are right."""
        if keys is self._noted and self._noted_ms <= now_ms < self._noted_until_ms:
            return None
        ahead = now_ms // self._epoch_ms + 1
        for key in keys:
            if key.epoch > ahead:
                return key, too_far_ahead(key.epoch, self._epoch_ms, now_ms)
            least = min(self._seen.get(key.compute, 0), ahead)  # `seen` may be too high if this clock once ran ahead
            in_grace = key.epoch == least - 1 and now_ms < key.expires_ms + self._grace_ms
            if key.epoch < least and not in_grace:
                return key, f"{least} or later, as this node has shown before"
        return None

    def note(self, keys: tuple[EpochKey, ...], now_ms: int) -> list[Write]:
        """Record the epochs of keys that `wrong` accepts, if they are higher than before or correct a future one."""
        if keys is self._noted and self._noted_ms <= now_ms:
            return []
        self._noted, self._noted_ms = keys, now_ms
        self._noted_until_ms = min((key.expires_ms for key in keys), default=0)
        ahead = now_ms // self._epoch_ms + 1
        newer = [key for key in keys if not key.epoch <= self._seen.get(key.compute, 0) <= ahead]
        self._seen.update((key.compute, key.epoch) for key in newer)
        return [Persist(SEEN, key.compute, epoch_bytes(key.epoch)) for key in newer]


def too_far_ahead(epoch: int, epoch_ms: int, now_ms: int) -> str:
    """Return what this clock expects in place of an epoch that begins too late, in words."""
    by = f"at most {now_ms // epoch_ms + 1} by this clock, {moment(now_ms)}"
    return f"{by}; one of the two clocks is wrong by {duration(epoch * epoch_ms - now_ms)} or more"


def epoch_bytes(epoch: int) -> bytes:
    """Encode an epoch, as a record's key and as part of a pair key's binding."""
    return epoch.to_bytes(_EPOCH_BYTES, "big")


def epoch_of(key: bytes) -> int:
    """Decode an epoch."""
    return int.from_bytes(key, "big")
