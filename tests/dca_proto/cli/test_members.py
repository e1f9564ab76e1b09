"""`dca federation members`: names, ids, roles, ends of certificates, last sessions, revoked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dca_proto.cli import main
from dca_proto.cli.members import Members, Person
from dca_proto.protocol.effects import Send
from dca_proto.protocol.events import Received, Started
from dca_proto.protocol.wire.codec import encode
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.device import load
from dca_proto.runtime.keyfile import certified_id, read_federation
from dca_proto.runtime.runner import writes_of


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes and three clients, of which the first has a session at the first node."""
    monkeypatch.chdir(tmp_path)
    call = ["federation", "init", "demo", "--computes", "2", "--clients", "3", "--days", "6"]
    assert main([*call, "--broker", "mqtt://127.0.0.1:1"]) == 0
    (tmp_path / "demo" / "client-1.csv").write_text("x\n1\n")

    async def greet() -> None:
        client, node = (load(tmp_path / "demo" / f"{name}.toml") for name in ("client-1", "compute-1"))
        async with client.open() as parts:
            (hello,) = [one.payload for one in parts.actor.handle(Started(), now_ms()) if isinstance(one, Send)]
        async with node.open() as parts:
            effects = parts.actor.handle(Received(client.id, hello), now_ms())
            await parts.store.commit(writes_of(effects))

    asyncio.run(greet())
    return tmp_path / "demo"


def listed(capsys: pytest.CaptureFixture[str], *call: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["federation", "members", *map(str, call), "--json", "-"]) in (None, 0)
    return {one["name"] or one["id"]: one for one in json.loads(capsys.readouterr().out)["members"]}


