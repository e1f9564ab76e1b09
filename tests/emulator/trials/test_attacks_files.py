"""Attack 51: newer federation files, revocation, files that differ or were never signed; another federation beside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from trial_helpers import check_trial, dropped, facts_of, results, run, small, with_limits

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.answer import Consent
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Effect
from dca_proto.protocol.facts import Declined, RoundCompleted, RoundFailed
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.kinds import LDP_REPORT, NODE_RELEASE
from dca_proto.protocol.wire.messages import EpochKey
from emulator.trials.fault import PHASES
from emulator.trials.faults import FAULTS
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import Fault, Scenario

ACTORS = {"client": "client 0", "compute": "compute 1", "trainer": "trainer"}


def revoking(role: str, phase: str = "", at_ms: int = 0, **rounds: Any) -> Scenario:
    fault = Fault(kind="revoke", actor=ACTORS[role], phase=phase, at_ms=at_ms)
    return small(fault, computes=3, clients=5, **{"count": 2, "every_ms": 6_000, **rounds})


def numbers(outcome: Outcome) -> set[int]:
    return {one.number for one in outcome.invariants if not one.ok}


@pytest.mark.parametrize(("role", "phase"), [(role, phase) for role in PHASES for phase in PHASES[role]])
def test_attack_51_a_member_is_revoked_at_every_phase(role: str, phase: str) -> None:
    """All checkers hold: whoever has the file keeps the member out, and everybody has it in the end."""
    scenario = revoking(role, phase)
    if phase in ("aborted", "returned", "failed"):
        away = [Fault(kind="vanish-before-sending", actor=f"client {index}") for index in (2, 3)]
        scenario = msgspec.structs.replace(scenario, faults=(*scenario.faults, *away))
    if phase == "missed":
        cut = Fault(kind="partition-up", actor="client 0", at_ms=900, for_ms=4_000)
        scenario = msgspec.structs.replace(scenario, faults=(*scenario.faults, cut))
    if phase == "declined":
        scenario = with_limits(scenario, epsilon_per_period_max=1.2)
    world, outcome = check_trial(scenario)
    assert world.faults[0].reached, results(outcome)
    assert world.faults[0].phase == phase
    numbers = [one.actor.federation.number for one in world.simulator.machines if one.actor is not None]
    assert sum(number > 1 for number in numbers) >= 7


@pytest.mark.parametrize("kind", ["secure-sum", NODE_RELEASE, LDP_REPORT])
@pytest.mark.parametrize("role", PHASES)
def test_a_revoked_member_is_out_of_the_next_round(role: str, kind: str) -> None:
    terms = {LDP_REPORT: {"mechanism": "analytic-gaussian"}, NODE_RELEASE: {"rows_max": 1}}.get(kind, {})
    world, outcome = check_trial(revoking(role, at_ms=3_000, kind=kind, **terms))
    assert results(outcome)[0] == "completed"
    assert len(world.rounds[0].contributors) == 5
    if role == "client":
        assert len(world.rounds[1].contributors) == 4
    elif role == "trainer":
        assert not world.rounds[1].contributors
        assert outcome.ended.further == "not due: the trainer is revoked"
    else:
        assert outcome.ended.further == "completed", "with the two Compute nodes that are left"


@pytest.mark.parametrize("number", range(6))
def test_what_the_owner_should_not_have_signed_is_refused(number: int) -> None:
    faults = (
        Fault(kind="revoke", actor="client 1"),
        Fault(kind="wrong-files", actor="broker", at_ms=500 * number, amount=6),
        Fault(kind="two-files", actor="compute 0", at_ms=3_000),
    )
    world, _ = check_trial(small(*faults, seed=number))
    assert dropped(world, "federation") + dropped(world, "malformed") + dropped(world, "signature") > 0


@pytest.mark.parametrize("kind", ["secure-sum", NODE_RELEASE])
def test_messages_of_a_federation_of_this_name_and_its_members_change_nothing(kind: str) -> None:
    """Its round has the same id; the rounds complete with everybody, as without it."""
    terms = {"kind": kind, "rows_max": int(kind == NODE_RELEASE), "count": 2, "every_ms": 2_000}
    alone, _ = check_trial(small(**terms))
    world, outcome = check_trial(small(Fault(kind="neighbour", actor="broker", at_ms=1_010), **terms))
    assert world.faults[0].reached
    assert results(outcome) == ["completed", "completed"]
    assert [log.contributors for log in world.rounds[:2]] == [log.contributors for log in alone.rounds[:2]]


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["secure-sum", NODE_RELEASE])
def test_a_policy_that_forbids_the_round_is_declined_in_each_limit(kind: str) -> None:
    reasons: set[str] = set()
    for seed in range(6):
        terms = {"kind": kind, "rows_max": int(kind == NODE_RELEASE)}
        world, _ = check_trial(small(Fault(kind="policy", actor="clients"), clients=8, seed=seed, **terms))
        reasons |= {fact.reason for fact in facts_of(world, Declined)}
    common = {"trainer", "statistic", "epsilon", "budget", "bounds", "delta"}
    of_sums = {"clients", "honest", "colluders", "computes", "trusted-computes"}
    assert reasons == common | (of_sums if kind == "secure-sum" else {"rows-of-many", "sums-only"})


@pytest.mark.parametrize(
    ("colluding", "trusted", "refusal", "nodes"),
    [(1, 0, "", 2), (1, 2, "", 2), (1, 3, "trusted-computes", 2), (2, 0, "", 3), (0, 2, "", 3)],
)
def test_a_round_has_more_than_p_nodes_and_is_declined_without_a_trusted_one(
    colluding: int, trusted: int, refusal: str, nodes: int
) -> None:
    """The request names two of three nodes. If they are too few, the round has all. No stated p is all but one."""
    scenario = small(computes=3)
    population = msgspec.structs.replace(scenario.population, colluding=colluding)
    rounds = msgspec.structs.replace(scenario.rounds, computes=2)
    left_out = msgspec.structs.replace(scenario, population=population, rounds=rounds)
    world, outcome = check_trial(with_limits(left_out, trusted=trusted))
    assert results(outcome) == ["aborted" if refusal else "completed"]
    assert {fact.reason for fact in facts_of(world, Declined)} == ({refusal} if refusal else set())
    failed, completed = facts_of(world, RoundFailed), facts_of(world, RoundCompleted)
    quorum = failed[0].quorum if refusal else completed[0].aggregate.quorum
    assert len(quorum.nodes) == nodes
    assert outcome.ended.further == "completed", "it has all Compute nodes"


# --- the checkers notice ----------------------------------------------------------------------------------------------


class KeepsRounds(ComputeNode):
    """It goes on with rounds of members that are gone."""

    def _on_changed_file(self, now_ms: int) -> list[Effect]:
        return list(self._sessions.adopt(self._federation))


class KeepsSessions(ComputeNode):
    """It keeps the sessions of revoked clients."""

    def _on_changed_file(self, now_ms: int) -> list[Effect]:
        return []


class Wide(Client):
    """It asks a policy of its own making."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        wide = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=50, epsilon_per_period_max=100)
        own = self._consent
        self._consent = Consent(wide, own.mechanism, own.limits, own.certificate, own.columns)


