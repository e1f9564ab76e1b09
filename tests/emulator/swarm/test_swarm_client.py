"""Which MQTT client the actors of a swarm use, and which version of MQTT."""

from __future__ import annotations

import importlib.util
import random
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from dca_proto.runtime.broker import Broker
from emulator.swarm.host import FLEET_FROM, Host, HostConfig, connect
from emulator.swarm.options import SwarmOptions


def settings(version: Any, clients: int) -> Any:
    return cast(Any, connect("mqtt://127.0.0.1", version, clients, "a", ("x/+",), random.Random(1)))._settings


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize(("clients", "expected"), [(FLEET_FROM, "aiomqtt"), (FLEET_FROM + 1, "fleet")])
def test_a_large_swarm_uses_the_client_for_fleets(clients: int, expected: str, version: str) -> None:
    assert (settings(version, clients).client, settings(version, clients).version) == (expected, version)


@pytest.mark.parametrize(
    ("nodes", "clients", "here", "expected"),
    [(0, 9000, 300, "aiomqtt"), (0, 9000, 301, "fleet"), (3, 300, 0, "aiomqtt"), (3, 301, 0, "fleet")],
)
def test_each_process_has_the_client_for_those_that_it_serves(
    nodes: int, clients: int, here: int, expected: str
) -> None:
    """A process with Compute nodes serves all clients, whichever process runs these."""
    options = SwarmOptions(clients=clients, dimension=1)
    config = HostConfig(
        options=options, federation="", url="mqtt://127.0.0.1", version="3.1.1", name="a", directory=None,
        nodes=(b"",) * nodes, rows=(None,) * here,
    )  # fmt: skip
    host: Any = Host.__new__(Host)
    host._config, host._rng = config, random.Random(1)
    assert host._connection("a", ("x/+",))._settings.client == expected


def test_a_large_swarm_without_the_library_for_version_5_speaks_the_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mqtt5" else find(name))
    assert (settings("5", FLEET_FROM).version, settings("5", FLEET_FROM + 1).version) == ("5", "3.1.1")


@pytest.mark.parametrize(("kind", "version"), [("mosquitto", "5"), ("embedded", "3.1.1")])
def test_the_kind_of_broker_says_the_version(kind: str, version: str) -> None:
    broker = Broker("mqtt://127.0.0.1", kind, "1", cast("subprocess.Popen[bytes]", None), Path())
    assert broker.mqtt_version == version
