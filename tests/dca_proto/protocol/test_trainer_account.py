"""The trainer's account of its federation: charged before an announcement, never exceeded, returned once or never."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Sequence

import msgspec
import pytest
from failing_rounds import MU, TWO_ROUNDS, AccountedFederation, trainer_of, with_account
from round_helpers import PowerCuts, begin, body_of, failures, losing, results, sent, until_the_end

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.effects import Channel, Persist, Send
from dca_proto.protocol.events import Command, Received
from dca_proto.protocol.facts import Declined, NodeAborted, Released, RoundFailed
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.params import DAY_MS
from dca_proto.protocol.policy import BudgetError, Policy
from dca_proto.protocol.trainer.round import ROUNDS
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.protocol.wire.messages import Announcement, Contribution, EpochKey
from dca_proto.testing import Network, NoNoise, TestFederation


def refusal(actors: TestFederation, network: Network, **changes: object) -> str:
    """The caller's error. An actor that gets the request all the same sends and stores nothing."""
    trainer, request = actors.trainer_identity.id, actors.request(**changes)
    with pytest.raises(BudgetError) as caught:
        trainer_of(actors, network).check_request(request, network.now_ms)
    stored, count, reason = dict(network.stores[trainer]), len(network.sent), str(caught.value)
    network.command(trainer, request)
    assert (len(network.sent), network.stores[trainer]) == (count, stored)
    assert network.facts[-1] == (trainer, RoundFailed(request.round_id, reason, None, None))
    return reason


def test_two_rounds_take_place_and_the_third_is_refused_with_figures_before_anything_leaves() -> None:
    actors, network = with_account()
    for _ in range(2):
        begin(actors, network)
    assert len(results(network)) == 2
    assert [charge.number for charge in trainer_of(actors, network).ledger.charges] == [1, 2]
    total = accounting.epsilon_of(accounting.compose([MU] * 3), 1e-6)
    left = TWO_ROUNDS.left(trainer_of(actors, network).ledger, network.now_ms)
    assert 0 < left < 1
    reason = refusal(actors, network)
    assert reason == (
        f"the federation's account: found a total of epsilon {at_least(total)} with this round; "
        f"expected <= 1.6 at delta 1e-06 in 365 days; at most {at_most(left)} is left; "
        "ask for less, wait, or raise epsilon of [account]"
    )
    begin(actors, network, epsilon=left)
    assert len(results(network)) == 3, "what is left is let through"


def test_without_a_limit_everything_is_recorded_all_the_same() -> None:
    actors, network = with_account(None)
    for _ in range(3):
        begin(actors, network)
    ledger = trainer_of(actors, network).ledger
    assert ledger.spent().mu == pytest.approx(MU * 3**0.5)
    assert {(charge.statistic, charge.trainer) for charge in ledger.charges} == {("sum", actors.trainer_identity.id)}


