"""`dca federation revoke`, `add-node`, `replace-node`, `add-trainer`: the next federation file."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dca_proto.cli import broker, main
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation
from dca_proto.runtime.config import read_config
from dca_proto.runtime.device import load
from dca_proto.runtime.keyfile import read_certificate, read_federation, read_identity

NEW = Identity(bytes([9]) * 32)
NEWCOMER = f"newcomer={NEW.public_key.hex()}"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A trial with three Compute nodes, a trainer and three clients, in the present folder."""
    monkeypatch.chdir(tmp_path)
    given = ("--computes", "3", "--clients", "3", "--broker", "mqtt://127.0.0.1")
    assert main(["federation", "init", ".", *given]) == 0
    capsys.readouterr()
    return tmp_path


def change(*arguments: str) -> Federation:
    """The file after a command that must succeed."""
    assert main(["federation", *arguments]) == 0
    return read_federation(Path("federation.toml"))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line of a command that must be refused, and changes nothing."""
    before = Path("federation.toml").read_bytes()
    assert main(["federation", *arguments]) == code
    assert Path("federation.toml").read_bytes() == before
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def client_id(name: str) -> bytes:
    return read_identity(Path(f"{name}.key"), "client").id


@pytest.mark.parametrize("way", ["name", "id", "public key", "certificate", "key file"])
def test_a_client_is_revoked_by_name_or_id(demo: Path, way: str) -> None:
    key = read_identity(demo / "client-2.key", "client")
    named = {
        "name": "client-2",
        "id": key.id.hex(),
        "public key": key.public_key.hex(),
        "certificate": "client-2.cert",
        "key file": "client-2.key",
    }
    before = read_federation(demo / "federation.toml")
    file = change("revoke", named[way])
    assert (file.number, file.revoked, file.id) == (2, (key.id,), before.id)
    assert (file.computes, file.trainers) == (before.computes, before.trainers)
    now_ms = time.time_ns() // 1_000_000
    read_certificate(demo / "client-1.cert", file, now_ms)
    with pytest.raises(UsageError, match="is revoked for good, so make a new key"):
        read_certificate(demo / "client-2.cert", file, now_ms)
    with pytest.raises(UsageError, match="revoked"):
        load(demo / "client-2.toml")


def test_a_change_reports_number_hash_and_the_next_step(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = change("revoke", "client-1", "compute-3")
    output = capsys.readouterr().out
    assert f"federation.toml is now federation file 2 (hash {file.hash.hex()[:16]})" in output
    assert f"revoked: client-1, {client_id('client-1').hex()}\n" in output
    assert "Compute nodes: compute-1, compute-2\n" in output
    assert "restart that one" in output
    main(["federation", "show"])
    shown = capsys.readouterr().out
    assert "file number 2" in shown
    assert client_id("client-1").hex() in shown
    assert file.hash.hex() in shown


def test_a_command_in_another_folder_is_told_where_the_owners_file_was_looked_for(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is told to make a new federation; a path from the wrong folder is shown in full."""
    (demo / "above").mkdir()
    monkeypatch.chdir(demo / "above")
    assert main(["federation", "revoke", "client-1"]) == 5
    line = capsys.readouterr().err
    assert line.startswith(f"dca: federation.toml does not exist in {demo}/above; run this where the owner's")
    assert line.endswith("--federation FILE\n")
    assert "init" not in line
    owners = ("--federation", "../federation.toml", "--authority", "../authority.key")
    assert main(["federation", "revoke", "client-1", *owners, "--members", "compute-1.toml"]) == 5
    assert f"check the path {demo}/above/compute-1.toml and its rights" in capsys.readouterr().err


def test_changes_add_up_and_a_revoked_key_never_comes_back(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = read_federation(demo / "federation.toml").computes[0]
    change("revoke", "client-1")
    change("add-trainer", f"second={Identity(bytes([8]) * 32).public_key.hex()}")
    file = change("replace-node", "compute-1", f"compute-1={NEW.public_key.hex()}")
    assert (file.number, {one.name for one in file.computes}) == (4, {"compute-1", "compute-2", "compute-3"})
    assert [one.name for one in file.trainers] == ["trainer", "second"]
    assert set(file.revoked) == {client_id("client-1"), old.id}
    assert "is revoked; use a new key" in refusal(capsys, "add-node", f"again={old.key.hex()}", code=5)
    assert "revoked for good" in refusal(capsys, "enrol", "client-1.key", code=5)
    assert "already revoked, by federation file 4" in refusal(capsys, "revoke", "client-1")


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        (("revoke", "bob"), "is not known: expected a member's name, a client's id", 2),
        (("revoke", "compute-1", "compute-2"), "1 Compute nodes would be left, expected at least 2", 2),
        (("revoke", "trainer"), "no trainer would be left; add another one first", 2),
        (("replace-node", "compute-9", NEWCOMER), "known: compute-1, compute-2, compute-3", 2),
        (("add-node", "newcomer"), "expected NAME=PUBLICKEY", 2),
        (("add-node", "compute-1=" + NEW.public_key.hex()), "two members have the same name", 5),
        (("revoke", "client-1", "--authority", "client-1.key"), "is the identity of a client", 5),
    ],
)
def test_an_impossible_change_is_a_one_line_error(
    demo: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], message: str, code: int
) -> None:
    assert message in refusal(capsys, *given, code=code)


