"""Node releases: a federation of data nodes with many rows each, and rounds advanced to a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from round_helpers import PowerCuts, begin, body_of, ignored, losing, refused, results, sent, unsealed, until_the_end

from dca_proto.privacy import accounting
from dca_proto.protocol.effects import Persist, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import BudgetLimit, Policy
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.protocol.wire.messages import Announcement, Receipt, Release, Sealed
from dca_proto.testing import Envelope, Network, NoNoise, TestFederation

MU = accounting.mu_of(1.0, 1e-6)
OPEN = Policy(rows_of_many=True)
"""A hospital's policy; all other limits have their defaults, floors of clients and Compute nodes too."""


class Hospitals(TestFederation):
    """Data nodes without any Compute node; number j has j + 2 rows of (j + 1) / 16, and the trainer an account.

    Args:
        count: J. changes: as for `TestFederation`.
    """

    account: BudgetLimit | None = None

    def __init__(self, count: int = 3, **changes: Any) -> None:
        rows = [np.full((index + 2, 1), (index + 1) / 16) for index in range(count)]
        super().__init__(count, 0, **{"rows": rows, "policy": OPEN, "mechanism": NoNoise(), **changes})

    def trainer(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Trainer:
        common = self._common(records, "trainer")
        return Trainer(self.trainer_identity, self.federation, account=self.account, **common)

    def request(self, **changes: Any) -> OpenRound:
        plain = {"kind": NodeRelease(), "rows_max": 8}
        return super().request(**{**plain, **changes})


def by_id(actors: TestFederation) -> list[int]:
    """Return the indices of the data nodes in the order of their ids."""
    return sorted(range(len(actors.clients)), key=lambda index: actors.clients[index])


def completed_round(count: int = 3, **changes: Any) -> tuple[Hospitals, Network]:
    """Run one completed round."""
    actors = Hospitals(count, **changes)
    network, _ = begin(actors)
    return actors, network


def released(network: Network, client: bytes | None = None) -> list[Envelope]:
    """Return the releases that the data nodes sent."""
    return [one for one in network.sent if isinstance(body_of(one.payload), Sealed) and client in (None, one.sender)]


def release_of(actors: TestFederation, network: Network, index: int, **changes: Any) -> Release:
    """Return the release of data node `index` in the newest round, with some fields changed."""
    body = unsealed(network, actors, released(network, actors.clients[index])[-1].payload)
    assert isinstance(body, Release)
    return msgspec.structs.replace(body, **changes)


def check_replayed_announcement(network: Network, client: bytes, trainer: bytes) -> None:
    """Replay a completed round's announcement during the round, after its end, and after restarts of the client."""
    announcement = sent(network, Announcement)[0].payload
    ignored(network, client, trainer, announcement)
    network.restart(client)
    ignored(network, client, trainer, announcement)
    until_the_end(network)
    refused(network, client, trainer, announcement, "replay")
    network.restart(client)
    refused(network, client, trainer, announcement, "replay")
    assert len(network.actors[client].ledger.charges) == len(released(network, client)) == 1


def check_crash_between_charge_and_send(actors: TestFederation, *, committed: bool) -> None:
    """Charge and release are one transaction: both are there after the crash of a client, or neither."""
    network = actors.network()
    network.deliver()
    network.tamper = losing(Announcement)
    begin(actors, network)
    client, announcement = actors.clients[0], sent(network, Announcement)[0]
    effects = network.actors[client].handle(Received(announcement.sender, announcement.payload), network.now_ms)
    for effect in [one for one in effects if isinstance(one, Persist) and committed]:
        network._carry_out(client, effect)
    network.restart(client)
    assert len(released(network, client)) == committed, "stored, so it is sent again; not stored, so nothing left"
    network.tamper = lambda one: [one]
    until_the_end(network)
    assert len(results(network)) == 1
    assert len(network.actors[client].ledger.charges) == 1


class ReleaseCuts(PowerCuts):
    """Power cuts without Compute nodes: nothing leaves uncharged, and nothing acknowledged is lost."""

    def _post(self, sender: bytes, send: Send) -> None:
        match body_of(send.payload):
            case Sealed():
                assert (LEDGER, send.round_id) in self.stores[sender], "a release left without a durable charge"
            case Receipt():
                assert (RELEASES, send.round_id + send.to.id) in self.stores[sender], "a receipt for what is not stored"
            case Announcement():
                assert (LEDGER, send.round_id) in self.stores[sender], "an announcement left without a durable charge"
        Network._post(self, sender, send)
