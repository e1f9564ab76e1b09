#!/usr/bin/env python
"""The main job through the exact ideal functionality, over many seeds: the ratio of test RMSE with and without privacy.

Each seed draws its own split and dropouts; noise comes from the operating system, as always. Exit code 4 if the median
ratio is above 1.06 or fewer than 80 % are at most 1.10. 200 seeds take about 15 s on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.table import Table

from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from emulator.swarm.live import Dropouts
from inference.datasets import diabetes
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.job import regression_with_projection
from inference.models.scores import rmse
from inference.problem import Array, assign, hold_out
from inference.rounds import run
from papers.experiment import Experiment, Result, option
from papers.runner import Check, positive, table

MEDIAN_MAX, WITHIN, SHARE_MIN = 1.06, 1.10, 0.8
COMPUTES = tuple(bytes([index]) * 16 for index in range(3))


def ratio(seed: int, epsilon: float) -> float:
    """Return the ratio for one split."""
    problem = diabetes()
    train, test = hold_out(problem, seed)
    clients = len(train.y)
    tolerate = clients // 10
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=clients, tolerate=tolerate, computes=COMPUTES)
    ids = [index.to_bytes(16, "big") for index in range(clients)]
    dropouts = Dropouts(ids, tolerate // 2, seed)
    absent = [frozenset(ids.index(bytes.fromhex(one)) for one in dropouts.next_round()) for _ in range(2)]
    swarm = IdealSwarm(assign(train.rows, clients), train.schema.columns, terms, absent=absent)
    private = rmse(run(regression_with_projection(train.schema), swarm).predict(test.X)[0], test.y)
    return private / rmse(nonprivate_regression(train).predict(test.X)[0], test.y)


@dataclass(frozen=True, kw_only=True)
class MainJob(Experiment[int, Array]):
    __doc__ = __doc__
    KIND, LABEL, QUICK_CHECKS, DEPENDS = "check-main-job", "seeds", True, ("epsilon",)
    QUICK: ClassVar = {"seeds": 50}

    seeds: int = option(200, "number of seeds (default 200)", type=positive)
    epsilon: float = option(2.0, "ε of the whole job (default 2)", type=float)

    def cells(self) -> range:
        return range(self.seeds)

    def work(self, cell: int) -> Result:
        return {"ratio": ratio(cell, self.epsilon)}

    def gather(self, cells: Sequence[int], results: Sequence[Result]) -> Array:
        return np.array([one["ratio"] for one in results])

    def notes(self, found: Array) -> dict[str, Any]:
        ends = np.quantile(found, [0.05, 0.95]).tolist()
        share = float(np.mean(found <= WITHIN))
        return {"median": float(np.median(found)), "quantiles_5_95": ends, "share_within": share}

    def tables(self, found: Array) -> Iterator[Table]:
        median, (low, high), share = self.notes(found).values()
        shown = table("test RMSE over the one without privacy", "seeds", "median", "5 to 95 %", f"at most {WITHIN}")
        shown.add_row(str(len(found)), f"{median:.4f}", f"{low:.3f} to {high:.3f}", f"{share:.1%}")
        yield shown

    def checks(self, found: Array) -> Iterator[Check]:
        median, _, share = self.notes(found).values()
        yield Check("median", f"<= {MEDIAN_MAX}", f"{median:.4f}", median <= MEDIAN_MAX)
        yield Check(f"at most {WITHIN}", f"{SHARE_MIN:.0%} of the seeds", f"{share:.1%}", share >= SHARE_MIN)


if __name__ == "__main__":
    sys.exit(MainJob.main())
