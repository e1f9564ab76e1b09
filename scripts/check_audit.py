#!/usr/bin/env python3
"""Runs `dca audit` on the correct program over many seeds, and on every planted fault.

For each seed, an audit at ε = 1, δ = 1e-6, N = 10, T = 3, 95 % confidence. The table has mean and standard deviation of
both lower bounds on ε and of the residual variance relative to the floor; the JSON has their range, too. For each
fault, the same at its own operating point, the number of audits that refuted it, and the slowest audit's seconds.
Audits run one at a time. Exit code 4 if a correct program was refuted, a fault was not, or an audit took over three
minutes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rich.table import Table

from emulator.coalition.faults import FAULTS
from papers.experiment import Experiment, Result, Sweep, option
from papers.runner import Check, positive, table

SECONDS_MAX = 180
POINT = ["--clients", "10", "--tolerate", "3", "--epsilon", "1", "--delta", "1e-6"]
CORRECT = "correct"
FIGURES = ("variance_ratio", "epsilon_lower_gdp", "epsilon_lower_cp")


class Cell(NamedTuple):
    """One audit of a program: `CORRECT`, or one of `FAULTS`."""

    program: str
    seed: int


def spread(values: list[float]) -> dict[str, float]:
    """Return mean, standard deviation and range."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "sd": deviation, "least": min(values), "most": max(values)}


@dataclass(frozen=True, kw_only=True)
class AuditCheck(Experiment[Cell, dict[str, Result]]):
    __doc__ = __doc__
    KIND, LABEL, QUICK_CHECKS, DEPENDS = "check-audit", "audits", True, ("rounds",)
    QUICK: ClassVar = {"seeds": 2, "plant_seeds": 1}

    seeds: int = option(20, "audits of the correct program", type=positive)
    plant_seeds: int = option(5, "audits of each planted fault", type=positive)
    rounds: int = option(400_000, "rounds of each world", type=positive)

    def cells(self) -> list[Cell]:
        planted = [Cell(fault, seed) for fault in FAULTS for seed in range(self.plant_seeds)]
        return [*(Cell(CORRECT, seed) for seed in range(self.seeds)), *planted]

    def work(self, cell: Cell) -> Result:
        """Return one audit's figures, by the Python interface."""
        command = [sys.executable, "-m", "dca_proto.cli", "audit", *POINT, "--rounds", str(self.rounds), "--json", "-"]
        planted = [] if cell.program == CORRECT else ["--plant", cell.program]
        done = subprocess.run(
            [*command, "--seed", str(cell.seed), *planted], capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 4):
            raise SystemExit(done.stderr)
        return {**json.loads(done.stdout), "program": cell.program, "exit_code": done.returncode}

    def results(self, sweep: Sweep) -> dict[str, Result]:
        cells = self.cells()
        return self.gather(cells, sweep(cells, self.work, processes=1))

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> dict[str, Result]:
        found = {}
        for program in dict.fromkeys(cell.program for cell in cells):
            audits = [one for one in results if one["program"] == program]
            ratios = [one["residual_variance"] / one["variance_floor"] for one in audits]
            found[program] = {
                "audits": len(audits),
                "refuted": sum(one["exit_code"] == 4 for one in audits),
                "epsilon_claimed": audits[0]["epsilon_claimed"],
                **{name: spread([one[name] for one in audits]) for name in FIGURES[1:]},
                "variance_ratio": spread(ratios),
                "seconds_most": max(one["seconds"] for one in audits),
            }
        return found

    def notes(self, found: dict[str, Result]) -> dict[str, Any]:
        return {"runs": self.rounds, "results": found}

    def tables(self, found: dict[str, Result]) -> Iterator[Table]:
        shown = table("audits", "program", "variance/floor", "epsilon, GDP", "epsilon, any", "refuted", "slowest, s")
        for program, one in found.items():
            parts = [f"{one[name]['mean']:.4g} ± {one[name]['sd']:.2g}" for name in FIGURES]
            shown.add_row(program, *parts, f"{one['refuted']} of {one['audits']}", f"{one['seconds_most']:.1f}")
        yield shown

    def checks(self, found: dict[str, Result]) -> Iterator[Check]:
        refuted = found[CORRECT]["refuted"]
        yield Check("the correct program", "never refuted", f"{refuted} times", refuted == 0)
        missed = [one for one in FAULTS if found[one]["refuted"] < found[one]["audits"]]
        yield Check("planted faults", "refuted in every audit", ", ".join(missed) or "all", not missed)
        slowest = max(one["seconds_most"] for one in found.values())
        yield Check("slowest audit", f"below {SECONDS_MAX} s", f"{slowest:.1f} s", slowest < SECONDS_MAX)


if __name__ == "__main__":
    sys.exit(AuditCheck.main())
