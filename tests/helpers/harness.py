"""A live federation that can be killed: production actors over real connections, each with its own database.

`LiveActor.kill` ends an actor like `kill -9`, as far as one process can: from then on it sends nothing, and messages
that it received or queued but did not store are lost. `LiveFederation.kill_at` kills at a fact, before any message of
the same batch has left; or at a `Left`, when the broker has just accepted a message.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Channel, Effect
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.store_check import read_store
from dca_proto.testing import Build, TestFederation

QUICK = Backoff(first_s=0.02, most_s=0.2)
Report = Callable[["LiveActor", object], None]


class Connected(msgspec.Struct, frozen=True):
    """Fact of these tests: the actor is connected and subscribed."""


class Left(msgspec.Struct, frozen=True):
    """Fact of these tests: the broker accepted a message of the actor on that channel."""

    channel: Channel


class NotedTransport(MqttTransport):
    """A transport that records sent messages, and sends nothing once it is cut."""

    is_cut = False
    on_note: Callable[[object], None]
    sent: dict[str, list[bytes]]

    async def open(self) -> None:
        await super().open()
        self.on_note(Connected())

    async def publish(self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
        if self.is_cut:
            await asyncio.Event().wait()  # forever
        await super().publish(topic, payload, retain, expires_s)
        self.sent[topic].append(payload)
        self.on_note(Left(channel_of(topic)))


def channel_of(topic: str) -> Channel:
    return Channel(topic.split("/")[2])


class NotedRunner(Runner):
    """A runner that notes when its actor has handled events: some change its state and report no fact."""

    on_handled: Callable[[], None]

    def handle_batch(self) -> list[Effect] | None:
        effects = super().handle_batch()
        if effects is not None:
            self.on_handled()
        return effects


STORE_KEY = bytes(32)


class LiveActor:
    """One actor with its database, over several lives.

    Attributes:
        path: of its database.
        life: number of the current or last life, from 1. actor, runner: of that life.
        sent: topic -> payloads that the broker accepted in all lives, in order, repeats included.
    """

    def __init__(
        self,
        role: Channel,
        build: Build,
        directory: Path,
        settings: BrokerSettings,
        federation: bytes,
        report: Report,
        on_handled: Callable[[], None],
    ) -> None:
        self.role = role
        self.actor: Actor = build(())
        self.id = self.actor.id
        self.life = 0
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self._build = build
        self.path = directory / f"{self.id.hex()}.db"
        self._settings = settings
        self._federation = federation
        self._report = functools.partial(report, self)
        self._on_handled = on_handled

    def start(self) -> None:
        """Start from the database."""
        self.life += 1
        self._store = SqliteStore(self.path, STORE_KEY)
        self.actor = self._build(self._store.load())
        topics = subscriptions(self._federation, self.role, self.id)
        self._transport = NotedTransport(
            self._settings, self.id.hex(), topics, rng=random.Random(self.life), backoff=QUICK
        )
        self._transport.sent, self._transport.on_note = self.sent, self._report
        self.runner = NotedRunner(
            self.actor, self._transport, self._store, federation=self._federation, on_report=self._report
        )
        self.runner.on_handled = self._on_handled
        self._running = asyncio.create_task(self.runner.run())
        self._running.add_done_callback(self._report)

    def cut(self) -> None:
        """Stop everything that others could see; `kill` cleans up."""
        self._transport.is_cut = True
        self._running.cancel()

    async def kill(self) -> None:
        """End this life at once."""
        self.cut()
        await self._ended()

    async def stop(self) -> None:
        """End this life in order, when everything is handled and sent."""
        self.runner.stop()
        await self._ended()

    def check(self) -> None:
        """Raise the error that ended it, if any."""
        if self.life and self._running.done() and not self._running.cancelled():
            self._running.result()

    def sent_to(self, channel: Channel) -> list[list[bytes]]:
        """Return the payloads for each receiver on that channel."""
        return [payloads for topic, payloads in self.sent.items() if channel_of(topic) is channel]

    async def _ended(self) -> None:
        await asyncio.wait([self._running])
        await self._store.close()
        self.check()


def records(path: Path, table: str) -> list[bytes]:
    """Return a table of an actor's database, while the actor is not running."""
    return [value for _, kind, _, value in read_store(path) if kind == table]


