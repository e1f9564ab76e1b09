"""A whole round in one function: the executable overview of the protocol. Start here.

`play` plays a secure sum. `play_releases` plays a round without Compute nodes: node releases or LDP reports. Both use
the production actors and pass their messages on directly, in the order of DESIGN §4 and §5, without a network, a clock
or a store. `tests/dca_proto/protocol/test_play.py` runs them. `dca_proto.testing.Network` adds loss, crashes and time.
"""

from __future__ import annotations

from collections.abc import Sequence

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import PROGRESS
from dca_proto.protocol.effects import Channel, Effect, Report, Send
from dca_proto.protocol.events import Command, Received, Started, Timer, TimerFired
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound


def play(  # noqa: C901 - one function on purpose
    trainer: Trainer,
    computes: Sequence[ComputeNode],
    clients: Sequence[Client],
    request: OpenRound,
    now_ms: int,
) -> NoisyAggregate:
    """Play one secure sum in which nobody fails and every client agrees.

    Everything happens at `now_ms`. The request's `kind.clients` is the number of clients.
    """
    node = {compute.id: compute for compute in computes}

    # §2.2  Each Compute node signs and publishes its X25519 key of the current epoch.
    for compute in computes:
        for epoch_key in _sends(compute.handle(Started(), now_ms)):
            trainer.handle(Received(compute.id, epoch_key.payload), now_ms)

    # §2.3  Each client signs and publishes its own X25519 key. Every Compute node verifies and stores it.
    for client in clients:
        (hello,) = _sends(client.handle(Started(), now_ms))
        for compute in computes:
            compute.handle(Received(client.id, hello.payload), now_ms)

    # §4.1  The trainer charges its account, and sends a signed announcement to the nodes and to all clients.
    *for_nodes, announcement = _sends(trainer.handle(Command(request), now_ms))
    for message in for_nodes:
        (progress,) = _sends(node[message.to.id].handle(Received(trainer.id, message.payload), now_ms))
        trainer.handle(Received(message.to.id, progress.payload), now_ms)

    # §4.3, §4.4  Each client computes the noise scale, checks the round against its policy, charges its budget, adds
    #             its noise, subtracts a mask for each node, and sends one message to one Compute node, its holder.
    # §4.5        The holder stores the contribution, and confirms that with a receipt.
    for client in clients:
        (sent,) = _sends(client.handle(Received(trainer.id, announcement.payload), now_ms))
        (receipt,) = _sends(node[sent.to.id].handle(Received(client.id, sent.payload), now_ms))
        client.handle(Received(sent.to.id, receipt.payload), now_ms)

    # §4.8  The nodes report to the trainer how many contributions they hold. All have arrived, so it closes the round.
    tick = TimerFired(Timer(PROGRESS, request.round_id))
    closes: list[Send] = []
    for compute in computes:
        for progress in _sends(compute.handle(tick, now_ms)):
            closes = closes or _sends(trainer.handle(Received(compute.id, progress.payload), now_ms))

    # §4.7  Each node freezes its list and sends it to its peers. Once it has all lists, it answers with its objections.
    #       Once it has all answers, it releases one sum over the agreed set, sealed to the trainer.
    in_transit = [(trainer.id, close) for close in closes]
    partial_sums: list[tuple[bytes, Send]] = []
    while in_transit:
        sender, message = in_transit.pop(0)
        for reply in _sends(node[message.to.id].handle(Received(sender, message.payload), now_ms)):
            is_partial_sum = reply.to.channel is Channel.TRAINER
            (partial_sums if is_partial_sum else in_transit).append((message.to.id, reply))

    # §4.7  The trainer adds the M partial sums: the masks cancel, and the private sum remains.
    for sender, partial_sum in partial_sums:
        for effect in trainer.handle(Received(sender, partial_sum.payload), now_ms):
            if isinstance(effect, Report) and isinstance(effect.fact, RoundCompleted):
                return effect.fact.aggregate
    raise AssertionError("a round in which nobody fails has a result")


def play_releases(trainer: Trainer, clients: Sequence[Client], request: OpenRound, now_ms: int) -> NoisyAggregate:
    """Play one round without Compute nodes in which nobody fails and every client agrees (DESIGN §5).

    The request is for node releases or LDP reports. Its `kind.clients` is the number of clients.
    """
    # §4.1  The trainer charges its account, and sends a signed announcement to all clients.
    (announcement,) = _sends(trainer.handle(Command(request), now_ms))

    for client in clients:
        # §5.1, §5.2  The client computes the noise scale, checks the round against its policy, charges its budget, adds
        #             all of the noise, signs, seals and sends its release.
        *_, release = _sends(client.handle(Received(trainer.id, announcement.payload), now_ms))

        # §5.3  The trainer stores the release and sends a receipt. Once it has all, the releases and their sum are the
        #       result.
        effects = trainer.handle(Received(client.id, release.payload), now_ms)
        (receipt,) = _sends(effects)
        client.handle(Received(trainer.id, receipt.payload), now_ms)
        for effect in effects:
            if isinstance(effect, Report) and isinstance(effect.fact, RoundCompleted):
                return effect.fact.aggregate
    raise AssertionError("a round in which nobody fails has a result")


def _sends(effects: Sequence[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]
