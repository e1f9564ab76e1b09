"""Attacks 12 and 23: full and trimmed memories of what was seen; floods, and owners of many ids."""

from __future__ import annotations

import msgspec
import pytest
from trial_helpers import check_trial, contributors, dropped, facts_of, results, run, small

from dca_proto.protocol.compute.round import ROUNDS
from dca_proto.protocol.facts import Declined, RoundFailed
from dca_proto.protocol.params import Limits, Room, Timing
from emulator.trials.scenario import Adversary, Fault
from emulator.trials.world import TrialWorld

SYBILS = tuple(Adversary(kind="sybil", actor=f"client {number}") for number in range(5, 8))


def test_attack_12_a_full_table_of_rounds_aborts_and_never_accepts_unchecked() -> None:
    """Nodes that can hold one open round abort a second one, and say why; its charges come back."""

    away = Fault(kind="vanish-before-sending", actor="client 0")

    def one_round_only(world: TrialWorld) -> None:
        for node in world.computes:
            node.actor._limits = Limits(node_open=Room("open rounds", 4))

    world, outcome = run(small(away, clients=5, count=2, every_ms=50, counted=False), one_round_only)
    broken = [one.number for one in outcome.invariants if not one.ok]
    assert broken == [11], "nothing else disturbs the round that found no room"
    assert results(outcome) == ["completed", "aborted"]
    assert "open rounds: 2 with this one; needs at most 1 for one trainer" in str(facts_of(world, RoundFailed))


@pytest.mark.long
@pytest.mark.parametrize("days", [0.01, 8])
def test_attack_12_what_was_trimmed_is_dropped_when_it_comes_again(days: float) -> None:
    """Everything of a round, replayed after nodes let it out of memory, and after they forgot its id: nothing opens.

    Deadlines refuse old rosters and announcements, and clients' ledgers are never trimmed.
    """
    world, _ = check_trial(small())
    simulator, passed = world.simulator, list(world.router.passed)
    simulator.run(simulator.now_ms + int(days * 24 * 3600 * 1000))
    known = [dict(node.disk.records) for node in world.computes]
    assert all(any(table == ROUNDS for table, _ in records) for records in known) == (days < 7)
    charges = [client.actor.ledger.charges for client in world.clients]
    for packet in passed:
        world.router.inject_message(packet)
    simulator.run(simulator.now_ms + 10_000)
    assert [dict(node.disk.records) for node in world.computes] == known
    assert [client.actor.ledger.charges for client in world.clients] == charges
    if days * 24 * 3600 * 1000 > Timing().retention_ms:
        assert min(dropped(world, code) for code in ("epoch", "unknown-round", "replay")) > 0


def test_attack_23_a_flood_of_unknown_clients_has_no_session() -> None:
    """Strangers with certificates of their own making say Hello, and flood everybody: the round goes its way."""
    strangers = tuple(Adversary(kind="stranger", actor=f"stranger {number}", amount=20) for number in range(5))
    world, outcome = check_trial(small(adversaries=strangers, counted=False))
    assert results(outcome) == ["completed"]
    assert contributors(world) == 4
    assert all(set(log.contributors) == set(world.actors.clients) for log in world.rounds)
    assert dropped(world, "signature") >= 5
    assert dropped(world, "unknown-round") + dropped(world, "malformed") > 50


def test_attack_23_a_client_that_floods_is_dropped_message_by_message() -> None:
    flood = (Adversary(kind="flood", actor="client 0", amount=40),)
    world, outcome = check_trial(small(adversaries=flood, counted=False, collect_s=20))
    assert results(outcome) == ["completed"]
    assert contributors(world) == 4, "its own contribution counts, like any other"
    assert dropped(world, "malformed") + dropped(world, "phase") + dropped(world, "unknown-round") > 100
    assert all(len(node.disk.records) < 50 for node in world.computes), "nothing of it is stored"


@pytest.mark.parametrize("tolerate", [3, 2])
def test_attack_23_many_ids_of_one_owner_crowd_out_or_do_not(tolerate: int) -> None:
    """Documented limit: whoever enrolled k ids can leave a round without k contributions. Up to T it completes, and
    each sum has N - T - 1 honest noises and more; beyond T it is aborted with figures and nothing is released."""
    world, outcome = check_trial(small(adversaries=SYBILS, clients=8, tolerate=tolerate))
    first = outcome.ended.rounds[0]
    if tolerate == 3:
        assert results(outcome) == ["completed"]
        assert contributors(world) == 5
        assert first.noise_variance >= first.noise_floor
    else:
        assert results(outcome) == ["aborted"]
        assert (first.contributors, first.needed) == (5, 6)
        assert "its charge came back" in first.reason


def test_attack_23_honest_clients_below_the_floor_among_sybils() -> None:
    """Clients and nodes count clients and not people (a documented limit); n_min is the guard."""
    world, outcome = check_trial(
        msgspec.structs.replace(
            small(adversaries=SYBILS, clients=8, tolerate=1),
            limits=msgspec.structs.replace(small().limits, clients_min=7, honest_min=6, floor_honest_min=6),
        )
    )
    assert results(outcome) == ["aborted"]
    assert not facts_of(world, Declined)
    assert facts_of(world, RoundFailed)
    assert outcome.ended.further.startswith("not due: 5 honest clients")
