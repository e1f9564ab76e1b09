"""The registrar's book: its format, books that earlier code wrote, and books that are made from a backup (DESIGN §2.9).

`stores/book-0.db.xz` is a book from before books had a format number: ward-1 has joined, ward-2 has not yet, and the
invitation of ward-3 was cancelled. Change it never.
"""

from __future__ import annotations

import asyncio
import lzma
import sqlite3
import stat
from pathlib import Path

import pytest
from joined_devices import clients_of, invite, joins, play

from dca_proto.cli import main
from dca_proto.crypto.sealing import Identity, actor_id
from dca_proto.errors import InputError, StorageError
from dca_proto.protocol.enrolment import BookedInvitation
from dca_proto.runtime.book import Book
from dca_proto.runtime.bundle import read_bundle
from dca_proto.runtime.joining import join
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.registrar import RegistrarServer
from dca_proto.runtime.registrar_file import is_registrar_file

BEFORE = Path(__file__).parent / "stores/book-0.db.xz"
ENTRANCE = bytes.fromhex("692f45e6ef34fd362383481b9ffa0e10")
"""The digest of the entrance in that book, as it was printed when the book was written."""


@pytest.fixture
def before(tmp_path: Path) -> Path:
    path = tmp_path / "registrar.db"
    path.write_bytes(lzma.decompress(BEFORE.read_bytes()))
    return path


def header(path: Path) -> tuple[int, int]:
    """The application and the format, at the places that SQLite's file format gives them (section 1.3)."""
    content = path.read_bytes()
    return int.from_bytes(content[68:72], "big"), int.from_bytes(content[60:64], "big")


def known(path: Path) -> dict[str, BookedInvitation]:
    book = Book(path)
    try:
        return {one.invitation.name: one.invitation for one in book.all()}
    finally:
        book.close()


def test_a_book_has_a_format(tmp_path: Path) -> None:
    Book(tmp_path / "registrar.db").close()
    assert header(tmp_path / "registrar.db") == (int.from_bytes(b"DCAR", "big"), 1)


def test_a_book_from_before_there_were_formats_opens_and_gets_one(before: Path) -> None:
    assert header(before) == (0, 0)
    for _ in range(2):  # as it was, and with its number
        found = known(before)
        assert {name: (one.is_cancelled, len(one.client_key)) for name, one in found.items()} == {
            "ward-1": (False, 32), "ward-2": (False, 0), "ward-3": (True, 0),
        }  # fmt: skip
        assert found["ward-1"].client_key == Identity(bytes(range(32))).public_key
        assert header(before) == (int.from_bytes(b"DCAR", "big"), 1)
    book = Book(before)
    entrance = book.entrance(ENTRANCE)
    assert entrance is not None
    assert entrance.broker == "mqtts://127.0.0.1:8883"
    assert entrance.digest == ENTRANCE, "the links of version 0.1.0"
    assert book.issued(0) == 1
    book.invite({bytes(32): BookedInvitation("ward-4", 2**50, 90)}, entrance)
    book.close()
    assert known(before).keys() == {"ward-1", "ward-2", "ward-3", "ward-4"}


@pytest.mark.parametrize("version", [0, 2])
def test_a_book_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "registrar.db"
    Book(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version={version}")
    database.close()
    content = path.read_bytes()
    with pytest.raises(StorageError, match=rf"of another version \(found format {version}, expected 1\): use the ver"):
        Book(path)
    assert path.read_bytes() == content


def test_another_database_does_not_become_a_book(tmp_path: Path) -> None:
    """Such as an actor's store that the registrar's file names by mistake."""
    path = tmp_path / "client.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE records (x)")
    database.close()
    content = path.read_bytes()
    with pytest.raises(StorageError, match="is a database of something else: name another file as book"):
        Book(path)
    assert path.read_bytes() == content


# --- backups ----------------------------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> int | None:
    return main(["store", *map(str, arguments)])


def lose(host: Path) -> None:
    (host / "registrar.db").unlink()