def test_a_charge_counts_for_its_period() -> None:
    actors, network = with_account(msgspec.structs.replace(TWO_ROUNDS, period_days=0.1))
    for _ in range(2):
        begin(actors, network)
    refusal(actors, network)
    network.advance(network.now_ms + DAY_MS // 10 + 1)
    begin(actors, network)
    assert len(results(network)) == 3


# Charged before the announcement leaves


def waiting_scene() -> tuple[AccountedFederation, Network, tuple[bytes, bytes], bytes]:
    """A round that waits for one node's key, that node's message, and the round's id."""
    actors = AccountedFederation(4, 3, mechanism=NoNoise())
    network, last = Network(), actors.computes[2]
    network.tamper = losing(EpochKey, sender=last)
    actors.network(network)
    network._retained.pop((last, Channel.EPOCH))
    network.restart(actors.trainer_identity.id)
    _, request = begin(actors, network)
    network.tamper = lambda one: ()
    return actors, network, (last, sent(network, EpochKey, sender=last)[0].payload), request.round_id


def test_the_charge_is_written_before_the_first_announcement() -> None:
    actors, network, message, _ = waiting_scene()
    effects = trainer_of(actors, network).handle(Received(*message), network.now_ms)
    kinds = [effect.table if isinstance(effect, Persist) else type(effect) for effect in effects]
    assert kinds.index(LEDGER) < kinds.index(Send)
    assert kinds.index(ROUNDS) < kinds.index(Send)
    assert kinds.count(LEDGER) == 1


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_around_the_announcement_charges_once(committed: bool) -> None:
    """Charge and round are one transaction: both are there after the crash, or neither."""
    actors, network, message, _ = waiting_scene()
    trainer = actors.trainer_identity.id
    effects = network.actors[trainer].handle(Received(*message), network.now_ms)
    for effect in [one for one in effects if isinstance(one, Persist) and committed]:
        network._carry_out(trainer, effect)
    network.tamper = lambda one: [one]
    network.restart(trainer)
    assert bool(sent(network, Announcement)) == committed, "no announcement leaves uncharged"
    assert len(trainer_of(actors, network).ledger.charges) == committed
    until_the_end(network)
    assert len(results(network)) == committed
    assert [charge.number for charge in trainer_of(actors, network).ledger.charges] == [1] * committed


# Reserved for


def test_rounds_that_wait_for_keys_are_reserved_for() -> None:
    actors = AccountedFederation(4, 3, mechanism=NoNoise())
    network = Network()
    network.add(Channel.TRAINER, actors.trainer)
    for _ in range(2):
        begin(actors, network)
    assert trainer_of(actors, network).ledger.charges == ()
    reason = refusal(actors, network)
    assert "with this round, 2 rounds under way included; expected" in reason
    refused = len(failures(network))
    begin(actors, network, epsilon=0.05)  # something is left
    until_the_end(network)
    assert len(failures(network)) == refused + 3
    assert trainer_of(actors, network).ledger.charges == ()
    trainer_of(actors, network).check_request(actors.request(epsilon=1.5), network.now_ms)


def test_requests_on_their_way_are_reserved_for_once() -> None:
    actors, network = with_account()
    begin(actors, network)
    trainer, coming = trainer_of(actors, network), actors.request()
    trainer.check_request(actors.request(), network.now_ms)
    with pytest.raises(UsageError, match="the federation's account"):
        trainer.check_request(actors.request(), network.now_ms, [coming])
    network.tamper = losing(Announcement)
    network.command(trainer.id, coming)  # charged now, and no longer on its way
    with pytest.raises(UsageError, match="the federation's account"):
        trainer.check_request(actors.request(), network.now_ms, [coming])
    trainer.check_request(actors.request(epsilon=0.05), network.now_ms, [coming])


def test_a_request_that_is_charged_is_not_reserved_for_as_well() -> None:
    actors, network = with_account()
    network.tamper = losing(Contribution)
    _, running = begin(actors, network)
    trainer_of(actors, network).check_request(actors.request(), network.now_ms, [running])


def test_a_budget_that_refuses_a_request_accepted_before_ends_only_that_round() -> None:
    """The clock went back between the caller's check and the actor's: the charges count again."""
    actors, network = with_account(msgspec.structs.replace(TWO_ROUNDS, period_days=0.1))
    begin(actors, network)
    begin(actors, network)
    trainer, request = trainer_of(actors, network), actors.request()
    trainer.check_request(request, network.now_ms + DAY_MS // 10 + 1)
    (report,) = trainer.handle(Command(request), network.now_ms)
    assert report.fact.round_id == request.round_id
    assert report.fact.reason.startswith("the federation's account: found a total of epsilon")
    trainer.check_request(actors.request(epsilon=0.05), network.now_ms)  # nothing stays reserved for it


# A job of several rounds


def test_a_job_that_would_not_fit_is_refused_before_its_first_round() -> None:
    actors, network = with_account()
    trainer = trainer_of(actors, network)
    trainer.check_job([PrivacyCost.of_mu(MU)] * 2, network.now_ms)
    with pytest.raises(UsageError, match=r"found a total of epsilon .* expected <= 1.6 at delta 1e-06"):
        trainer.check_job([PrivacyCost.of_mu(MU)] * 3, network.now_ms)
    begin(actors, network)
    with pytest.raises(UsageError, match="the federation's account"):
        trainer.check_job([PrivacyCost.of_mu(MU)] * 2, network.now_ms)


def test_a_job_stops_in_its_middle_when_another_has_used_up_the_account() -> None:
    actors, network = with_account()
    trainer_of(actors, network).check_job([PrivacyCost.of_mu(MU)] * 2, network.now_ms)
    begin(actors, network)  # the job's first round
    begin(actors, network)  # another job
    assert "expected <= 1.6" in refusal(actors, network)
    assert len(results(network)) == len(trainer_of(actors, network).ledger.charges) == 2


# Reports


def hold_report_round(
    actors: TestFederation, network: Network, numbers: Sequence[int] = (), epsilon: float = 0.8, **changes: object
) -> str:
    """Hold a round of ε-private reports, of everybody or of a mini-batch; the refusal, or nothing."""
    invited = tuple(actors.clients[number] for number in numbers)
    terms = {"kind": LdpReport("grid-laplace"), "delta": 0.0}
    request = actors.request(**{**terms, "epsilon": epsilon, "invited": invited, "clients": 0, **changes})
    try:
        trainer_of(actors, network).check_request(request, network.now_ms)
    except BudgetError as error:
        return str(error)
    network.command(actors.trainer_identity.id, request)
    network.deliver()
    network.advance(network.now_ms + 200_000)
    return ""


def test_reports_of_everybody_add_up_to_the_account_and_no_further() -> None:
    actors, network = with_account()
    assert hold_report_round(actors, network) == hold_report_round(actors, network) == ""
    assert len(results(network)) == 2
    assert trainer_of(actors, network).ledger.spent() == PrivacyCost.of_pure(0.8) + PrivacyCost.of_pure(0.8)
    assert all(network.actors[one].ledger.spent().pure == 1.6 for one in actors.clients)
    assert hold_report_round(actors, network, epsilon=0.01) == (
        "the federation's account: found a total of epsilon 1.61 with this round; expected <= 1.6 at delta 1e-06 in "
        "365 days; at most 0 is left; ask for less, wait, or raise epsilon of [account]"
    )


def test_hardening_13_reports_and_sums_go_side_by_side_where_a_part_is_kept_for_reports() -> None:
    """Of 1.6, 0.8 for reports: one of 0.8 and a sum of 0.8, both at the clients and in the account; then no more."""
    limits = {"epsilon_per_period_max": 1.6, "delta_max": 1e-6, "epsilon_for_reports": 0.8}
    actors = AccountedFederation(4, 3, mechanism=NoNoise(), policy=Policy(clients_min=1, honest_min=1, **limits))
    actors.account = msgspec.structs.replace(TWO_ROUNDS, epsilon_for_reports=0.8)
    network = actors.network()
    assert hold_report_round(actors, network) == ""
    begin(actors, network, epsilon=0.8)
    assert len(results(network)) == 2
    assert hold_report_round(actors, network, epsilon=0.01) == (
        "the federation's account: found a total of epsilon 1.61 with this round, 0.81 of it for reports of delta 0; "
        "expected <= 1.6 at delta 1e-06 in 365 days, 0.8 of it kept for these; at most 0 is left; "
        "ask for less, wait, or raise epsilon of [account]"
    )
    assert "at most 0 is left" in refusal(actors, network, epsilon=0.01)
    actors.account = None
    network.restart(actors.trainer_identity.id)
    begin(actors, network, epsilon=0.01)
    assert {fact.reason for fact in network.reported(Declined)} == {"budget"}, (
        "each client's own ledger refuses it, too"
    )


def test_mini_batches_of_reports_cost_each_client_its_own_and_are_weighed_by_the_most_in_each_kind() -> None:
    """Of four clients two have sent reports, two were in a Gaussian round: a batch across both has the room of a client
    that was in both kinds; each pair by itself has what it has left."""
    actors, network = with_account()
    assert hold_report_round(actors, network, (0, 1)) == ""
    request = actors.request(invited=actors.clients[2:4], clients=0, tolerate=0)
    network.command(actors.trainer_identity.id, request)
    network.deliver()
    trainer, ledger = trainer_of(actors, network), trainer_of(actors, network).ledger
    assert ledger.spent(of=actors.clients[:2]) == PrivacyCost.of_pure(0.8)
    assert ledger.spent(of=actors.clients[2:4]) == PrivacyCost.of_mu(MU)
    assert ledger.spent() == ledger.spent(of=actors.clients[1:3]) == PrivacyCost.of_pure(0.8) + PrivacyCost.of_mu(MU)
    both = (ledger.spent() + PrivacyCost.of_pure(0.8)).epsilon(1e-6)
    assert hold_report_round(actors, network, (1, 2)) == (
        f"the federation's account: found a total of epsilon {at_least(both)} with this round; "
        "expected <= 1.6 at delta 1e-06 in 365 days; at most 0 is left; reports of delta 0 and Gaussian rounds cost "
        "more together than apart: keep them to different periods, or set epsilon_for_reports before the first; "
        "ask for less, wait, or raise epsilon of [account]"
    )
    assert hold_report_round(actors, network, (0, 1)) == "", "0.8 and 0.8"
    refusal = hold_report_round(actors, network, (2, 3), epsilon=0.23)
    assert "at most 0.2223 is left" in refusal, "beside a Gaussian round of 1"
    assert hold_report_round(actors, network, (2, 3), epsilon=0.22) == ""
    assert "cost more together" in hold_report_round(actors, network, (3,), epsilon=0.1)
    assert len(results(network)) == 4
    own = [network.actors[one].ledger.spent() for one in actors.clients]
    assert all(one.within(1.6, 1e-6) and one.pure <= ledger.spent().pure for one in own)
    assert trainer.ledger.spent().gaussian == max(one.gaussian for one in own)


# In all


def test_a_ledger_never_exceeds_the_federation_budget_whatever_is_requested() -> None:
    actors, network = with_account()
    for epsilon in (0.9, 0.9, 0.9, 0.7, 0.5, 0.3, 0.1):
        request = actors.request(epsilon=epsilon)
        try:
            network.actors[actors.trainer_identity.id].check_request(request, network.now_ms)
        except UsageError:
            (report,) = network.handle(actors.trainer_identity.id, Command(request))
            assert isinstance(report.fact, RoundFailed)
            continue
        network.command(actors.trainer_identity.id, request)
        network.advance(network.now_ms + 50)
    ledger = trainer_of(actors, network).ledger
    assert 2 <= len(ledger.charges) < 7
    assert ledger.spent().mu <= TWO_ROUNDS.mu
    assert len(results(network)) == len(ledger.charges)


# Power failures


class TrainersPowerCuts(PowerCuts):
    """The trainer is what is killed; no announcement leaves it that is not paid for."""

    def _post(self, sender: bytes, send: Send) -> None:
        if isinstance(body_of(send.payload), Announcement):
            assert send.round_id in self.charges(sender), "an announcement left without a durable charge"
        super()._post(sender, send)


def under_power_cuts(seed: int) -> tuple[AccountedFederation, TrainersPowerCuts]:
    """Four rounds requested, of which two fit; at the end all are up and every round has ended."""
    generator = random.Random(seed)
    actors = AccountedFederation(4, 2, mechanism=NoNoise())
    network = TrainersPowerCuts(generator)
    actors.network(network)
    trainer = actors.trainer_identity.id
    network.victims = {trainer}
    requested = 0
    for _ in range(60):
        if requested < 4 and trainer not in network.down and generator.random() < 0.3:
            requested += 1
            terms = {"tolerate": generator.choice([0, 0, 1]), "clients": 4}
            network.command(trainer, actors.request(**terms))
        network.deliver_some(generator.randint(1, 30))
        network.restart_some(0.3)
        if generator.random() < 0.2:
            deliver, network.deliver = network.deliver, lambda: None  # timers fire, messages wait
            network.advance(network.now_ms + generator.choice([2, 5, 70]) * 1000)
            network.deliver = deliver
    network.victims = set()
    network.restart_some(1.0)
    until_the_end(network)
    return actors, network


@pytest.mark.parametrize("kills_max", [100, pytest.param(300, marks=pytest.mark.long)])
def test_power_failures_never_spend_more_than_the_account_records(kills_max: int) -> None:
    kills = refusals = returns = completed = 0
    for seed in itertools.count():
        actors, network = under_power_cuts(seed)
        trainer = actors.trainer_identity.id
        charges = network.charges(trainer)
        aborts = collections.defaultdict(set)
        for who, fact in network.facts:
            if isinstance(fact, NodeAborted):
                aborts[fact.round_id].add(who)
        returned = {round_id for round_id, charge in charges.items() if charge.returned}
        assert sorted(charge.number for charge in charges.values()) == list(range(1, len(charges) + 1))
        assert all(len(aborts[round_id]) == 2 for round_id in returned), "only against all M aborts"
        assert not returned & {fact.round_id for fact in network.reported(Released)}
        assert trainer_of(actors, network).ledger.spent().mu <= TWO_ROUNDS.mu
        for client in actors.clients:
            assert network.charges(client).keys() <= charges.keys(), "no client pays for what the account does not hold"
        kills += sum(network.kills[where] for where in ("before", "after", "between"))
        refusals += sum(fact.reason.startswith("the federation's account: ") for fact in failures(network))
        returns, completed = returns + len(returned), completed + len(results(network))
        if kills >= kills_max:
            break
    assert min(refusals, returns, completed) >= kills_max / 30, (refusals, returns, completed)
