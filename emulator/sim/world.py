"""A whole federation on one simulator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.testing import TestFederation
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator


class World:
    """All actors of a federation, started in this order: Compute nodes, clients, trainer.

    Args:
        actors: keys, rows, policies and builders.
        simulator: runs the actors that it has; its federation name must be that of `actors`.

    Attributes:
        computes, clients: processes, in the order of `actors`. requests: all requests for rounds so far.
    """

    def __init__(self, actors: TestFederation, simulator: Simulator) -> None:
        self.actors = actors
        self.simulator = simulator
        self.computes = self._start(Channel.COMPUTE, actors.computes, actors.compute)
        self.clients = self._start(Channel.CLIENT, actors.clients, actors.client)
        self._trainers = (
            [simulator.add(Channel.TRAINER, actors.trainer)] if simulator.has(actors.trainer_identity.id) else []
        )
        self.requests: list[OpenRound] = []

    @property
    def trainer(self) -> Process:
        """The trainer's process. Raises `IndexError` if it runs in another process of the team."""
        return self._trainers[0]

    def open_round(self, **changes: Any) -> OpenRound:
        """Request a round, as in `TestFederation.request` with fields changed. Raises the trainer's errors."""
        request = self.actors.request(**changes)
        self.simulator.command(self.trainer.id, request)
        self.requests.append(request)
        return request

    def _start(self, role: Channel, ids: Sequence[bytes], build: Callable[..., Actor]) -> list[Process]:
        simulator = self.simulator
        return [
            simulator.add(role, functools.partial(build, index))
            for index, actor_id in enumerate(ids)
            if simulator.has(actor_id)
        ]