class AheadOfTime(ComputeNode):
    """It publishes keys of far epochs."""

    def _epoch_key(self) -> EpochKey:
        key = super()._epoch_key()
        return msgspec.structs.replace(key, epoch=key.epoch + 3)


def broken(fault: Fault, role: str, plant: type, **rounds: Any) -> set[int]:
    found: set[int] = set()
    for seed in range(3):
        _, outcome = run(small(fault, computes=3, seed=seed, **rounds), faulty={role: lambda _: plant})
        found |= numbers(outcome)
    return found


def test_checkers_notice_what_they_are_there_for() -> None:
    gone = Fault(kind="revoke", actor="trainer", phase="committing")
    assert 16 in broken(gone, "compute", KeepsRounds)
    client = Fault(kind="revoke", actor="client 0", at_ms=1_030)
    assert 16 in broken(client, "compute", KeepsSessions)
    assert 17 in broken(Fault(kind="policy", actor="clients"), "client", Wide)
    assert 18 in broken(Fault(kind="crash", actor="client 0"), "compute", AheadOfTime)


def test_kinds_apart_are_those_of_owners_files_neighbours_and_leaps() -> None:
    apart = {name for name, kind in FAULTS.items() if kind.weight}
    assert {name for name, kind in FAULTS.items() if kind.at_all} < apart
