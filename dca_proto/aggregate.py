"""The result of a round, and what a learning job requests: shared by the protocol, the emulator and the inference.

A result carries every assumption that inference and auditors need.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dca_proto.protocol.wire.kinds import Kind, SecureSum
from dca_proto.quorum import NO_NODES, Quorum

PublicParameters = dict[str, Any]
"""The public parameters of a statistic, by name, as a round states them; `dca_proto.statistics.resolve` checks them."""


@dataclass(frozen=True, eq=False)
class LocalReports:
    """The reports of one round of LDP reports, sorted by client id. Each is private by itself.

    Attributes:
        values: the decoded reports. Additive mechanism: vectors in the statistic's units, shape ``(n, dimension)``.
            Randomised response: the reported categories, shape ``(n,)``, int64. Unary encoding: bits, shape
            ``(n, k)``, bool.
        mechanism: its name on the wire.
        epsilon, delta: privacy parameters of each report; delta is 0.0 if the mechanism is ε-private.
        noise_scale: of an additive mechanism, in units of `values`: σ of Gaussian noise, or b = Δ1/ε of Laplace noise
            (on the grid: P(x) ∝ e^(-|x|/b)). 0.0 for a categorical mechanism.
        probabilities: (p, q) of a categorical mechanism: p that a report names the client's own category (or sets its
            bit), q for each other category. None for an additive mechanism.
        categories: k of a categorical mechanism; 0 for an additive one.
        clients: ids of the clients, in the order of `values`; empty if unknown.
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
        """n, the number of reports."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class NoisyAggregate:
    """A differentially private sum over the clients that contributed.

    A secure sum has neither `nodes` nor `reports`. Node releases have `nodes`, LDP reports have `reports`.

    Attributes:
        value: the noisy sum in the statistic's own units, shape ``(dimension,)``.
        noise_variance: variance of the noise in each coordinate of ``value``, in squared units of ``value``: exact,
            but that of a verified sum has the most that rounding adds, 1/4 of a squared grid unit a contribution.
            A secure sum adds up ``contributors`` independent discrete Gaussians, node releases ``clients`` of them, and
            LDP reports the noises of ``contributors`` reports. For categories, it is the largest variance that an
            estimated count can have.
        statistic: name of the statistic.
        parameters: its public parameters (bounds, columns, ...).
        contributors: number of contributions in a secure sum, ``|A|``; of rows in node releases; of LDP reports.
        clients: N, the number of clients that a secure sum expected, at least ``contributors``. Without Compute nodes,
            the number that released: J data nodes or n clients.
        n_min: the fewest contributions that a secure sum may hold; 0 for the other kinds.
        colluders: c, the number of clients of a secure sum that may collude; 0 for the other kinds.
        mechanism: name of the noise mechanism on the wire.
        sensitivity: L2 sensitivity of the sum in units of ``value``; of a verified sum, after rounding to its grid.
        relation: the neighbouring relation for which `sensitivity` holds.
        sigma_local: standard deviation of the noise of one client, release or report, in units of ``value``.
        epsilon, delta, mu: what the round costs each participant; mu is the Gaussian DP parameter. If delta is 0
            (ε-private reports), mu is the smallest that epsilon implies. All three are None if `private` is False: the
            round was charged, but guarantees nothing.
        round_id: 16 bytes.
        announcement_hash: identifies the announcement, 32 bytes.
        contributors_hash: identifies the contributions in the sum, 32 bytes.
        private: False if the noise was not drawn by an exact mechanism: then no epsilon may be claimed. (Bounds that
            were read from the data are not detected here; whoever chose them must keep track of it.)
        nodes: the releases of the data nodes, sorted by client id. Each is an aggregate with `clients` 1, its rows as
            `contributors`, and no `nodes`. Their values, variances and rows add up to this aggregate's.
        client: the id of the data node that made a release, 16 bytes; empty for all others.
        reports: the LDP reports behind this sum, which for categories holds the estimated counts.
        rows_max: how many rows of a client count: 0 for their mean, R >= 1 for the sum of at most R.
        fraction_bits: f; the clients' contributions are multiples of 2^-f.
        doubts: warnings that the sum is hardly possible, or that releases were left out (`dca_proto.plausibility`).
        verified: True if each contribution was proven to be within the statistic's range, and the noise was made by
            public coins. One lying Compute node passes or fails any contribution, unseen.
        unproven: ids of the clients whose proofs failed, which the sum leaves out.
        quorum: the Compute nodes of a secure sum that a trainer ran, and those that it lost.
        proven: which limit each contribution of a verified sum was proven to keep (`statistics.statement`).
        liar_factor: how much farther a lying client can move a verified sum than an honest one can, in L2 norm, at
            most; 0 for other rounds.
        slack: what a verified sum costs each participant beside mu (`dca_proto.privacy.verified`); 0 for other rounds.
    """

    value: NDArray[np.float64]
    noise_variance: float
    statistic: str
    parameters: PublicParameters
    contributors: int
    clients: int
    n_min: int
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
    client: bytes = b""
    reports: LocalReports | None = None
    rows_max: int = 0
    fraction_bits: int = 24
    doubts: tuple[str, ...] = ()
    quorum: Quorum = NO_NODES
    slack: float = 0.0
    verified: bool = False
    proven: str = ""
    liar_factor: float = 0.0
    unproven: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if not self.private:
            for claim in ("epsilon", "delta", "mu"):
                object.__setattr__(self, claim, None)

    @property
    def dimension(self) -> int:
        return int(self.value.size)


@dataclass(frozen=True)
class RoundRequest:
    """One round that a learning job requests from a trainer.

    Attributes:
        statistic: name of a registered statistic.
        parameters: its public parameters.
        budget_share: this round's part of the job's squared Gaussian DP parameter, in (0, 1]: mu_round² = share * mu².
            If the reports are ε-private, its part of ε.
        rows_max: 0 for the mean of a client's rows (weight 1), R >= 1 for the sum of at most R rows.
        batch: 0 invites all clients; B >= 1 invites a random mini-batch of B, least often invited clients first.
        kind: of the round; reports name their mechanism. The job's terms fill in the numbers of clients. The aggregate
            of `NodeRelease` has the data nodes' releases in `nodes`, that of `LdpReport` has `reports`.
    """

    statistic: str
    parameters: PublicParameters
    budget_share: float = 1.0
    rows_max: int = 0
    batch: int = 0
    kind: Kind = field(default_factory=SecureSum)


R = TypeVar("R")
Job = Generator[RoundRequest, NoisyAggregate, R]
"""A learning job: it yields requests, receives their aggregates, and returns its result."""
