"""Joint-distribution tests of every sampler that has a joint distribution, over sizes and noise: `joint` says how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.table import Table

from papers.experiment import Experiment, Result
from papers.mcmc2023.joint import FALSE_ALARM, STILL, successive, verdict
from papers.mcmc2023.samplers.methods import ready
from papers.mcmc2023.subjects import SAMPLERS, Regime
from papers.runner import Check, table

REGIMES = (
    Regime(1, (12,), 1.0),
    Regime(2, (30, 50), 1.0),
    Regime(2, (40,), 0.1),
    Regime(3, (20, 60, 200), 3.0),
    Regime(5, (100, 150), 1.0),
)


class Cell(NamedTuple):
    """A sampler, and a regime by its place."""

    sampler: str
    regime: int

    def __str__(self) -> str:
        return f"{self.sampler}, {REGIMES[self.regime]}"


@dataclass(frozen=True, kw_only=True)
class SamplerChecks(Experiment[Cell, list[Result]]):
    """Joint-distribution tests of every sampler of distributed regression that has a joint distribution.

    Some 2 minutes on two cores. Thousands of short chains start at draws of the joint distribution, and must end at it
    (`papers.mcmc2023.joint`). Exit code 4 where one does not, or does not move.
    """

    KIND: ClassVar = "sampler-checks"
    LABEL: ClassVar = "joint-distribution tests"
    QUICK: ClassVar = {"regimes": (1,), "chains": 4000, "steps": 20}
    QUICK_CHECKS: ClassVar = True
    DEPENDS: ClassVar = ("seed", "chains", "steps")

    regimes: tuple[int, ...] = tuple(range(len(REGIMES)))
    chains: int = 10_000
    steps: int = 30

    def prepare(self) -> None:
        ready()

    def cells(self) -> list[Cell]:
        return [Cell(sampler, regime) for sampler in SAMPLERS for regime in self.regimes]

    def work(self, cell: Cell) -> Result:
        """The verdict as plain data."""
        subject = SAMPLERS[cell.sampler](REGIMES[cell.regime])
        found = verdict(subject, successive(subject), chains=self.chains, steps=self.steps, seed=self.seed)
        p = {f"{name} ({test})": p for (name, test), p in found.p.items()}
        told = {"alarm": found.alarm, "worst": min(p, key=lambda test: p[test]), "p": p}
        return told | {"memory": found.memory, "unmoved": found.unmoved, "acceptance": found.acceptance}

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> list[Result]:
        return [one | {"cell": cell} for cell, one in zip(cells, results, strict=True)]

    def tables(self, found: Sequence[Result]) -> Iterator[Table]:
        heads = ("alarm", "the smallest p-value's test", "tests", "memory at most", "acceptance")
        shown = table("joint-distribution tests", "sampler", "d, nodes and noise", *heads)
        for one in found:
            accepted = ", ".join(f"{block} {share:.2f}" for block, share in one["acceptance"].items())
            memory, regime = f"{max(one['memory'].values()):.2f}", str(REGIMES[one["cell"].regime])
            row = (f"{one['alarm']:.2g}", one["worst"], str(len(one["p"])), memory, accepted)
            shown.add_row(one["cell"].sampler, regime, *row)
        yield shown

    def checks(self, found: Sequence[Result]) -> Iterator[Check]:
        """Two for each sampler."""
        least = FALSE_ALARM / len(found)
        for sampler in dict.fromkeys(one["cell"].sampler for one in found):
            own = [one for one in found if one["cell"].sampler == sampler]
            alarm, unmoved = min(one["alarm"] for one in own), max(max(one["unmoved"].values()) for one in own)
            asked = f"no alarm below {least:.1e} in {len(own)} regimes"
            yield Check(f"{sampler} leaves the joint distribution as it is", asked, f"{alarm:.2g}", alarm > least)
            asked = f"at most {STILL:.0%} of the chains end where they started"
            yield Check(f"{sampler} moves", asked, f"{unmoved:.1%}", unmoved <= STILL)
