"""Which MQTT client the actors of a swarm use, and which version of MQTT."""

from __future__ import annotations

import importlib.util
import random
import subprocess
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from dca_proto.runtime.broker import Broker
from emulator.swarm.host import FLEET_FROM, connect
from emulator.swarm.live import Swarm
from emulator.swarm.options import SwarmOptions


def version_of(client: Any, version: Any) -> Any:
    return cast(Any, connect("mqtt://127.0.0.1", client, version, "a", ("x/+",), random.Random(1)))._settings.version


@pytest.mark.parametrize(("name", "count", "expected"), [
    ("client 1", FLEET_FROM, "aiomqtt"), ("client 1", FLEET_FROM + 1, "fleet"), ("compute", 0, "fleet"),
])  # fmt: skip
def test_each_process_has_the_client_for_those_that_it_serves(name: str, count: int, expected: str) -> None:
    """A process with Compute nodes serves all clients, whichever process runs these."""
    swarm: Any = Swarm.__new__(Swarm)
    swarm.options, swarm.broker_url, swarm._mqtt_version = SwarmOptions(clients=9000, dimension=1), "mqtt://h", "5"
    swarm._keys, swarm._directory, swarm._rows, swarm._columns = MagicMock(), Path(), [()] * 9000, ("x",)
    swarm._keys.computes, swarm._keys.authority.seed = (), b""
    swarm._keys.federation.to_toml.return_value = ""
    assert swarm._config(name, 0, count, is_here=True).client == expected


def test_the_client_for_fleets_without_the_library_for_version_5_speaks_the_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert version_of("fleet", "5") == "5"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mqtt5" else find(name))
    assert (version_of("aiomqtt", "5"), version_of("fleet", "5")) == ("5", "3.1.1")


@pytest.mark.parametrize(("kind", "version"), [("mosquitto", "5"), ("embedded", "3.1.1")])
def test_the_kind_of_broker_says_the_version(kind: str, version: str) -> None:
    broker = Broker("mqtt://127.0.0.1", kind, "1", cast("subprocess.Popen[bytes]", None), Path())
    assert broker.mqtt_version == version
