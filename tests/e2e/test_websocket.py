"""Hospital networks: a federation through WebSockets with TLS, behind a proxy that lets nothing else through."""

from __future__ import annotations

import asyncio
import getpass
import random
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import LiveFederation
from other_brokers import listens
from patience import PATIENCE_S
from ports import free_port
from proxies import LoopbackProxy
from scripted_broker import QUICK, ReportQueue, until

from dca_proto.errors import UsageError
from dca_proto.protocol import facts
from dca_proto.protocol.params import Timing
from dca_proto.runtime.broker import find_mosquitto
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.testing import NoNoise, TestFederation


@asynccontextmanager
async def mosquitto(folder: Path, *lines: str) -> AsyncIterator[int]:
    """Run a mosquitto, and yield the port of its listener with these lines, once it listens."""
    port = free_port()
    file = folder / "mosquitto.conf"
    other = f"listener {free_port()} 127.0.0.1"  # mosquitto 2.0.11 does not start with only a listener for WebSockets
    user = f"user {getpass.getuser()}"
    file.write_text("\n".join([other, f"listener {port} 127.0.0.1", *lines, "allow_anonymous true", user, ""]))
    command = [str(find_mosquitto()), "-c", str(file)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:  # noqa: ASYNC220
        try:
            await until(lambda: listens(port) or process.poll() is not None)
            assert process.poll() is None, f"mosquitto ended with {process.returncode}"
            yield port
        finally:
            process.terminate()


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_federation_through_wss_behind_an_http_proxy(
    version: str, mosquitto_installed: None, authority: Path, tmp_path: Path
) -> None:
    actors = TestFederation(5, 3, name=f"wss-{version[0]}", mechanism=NoNoise(), timing=Timing(resend_first_ms=500))
    tls = [f"certfile {authority / 'broker.pem'}", f"keyfile {authority / 'broker.key'}"]
    password = tmp_path / "proxy password"
    password.touch(0o600)
    password.write_text("letmein out\n")

    async def scenario() -> None:
        proxy = LoopbackProxy("http", ("ward", "letmein out"))
        async with mosquitto(tmp_path, "protocol websockets", *tls) as port, proxy:
            settings = BrokerSettings(
                url=f"wss://127.0.0.1:{port}", ca=authority / "ca.pem", version=version,
                proxy=proxy.url, proxy_username="ward", proxy_password_file=password,
            )  # fmt: skip
            live = LiveFederation(actors, tmp_path, lambda _: settings)
            async with live:
                live.trainer.runner.command(actors.request(clients=5, tolerate=0))
                await live.until(lambda: live.has(facts.RoundCompleted, live.trainer))
            assert set(proxy.served) == {("127.0.0.1", port)}
            assert len(proxy.served) >= len(live.members)  # a busy machine may lose a connection and open another
            assert not proxy.refused

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize("is_behind_proxy", [False, True], ids=["direct", "behind a proxy"])
@pytest.mark.parametrize(
    ("ca", "host", "expected", "advice"),
    [
        ("stranger.pem", "127.0.0.1", "certificate verify failed", "check ca"),
        ("ca.pem", "localhost", "Hostname mismatch", "subjectAltName: check the URL, or renew the certificate"),
    ],
    ids=["unknown authority", "another host's"],
)
def test_a_wrong_certificate_of_wss_is_refused(
    ca: str,
    host: str,
    expected: str,
    advice: str,
    is_behind_proxy: bool,
    mosquitto_installed: None,
    authority: Path,
    tmp_path: Path,
) -> None:
    """Also of a proxy that breaks TLS open with a certificate of its own."""
    tls = [f"certfile {authority / 'broker.pem'}", f"keyfile {authority / 'broker.key'}"]

    async def scenario() -> str:
        async with mosquitto(tmp_path, "protocol websockets", *tls) as port, LoopbackProxy("http") as proxy:
            reports = ReportQueue()
            settings = BrokerSettings(
                url=f"wss://{host}:{port}", ca=authority / ca, proxy=proxy.url if is_behind_proxy else None
            )
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            opening = asyncio.create_task(a.open())
            lost = await reports.until(expected)
            opening.cancel()
            await asyncio.wait([opening])
            return lost.reason

    reason = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert reason.endswith(advice)


@pytest.mark.parametrize("kind", ["http", "socks5"])
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_messages_pass_each_kind_of_proxy(kind: str, scheme: str, mosquitto_installed: None, tmp_path: Path) -> None:
    protocol = "mqtt" if scheme == "mqtt" else "websockets"

    async def scenario() -> None:
        async with mosquitto(tmp_path, f"protocol {protocol}") as port, LoopbackProxy(kind) as proxy:
            settings = BrokerSettings(url=f"{scheme}://localhost:{port}", proxy=proxy.url)
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1))
            await a.open()
            for size in (1, 1000, 50_000):
                await a.publish("x/a", bytes(size))
                while (await a.inbox.take()).payload != bytes(size):
                    pass  # an earlier one again, if the connection was lost
            await a.close()
            assert set(proxy.served) == {("localhost", port)}

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.long
def test_messages_of_1_mib_pass_the_websockets_of_mosquitto_in_small_parts(
    mosquitto_installed: None, tmp_path: Path
) -> None:
    """With their topic, parts have less than 4,096 bytes; mosquitto 2.0.11 stalls on larger packets."""

    async def scenario() -> None:
        async with mosquitto(tmp_path, "protocol websockets") as port:
            settings = BrokerSettings(url=f"ws://127.0.0.1:{port}", part_bytes_max=3000)
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1))
            await a.open()
            for number in range(3):
                payload = bytes([number]) * (1 << 20)
                sent = asyncio.ensure_future(a.publish("x/a", payload))
                while (await a.inbox.take()).payload != payload:
                    pass
                await sent
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_a_proxy_that_refuses_is_named_without_its_password(kind: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("hunter22\n")

    async def scenario() -> str:
        async with LoopbackProxy(kind, ("ward", "another")) as proxy:
            reports = ReportQueue()
            settings = BrokerSettings(
                url="wss://broker.example", proxy=proxy.url, proxy_username="ward", proxy_password_file=password
            )
            a = MqttTransport(settings, "a", (), rng=random.Random(1), backoff=QUICK, on_report=reports)
            opening = asyncio.create_task(a.open())
            lost = await reports.until({"http": "407", "socks5": "authentication failed"}[kind])
            opening.cancel()
            await asyncio.wait([opening])
            assert proxy.refused
            assert lost.reason.endswith(f"; are it and the proxy {proxy.url} running?")
            assert "hunter22" not in repr(a._proxy)
            return lost.reason

    reason = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert reason.startswith("cannot reach broker at wss://broker.example: ")
    assert "hunter22" not in reason


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"proxy: pip install -e '.\[proxy\]'"):
        MqttTransport(BrokerSettings(url="ws://h", proxy="http://p"), "a", (), rng=random.Random(1))
