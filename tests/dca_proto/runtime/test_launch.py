"""The broker launcher: what it starts it ends, and it reports why it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S
from ports import free_port
from scripted_broker import transport

from dca_proto.errors import UsageError
from dca_proto.runtime import broker as launcher
from dca_proto.runtime.broker import Broker, BrokerOptions, TlsFiles, launch_broker, mosquitto_configuration
from dca_proto.runtime.settings import BrokerSettings


def run(directory: Path, options: BrokerOptions) -> Broker:
    async def scenario() -> Broker:
        async with launch_broker(directory, options) as broker:
            assert psutil.pid_exists(broker.pid)
            return broker

    return asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_a_broker_runs_for_its_context_only(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "mosquitto":
        request.getfixturevalue("mosquitto_installed")
    broker = run(tmp_path, BrokerOptions(kind=kind))
    assert broker.kind == kind
    assert broker.url.startswith("mqtt://127.0.0.1:")
    assert broker.version[0].isdigit()
    assert broker.log_path.exists()
    assert not psutil.pid_exists(broker.pid)


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_an_address_of_ipv6_stands_in_brackets(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "mosquitto":
        request.getfixturevalue("mosquitto_installed")
    try:
        with socket.socket(socket.AF_INET6) as here:
            here.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    url = run(tmp_path, BrokerOptions(kind=kind, host="::1")).url
    assert url.startswith("mqtt://[::1]:")
    settings = BrokerSettings(url=url)
    assert (settings.host, settings.port) == ("::1", int(url.rpartition(":")[2]))


def test_the_embedded_broker_gives_a_newcomer_a_hundred_retained_messages(embedded_broker: Broker) -> None:
    """As the page on brokers states. The rest is lost for it, so actors ask for what they lack."""
    root, sent, stated = f"retained-{os.getpid()}/f/hello/all", range(150), 100

    async def scenario() -> set[bytes]:
        sender, newcomer = (transport(embedded_broker.url, f"retained-{name}", f"{root}/+") for name in "ab")
        await sender.open()
        await asyncio.gather(*(sender.publish(f"{root}/{one}", b"%d" % one, True) for one in sent))
        await newcomer.open()
        await newcomer.publish(f"{root}/last", b"last")  # behind those that are retained
        received = set()
        while b"last" not in received:
            received.add((await newcomer.inbox.take()).payload)
        await sender.close()
        await newcomer.close()
        return received - {b"last"}

    assert len(asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))) == stated


def test_auto_takes_the_embedded_broker_where_mosquitto_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "find_mosquitto", lambda: None)
    assert run(tmp_path, BrokerOptions()).kind == "embedded"
    with pytest.raises(UsageError, match="mosquitto is not installed"):
        run(tmp_path, BrokerOptions(kind="mosquitto"))


def test_auto_prefers_mosquitto(mosquitto_installed: None, tmp_path: Path) -> None:
    assert run(tmp_path, BrokerOptions()).kind == "mosquitto"


def test_a_port_in_use_is_named_and_nothing_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 cannot be used: Address already in use"):
            run(tmp_path / "new", BrokerOptions(port=port))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
@pytest.mark.parametrize("port", ["given", "any"])
def test_another_process_that_takes_the_port_first_is_not_taken_for_the_broker(
    kind: str, port: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener here answers at once, long before the broker could have found its port taken."""
    if kind == "mosquitto":
        request.getfixturevalue("mosquitto_installed")
    before = set(psutil.Process().children())  # other tests' brokers
    with socket.create_server(("127.0.0.1", 0)) as faster:
        taken = faster.getsockname()[1]
        free = free_port()
        probed = iter([taken, free])
        monkeypatch.setattr(launcher, "_checked_port", lambda options: next(probed))
        if port == "any":
            assert run(tmp_path, BrokerOptions(kind=kind)).url == f"mqtt://127.0.0.1:{free}"
        else:
            with pytest.raises(UsageError, match=rf"did not start on port {taken}: .*in use.*; see .*broker.log"):
                run(tmp_path, BrokerOptions(kind=kind, port=taken))
    assert set(psutil.Process().children()) == before


