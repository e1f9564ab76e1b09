"""Brokers that people run, for long tests: mosquitto, two of them bridged, RabbitMQ, aedes, both also as clusters.

Each listens on 127.0.0.1 and keeps its files in a folder of the test. A broker that this machine lacks skips the test.
aedes is taken from the folder that AEDES names: `npm install aedes` there, and for two of them `npm install
aedes-persistence-redis mqemitter-redis` and Redis.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

from dca_proto.runtime import parent_death
from dca_proto.runtime.broker import BrokerOptions, find_mosquitto, mosquitto_configuration

RABBITMQ = Path("/usr/lib/rabbitmq/bin")
START_S = 240
AEDES = """
const options = { queueLimit: 100000, concurrency: 1000 }
const serve = broker => require('net').createServer(broker.handle).listen(process.argv[2], '127.0.0.1')
require('aedes').Aedes.createBroker(options).then(serve)
"""
AEDES_WITH_REDIS = """
const redis = { host: '127.0.0.1', port: Number(process.argv[3]) }
const persistence = require('aedes-persistence-redis')({ ...redis, maxSessionDelivery: 100000 })

// aedes calls this for each filter of a packet, with all of them; of equal calls at once, only the last one ends.
const add = persistence.addSubscriptions.bind(persistence), adding = new Map()
persistence.addSubscriptions = (client, filters) => {
  if (!adding.has(filters)) adding.set(filters, add(client, filters).finally(() => adding.delete(filters)))
  return adding.get(filters)
}
// aedes takes a message for a repeated one if a later one has overtaken it, and with Redis that happens.
const forgetful = { get: () => 0, set: () => true, deleteProperty: () => true }

const mq = require('mqemitter-redis')({ ...redis, concurrency: 1000 })
const options = { id: process.argv[2], queueLimit: 100000, concurrency: 1000, mq, persistence }
const serve = broker => {
  broker.on('client', client => { client.duplicates = new Proxy({}, forgetful) })
  require('net').createServer(broker.handle).listen(process.argv[2], '127.0.0.1')
}
require('aedes').Aedes.createBroker(options).then(serve)
"""


class Servers:
    """The running processes of a broker, each in a session of its own.

    Attributes:
        urls: of its nodes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.urls: list[str] = []
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: list[str], port: int, **environment: str) -> subprocess.Popen[bytes]:
        """Start a process, and wait until it listens."""
        command = [sys.executable, "-IS", parent_death.__file__, str(os.getpid()), *command]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
                env={**os.environ, **environment},
            )  # fmt: skip
        self._running.append(process)
        until_s = time.monotonic() + START_S
        while not listens(port):
            assert process.poll() is None, f"{name} ended: {(self.folder / f'{name}.log').read_text()[-1000:]}"
            assert time.monotonic() < until_s, f"{name} does not listen after {START_S} s"
            time.sleep(0.1)
        return process

    def kill(self, number: int) -> None:
        """Kill the process of that number, counted in the order of their starts, as a power failure would."""
        process = self._running[number]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()

    def end(self) -> None:
        for number in reversed(range(len(self._running))):
            self.kill(number)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[Servers]:
    """Run a broker of a kind of `KINDS`; skip the test if this machine lacks it."""
    servers = Servers(folder)
    try:
        KINDS[kind](servers)
        yield servers
    finally:
        servers.end()


def embedded(servers: Servers) -> None:
    """The package's own broker, for trials on one machine."""
    pytest.importorskip("iotcore", reason="iotcore is not installed: pip install -e '.[broker]'")
    from dca_proto.runtime.embedded import configuration  # imports iotcore

    port, file = free_port(), servers.folder / "rumqttd.toml"
    file.write_text(configuration("127.0.0.1", port))
    servers.start("embedded", [sys.executable, "-m", "dca_proto.runtime.embedded", str(file)], port)
    servers.urls.append(f"mqtt://127.0.0.1:{port}")


