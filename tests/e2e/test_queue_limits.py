"""A broker that acknowledges and then drops: what counts is the receipt (DESIGN §4.4, attack 40)."""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gateway import Gateway
from harness import Connected, Left, LiveActor
from patience import PATIENCE_S

from dca_proto.protocol import facts
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.topics import subscriptions, topic_of
from dca_proto.runtime.broker import BrokerOptions, launch_broker
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.testing import Build, NoNoise, TestFederation

CLIENTS = 3_000  # about half of them for each Compute node
QUEUED_MAX, IN_FLIGHT_MAX = 1_000, 20  # mosquitto's defaults, for each of its clients
RESEND_S = 300  # long enough for the node to come back, on any machine
SPEED = 150
PROBE = bytes(16)


class GatewayFederation:
    """Two Compute nodes, a trainer, and all clients behind a gateway; counts what is reported.

    Attributes:
        counts: (id, type of fact) -> how often; of what was dropped (id, its code) -> how often.
        absent: the Compute node that dies as soon as it has answered the announcement; then `is_down` is true.
    """

    def __init__(self, actors: TestFederation, directory: Path, url: str) -> None:
        self.counts: Counter[tuple[bytes, object]] = Counter()
        self.completed: list[facts.RoundCompleted] = []
        self.is_down = False
        self._changed = asyncio.Event()
        self._federation = actors.federation.id
        settings = BrokerSettings(url=url)

        def member(role: Channel, build: Build) -> LiveActor:
            return LiveActor(role, build, directory, settings, self._federation, self._note, self._changed.set)

        self.steady = member(Channel.COMPUTE, functools.partial(actors.compute, 0))
        self.absent = member(Channel.COMPUTE, functools.partial(actors.compute, 1))
        self.trainer = member(Channel.TRAINER, actors.trainer)
        inboxes = subscriptions(self._federation, Channel.CLIENT, PROBE)
        everyones = tuple(one.replace(PROBE.hex(), "+") for one in inboxes)
        self.link = MqttTransport(settings, "gateway", everyones, rng=random.Random(1))
        clients = map(actors.client, range(CLIENTS))
        self.gateway = Gateway(clients, self.link, self._federation, self._changed.set, self._keep_up)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was reported makes the condition true, or somebody fails."""
        while not condition():
            for member in (self.steady, self.absent, self.trainer):
                member.check()
            assert not self.running.done(), self.running.exception()
            self._changed.clear()
            await self._changed.wait()

    async def _keep_up(self, started: int) -> None:
        """Wait until both nodes have a session of all clients that have started, but for half of what may wait."""
        nodes = (self.steady.id, self.absent.id)
        await self.until(lambda: all(self.counts[one, facts.SessionKept] >= started - QUEUED_MAX // 2 for one in nodes))

    async def __aenter__(self) -> GatewayFederation:
        self.running = asyncio.create_task(self.gateway.run())
        self.running.add_done_callback(lambda _: self._changed.set())
        members = (self.steady, self.absent, self.trainer)
        for member in members:
            member.start()
        await self.until(lambda: self.gateway.is_open and all(self.counts[one.id, Connected] for one in members))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        await asyncio.gather(self.steady.kill(), self.absent.kill(), self.trainer.kill())

    async def probe(self) -> None:
        """Have the absent node, back again, drop a message that stood behind all that had waited for it."""
        topic = topic_of(self._federation, Address(Channel.COMPUTE, self.absent.id), PROBE)
        while not self.counts[self.absent.id, "malformed"]:  # the broker drops it while its queue is full
            await self.link.publish(topic, b"no message")
            await asyncio.sleep(0.2)

    def _note(self, actor: LiveActor, fact: object) -> None:
        self.counts[actor.id, fact.code if isinstance(fact, facts.Dropped) else type(fact)] += 1
        if isinstance(fact, facts.RoundCompleted):
            self.completed.append(fact)
        if actor is self.absent and fact == Left(Channel.TRAINER) and actor.life == 1:
            actor.cut()
            self.is_down = True
        self._changed.set()


@pytest.mark.long
def test_contributions_that_the_broker_took_over_and_lost_are_sent_again(
    mosquitto_installed: None, tmp_path: Path
) -> None:
    """A Compute node is down while some 1,500 contributions arrive for it. The broker acknowledges all, keeps 1,000.

    Clients send again after RESEND_S. By then the node is back and has all that had waited for it, which is what the
    broker had kept; from then on the clients' clock is hurried. Client i contributes (i + 1) / 2^13, without noise.
    """
    rows = [np.array([[(index + 1) / 8192]]) for index in range(CLIENTS)]
    timing = Timing(resend_first_ms=1000 * RESEND_S, resend_max_ms=1000 * RESEND_S)
    actors = TestFederation(CLIENTS, 2, rows=rows, name="queue-limits", mechanism=NoNoise(), timing=timing)
    request = actors.request(tolerate=0, collect_s=3600)

    async def scenario() -> tuple[GatewayFederation, int, int]:
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto", limits="default")) as broker:
            async with GatewayFederation(actors, tmp_path, broker.url) as live:
                absent = live.absent
                for node in (live.steady, absent):
                    await live.until(lambda node=node: live.counts[node.id, facts.SessionKept] == CLIENTS)
                live.trainer.runner.command(request)
                await live.until(lambda: live.is_down)
                await absent.kill()
                await live.until(lambda: live.gateway.reached.total() == CLIENTS)
                before = live.counts[absent.id, facts.ContributionKept]
                absent.start()
                await live.until(lambda: live.counts[absent.id, facts.ContributionKept] > before)
                await live.probe()
                kept = live.counts[absent.id, facts.ContributionKept]
                live.gateway.hurry(SPEED)
                await live.until(lambda: bool(live.completed))
            return live, before, kept

    live, before, kept = asyncio.run(asyncio.wait_for(scenario(), 3 * PATIENCE_S))
    assert IN_FLIGHT_MAX <= kept - before <= QUEUED_MAX + IN_FLIGHT_MAX
    for (client, _), sent in live.gateway.sent.items():
        assert set(sent) == {live.gateway.stored[client]}
    repeated = [len(sent) > 1 for (_, compute), sent in live.gateway.sent.items() if compute == live.absent.id]
    delivered = live.gateway.reached[live.absent.id]
    assert sum(repeated) >= delivered - kept > 0
    (completed,) = live.completed
    assert completed.aggregate.contributors == CLIENTS
    assert completed.aggregate.value.tolist() == [CLIENTS * (CLIENTS + 1) / 2 / 8192]
