"""The price of distribution: how much more noise a sum holds than a trusted aggregator's (DCA paper, Figure 1(b)).

    N/(N - T - 1)      Theorem 1: N - T - 1 clients' noise must be enough, and all N add theirs

Here by three ways: that formula; the plan which all participants of a round make, with the grid's price in it, of which
rounding up must never leave less noise; and the variance of noise that was really drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dca_proto.aggregate import SecureSumRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.learning.forecast import forecast
from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from emulator.ideal import IdealSwarm
from inference.problem import stream

TOLERATED = (0, 5, 10)
CLIENTS_MAX, FACTOR_MAX = 100, 5.0  # the axes of Figure 1(b)
EPSILON, DELTA = 1.0, 1e-4
MEASURED_AT = (12, 20, 40, 65, 90)
DRAWS = 4000  # coordinates of one round: the variance is then known to 2.2 %
COMPUTES = tuple(bytes([index]) * ID_BYTES for index in range(2))


@dataclass(frozen=True)
class Factor:
    """For N clients of whom T may collude or drop: the formula's factor and the plan's; variance over σ_std²."""

    clients: int
    tolerated: int
    formula: float
    planned: float

    @property
    def excess(self) -> float:
        """What the plan adds to the formula, relative; never below 0."""
        return self.planned / self.formula - 1


def factors(tolerated: int) -> Iterator[Factor]:
    """For every number of clients up to `CLIENTS_MAX` that can hold a round."""
    for clients in range(tolerated + 2, CLIENTS_MAX + 1):
        request = _terms(clients, tolerated).open(_request(1), bytes(ID_BYTES))
        found = forecast(request).scale_factor
        yield Factor(clients, tolerated, clients / (clients - tolerated - 1), found)


def measured(clients: int, tolerated: int, seed: int) -> float:
    """The same from one round of the ideal functionality, of `DRAWS` columns of zeros: variance over σ_std²."""
    rng = stream(seed, f"scaling-factor/{clients}/{tolerated}")
    terms, request = _terms(clients, tolerated), _request(DRAWS)
    names = request.parameters["columns"]
    swarm = IdealSwarm(np.zeros((clients, DRAWS)), names, terms, random=rng.bytes)
    aggregate = swarm.hold(request)
    sigma_std = forecast(terms.open(request, bytes(ID_BYTES))).sigma_std
    return float(np.mean(aggregate.value**2) / sigma_std**2)


def _terms(clients: int, tolerated: int) -> JobTerms:
    return JobTerms(budget=Budget(EPSILON, DELTA), clients=clients, tolerated=tolerated, computes=COMPUTES)


def _request(columns: int) -> SecureSumRequest:
    zeros, ones = [0.0] * columns, [1.0] * columns
    names = [f"x{column}" for column in range(columns)]
    return SecureSumRequest("sum", {"columns": names, "centre": zeros, "scale": ones, "bound": ones})
