"""The trainer's account of its federation: charged before the starts leave, never exceeded, returned once or never."""

from __future__ import annotations

import asyncio
import collections
import itertools
import random
from collections.abc import Iterable

import msgspec
import pytest
from scene import begin, body_of, failures, forged, losing, refused, results, sent, until_the_end
from test_kill_points import PowerCuts

from dca_proto.core import accounting
from dca_proto.core.effects import Channel, Persist, Send
from dca_proto.core.errors import UsageError
from dca_proto.core.events import Command, Received
from dca_proto.core.facts import ChargeReturned, NodeAborted, Released, RoundFailed, SharingStarted
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.messages import (
    Abort,
    Announcement,
    EpochKey,
    Frozen,
    FrozenList,
    Join,
    Query,
    Ready,
    Sealed,
    Share,
    Start,
)
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.policy import DAY_MS, Allowance
from dca_proto.core.round import session_hash
from dca_proto.core.trainer import TrainerActor
from dca_proto.net.live import LiveTrainer
from dca_proto.net.memory import MemoryBroker, MemoryTransport
from dca_proto.net.store import MemoryStore
from dca_proto.testing import Cast, Network, NoNoise, seeded

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
            random=seeded(f"lab/{next(self._incarnations)}"),
            mechanism=self.mechanism,
            account=self.account,
            records=records,
        )


def lab(account: Allowance | None = TWO_ROUNDS) -> tuple[Lab, Network]:
    cast = Lab(4, 3, mechanism=NoNoise())
    cast.account = account
    return cast, cast.network()


def trainer_of(cast: Cast, network: Network) -> TrainerActor:
    actor = network.actors[cast.trainer_identity.id]
    assert isinstance(actor, TrainerActor)
    return actor


def refusal(cast: Cast, network: Network, **changes: object) -> str:
    """What the caller reads; nothing leaves, and nothing is stored."""
    stored, count = dict(network.stores[cast.trainer_identity.id]), len(network.sent)
    with pytest.raises(UsageError) as caught:
        network.command(cast.trainer_identity.id, cast.request(**changes))
    assert (len(network.sent), network.stores[cast.trainer_identity.id]) == (count, stored)
    return str(caught.value)


def test_two_rounds_are_held_and_the_third_is_refused_in_figures_before_anything_leaves() -> None:
    cast, network = lab()
    for _ in range(2):
        begin(cast, network)
    assert len(results(network)) == 2
    assert [charge.number for charge in trainer_of(cast, network).ledger.charges] == [1, 2]
    total = accounting.epsilon_of(accounting.compose([MU] * 3), 1e-6)
    left = TWO_ROUNDS.left(trainer_of(cast, network).ledger, network.now_ms)
    assert 0 < left < 1
    said = refusal(cast, network)
    assert said == (
        f"the federation's account: found a total of epsilon {total:.4g} with this round, rounds under way included; "
        f"expected <= 1.6 at delta 1e-06 in 365 days; at most {left:.4g} is left; "
        "ask for less, wait, or raise epsilon of [account]"
    )
    begin(cast, network, epsilon=left)
    assert len(results(network)) == 3, "what is left is let through"


def test_without_a_limit_everything_is_recorded_all_the_same() -> None:
    cast, network = lab(None)
    for _ in range(3):
        begin(cast, network)
    ledger = trainer_of(cast, network).ledger
    assert ledger.spent() == pytest.approx(MU * 3**0.5)
    assert {(charge.statistic, charge.trainer) for charge in ledger.charges} == {("sum", cast.trainer_identity.id)}


