"""Joint-distribution tests of every sampler that has a joint distribution, over sizes and noise: `joint` says how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from emulator.experiments.runner import Check, table
from papers.mcmc2023.joint import FALSE_ALARM, STILL, successive, verdict
from papers.mcmc2023.subjects import SAMPLERS, Regime

REGIMES = (
    Regime(1, (12,), 1.0),
    Regime(2, (30, 50), 1.0),
    Regime(2, (40,), 0.1),
    Regime(3, (20, 60, 200), 3.0),
    Regime(5, (100, 150), 1.0),
)
FULL, QUICK = (10_000, 30), (4000, 20)
"""Chains, and steps of each."""
QUICK_REGIME = 1


@dataclass(frozen=True)
class Cell:
    """A sampler, and a regime by its place."""

    sampler: str
    regime: int

    def __str__(self) -> str:
        return f"{self.sampler}, {REGIMES[self.regime]}"


def cells_of(quick: bool) -> list[Cell]:
    """Every sampler in every regime, or in one."""
    regimes = (QUICK_REGIME,) if quick else range(len(REGIMES))
    return [Cell(sampler, regime) for sampler in SAMPLERS for regime in regimes]


def work(cell: Cell, chains: int, steps: int, seed: int) -> dict[str, Any]:
    """The verdict as plain data."""
    subject = SAMPLERS[cell.sampler](REGIMES[cell.regime])
    found = verdict(subject, successive(subject), chains=chains, steps=steps, seed=seed)
    name, test = found.worst
    return {
        "sampler": cell.sampler,
        "regime": str(REGIMES[cell.regime]),
        "alarm": found.alarm,
        "worst": f"{name} ({test})",
        "p": {f"{name} ({test})": p for (name, test), p in found.p.items()},
        "memory": found.memory,
        "unmoved": found.unmoved,
        "acceptance": found.acceptance,
    }


def verdicts(results: Sequence[dict[str, Any]]) -> Table:
    """A line for each cell."""
    shown = table(
        "joint-distribution tests",
        "sampler",
        "d, nodes and noise",
        "alarm",
        "the smallest p-value's test",
        "tests",
        "memory at most",
        "acceptance",
    )
    for one in results:
        accepted = ", ".join(f"{block} {share:.2f}" for block, share in one["acceptance"].items())
        memory = f"{max(one['memory'].values()):.2f}"
        shown.add_row(
            one["sampler"], one["regime"], f"{one['alarm']:.2g}", one["worst"], str(len(one["p"])), memory, accepted
        )
    return shown


def checks(results: Sequence[dict[str, Any]]) -> list[Check]:
    """One for each sampler."""
    found = []
    for sampler in dict.fromkeys(one["sampler"] for one in results):
        own = [one for one in results if one["sampler"] == sampler]
        alarm = min(one["alarm"] for one in own)
        least = FALSE_ALARM / len(results)
        asked = f"no alarm below {least:.1e} in {len(own)} regimes"
        found.append(Check(f"{sampler} leaves the joint distribution as it is", asked, f"{alarm:.2g}", alarm > least))
        unmoved = max(max(one["unmoved"].values()) for one in own)
        asked = f"at most {STILL:.0%} of the chains end where they started"
        found.append(Check(f"{sampler} moves", asked, f"{unmoved:.1%}", unmoved <= STILL))
    return found
