"""Table 1 of the DCA paper: seconds of a round, mean of 5, with M = 10 Compute nodes on Spark, encryption excluded.

Source: Heikkilä, Lagerspetz, Kaski, Shimizu, Tarkoma, Honkela: Differentially private Bayesian learning on distributed
data. NeurIPS 2017, Table 1. What the paper timed is the sharing and summing of vectors; sessions, agreement and all
cryptography have no counterpart there.
"""

from __future__ import annotations

from emulator.scaling.cell import Cell

COMPUTES = 10
CLIENTS = (100, 1_000, 10_000, 100_000)
TABLE_1 = {
    10: (1.72, 1.89, 2.99, 8.58),
    100: (2.03, 2.86, 12.36, 65.64),
    1_000: (3.43, 10.56, 101.2, 610.55),
    10_000: (15.30, 84.95, 994.96, 1592.29),
}
"""Dimension to the seconds at each of `CLIENTS`."""


def paper_s(cell: Cell) -> float | None:
    """The paper's seconds for a cell's N, d and M; None where it has none."""
    if cell.computes != COMPUTES or cell.clients not in CLIENTS or not cell.is_plain:
        return None
    row = TABLE_1.get(cell.dimension)
    return row[CLIENTS.index(cell.clients)] if row else None
