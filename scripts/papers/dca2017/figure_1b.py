"""The cost of distribution: the noise variance of a sum beside a trusted aggregator's (DCA paper, Figure 1(b)).

    N/(N - T - 1)      Theorem 1: the noise of N - T - 1 clients must suffice, and all N add theirs

The experiment compares three values: this formula; the plan that all participants of a round make, whose rounding to
the grid must never reduce the noise; and the variance of noise that was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.aggregate import RoundRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.jobs.forecast import forecast
from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.problem import stream
from papers.experiment import Experiment, Result
from papers.picture import COLOURS, MARKERS, drawing
from papers.runner import Check, table

TOLERATED = (0, 5, 10)
CLIENTS_MAX, FACTOR_MAX = 100, 5.0  # the axes of Figure 1(b)
EPSILON, DELTA = 1.0, 1e-4
MEASURED_AT = (12, 20, 40, 65, 90)
DRAWS = 4000  # coordinates of one round; the standard error of the variance is then 2.2 %
STANDARD_ERROR = (2 / DRAWS) ** 0.5
COMPUTES = tuple(bytes([index]) * ID_BYTES for index in range(2))


class Factor(NamedTuple):
    """The noise variance over σ_std², planned or drawn, for N clients of whom T may collude or drop out."""

    clients: int
    tolerate: int
    variance: float

    @property
    def excess(self) -> float:
        """The relative excess over the formula; a plan's is never below 0."""
        return self.variance / formula(self.clients, self.tolerate) - 1


def formula(clients: int, tolerate: int) -> float:
    return clients / (clients - tolerate - 1)


def factors(tolerate: int) -> Iterator[Factor]:
    """Yield the plan for every number of clients up to `CLIENTS_MAX` that suffices for a round."""
    for clients in range(tolerate + 2, CLIENTS_MAX + 1):
        request = _terms(clients, tolerate).open(_request(1), bytes(ID_BYTES))
        yield Factor(clients, tolerate, forecast(request).scale_factor)


def measured(clients: int, tolerate: int, seed: int) -> float:
    """Return the variance over σ_std² from one round of the ideal functionality on `DRAWS` columns of zeros."""
    terms, request = _terms(clients, tolerate), _request(DRAWS)
    random = stream(seed, f"scaling-factor/{clients}/{tolerate}").bytes
    swarm = IdealSwarm(np.zeros((clients, DRAWS)), request.parameters["columns"], terms, random=random)
    sigma_std = forecast(terms.open(request, bytes(ID_BYTES))).sigma_std
    return float(np.mean(swarm.run_round(request).value ** 2) / sigma_std**2)


def _terms(clients: int, tolerate: int) -> JobTerms:
    return JobTerms(epsilon=EPSILON, delta=DELTA, clients=clients, tolerate=tolerate, computes=COMPUTES)


def _request(columns: int) -> RoundRequest:
    ones, names = [1.0] * columns, [f"x{column}" for column in range(columns)]
    return RoundRequest("sum", {"columns": names, "centre": [0.0] * columns, "scale": ones, "bound": ones})


@dataclass(frozen=True, kw_only=True)
class ScalingFactor(Experiment[tuple[int, int], list[Factor]]):
    """Figure 1(b) of the DCA paper: the scaling factor of the noise over the number of clients, for T = 0, 5 and 10.

    Takes a few seconds. Curves show the paper's N/(N - T - 1), dots this library's plan, circles the drawn noise. Exit
    code 4 if a plan has less noise than the formula or over a thousandth more, or if drawn noise is off by more than
    five standard errors.
    """

    KIND, LABEL, QUICK_CHECKS = "figure-1b", "drawing noise", True

    def cells(self) -> list[tuple[int, int]]:
        return [(n, t) for t in TOLERATED for n in MEASURED_AT if n > t + 1]

    def work(self, cell: tuple[int, int]) -> Result:
        return {"clients": cell[0], "tolerate": cell[1], "measured": measured(*cell, self.seed)}

    def gather(self, cells: Sequence[tuple[int, int]], results: Sequence[Result]) -> list[Factor]:
        return [Factor(*cell, one["measured"]) for cell, one in zip(cells, results, strict=True)]

    def tables(self, found: Sequence[Factor]) -> Iterator[Table]:
        shown = table("scaling factor of the noise's variance", "clients", *(f"T = {t}" for t in TOLERATED))
        planned = {one[:2]: one.variance for t in TOLERATED for one in factors(t)}
        for n in MEASURED_AT:
            shown.add_row(str(n), *(f"{planned[n, t]:.4f}" if (n, t) in planned else "-" for t in TOLERATED))
        yield shown

    def checks(self, found: Sequence[Factor]) -> Iterator[Check]:
        excesses = [one.excess for t in TOLERATED for one in factors(t)]
        least, most = min(excesses), max(excesses)
        yield Check("no plan has less noise than Theorem 1", "excess >= 0", f"{least:.2g}", least >= 0)
        yield Check("no plan has much more", "excess <= 0.001", f"{most:.2g}", most <= 1e-3)
        off = max(abs(one.excess) / STANDARD_ERROR for one in found)
        yield Check("drawn noise", "within 5 standard errors", f"{off:.1f}", off <= 5)

    def draw(self, found: Sequence[Factor], path: Path) -> None:
        with drawing(path, size=(6.0, 4.5)) as panels:
            axes, hollow = panels[0, 0], {"markersize": 7, "markerfacecolor": "none"}
            for tolerate, colour, marker in zip(TOLERATED, COLOURS, MARKERS, strict=False):
                planned, drawn = list(factors(tolerate)), [one for one in found if one.tolerate == tolerate]
                clients, label = [one.clients for one in planned], f"T = {tolerate}"
                axes.plot(clients, [formula(n, tolerate) for n in clients], color=colour, label=label)
                axes.plot(clients[::4], [one.variance for one in planned][::4], ".", color=colour, markersize=4)
                heights = [one.variance for one in drawn]
                axes.plot([one.clients for one in drawn], heights, marker, color=colour, **hollow)
            axes.plot([], [], "k.", markersize=4, label="planned")
            axes.plot([], [], "ko", label="drawn", **hollow)
            axes.set(xlim=(0, CLIENTS_MAX), ylim=(1, FACTOR_MAX), xlabel="number of clients", ylabel="scaling factor")
            axes.set_title("Noise variance beside a trusted aggregator's: N/(N - T - 1)", fontsize=11)
            axes.legend(title="colluding clients", frameon=False)
