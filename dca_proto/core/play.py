"""A whole round in one readable function: the executable overview of the protocol. Read this first.

`play` is a summed round, `play_local` one in which each data node releases by itself, or each client reports.

No network, no clock, no store: the production actors' messages are handed over directly, in the order of DESIGN §4.
`tests/protocol/test_play.py` runs it; `dca_proto.testing.Network` does the same with loss, crashes and time.
"""

from __future__ import annotations

from collections.abc import Sequence

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core.client import ClientActor
from dca_proto.core.compute import ComputeActor
from dca_proto.core.effects import Effect, Report, Send
from dca_proto.core.events import Command, Received, Started
from dca_proto.core.facts import RoundCompleted
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.trainer_round import OpenRound


def play(  # noqa: C901 - one function on purpose
    trainer: TrainerActor,
    computes: Sequence[ComputeActor],
    clients: Sequence[ClientActor],
    request: OpenRound,
    now_ms: int,
) -> NoisyAggregate:
    """Play one round in which nobody fails and every client agrees.

    Args:
        request: what the trainer asks; its `clients_expected` is the number of clients.
        now_ms: the time at which everything happens, Unix milliseconds.
    """
    by_id = {actor.id: actor for actor in (*computes, *clients)}

    # §2  Each Compute node signs and publishes its X25519 key of the current epoch.
    for compute in computes:
        for epoch_key in _sends(compute.handle(Started(), now_ms)):
            trainer.handle(Received(compute.id, epoch_key.payload), now_ms)

    # §4.1  The trainer announces what it asks for, signed.
    (announcement,) = _sends(trainer.handle(Command(request), now_ms))

    # §4.2  Each client computes sensitivity and noise for itself, holds them against its policy, and joins.
    rosters: list[Send] = []
    for client in clients:
        (join,) = _sends(client.handle(Received(trainer.id, announcement.payload), now_ms))
        rosters = _sends(trainer.handle(Received(client.id, join.payload), now_ms))

    # §4.3  The roster of signed joins is fixed; the Compute nodes check all of it; the clients learn their positions.
    starts: list[Send] = []
    for roster in rosters:
        (ready,) = _sends(by_id[roster.to.id].handle(Received(trainer.id, roster.payload), now_ms))
        starts = _sends(trainer.handle(Received(roster.to.id, ready.payload), now_ms))

    # §4.4  Each client charges its budget, adds its noise, splits, seals and sends; each share is acknowledged.
    views: list[tuple[bytes, Send]] = []
    for start in starts:
        for share in _sends(by_id[start.to.id].handle(Received(trainer.id, start.payload), now_ms)):
            receipt, *frozen = _sends(by_id[share.to.id].handle(Received(start.to.id, share.payload), now_ms))
            by_id[start.to.id].handle(Received(share.to.id, receipt.payload), now_ms)
            views += [(share.to.id, view) for view in frozen]

    # §4.5  All contributions are there: each Compute node froze its list and told the others its hash. All hashes
    #       agree, so each releases one partial sum, sealed to the trainer.
    partial_sums: list[tuple[bytes, Send]] = []
    for sender, view in views:
        replies = _sends(by_id[view.to.id].handle(Received(sender, view.payload), now_ms))
        partial_sums += [(view.to.id, reply) for reply in replies if reply.to.id == trainer.id]

    # §4.6  The M partial sums add up to the private sum: the masks cancel.
    for sender, partial_sum in partial_sums:
        for effect in trainer.handle(Received(sender, partial_sum.payload), now_ms):
            if isinstance(effect, Report) and isinstance(effect.fact, RoundCompleted):
                return effect.fact.aggregate
    raise AssertionError("a round in which nobody fails has a result")


def play_local(
    trainer: TrainerActor, clients: Sequence[ClientActor], request: OpenRound, now_ms: int
) -> NoisyAggregate:
    """Play one local round in which nobody fails and every data node agrees (DESIGN §4.8).

    With a local mechanism's name in the request it is a round of reports (§4.9): every message and every step is the
    same, but that a client's report, of all its data, stands where a data node's noisy sum does.

    Args:
        request: what the trainer asks, with the encoding `local`; its `clients_expected` is the number of data nodes.
        now_ms: the time at which everything happens, Unix milliseconds.
    """
    # §4.1  The trainer charges its account, and announces what it asks for, signed.
    (announcement,) = _sends(trainer.handle(Command(request), now_ms))

    for client in clients:
        # §4.2, §4.4  The data node computes one row's sensitivity and the noise for itself, holds them against its
        #             policy, charges its budget, sums its rows, adds all of the noise, signs, seals and sends.
        (release,) = _sends(client.handle(Received(trainer.id, announcement.payload), now_ms))

        # §4.8  The trainer keeps it, and acknowledges it. When all have come, they and their sum are the result.
        effects = trainer.handle(Received(client.id, release.payload), now_ms)
        (receipt,) = _sends(effects)
        client.handle(Received(trainer.id, receipt.payload), now_ms)
        for effect in effects:
            if isinstance(effect, Report) and isinstance(effect.fact, RoundCompleted):
                return effect.fact.aggregate
    raise AssertionError("a round in which nobody fails has a result")


def _sends(effects: Sequence[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]
