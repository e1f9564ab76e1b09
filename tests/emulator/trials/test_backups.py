"""Clients that are made anew from a backup: no budget is overspent, and faulty actors are found (invariant 4)."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from trial_helpers import check_trial, contributors, facts_of, run, small, with_limits

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.facts import LedgerRestored
from emulator.trials.scenario import Fault, Scenario


def lost(for_ms: int) -> list[Fault]:
    """Two clients lose their stores after so many milliseconds, and have backups of the start."""
    return [Fault(kind="from-backup", actor=f"client {number}", at_ms=0, for_ms=for_ms) for number in range(2)]


class BooksLittle(Client):
    """Goes on above the numbers that it has forgotten, and books next to nothing. (Equal numbers would be noticed.)"""

    def _forgotten(self, first: int, highest: int, now_ms: int) -> list[Any]:
        return [msgspec.structs.replace(one, mu=1e-3) for one in super()._forgotten(first, highest, now_ms)]


class AsksNobody(Client):
    """Takes part without having asked."""

    def _ask_nodes(self, now_ms: int) -> list[Any]:
        return []

    def _asks_nodes(self) -> None:
        return None


class KeepsSessions(ComputeNode):
    """Answers without forgetting the client's earlier session."""

    def _restore(self, records: Any) -> None:
        super()._restore(records)
        self._sessions.take_alone = self._sessions.take  # type: ignore[method-assign]


def forgets_a_round() -> Scenario:
    """Two rounds of three fit; the clients forget the first, and two are enough for a sum."""
    scenario = small(*lost(10_000), count=3, first_ms=1_000, every_ms=12_000, tolerate=2)
    return with_limits(scenario, epsilon_per_period_max=1.6)


def forgets_what_is_under_way() -> Scenario:
    """One round of two fits; the first waits for a client that has vanished, while the stores are lost."""
    vanished = Fault(kind="vanish-before-sending", actor="client 4")
    scenario = small(vanished, *lost(1_200), clients=5, count=2, first_ms=1_000, every_ms=12_000, tolerate=3)
    return with_limits(scenario, epsilon_per_period_max=1.2)


def faulty(plant: type, honest: type) -> type:
    return plant if honest in plant.__mro__ else honest


def test_a_client_that_has_forgotten_a_round_overspends_nothing() -> None:
    world, _ = check_trial(forgets_a_round())
    assert world.faults[0].reached
    assert [fact.forgotten for fact in facts_of(world, LedgerRestored)] == [1, 1]
    assert [contributors(world, index) for index in range(2)] == [4, 2]


def test_nor_one_whose_forgotten_contribution_is_under_way() -> None:
    world, _ = check_trial(forgets_what_is_under_way())
    assert [fact.forgotten for fact in facts_of(world, LedgerRestored)] == [0, 0]
    assert [contributors(world, index) for index in range(2)] == [2, 2]


@pytest.mark.parametrize(
    ("scenario", "role", "plant"),
    [
        (forgets_a_round, "client", BooksLittle),
        (forgets_a_round, "client", AsksNobody),
        (forgets_what_is_under_way, "compute", KeepsSessions),
    ],
)
def test_faulty_actors_break_the_budget(scenario: Any, role: str, plant: type) -> None:
    _, outcome = run(scenario(), faulty={role: functools.partial(faulty, plant)})
    assert 4 in outcome.broken, outcome.broken
