"""Hostile peers of a registrar and of a device that joins, and several at once (DESIGN §2.9)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest
from joined_devices import HOSTS, clients_of, invite, joins, play
from patience import PATIENCE_S
from structlog.testing import capture_logs

from dca_proto.cli import main
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import InputError, TransportError
from dca_proto.runtime import joining
from dca_proto.runtime import registrar as module
from dca_proto.runtime.bundle import read_bundle
from dca_proto.runtime.joining import join, renew
from dca_proto.runtime.registrar import RegistrarServer
from dca_proto.runtime.registrar_file import read_registrar


def test_two_devices_at_the_same_time_with_one_code(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> list[Any]:
        both = [join(read_bundle(bundle), tmp_path / name, None) for name in ("a", "b")]
        return await asyncio.gather(*both, return_exceptions=True)

    ends = play(host, scene)
    assert sorted(type(end).__name__ for end in ends) == ["InputError", "Joined"]
    assert len(clients_of(host)) == 1


def test_a_server_of_another_ca_or_name_gets_no_code(host: Path, deployed: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")
    assert main(["federation", "deploy", str(tmp_path / "other"), "--hosts", HOSTS]) == 0
    asked: list[object] = []

    async def scene(running: RegistrarServer) -> None:
        running.answer = lambda *request: asked.append(request)  # type: ignore[assignment,method-assign,return-value]
        real = read_bundle(bundle)
        ca = (tmp_path / "other/owner/ca.pem").read_text()
        for changes in ({"ca": ca}, {"host": "localhost"}):
            shown = msgspec.structs.replace(real, entrance=msgspec.structs.replace(real.entrance, **changes))
            with pytest.raises(InputError, match="is not the one of the invitation, and got no code"):
                await join(shown, tmp_path / "a", None)

    play(host, scene)
    assert asked == []


def test_an_enrolled_client_cannot_keep_the_broker_busy(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        await join(read_bundle(bundle), tmp_path / "a", None)
        before = (host / "access").stat().st_mtime_ns
        await join(read_bundle(bundle), tmp_path / "a", None)
        await renew(read_bundle(bundle).entrance, tmp_path / "a")
        assert (host / "access").stat().st_mtime_ns == before

    play(host, scene)


def test_a_key_joins_once(host: Path, tmp_path: Path) -> None:
    first, second = invite(host, "ward-7", "ward-8")

    async def scene(running: RegistrarServer) -> None:
        await join(read_bundle(first), tmp_path / "a", None)
        with pytest.raises(InputError, match=r"refuses \(taken\): this key is enrolled by another invitation"):
            await join(read_bundle(second), tmp_path / "a", None)

    play(host, scene)


@pytest.mark.parametrize("pid", ["0", "-1", "own", "odd"])
def test_only_mosquitto_gets_the_signal(pid: str, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "mosquitto.pid").write_text(str(os.getpid()) if pid == "own" else pid)
    monkeypatch.setattr(os, "kill", lambda *signal: pytest.fail("another process was told"))
    with capture_logs() as logged:
        RegistrarServer(read_registrar(host / "registrar.toml")).write_lists()
    assert "mosquitto was not told to read its files again" in [one["event"] for one in logged]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0\0\0\1\xc0", b"\xff\xff\xff\xff", b"\0\0\0\5abcde", b"\0\0\0\2\x91\x02", b"GET / HTTP/1.1\r\n\r\n"],
)
def test_odd_requests_are_dropped(payload: bytes, host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        entrance = read_bundle(bundle).entrance
        context = ssl.create_default_context(cadata=entrance.ca)
        reader, writer = await asyncio.open_connection(entrance.host, entrance.port, ssl=context)
        writer.write(payload)
        writer.write_eof() if writer.can_write_eof() else writer.close()
        assert await reader.read() == b""
        await join(read_bundle(bundle), tmp_path / "a", None)

    play(host, scene)


def test_connections_that_send_nothing_keep_no_device_away(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle,) = invite(host, "ward-7")
    monkeypatch.setattr(module, "_PEER_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(module, "peer_of", lambda address: next(peers))
    peers = iter([*"a" * 9, "the device's"])

    async def scene(running: RegistrarServer) -> None:
        entrance = read_bundle(bundle).entrance
        idle = [await asyncio.open_connection(entrance.host, entrance.port) for _ in range(9)]
        dropped = [asyncio.create_task(reader.read()) for reader, _ in idle[2:]]
        assert [await task for task in dropped] == [b""] * 7
        assert len(running._connections) == 2
        await join(read_bundle(bundle), tmp_path / "a", None)
        for _, writer in idle:
            writer.close()

    play(host, scene)


def test_a_connection_ends_whatever_the_peer_does(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle,) = invite(host, "ward-7")
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.3)

    async def scene(running: RegistrarServer) -> None:
        entrance = read_bundle(bundle).entrance
        context = ssl.create_default_context(cadata=entrance.ca)
        for secured in (None, context):
            with contextlib.suppress(ConnectionError):  # on a busy machine also within the handshake
                reader, writer = await asyncio.open_connection(entrance.host, entrance.port, ssl=secured)
                writer.write(b"\0")
                assert await reader.read() == b""
                writer.close()
        while running._connections:
            await asyncio.wait(running._connections, timeout=PATIENCE_S)
            await asyncio.sleep(0)
        assert not running._of_peer

    play(host, scene)


def test_a_device_that_is_dropped_asks_again(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle,) = invite(host, "ward-7")
    monkeypatch.setattr(joining, "_AGAIN_S", 0.01)
    monkeypatch.setattr(module, "_CONNECTIONS_MAX", 0)
    drop = RegistrarServer._admit

    def dropped(self: RegistrarServer, *connection: Any) -> None:
        drop(self, *connection)
        monkeypatch.setattr(module, "_CONNECTIONS_MAX", 9)

    monkeypatch.setattr(RegistrarServer, "_admit", dropped)
    assert joins(host, bundle, tmp_path / "a").is_new


@pytest.mark.parametrize(
    ("host_name", "peer"),
    [("10.0.0.1", "10.0.0.1"), ("2001:db8::1:2", "2001:db8::/64"), ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
     ("fe80::1%eth0", "fe80::/64"), ("odd", "odd")],
)  # fmt: skip
def test_who_counts_as_one_peer(host_name: str, peer: str) -> None:
    assert module.peer_of((host_name, 1)) == peer


@pytest.mark.parametrize("changes", [{"name": "\x1b[31m"}, {"password": ""}, {"password": "a\nb"}])
def test_odd_answers_of_a_registrar_write_nothing(changes: dict[str, str], host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")

    async def scene(running: RegistrarServer) -> None:
        answer = running.answer
        running.answer = lambda *given: msgspec.structs.replace(answer(*given), **changes)  # type: ignore[method-assign]
        with pytest.raises(InputError):
            await join(read_bundle(bundle), tmp_path / "a", None)
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["client.key"]

    play(host, scene)


def test_two_commands_at_once_keep_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, other = joining.write_identity, joining.new_identity()

    def overtaken(draft: Path, role: str, identity: Identity) -> None:
        write(draft, role, identity)
        write(tmp_path / "client.key", role, other)

    monkeypatch.setattr(joining, "write_identity", overtaken)
    assert joining._identity(tmp_path).id == other.id
    assert [path.name for path in tmp_path.iterdir()] == ["client.key"]


def test_nobody_listens_is_said_in_one_line(host: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7")
    with pytest.raises(TransportError, match="does not answer"):
        asyncio.run(join(read_bundle(bundle), tmp_path / "a", None))


def test_codes_and_passwords_are_in_no_file_of_the_registrar(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle,) = invite(host, "ward-7")
    joins(host, bundle, tmp_path / "a")
    code, password = read_bundle(bundle).code, (tmp_path / "a/client.password").read_text().strip()
    texts = [path.read_bytes() for path in host.iterdir() if path.is_file()]
    output = "".join(capsys.readouterr())
    assert not any(code in text or code.hex().encode() in text or password.encode() in text for text in texts)
    assert code.hex() not in output
    assert password not in output
