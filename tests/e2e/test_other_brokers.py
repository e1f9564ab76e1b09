"""Brokers that people run carry the transport's contract, a round, a long queue, and the death of one of their nodes.

What each does is in `docs/howto/brokers.md`. Brokers that this machine lacks are skipped.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import LiveFederation
from other_brokers import KINDS, Servers, running

from dca_proto.protocol import facts
from dca_proto.protocol.params import Timing
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.testing import NoNoise, TestFederation

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("other brokers")]
ROOT = Path(__file__).parents[2]
CLIENTS, COMPUTES, QUEUED = 8, 3, 5000
PATIENCE_S = 240
CONTRACT_S = 1200
"""For some thirty tests, of which each has patience of its own."""
ROWS = [np.array([[2.0 ** -(index + 1)]]) for index in range(CLIENTS)]
CLUSTERS = ("three RabbitMQs", "two aedes with one Redis")
MISSING = {"RabbitMQ": " and not retained", "three RabbitMQs": " and not retained"}
"""Parts of the contract that a broker lacks, and that the protocol does not need.

RabbitMQ delivers no retained message for a filter with a wildcard, so that these tests would wait for ever; for its
exact topic it delivers one, which `test_what_is_kept_reaches_who_names_its_topic` shows.
"""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def servers(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with running(kind, tmp_path_factory.mktemp("broker")) as servers:
        yield servers


def federation(name: str) -> TestFederation:
    """Real actors without noise, whose exact sum shows who is in it."""
    timing = Timing(resend_first_ms=2000)
    return TestFederation(CLIENTS, COMPUTES, rows=ROWS, name=name, mechanism=NoNoise(), timing=timing)


async def round_of(actors: TestFederation, live: LiveFederation) -> None:
    request = actors.request(tolerate=0, commit_s=PATIENCE_S, collect_s=PATIENCE_S)
    live.trainer.runner.command(request)
    await live.until(lambda: live.has(facts.RoundCompleted, live.trainer) or live.has(facts.RoundFailed, live.trainer))


def kept(live: LiveFederation) -> int:
    """How many contributions Compute nodes have stored."""
    return sum(isinstance(noted.fact, facts.ContributionKept) for noted in live.facts)


def check_sum(live: LiveFederation) -> None:
    (done,) = (noted.fact for noted in live.facts if isinstance(noted.fact, facts.RoundCompleted))
    assert done.aggregate.value.tolist() == [1 - 2.0**-CLIENTS]


def test_the_contract_holds(servers: Servers, kind: str) -> None:
    suite = ROOT / "tests" / "dca_proto" / "runtime" / "test_transport.py"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            f"given{MISSING.get(kind, '')}",
            str(suite),
        ],
        env={**os.environ, "TEST_BROKER": servers.urls[0]},
        capture_output=True,
        text=True,
        timeout=CONTRACT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d+ passed", done.stdout)


def test_members_everywhere_complete_a_round(servers: Servers, tmp_path: Path) -> None:
    places = itertools.cycle(servers.urls)

    async def scenario() -> None:
        actors = federation("everywhere")
        async with LiveFederation(actors, tmp_path, lambda _: BrokerSettings(url=next(places))) as live:
            await round_of(actors, live)
            check_sum(live)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_queue_waits_for_who_is_away(servers: Servers) -> None:
    def transport(name: str, *filters: str) -> MqttTransport:
        return MqttTransport(BrokerSettings(url=servers.urls[0]), name, filters, rng=random.Random(name))

    async def scenario() -> None:
        away, sender = transport("away", "t/away/+"), transport("sender", "t/sender/+")
        await away.open()
        await away.close()
        await sender.open()
        await asyncio.gather(*(sender.publish("t/away/x", number.to_bytes(4, "big")) for number in range(QUEUED)))
        back = transport("away", "t/away/+")
        await back.open()
        found = set()
        while len(found) < QUEUED:
            found.add((await back.inbox.take()).payload)
        for one in (back, sender):
            await one.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_round_outlives_a_node_of_the_cluster(cluster: str, tmp_path: Path) -> None:
    """The last node dies when half of the clients have contributed; its members go to the next one of their list."""
    folder = tmp_path / "broker"
    folder.mkdir()

    async def scenario(servers: Servers) -> None:
        actors = federation("outlives")
        turns = itertools.count()

        def settings(_: bytes) -> BrokerSettings:
            first = next(turns) % len(servers.urls)
            url, *others = servers.urls[first:] + servers.urls[:first]
            return BrokerSettings(url=url, failover=tuple(others))

        async with LiveFederation(actors, tmp_path, settings) as live:
            playing = asyncio.create_task(round_of(actors, live))
            await live.until(lambda: kept(live) >= CLIENTS // 2)
            servers.kill(-1)
            await playing
            check_sum(live)

    with running(cluster, folder) as servers:
        asyncio.run(asyncio.wait_for(scenario(servers), PATIENCE_S))