def test_the_owner_sees_all_names_and_who_is_revoked(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--federation", demo / "federation.toml", "--authority", demo / "authority.key"]
    assert main(["federation", "revoke", "client-2", *map(str, call)]) in (None, 0)
    found = listed(capsys, demo / "federation.toml")
    assert list(found)[:3] == ["compute-1", "compute-2", "trainer"]
    assert {name: one["revoked"] for name, one in found.items() if one["role"] == "client"} == {
        "client-1": False, "client-2": True, "client-3": False,
    }  # fmt: skip
    assert found["client-3"]["certificate_ends"] is not None
    assert found["client-3"]["last_session"] is None


def test_a_node_sees_names_and_last_sessions_and_nobody_else_sees_names(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (demo / "authority.key").unlink()
    found = listed(capsys, demo / "compute-1.toml")
    assert found["client-1"]["last_session"] is not None
    assert found["client-3"]["last_session"] is None
    assert "client-2" in listed(capsys, demo / "trainer.toml")
    without = listed(capsys, demo / "federation.toml")
    client = certified_id(demo / "client-1.cert").hex()
    assert {one["name"] for one in without.values() if one["role"] == "client"} == {""}
    assert client in without
    main(["federation", "members", str(demo / "compute-1.toml")])
    printed = capsys.readouterr().out
    assert "client-1" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("way", ["name", "first digits"])
def test_whom_a_node_lists_is_revoked_by_what_it_shows(
    demo: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """The owner has no certificates: a registrar made them."""
    client = certified_id(demo / "client-1.cert").hex()
    for path in demo.glob("client-*.cert"):
        path.unlink()
    given = {"name": "client-1", "first digits": client[:8]}[way]
    call = ["--federation", demo / "federation.toml", "--authority", demo / "authority.key"]
    assert main(["federation", "revoke", given, *map(str, call)]) == 2
    assert f"dca federation revoke {given} --members compute.toml" in capsys.readouterr().err
    members = ["--members", str(demo / "compute-1.toml")]
    assert main(["federation", "revoke", given, *map(str, call), *members]) in (None, 0)
    assert [one.hex() for one in read_federation(demo / "federation.toml").revoked] == [client]


def test_digits_of_two_ids_revoke_nobody(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    people = [Person(role="client", name="ward", id=f"abcd{number:028}") for number in (1, 2)]
    monkeypatch.setattr(
        "dca_proto.cli.members.members_of", lambda *files: Members(federation="", number=1, members=people)
    )
    call = ["--federation", demo / "federation.toml", "--authority", demo / "authority.key"]
    for given in ("abcd", "ward"):
        assert main(["federation", "revoke", given, *map(str, call)]) == 2
        assert f"stands for {people[0].id}, {people[1].id}: give one" in capsys.readouterr().err


def test_a_name_of_a_compute_node_and_of_a_client_revokes_neither(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever invites clients may call one as a node is called; its owner then reports it by that name."""
    node, client = read_federation(demo / "federation.toml").computes[0], "abcd" + 28 * "0"
    people = [Person(role="client", name=node.name, id=client)]
    monkeypatch.setattr(
        "dca_proto.cli.members.members_of", lambda *files: Members(federation="", number=1, members=people)
    )
    call = ["--federation", demo / "federation.toml", "--authority", demo / "authority.key"]
    assert main(["federation", "revoke", node.name, *map(str, call)]) == 2
    assert f"stands for {', '.join(sorted((client, node.id.hex())))}: give one" in capsys.readouterr().err


def test_a_node_that_has_adopted_a_file_lists_by_it_while_it_runs(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file on disk is replaced when it stops."""
    older = (demo / "federation.toml").read_text()
    call = ["--federation", demo / "federation.toml", "--authority", demo / "authority.key"]
    assert main(["federation", "revoke", "client-1", *map(str, call)]) in (None, 0)
    newer = read_federation(demo / "federation.toml")
    (demo / "federation.toml").write_text(older)

    async def adopt() -> None:
        node = load(demo / "compute-1.toml")
        async with node.open() as parts:
            event = Received(newer.trainers[0].id, encode(newer.frame))
            await parts.store.commit(writes_of(parts.actor.handle(event, now_ms())))
            assert parts.actor.federation.number == 2
            assert listed(capsys, demo / "compute-1.toml")["client-1"]["revoked"]

    asyncio.run(adopt())


def test_names_are_left_out_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["federation", "init", str(tmp_path / "demo"), "--computes", "2", "--clients", "1", "--without-names"]
    assert main(call) == 0
    found = listed(capsys, tmp_path / "demo" / "federation.toml")
    assert [one["name"] for one in found.values() if one["role"] == "client"] == [""]
    capsys.readouterr()
    files = ["--federation", tmp_path / "demo" / "federation.toml", "--authority", tmp_path / "demo" / "authority.key"]
    call = ["federation", "enrol", "ward-7=" + "ab" * 32, "--output", str(tmp_path), *map(str, files)]
    assert main(call) in (None, 0)
    assert capsys.readouterr().out.startswith("enrolled  ward-7, ")


def test_whom_a_file_revokes_keeps_its_name_where_the_file_was_made(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, a node that was replaced, and a client whose certificate is elsewhere, had digits for a name."""
    call = ["--federation", str(demo / "federation.toml"), "--authority", str(demo / "authority.key")]
    first = certified_id(demo / "client-1.cert").hex()
    paris = read_federation(demo / "federation.toml").computes[1].id.hex()
    assert main(["federation", "revoke", first[:8], *call, "--members", str(demo / "compute-1.toml")]) in (None, 0)
    assert f"revoked: client-1, {first}" in capsys.readouterr().out
    assert main(["keygen", str(tmp_path / "lyon.key"), "--role", "compute"]) in (None, 0)
    new = f"lyon={tmp_path / 'lyon.key'}"
    assert main(["federation", "replace-node", "compute-2", new, *call]) in (None, 0)
    for path in demo.glob("*.cert"):
        path.unlink()
    found = listed(capsys, demo / "federation.toml")
    assert {name: (one["role"], one["id"]) for name, one in found.items() if one["revoked"]} == {
        "client-1": ("client", first), "compute-2": ("compute", paris),
    }  # fmt: skip
    assert main(["federation", "show", str(demo / "federation.toml")]) in (None, 0)
    assert f"revoked    compute-2      {paris}" in capsys.readouterr().out
    assert (demo / "federation.revoked.toml").stat().st_mode & 0o077 == 0, "certificates seal clients' names"
    (demo / "federation.revoked.toml").write_text("nonsense")
    assert main(["federation", "members", str(demo / "federation.toml")]) == 5
    assert "move it away: nothing but names is lost" in " ".join(capsys.readouterr().err.split())
    (demo / "federation.revoked.toml").unlink()
    assert listed(capsys, demo / "federation.toml")[paris]["role"] == ""
