"""mosquitto after a snapshot and `kill -9`: what the model of the broker does is what was measured (2.0.11)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE_S
from ports import free_port
from scripted_broker import QUICK, client_settings

from dca_proto.protocol.effects import Channel
from dca_proto.runtime.broker import BrokerOptions, find_mosquitto, mosquitto_configuration
from dca_proto.runtime.connection import UNACKNOWLEDGED_MAX
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.runner import RunnerLimits
from dca_proto.runtime.transport import CLIENT_LIMITS, InboxLimits
from emulator.sim.broker import BrokerLimits
from emulator.sim.process import usual_options

pytestmark = pytest.mark.usefixtures("each_client")

TOPIC, RETAINED, END = "dca/t/compute/b/a", "dca/t/epoch/all/a", "dca/t/end/all/a"


class Mosquitto:
    """A mosquitto of the test's own, which keeps its state in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        lines = mosquitto_configuration(folder, BrokerOptions(port=self._port, limits="default"))
        (folder / "m.conf").write_text("\n".join(lines) + "\n")
        self.url = f"mqtt://127.0.0.1:{self._port}"

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """It runs until it is killed, here or before."""
        command = [str(find_mosquitto()), "-c", str(self._folder / "m.conf")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    async def snapshot(self, process: subprocess.Popen[bytes]) -> None:
        """As it does by itself every half hour."""
        before = self._saved()
        process.send_signal(signal.SIGUSR1)
        while self._saved() == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _saved(self) -> tuple[int, int]:
        path = self._folder / "mosquitto.db"
        return (path.stat().st_mtime_ns, path.stat().st_ino) if path.exists() else (0, 0)

    def machine(self, name: str, *filters: str) -> MqttTransport:
        settings = client_settings(url=self.url)
        return MqttTransport(settings, name * 32, filters, rng=random.Random(name), backoff=QUICK)

    async def receive(self, name: str, topic: str) -> list[bytes]:
        """What a machine gets that connects now, and leaves when nothing more comes: not before its own last word."""
        machine, received = self.machine(name, topic, END), []
        await machine.open()
        await machine.publish(END, END.encode())
        while (payload := (await machine.inbox.take()).payload) != END.encode():
            received.append(payload)
        await machine.close()
        return list(dict.fromkeys(received))  # one may come twice, if the connection was lost


async def kill_after_snapshot(folder: Path) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """What a receiver gets before the kill and after it, and what a late subscriber finds retained."""
    broker = Mosquitto(folder)
    sender = broker.machine("a")
    with broker.running() as process:
        await broker.receive("b", TOPIC)  # it has subscribed, and is away
        await sender.open()
        await sender.publish(RETAINED, b"before", retain=True)
        await sender.publish(TOPIC, b"delivered before the kill")
        await broker.snapshot(process)
        await sender.publish(RETAINED, b"after", retain=True)
        first = await broker.receive("b", TOPIC)
        await sender.publish(TOPIC, b"acknowledged and lost")
        os.kill(process.pid, signal.SIGKILL)
    with broker.running():
        again, kept = await broker.receive("b", TOPIC), await broker.receive("c", RETAINED)
        await sender.close()
    return first, again, kept


def test_mosquitto_restarts_with_its_last_snapshot(mosquitto_installed: None, tmp_path: Path) -> None:
    """It delivers again what was acknowledged, loses what it had acknowledged, and retains what was replaced."""
    first, again, kept = asyncio.run(asyncio.wait_for(kill_after_snapshot(tmp_path), PATIENCE_S))
    assert first == again == [b"delivered before the kill"]
    assert kept == [b"before"]


def test_the_limits_of_the_model_are_those_of_the_runner_and_of_mosquitto() -> None:
    """mosquitto's own: mosquitto.conf(5) of 2.0, `max_queued_messages` and `max_inflight_messages`."""
    assert (BrokerLimits().queue_messages_max, BrokerLimits().inflight_max) == (1_000, 20)
    client, node = usual_options(Channel.CLIENT), usual_options(Channel.COMPUTE)
    assert (client.inbox_events_max, node.inbox_events_max) == (CLIENT_LIMITS.messages_max, InboxLimits().messages_max)
    assert node.publishing_max == client.publishing_max == RunnerLimits().publishing_max
    assert node.batch_events_max == RunnerLimits().batch_events_max
    assert node.unacknowledged_max == UNACKNOWLEDGED_MAX
