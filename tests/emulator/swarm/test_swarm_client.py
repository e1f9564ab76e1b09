"""Which MQTT client the actors of a swarm use, and which version of MQTT."""

from __future__ import annotations

import importlib.util
import random
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from dca_proto.runtime.broker import Broker
from emulator.swarm.host import FLEET_FROM, connect


def settings(version: Any, clients: int) -> Any:
    return cast(Any, connect("mqtt://127.0.0.1", version, clients, "a", ("x/+",), random.Random(1)))._settings


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize(("clients", "expected"), [(FLEET_FROM, "aiomqtt"), (FLEET_FROM + 1, "fleet")])
def test_a_large_swarm_uses_the_client_for_fleets(clients: int, expected: str, version: str) -> None:
    assert (settings(version, clients).client, settings(version, clients).version) == (expected, version)


def test_a_large_swarm_without_the_library_for_version_5_speaks_the_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mqtt5" else find(name))
    assert (settings("5", FLEET_FROM).version, settings("5", FLEET_FROM + 1).version) == ("5", "3.1.1")


@pytest.mark.parametrize(("kind", "version"), [("mosquitto", "5"), ("embedded", "3.1.1")])
def test_the_kind_of_broker_says_the_version(kind: str, version: str) -> None:
    broker = Broker("mqtt://127.0.0.1", kind, "1", cast("subprocess.Popen[bytes]", None), Path())
    assert broker.mqtt_version == version
