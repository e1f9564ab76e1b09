"""The status of running actors: what it states, and the door at which it is asked for."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENCE_S
from rich.console import Console

from dca_proto.cli import main
from dca_proto.cli.status import last_line, line, show
from dca_proto.errors import InputError
from dca_proto.protocol import facts
from dca_proto.protocol.events import Received, Started
from dca_proto.protocol.params import DAY_MS
from dca_proto.results.status import RoundStatus, Status, Statuses
from dca_proto.runtime import status as status_module
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.device import Device, load
from dca_proto.runtime.metrics import metrics_of
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.status import answering, ask_status, status_of, status_path
from dca_proto.runtime.transport import Connected, Disconnected
from dca_proto.wording import iso

STATUS = Status(
    role="client", name="ward-7", id="00" * 16, federation="demo", file=1, at="2026-11-29T00:00:00Z", running_s=1.0,
    broker="mqtt://127.0.0.1", connected=True, since_s=1.0, epoch=1, store_bytes=1,
)  # fmt: skip


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation of two nodes and three clients whose certificates end in six days."""
    monkeypatch.chdir(tmp_path)
    call = ["federation", "init", "demo", "--computes", "2", "--clients", "3", "--days", "6"]
    assert main([*call, "--broker", "mqtt://127.0.0.1:1"]) == 0
    (tmp_path / "demo" / "client-1.csv").write_text("x\n1\n")
    return tmp_path / "demo"


async def state_of(device: Device, *reported: object, meanwhile: Callable[[Any], None] = lambda parts: None) -> Status:
    """The status of an actor that is not connected, after it has reported these facts."""
    async with device.open() as parts:
        runner = Runner(parts.actor, parts.transport, parts.store, federation=device.config.federation.id)
        meanwhile(parts)
        for fact in reported:
            parts.watch(fact)
        return status_of(device, runner, parts.watch)


