"""Backups of stores: made while an actor runs, encrypted, whole or not at all; and stores that are made from them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dca_proto.cli import main
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import InputError, StorageError
from dca_proto.protocol.effects import Persist
from dca_proto.protocol.keyring import TABLE as EPOCH_KEYS
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.restore import RESTORED, mark_of
from dca_proto.runtime import backup as module
from dca_proto.runtime.backup import make_backup, make_store, read_backup, write_backup
from dca_proto.runtime.config import read_config
from dca_proto.runtime.counter import counter_path
from dca_proto.runtime.device import load
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.store_check import read_store
from dca_proto.testing import TestFederation

IDENTITY = Identity(bytes(range(32)))
FEDERATION = TestFederation(1, 2).federation
SECRET = b"a secret of an epoch" + bytes(12)
CHARGE = Charge(bytes(16), "mean", bytes(16), 0.2, 1.0, 1e-5, 1_700_000_000_000, 1)
RECORDS = [(LEDGER, bytes(16), msgspec.msgpack.encode(CHARGE)), (EPOCH_KEYS, bytes(4), SECRET)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[SqliteStore]:
    """The store of a client that runs."""
    store = SqliteStore(tmp_path / "client.db", IDENTITY.store_key)
    asyncio.run(store.commit([Persist(*record) for record in RECORDS]))
    yield store
    asyncio.run(store.close())


def test_a_backup_of_a_running_actors_store_comes_back(running: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "b/client.backup"
    path.parent.mkdir()
    for at_ms in (5, 6):  # the second replaces the first
        write_backup(path, make_backup(running.path, "client", IDENTITY, FEDERATION, at_ms), IDENTITY)
    found = read_backup(path, "client", IDENTITY)
    assert (found.role, found.at_ms, found.records[:-1]) == ("client", 6, RECORDS[:1])
    mark = mark_of(found.records)
    assert mark is not None
    assert (mark.backup_ms, mark.computes) == (6, tuple(member.id for member in FEDERATION.computes))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["client.backup"]
    content = path.read_bytes()
    assert SECRET not in content
    assert b"mean" not in content, "it is encrypted"
    asyncio.run(running.commit([Persist(LEDGER, b"\1" * 16, b"later")]))


@pytest.mark.parametrize("place", [0, 10, 11, 40, -1])
def test_a_damaged_backup_is_refused(running: SqliteStore, tmp_path: Path, place: int) -> None:
    path = tmp_path / "client.backup"
    write_backup(path, make_backup(running.path, "client", IDENTITY, FEDERATION, 5), IDENTITY)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is no backup|is of another version \(found format 3, expected 2\)|damaged"):
        read_backup(path, "client", IDENTITY)
    path.write_bytes(content[:20])
    with pytest.raises(InputError):
        read_backup(path, "client", IDENTITY)


def test_a_backup_belongs_to_one_identity_and_role(running: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "client.backup"
    write_backup(path, make_backup(running.path, "client", IDENTITY, FEDERATION, 5), IDENTITY)
    with pytest.raises(InputError, match="was made under another identity"):
        read_backup(path, "client", Identity(bytes(32)))
    with pytest.raises(InputError, match="is of a client, expected one of a trainer"):
        read_backup(path, "trainer", IDENTITY)
    with pytest.raises(InputError, match="there is no store"):
        make_backup(tmp_path / "none.db", "client", IDENTITY, FEDERATION, 5)
    with pytest.raises(StorageError, match="cannot write the backup"):
        write_backup(tmp_path / "no/folder", make_backup(running.path, "client", IDENTITY, FEDERATION, 5), IDENTITY)


@pytest.mark.parametrize("name", ["client-1.key", "client-1.toml", "client-1.db", "federation.toml", "."])
def test_a_backup_replaces_no_file_of_another_kind(demo: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Who mistakes `--to` for the store would lose it, with the actor running."""
    config = read_config(demo / "client-1.toml")
    asyncio.run(SqliteStore(config.files.store, read_identity(config.files.identity, config.role).store_key).close())
    before = (demo / name).read_bytes() if name != "." else b""
    assert main(["store", "backup", "client-1.toml", "--to", name]) == 8
    assert "is no backup: only an earlier backup is replaced" in capsys.readouterr().err
    assert name == "." or (demo / name).read_bytes() == before


@pytest.mark.parametrize("kept", ["", "-wal", "-counter"])
def test_no_file_of_a_store_is_overwritten(tmp_path: Path, kept: str) -> None:
    there = tmp_path / f"client.db{kept}"
    there.write_bytes(b"x")
    with pytest.raises(StorageError, match="a store is never overwritten"):
        make_store(tmp_path / "client.db", IDENTITY, RECORDS)
    assert there.read_bytes() == b"x"


