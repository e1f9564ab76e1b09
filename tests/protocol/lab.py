"""A trainer with an account, and rounds of it that fail: what the tests of both share."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from scene import begin, body_of, forged, losing, sent

from dca_proto.core import accounting
from dca_proto.core.messages import Abort, Share, Start
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.policy import Allowance
from dca_proto.core.round import session_hash
from dca_proto.core.trainer import TrainerActor
from dca_proto.testing import Cast, Network, NoNoise

TWO_ROUNDS = Allowance(epsilon=1.6, delta=1e-6)
"""Room for two rounds at (1, 1e-6), and not for three."""
MU = accounting.mu_of(1.0, 1e-6)


class Lab(Cast):
    """A cast whose trainer has an account."""

    account: Allowance | None = TWO_ROUNDS

    def trainer(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> TrainerActor:
        return TrainerActor(
            self.trainer_identity,
            self.federation,
            account=self.account,
            **self._common(records, "trainer"),
        )


def lab(account: Allowance | None = TWO_ROUNDS) -> tuple[Lab, Network]:
    cast = Lab(4, 3, mechanism=NoNoise())
    cast.account = account
    return cast, cast.network()


def trainer_of(cast: Cast, network: Network) -> TrainerActor:
    actor = network.actors[cast.trainer_identity.id]
    assert isinstance(actor, TrainerActor)
    return actor


def running() -> tuple[Cast, Network, bytes]:
    """A round that was started; nothing is released or aborted as long as its messages are lost."""
    cast, network = lab()
    network.tamper = losing(Share)
    _, request = begin(cast, network)
    network.tamper = lambda one: ()
    assert trainer_of(cast, network).phase(request.round_id) == "running"
    return cast, network, request.round_id


def abort_of(cast: Cast, network: Network, node: int, **changes: object) -> tuple[bytes, bytes]:
    start = sent(network, Start)[0]
    body = Abort(PROTOCOL_VERSION, start.round_id, session_hash(body_of(start.payload).terms), "too-few", "x", 1, 3)
    identity = cast.compute_identities[node]
    return identity.id, forged(cast, identity, msgspec.structs.replace(body, **changes))