def test_a_restored_book_admits_its_clients_and_no_unused_code(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ward-2 joins after the backup: its code would admit a second device. Of ward-3's nobody knows that it did not."""
    first, second, third = invite(host, "ward-1", "ward-2", "ward-3")
    file, copy = host / "registrar.toml", tmp_path / "registrar.backup"
    one = joins(host, first, tmp_path / "a")

    async def while_it_serves(running: RegistrarServer) -> None:
        assert await asyncio.to_thread(command, "backup", file, "--to", copy) in (None, 0)
        await join(read_bundle(second), tmp_path / "b", None)

    play(host, while_it_serves)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert b"ward" not in copy.read_bytes(), "it is encrypted"
    assert command("restore", file, "--from", copy) == 8
    assert "never overwritten" in capsys.readouterr().err
    lose(host)
    assert command("restore", file, "--from", copy) in (None, 0)
    assert "invite" in " ".join(capsys.readouterr().out.split())
    assert {name: one.is_cancelled for name, one in known(host / "registrar.db").items()} == {
        "ward-1": False, "ward-2": True, "ward-3": True,
    }  # fmt: skip
    assert stat.S_IMODE((host / "registrar.db").stat().st_mode) == 0o600

    async def once_more(running: RegistrarServer) -> None:
        assert clients_of(host) == {one.id.hex()}, "ward-2 has to be invited again"
        for bundle in (second, third):
            with pytest.raises(InputError, match=r"refuses \(cancelled\)"):
                await join(read_bundle(bundle), tmp_path / "thief", None)
        again = await join(read_bundle(first), tmp_path / "a", None)
        assert (again.id, again.certificate) == (one.id, one.certificate)

    play(host, once_more)


def test_a_client_that_a_restored_book_lacks_joins_again_with_its_key(host: Path, tmp_path: Path) -> None:
    """So it keeps its store, which holds what it has spent."""
    file, copy = host / "registrar.toml", tmp_path / "registrar.backup"
    (bundle,) = invite(host, "ward-1")
    assert command("backup", file, "--to", copy) in (None, 0)
    one = joins(host, bundle, tmp_path / "a")
    lose(host)
    assert command("restore", file, "--from", copy) in (None, 0)
    bundle.unlink()
    (bundle,) = invite(host, "ward-1")
    again = joins(host, bundle, tmp_path / "a")
    assert (again.id, again.is_new) == (one.id, False)
    assert clients_of(host) == {one.id.hex()}
    assert actor_id(read_identity(tmp_path / "a/client.key", "client").public_key) == one.id


@pytest.mark.parametrize("place", [0, 10, 40, -1])
def test_a_damaged_backup_of_a_book_makes_none(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    file, copy = host / "registrar.toml", tmp_path / "registrar.backup"
    assert command("backup", file, "--to", copy) == 5
    assert "there is no book" in capsys.readouterr().err
    invite(host, "ward-1")
    assert command("backup", file, "--to", copy) in (None, 0)
    content = bytearray(copy.read_bytes())
    content[place] ^= 1
    copy.write_bytes(content)
    lose(host)
    assert command("restore", file, "--from", copy) == 5
    assert list(host.glob("registrar.db*")) == []


def test_a_backup_of_an_actor_is_none_of_a_registrar(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invite(host, "ward-1")
    assert command("backup", host / "registrar.toml", "--to", tmp_path / "r.backup") in (None, 0)
    assert command("restore", host / "registrar.toml", "--from", tmp_path / "r.backup", "--spent", "1") == 2
    assert "--spent is of a trainer's account" in " ".join(capsys.readouterr().err.split())
    assert command("compact", host / "registrar.toml") == 5


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("[registrar]", True),
        ("  [registrar]  # of ward 3", True),
        ("# [registrar]\n[client]", False),
        ('[client]\nnote = "[registrar]"', False),
    ],
)
def test_a_registrars_file_is_known_by_its_section(tmp_path: Path, text: str, is_one: bool) -> None:
    (tmp_path / "a.toml").write_text(f"{text}\n")
    assert is_registrar_file(tmp_path / "a.toml") is is_one
