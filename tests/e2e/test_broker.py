"""TLS, passwords and access lists on mosquitto: members do what their role needs, others get nothing through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from patience import PATIENCE_S
from ports import free_port
from scripted_broker import ReportQueue, break_off, client_settings

from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.topics import root_of, subscriptions, topic_of
from dca_proto.runtime.access import Access, BrokerUser, access_lines
from dca_proto.runtime.broker import Broker, BrokerOptions, TlsFiles, launch_broker
from dca_proto.runtime.endings import tls_end_ms
from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.transport import Connected, Gone

FEDERATION = b"ward" * 8
CLIENT, OTHER, COMPUTE, TRAINER = (
    BrokerUser(role, bytes([number]) * 16, f"password-{number}")
    for number, role in enumerate((Channel.CLIENT, Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER), 1)
)
ACCESS = Access(FEDERATION, (CLIENT, OTHER, COMPUTE, TRAINER))


@pytest.fixture(scope="module")
def broker(mosquitto_installed: None, authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    tls = TlsFiles(authority / "ca.pem", authority / "broker.pem", authority / "broker.key")
    options = BrokerOptions(kind="mosquitto", tls=tls, access=ACCESS)
    with asyncio.Runner() as loop:
        launched = launch_broker(tmp_path_factory.mktemp("tls"), options)
        yield loop.run(launched.__aenter__())
        loop.run(launched.__aexit__(None, None, None))


def connection(settings: BrokerSettings, client_id: str, *filters: str) -> MqttTransport:
    return MqttTransport(settings, client_id, filters, rng=random.Random(1))


class Ward:
    """Connects members to the broker."""

    def __init__(self, broker: Broker, authority: Path, directory: Path) -> None:
        self.broker, self.authority, self.directory = broker, authority, directory

    def settings(self, member: BrokerUser, password: str | None = None, ca: str = "ca.pem") -> BrokerSettings:
        file = self.directory / member.id.hex()
        file.touch(0o600)
        file.write_text(password or member.password)
        return client_settings(
            url=self.broker.url,
            ca=self.authority / ca,
            username=member.id.hex(),
            password_file=file,
            session_expiry_s=0,
        )

    def transport(
        self, member: BrokerUser, *filters: str, settings: BrokerSettings | None = None, client_id: str | None = None
    ) -> MqttTransport:
        filters = filters or subscriptions(FEDERATION, member.role, member.id)
        return connection(settings or self.settings(member), client_id or member.id.hex(), *filters)


@pytest.fixture
def ward(each_version: str, broker: Broker, authority: Path, tmp_path: Path) -> Ward:
    return Ward(broker, authority, tmp_path)


def topic(receiver: BrokerUser, sender: BrokerUser) -> str:
    return topic_of(FEDERATION, Address(receiver.role, receiver.id), sender.id)


def broadcast(channel: Channel, sender: BrokerUser) -> str:
    return topic_of(FEDERATION, Address(channel), sender.id)


async def opened(stack: AsyncExitStack, transport: MqttTransport) -> MqttTransport:
    await transport.open()
    stack.push_async_callback(transport.close)
    return transport


async def why_not_open(settings: BrokerSettings, reason: str, answer_timeout_s: float = 10.0) -> str:
    """What is reported where there is no connection at the start, for a reason with these words."""
    reports = ReportQueue()
    waiting = MqttTransport(
        settings, "a", ("x/+",), rng=random.Random(1), answer_timeout_s=answer_timeout_s, on_report=reports
    )
    opening = asyncio.create_task(waiting.open())
    lost = await reports.until(reason)
    opening.cancel()
    await asyncio.wait([opening])
    return lost.reason


def play(scenario: object) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))  # type: ignore[arg-type]


def test_members_reach_whom_their_role_needs(ward: Ward) -> None:
    ways = [
        (CLIENT, topic(COMPUTE, CLIENT), COMPUTE),
        (CLIENT, topic(TRAINER, CLIENT), TRAINER),
        (COMPUTE, topic(CLIENT, COMPUTE), CLIENT),
        (COMPUTE, topic(TRAINER, COMPUTE), TRAINER),
        (COMPUTE, topic(COMPUTE, COMPUTE), COMPUTE),
        (COMPUTE, broadcast(Channel.ABORT, COMPUTE), CLIENT),
        (COMPUTE, broadcast(Channel.EPOCH, COMPUTE), TRAINER),
        (CLIENT, broadcast(Channel.HELLO, CLIENT), COMPUTE),
        (TRAINER, topic(CLIENT, TRAINER), CLIENT),
        (TRAINER, topic(COMPUTE, TRAINER), COMPUTE),
        (TRAINER, broadcast(Channel.ANNOUNCE, TRAINER), OTHER),
    ]

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            links = {m.id: await opened(stack, ward.transport(m)) for m in (CLIENT, OTHER, COMPUTE, TRAINER)}
            for number, (sender, way, receiver) in enumerate(ways):
                await links[sender.id].publish(way, bytes([number]))
                received = await links[receiver.id].inbox.take()
                while received.payload != bytes([number]):  # broadcasts reach others, too
                    received = await links[receiver.id].inbox.take()
                assert received.topic == way

    play(scenario())


def test_a_wrong_password_is_refused_and_not_tried_again(ward: Ward) -> None:
    async def scenario() -> None:
        wrong = ward.transport(CLIENT, settings=ward.settings(CLIENT, password="guessed-wrong"))
        with pytest.raises(
            UsageError, match=r"refused user name .* or password: .*this member was revoked: ask the fed"
        ) as caught:
            await wrong.open()
        assert "guessed-wrong" not in str(caught.value)

    play(scenario())


def test_a_password_withdrawn_is_reported_and_tried_again(ward: Ward, tmp_path: Path) -> None:
    """A broker may refuse for want of memory, or falsely: an actor that was connected before does not end."""

    async def scenario() -> None:
        reports: asyncio.Queue[object] = asyncio.Queue()
        changed = Access(FEDERATION, (BrokerUser(CLIENT.role, CLIENT.id, "another password"),))
        port = free_port()
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto", port=port, access=ACCESS)) as broker:
            settings = msgspec.structs.replace(ward.settings(CLIENT), url=broker.url, ca=None)
            client = MqttTransport(
                settings, CLIENT.id.hex(), ("x/+",), rng=random.Random(1), on_report=reports.put_nowait
            )
            await client.open()
            while await reports.get() != Connected(broker.url):
                pass
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto", port=port, access=changed)):
            while "refused user name" not in getattr(await reports.get(), "reason", ""):
                pass
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto", port=port, access=ACCESS)):
            while not isinstance(await reports.get(), Connected):
                pass
            await client.close()

    play(scenario())


def test_clients_without_a_name_are_refused(ward: Ward) -> None:
    async def scenario() -> None:
        settings = client_settings(url=ward.broker.url, ca=ward.authority / "ca.pem")
        with pytest.raises(UsageError, match=r"refused user name \(none given\)"):
            await ward.transport(CLIENT, settings=settings).open()

    play(scenario())


def test_a_broker_that_our_ca_did_not_sign_is_not_trusted(ward: Ward) -> None:
    async def scenario() -> None:
        reason = await why_not_open(ward.settings(CLIENT, ca="stranger.pem"), "certificate verify failed")
        assert reason.endswith("; check ca")

    play(scenario())


def test_whoever_connects_by_tls_learns_when_the_brokers_certificate_ends(ward: Ward) -> None:
    async def scenario() -> None:
        reports: asyncio.Queue[object] = asyncio.Queue()
        client = MqttTransport(
            ward.settings(CLIENT), CLIENT.id.hex(), ("x/+",), rng=random.Random(1), on_report=reports.put_nowait
        )
        async with AsyncExitStack() as stack:
            await opened(stack, client)
            end_ms = tls_end_ms(ward.authority / "broker.pem")
            assert end_ms is not None
            assert await reports.get() == Connected(ward.broker.url, certificate_end_ms=end_ms)

    play(scenario())


def test_a_compute_node_may_leave_a_will_in_its_own_name_and_in_no_other(ward: Ward) -> None:
    """A broker refuses the connection, or keeps the will to itself."""

    def leaving(member: BrokerUser, will: str) -> MqttTransport:
        settings, away = ward.settings(member), Backoff(first_s=3600.0, most_s=3600.0)
        name = member.id.hex()
        return MqttTransport(settings, name, ("x/+",), rng=random.Random(1), backoff=away, will=will)

    async def scenario() -> None:
        heard: asyncio.Queue[object] = asyncio.Queue()
        topics = subscriptions(FEDERATION, Channel.TRAINER, TRAINER.id)
        trainer = MqttTransport(
            ward.settings(TRAINER), TRAINER.id.hex(), topics, rng=random.Random(1), on_report=heard.put_nowait
        )
        async with AsyncExitStack() as stack:
            await opened(stack, trainer)
            assert isinstance(await heard.get(), Connected)
            for member, author in ((CLIENT, CLIENT), (COMPUTE, TRAINER), (COMPUTE, COMPUTE)):
                one = leaving(member, broadcast(Channel.GONE, author))
                with contextlib.nullcontext() if member is author is COMPUTE else contextlib.suppress(UsageError):
                    await opened(stack, one)
                    break_off(one)
            assert await heard.get() == Gone(COMPUTE.id)

    play(scenario())


def test_plain_mqtt_on_the_tls_port_fails(ward: Ward) -> None:
    async def scenario() -> None:
        settings = client_settings(url=ward.broker.url.replace("mqtts", "mqtt"))
        await why_not_open(settings, "cannot reach broker", answer_timeout_s=1.0)  # a broker may not answer at all

    play(scenario())


def test_messages_in_anothers_name_or_outside_the_role_are_dropped(ward: Ward, each_version: str) -> None:
    """The last message is allowed: when it arrives, the forbidden ones before it would have, too.

    With MQTT 5, the broker names the refusal; aiomqtt hides that.
    """
    forbidden = [
        topic(COMPUTE, OTHER),  # another's name
        topic(TRAINER, OTHER),
        topic(CLIENT, CLIENT),  # a client to a client
        broadcast(Channel.ANNOUNCE, CLIENT),
        broadcast(Channel.ABORT, CLIENT),
        broadcast(Channel.EPOCH, CLIENT),
        broadcast(Channel.HELLO, OTHER),
        broadcast(Channel.GONE, CLIENT),
        topic(COMPUTE, CLIENT).replace(COMPUTE.id.hex(), "0" * 32),  # an inbox of nobody
        broadcast(Channel.HELLO, CLIENT).replace("/all/", "/everybody/"),
        topic(COMPUTE, CLIENT).replace(root_of(FEDERATION), root_of(bytes(32))),
    ]

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            client = await opened(stack, ward.transport(CLIENT))
            watchers = [await opened(stack, ward.transport(member)) for member in (OTHER, COMPUTE, TRAINER)]
            for way in forbidden:
                with (
                    pytest.raises(UsageError, match=r"the broker refused a message: not authorized \(135\)")
                    if each_version == "fleet 5"
                    else contextlib.nullcontext()
                ):
                    await client.publish(way, b"forbidden")
            await client.publish(topic(COMPUTE, CLIENT), b"allowed")
            await client.publish(topic(TRAINER, CLIENT), b"allowed")
            for watcher in watchers[1:]:
                assert (await watcher.inbox.take()).payload == b"allowed"
            compute, trainer = watchers[1:]
            await compute.publish(topic(OTHER, COMPUTE), b"allowed")
            assert (await watchers[0].inbox.take()).payload == b"allowed"
            assert compute.dropped == trainer.dropped == {}

    play(scenario())


def test_another_members_inbox_is_unreadable(ward: Ward) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            own = f"{root_of(FEDERATION)}/client/{CLIENT.id.hex()}/+"
            spied = (f"{root_of(FEDERATION)}/client/{OTHER.id.hex()}/+", f"{root_of(FEDERATION)}/+/+/+", "+/+/+/+/+")
            spy = await opened(stack, ward.transport(CLIENT, own, *spied))
            other = await opened(stack, ward.transport(OTHER))
            compute = await opened(stack, ward.transport(COMPUTE))
            await other.publish(topic(COMPUTE, OTHER), b"private")
            await compute.publish(topic(OTHER, COMPUTE), b"private")
            assert (await compute.inbox.take()).payload == (await other.inbox.take()).payload == b"private"
            await compute.publish(topic(CLIENT, COMPUTE), b"own")
            assert (await spy.inbox.take()).payload == b"own"

    play(scenario())


def test_another_members_session_cannot_be_taken_over(ward: Ward) -> None:
    """A member that connects under another's client id gets its own session: the other stays connected and served."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            other = await opened(stack, ward.transport(OTHER))
            await opened(stack, ward.transport(CLIENT, client_id=OTHER.id.hex()))
            compute = await opened(stack, ward.transport(COMPUTE))
            await compute.publish(topic(OTHER, COMPUTE), b"still here")
            assert (await other.inbox.take()).payload == b"still here"

    play(scenario())


