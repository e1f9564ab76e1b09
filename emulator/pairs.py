"""Recomputes the keys that clients share with Compute nodes, and the tags, masks and receipts under them.

Secrets are read from the disks of the actors that made them. `emulator.derivations` computes the rest from the
specification, and not from the core, so that a mistake there shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from nacl.bindings import crypto_scalarmult_base

from dca_proto.protocol.effects import Persist, Write
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.wire.messages import EpochKey
from emulator.derivations import TAG_BYTES, contribution_keys, pair_key, tag_and_mask
from emulator.sim.process import Process


class Pairs:
    """The epoch keys of all actors, and the keys that pairs of them share.

    Args:
        federation_id: that the keys are bound to.
    """

    def __init__(self, federation_id: bytes) -> None:
        self._federation_id = federation_id
        self._secrets: dict[bytes, bytes] = {}  # by public key
        self._noted: set[tuple[bytes, bytes]] = set()  # actors and secrets
        self._own = defaultdict[bytes, list[tuple[int, bytes]]](list)  # each actor's epochs and public keys
        self._shared: dict[tuple[bytes, bytes], bytes] = {}

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Note the epoch keys in an actor's writes."""
        for write in writes:
            if isinstance(write, Persist) and write.table == EPOCHS:
                self.note(process.id, write.key, write.value)

    def read(self, process: Process) -> None:
        """Note the epoch keys on an actor's disk."""
        for (table, key), value in process.disk.records.items():
            if table == EPOCHS:
                self.note(process.id, key, value)

    def note(self, actor: bytes, epoch: bytes, secret: bytes) -> None:
        """Note an actor's secret of an epoch, as its record has them."""
        if (actor, secret) in self._noted:
            return
        public = crypto_scalarmult_base(secret)
        self._noted.add((actor, secret))
        self._secrets[public] = secret
        self._own[actor].append((int.from_bytes(epoch, "big"), public))

    def secret_of(self, public: bytes) -> bytes | None:
        """Return the secret of an epoch key; None if no actor has made it."""
        return self._secrets.get(public)

    def keys(self, nodes: Sequence[EpochKey], client: bytes) -> Iterator[list[bytes]]:
        """Yield the keys that a client shares with these Compute nodes, for each of its own keys, the newest first."""
        for epoch, public in reversed(self._own[client]):
            keys = [self._key(node, client, epoch, public) for node in nodes]
            if None not in keys:
                yield [key for key in keys if key is not None]

    def has(self, actor: bytes, public: bytes) -> bool:
        """Return True if an actor has made that key."""
        return any(own == public for _, own in self._own[actor])

    def secrets(self, actor: bytes, is_over: Callable[[int], bool]) -> Iterator[tuple[str, bytes]]:
        """Yield an actor's secrets of the epochs that are over, and the known keys that it shared by them, with names.

        Nobody may have them any more: they open what was sent then.
        """
        over = {public: epoch for epoch, public in self._own[actor] if is_over(epoch)}
        for public, epoch in over.items():
            yield f"the secret of epoch {epoch}", self._secrets[public]
        for ends, shared in self._shared.items():
            for epoch in {over[public] for public in ends if public in over}:
                yield f"a pair key of epoch {epoch}", shared

    def mask(
        self, node: EpochKey, client: bytes, tag: bytes, announcement_hash: bytes, entry: bytes, dimension: int
    ) -> bytes | None:
        """Return a node's mask of an entry, under the client's key that gives `tag`; None if no key gives it."""
        key = self.key_of(node, client, tag, announcement_hash, entry)
        return None if key is None else tag_and_mask(key, announcement_hash, entry, dimension)[TAG_BYTES:]

    def key_of(self, node: EpochKey, client: bytes, tag: bytes, announcement_hash: bytes, entry: bytes) -> bytes | None:
        """Return the key that a client and a node share, under which an entry has this tag; None if there is none."""
        named = self.public_of(node, client, tag, announcement_hash, entry)
        return None if named is None else self._key(node, client, *named)

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
                _, receipt, late = contribution_keys(key, announcement_hash, contribution)
                meanings[receipt], meanings[late] = "receipt", "late"
        return meanings

    def sealed_with(
        self, node: EpochKey, client: bytes, announcement_hash: bytes, contribution: bytes, receipt: bytes
    ) -> bytes:
        """Return the client's public key under which a contribution has this receipt; empty if there is none."""
        for epoch, public in reversed(self._own[client]):
            key = self._key(node, client, epoch, public)
            if key is not None and contribution_keys(key, announcement_hash, contribution)[1] == receipt:
                return public
        return b""

    def _key(self, node: EpochKey, client: bytes, epoch: int, public: bytes) -> bytes | None:
        shared = self._shared.get((node.public, public))
        own = self._secrets.get(node.public)
        if shared is None and own is not None:
            shared = self._shared[node.public, public] = pair_key(
                own, public, node.public, self._federation_id, (client, epoch), (node.compute, node.epoch)
            )
        return shared
