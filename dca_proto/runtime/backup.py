"""Backups of actors' stores, and stores that are made from them (DESIGN §8.1).

A backup is one file, encrypted under a key of the identity, of mode 0600. It is the store of one moment, made while its
actor runs, and replaces an earlier one as a whole. It has no secret of an epoch, so whoever reads it and the key
later learns nothing about earlier rounds but what the ledger states.

    DCA-BACKUP ‖ format (1 byte) ‖ nonce (24 bytes) ‖ XChaCha20-Poly1305 of a MessagePack map

A store is made beside its place and moved there when it is complete and on the disk: first its counter, then the
database. After a kill in between, the actor does not start, and the command can be given again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import NONCE_BYTES, Identity, decrypt, derive, encrypt
from dca_proto.errors import InputError, PeerError, StorageError
from dca_proto.protocol.effects import Persist
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.restore import Rows, kept_in_backup
from dca_proto.runtime.counter import counter_path, store_files
from dca_proto.runtime.files import read_input, sync_folder
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.store_check import STORE_BYTES_MAX, read_store

_MAGIC, _FORMAT = b"DCA-BACKUP", 2
_HEAD_BYTES = len(_MAGIC) + 1 + NONCE_BYTES
_ADVICE = "expected a backup that `dca store backup` wrote"


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup has: of an actor of which role, when it was made, and the records."""

    role: str
    at_ms: int
    records: list[tuple[str, bytes, bytes]]


def make_backup(
    store: Path, role: str, identity: Identity, federation: Federation, at_ms: int, policy: Policy | None = None
) -> Backup:
    """Read a store, whose actor may run. Raises `UsageError` if there is none, or it is damaged.

    `federation` and a client's `policy` are those of its TOML file.
    """
    if not store.exists():
        raise InputError(f"there is no store {store} yet: start its actor once")
    rows = [(table, key, value) for _, table, key, value in read_store(store, identity.store_key)]
    return Backup(role=role, at_ms=at_ms, records=kept_in_backup(role, rows, federation, at_ms, policy))


def write_backup(path: Path, backup: Backup, identity: Identity) -> None:
    """Write a backup, durably and in place of an earlier one.

    Raises:
        StorageError: it cannot be written, or another kind of file is there, such as a store or a key.
    """
    _require_no_other_file(path)
    head = _MAGIC + bytes([_FORMAT]) + secrets.token_bytes(NONCE_BYTES)
    sealed = encrypt(_key(identity), head[-NONCE_BYTES:], msgspec.msgpack.encode(backup), head[:-NONCE_BYTES])
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(head + sealed)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write the backup {path}: {error.strerror}; name another place") from None
    finally:
        draft.unlink(missing_ok=True)


def _require_no_other_file(path: Path) -> None:
    """Raise `StorageError` if something is there that does not begin as a backup does."""
    try:
        if not path.exists():
            return
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) == _MAGIC:
                    return
    except OSError as error:
        raise StorageError(f"cannot write the backup {path}: {error.strerror}; name another place") from None
    raise StorageError(f"{path} is there and is no backup: only an earlier backup is replaced; name another place")


def read_backup(path: Path, role: str, identity: Identity) -> Backup:
    """Read a backup of this actor. Raises `UsageError`."""
    size = path.stat().st_size if path.is_file() else 0  # a buffer of the largest size would not fit into memory
    content = read_input(path, _ADVICE, bytes_max=max(_HEAD_BYTES, min(size, STORE_BYTES_MAX)))
    if not content.startswith(_MAGIC) or len(content) < _HEAD_BYTES:
        raise InputError(f"{path} is no backup of a store; {_ADVICE}")
    if content[len(_MAGIC)] != _FORMAT:
        found = f"found format {content[len(_MAGIC)]}, expected {_FORMAT}"
        raise InputError(f"backup {path} is of another version ({found}): use the version that wrote it")
    nonce = content[_HEAD_BYTES - NONCE_BYTES : _HEAD_BYTES]
    try:
        plain = decrypt(_key(identity), nonce, content[_HEAD_BYTES:], content[: _HEAD_BYTES - NONCE_BYTES])
        backup = msgspec.msgpack.decode(plain, type=Backup)
    except (PeerError, msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(
            f"backup {path} is damaged, or was made under another identity: name a backup of this actor, and its key"
        ) from None
    if backup.role != role:
        raise InputError(f"backup {path} is of a {backup.role}, expected one of a {role}: name this actor's own file")
    return backup


def make_store(path: Path, identity: Identity, records: Rows) -> None:
    """Make a store with these records where there is none. Raises `StorageError` if any file of one is there."""
    for there in (path, Path(f"{path}-wal"), counter_path(path)):
        if there.exists():
            raise StorageError(
                f"{there} exists: a store is never overwritten. Stop its actor; move {path.name}, {path.name}-wal, "
                f"{path.name}-shm and {counter_path(path).name} away, and delete them once the actor runs again"
            )
    draft = path.with_name(f"{path.name}.restoring")
    _remove(draft)
    try:
        asyncio.run(_fill(draft, identity, [Persist(*record) for record in records]))
        counter_path(draft).replace(counter_path(path))
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot make the store {path}: {error.strerror}; free space or check the rights") from None
    finally:
        _remove(draft)


async def _fill(path: Path, identity: Identity, records: Sequence[Persist]) -> None:
    store = SqliteStore(path, identity.store_key)
    try:
        await store.commit(records)
        store.compact()  # all of it into the file itself, which is moved without its log
    finally:
        await store.close()


def _remove(store: Path) -> None:
    for path in store_files(store):
        with contextlib.suppress(OSError):
            path.unlink()


def _key(identity: Identity) -> bytes:
    return derive(identity.store_key, labels.BACKUP)
