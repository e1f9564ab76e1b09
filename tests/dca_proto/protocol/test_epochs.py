"""Rounds across the turn of an epoch, and across a change of the federation file."""

from __future__ import annotations

from round_helpers import sent

from dca_proto.crypto.sealing import Identity
from dca_proto.protocol import facts
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.messages import EpochKey
from dca_proto.testing import Envelope, Network, TestFederation

EPOCH_MS, GRACE_MS = 10_000_000, 100_000
TIMING = Timing(epoch_ms=EPOCH_MS, epoch_grace_ms=GRACE_MS, abort_grace_ms=1000, hello_spread_ms=0)
TURN_MS = 170_001 * EPOCH_MS


def network(actors: TestFederation, before_turn_ms: int) -> Network:
    return actors.network(Network(TURN_MS - before_turn_ms))


def test_a_round_announced_just_before_the_turn_ends_with_a_result() -> None:
    actors = TestFederation(5, 2, timing=TIMING)
    net = network(actors, before_turn_ms=10_000)
    silent = actors.clients[0]
    net.tamper = lambda e: () if e.sender == silent else (e,)  # so that the round waits for it
    net.command(actors.trainer_identity.id, actors.request(tolerate=1, collect_s=20))
    net.advance(TURN_MS + 90_000)
    (done,) = net.reported(facts.RoundCompleted)
    assert done.aggregate.contributors == 4


def test_a_round_that_would_outlast_the_grace_waits_for_the_next_key() -> None:
    actors = TestFederation(5, 2, timing=TIMING)
    net = network(actors, before_turn_ms=10_000)
    net.command(actors.trainer_identity.id, actors.request(collect_s=(GRACE_MS + 20_000) / 1000))
    net.deliver()
    assert not net.reported(facts.Announced)
    net.advance(TURN_MS + 1000)
    assert net.reported(facts.RoundCompleted)


def test_a_key_is_published_again_for_whoever_lost_it() -> None:
    """Every five minutes: a broker may lose a retained message."""
    actors = TestFederation(1, 2, timing=Timing())
    net = network(actors, before_turn_ms=2 * 3600_000)
    net.advance(net.now_ms + 3600_000)
    keys = sent(net, EpochKey, sender=actors.computes[0])
    assert len(keys) == 1 + 12


def test_a_key_is_deleted_after_its_grace_period() -> None:
    actors = TestFederation(5, 2, timing=TIMING)
    net = network(actors, before_turn_ms=10_000)
    net.command(actors.trainer_identity.id, actors.request())
    net.advance(TURN_MS + GRACE_MS - 1)
    owners = [*actors.computes, *actors.clients]
    old = (TURN_MS // EPOCH_MS - 1).to_bytes(4, "big")
    assert all(("epoch", old) in net.stores[one] for one in owners)
    net.advance(TURN_MS + GRACE_MS)
    assert not any(("epoch", old) in net.stores[one] for one in owners)


def test_a_contribution_after_the_abort_is_answered_with_it_and_brings_the_charge_back() -> None:
    actors = TestFederation(6, 2)
    net = actors.network()
    dropped, cut_off = set(actors.clients[:3]), actors.clients[5]

    def tamper(envelope: Envelope) -> tuple[Envelope, ...]:
        silent = envelope.sender in dropped and envelope.to.channel is Channel.COMPUTE
        unheard = envelope.to.channel is Channel.ABORT or envelope.sender == cut_off
        return () if silent or (unheard and net.now_ms < heals_ms) else (envelope,)

    heals_ms = net.now_ms + 100_000
    request = actors.request(tolerate=1, collect_s=50, commit_s=200)
    net.tamper = lambda e: (e,) if e.to.channel is Channel.TRAINER else tamper(e)
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 400_000)
    assert net.actors[cut_off].phase(request.round_id) == "returned"


def replaced(actors: TestFederation) -> Federation:
    """A federation of the same members with another enrolment key: another federation."""
    old, actors.authority = actors.federation, Identity(bytes(range(32)))
    return Federation(old.name, actors.authority.public_key, old.computes, old.trainers)


def test_a_client_forgets_rounds_of_a_replaced_federation_file_but_not_its_ledger() -> None:
    actors = TestFederation(5, 2)
    net = actors.network()
    net.tamper = lambda e: () if e.sender in actors.computes and e.to.channel is Channel.CLIENT else (e,)
    request = actors.request()
    net.command(actors.trainer_identity.id, request)
    net.deliver()
    waiting = next(client for client in actors.clients if net.actors[client].phase(request.round_id) == "sent")
    actors.federation = replaced(actors)
    net.restart(waiting)
    assert net.actors[waiting].phase(request.round_id) == "new"
    assert {table for table, _ in net.stores[waiting]} == {"ledger", "seen", "epoch", "hello", "pin"}
    assert net.actors[waiting].ledger.spent().mu > 0


def test_a_trainer_continues_when_its_old_federation_file_returns() -> None:
    actors = TestFederation(5, 2)
    net = actors.network()
    request = actors.request()
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 1000)
    old, actors.federation = actors.federation, replaced(actors)
    net.restart(actors.trainer_identity.id)
    assert net.actors[actors.trainer_identity.id].phase(request.round_id) == "new"
    actors.federation = old
    net.restart(actors.trainer_identity.id)
    first, second = net.reported(facts.RoundCompleted)
    assert first.aggregate.value.tolist() == second.aggregate.value.tolist()