def test_a_charge_counts_for_its_period() -> None:
    cast, network = lab(msgspec.structs.replace(TWO_ROUNDS, period_days=0.1))
    for _ in range(2):
        begin(cast, network)
    refusal(cast, network)
    network.advance(network.now_ms + DAY_MS // 10 + 1)
    begin(cast, network)
    assert len(results(network)) == 3


# Charged before the starts leave


def ready_scene() -> tuple[Cast, Network, tuple[bytes, bytes]]:
    """A round of which two nodes are ready, and the third one's message."""
    cast, network = lab()
    last = cast.computes[2]
    network.tamper = losing(Ready, sender=last)
    begin(cast, network)
    network.tamper = lambda one: ()
    return cast, network, (last, sent(network, Ready, sender=last)[0].payload)


def test_the_charge_is_written_before_the_first_start() -> None:
    cast, network, message = ready_scene()
    effects = trainer_of(cast, network).handle(Received(*message), network.now_ms)
    kinds = [effect.table if isinstance(effect, Persist) else type(effect) for effect in effects]
    assert kinds.index(LEDGER) < kinds.index(Send)
    assert kinds.count(LEDGER) == 1


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_around_the_start_charges_once(committed: bool) -> None:
    """The charge and the phase that sends starts are one transaction: both are there after the crash, or neither."""
    cast, network, message = ready_scene()
    trainer = cast.trainer_identity.id
    effects = network.actors[trainer].handle(Received(*message), network.now_ms)
    for effect in [one for one in effects if isinstance(one, Persist) and committed]:
        network._carry_out(trainer, effect)
    network.restart(trainer)
    assert bool(sent(network, Start)) == committed, "no start leaves uncharged"
    assert len(trainer_of(cast, network).ledger.charges) == committed
    network.tamper = lambda one: [one]
    for one in sent(network, Start):
        network.handle(one.to.id, Received(one.sender, one.payload))
    until_the_end(network)
    assert len(results(network)) == 1
    assert [charge.number for charge in trainer_of(cast, network).ledger.charges] == [1]


def test_an_account_lowered_since_the_announcement_stops_the_round_before_its_starts() -> None:
    cast, network, message = ready_scene()
    cast.account = Allowance(epsilon=0.5, delta=1e-6)
    network.restart(cast.trainer_identity.id)
    for node in cast.computes:
        payload = message[1] if node == message[0] else sent(network, Ready, sender=node)[0].payload
        network.handle(cast.trainer_identity.id, Received(node, payload))
    (failure,) = failures(network)
    assert failure.reason.startswith("the account allows <= 0.5 at delta 1e-06 in 365 days; at most 0.5 is left; found")
    assert sent(network, Start) == []
    assert trainer_of(cast, network).ledger.charges == ()


# Reserved for


@pytest.mark.parametrize("lost", [EpochKey, Join, Ready])
@pytest.mark.parametrize("restarted", [False, True])
def test_rounds_that_have_not_started_are_reserved_for(lost: type, restarted: bool) -> None:
    """Waiting for keys, joining or starting; the announced ones also after a restart."""
    cast = Lab(4, 3, mechanism=NoNoise())
    network = Network()
    network.tamper = losing(Sealed if lost is Join else lost)
    if lost is EpochKey:
        network.add(Channel.TRAINER, cast.trainer)
    else:
        cast.network(network)
    for _ in range(2):
        begin(cast, network)
    if restarted and lost is not EpochKey:  # a request that waits for keys has promised nothing to anyone
        network.restart(cast.trainer_identity.id)
    assert trainer_of(cast, network).ledger.charges == ()
    assert "rounds under way included" in refusal(cast, network)
    begin(cast, network, epsilon=0.05)  # something is left
    network.tamper = lambda one: ()  # all of them end without a start: what was reserved is free again
    until_the_end(network)
    assert len(failures(network)) == 3
    assert trainer_of(cast, network).ledger.charges == ()
    trainer_of(cast, network).check_request(cast.request(epsilon=1.5), network.now_ms)


def test_requests_on_their_way_are_reserved_for_once() -> None:
    cast, network = lab()
    begin(cast, network)
    trainer, coming = trainer_of(cast, network), cast.request()
    trainer.check_request(cast.request(), network.now_ms)
    with pytest.raises(UsageError, match="the federation's account"):
        trainer.check_request(cast.request(), network.now_ms, [coming])
    network.tamper = losing(Announcement)
    network.command(trainer.id, coming)  # known now, as a round that joins, and no longer on its way
    with pytest.raises(UsageError, match="the federation's account"):
        trainer.check_request(cast.request(), network.now_ms, [coming])
    trainer.check_request(cast.request(epsilon=0.05), network.now_ms, [coming])


def test_a_request_that_is_charged_is_not_reserved_for_as_well() -> None:
    cast, network = lab()
    network.tamper = losing(Share)
    _, running = begin(cast, network)
    trainer_of(cast, network).check_request(cast.request(), network.now_ms, [running])


def test_a_live_trainer_refuses_the_caller_and_goes_on_with_its_rounds() -> None:
    """Three asked for at once, before the actor has seen any: the third is its caller's mistake alone."""
    cast = Lab(4, 3)

    async def play() -> list[object]:
        transport = MemoryTransport(MemoryBroker(), cast.trainer_identity.id.hex(), ())
        async with LiveTrainer(cast.trainer(), transport, MemoryStore(), federation="test") as live:
            held = [asyncio.create_task(live.hold(cast.request())) for _ in range(3)]
            await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
            done = [one.exception() if one.done() else None for one in held]
            for one in held:
                one.cancel()
            await asyncio.wait(held)
            return done

    first, second, third = asyncio.run(play())
    assert (first, second) == (None, None)
    assert isinstance(third, UsageError)


# A job of several rounds


def test_a_job_that_would_not_fit_is_refused_before_its_first_round() -> None:
    cast, network = lab()
    trainer = trainer_of(cast, network)
    trainer.check_job([MU, MU], network.now_ms)
    with pytest.raises(UsageError, match=r"found a total of epsilon .* expected <= 1.6 at delta 1e-06"):
        trainer.check_job([MU, MU, MU], network.now_ms)
    begin(cast, network)
    with pytest.raises(UsageError, match="the federation's account"):
        trainer.check_job([MU, MU], network.now_ms)


def test_a_job_stops_in_its_middle_when_another_has_used_up_the_account() -> None:
    cast, network = lab()
    trainer_of(cast, network).check_job([MU, MU], network.now_ms)
    begin(cast, network)  # the job's first round
    begin(cast, network)  # another job
    assert "expected <= 1.6" in refusal(cast, network)
    assert len(results(network)) == len(trainer_of(cast, network).ledger.charges) == 2


# Returned against M aborts


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


@pytest.mark.parametrize("restarts", [False, True])
def test_the_aborts_of_all_nodes_bring_the_charge_back_once(restarts: bool) -> None:
    cast, network, round_id = running()
    trainer = cast.trainer_identity.id

    def tell(node: int) -> None:
        network.handle(trainer, Received(*abort_of(cast, network, node)))
        if restarts:
            network.restart(trainer)

    for node in (0, 0, 1, 1, 0):
        tell(node)
        assert trainer_of(cast, network).phase(round_id) == "failed"
        assert trainer_of(cast, network).ledger.spent() == MU
    for node in (2, 2, 0):
        tell(node)
        assert trainer_of(cast, network).phase(round_id) == "returned"
        assert trainer_of(cast, network).ledger.spent() == 0
    assert network.reported(ChargeReturned, trainer) == [ChargeReturned(round_id)]
    assert len(network.reported(RoundFailed)) == 1
    assert trainer_of(cast, network).ledger.next_number == 2, "its number is not used again"


def test_what_came_back_can_be_spent_again() -> None:
    cast, network, _ = running()
    for node in range(3):
        network.handle(cast.trainer_identity.id, Received(*abort_of(cast, network, node)))
    network.tamper = lambda one: [one]
    for _ in range(2):
        begin(cast, network)
    assert len(results(network)) == 2
    refusal(cast, network)


def test_forged_aborts_bring_nothing_back() -> None:
    cast, network, _ = running()
    trainer = cast.trainer_identity.id
    network.handle(trainer, Received(*abort_of(cast, network, 0)))
    node, genuine = abort_of(cast, network, 1)
    refused(network, trainer, cast.computes[2], genuine, "signature")
    refused(network, trainer, cast.clients[0], genuine, "unknown-compute")
    refused(network, trainer, node, forged(cast, cast.client_identities[0], body_of(genuine)), "signature")
    refused(network, trainer, *abort_of(cast, network, 1, session_hash=bytes(32)), "session")
    assert trainer_of(cast, network).ledger.spent() == MU


def test_the_charge_stays_when_some_have_released() -> None:
    """One node never hears of the others' lists and aborts, the others release: nobody knows who has what."""
    cast, network = lab()
    odd = cast.computes[2]
    network.tamper = losing(Frozen, FrozenList, Query, Abort, to=odd)
    begin(cast, network)
    network.tamper = lambda one: [one] if one.to.channel in (Channel.TRAINER, Channel.ABORT) else []
    until_the_end(network)
    assert [one.sender for one in sent(network, Abort)] == [odd]
    assert len(failures(network)) == 1
    assert trainer_of(cast, network).ledger.spent() == MU
    until_the_end(network, 24 * 8)
    assert trainer_of(cast, network).ledger.spent() == MU, "for good"


def test_a_result_keeps_the_charge_whatever_is_signed_afterwards() -> None:
    cast, network = lab()
    _, request = begin(cast, network)
    for node in range(3):
        network.handle(cast.trainer_identity.id, Received(*abort_of(cast, network, node)))
    assert trainer_of(cast, network).phase(request.round_id) == "done"
    assert not trainer_of(cast, network).dropped
    assert trainer_of(cast, network).ledger.spent() == MU


@pytest.mark.parametrize("restarted", [False, True])
def test_aborts_that_were_lost_are_asked_for_again(restarted: bool) -> None:
    """The round fails with the first abort; the other nodes' were lost, and come when they are asked for."""
    cast, network = lab()
    first = cast.computes[0]

    def tamper(one):
        lost = one.to.channel is Channel.ABORT and one.sender != first
        return [] if lost or isinstance(body_of(one.payload), Share) else [one]

    network.tamper = tamper
    _, request = begin(cast, network)
    network.advance(network.now_ms + 60_001)
    assert len(failures(network)) == 1
    if restarted:
        network.restart(cast.trainer_identity.id)
    until_the_end(network)
    assert {query.to.id for query in sent(network, Query)} == set(cast.computes[1:])
    assert trainer_of(cast, network).phase(request.round_id) == "returned"
    assert trainer_of(cast, network).ledger.spent() == 0


def test_a_node_that_has_released_is_not_asked_for_its_abort_for_ever() -> None:
    cast, network = lab()
    odd, trainer = cast.computes[2], cast.trainer_identity.id
    network.tamper = losing(Frozen, FrozenList, Abort, to=odd)
    asked: list[bytes] = []

    def lose_partials_at_first(one):
        if isinstance(body_of(one.payload), Query):
            asked.append(one.to.id)
        lost = isinstance(body_of(one.payload), Sealed) and one.sender in cast.computes and one.to.id == trainer
        odd_is_cut_off = one.to.id == odd and isinstance(body_of(one.payload), Frozen | FrozenList)
        return [] if odd_is_cut_off or (lost and not failures(network)) else [one]

    network.tamper = lose_partials_at_first
    begin(cast, network)
    until_the_end(network)
    after = [query for query in asked if query in cast.computes[:2]]
    assert 1 <= after.count(cast.computes[0]) <= 3
    assert not network.actors[trainer].dropped, "a partial sum that is too late is no mistake of the node's"
    assert trainer_of(cast, network).ledger.spent() == MU


def test_a_round_that_failed_before_its_starts_costs_nothing() -> None:
    cast, network = lab()
    network.tamper = losing(Ready)
    begin(cast, network)
    until_the_end(network)
    assert network.reported(SharingStarted) == []
    assert trainer_of(cast, network).ledger.charges == ()


def test_a_ledger_never_holds_more_than_the_account_allows_whatever_is_asked() -> None:
    cast, network = lab()
    for epsilon in (0.9, 0.9, 0.9, 0.7, 0.5, 0.3, 0.1):
        request = cast.request(epsilon=epsilon)
        try:
            network.actors[cast.trainer_identity.id].check_request(request, network.now_ms)
        except UsageError:
            with pytest.raises(UsageError):
                network.actors[cast.trainer_identity.id].handle(Command(request), network.now_ms)
            continue
        network.command(cast.trainer_identity.id, request)
        network.deliver()
    ledger = trainer_of(cast, network).ledger
    assert 2 <= len(ledger.charges) < 7
    assert ledger.spent() <= TWO_ROUNDS.mu
    assert len(results(network)) == len(ledger.charges)


# Power failures


class TrainersPowerCuts(PowerCuts):
    """The trainer is what is killed; no start leaves it that is not paid for."""

    def _post(self, sender: bytes, send: Send) -> None:
        if isinstance(body_of(send.payload), Start):
            assert send.round_id in self.charges(sender), "a start left without a durable charge"
        super()._post(sender, send)


def under_power_cuts(seed: int) -> tuple[Lab, TrainersPowerCuts, int]:
    """Four rounds asked for, of which two fit; at the end all are up and every round has ended. Counts refusals."""
    generator = random.Random(seed)
    cast = Lab(4, 2, mechanism=NoNoise())
    network = TrainersPowerCuts(generator)
    cast.network(network)
    trainer = cast.trainer_identity.id
    network.clients = {trainer}
    asked = refusals = 0
    for _ in range(60):
        if asked < 4 and trainer not in network.down and generator.random() < 0.3:
            asked += 1
            terms = {"tolerated": generator.choice([0, 0, 1]), "clients_expected": generator.choice([0, 4])}
            try:
                network.command(trainer, cast.request(**terms))
            except UsageError:
                refusals += 1
        network.deliver_some(generator.randint(1, 30))
        network.restart_some(0.3)
        if generator.random() < 0.2:
            deliver, network.deliver = network.deliver, lambda: None  # timers fire, messages wait
            network.advance(network.now_ms + generator.choice([2, 5, 70]) * 1000)
            network.deliver = deliver
    network.clients = set()
    network.restart_some(1.0)
    until_the_end(network)
    return cast, network, refusals


def test_three_hundred_power_failures_never_spend_more_than_the_account_records() -> None:
    kills = refusals = returns = held = 0
    for seed in itertools.count():
        cast, network, refused_here = under_power_cuts(seed)
        trainer = cast.trainer_identity.id
        charges = network.charges(trainer)
        aborts = collections.defaultdict(set)
        for who, fact in network.facts:
            if isinstance(fact, NodeAborted):
                aborts[fact.round_id].add(who)
        returned = {round_id for round_id, charge in charges.items() if charge.returned}
        assert sorted(charge.number for charge in charges.values()) == list(range(1, len(charges) + 1))
        assert all(len(aborts[round_id]) == 2 for round_id in returned), "only against all M aborts"
        assert not returned & {fact.round_id for fact in network.reported(Released)}
        assert trainer_of(cast, network).ledger.spent() <= TWO_ROUNDS.mu
        for client in cast.clients:
            assert network.charges(client).keys() <= charges.keys(), "no client pays for what the account does not hold"
        kills += sum(network.kills[where] for where in ("before", "after", "between"))
        refusals, returns, held = refusals + refused_here, returns + len(returned), held + len(results(network))
        if kills >= 300:
            break
    assert min(refusals, returns, held) >= 10, (refusals, returns, held)
