"""Runs the rounds with the production actors: sessions, announcement, masked contributions, agreement, release.

Messages travel through `dca_proto.testing.Network`. A colluding client runs the production actor with a mechanism that
records its draws, so that the coalition knows its own noise. The other clients run the actor unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Random
from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Declined, RoundCompleted, RoundFailed
from dca_proto.testing import Network, TestFederation, seeded
from emulator.audit.programme import Seen
from emulator.audit.worlds import Setting, World
from emulator.engine import Engine

_UNUSED_COMPUTES = 2
_BATCH = 16
_NAME_CHARS = 26  # of 32 that a federation's name may have


class RecordingMechanism(DistributedDiscreteGaussian):
    """The production mechanism, which also records its draws for the coalition."""

    def __init__(self) -> None:
        self.drawn: list[NDArray[np.int64]] = []

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        noise = super().sample(variance, dimension, key)
        self.drawn.append(noise)
        return noise


class ProtocolRounds:
    """Runs rounds of real actors on an engine, in batches; each batch has a federation of its own.

    Args:
        setting: of one round. random: seeds the federations. engine: runs the batches.
    """

    def __init__(self, setting: Setting, random: Random, engine: Engine) -> None:
        self._setting = setting
        self._random = random
        self._engine = engine

    def run_rounds(self, side: int, runs: int) -> Iterator[Seen]:
        batches = [(side, min(_BATCH, runs - first), self._random(KEY_BYTES).hex()) for first in range(0, runs, _BATCH)]
        results = self._engine.map(functools.partial(_run_batch, self._setting), batches, ordered=True)
        return (done.value() for done in results)


def _run_batch(setting: Setting, batch: tuple[int, int, str]) -> Seen:
    """Run the rounds of a batch: the world's side, the number of runs, and the seed."""
    side, runs, seed = batch
    federation = _AuditFederation(World(setting), side, seeded(seed))
    totals, own = zip(*(federation.run_round() for _ in range(runs)), strict=True)
    return Seen(np.array(totals), np.array(own))


class _AuditFederation(TestFederation):
    """A federation for rounds in one world. All keys derive from its name.

    A federation with a data node has Compute nodes too, but its rounds do not use them.
    """

    def __init__(self, world: World, side: int, random: Random) -> None:
        setting = world.setting
        super().__init__(
            setting.clients,
            setting.computes or _UNUSED_COMPUTES,
            columns=tuple(world.validated.statistic.columns),
            rows=[world.row(client, side) for client in range(setting.clients)],
            name=f"audit-{random(ID_BYTES).hex()[:_NAME_CHARS]}",
        )
        self.policy = msgspec.structs.replace(self.policy, rows_of_many=setting.is_release)
        self._world, self._side, self._random, self._spy = world, side, random, RecordingMechanism()

    def client(self, index: int, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Client:
        self.mechanism = self._spy if index in self._world.coalition else DistributedDiscreteGaussian()
        return super().client(index, records)

    def run_round(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Run a round; return the released sum, and the contributions of the coalition's own clients to it."""
        world, network = self._world, Network()
        lost = set(self.clients[world.present.stop :])  # clients that drop out
        network.tamper = lambda sent: () if sent.sender in lost and sent.to.channel is Channel.COMPUTE else (sent,)
        self._spy.drawn.clear()
        self.network(network)
        network.deliver()
        request = msgspec.structs.replace(
            world.request, round_id=self._random(ID_BYTES), ask=world.setting.ask(self.computes)
        )
        network.command(self.trainer_identity.id, request)
        network.advance(network.now_ms + request.collect_window_ms + 2 * request.commit_window_ms)
        total = np.rint(_value(network) / world.validated.unit).astype(np.int64)
        data = [world.encode(world.row(client, self._side)) for client in world.coalition]
        return total, sum([*data, *self._spy.drawn], np.zeros(world.size, dtype=np.int64))


def _value(network: Network) -> NDArray[np.float64]:
    """Return the trainer's result. Raises `UsageError` if the clients declined or the round failed."""
    for fact in network.reported(RoundCompleted):
        assert isinstance(fact, RoundCompleted)
        return fact.aggregate.value
    for fact in network.reported(Declined):
        assert isinstance(fact, Declined)
        raise UsageError(f"--protocol: the clients decline ({fact.reason}: {fact.found}; expected {fact.expected})")
    raise UsageError(f"--protocol: the round failed: {network.reported(RoundFailed)}")
