"""`dca broker clear` on mosquitto: all retained messages of one federation go, those of another one stay."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dca_proto.cli import main
from dca_proto.errors import TransportError, UsageError
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.wire.topics import root_of, topic_of
from dca_proto.runtime.access import OPERATOR
from dca_proto.runtime.broker import BrokerOptions, TlsFiles, launch_broker
from dca_proto.runtime.clearing import clear_retained
from dca_proto.runtime.keyfile import read_federation
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings

SENDERS = 300  # more than may be under way at once


def topics(federation: Federation) -> list[str]:
    ids = [os.urandom(16) for _ in range(SENDERS)]
    hellos = [topic_of(federation.id, Address(Channel.HELLO), one) for one in ids]
    return [*hellos, topic_of(federation.id, Address(Channel.EPOCH), ids[0])]


async def retain(settings: BrokerSettings, names: Sequence[str]) -> None:
    """Leave a retained message on each topic, and a passing one on the first."""
    transport = MqttTransport(settings, os.urandom(16).hex(), (), rng=random.Random(1))
    await transport.open()
    await asyncio.gather(*(transport.publish(name, b"a session", retain=True) for name in names))
    await transport.close()


@pytest.fixture
def federations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[Path]:
    """Two of one name."""
    made = [tmp_path / name for name in ("one", "other")]
    for folder in made:
        assert main(["federation", "init", str(folder), "--computes", "2", "--clients", "1"]) == 0
    capsys.readouterr()
    return [folder / "federation.toml" for folder in made]


@pytest.mark.long
def test_the_messages_of_one_federation_go_and_another_s_stay(
    federations: list[Path], mosquitto_installed: None, tmp_path: Path
) -> None:
    one, other = map(read_federation, federations)

    async def story() -> list[dict[str, object]]:
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto")) as broker:
            settings = BrokerSettings(url=broker.url, session_expiry_s=0)
            await retain(settings, topics(one))
            await retain(settings, topics(other))
            shown = []
            for file in (federations[0], federations[0], federations[1]):
                call = ["-m", "dca_proto.cli", "broker", "clear", str(file), "--url", broker.url, "--json", "-"]
                command = await asyncio.create_subprocess_exec(sys.executable, *call, stdout=asyncio.subprocess.PIPE)
                out, _ = await command.communicate()
                assert command.returncode == 0
                shown.append(json.loads(out))
            return shown

    first, again, last = asyncio.run(story())
    assert [first["topics"], again["topics"], last["topics"]] == [SENDERS + 1, 0, SENDERS + 1]
    assert first["federation"] == last["federation"] == "demo"
    assert first["id"] == root_of(one.id).split("/")[1]
    assert first["id"] != last["id"]


def test_the_messages_of_revoked_members_go_and_the_others_stay(
    federations: list[Path], mosquitto_installed: None, tmp_path: Path
) -> None:
    file, _ = federations
    gone = [os.urandom(16), os.urandom(16)]
    keys = ["--federation", str(file), "--authority", str(file.parent / "authority.key")]
    assert main(["federation", "revoke", *(one.hex() for one in gone), *keys]) in (None, 0)
    federation, stays = read_federation(file), os.urandom(16)

    async def story() -> list[dict[str, object]]:
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto")) as broker:
            settings = BrokerSettings(url=broker.url, session_expiry_s=0)
            left = [topic_of(federation.id, Address(Channel.HELLO), one) for one in (*gone, stays)]
            await retain(settings, [*left, topic_of(federation.id, Address(Channel.FEDERATION), gone[0])])
            shown = []
            for options in (["--revoked"], ["--revoked"], []):
                call = ["-m", "dca_proto.cli", "broker", "clear", str(file), "--url", broker.url, "--json", "-"]
                command = await asyncio.create_subprocess_exec(
                    sys.executable, *call, *options, stdout=asyncio.subprocess.PIPE
                )
                out, _ = await command.communicate()
                assert command.returncode == 0
                shown.append(json.loads(out))
            return shown

    assert [one["topics"] for one in asyncio.run(story())] == [3, 0, 1]


def test_messages_of_running_actors_do_not_keep_clearing_from_its_end(
    federations: list[Path], mosquitto_installed: None, tmp_path: Path
) -> None:
    """With --revoked, actors may run: they are never silent for as long as retained messages are waited for."""
    federation, gone, stays = read_federation(federations[0]), os.urandom(16), os.urandom(16)

    async def story() -> int:
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto")) as broker:
            settings = BrokerSettings(url=broker.url, session_expiry_s=0)
            names = [topic_of(federation.id, Address(Channel.HELLO), one) for one in (gone, stays)]
            await retain(settings, names)
            transport = MqttTransport(settings, os.urandom(16).hex(), (), rng=random.Random(1))
            await transport.open()

            async def run() -> None:
                while True:
                    await transport.publish(topic_of(federation.id, Address(Channel.ANNOUNCE), stays), b"a message")
                    await asyncio.sleep(0.05)

            actor = asyncio.create_task(run())
            try:
                async with asyncio.timeout(30):
                    return await clear_retained(settings, root_of(federation.id), senders=frozenset({gone.hex()}))
            finally:
                actor.cancel()
                await transport.close()

    assert asyncio.run(story()) == 1


def test_the_operator_clears_a_broker_with_passwords_and_tls_and_a_member_cannot(
    federations: list[Path], mosquitto_installed: None, authority: Path, tmp_path: Path
) -> None:
    """The access list is that of `dca broker --federation`; a member may read but a part of the topics."""
    from dca_proto.cli.broker import _access

    passwords = tmp_path / "passwords"
    access = _access(federations[0], passwords, None)
    assert access is not None
    assert access.operator not in repr(access)
    federation = read_federation(federations[0])
    node = federation.computes[0]
    tls = TlsFiles(authority / "ca.pem", authority / "broker.pem", authority / "broker.key")

    async def story() -> int:
        async with AsyncExitStack() as stack:
            options = BrokerOptions(kind="mosquitto", tls=tls, access=access)
            broker = await stack.enter_async_context(launch_broker(tmp_path / "b", options))

            def settings(user: str, file: str) -> BrokerSettings:
                secret = passwords / f"{file}.password"
                return BrokerSettings(
                    url=broker.url, ca=authority / "ca.pem", username=user, password_file=secret, session_expiry_s=0
                )

            member = settings(node.id.hex(), node.name)
            await retain(member, [topic_of(federation.id, Address(Channel.EPOCH), node.id)])
            with pytest.raises(UsageError, match=r"does not let .* clear as its operator"):
                await clear_retained(member, root_of(federation.id), quiet_s=0.5)
            with pytest.raises(UsageError, match="password"):
                await clear_retained(settings(OPERATOR, node.name), root_of(federation.id))
            return await clear_retained(settings(OPERATOR, OPERATOR), root_of(federation.id))

    assert asyncio.run(story()) == 1


def test_a_broker_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TransportError, match=r"mqtt://127.0.0.1:1: .*; is the broker up\?"):
        asyncio.run(clear_retained(BrokerSettings(url="mqtt://127.0.0.1:1"), "dca/00"))