def mosquittos(servers: Servers, count: int = 1) -> None:
    """One mosquitto; or two, of which the second passes all of the protocol's topics to the first, and back."""
    mosquitto = find_mosquitto() or pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")
    first = 0
    for name in ("first", "second")[:count]:
        port, folder = free_port(), servers.folder / name
        folder.mkdir()
        lines = mosquitto_configuration(folder, BrokerOptions(port=port))
        if first:
            lines += ["connection bridge", f"address 127.0.0.1:{first}", "topic dca/# both 1", "cleansession false"]
            lines += ["topic t/# both 1", "try_private true", "restart_timeout 1", "notifications false"]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        servers.start(name, [mosquitto, "-c", str(folder / "mosquitto.conf")], port)
        servers.urls.append(f"mqtt://127.0.0.1:{port}")
        first = first or port


def rabbitmq(servers: Servers, count: int = 1) -> None:
    """RabbitMQ with its MQTT plugin; of several nodes, each has a copy of all sessions."""
    if not (RABBITMQ / "rabbitmq-server").exists():
        pytest.skip("RabbitMQ is not installed (Debian: apt install rabbitmq-server)")
    names = [f"{chr(ord('a') + number)}{os.getpid()}@localhost" for number in range(count)]
    home = servers.folder
    (home / "plugins").write_text("[rabbitmq_mqtt].\n")
    common = {
        "HOME": str(home),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
    }
    cookie = home / ".erlang.cookie"
    cookie.write_text("COOKIE" * 4)
    cookie.chmod(0o400)
    epmd = shutil.which("epmd") or "epmd"
    servers.start("epmd", [epmd, "-port", common["ERL_EPMD_PORT"]], int(common["ERL_EPMD_PORT"]), **common)
    formation = ["cluster_formation.peer_discovery_backend = classic_config"]
    formation += [f"cluster_formation.classic_config.nodes.{n} = {name}" for n, name in enumerate(names, 1)]
    for number, name in enumerate(names):
        port, folder = free_port(), home / f"node{number}"
        folder.mkdir()
        lines = ["listeners.tcp = none", f"mqtt.listeners.tcp.default = 127.0.0.1:{port}"]
        lines += formation if count > 1 else []
        lines += ["mqtt.allow_anonymous = true", "mqtt.subscription_ttl = 86400000", "mqtt.prefetch = 1000"]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        environment = {
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_MNESIA_BASE": str(folder),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 1",
        }
        servers.start(f"node{number}", [str(RABBITMQ / "rabbitmq-server")], port, **common, **environment)
        servers.urls.append(f"mqtt://127.0.0.1:{port}")
    if count > 1:
        policy = ["set_policy", "copies", "^mqtt-subscription-", '{"ha-mode":"all","ha-sync-mode":"automatic"}']
        subprocess.run(
            [str(RABBITMQ / "rabbitmqctl"), "-n", names[0], *policy], check=True, capture_output=True, timeout=START_S,
            env={**os.environ, **common},
        )  # fmt: skip


def aedes(servers: Servers, script: str = AEDES, count: int = 1, *more: str) -> None:
    """aedes, in memory; or several that share what a script says."""
    packages = Path(os.environ.get("AEDES", "missing")) / "node_modules"
    node = shutil.which("node")
    missing = [
        name
        for name in ("aedes", *re.findall(r"require\('([a-z]+-[a-z-]+)'\)", script))
        if not (packages / name).is_dir()
    ]
    if node is None or missing:
        pytest.skip(f"missing: `npm install {' '.join(missing)}` in a folder, which AEDES names")
    file = servers.folder / "aedes.js"
    file.write_text(script)
    for number in range(count):
        port = free_port()
        servers.start(f"aedes{number}", [node, str(file), str(port), *more], port, NODE_PATH=str(packages))
        servers.urls.append(f"mqtt://127.0.0.1:{port}")


def two_aedes(servers: Servers) -> None:
    """Two aedes that share a Redis, which keeps nothing on disk."""
    redis = shutil.which("redis-server")
    if redis is None:
        pytest.skip("Redis is not installed (Debian: apt install redis-server)")
    port = free_port()
    servers.start(
        "redis", [redis, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"], port
    )
    aedes(servers, AEDES_WITH_REDIS, 2, str(port))


KINDS = {
    "embedded": embedded,
    "mosquitto": mosquittos,
    "two bridged mosquittos": lambda servers: mosquittos(servers, 2),
    "RabbitMQ": rabbitmq,
    "three RabbitMQs": lambda servers: rabbitmq(servers, 3),
    "aedes": aedes,
    "two aedes with one Redis": two_aedes,
}
