"""Stores that earlier code wrote open with today's, and those of a later format are refused (docs/operate.md).

`stores/format-3.tar.xz` has a client's, a Compute node's and a trainer's store in the middle of their second round. The
code before there were backups wrote them. Add a file for each release, and change none.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from round_helpers import exact_actors

from dca_proto.crypto.sealing import Identity
from dca_proto.errors import StorageError
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.compute.actor import SINCE
from dca_proto.protocol.effects import Forget, Persist
from dca_proto.protocol.events import Started
from dca_proto.runtime.store import SqliteStore
from dca_proto.testing import StoreContents, TestFederation

STORES = sorted((Path(__file__).parent / "stores").glob("format-*.tar.xz"))
NOW_MS = 1_700_010_900_000
"""In the second round."""


@pytest.fixture(params=STORES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as stores:
        stores.extractall(tmp_path, filter="data")
    return tmp_path


def identity_and_builder(actors: TestFederation, role: str) -> tuple[Identity, Callable[[StoreContents], Actor]]:
    return {
        "client": (actors.client_identities[0], lambda stored: actors.client(0, stored)),
        "compute": (actors.compute_identities[0], lambda stored: actors.compute(0, stored)),
        "trainer": (actors.trainer_identity, actors.trainer),
    }[role]


@pytest.mark.parametrize("role", ["client", "compute", "trainer"])
def test_an_earlier_store_opens_and_its_actor_goes_on(folder: Path, role: str) -> None:
    identity, build = identity_and_builder(exact_actors(4, 2), role)

    async def start() -> tuple[list[tuple[str, bytes, bytes]], list[tuple[str, bytes, bytes]], Actor]:
        store = SqliteStore(folder / f"{role}.db", identity.store_key)
        before = [(row.table, row.key, row.value) for row in store.load()]
        actor = build(before)
        effects = actor.handle(Started(), NOW_MS)
        await store.commit([effect for effect in effects if isinstance(effect, Persist | Forget)])
        after = [(row.table, row.key, row.value) for row in store.load()]
        await store.close()
        return before, after, actor

    before, after, actor = asyncio.run(start())
    assert len(before) == {"client": 10, "compute": 12, "trainer": 4}[role]
    assert len(actor._rounds) == (1 if role == "client" else 2)
    if role != "compute":
        assert [charge.number for charge in actor.ledger.charges] == [1, 2]
        assert actor.ledger.spent().mu > 0
    else:
        assert actor._charges.highest(0) >= 1
        assert SINCE in {table for table, _, _ in after}, "it has counted charges since now, as far as it knows"


@pytest.mark.parametrize("change", [1, -1])
def test_another_format_is_refused_and_left_as_it_is(folder: Path, change: int) -> None:
    path = folder / "client.db"
    database = sqlite3.connect(path)
    (number,) = database.execute("PRAGMA application_id").fetchone()
    database.execute(f"PRAGMA application_id={number + change}")
    database.close()
    content = path.read_bytes()
    found = f"found format {number % 256 + change}, expected {number % 256}"
    with pytest.raises(StorageError, match=rf"is of another version \({found}\): run the version"):
        SqliteStore(path, exact_actors(4, 2).client_identities[0].store_key)
    assert path.read_bytes() == content
