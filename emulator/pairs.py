"""Recomputes the keys that clients share with Compute nodes, and the tags, masks and receipts under them.

Secrets are read from the disks of the actors that made them. The derivations are written here a second time, from the
specification (DESIGN §2.4) and not from those of the core, so that a mistake there shows.
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
    """The epoch keys of all actors, and the keys that pairs of them share.

    Args:
        federation_id: that the keys are bound to.
    """

    def __init__(self, federation_id: bytes) -> None:
        self._federation_id = federation_id
        self._secrets: dict[bytes, AgreementKey] = {}  # by public key
        self._own = defaultdict[bytes, list[tuple[int, bytes]]](list)  # each actor's epochs and public keys
        self._shared: dict[tuple[bytes, bytes], bytes] = {}

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Note the epoch keys in an actor's writes."""
        for write in writes:
            if isinstance(write, Persist) and write.table == EPOCHS:
                self._note(process.id, write.key, write.value)

    def read(self, process: Process) -> None:
        """Note the epoch keys on an actor's disk."""
        for (table, key), value in process.disk.records.items():
            if table == EPOCHS:
                self._note(process.id, key, value)

    def _note(self, actor: bytes, epoch: bytes, secret: bytes) -> None:
        key = AgreementKey(secret)
        self._secrets[key.public] = key
        self._own[actor].append((int.from_bytes(epoch, "big"), key.public))

    def has(self, actor: bytes, public: bytes) -> bool:
        """Return True if an actor has made that key."""
        return any(own == public for _, own in self._own[actor])

    def mask(
        self, node: EpochKey, client: bytes, tag: bytes, announcement_hash: bytes, entry: bytes, dimension: int
    ) -> bytes | None:
        """Return a node's mask of an entry, under the client's key that gives `tag`; None if no key gives it."""
        named = self.public_of(node, client, tag, announcement_hash, entry)
        key = None if named is None else self._key(node, client, *named)
        return None if key is None else tag_and_mask(key, announcement_hash, entry, dimension)[TAG_BYTES:]

    def public_of(
        self, node: EpochKey, client: bytes, tag: bytes, announcement_hash: bytes, entry: bytes
    ) -> tuple[int, bytes] | None:
        """Return the epoch and public key of the client that give an entry its tag; None if no key gives it."""
        for epoch, public in reversed(self._own[client]):
            key = self._key(node, client, epoch, public)
            if key is not None and tag_and_mask(key, announcement_hash, entry, 0) == tag:
                return epoch, public
        return None

    def receipts(
        self, node: EpochKey, client: bytes, announcement_hash: bytes, contribution: bytes
    ) -> dict[bytes, Literal["receipt", "late"]]:
        """Return the possible tags of a node's answer to a contribution, under each key of the client, with meaning."""
        meanings: dict[bytes, Literal["receipt", "late"]] = {}
        for epoch, public in self._own[client]:
            key = self._key(node, client, epoch, public)
            if key is not None:
                message = announcement_hash + contribution
                mac = hashlib.blake2b(message, digest_size=64, key=key, person=b"dca4-one").digest()
                meanings[mac[32:48]], meanings[mac[48:]] = "receipt", "late"
        return meanings

    def _key(self, node: EpochKey, client: bytes, epoch: int, public: bytes) -> bytes | None:
        shared = self._shared.get((node.public, public))
        own = self._secrets.get(node.public)
        if shared is None and own is not None:
            point = crypto_scalarmult(own.secret, public)
            ends = (client, epoch.to_bytes(4, "big"), node.compute, node.epoch.to_bytes(4, "big"))
            parts = (point, *sorted((node.public, public)), self._federation_id, *ends)
            shared = self._shared[node.public, public] = digest(b"dca4-pair", *parts)
        return shared


def tag_and_mask(pair_key: bytes, announcement_hash: bytes, entry: bytes, dimension: int) -> bytes:
    """Return the tag and mask of one pair for one entry: 8 bytes and d words."""
    size = TAG_BYTES + WORD_BYTES * dimension
    sponge = hashlib.shake_128(pair_key + b"dca4-mask" + announcement_hash + entry)
    if size <= _SPONGE_BYTES_MAX:
        return sponge.digest(size)
    head = sponge.digest(TAG_BYTES + 32)
    return head[:TAG_BYTES] + randombytes_buf_deterministic(size - TAG_BYTES, head[TAG_BYTES:])
