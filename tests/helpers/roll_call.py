"""A federation whose trainer asks nodes that it has not heard lately, as one in production does (DESIGN §4.1)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.testing import Network, NoNoise, TestFederation


class Federation(TestFederation):
    """Its trainer calls the roll, as one in production does."""

    def trainer(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Trainer:
        common = self._common(records, "trainer")
        return Trainer(self.trainer_identity, self.federation, roll_call=True, **common)


def up(computes: int, colluding: int) -> tuple[Federation, Network]:
    """A federation of four clients whose epoch keys are known."""
    rows = [np.full((1, 1), index / 16) for index in range(4)]
    actors = Federation(4, computes, rows=rows, colluding=colluding, mechanism=NoNoise())
    network = actors.network()
    network.deliver()
    return actors, network
