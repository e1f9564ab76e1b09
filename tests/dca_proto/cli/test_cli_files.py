"""What commands do with files that are there: replace none, trust no open secret, report damage in a line."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from dca_proto.cli import broker, main
from dca_proto.cli import federation as commands
from dca_proto.errors import UsageError
from dca_proto.protocol import ledger
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.effects import Channel, Persist
from dca_proto.protocol.federation import enrol
from dca_proto.runtime.keyfile import read_federation, read_identity, write_certificate
from dca_proto.runtime.store import SqliteStore

INIT = ("federation", "init", "fed", "--computes", "2", "--clients", "3", "--broker", "mqtt://127.0.0.1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def demo(folder: Path) -> Path:
    """A trial federation."""
    assert main(INIT) == 0
    return folder / "fed"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line of a call that must be refused with that exit code."""
    assert main(arguments) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dca: ")
    return line


@pytest.mark.parametrize("name", ["federation.toml", "authority.key", "client-3.cert", "trainer.toml"])
def test_init_replaces_no_file_of_any_kind(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (folder / "fed").mkdir()
    (folder / "fed" / name).write_text("mine")
    assert f"{name} exists already" in refused(capsys, *INIT)
    assert [path.name for path in (folder / "fed").iterdir()] == [name]
    assert (folder / "fed" / name).read_text() == "mine"


@pytest.mark.parametrize("had_folder", [True, False])
def test_init_that_fails_half_way_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, had_folder: bool
) -> None:
    def disk_full(path: Path, **_: object) -> None:
        raise UsageError(f"cannot write {path}: No space left on device")

    if had_folder:
        (folder / "fed").mkdir()
    monkeypatch.setattr(commands, "write_certificate", disk_full)
    assert "No space left" in refused(capsys, *INIT)
    assert list(folder.rglob("*")) == ([folder / "fed"] if had_folder else [])


def test_a_broker_leaves_out_certificates_that_do_not_hold_and_serves_the_others(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_federation(demo / "federation.toml")
    signer = read_identity(demo / "authority.key", "authority")
    write_certificate(demo / "client-2.cert", found, enrol(signer, found, bytes(32), 1))
    (demo / "client-3.cert").write_text("federation = ")
    capsys.readouterr()
    access = broker._access(demo / "federation.toml", demo / "passwords", None)
    assert access is not None
    clients = [one.id for one in access.members if one.role is Channel.CLIENT]
    assert clients == [read_identity(demo / "client-1.key", "client").id]
    expired, torn = capsys.readouterr().err.splitlines()
    assert f"{demo / 'client-2.cert'} has expired" in expired
    assert f"{demo / 'client-3.cert'} is not a certificate" in torn


def test_a_broker_refuses_a_password_file_that_others_can_read(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (demo / "passwords").mkdir()
    file = demo / "passwords/client-1.password"
    file.write_text("correct horse\n")
    file.chmod(0o640)
    given = ("broker", "--port", "0", "--federation", "fed/federation.toml", "--passwords", "fed/passwords")
    line = refused(capsys, *given, code=5)
    assert "found mode 0640, expected 0600; run: chmod 600" in line
    assert "horse" not in line


def test_a_broker_refuses_a_private_key_that_others_can_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ca", "cert", "key"):
        (folder / name).write_text("")
    (folder / "key").chmod(0o644)
    tls = ("--tls-ca", "ca", "--tls-certificate", "cert", "--tls-key", "key")
    assert "found mode 0644, expected 0600; run: chmod 600 key" in refused(
        capsys, "broker", "--port", "0", *tls, code=5
    )


@pytest.fixture
def store(folder: Path) -> Path:
    """A client's store with one charge that can be read."""
    charge = ledger.Charge(bytes(16), "mean", bytes(16), mu=0.2, epsilon=1.0, delta=1e-6, at_ms=0, number=1)
    path = folder / "client.db"

    async def fill() -> None:
        opened = SqliteStore(path, bytes(32))
        try:
            await opened.commit([Persist(ledger.TABLE, bytes(16), msgspec.msgpack.encode(charge))])
        finally:
            await opened.close()

    asyncio.run(fill())
    return path


def changed(store: Path, statement: str, *values: object) -> None:
    """The store, as damage or another hand might have left it."""
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(statement, values)


def test_unreadable_records_are_listed_beside_readable_ones(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text that is no UTF-8 is no `msgspec.DecodeError`."""
    (value,) = _values(store)
    assert value.count(b"\xa4mean") == 1
    changed(
        store,
        "INSERT INTO records VALUES (x'', ?, ?, ?, x'')",
        ledger.TABLE,
        b"bad",
        value.replace(b"mean", b"\xff\xfe\xfdn"),
    )
    changed(store, "INSERT INTO records VALUES (x'', ?, ?, ?, x'')", client_round.ROUNDS, b"bad", b"\x91" * 5000)
    assert main(["inspect", "client.db", "--json", "-"]) == 0
    shown = {(one["kind"], "unreadable" in one) for one in json.loads(capsys.readouterr().out)}
    assert shown == {(ledger.TABLE, False), (ledger.TABLE, True), (client_round.ROUNDS, True)}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE records SET kind = CAST(x'fffe' AS TEXT)",
        "UPDATE records SET value = 'text'",
        "UPDATE records SET key = 7",
    ],
)
def test_a_store_with_foreign_columns_is_a_one_line_error(
    store: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    changed(store, damage)
    assert "store client.db is damaged (a record's " in refused(capsys, "inspect", "client.db", code=8)


def _values(store: Path) -> list[bytes]:
    with closing(sqlite3.connect(store)) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM records")]


def test_an_empty_store_is_said_to_be_empty_with_its_actor(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    said = []
    for path in (demo / "compute-1.db", Path("alone.db")):
        asyncio.run(SqliteStore(path, bytes(32)).close())
        assert main(["inspect", str(path)]) in (None, 0)
        said.append(" ".join(capsys.readouterr().out.split()))
    node, alone = said
    assert node.startswith("empty ")
    assert "compute-1.toml (compute), has no records yet: dca status" in node
    assert "alone.db is a store without records; no *.toml beside it" in alone
    assert main(["inspect", "alone.db", "--json", "-"]) in (None, 0)
    assert json.loads(capsys.readouterr().out) == []