@pytest.mark.parametrize("after", range(3))
def test_a_kill_while_a_store_is_made_leaves_none_that_starts_and_the_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """An empty store would start as one that has spent nothing."""
    path, moves = tmp_path / "client.db", [0]
    usual = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if Path(target).parent == tmp_path and "restoring" in self.name and "new" not in self.name:
            moves[0] += 1
            if moves[0] > after:
                raise KeyboardInterrupt
        return usual(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        if after < 2:
            with pytest.raises(KeyboardInterrupt):
                make_store(path, IDENTITY, RECORDS)
        else:
            make_store(path, IDENTITY, RECORDS)
    if after == 1:
        with pytest.raises(StorageError, match="is missing or empty"):
            SqliteStore(path, IDENTITY.store_key)
        counter_path(path).unlink()
    if after < 2:
        assert not path.exists()
        make_store(path, IDENTITY, RECORDS)
    assert [row[1:] for row in read_store(path, IDENTITY.store_key)] == sorted(RECORDS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["client.db", "client.db-counter"]


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    call = ["federation", "init", "demo", "--computes", "2", "--clients", "1", "--broker", "mqtt://127.0.0.1"]
    assert main([call[0], call[1], str(tmp_path / "demo"), *call[3:]]) == 0
    monkeypatch.chdir(tmp_path / "demo")
    (tmp_path / "demo/client-1.csv").write_text("x\n1\n")
    return tmp_path / "demo"


def spent(demo: Path, name: str) -> Path:
    """An actor's store with a charge."""
    config = read_config(demo / f"{name}.toml")
    identity = read_identity(config.files.identity, config.role)

    async def fill() -> None:
        store = SqliteStore(config.files.store, identity.store_key)
        await store.commit([Persist(*record) for record in RECORDS[:1]])
        await store.close()

    asyncio.run(fill())
    return config.files.store


def lose(store: Path) -> None:
    for path in (store, counter_path(store)):
        path.unlink()


def test_a_client_is_restored_and_asks_first(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = spent(demo, "client-1")
    assert main(["store", "backup", "client-1.toml", "--to", "c.backup"]) in (None, 0)
    assert main(["store", "restore", "client-1.toml", "--from", "c.backup"]) == 8
    assert "a store is never overwritten" in capsys.readouterr().err
    lose(store)
    assert main(["store", "restore", "client-1.toml", "--from", "c.backup"]) in (None, 0)
    assert "it declines until all Compute nodes have told it" in " ".join(capsys.readouterr().out.split())
    device = load(demo / "client-1.toml")
    assert {row[1] for row in read_store(store)} == {LEDGER, RESTORED}
    assert device.config.role == "client"
    assert main(["ledger", "client-1.toml"]) in (None, 0)
    printed = " ".join(capsys.readouterr().out.split())
    assert "spent at least epsilon" in printed
    assert "what was spent since is unknown until all Compute nodes have answered" in printed
    assert "for one more round" not in printed, "what is left is unknown"
    assert main(["store", "restore", "client-1.toml", "--from", "c.backup", "--spent", "1"]) == 2


def test_a_trainer_states_what_it_has_spent_since(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = spent(demo, "trainer")
    assert main(["store", "backup", "trainer.toml", "--to", "t.backup"]) in (None, 0)
    for option, left in (["--spent", "0.5"], True), ([], False):
        lose(store)
        assert main(["store", "restore", "trainer.toml", "--from", "t.backup", *option]) in (None, 0)
        capsys.readouterr()
        assert main(["ledger", "trainer.toml"]) in (None, 0)
        printed = " ".join(capsys.readouterr().out.split())
        assert "restored" in printed
        assert ("left epsilon 0 " not in printed) == left, printed
    lose(store)
    assert main(["store", "restore", "trainer.toml", "--from", "t.backup", "--spent", "99"]) == 2
    assert "expected a number above 0, and at most the account's 4" in " ".join(capsys.readouterr().err.split())


def test_a_node_keeps_its_numbers_and_no_key(demo: Path) -> None:
    store = spent(demo, "compute-1")
    assert main(["store", "backup", "compute-1.toml", "--to", "n.backup"]) in (None, 0)
    lose(store)
    assert main(["store", "restore", "compute-1.toml", "--from", "n.backup"]) in (None, 0)
    assert read_store(store) == []
    assert module.read_backup.__doc__
