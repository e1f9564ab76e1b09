"""Brokers that tests share. mosquitto is optional on a developer's machine, and required if REQUIRE_MOSQUITTO=1."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_broker import CLIENTS, OF_311, use_client

# JAX caches the programs that every run of the suite compiles here, beside pytest's own cache.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

from dca_proto.runtime.broker import Broker, BrokerOptions, find_mosquitto, launch_broker

gc.disable()  # until all tests are collected: that makes thousands of objects and hardly any garbage

# Tests send Ctrl-C to commands. A shell that starts the suite in the background would make commands ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a test with real processes and sockets once more if it failed: the machine may be busy. The report says so.

    A fault fails both times. A test that needs its second run again and again has a race, and is to be mended.

    A file whose tests share compiled programs and fits stays in one of the processes of `scripts/test_long`, too.
    """
    for item in items:
        for mark in _marks_of(item.path):
            item.add_marker(mark)


@functools.cache
def _marks_of(file: Path) -> list[pytest.MarkDecorator]:
    """The marks of a file's tests, looked up once: some files have hundreds of tests."""
    tests, folders, marks = Path(__file__).parent, {*file.parents}, []
    if folders & {tests / "e2e", tests / "dca_proto" / "runtime"}:
        marks.append(pytest.mark.flaky(reruns=1))
    if folders & {tests / "inference", tests / "papers"}:
        marks.append(pytest.mark.xdist_group(str(file.relative_to(tests))))
    return marks


def pytest_collection_finish() -> None:
    """Exempt test functions and modules, which are thousands and permanent, from the garbage collector."""
    gc.freeze()
    gc.set_threshold(10_000)  # a fourteenth of the usual looks at new objects
    gc.enable()


@pytest.fixture(scope="session")
def mosquitto_installed() -> None:
    """Skip visibly if mosquitto is missing; fail if it is required."""
    if find_mosquitto() is None:
        missing = pytest.fail if os.environ.get("REQUIRE_MOSQUITTO") == "1" else pytest.skip
        missing("mosquitto is not installed (Debian: apt install mosquitto)")


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run one rumqttd for the whole session; each test needs its own federation and client ids."""
    yield from _running(tmp_path_factory.mktemp("embedded"), BrokerOptions(kind="embedded"))


@pytest.fixture(scope="session")
def mosquitto_broker(mosquitto_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run one mosquitto for the whole session; each test needs its own federation and client ids."""
    yield from _running(tmp_path_factory.mktemp("mosquitto"), BrokerOptions(kind="mosquitto"))


@pytest.fixture(params=["embedded", "mosquitto"])
def any_broker(request: pytest.FixtureRequest) -> Broker:
    """Run a test on both brokers."""
    broker: Broker = request.getfixturevalue(f"{request.param}_broker")
    return broker


@pytest.fixture(params=OF_311)
def each_client(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with each MQTT client; `scripted_broker.client_settings` has its setting."""
    use_client(request.param)
    yield request.param
    use_client(None)


@pytest.fixture(params=CLIENTS)
def each_version(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test, on a broker that speaks both versions of MQTT, with each client and version."""
    use_client(request.param)
    yield request.param
    use_client(None)


def _running(directory: Path, options: BrokerOptions) -> Iterator[Broker]:
    with asyncio.Runner() as loop:
        launched = launch_broker(directory, options)
        yield loop.run(launched.__aenter__())
        loop.run(launched.__aexit__(None, None, None))
