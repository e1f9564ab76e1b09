"""The actors of an attacked round, those of the coalition among them.

A revealing client is the production client with a mechanism that records its draws. An omitting client has a mechanism
that draws nothing, which no one can detect. A client that drops out has a session, charges itself, and sends nothing. A
Compute node that leaves clients out ignores their messages: it has no session of theirs, so it objects to them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.mechanism import DistributedDiscreteGaussian, Mechanism
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel, Effect, Send
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.records import Records
from dca_proto.testing import TestFederation, seeded
from emulator.coalition.worlds import Worlds

_COMPUTES_UNUSED = 2
_UNLIMITED = 1e9  # ε of a period: many repetitions must not exhaust the budget


class RecordingMechanism(DistributedDiscreteGaussian):
    """The production mechanism, which also records its draws for the coalition."""

    def __init__(self) -> None:
        self.drawn: list[NDArray[np.int64]] = []

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        noise = super().sample(variance, dimension, key)
        self.drawn.append(noise)
        return noise


class Omitting(DistributedDiscreteGaussian):
    """A mechanism that claims to add noise and adds none."""

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)


class Withholding(Client):
    """A client that takes part, but does not send its contribution."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        return [
            effect
            for effect in super().handle(event, now_ms)
            if not (isinstance(effect, Send) and effect.to.channel is Channel.COMPUTE)
        ]


class Deaf(ComputeNode):
    """A Compute node that ignores the messages of some clients."""

    ignored: frozenset[bytes] = frozenset()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, Received) and event.sender in self.ignored:
            return []
        return super().handle(event, now_ms)


class Party(TestFederation):
    """The federation of an attacked round.

    One for a data node's release has Compute nodes too, but its rounds do not use them.

    Args:
        world: the round and the coalition. side: of the victim's row. name: of the federation; all randomness derives
            from it.

    Attributes:
        spy: the mechanism of the revealing clients, which records their noise.
    """

    def __init__(self, world: Worlds, side: int, name: str) -> None:
        setting = world.setting
        policy = Policy(
            clients_min=1,
            honest_min=1,
            epsilon_per_round_max=setting.epsilon,
            epsilon_per_period_max=_UNLIMITED,
            delta_max=setting.delta,
            rows_of_many=setting.is_release,
        )
        super().__init__(
            setting.clients,
            setting.computes or _COMPUTES_UNUSED,
            columns=tuple(world.validated.statistic.columns),
            rows=[world.row(client, side) for client in range(setting.clients)],
            name=name,
            policy=policy,
        )
        self.spy = RecordingMechanism()
        self._world = world

    def client(self, index: int, records: Records = ()) -> Client:
        """Return client `index`: the production actor, or its version in the coalition."""
        self.mechanism = self._mechanism_of(index)
        client = super().client(index, records)
        if index in self._world.dropped:
            client.__class__ = Withholding
        return client

    def compute(self, index: int, records: Records = ()) -> ComputeNode:
        """Return Compute node `index`: the production actor, or one that ignores some clients."""
        if index >= self._world.setting.coalition.computes or not self._world.left_out:
            return super().compute(index, records)
        identity, random = self.compute_identities[index], seeded(f"{self.federation.name}/deaf{index}")
        deaf = Deaf(
            identity, self.federation, floors=self.floors, random=random, mechanism=self.mechanism, records=records
        )
        deaf.ignored = frozenset(self.clients[client] for client in self._world.left_out)
        return deaf

    def _mechanism_of(self, index: int) -> Mechanism:
        if index in self._world.revealing:
            return self.spy
        return Omitting() if index in self._world.omitting else DistributedDiscreteGaussian()