class Point(NamedTuple):
    """The moment of the nth fact of a type, or the nth `Left`, of the victim or of any actor of `role`."""

    role: Channel
    fact: type | Left
    nth: int = 1

    def is_like(self, fact: object) -> bool:
        return isinstance(fact, self.fact) if isinstance(self.fact, type) else fact == self.fact

    def __str__(self) -> str:
        what = self.fact.__name__ if isinstance(self.fact, type) else f"sent to {self.fact.channel.value}"
        return f"{self.role.value} {what} {self.nth}"


class Noted(NamedTuple):
    """A reported fact, with its actor and the number of the actor's life."""

    actor: LiveActor
    life: int
    fact: object


class LiveFederation:
    """All actors of a federation on one broker; an asynchronous context that starts when all are connected.

    Args:
        actors: with a federation that no other test on the broker uses. directory: for databases.
        settings: return the broker settings of an actor's id.

    Attributes:
        facts: all reported facts, in order.
    """

    def __init__(self, actors: TestFederation, directory: Path, settings: Callable[[bytes], BrokerSettings]) -> None:
        self.facts: list[Noted] = []
        self._changed = asyncio.Event()
        wake = self._changed.set
        self._point: Point | None = None
        self._left_to_see = 0

        def member(role: Channel, actor_id: bytes, build: Build) -> LiveActor:
            return LiveActor(role, build, directory, settings(actor_id), actors.federation.id, self._note, wake)

        def members(role: Channel, ids: tuple[bytes, ...], build: Callable[..., Actor]) -> list[LiveActor]:
            return [member(role, one, functools.partial(build, index)) for index, one in enumerate(ids)]

        self.computes = members(Channel.COMPUTE, actors.computes, actors.compute)
        self.clients = members(Channel.CLIENT, actors.clients, actors.client)
        self.trainer = member(Channel.TRAINER, actors.trainer_identity.id, actors.trainer)
        self.members = [*self.computes, *self.clients, self.trainer]

    async def __aenter__(self) -> LiveFederation:
        await self.start(*self.members)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End all live actors: in order, so that all messages leave; after a failure, at once."""
        ends = [member.kill() if kind else member.stop() for member in self.members if member.life]
        await asyncio.gather(*ends, return_exceptions=kind is not None)

    async def start(self, *members: LiveActor) -> None:
        """Start members, and wait until they are connected."""
        for member in members:
            member.start()
        await self.until(lambda: all(self.has(Connected(), member) for member in members))

    def kill_at(self, point: Point, victim: LiveActor) -> None:
        """Cut the victim at that point."""
        self._point, self._victim, self._left_to_see = point, victim, point.nth

    @property
    def is_killed(self) -> bool:
        """True if the point of `kill_at` has come."""
        return self._point is not None and self._left_to_see == 0

    def has(self, fact: object, member: LiveActor) -> bool:
        """Return True if a member has reported such a fact (of a type, or an equal one) in its current life."""
        like = Point(member.role, fact if isinstance(fact, type | Left) else type(fact)).is_like
        return any(noted.actor is member and noted.life == member.life and like(noted.fact) for noted in self.facts)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until facts, or states of actors, make the condition true. Raise if an actor fails."""
        while not condition():
            for member in self.members:
                member.check()
            self._changed.clear()
            await self._changed.wait()

    def _note(self, actor: LiveActor, fact: object) -> None:
        self.facts.append(Noted(actor, actor.life, fact))
        self._changed.set()
        if self._point is None or self._left_to_see == 0 or not self._point.is_like(fact):
            return
        if actor.role is self._point.role and (actor is self._victim or actor.role is not self._victim.role):
            self._left_to_see -= 1
            if self._left_to_see == 0:
                self._victim.cut()