def test_p_is_stated_at_the_start_and_changed(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federation", "show"]) == 0
    words = "p = 2: at most 2 of the 3 Compute nodes may be corrupt; a round needs all 3, so none may be down"
    assert words in " ".join(capsys.readouterr().out.split())
    one = change("set-p", "1")
    lower = " ".join(capsys.readouterr().out.split())
    assert "keep to p = 2, and decline rounds of fewer than 3 Compute nodes, until the owner of each runs" in lower
    assert "--accept-p 1`" in lower
    assert (one.number, one.colluding, one.p) == (2, 1, 1)
    assert change("add-node", NEWCOMER).colluding == 1
    capsys.readouterr()
    assert main(["federation", "show", "--json", "-"]) == 0
    assert '"p": 1' in capsys.readouterr().out
    assert "states p = 1 already" in refusal(capsys, "set-p", "1")
    assert "p = 4: expected 1 to 3 of 4 Compute nodes, or 0 for all but one" in refusal(capsys, "set-p", "4")
    assert main(["federation", "show"]) == 0
    assert "a round needs 2, so 2 may be down" in " ".join(capsys.readouterr().out.split())
    assert change("set-p", "3").p == 3
    assert "accept-p" not in capsys.readouterr().out, "a larger one holds at once"
    assert (change("set-p", "0").p, change("revoke", "compute-1").p) == (3, 2)
    assert main(["federation", "init", "other", "--computes", "4", "--colluding", "2"]) == 0
    assert read_federation(Path("other/federation.toml")).p == 2
    assert main(["federation", "init", "third", "--computes", "4", "--colluding", "4"]) == 2
    assert not Path("third").exists()


def test_another_enrolment_key_changes_nothing(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", "thief.key", "--role", "authority"]) == 0
    assert "not the federation file's enrolment key" in refusal(
        capsys, "revoke", "client-1", "--authority", "thief.key", code=5
    )


def test_a_federation_without_compute_nodes_stays_one_or_gets_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["federation", "init", ".", "--without-computes", "--clients", "2"]) == 0
    assert change("revoke", "client-1").computes == ()
    assert "1 Compute nodes would be left" in refusal(capsys, "add-node", NEWCOMER)
    assert len(change("add-node", NEWCOMER, f"b={Identity(bytes([8]) * 32).public_key.hex()}").computes) == 2


def test_a_broker_omits_revoked_members(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change("revoke", "client-1", "compute-3")
    capsys.readouterr()
    access = broker._access(demo / "federation.toml", demo / "passwords", None)
    assert access is not None
    assert len(access.ids(Channel.COMPUTE)) == 2
    assert client_id("client-1").hex() not in access.ids(Channel.CLIENT)
    assert "left out" in capsys.readouterr().err


def test_a_registrar_is_added_changed_and_revoked(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", "door.key", "--role", "registrar"]) == 0
    door = read_identity(Path("door.key"), "registrar")
    assert [one.clients for one in change("add-registrar", "door=door.key", "--clients", "40").registrars] == [40]
    file = change("add-registrar", f"door={door.public_key.hex()}", "--clients", "60", "--days", "30")
    assert [(one.name, one.clients, one.days, one.per_day) for one in file.registrars] == [("door", 60, 30, 20)]
    assert change("add-trainer", NEWCOMER).registrars == file.registrars, "other changes keep it"
    capsys.readouterr()
    assert main(["federation", "show", "federation.toml"]) == 0
    assert "registrar door, 60 clients, 20 a day, certificates of 30 days, until 2" in capsys.readouterr().out
    gone = change("revoke", "door")
    assert (gone.registrars, gone.revoked) == ((), (door.id,))
    assert "is revoked" in refusal(capsys, "add-registrar", "door=door.key", code=5)


def test_a_registrar_has_a_key_of_its_own_role(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", "door.key", "--role", "trainer"]) == 0
    capsys.readouterr()
    assert "is the identity of a trainer" in refusal(capsys, "add-registrar", "door=door.key", code=5)


def test_a_trial_of_few_clients_has_its_limits_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--computes", "2", "--clients", "2", "--clients-min", "4"]
    assert main(["federation", "init", str(tmp_path / "a"), *given]) == 2
    assert "without --broker" in capsys.readouterr().err
    assert main(["federation", "init", str(tmp_path / "a"), *given, "--broker", "mqtt://127.0.0.1"]) in (None, 0)
    assert f"of all clients {tmp_path / 'a/policy.toml'}" in " ".join(capsys.readouterr().out.split())
    node = read_config(tmp_path / "a/compute-1.toml").floors
    assert (node.clients_min, node.honest_min) == (4, 3)
    (tmp_path / "a/policy.toml").write_text("clients_min = 3\n")
    assert {read_config(tmp_path / f"a/client-{i}.toml").policy.clients_min for i in (1, 2)} == {3}
