"""Scenarios made by hand, for moments of lost Compute nodes that random scenarios miss.

`scripts/plant_faults.py` runs them after its random ones. Every scenario holds by itself; a planted fault breaks it.
"""

from __future__ import annotations

from emulator.sim.broker import BrokerOptions
from emulator.trials.scenario import Adversary, Fault, Limits, Population, Rounds, Scenario

_LONG_MS = 600_000
_WIDE = Limits(epsilon_per_period_max=100.0)


def _scenario(
    computes: int, colluding: int, faults: tuple[Fault, ...] = (), *, tolerate: int = 1, seed: int = 1, **more: object
) -> Scenario:
    given: dict[str, object] = {
        "population": Population(clients=6, computes=computes, colluding=colluding),
        "rounds": Rounds(tolerate=tolerate, collect_s=120.0, commit_s=120.0),
        "limits": _WIDE,
    }
    return Scenario(seed=seed, heal_ms=_LONG_MS, faults=faults, **given | more)  # type: ignore[arg-type]


def _lost(node: int, for_ms: int = _LONG_MS, phase: str = "collecting") -> Fault:
    return Fault(kind="kill-after", actor=f"compute {node}", phase=phase, for_ms=for_ms)


DIRECTED: dict[str, Scenario] = {
    "a reboot where every round needs all nodes": _scenario(3, 2, (_lost(1, 70_000),)),
    "a trusted node is lost": _scenario(3, 1, (_lost(0),), limits=Limits(epsilon_per_period_max=100.0, trusted=1)),
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
        broker=BrokerOptions(persistent_sessions=False),
    ),
    "a node lies about whom it waits for": _scenario(
        4,
        1,
        (Fault(kind="kill-between", actor="compute 3", phase="released", for_ms=60_000),),
        adversaries=(Adversary(kind="lie-waiting", actor="compute 0"),),
    ),
    "a trainer cancels a round that has a result": _scenario(
        3, 1, adversaries=(Adversary(kind="cancel-late", actor="trainer"),)
    ),
}
"""Name -> scenario."""
