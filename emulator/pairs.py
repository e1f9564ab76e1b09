"""The keys that clients share with Compute nodes, and the tags, masks and receipts under them, computed a second time.

All secrets are read from the disks of those who made them. The derivations stand here as the specification has them
(DESIGN §2.4), beside and not by those of the core, so that a mistake there shows.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from nacl.bindings import crypto_scalarmult, randombytes_buf_deterministic

from dca_proto.crypto.sealing import AgreementKey, digest
from dca_proto.protocol.effects import Persist, Write
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.wire.messages import EpochKey
from emulator.sim.process import Process

TAG_BYTES, WORD_BYTES = 8, 8
_SPONGE_BYTES_MAX = 1024


class Pairs:
    """What every actor's epoch keys are, and what two of them share.

    Args:
        federation_id: that all keys are bound to.
    """

    def __init__(self, federation_id: bytes) -> None:
        self._federation_id = federation_id
        self._secrets: dict[bytes, AgreementKey] = {}  # by public key
        self._own = defaultdict[bytes, list[tuple[int, bytes]]](list)  # each actor's epochs and public keys
        self._shared: dict[tuple[bytes, bytes], bytes] = {}

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Note the keys that an actor has made."""
        for write in writes:
            if isinstance(write, Persist) and write.table == EPOCHS:
                self._note(process.id, write.key, write.value)

    def read(self, process: Process) -> None:
        """Note the keys on an actor's disk."""
        for (table, key), value in process.disk.records.items():
            if table == EPOCHS:
                self._note(process.id, key, value)

    def _note(self, actor: bytes, epoch: bytes, secret: bytes) -> None:
        key = AgreementKey(secret)
        self._secrets[key.public] = key
        self._own[actor].append((int.from_bytes(epoch, "big"), key.public))

    def has(self, actor: bytes, public: bytes) -> bool:
        """Whether an actor has made that key."""
        return any(own == public for _, own in self._own[actor])

    def mask(
        self, node: EpochKey, client: bytes, tag: bytes, announcement_hash: bytes, entry: bytes, dimension: int
    ) -> bytes | None:
        """The mask of an entry at one node, under that key of the client whose tag is `tag`; None for a false tag."""
        found = self.public_of(node, client, tag, announcement_hash, entry)
        key = None if found is None else self._key(node, client, *found)
        return None if key is None else tag_and_mask(key, announcement_hash, entry, dimension)[TAG_BYTES:]

    def public_of(
        self, node: EpochKey, client: bytes, tag: bytes, announcement_hash: bytes, entry: bytes
    ) -> tuple[int, bytes] | None:
        """The epoch and the public key of the client under which an entry has that tag; None for a false tag."""
        for epoch, public in reversed(self._own[client]):
            key = self._key(node, client, epoch, public)
            if key is not None and tag_and_mask(key, announcement_hash, entry, 0) == tag:
                return epoch, public
        return None

    def receipts(
        self, node: EpochKey, client: bytes, announcement_hash: bytes, contribution: bytes
    ) -> dict[bytes, Literal["receipt", "late"]]:
        """By tag, what a node's receipt of one contribution can mean, under each key of the client."""
        found: dict[bytes, Literal["receipt", "late"]] = {}
        for epoch, public in self._own[client]:
            key = self._key(node, client, epoch, public)
            if key is not None:
                made = _mac(key, b"dca4-one", announcement_hash + contribution)
                found[made[32:48]], found[made[48:]] = "receipt", "late"
        return found

    def _key(self, node: EpochKey, client: bytes, epoch: int, public: bytes) -> bytes | None:
        found = self._shared.get((node.public, public))
        own = self._secrets.get(node.public)
        if found is None and own is not None:
            point = crypto_scalarmult(own.secret, public)
            ends = (client, epoch.to_bytes(4, "big"), node.compute, node.epoch.to_bytes(4, "big"))
            parts = (point, *sorted((node.public, public)), self._federation_id, *ends)
            found = self._shared[node.public, public] = digest(b"dca4-pair", *parts)
        return found


def _mac(key: bytes, person: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=64, key=key, person=person).digest()


def tag_and_mask(pair_key: bytes, announcement_hash: bytes, entry: bytes, dimension: int) -> bytes:
    """The tag and the mask of one pair for one entry: 8 bytes and d words."""
    size = TAG_BYTES + WORD_BYTES * dimension
    sponge = hashlib.shake_128(pair_key + b"dca4-mask" + announcement_hash + entry)
    if size <= _SPONGE_BYTES_MAX:
        return sponge.digest(size)
    head = sponge.digest(TAG_BYTES + 32)
    return head[:TAG_BYTES] + randombytes_buf_deterministic(size - TAG_BYTES, head[TAG_BYTES:])
