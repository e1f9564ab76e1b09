"""A whole federation on one simulator."""

from __future__ import annotations

import functools
from typing import Any

from dca_proto.core.effects import Channel
from dca_proto.core.trainer_round import OpenRound
from dca_proto.testing import Cast
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator


class World:
    """All actors of a cast, started: Compute nodes first, then clients, then the trainer.

    Args:
        cast: keys, rows, policies and builders. simulator: where they run; its federation name must be the cast's.

    Attributes:
        computes, clients: processes, in the cast's order. trainer: its process. requests: rounds asked for so far.
    """

    def __init__(self, cast: Cast, simulator: Simulator) -> None:
        self.cast = cast
        self.simulator = simulator
        self.computes = [
            simulator.add(Channel.COMPUTE, functools.partial(cast.compute, index))
            for index in range(len(cast.compute_identities))
        ]
        self.clients = [
            simulator.add(Channel.CLIENT, functools.partial(cast.client, index))
            for index in range(len(cast.client_identities))
        ]
        self.trainer: Process = simulator.add(Channel.TRAINER, cast.trainer)
        self.requests: list[OpenRound] = []

    def open_round(self, **changes: Any) -> OpenRound:
        """Ask the trainer for a round: of `Cast.request`, with these fields changed. Raises what the trainer raises."""
        request = self.cast.request(**changes)
        self.simulator.command(self.trainer.id, request)
        self.requests.append(request)
        return request