def asked(path: Path, question: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(PATIENCE_S)
        asking.connect(str(path))
        asking.sendall(question)
        asking.shutdown(socket.SHUT_WR)
        found = b""
        while part := asking.recv(1 << 16):
            found += part
    return found


# --- what it states ---------------------------------------------------------------------------------------------------


def test_a_client_states_its_connection_data_budget_and_certificate(demo: Path) -> None:
    device = load(demo / "client-1.toml")
    found = asyncio.run(state_of(device, Connected("mqtt://127.0.0.1:1"), facts.Contributed(bytes(16), "mean", 0.1)))
    assert (found.role, found.name, found.connected, found.epsilon_left) == ("client", "client-1", True, 4)
    assert found.last is not None
    assert (found.last.what, found.last.ok) == ("contributed to mean", True)
    assert found.data_read is not None
    assert found.store_bytes >= 8192 + 4096
    (warning,) = found.warnings
    assert warning.startswith("the certificate ends in 6 days, on ")
    away = asyncio.run(state_of(device, Connected(""), Disconnected("", "the broker is down")))
    assert re.fullmatch("no connection for [0-9]+ s: the broker is down", away.warnings[0])


def test_the_brokers_certificate_is_among_those_that_end(demo: Path) -> None:
    """Nobody but a connection by TLS shows it; a renewed one takes its place."""
    device, at_ms = load(demo / "client-1.toml"), now_ms()
    seen = [Connected("mqtts://b", certificate_end_ms=at_ms + days * DAY_MS + 60_000) for days in (6, 400)]
    found = asyncio.run(state_of(device, seen[0]))
    assert any(one.startswith("the broker's certificate ends in 6 days, on ") for one in found.warnings)
    assert "dca_certificate_end_timestamp_seconds" in metrics_of()
    assert found.certificates["broker's certificate"] == iso(at_ms + 6 * DAY_MS + 60_000)
    renewed = asyncio.run(state_of(device, *seen))
    assert not any("broker's" in one for one in renewed.warnings)


def test_data_that_cannot_be_read_need_attention(demo: Path) -> None:
    device = load(demo / "client-1.toml")
    (demo / "client-1.csv").unlink()

    def read(parts: Any) -> None:
        device.data.refresh()

    found = asyncio.run(state_of(device, Connected(""), meanwhile=read))
    assert "client-1.csv" in found.data_error
    assert found.warnings[0].startswith("the data cannot be read, so they count as missing: ")


def test_a_source_states_what_it_is_and_what_it_dropped(demo: Path) -> None:
    path = demo / "client-1.toml"
    text = path.read_text().replace('data = "client-1.csv"\n', "")
    path.write_text(f'{text}\n[data]\ntopic = "sensors/+"\ncolumns = ["x"]\n')
    device = load(path)
    device.data.take("sensors/a", b"damaged")
    device.data.refresh()
    found = asyncio.run(state_of(device, Connected("")))
    assert found.data_source == "topic sensors/+, the last 60 minutes"
    assert found.data_read is None
    assert (found.dropped, found.data_dropped) == ({}, {"not JSON": 1})
    assert "no value has come for 60 minutes" in found.data_error
    assert device.actor._consent.window_s == 3600


def test_a_source_that_is_away_needs_attention_before_a_round_asks(demo: Path) -> None:
    """Its values may last for the rest of the window, so no read has failed yet."""
    path = demo / "client-1.toml"
    text = path.read_text().replace('data = "client-1.csv"\n', "")
    path.write_text(f'{text}\n[data]\ntopic = "sensors/+"\ncolumns = ["x"]\n')
    device = load(path)
    device.data._connection(Connected("mqtt://sensors"))
    device.data.take("sensors/a", b"20")
    device.data.refresh()
    assert not any("new data" in warning for warning in asyncio.run(state_of(device, Connected(""))).warnings)
    device.data._connection(Disconnected("mqtt://sensors", "connection refused"))
    found = asyncio.run(state_of(device, Connected("")))
    assert "no new data arrive: no connection to the sensors' broker: connection refused" in found.warnings
    assert (found.data_error, found.is_well) == ("", False)


def test_a_node_counts_sessions_and_names_clients(demo: Path) -> None:
    node, client = (load(demo / f"{name}.toml") for name in ("compute-1", "client-1"))

    async def greeted() -> bytes:
        async with client.open() as parts:
            (hello, *_) = [one for one in parts.actor.handle(Started(), now_ms()) if hasattr(one, "payload")]
        return hello.payload

    hello = asyncio.run(greeted())

    def greet(parts: Any) -> None:
        parts.actor.handle(Received(client.id, hello), now_ms())
        parts.actor.handle(Received(client.id, b"damaged"), now_ms())

    found = asyncio.run(state_of(node, Connected(""), meanwhile=greet))
    assert (found.sessions, found.dropped) == (1, {"malformed": 1})
    assert node.name_of(client.id) == f"client-1 ({client.id.hex()[:8]})"
    assert found.warnings == []


def test_a_node_names_the_clients_that_were_absent_from_the_last_round(demo: Path) -> None:
    node, away = load(demo / "compute-1.toml"), [bytes([index]) * 16 for index in range(102)]
    ended = [facts.Absent(b"a" * 16, tuple(away)), facts.Released(b"a" * 16, 3, bytes(32))]
    found = asyncio.run(state_of(node, *ended))
    assert found.last is not None
    assert (found.last.what, found.last.absent_more) == ("released a sum over 3 contributions", 2)
    assert found.last.absent == [one.hex()[:8] for one in away[:100]]
    assert "; absent: 00000000, 01010101, 02020202" in last_line(found.last)
    assert last_line(found.last).endswith(" and 92 more and 2 others")
    later = asyncio.run(state_of(node, *ended, facts.Released(b"b" * 16, 5, bytes(32))))
    assert later.last is not None
    assert later.last.absent == [], "of another round"
    few = facts.NodeAborted(b"a" * 16, node.id, "too-few-clients", "22 contributed, 24 were needed")
    aborted = asyncio.run(state_of(node, ended[0], few))
    assert aborted.last is not None
    assert aborted.last.absent == found.last.absent, "an aborted round has names, too"


def test_a_node_names_the_clients_whose_proofs_failed(demo: Path) -> None:
    node, liars = load(demo / "compute-1.toml"), tuple(bytes([index]) * 16 for index in range(101))
    found = asyncio.run(state_of(node, facts.Released(b"a" * 16, 300, bytes(32), liars)))
    assert found.last is not None
    assert (found.unproven_clients, found.last.unproven_more) == (101, 1)
    assert found.last.unproven == [one.hex()[:8] for one in liars[:100]]
    assert "; unproven: 00000000, 01010101" in last_line(found.last)
    aborted = facts.NodeAborted(b"b" * 16, node.id, "too-few", "1 contributed, 3 were needed", liars[:2])
    later = asyncio.run(state_of(node, aborted))
    assert later.last is not None
    assert later.last.unproven == ["00000000", "01010101"]


def test_labels_values_and_rounds_are_apart() -> None:
    ends = msgspec.structs.replace(STATUS, certificates={"certificate by the registrar": "2027-03-01T00:25:55Z"})
    console = Console(record=True, width=80, file=io.StringIO())
    unknown = RoundStatus(
        round_id="d9" * 16, statistic="", phase="kept", until=None, arrived=None, expected=None, waits_for=[]
    )
    asked = msgspec.structs.replace(unknown, round_id="e0" * 16, arrived=2, expected=2)
    actors = [msgspec.structs.replace(ends, rounds=[unknown])]
    actors += [msgspec.structs.replace(STATUS, role=role, rounds=[asked]) for role in ("compute", "trainer")]
    show(console, Statuses(actors=actors), in_full=True)
    printed = console.export_text()
    assert [line for line in printed.splitlines() if "e0e0e0e0" in line] == [
        "  round e0e0e0e0: kept, 2 of its 2 clients have answered",
        "  round e0e0e0e0: kept, 2 of 2 clients have answered",
    ]
    assert "certificate by the registrar 2027-03-01T00:25:55Z" in printed
    assert "round d9d9d9d9: kept" in printed
    places = {line(msgspec.structs.replace(STATUS, role=role)).index("ward-7") for role in ("client", "registrar")}
    assert len(places) == 1, "names stand below each other"


# --- the door ---------------------------------------------------------------------------------------------------------


def test_whoever_asks_gets_one_answer_at_a_socket_of_the_owner(tmp_path: Path) -> None:
    path = status_path(tmp_path / "client.db")

    async def asking() -> tuple[Status | None, int, list[bytes]]:
        async with answering(path, lambda: STATUS):
            mode = stat.S_IMODE(path.stat().st_mode)
            found = await asyncio.to_thread(ask_status, tmp_path / "client.db")
            wrong = [await asyncio.to_thread(asked, path, one) for one in (b"", b"stat", b"x" * 7, b"y" * 5000)]
            return found, mode, wrong

    assert asyncio.run(asking()) == (STATUS, 0o600, [b""] * 4)
    assert not path.exists()
    assert ask_status(tmp_path / "client.db") is None


def test_a_deep_folder_and_the_socket_of_a_dead_process_are_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    path = status_path(folder / "client.db")
    descriptor = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    os.close(descriptor)
    assert ask_status(folder / "client.db") is None, "nobody listens"

    async def asking() -> Status | None:
        async with answering(path, lambda: STATUS):
            return await asyncio.to_thread(ask_status, folder / "client.db")

    assert asyncio.run(asking()) == STATUS


def test_few_are_served_at_once_and_nobody_holds_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "_PATIENCE_S", 0.2)
    path = status_path(tmp_path / "client.db")

    async def crowded() -> tuple[int, Status | None]:
        async with answering(path, lambda: STATUS):
            silent = [await asyncio.open_unix_connection(str(path)) for _ in range(12)]
            answers = await asyncio.gather(*(reader.read() for reader, _ in silent))  # all are closed, none is answered
            for _, writer in silent:
                writer.close()
            monkeypatch.undo()
            return sum(map(len, answers)), await asyncio.to_thread(ask_status, tmp_path / "client.db")

    assert asyncio.run(crowded()) == (0, STATUS)


