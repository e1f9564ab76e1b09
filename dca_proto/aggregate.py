"""What the protocol, the emulator and the inference share: a learning job's question, and a round's result.

The result carries every assumption that inference and auditors need, so that nobody has to remember them elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class LocalReports:
    """What each client reported in a round of LDP reports, sorted by client id; each is private by itself.

    Attributes:
        values: vectors in the statistic's own units, shape ``(n, dimension)``, of an additive mechanism; of randomised
            response the category that each reported, shape ``(n,)``, int64; of unary encoding bits, shape ``(n, k)``,
            bool.
        mechanism: its name on the wire.
        epsilon, delta: of each report; delta is 0.0 where that is ε-private.
        noise_scale: of an additive mechanism, in units of `values`: σ of Gaussian noise, b = Δ1/ε of Laplace noise
            (whose law is on the grid, P(x) ∝ e^(-|x|/b)). 0.0 of a categorical one.
        probabilities: of a categorical mechanism, how probably a report names (or sets the bit of) the client's
            own category, p, and any other one, q. None of an additive one.
        categories: k, of a categorical mechanism; 0 of an additive one.
        clients: ids of those who sent them, in the same order; empty where nobody knows.
    """

    values: NDArray[Any]
    mechanism: str
    epsilon: float
    delta: float
    noise_scale: float
    probabilities: tuple[float, float] | None = None
    categories: int = 0
    clients: tuple[bytes, ...] = ()

    @property
    def contributors(self) -> int:
        """n, how many clients reported."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class NoisyAggregate:
    """A differentially private sum over the clients that contributed.

    Attributes:
        value: the noisy sum in the statistic's own units, shape ``(dimension,)``.
        noise_variance: exact variance of the noise that each coordinate of ``value`` carries (all contributors' shares,
            in squared units of ``value``). The noise is the sum of ``contributors`` independent discrete Gaussians; of
            data nodes' sum, of ``clients`` of them, one for each; of reports, of the noises of ``contributors`` of
            them, and of those that name categories it is the largest variance that their estimated counts can have.
        statistic: name of the statistic; ``parameters`` its public parameters (bounds, columns, ...).
        contributors: ``|S|``, how many clients the sum is over; of data nodes, how many rows of all of them; of reports
            n, how many there are.
        clients: N, how many were expected (at least as many as contributed); without Compute nodes how many released,
            J data nodes or n clients.
        fewest: n_min, how many contributions the sum holds at least. colluders: c, how many clients may collude. Both
            are 0 without Compute nodes.
        mechanism: name of the noise mechanism on the wire.
        sensitivity: L2 sensitivity of the sum in units of ``value``; ``relation`` its neighbouring relation.
        sigma_local: standard deviation of one client's noise share, or of its release's or report's whole noise (see
            ``noise_variance``), in units of ``value``.
        epsilon, delta: what the round spent of every participant's budget; mu: the same as a Gaussian DP parameter.
            At delta 0, as of a report, mu is the smallest that the epsilon implies. None, whatever is given,
            where `private` is False: the clients' ledgers were charged, but nothing is guaranteed for it, so there is
            no figure that anybody could print.
        round_id: 16 bytes. announcement_hash: identifies what was asked, 32 bytes. contributors_hash: identifies the
            contributions in the sum, 32 bytes.
        nodes: of data nodes, what each released, sorted by client id, of which this is the sum
            (values, variances and rows add up). Each is an aggregate of its own with `clients` 1, its rows as
            `contributors`, and no nodes. Empty for every other sum.
        reports: of LDP reports, what each client reported, of which this is the sum, or of categories the estimated
            counts. None of every other sum.
        private: False where the noise was not drawn by an exact mechanism; then no epsilon may be claimed. (That bounds
            were read from the data cannot be seen here: who chose them must remember it.)
    """

    value: NDArray[np.float64]
    noise_variance: float
    statistic: str
    parameters: dict[str, Any]
    contributors: int
    clients: int
    fewest: int
    colluders: int
    mechanism: str
    sensitivity: float
    relation: str
    sigma_local: float
    epsilon: float | None
    delta: float | None
    mu: float | None
    round_id: bytes
    announcement_hash: bytes
    contributors_hash: bytes
    private: bool = True
    nodes: tuple[NoisyAggregate, ...] = ()
    reports: LocalReports | None = None

    def __post_init__(self) -> None:
        if not self.private:
            for claim in ("epsilon", "delta", "mu"):
                object.__setattr__(self, claim, None)

    @property
    def dimension(self) -> int:
        return int(self.value.size)


@dataclass(frozen=True)
class RoundRequest:
    """What a learning job asks of a trainer: a statistic, its parameters and this round's share of the job's budget.

    Each kind of round has a subclass: `SecureSumRequest`, `NodeReleaseRequest` and `LdpReportRequest`.

    Attributes:
        statistic: name of a registered statistic.
        parameters: its public parameters.
        budget_share: this round's part of the job's squared Gaussian DP parameter, in (0, 1]: mu_round² = share * mu².
        rows_max: 0 for the mean of a client's rows (weight 1), R >= 1 for the sum of at most R rows.
        batch: 0 asks all clients; B >= 1 a random mini-batch of B of them, those first that were asked least often.
    """

    statistic: str
    parameters: dict[str, Any]
    budget_share: float = 1.0
    rows_max: int = 0
    batch: int = 0


@dataclass(frozen=True)
class SecureSumRequest(RoundRequest):
    """Asks for a sum over Compute nodes, to which each client adds a share of the noise."""


@dataclass(frozen=True)
class NodeReleaseRequest(RoundRequest):
    """Asks each client as a data node with rows of many people, at most `rows_max` >= 1 of which count.

    It adds the whole noise by itself, for one row's replacement, and no Compute node takes part. The aggregate is the
    sum of what was released, and has `nodes`.
    """


@dataclass(frozen=True)
class LdpReportRequest(RoundRequest):
    """Asks each client for a report that is private by itself, of all its data; no Compute node takes part.

    The aggregate has `reports`. The share of a budget is of ε where the mechanism is ε-private.

    Attributes:
        mechanism: a local mechanism's name (`dca_proto.privacy.local`).
    """

    mechanism: str = ""


class NoAggregate(Exception):  # noqa: N818 - not an error: how a round may end
    """The round that a job asked for gives no sum: it was aborted, or what it may cost is spent.

    It is thrown into the job where that waits for the aggregate; a job that can do with what it has may catch it.

    Args:
        reason: why, as a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


R = TypeVar("R")
Job = Generator[RoundRequest, NoisyAggregate, R]
"""A learning job: yields requests, is sent their aggregates, returns its result."""
