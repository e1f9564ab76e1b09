"""Devices join by a registrar over TLS: books, links, wrong servers, kills at any write (DESIGN §2.9)."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from joined_devices import HOSTS, clients_of, invite, joins, next_file, play

from dca_proto.cli import main
from dca_proto.crypto.sealing import actor_id
from dca_proto.deploy.tls import Pair, new_server
from dca_proto.errors import InputError, StorageError, TransportError, UsageError
from dca_proto.protocol.enrolment import EnrolmentRefused
from dca_proto.protocol.federation import Member
from dca_proto.protocol.names import open_name
from dca_proto.protocol.params import DAY_MS
from dca_proto.results.status import Status
from dca_proto.runtime import joining
from dca_proto.runtime import registrar as module
from dca_proto.runtime.book import Book
from dca_proto.runtime.bundle import link_of, parse_link, read_bundle
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.config import read_config
from dca_proto.runtime.device import load
from dca_proto.runtime.joining import Joined, join, open_link, renew
from dca_proto.runtime.keyfile import (
    new_identity,
    parse_certificate,
    read_certificate,
    read_federation,
    read_identity,
    write_identity,
)
from dca_proto.runtime.registrar import RegistrarServer
from dca_proto.runtime.registrar_file import RegistrarFile, read_registrar
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.status import status_of


def test_a_device_joins_and_its_file_runs(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")
    joined = joins(host, bundle, tmp_path / "ward-7", tmp_path / "readings.csv")
    config = read_config(joined.config)
    identity = read_identity(config.files.identity, "client")
    assert identity.id == joined.id
    certificate = read_certificate(tmp_path / "ward-7/client.cert", config.federation, now_ms())
    assert actor_id(certificate.client_key) == joined.id
    assert config.broker.tls_context() is not None
    assert clients_of(host) == {joined.id.hex()}
    assert f"user {joined.id.hex()}" in (host / "access").read_text().splitlines()
    private = [path for path in (tmp_path / "ward-7").iterdir() if path.suffix in (".key", ".password", ".toml")]
    assert len(private) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in private if path.name != "federation.toml"} == {0o600}
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600


def test_a_joined_client_has_the_invitation_s_name_and_keeps_it_when_it_is_enrolled_again(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle,) = invite(host, "ward-7")
    (tmp_path / "readings.csv").write_text("temperature\n20\n")
    device = load(joins(host, bundle, tmp_path / "a", tmp_path / "readings.csv").config)
    assert device.name == "ward-7"

    async def asked() -> Status | None:
        async with device.open() as parts:
            runner = Runner(parts.actor, parts.transport, parts.store, federation=device.federation.id)
            return status_of(device, runner, parts.watch)

    status = asyncio.run(asked())
    assert status is not None
    assert status.name == "ward-7"
    owner = host.parent / "owner"
    call = ["--federation", str(owner / "federation.toml"), "--authority", str(owner / "authority.key")]
    capsys.readouterr()
    assert main(["federation", "enrol", str(tmp_path / "a/client.key"), *call]) in (None, 0)
    assert capsys.readouterr().out.startswith(f"enrolled  ward-7, {device.id.hex()}")
    name_key = read_identity(owner / "authority.key", "authority").name_key
    assert open_name(name_key, parse_certificate(tmp_path / "a/client.cert")) == "ward-7"


def test_a_registrar_and_its_devices_warn_before_something_ends(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")
    data = tmp_path / "readings.csv"
    data.write_text("temperature\n20\n")
    joined = joins(host, bundle, tmp_path / "a", data)
    assert load(joined.config).ends["certificate by the registrar"] == joined.certificate.expires_ms
    registrar = RegistrarServer(read_registrar(host / "registrar.toml"))
    (own,) = registrar.federation.registrars
    servers = {"TLS certificate registrar.pem", "broker's certificate broker.pem"}
    assert set(registrar.ends()) == {*servers, "CA ca.pem", "registrar's time"}
    assert registrar.ends()["registrar's time"] == own.until_ms
    next_file(host, registrars=(msgspec.structs.replace(own, until_ms=own.until_ms + DAY_MS),))
    ends = registrar.ends()
    registrar.refresh()
    assert ends["registrar's time"] == own.until_ms + DAY_MS


def test_one_code_admits_one_device_and_repeats_its_answer(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        first, again = [await join(read_bundle(bundle), tmp_path / "a", None) for _ in range(2)]
        assert (again.id, again.certificate, again.is_new) == (first.id, first.certificate, False)
        with pytest.raises(InputError, match=r"refuses \(spent\): this code was used by another device"):
            await join(read_bundle(bundle), tmp_path / "b", None)
        assert not (tmp_path / "b/client.toml").exists()

    play(host, scene)
    assert len(clients_of(host)) == 1


def test_a_registrar_that_is_killed_before_its_answer_gives_it_later(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        def killed(self: RegistrarServer) -> None:
            raise StorageError("killed between the book and the lists")

        with monkeypatch.context() as broken:
            broken.setattr(RegistrarServer, "write_lists", killed)
            broken.setattr(joining, "_REQUESTS", 1)
            with pytest.raises(TransportError):
                await join(read_bundle(bundle), tmp_path / "a", None)
        assert clients_of(host) == set()
        joined = await join(read_bundle(bundle), tmp_path / "a", None)
        assert clients_of(host) == {joined.id.hex()}

    play(host, scene)


WRITES = ("write_identity", "replace_file", "write_certificate", "replace_private")


@pytest.mark.parametrize("after", range(7))
def test_a_device_that_is_killed_at_any_write_joins_by_the_same_command(
    after: int, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle,) = invite(host, "ward-7")
    left = [after]

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def either(*given: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return write(*given, **named)

        return either

    async def scene(running: RegistrarServer) -> Joined:
        with monkeypatch.context() as dies:
            for name in WRITES:
                dies.setattr(joining, name, dying(getattr(joining, name)))
            try:
                await join(read_bundle(bundle), tmp_path / "a", None)
            except KeyboardInterrupt:
                assert not (tmp_path / "a/client.toml").exists()
            else:
                assert after == 6, "all writes were reached"
        return await join(read_bundle(bundle), tmp_path / "a", None)

    joined = play(host, scene)
    assert read_config(joined.config).federation.name == "hearts"
    assert clients_of(host) == {joined.id.hex()}


def test_a_link_has_all_that_a_bundle_has(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")
    link = link_of(read_bundle(bundle))
    assert len(link) < 120, "a small QR code"

    async def scene(running: RegistrarServer) -> None:
        assert await open_link(parse_link(link)) == read_bundle(bundle).entrance
        with pytest.raises(InputError, match="refuses this link"):
            await open_link(parse_link(link[:-4] + "0000"))
        other = msgspec.structs.replace(read_bundle(bundle).entrance, broker="mqtts://evil.example")
        running._book.entrance = lambda digest: other  # type: ignore[method-assign]
        with pytest.raises(InputError, match="is not the registrar of this link; nothing was sent"):
            await open_link(parse_link(link))

    play(host, scene)


@pytest.mark.parametrize("text", ["dca://", "dca://a:1/00/11", "dca://a:99999/" + "0" * 32 + "/" + "0" * 32])
def test_an_odd_link_is_refused_without_its_code(text: str) -> None:
    with pytest.raises(UsageError, match="this is no invitation's link") as caught:
        parse_link(text)
    assert "0000" not in str(caught.value)


def test_a_client_renews_until_it_is_cancelled(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        entrance = read_bundle(bundle).entrance
        with pytest.raises(InputError, match="join first"):
            await renew(entrance, tmp_path / "a")
        first = await join(read_bundle(bundle), tmp_path / "a", None)
        assert not (await renew(entrance, tmp_path / "a")).ends_later, "it issues one a day"
        for place in (joining, module):
            monkeypatch.setattr(place, "now_ms", lambda: now_ms() + 2 * DAY_MS)
        later = await renew(entrance, tmp_path / "a")
        assert later.ends_later
        assert (later.id, later.config) == (first.id, first.config)
        assert later.certificate.expires_ms > first.certificate.expires_ms
        read_certificate(tmp_path / "a/client.cert", later.federation, now_ms() + 2 * DAY_MS)
        assert main(["federation", "invite", "ward-7", "--registrar", str(host / "registrar.toml"), "--cancel"]) == 0
        with pytest.raises(InputError, match="unknown"):
            await renew(entrance, tmp_path / "a")
        running.follow_book()
        assert clients_of(host) == set()

    play(host, scene)


def test_a_newer_file_revokes_clients_and_reaches_those_who_join(host: Path, tmp_path: Path) -> None:
    first, second = invite(host, "ward-7", "ward-8")

    async def scene(running: RegistrarServer) -> None:
        gone = await join(read_bundle(first), tmp_path / "a", None)
        next_file(host, revoked=(gone.id,))
        running.refresh()
        assert clients_of(host) == set()
        with pytest.raises(InputError, match=r"refuses \(revoked\)"):
            await renew(read_bundle(first).entrance, tmp_path / "a")
        joined = await join(read_bundle(second), tmp_path / "b", None)
        assert read_federation(tmp_path / "b/federation.toml").number == joined.federation.number == 2

    play(host, scene)


def test_a_revoked_registrar_enrols_nobody(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        (own,) = running.federation.registrars
        next_file(host, registrars=(), revoked=(actor_id(own.key),))
        with pytest.raises(InputError, match=r"refuses \(registrar\)"):
            await join(read_bundle(bundle), tmp_path / "a", None)

    play(host, scene)
    with pytest.raises(InputError, match="does not name the registrar"):
        RegistrarServer(read_registrar(host / "registrar.toml"))


def test_an_older_or_foreign_file_changes_nothing(host: Path, deployed: Path, tmp_path: Path) -> None:
    async def scene(running: RegistrarServer) -> None:
        next_file(host)
        running.refresh()
        assert running.federation.number == 2
        for text in ((deployed / "owner/federation.toml").read_text(), "odd"):
            (host / "federation.toml").write_text(text)
            running.refresh()
            assert running.federation.number == 2

    play(host, scene)


def test_the_limit_of_a_day_holds_over_restarts(host: Path, tmp_path: Path) -> None:
    bundles = invite(host, *(f"ward-{index}" for index in range(6)))
    for index, bundle in enumerate(bundles[:5]):
        joins(host, bundle, tmp_path / str(index))
    with pytest.raises(InputError, match=r"refuses \(rate\): this registrar issues 5 certificates a day"):
        joins(host, bundles[5], tmp_path / "5")
    assert len(clients_of(host)) == 5


def test_a_folder_of_another_federation_spends_no_code(host: Path, deployed: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")
    assert main(["federation", "deploy", str(tmp_path / "other"), "--hosts", HOSTS]) == 0
    shutil.copytree(tmp_path / "other/paris", tmp_path / "a")
    with pytest.raises(InputError, match="belongs to another federation"):
        joins(host, bundle, tmp_path / "a")
    assert joins(host, bundle, tmp_path / "b").is_new


REFUSALS: dict[str, tuple[tuple[str, ...], str]] = {
    "a name twice": (("w", "w"), "found the name 'w' twice"),
    "an odd name": (("../w",), "a client is named '../w'"),
    "too many": (tuple(f"w{index}" for index in range(101)), "expected 100 at most"),
    "nothing to cancel": (("w", "--cancel"), "found no open invitation of 'w'"),
    "an odd time": (("w", "--valid-days", "0"), "--valid-days 0: expected a number above 0"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_odd_invitations_are_refused(case: str, host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, expected = REFUSALS[case]
    capsys.readouterr()
    assert (
        main(["federation", "invite", *given, "--registrar", str(host / "registrar.toml"), "--output", str(host)]) != 0
    )
    line = capsys.readouterr().err
    assert expected in line
    assert line.count("\n") == 1
    assert not list(host.glob("*.bundle"))


def test_a_name_is_invited_once(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invite(host, "ward-7")
    arguments = ["federation", "invite", "ward-7", "--registrar", str(host / "registrar.toml")]
    assert main(arguments) == 2
    assert "has an invitation already" in capsys.readouterr().err


def test_a_qr_code_is_drawn(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invite(host, "ward-7", png=host)
    assert (host / "ward-7.png").read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE((host / "ward-7.png").stat().st_mode) == 0o600


def test_a_ca_with_comments_goes_into_a_bundle(host: Path) -> None:
    comment = 'subject=CN="Ward \\ 7"\n'
    (host / "ca.pem").write_text(comment + (host / "ca.pem").read_text())
    (bundle,) = invite(host, "ward-7")
    assert read_bundle(bundle).entrance.ca == (host / "ca.pem").read_text()


def test_a_damaged_bundle_is_named_and_not_quoted(tmp_path: Path, host: Path) -> None:
    (bundle,) = invite(host, "ward-7")
    text = bundle.read_text()
    for changed in (text[:-200], text.replace('code = "', 'code = "zz'), text.replace('"ward-7"', '"../x"'), "x"):
        (tmp_path / "odd").write_text(changed)
        with pytest.raises(InputError) as caught:
            read_bundle(tmp_path / "odd")
        assert read_bundle(bundle).code.hex() not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('identity = "registrar.key"\n', "", "identity"),
        ("port = ", "prot = ", "unknown key 'prot'"),
        ("[registrar]", "[client]", "expected one section"),
        ("mqtts://", "http://", "broker"),
    ],
)
def test_a_wrong_file_is_named(old: str, new: str, match: str, host: Path) -> None:
    path = host / "registrar.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=match) as caught:
        read_registrar(path)
    assert str(path) in str(caught.value)


def test_a_book_that_is_none_is_refused(host: Path) -> None:
    (host / "registrar.db").write_text("x" * 4096)
    with pytest.raises(StorageError, match="cannot open the registrar's book"):
        Book(host / "registrar.db")
    assert isinstance(EnrolmentRefused("a", "b"), module.EnrolmentRefused)
    assert "book" in RegistrarFile.__struct_fields__


def test_a_registrar_warns_before_the_broker_s_certificate_ends(
    host: Path, deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own and the CA's last much longer."""
    day, ca = datetime.timedelta(days=1), [host.parent / f"owner/ca.{end}" for end in ("pem", "key")]
    now = datetime.datetime.now(datetime.UTC)
    pair = Pair(*(path.read_text() for path in ca))
    (host / "broker.pem").write_text(new_server(pair, ("127.0.0.1",), now - 360 * day, 365).certificate)
    found = RegistrarServer(read_registrar(host / "registrar.toml")).status()
    (warning,) = found.warnings
    assert warning.startswith("the broker's certificate broker.pem ends in ")
    assert found.certificates["broker's certificate broker.pem"][:10] == (now + 5 * day).strftime("%Y-%m-%d")