def test_a_broker_may_ask_for_certificates(
    each_version: str, mosquitto_installed: None, authority: Path, tmp_path: Path
) -> None:
    tls = TlsFiles(authority / "ca.pem", authority / "broker.pem", authority / "broker.key", require_certificate=True)

    async def scenario() -> None:
        async with launch_broker(tmp_path, BrokerOptions(kind="mosquitto", tls=tls)) as broker:
            bare = client_settings(url=broker.url, ca=authority / "ca.pem")
            await why_not_open(bare, "cannot reach broker", 1.0)  # aiomqtt does not notice the refusal
            known = client_settings(
                url=broker.url,
                ca=authority / "ca.pem",
                certificate=authority / "client.pem",
                key=authority / "client.key",
            )
            transport = connection(known, "a", "x/+")
            await transport.open()
            await transport.publish("x/a", os.urandom(1_000_000))
            assert len((await transport.inbox.take()).payload) == 1_000_000
            await transport.close()

    play(scenario())


def test_passwords_are_neither_shown_nor_left_readable(ward: Ward) -> None:
    directory = ward.broker.log_path.parent
    assert "password-1" not in repr(ACCESS)
    assert "password-1" not in (directory / "passwords").read_text()
    assert {(directory / name).stat().st_mode & 0o777 for name in ("passwords", "access")} == {0o600}


def test_hardening_5_an_access_list_spells_out_a_clients_topics() -> None:
    name, root = CLIENT.id.hex(), "dca/" + b"ward".hex() * 4
    servers = {member.role: [member.id.hex()] for member in (COMPUTE, TRAINER)}
    assert list(access_lines(ACCESS.federation, servers, Channel.CLIENT, CLIENT.id)) == [
        f"user {name}",
        f"topic write {root}/trainer/{TRAINER.id.hex()}/{name}",
        f"topic write {root}/compute/{COMPUTE.id.hex()}/{name}",
        f"topic write {root}/hello/all/{name}",
        f"topic read {root}/client/{name}/+",
        f"topic read {root}/federation/all/+",
        f"topic read {root}/announce/all/+",
        f"topic read {root}/abort/all/+",
    ]


@pytest.mark.parametrize("password", ["short", "with\nnewline", ""])
def test_unusable_passwords_are_refused(password: str) -> None:
    with pytest.raises(UsageError, match="must be printable and have at least 8"):
        BrokerUser(Channel.CLIENT, bytes(16), password)
