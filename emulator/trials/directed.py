"""Scenarios made by hand, for moments of lost Compute nodes and for norms, which random scenarios miss.

`scripts/plant_faults.py` runs them after its random ones. Every scenario holds by itself; a planted fault breaks it.
"""

from __future__ import annotations

from emulator.sim.broker import BrokerLimits
from emulator.trials.scenario import ActorLimits, Adversary, Fault, Population, Rounds, Scenario

_LONG_MS = 600_000
_WIDE = ActorLimits(epsilon_per_period_max=100.0)
_BALL = Population(clients=6, computes=3, statistic="mean", dimension=3, radius=1.0)


def _scenario(
    computes: int, colluding: int, faults: tuple[Fault, ...] = (), *, tolerate: int = 1, seed: int = 1, **more: object
) -> Scenario:
    given: dict[str, object] = {
        "population": Population(clients=6, computes=computes, colluding=colluding),
        "rounds": Rounds(tolerate=tolerate, collect_s=120.0, commit_s=120.0),
        "limits": _WIDE,
    }
    return Scenario(seed=seed, heal_ms=_LONG_MS, faults=faults, **given | more)  # type: ignore[arg-type]


def _lost(node: int, for_ms: int = _LONG_MS, phase: str = "collecting", at_ms: int = 0) -> Fault:
    return Fault(kind="kill-after", actor=f"compute {node}", phase=phase, at_ms=at_ms, for_ms=for_ms)


def _down(actor: str, at_ms: int = 0, for_ms: int = _LONG_MS) -> Fault:
    return Fault(kind="crash", actor=actor, at_ms=at_ms, for_ms=for_ms)


def _roll_called(count: int = 1, every_ms: int = 0, **more: float) -> Rounds:
    """Rounds before which the trainer calls the roll."""
    given: dict[str, float] = {"tolerate": 1, "collect_s": 120.0, "commit_s": 120.0}
    return Rounds(count=count, every_ms=every_ms, roll_call=True, **given | more)  # type: ignore[arg-type]


DIRECTED: dict[str, Scenario] = {
    "a reboot where every round needs all nodes": _scenario(3, 2, (_lost(1, 70_000),)),
    "a trainer states how long it waits where every round needs all nodes": _scenario(
        3, 2, (_lost(1, 200_000),), rounds=Rounds(tolerate=1, collect_s=120.0, commit_s=120.0, wait_s=30.0)
    ),
    "a node that owes its abort is back before its trainer": _scenario(
        3,
        1,
        (_lost(2, 100_000), _down("trainer", 60_000, 150_000)),
        rounds=_roll_called(2, 209_001),
    ),
    "a trusted node is lost": _scenario(3, 1, (_lost(0),), limits=ActorLimits(epsilon_per_period_max=100.0, trusted=1)),
    "the federation loses a node while a charge waits for aborts": _scenario(
        3, 2, (_lost(2), Fault(kind="revoke", actor="compute 2", at_ms=20_000))
    ),
    "a node is revoked between its abort and another one": _scenario(
        3, 1, (_lost(1, 100_000), _lost(2, 200_000), Fault(kind="revoke", actor="compute 0", at_ms=80_000))
    ),
    "a client hears of the aborts from the repeat": _scenario(
        3,
        1,
        (_lost(2), Fault(kind="partition-down", actor="client 0", at_ms=3_000, for_ms=15_000)),
        tolerate=0,
        broker=BrokerLimits(persistent_sessions=False),
    ),
    "a node lies about whom it waits for": _scenario(
        4,
        1,
        (Fault(kind="kill-between", actor="compute 3", phase="released", for_ms=60_000),),
        adversaries=(Adversary(kind="lie-waiting", actor="compute 0"),),
    ),
    "rows in a ball on the finest grid, without noise": _scenario(
        3, 2, population=_BALL, rounds=Rounds(count=1, verified=True, noise=False, rows_max=1)
    ),
    "clients prove that rows outside a ball are in it": _scenario(
        3,
        2,
        population=_BALL,
        rounds=Rounds(count=6, every_ms=5_000, tolerate=2, verified=True, rows_max=1),
        adversaries=(Adversary(kind="false-proof", actor="client 1"),),
    ),
    "a trainer cancels a round that has a result": _scenario(
        3, 1, adversaries=(Adversary(kind="cancel-late", actor="trainer"),)
    ),
    "a trainer chooses too few nodes": _scenario(
        3,
        2,
        rounds=Rounds(count=8, every_ms=10_000, tolerate=1, collect_s=20.0, commit_s=20.0),
        adversaries=(Adversary(kind="choose-nodes", actor="trainer"),),
    ),
    "the file states a smaller p while a node is lost": _scenario(
        3, 2, (_lost(2, 200_000), Fault(kind="new-p", actor="trainer", at_ms=2_000))
    ),
    "the file states a larger p while a node is lost": _scenario(
        3, 1, (_lost(2, 400_000), Fault(kind="new-p", actor="trainer", at_ms=2_000))
    ),
    "a round of fewer nodes comes after the file states a smaller p": _scenario(
        3,
        2,
        (
            _down("compute 2", 200_000),
            Fault(kind="new-p", actor="trainer", at_ms=100_000),
            _down("client 0", 300_000, 10_000),
        ),
        rounds=_roll_called(2, 400_000),
    ),
    "one node is dead when the request comes": _scenario(3, 1, (_down("compute 2"),), rounds=_roll_called()),
    "too many nodes are dead when the request comes": _scenario(
        4, 2, (_down("compute 1"), _down("compute 3")), rounds=_roll_called()
    ),
    "a request states how long it waits for a dead node": _scenario(
        3, 2, (_down("compute 2"),), rounds=_roll_called(wait_s=70.0)
    ),
    "a node is rebooted between two rounds": _scenario(
        3, 2, (_down("compute 1", 300_000, 190_000),), rounds=_roll_called(2, 400_000)
    ),
    "a request follows a round that ended for a node's silence": _scenario(
        3, 2, (_lost(2),), rounds=_roll_called(2, 100_000, collect_s=50.0, commit_s=30.0)
    ),
    "old messages of a dead node come again": _scenario(
        3,
        1,
        (
            _down("client 0", for_ms=300_000),
            _down("compute 2", 200_000),
            Fault(kind="replay", actor="compute 2", at_ms=400_500, amount=60.0),
        ),
        rounds=_roll_called(2, 400_000, tolerate=0),
    ),
    "a node is lost in each round that it is in": _scenario(
        3,
        1,
        tuple(_lost(2, 20_000, at_ms=at_ms) for at_ms in (0, 60_000, 150_000, 400_000)),
        rounds=_roll_called(9, 60_000),
    ),
    "a flapping node takes the place of a dead one": _scenario(
        3,
        1,
        (_lost(2, 20_000), _lost(2, 20_000, at_ms=100_000), _down("compute 0", 170_000)),
        rounds=_roll_called(3, 150_000),
    ),
}
"""Name -> scenario."""
