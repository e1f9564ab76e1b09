"""Brokers that tests share. mosquitto is optional on a developer's machine and required where REQUIRE_MOSQUITTO=1."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# JAX compiles the same programs at every run of the suite: it keeps them here, beside pytest's own cache.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

from dca_proto.runtime.broker import Broker, BrokerOptions, find_mosquitto, launch_broker

# Tests send Ctrl-C to commands. A shell that starts the suite in the background has it ignored, and so would they.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of test functions and all modules stay; the garbage collector need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def mosquitto_installed() -> None:
    """Skips, visibly, where mosquitto is missing; fails where it is required."""
    if find_mosquitto() is None:
        missing = pytest.fail if os.environ.get("REQUIRE_MOSQUITTO") == "1" else pytest.skip
        missing("mosquitto is not installed (Debian: apt install mosquitto)")


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One amqtt for the whole session: use federations and client ids of your own."""
    yield from _running(tmp_path_factory.mktemp("embedded"), BrokerOptions(kind="embedded"))


@pytest.fixture(scope="session")
def mosquitto_broker(mosquitto_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One mosquitto for the whole session: use federations and client ids of your own."""
    yield from _running(tmp_path_factory.mktemp("mosquitto"), BrokerOptions(kind="mosquitto"))


@pytest.fixture(params=["embedded", "mosquitto"])
def any_broker(request: pytest.FixtureRequest) -> Broker:
    """A test that uses it runs on both brokers."""
    broker: Broker = request.getfixturevalue(f"{request.param}_broker")
    return broker


def _running(directory: Path, options: BrokerOptions) -> Iterator[Broker]:
    with asyncio.Runner() as loop:
        launched = launch_broker(directory, options)
        yield loop.run(launched.__aenter__())
        loop.run(launched.__aexit__(None, None, None))
