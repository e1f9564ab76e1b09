"""Helpers for tests of actors: a deterministic network in virtual time. Not for production: nothing here is private.

`Network` delivers production actors' messages in order. It has virtual timers and a store for each actor. A test may
drop, change or repeat any message, and crash and restart any actor from its store.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Identity, Random, digest, expand
from dca_proto.privacy.local import RandomisedResponse, UnaryEncoding
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian, Mechanism
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.answer import Composer
from dca_proto.protocol.client.rows import HostRows
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.effects import Address, CancelTimer, Channel, Effect, Forget, Persist, Report, Send, SetTimer
from dca_proto.protocol.events import Command, Event, Received, Started, Timer, TimerFired
from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.policy import Floors, Policy
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.records import Records
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import Announcement, Body, Certificate, Release, Signed

StoreContents = dict[tuple[str, bytes], bytes]
Build = Callable[[Records], Actor]
"""Constructs an actor from the records of its store, as a process does when it starts."""


class NoNoise:
    """A mechanism without noise: tests compare its sum with the exact one.

    Only a test can construct actors with it; no configuration can name it.
    """

    name = "no-noise-for-tests"
    private = False

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        return 0

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)


class SeededRandom:
    """Reproducible bytes in place of the operating system's: ChaCha20, keyed by the seed and a counter."""

    def __init__(self, name: str) -> None:
        self._key = digest(labels.TEST_RANDOM, name.encode())[:24]
        self._count = itertools.count()

    def __call__(self, size: int) -> bytes:
        return expand(self._key + next(self._count).to_bytes(8, "little"), size)


class Envelope:
    """A message in transit, as passed to `Network.tamper`."""

    def __init__(self, sender: bytes, send: Send) -> None:
        self.sender = sender
        self.to = send.to
        self.round_id = send.round_id
        self.payload = send.payload


Tamper = Callable[[Envelope], Iterable[Envelope]]
"""Returns the messages to deliver in place of one: the same, none, several, or others."""


