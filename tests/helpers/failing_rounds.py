"""A trainer with an account, and rounds of it that fail."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from round_helpers import announced, begin, forged, losing

from dca_proto.privacy import accounting
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.messages import Abort, Contribution
from dca_proto.testing import Network, NoNoise, TestFederation

TWO_ROUNDS = BudgetLimit(epsilon=1.6, delta=1e-6)
"""Room for two rounds at (1, 1e-6), and not for three."""
MU = accounting.mu_of(1.0, 1e-6)


class AccountedFederation(TestFederation):
    """A federation whose trainer has an account."""

    account: BudgetLimit | None = TWO_ROUNDS

    def trainer(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Trainer:
        return Trainer(
            self.trainer_identity,
            self.federation,
            account=self.account,
            **self._common(records, "trainer"),
        )


def with_account(account: BudgetLimit | None = TWO_ROUNDS) -> tuple[AccountedFederation, Network]:
    actors = AccountedFederation(4, 3, mechanism=NoNoise())
    actors.account = account
    return actors, actors.network()


def trainer_of(actors: TestFederation, network: Network) -> Trainer:
    actor = network.actors[actors.trainer_identity.id]
    assert isinstance(actor, Trainer)
    return actor


def collecting() -> tuple[TestFederation, Network, bytes]:
    """Announce a round; nothing is released or aborted while its messages are lost."""
    actors, network = with_account()
    network.tamper = losing(Contribution)
    _, request = begin(actors, network)
    network.tamper = lambda one: ()
    assert trainer_of(actors, network).phase(request.round_id) == "collecting"
    return actors, network, request.round_id


def abort_of(actors: TestFederation, network: Network, node: int, **changes: object) -> tuple[bytes, bytes]:
    identity, opened = actors.compute_identities[node], announced(network, actors)
    body = Abort(
        opened.body.round_id,
        opened.hash,
        identity.id,
        "too-few",
        "1 client contributed, 3 were needed",
        1,
        3,
        (),
    )
    return identity.id, forged(actors, identity, msgspec.structs.replace(body, **changes))
