"""Key files, certificates and the federation file on disk: modes, refusals, and no secret in any error."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dca_proto.crypto.sealing import Identity
from dca_proto.errors import UsageError
from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.runtime.keyfile import (
    certificate_path,
    new_identity,
    read_certificate,
    read_federation,
    read_identity,
    write_certificate,
    write_identity,
)

NOW_MS = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _careless_umask() -> Iterator[None]:
    """The owner's umask must not matter."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "client.key"
    write_identity(path, "client", Identity(bytes(range(32))))
    return path


def test_a_key_file_is_the_owners_only_and_gives_the_identity_back(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert read_identity(key, "client").seed == bytes(range(32))


def test_a_key_file_is_created_with_its_final_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[int, int]] = []
    original = os.open

    def spy(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append((flags, mode))
        return original(path, flags, mode)

    monkeypatch.setattr(os, "open", spy)
    write_identity(tmp_path / "k", "client", new_identity())
    flags, mode = opened[0]
    assert flags & os.O_EXCL
    assert flags & os.O_CREAT
    assert mode == 0o600


def test_a_key_file_replaces_nothing(key: Path) -> None:
    before = key.read_bytes()
    with pytest.raises(UsageError, match="exists already and is not replaced"):
        write_identity(key, "client", new_identity())
    assert key.read_bytes() == before


def test_a_link_is_not_followed_when_a_key_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists already"):
        write_identity(tmp_path / "link", "client", new_identity())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666, 0o610])
def test_a_key_file_that_others_can_use_is_refused(key: Path, mode: int) -> None:
    key.chmod(mode)
    with pytest.raises(UsageError, match=rf"found mode {mode:04o}, expected 0600; run: chmod 600 {key}"):
        read_identity(key, "client")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a key file"),
        ("\x00\xff", "is not UTF-8 text: it is UTF-16 or binary; save it as UTF-8; expected a key file"),
        ("role = 3", "is not a key file"),
        ('role = "client"\nid = ""\npublic_key = ""\nsecret = "xy"', "not hexadecimal"),
        ('role = "client"\nid = ""\npublic_key = ""\nsecret = "aabb"', "needs 32 secret bytes"),
        ('role = "client"\nid = ""\npublic_key = ""\nsecret = ""\nmore = 1', "is not a key file"),
    ],
)
def test_what_is_no_key_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "k"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(UsageError, match=message):
        read_identity(path, "client")


def test_a_damaged_key_file_is_refused_and_its_secret_is_not_printed(key: Path) -> None:
    secret = bytes(range(32)).hex()
    key.write_text(key.read_text().replace(secret, secret[:-1] + "0"))
    with pytest.raises(UsageError, match="damaged") as caught:
        read_identity(key, "client")
    assert secret[:20] not in str(caught.value)


def test_a_key_file_of_another_role_is_refused(key: Path) -> None:
    with pytest.raises(UsageError, match="identity of a client, expected that of a trainer"):
        read_identity(key, "trainer")


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    for read in (lambda path: read_identity(path, "client"), read_federation):
        with pytest.raises(UsageError, match=r"nowhere.*(No such file|does not exist)"):
            read(tmp_path / "nowhere")
        with pytest.raises(UsageError, match="is a folder, not a regular file"):
            read(tmp_path)
    with pytest.raises(UsageError, match="cannot write"):
        write_identity(tmp_path / "no" / "k", "client", new_identity())
    with pytest.raises(UsageError, match="role 'guest' is unknown"):
        write_identity(tmp_path / "k", "guest", new_identity())


# --- certificates and the federation file -----------------------------------------------------------------------------


@pytest.fixture
def authority() -> Identity:
    return Identity(bytes(32))


@pytest.fixture
def federation(authority: Identity) -> Federation:
    members = [Member(f"m{index}", Identity(bytes([index]) * 32).public_key) for index in range(1, 4)]
    return sign_federation(authority, Federation("demo", authority.public_key, tuple(members[:2]), (members[2],)))


def test_a_certificate_comes_back_and_can_be_renewed(
    tmp_path: Path, authority: Identity, federation: Federation
) -> None:
    path = certificate_path(tmp_path / "client.key")
    assert path == tmp_path / "client.cert"
    for until_ms in (NOW_MS + 1, NOW_MS + 2):
        certificate = enrol(authority, federation, new_identity().public_key, until_ms)
        write_certificate(path, federation, certificate)
        assert read_certificate(path, federation, NOW_MS) == certificate
    assert [one.name for one in tmp_path.iterdir()] == ["client.cert"]


def test_a_certificate_that_does_not_hold_is_refused(
    tmp_path: Path, authority: Identity, federation: Federation
) -> None:
    path = tmp_path / "c.cert"
    write_certificate(path, federation, enrol(authority, federation, new_identity().public_key, NOW_MS))
    with pytest.raises(UsageError, match="has expired; have the client enrolled"):
        read_certificate(path, federation, NOW_MS)
    other = Federation("other", federation.enrolment_key, federation.computes, federation.trainers)
    with pytest.raises(UsageError, match="was not signed for federation 'other'"):
        read_certificate(path, other, NOW_MS - 1)
    for text in ("x", "a = 1", 'federation = "demo"\nclient_key = "zz"\nexpires_ms = 1\nsignature = ""'):
        path.write_text(text)
        with pytest.raises(UsageError, match="is not a certificate"):
            read_certificate(path, federation, NOW_MS)


def test_a_federation_file_comes_back(tmp_path: Path, federation: Federation) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(federation.to_toml())
    assert read_federation(path) == federation
    path.write_text("name = 3")
    with pytest.raises(UsageError, match=r"federation\.toml: federation file: "):
        read_federation(path)