class Network:
    """Actors, their stores, a first-in-first-out network and a heap of timers, all in one thread.

    Attributes:
        now_ms: virtual time.
        facts: (actor id, fact) pairs in the order of reporting.
        sent: every message that an actor sent.
        tamper: called for each message; by default it passes the message on.
        down: ids of stopped actors, which lose all messages sent to them.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.actors: dict[bytes, Actor] = {}
        self.stores: dict[bytes, StoreContents] = {}
        self.facts: list[tuple[bytes, object]] = []
        self.sent: list[Envelope] = []
        self.tamper: Tamper = lambda envelope: (envelope,)
        self.down: set[bytes] = set()
        self._build: dict[bytes, tuple[Channel, Build]] = {}
        self._queue: deque[Envelope] = deque()
        self._timers: list[tuple[int, int, bytes, Timer]] = []
        self._set: dict[tuple[bytes, Timer], int] = {}
        self._order = itertools.count()
        self._retained: dict[tuple[bytes, Channel], Envelope] = {}

    def add(self, role: Channel, build: Build) -> Actor:
        """Start an actor with an empty store. `build` is called again at each restart."""
        actor = build(())
        self.stores[actor.id] = {}
        self._build[actor.id] = (role, build)
        self._run(actor)
        return actor

    def crash(self, actor_id: bytes) -> None:
        """Kill the process: it loses its memory and timers, and keeps its store."""
        self.down.add(actor_id)
        self._set = {key: at_ms for key, at_ms in self._set.items() if key[0] != actor_id}

    def restart(self, actor_id: bytes) -> Actor:
        """Start a killed actor again from its store."""
        self.crash(actor_id)
        self.down.discard(actor_id)
        records = [(table, key, value) for (table, key), value in self.stores[actor_id].items()]
        actor = self._build[actor_id][1](records)
        self._run(actor)
        return actor

    def command(self, actor_id: bytes, request: object) -> None:
        self.handle(actor_id, Command(request))

    def handle(self, actor_id: bytes, event: Event) -> list[Effect]:
        """Give an actor an event and carry out its effects."""
        effects = self.actors[actor_id].handle(event, self.now_ms)
        for effect in effects:
            self._carry_out(actor_id, effect)
        return effects

    def deliver(self) -> None:
        """Deliver all messages, including those they cause, until none is left."""
        while self._queue:
            envelope = self._queue.popleft()
            for receiver in self._receivers(envelope.to):
                if receiver not in self.down:
                    self.handle(receiver, Received(envelope.sender, envelope.payload))

    def advance(self, until_ms: int) -> None:
        """Advance virtual time: fire timers in order and deliver the messages they cause."""
        self.deliver()
        while self._timers and self._timers[0][0] <= until_ms:
            at_ms, order, actor_id, timer = heapq.heappop(self._timers)
            if self._set.get((actor_id, timer)) != order:
                continue  # cancelled, set anew, or the actor has crashed
            del self._set[actor_id, timer]
            self.now_ms = max(self.now_ms, at_ms)
            self.handle(actor_id, TimerFired(timer))
            self.deliver()
        self.now_ms = max(self.now_ms, until_ms)

    def reported(self, kind: type, actor_id: bytes | None = None) -> list[object]:
        """Return the facts of one kind, by one actor or by all."""
        return [fact for reporter, fact in self.facts if isinstance(fact, kind) and actor_id in (None, reporter)]

    def _run(self, actor: Actor) -> None:
        self.actors[actor.id] = actor
        self.handle(actor.id, Started())
        for envelope in list(self._retained.values()):
            if actor.id in self._receivers(envelope.to):
                self.handle(actor.id, Received(envelope.sender, envelope.payload))

    def _carry_out(self, actor_id: bytes, effect: Effect) -> None:
        match effect:
            case Persist(table, key, value):
                self.stores[actor_id][table, key] = value
            case Forget(table, key):
                self.stores[actor_id].pop((table, key), None)
            case SetTimer(timer, at_ms):
                self._set[actor_id, timer] = order = next(self._order)
                heapq.heappush(self._timers, (at_ms, order, actor_id, timer))
            case CancelTimer(timer):
                self._set.pop((actor_id, timer), None)
            case Report(fact):
                self.facts.append((actor_id, fact))
            case Send():
                self._post(actor_id, effect)

    def _post(self, sender: bytes, send: Send) -> None:
        envelope = Envelope(sender, send)
        self.sent.append(envelope)
        if send.retain:
            self._retained[sender, send.to.channel] = envelope
        self._queue.extend(self.tamper(envelope))

    def _receivers(self, to: Address) -> list[bytes]:
        if not to.channel.is_broadcast:
            return [to.id] if to.id in self.actors else []
        listening = {
            Channel.ANNOUNCE: (Channel.CLIENT,),
            Channel.ABORT: (Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER),
            Channel.EPOCH: (Channel.TRAINER,),
            Channel.HELLO: (Channel.COMPUTE,),
            Channel.FEDERATION: (Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER),
        }[to.channel]
        return [actor_id for actor_id, (role, _) in self._build.items() if role in listening]


Lie = Callable[[int], NDArray[np.int64]]
"""Returns any numbers, as many as asked, in grid units."""


class _LyingComposer(Composer, frozen=True, eq=False, kw_only=True):
    """Composes any numbers in place of the statistic of the client's rows; LDP reports have them instead of noise."""

    lie: Lie

    def compose(
        self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[ClientMessage, list[str]]:
        if validated.report is None:
            return super().compose(opened, validated, charge)
        report = validated.report
        numbers = self.lie(validated.dimension)
        if isinstance(report, RandomisedResponse):
            numbers = numbers[0] % report.categories
        elif isinstance(report, UnaryEncoding):
            numbers = numbers % 2 == 1

        def sign(body: Body) -> Signed:
            assert isinstance(body, Release), "a report is signed as a release"
            return self.sign(msgspec.structs.replace(body, vector=report.encode(numbers)))

        composer = Composer(*(getattr(self, name) for name in Composer.__struct_fields__))
        return msgspec.structs.replace(composer, sign=sign).compose(opened, validated, charge)

    def _value(
        self, validated: ValidatedRound, body: Announcement, fraction_bits: int
    ) -> tuple[NDArray[np.int64], int, list[str]]:
        _, rows, errors = super()._value(validated, body, fraction_bits)
        return self.lie(validated.dimension), rows, errors


def make_lie(client: Client, lie: Lie) -> Client:
    """Make a client send these numbers from now on, in rounds of all kinds; it keeps the protocol otherwise."""
    client._composer = _LyingComposer(**{**msgspec.structs.asdict(client._composer), "lie": lie})
    return client


def seeded(name: str) -> Random:
    """Return a source of reproducible bytes for tests and emulations."""
    return SeededRandom(name)


class ActorOptions(TypedDict):
    """The arguments that all actors take."""

    random: Random
    mechanism: Mechanism
    timing: Timing
    records: Records
    limits: NotRequired[Limits]


class TestFederation:
    """A federation with fresh keys, and builders for all of its actors.

    Args:
        clients: N.
        computes: M.
        columns: names of the columns.
        rows: each client's rows, ``rows[i]`` of shape (m, number of columns). If they are one array, clients share a
            host, which evaluates their statistics together.
        name: names the federation and seeds every random stream.
        colluding: p, as in the federation file; 0 for all nodes but one.
        policy, floors, mechanism, timing: as for the actors; by default, policy and floors accept small swarms, and
            Compute nodes publish each epoch key once, since this network loses no retained message.
        pool: of the Compute nodes.
    """

    __test__ = False  # otherwise pytest would collect the class, by its name

    def __init__(
        self,
        clients: int,
        computes: int,
        *,
        columns: tuple[str, ...] = ("x",),
        rows: Sequence[NDArray[np.float64]] | NDArray[np.float64] | None = None,
        name: str = "test",
        policy: Policy | None = None,
        floors: Floors | None = None,
        mechanism: Mechanism | None = None,
        timing: Timing | None = None,
        colluding: int = 0,
        pool: Pool | None = None,
    ) -> None:
        def identity(role: str, index: int = 0) -> Identity:
            return Identity(seeded(f"{name}/{role}{index}")(KEY_BYTES))

        self.authority = identity("authority")
        self.trainer_identity = identity("trainer")
        self.compute_identities = [identity("compute", index) for index in range(computes)]
        self.client_identities = [identity("client", index) for index in range(clients)]
        unsigned = Federation(
            name,
            self.authority.public_key,
            tuple(Member(f"compute-{i}", node.public_key) for i, node in enumerate(self.compute_identities)),
            (Member("trainer", self.trainer_identity.public_key),),
            colluding=colluding,
        )
        self.federation = sign_federation(self.authority, unsigned)
        self.columns = columns
        self.rows = rows if rows is not None else [np.full((1, len(columns)), 0.5) for _ in range(clients)]
        self._host = HostRows(columns, rows) if isinstance(rows, np.ndarray) else None
        self.policy = policy or Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=40)
        self.floors = floors or Floors(clients_min=1, honest_min=1)
        self.mechanism = mechanism or DistributedDiscreteGaussian()
        self.timing = timing or Timing(epoch_publish_ms=Timing().epoch_ms)
        self._pool = pool
        self._column = {column: place for place, column in enumerate(columns)}
        self._name = name
        self._starts: Counter[str] = Counter()

    @property
    def computes(self) -> tuple[bytes, ...]:
        return tuple(identity.id for identity in self.compute_identities)

    @property
    def clients(self) -> tuple[bytes, ...]:
        return tuple(identity.id for identity in self.client_identities)

    def _count(self, name: str) -> int:
        self._starts[name] += 1
        return self._starts[name] - 1

    def _common(self, records: Records, actor: str) -> ActorOptions:
        """Common arguments of actors. Each start has its own random stream, so a restart changes no other actor's."""
        random = seeded(f"{self._name}/{actor}/start{self._count(actor)}")
        return {"random": random, "mechanism": self.mechanism, "timing": self.timing, "records": records}

    def certificate(self, index: int, expires_ms: int = 1 << 52) -> Certificate:
        """Enrol client `index`: return its certificate."""
        return enrol(self.authority, self.federation, self.client_identities[index].public_key, expires_ms)

    def client(self, index: int, records: Records = ()) -> Client:
        """Construct client `index` from the records of its store."""

        def rows(columns: tuple[str, ...]) -> NDArray[np.float64]:
            table = self.rows[index]
            return table if columns == self.columns else table[:, [self._column[column] for column in columns]]

        return Client(
            self.client_identities[index],
            self.certificate(index),
            self.federation,
            columns=self.columns,
            rows=rows if self._host is None else self._host.member(index),
            policy=self.policy,
            **self._common(records, f"client{index}"),
        )

    def compute(self, index: int, records: Records = ()) -> ComputeNode:
        """Construct Compute node `index` from the records of its store."""
        return ComputeNode(
            self.compute_identities[index],
            self.federation,
            floors=self.floors,
            pool=self._pool,
            **self._common(records, f"compute{index}"),
        )

    def trainer(self, records: Records = ()) -> Trainer:
        """Construct the trainer from the records of its store."""
        return Trainer(self.trainer_identity, self.federation, **self._common(records, "trainer"))

    def network(self, network: Network | None = None) -> Network:
        """Start all actors on one network."""
        network = network or Network()
        for index in range(len(self.compute_identities)):
            network.add(Channel.COMPUTE, functools.partial(self.compute, index))
        for index in range(len(self.client_identities)):
            network.add(Channel.CLIENT, functools.partial(self.client, index))
        network.add(Channel.TRAINER, self.trainer)
        return network

    def request(self, **changes: Any) -> OpenRound:
        """Return a request for a secure sum of column ``x`` within [-1, 1], with T = 1 and windows of a minute.

        `changes` replaces fields of the request, or `clients`, `tolerate`, `colluders` and `most` of its kind, as far
        as it has them.
        """
        kind = changes.pop("kind", SecureSum(tolerate=1))
        terms = {"clients": kind.clients or len(self.client_identities)}
        terms |= {name: changes.pop(name) for name in ("clients", "tolerate", "colluders", "most") if name in changes}
        plain: dict[str, Any] = {
            "round_id": seeded(f"{self._name}/round{self._count('round')}")(ID_BYTES),
            "statistic": "sum",
            "parameters": {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]},
            "epsilon": 1.0,
            "delta": 1e-6,
            "collect_s": 60.0,
            "commit_s": 60.0,
            "kind": msgspec.structs.replace(
                kind, **{name: terms[name] for name in kind.__struct_fields__ if name in terms}
            ),
            "computes": self.computes if kind.is_summed else (),
        }
        return OpenRound(**{**plain, **changes})