def test_a_broker_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with launch_broker(tmp_path, BrokerOptions(kind="embedded")) as broker:
            os.kill(broker.pid, signal.SIGKILL)
            await broker.ended()

    with pytest.raises(UsageError, match=r"the broker exited with code -9: .*; see .*broker.log"):
        asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_the_embedded_broker_offers_no_security_it_does_not_have(tmp_path: Path) -> None:
    tls = TlsFiles(tmp_path / "ca", tmp_path / "cert", tmp_path / "key")
    with pytest.raises(UsageError, match="need mosquitto"):
        run(tmp_path, BrokerOptions(kind="embedded", tls=tls))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_the_embedded_broker_serves_this_machine_only(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match=rf"--host {host}: the embedded broker serves this machine only: .* mosquitto"):
        run(tmp_path, BrokerOptions(kind="embedded", host=host))
    if host == "::":
        assert run(tmp_path, BrokerOptions(kind="embedded", host="localhost")).url.startswith("mqtt://localhost:")


def test_missing_tls_files_are_named(mosquitto_installed: None, tmp_path: Path) -> None:
    tls = TlsFiles(tmp_path / "ca.pem", tmp_path / "cert", tmp_path / "key")
    with pytest.raises(UsageError, match=r"TLS file .*ca.pem does not exist"):
        run(tmp_path, BrokerOptions(kind="mosquitto", tls=tls))


def test_a_broker_that_fails_to_start_reports_why(mosquitto_installed: None, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    bad = tmp_path / "bad.pem"
    with pytest.raises(UsageError, match=r"the broker did not start on port \d+: .*broker.log"):
        run(tmp_path, BrokerOptions(kind="mosquitto", tls=TlsFiles(bad, bad, bad)))


def test_limits_are_mosquittos_own_on_request(tmp_path: Path) -> None:
    large = mosquitto_configuration(tmp_path, BrokerOptions(session_expiry_s=5400))
    assert {"max_queued_messages 0", "max_inflight_messages 0", "persistent_client_expiration 2h"} <= set(large)
    default = mosquitto_configuration(tmp_path, BrokerOptions(limits="default"))
    assert not [line for line in default if line.startswith(("max_queued", "max_inflight"))]


OWNER = """
import asyncio, sys
from pathlib import Path
from dca_proto.runtime.broker import BrokerOptions, launch_broker

async def own():
    async with launch_broker(Path(sys.argv[1]), BrokerOptions(kind=sys.argv[2])) as broker:
        print(broker.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(own())
"""


def owned(directory: Path, kind: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    command = [sys.executable, "-c", OWNER, str(directory), kind]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert owner.stdout is not None
    broker = psutil.Process(int(owner.stdout.readline()))
    owner.stdout.close()
    return owner, broker


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_ctrl_c_leaves_no_broker_behind(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "mosquitto":
        request.getfixturevalue("mosquitto_installed")
    owner, broker = owned(tmp_path, kind)
    groups = {os.getpgid(broker.pid), os.getpgid(owner.pid)}
    os.kill(owner.pid, signal.SIGINT)
    owner.wait(PATIENCE_S)
    broker.wait(PATIENCE_S)
    assert len(groups) == 2  # the terminal's Ctrl-C does not reach the broker before its owner has closed


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_no_broker_outlives_a_killed_owner(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "mosquitto":
        request.getfixturevalue("mosquitto_installed")
        if sys.platform != "linux":
            pytest.skip("only Linux signals a process when its parent ends")
    owner, broker = owned(tmp_path, kind)
    owner.kill()
    owner.wait(PATIENCE_S)
    broker.wait(PATIENCE_S)