@pytest.mark.parametrize("answer", [b"", b"{}", b"[1]", b"\xff", msgspec.json.encode(STATUS)[:-1]])
def test_an_answer_of_something_else_is_refused(tmp_path: Path, answer: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    async def asking() -> None:
        server = await asyncio.start_unix_server(other, str(status_path(tmp_path / "client.db")))
        try:
            await asyncio.to_thread(ask_status, tmp_path / "client.db")
        finally:
            server.close()

    with pytest.raises(InputError, match="is no actor of this version"):
        asyncio.run(asking())


def test_a_file_or_a_link_in_place_of_the_socket_is_not_asked(tmp_path: Path) -> None:
    status_path(tmp_path / "a.db").touch()
    status_path(tmp_path / "b.db").symlink_to("/dev/log")
    for name in ("a.db", "b.db"):
        with pytest.raises(InputError, match="is no socket of this user"):
            ask_status(tmp_path / name)


@pytest.mark.parametrize("own", [0, 1234])
def test_root_asks_every_users_actor_and_others_ask_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    async def asking() -> Status | None:
        async with answering(status_path(tmp_path / "client.db"), lambda: STATUS):
            about = list(status_path(tmp_path / "client.db").lstat())
            about[stat.ST_UID] = 4321
            with monkeypatch.context() as patch:
                patch.setattr(Path, "lstat", lambda path: os.stat_result(about))
                patch.setattr(os, "geteuid", lambda: own)
                patch.setattr(status_module, "_is_owner", lambda connection: True)
                return await asyncio.to_thread(ask_status, tmp_path / "client.db")

    if own:
        with pytest.raises(InputError, match="is no socket of this user"):
            asyncio.run(asking())
    else:
        assert asyncio.run(asking()) == STATUS


# --- the command ------------------------------------------------------------------------------------------------------


def test_check_fails_for_an_actor_that_needs_attention_or_does_not_run(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(demo / f"{name}.toml") for name in ("compute-1", "client-1")]
    away = msgspec.structs.replace(STATUS, connected=False, warnings=["no connection for 3 s: gone"])

    async def running(*made: Status) -> list[int]:
        node = answering(status_path(demo / "compute-1.db"), lambda: made[0])
        async with node, answering(status_path(demo / "client-1.db"), lambda: made[-1]):
            calls = (["status", *files], ["status", *files, "--check"])
            return [await asyncio.to_thread(main, call) or 0 for call in calls]

    assert asyncio.run(running(STATUS, STATUS)) == [0, 0]
    assert asyncio.run(running(STATUS, away)) == [0, 1]
    printed = capsys.readouterr().out
    assert "AWAY for" in printed
    assert "client ward-7: no connection for 3 s: gone" in printed
    assert main(["status", *files, "--check"]) == 1
    assert "does not run" in capsys.readouterr().out
    assert main(["status", *files, "--json", "-"]) in (None, 0)
    assert json.loads(capsys.readouterr().out) == {"actors": [], "stopped": files, "failed": {}, "resting": []}


def test_a_trainer_that_has_done_its_job_is_no_alarm_and_one_that_was_killed_is(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(demo / "trainer.toml")
    assert main(["status", path, "--check"]) in (None, 0)
    printed = capsys.readouterr().out
    assert "not at work; a trainer ends with its job" in printed
    assert "warning" not in printed
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(status_path(demo / "trainer.db")))
    assert main(["status", path, "--check"]) == 1
    assert "its actor does not run" in capsys.readouterr().out


def test_a_folder_stands_for_its_actors_that_have_run(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if they are in the folders of machines, as `dca federation deploy` writes them."""
    machines = demo.parent / "hearts"
    for machine, name in (("berlin", "compute-1"), ("paris", "compute-2"), ("rome", "trainer")):
        (machines / machine).mkdir(parents=True)
        for file in demo.glob("*"):
            if file.stem in (name, "federation"):
                shutil.copy(file, machines / machine)
    (demo.parent / "empty").mkdir()
    (demo.parent / "empty" / "pyproject.toml").write_text('[project]\ndependencies = ["dca-proto[client]"]\n')
    monkeypatch.chdir(demo.parent)

    def refusal(*given: str) -> str:
        assert main(["status", *given]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "empty has no actor's file, and neither has a folder in it" in refusal("empty")
    never = refusal("hearts")
    assert "no client or node of hearts has ever run on this machine" in never
    assert "found 3 files of actors; start one, such as dca compute hearts/berlin/compute-1.toml" in never
    (machines / "paris" / "compute-2.db").touch()

    async def running() -> list[Any]:
        found = []
        async with answering(status_path(machines / "paris" / "compute-2.db"), lambda: STATUS):
            for given in (["hearts"], ["hearts", "empty"], ["hearts/berlin/compute-1.toml", "hearts"]):
                assert await asyncio.to_thread(main, ["status", *given, "--json", "-"]) in (None, 0)
                found.append(json.loads(capsys.readouterr().out))
        return found

    alone, beside, named = asyncio.run(running())
    assert [one["name"] for one in alone["actors"]] == ["ward-7"]
    assert (alone["stopped"], alone["failed"]) == ([], {})
    assert [*beside["failed"]] == ["empty"]
    assert len(beside["actors"]) == 1
    assert (len(named["actors"]), named["stopped"]) == (1, ["hearts/berlin/compute-1.toml"])


def test_a_file_that_cannot_be_read_hides_no_actor_of_its_folder(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of other users, of other encodings, broken links, and folders with the name of a file."""
    (demo / "compute-1.db").touch()
    (demo / "folder.toml").mkdir()
    (demo / "link.toml").symlink_to(demo / "nowhere")
    (demo / "binary.toml").write_bytes(b"\xff\xfe[client]")
    assert main(["status", str(demo), "--json", "-"]) in (None, 0)
    found = json.loads(capsys.readouterr().out)
    assert found["stopped"] == [str(demo / "compute-1.toml"), str(demo / "compute-2.toml")]
    assert [*found["failed"]] == [str(demo / "binary.toml")]


def test_a_registrar_that_fails_is_in_the_status_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file is wrong, or its process ends before it has a store; so also a Compute node's."""
    monkeypatch.chdir(tmp_path)
    assert main(["federation", "deploy", "hearts", "--hosts", "berlin=127.0.0.1,paris=127.0.0.2"]) == 0
    berlin, paris = Path("hearts/berlin"), Path("hearts/paris")
    (berlin / "compute.db").touch()

    async def state() -> tuple[int, Any]:
        async with answering(status_path(berlin / "compute.db"), lambda: STATUS):
            code = await asyncio.to_thread(main, ["status", "hearts", "--check", "--json", "-"])
        return code, json.loads(capsys.readouterr().out)

    capsys.readouterr()
    code, found = asyncio.run(state())
    assert (code, found["stopped"], found["failed"]) == (1, [str(berlin / "registrar.toml")], {})
    (paris / "compute.log").touch()  # of a unit that ended before it had a store
    assert asyncio.run(state())[1]["stopped"] == [str(berlin / "registrar.toml"), str(paris / "compute.toml")]
    for damage in ("prot = 8884\n", "no key\n"):
        with (berlin / "registrar.toml").open("a") as file:
            file.write(damage)
        code, found = asyncio.run(state())
        assert (code, [*found["failed"]]) == (1, [str(berlin / "registrar.toml")])


def test_a_path_that_cannot_be_looked_at_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "a" * 300]) == 5
    assert capsys.readouterr().err.startswith("dca: cannot read aaa")


def test_an_actor_that_does_not_answer_hides_no_other(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does one whose file is damaged."""
    monkeypatch.chdir(demo)
    for name in ("compute-1", "compute-2", "trainer"):  # a trainer that has done its job
        (demo / f"{name}.db").write_bytes(b"")
    with (demo / "client-1.toml").open("a") as file:
        file.write("no key\n")

    async def running() -> int:
        path = str(status_path(demo / "compute-2.db"))
        silent = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
        async with silent, answering(status_path(demo / "compute-1.db"), lambda: STATUS):
            return await asyncio.to_thread(main, ["status", "--check", "--json", "-"])

    assert asyncio.run(running()) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["actors"]] == ["ward-7"]
    assert found["stopped"] == []
    assert re.search("is no actor of this version|did not answer", found["failed"]["compute-2.toml"])
    assert "is not TOML" in found["failed"]["client-1.toml"]