def test_a_registrar_states_its_limits_and_what_needs_attention(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle, _) = invite(host, "ward-7", "ward-8")

    async def scene(running: RegistrarServer) -> list[str]:
        await join(read_bundle(bundle), tmp_path / "a", None)
        seen = []
        for limit in (100, 1):
            (own,) = running.federation.registrars
            next_file(host, registrars=(msgspec.structs.replace(own, clients=limit),))
            running.refresh()
            capsys.readouterr()
            await asyncio.to_thread(main, ["status", str(host / "registrar.toml"), "--check"])
            seen.append(" ".join(capsys.readouterr().out.split()))
        return seen

    free, full = play(host, scene)
    assert "1 of at most 100 clients enrolled, 1 open invitation" in free
    assert "its limit" not in free
    assert "mosquitto was not told to read its files again" in free
    assert "it has enrolled 1 client, its limit: dca federation add-registrar raises it" in full
    assert main(["status", str(host / "registrar.toml"), "--check"]) == 1
    assert "does not run" in capsys.readouterr().out


@pytest.mark.parametrize("role", ["compute", "trainer"])
def test_a_new_member_gets_a_password_and_its_files_and_a_revoked_one_loses_its_line(host: Path, role: str) -> None:
    new = new_identity()
    held: list[dict[str, str]] = []

    async def scene(running: RegistrarServer) -> None:
        before, field = running.federation, f"{role}s"
        gone = before.computes[1] if role == "compute" else before.trainers[0]
        kept = [one for one in getattr(before, field) if one != gone]
        names = {field: (*kept, Member("lyon", new.public_key)), "revoked": (gone.id,)}
        next_file(host, **names)
        running.refresh()
        users = dict(line.split(":", 1) for line in (host / "passwords").read_text().splitlines())
        assert gone.id.hex() not in users
        staying = {one.id.hex() for one in (*before.computes, *before.trainers) if one != gone}
        assert set(users) == {*staying, new.id.hex(), "operator"}
        folder = host / "new-members/lyon"
        assert {path.name for path in folder.iterdir()} == {
            "ca.pem", "federation.toml", f"{role}.password", f"{role}.toml"
        }  # fmt: skip
        assert (folder / f"{role}.password").stat().st_mode & 0o777 == 0o600
        password = (folder / f"{role}.password").read_text().strip()
        _, _, iterations, salt, digest = users[new.id.hex()].split("$")
        derived = hashlib.pbkdf2_hmac("sha512", password.encode(), base64.b64decode(salt), int(iterations))
        assert base64.b64encode(derived).decode() == digest, "mosquitto's own form"
        assert f"user {new.id.hex()}" in (host / "access").read_text()
        write_identity(folder / f"{role}.key", role, new)
        assert read_config(folder / f"{role}.toml").broker.read_password() == password
        held.append({path.name: path.read_text() for path in folder.iterdir()})

    play(host, scene)

    async def again(running: RegistrarServer) -> None:
        folder = host / "new-members/lyon"
        assert {path.name: path.read_text() for path in folder.iterdir()} == held[0], "the password stays"
        (folder / f"{role}.password").unlink()
        running.write_lists()
        assert (folder / f"{role}.password").read_text() == held[0][f"{role}.password"]

    play(host, again)


def test_files_of_a_new_member_that_cannot_be_written_hold_up_neither_a_revocation_nor_a_start(
    host: Path, tmp_path: Path
) -> None:
    """One file may revoke a member and name another: the revoked one's password goes away at once."""
    new, blocker = new_identity(), host / "new-members"
    blocker.write_text("in the way")
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        gone, *staying = running.federation.computes
        next_file(host, computes=(*staying, Member("lyon", new.public_key)), revoked=(gone.id,))
        running.refresh()
        users = {line.partition(":")[0] for line in (host / "passwords").read_text().splitlines()}
        assert (gone.id.hex() in users, new.id.hex() in users) == (False, True)
        assert f"user {gone.id.hex()}" not in (host / "access").read_text()

    async def started_again(running: RegistrarServer) -> None:
        joined = await join(read_bundle(bundle), tmp_path / "a", None)
        assert joined.is_new
        (warning,) = [text for text in running.status().warnings if "lyon" in text]
        assert "were not written: cannot make folder" in warning
        blocker.unlink()
        running.follow_book()
        assert (blocker / "lyon/compute.password").is_file()
        assert not [text for text in running.status().warnings if "lyon" in text]

    play(host, scene)
    play(host, started_again)


def test_a_registrar_s_file_lists_all_devices_by_name(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that no Compute node has seen yet, and those that are revoked."""
    assert main(["federation", "members", str(host / "registrar.toml")]) in (None, 0)
    first, second, _ = invite(host, "ward-7", "ward-8", "ward-9")
    joins(host, first, tmp_path / "a")
    gone = joins(host, second, tmp_path / "b").id
    next_file(host, revoked=(gone,))
    capsys.readouterr()
    assert main(["federation", "members", str(host / "registrar.toml"), "--json", "-"]) in (None, 0)
    members = json.loads(capsys.readouterr().out)["members"]
    known = {one["name"]: one["revoked"] for one in members if one["role"] == "client"}
    assert known == {"ward-7": False, "ward-8": True}
    owner = host.parent / "owner"
    call = ["--federation", str(owner / "federation.toml"), "--authority", str(owner / "authority.key")]
    named = ["--members", str(host / "registrar.toml")]
    assert main(["federation", "revoke", "ward-7", *call, *named]) in (None, 0)
