"""The ideal functionality: draws the exact noisy sum of a round directly.

It uses the same encoding, exact noise and thresholds as the protocol, without messages: what a trusted party would
release that adds up the clients' noisy contributions. Its result has the protocol's distribution, so it replaces the
protocol in experiments with many repeats. With another mechanism than the exact one it is only an emulation, and its
result is marked as not private.

**One draw for all shares.** The result depends on the n clients' shares N_Z(0, S) only through their sum, which is
drawn at once, as N_Z(0, nS). On a grid the two laws differ, but no experiment can tell them apart: at each point, the
sum of N_Z(0, kS) and one more share has the probability of N_Z(0, (k + 1)S) up to a factor within (1 ± η)/(1 ∓ η), with
η = 2 Σ_j exp(-2π²s²j²) and s² = S k/(k + 1) >= 32 (the τ' of PRIVACY.md). Each η is below 1e-273, so no
probability in d coordinates of n shares differs by more than a factor of 1 ± dn·1e-272, whatever is done with them. If
the keys of the shares are given, the shares are drawn one by one, and the result equals the protocol's bit for bit.

**Verified sums**: each client rounds as in the protocol. The noise is a sum of n·m uniform numbers of a bits: of each
bit, a count of random bits.

**Node releases**: each data node releases the sum of its rows plus its own draw of the whole noise N_Z(0, S).

**LDP reports**: each client reports by the round's local mechanism, whatever mechanism draws the noise of sums. One
call draws all reports from one key: they are independent, and each has the mechanism's law.

**A trusted aggregator** (``trusted``) sees all data and adds noise of variance σ_std² once: Theorem 1 without its
factor N/(N - T - 1). Rounds without Compute nodes have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.fixedpoint import to_ring
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Random, expand
from dca_proto.crypto.shares import random_bits
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import Batches, JobTerms
from dca_proto.privacy.local import LocalMechanism
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.noise import MAX_VARIANCE
from dca_proto.protocol.contribution import value_bits
from dca_proto.protocol.params import Limits
from dca_proto.protocol.release import (
    Hashes,
    aggregate_of,
    merge_reports,
    release_of,
    sum_releases,
    verified_aggregate,
)
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement
from dca_proto.statistics import Statistic
from dca_proto.statistics.categories import Categories, plain_name
from dca_proto.statistics.contribution import contributions, counted_rows, joint_contribution
from emulator.rows import OF_TEXTS, encoded, numbers, of_frame

Rows = NDArray[np.float64] | Sequence[NDArray[np.float64]] | Any
"""An array (N, columns) with one row per client, (N, m, columns) with m rows each, or a sequence of arrays
(m_i, columns). A data frame has one row per client; its columns are selected by name."""
TRUSTED = "trusted-aggregator:"
"""Prefix of a result's mechanism if a trusted aggregator added the noise."""


class IdealSwarm:
    """All clients of a job, without messages: an `inference.rounds.Rounds` for experiments.

    A round costs as much as its statistic over all rows at once: some 30 ms for a gradient of 100 columns with 30,000
    clients; LDP reports of 10 columns or categories by 48,000 clients take 0.04 to 0.3 s. The budget is not tracked
    over rounds; the job must respect it.

    Args:
        rows: each client's rows: an array of shape (N, number of columns) with one row each, or (N, m, number of
            columns) with m rows each, or a sequence of N arrays (m_i, number of columns).
        columns: their names.
        terms: of the job; ``terms.clients`` is N.
        absent: for each round in turn, the indices of the clients that drop out; none in later rounds.
        random: for round ids, mini-batches and noise keys.
        mechanism: of the noise of sums and of data nodes; these are private only with the exact one. LDP reports
            always are.
        trusted: a trusted aggregator adds noise once, in place of the clients' shares.
        categories: the categories of each column of texts, such as ``schema.labelled``; then rows of one for each
            client may have texts, and the columns have their codes and indicators, as on a device.

    Raises:
        UsageError: N differs from that of the terms, or rows and columns do not fit. `run_round` raises it for an
            absent client that is none of the N.
    """

    def __init__(
        self,
        rows: Rows,
        columns: Sequence[str],
        terms: JobTerms,
        *,
        absent: Iterable[frozenset[int]] = (),
        random: Random = os.urandom,
        mechanism: Mechanism = EXACT,
        trusted: bool = False,
        categories: Categories | None = None,
    ) -> None:
        self._clients = Clients.of(*encoded(rows, columns, categories)) if categories else Clients.of(rows, columns)
        if terms.clients != len(self._clients):
            found = len(self._clients)
            raise UsageError(
                f"there are rows of {found} clients, but terms.clients is {terms.clients}; make them equal"
            )
        self._terms = terms
        self._absent = iter(absent)
        self._random = random
        self._mechanism = mechanism
        self._trusted = trusted
        self._ids = [_id_of(index) for index in range(terms.clients)]
        self._batches = Batches()

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        """Run one round.

        For node releases, the result is the sum of the releases of the present data nodes, with each release in
        ``nodes``. For LDP reports, it is the sum of the present clients' reports, with each, in order, in ``reports``.

        Raises:
            RoundAborted: fewer than N - T + c clients remain (in a mini-batch, N is its size); without Compute nodes:
                none remain.
            UsageError: the request, or an index in `absent`, is not possible.
        """
        round_id, absent = self._random(ID_BYTES), next(self._absent, frozenset())
        _check_absent(absent, len(self._clients))
        noise = _Noise(self._random, self._mechanism, trusted=self._trusted)
        if not request.batch:
            return _release(self._terms.open(request, round_id), self._clients, absent, noise)
        invited = self._batches.pick(self._ids, request.batch, self._random)
        self._batches.note(invited)
        chosen = np.array([int.from_bytes(client, "big") for client in invited], dtype=np.intp)
        missing = frozenset(place for place, index in enumerate(chosen.tolist()) if index in absent)
        try:
            return _release(self._terms.open(request, round_id, invited), self._clients.some(chosen), missing, noise)
        except RoundAborted:
            self._batches.give_back(invited)
            raise


def noisy_sum(
    request: OpenRound,
    rows: Rows,
    columns: Sequence[str],
    absent: frozenset[int],
    random: Random = os.urandom,
    mechanism: Mechanism = EXACT,
    *,
    keys: Sequence[bytes] | None = None,
    trusted: bool = False,
) -> NoisyAggregate:
    """Run one round. For the other arguments see `IdealSwarm`.

    Args:
        absent: the indices of the clients that drop out.
        keys: noise keys of the present clients, in order. The sum then equals, bit for bit, that of a protocol whose
            clients drew their shares from these keys. None draws the sum of the shares at once. Without Compute nodes,
            the keys are for the data nodes' noise, or for the clients' reports.

    Raises:
        RoundAborted: fewer than N - T + c clients remain; without Compute nodes: none remain.
        UsageError: the request, rows, keys or an index in `absent` are not possible.
    """
    if trusted and keys is not None:
        raise UsageError("keys are for clients' shares, and a trusted aggregator uses none; leave them out")
    clients = Clients.of(rows, columns)
    _check_absent(absent, len(clients))
    return _release(request, clients, absent, _Noise(random, mechanism, keys=keys, trusted=trusted))


def _id_of(index: int) -> bytes:
    return index.to_bytes(ID_BYTES, "big")


def _check_absent(absent: frozenset[int], clients: int) -> None:
    if unknown := sorted(index for index in absent if not 0 <= index < clients):
        raise UsageError(f"absent client {unknown[0]} is unknown; the clients are 0 to {clients - 1}")


class Clients(msgspec.Struct, frozen=True):
    """All clients' tables. Tables with the same number of rows are stacked and evaluated at once.

    Attributes:
        columns: their names.
        groups: for each number of rows m, the sorted indices of the n clients with m rows, and their tables, of shape
            (n, m, columns).
    """

    columns: tuple[str, ...]
    groups: tuple[tuple[NDArray[np.intp], NDArray[np.float64]], ...]

    @classmethod
    def of(cls, rows: Rows, columns: Sequence[str]) -> Clients:
        """Stack the rows, given as in `IdealSwarm`. Raises `UsageError` if rows and columns do not fit."""
        names = tuple(columns)
        if len(set(names)) < len(names):
            raise UsageError(f"a column is named twice in {', '.join(names)[:200]}; name each once")
        if hasattr(rows, "to_numpy"):
            rows = of_frame(rows, names)
        if isinstance(rows, np.ndarray) and rows.dtype != object:
            stacked = numbers(rows)
            stacked = _checked(stacked[:, None] if rows.ndim == 2 else stacked, names)
            return cls(names, ((np.arange(len(stacked)), stacked),))
        try:
            tables = [np.asarray(table, dtype=np.float64) for table in rows]
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"rows are not arrays of numbers: {str(error)[:100]}; give one array of all clients; {OF_TEXTS}"
            ) from None
        sizes = np.array([len(np.atleast_1d(table)) for table in tables], dtype=np.intp)
        groups = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        return cls(names, tuple((same, _stack([tables[index] for index in same.tolist()], names)) for same in groups))

    def __len__(self) -> int:
        return sum(len(indices) for indices, _ in self.groups)

    def some(self, chosen: NDArray[np.intp]) -> Clients:
        """Return the clients with these sorted indices, renumbered from 0."""
        kept = [(np.isin(indices, chosen, assume_unique=True), indices, tables) for indices, tables in self.groups]
        groups = tuple((np.searchsorted(chosen, indices[mask]), tables[mask]) for mask, indices, tables in kept)
        return Clients(self.columns, groups)

    def without(self, absent: frozenset[int]) -> Clients:
        """Return the clients that are not absent, renumbered from 0."""
        return self.some(np.setdiff1d(np.arange(len(self)), list(absent))) if absent else self

    def contribution(self, statistic: Statistic, rows_max: int, fraction_bits: int) -> NDArray[np.int64]:
        """Return the sum of all contributions, without noise, in grid units, shape ``(dimension,)``."""
        total = np.zeros(statistic.dimension, dtype=np.int64)
        for _, tables in self.groups:
            total += joint_contribution(statistic, self._read(tables, statistic), rows_max, fraction_bits)
        return total

    def contributions(
        self, statistic: Statistic, rows_max: int, fraction_bits: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each contribution, in grid units, shape ``(N, dimension)``, and its number of rows, shape (N,)."""
        values = np.empty((len(self), statistic.dimension), dtype=np.int64)
        counts = np.empty(len(self), dtype=np.int64)
        for indices, tables in self.groups:
            counts[indices] = counted_rows(statistic, tables.shape[1], rows_max)
            values[indices] = contributions(statistic, self._read(tables, statistic), rows_max, fraction_bits)
        return values, counts

    def _read(self, tables: NDArray[np.float64], statistic: Statistic) -> NDArray[np.float64]:
        """Select the columns that a statistic reads, in its order. Codes are by the caller's lists, as they state."""
        names = [column if column in self.columns else plain_name(column) for column in statistic.columns]
        for column in names:
            if column not in self.columns:
                known = ", ".join(self.columns)[:200]
                raise UsageError(f"column {column[:64]!r} is not in the rows; expected some of {known}")
        places = [self.columns.index(column) for column in names]
        return tables if places == list(range(len(self.columns))) else tables[:, :, places]


def _stack(tables: Sequence[NDArray[np.float64]], columns: tuple[str, ...]) -> NDArray[np.float64]:
    if not len(tables[0]):
        return np.empty((len(tables), 0, len(columns)))
    return np.stack([_checked(np.asarray(table, dtype=np.float64)[None], columns)[0] for table in tables])


def _checked(tables: NDArray[np.float64], columns: tuple[str, ...]) -> NDArray[np.float64]:
    if tables.ndim != 3 or tables.shape[2] != len(columns):
        raise UsageError(
            f"a client's rows have shape {tables.shape[1:]}; expected (m, {len(columns)}): {', '.join(columns)[:200]}"
        )
    return tables


class _Noise(msgspec.Struct, frozen=True):
    """The source of a round's noise; see `noisy_sum`."""

    random: Random
    mechanism: Mechanism
    keys: Sequence[bytes] | None = None
    trusted: bool = False

    def of_shares(self, validated: ValidatedRound, present: int) -> NDArray[np.int64]:
        """Return the sum of the noise of all present clients, shape ``(dimension,)``."""
        variance, dimension = validated.noise_variance, validated.dimension
        if self.keys is None:
            return self._drawn(variance, present, dimension)
        return np.asarray(self._by_keys(variance, dimension, present).sum(axis=0))

    def of_nodes(self, validated: ValidatedRound, present: int) -> NDArray[np.int64]:
        """Return the noise of each present data node, shape ``(present, dimension)``."""
        variance, dimension = validated.noise_variance, validated.dimension
        if self.keys is None:
            drawn = self.mechanism.sample(variance, present * dimension, self.random(KEY_BYTES))
            return drawn.reshape(present, dimension)
        return self._by_keys(variance, dimension, present)

    def of_reports(self, mechanism: LocalMechanism, contributions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the report of each present client, one for each row of `contributions`."""
        values = mechanism.to_inputs(contributions)
        if self.keys is None:
            return mechanism.randomise(values, self.random(KEY_BYTES))
        pairs = zip(values, self._given(len(values)), strict=True)
        return np.concatenate([mechanism.randomise(value[np.newaxis], key) for value, key in pairs])

    def of_trusted(self, validated: ValidatedRound) -> tuple[NDArray[np.int64], int]:
        """Return the noise of a trusted aggregator, and its variance in squared grid units."""
        dimension = validated.dimension
        variance = self.mechanism.share_variance(validated.sensitivity.l2, validated.mu, 1, dimension)
        return self._drawn(variance, 1, dimension), variance

    def _given(self, present: int) -> Sequence[bytes]:
        keys = self.keys or ()
        if len(keys) != present:
            raise UsageError(f"{len(keys)} noise keys for {present} present clients; give one for each")
        return keys

    def _by_keys(self, variance: int, dimension: int, present: int) -> NDArray[np.int64]:
        return np.stack([self.mechanism.sample(variance, dimension, key) for key in self._given(present)])

    def _drawn(self, variance: int, shares: int, dimension: int) -> NDArray[np.int64]:
        """Return the sum of `shares` shares: one draw, or several if the variance exceeds the sampler's limit."""
        at_once = max(1, MAX_VARIANCE // max(variance, 1))
        parts = [min(at_once, shares - first) for first in range(0, shares, at_once)]
        draws = [self.mechanism.sample(part * variance, dimension, self.random(KEY_BYTES)) for part in parts]
        return np.asarray(np.sum(draws, axis=0, dtype=np.int64))


def _release(request: OpenRound, clients: Clients, absent: frozenset[int], noise: _Noise) -> NoisyAggregate:
    request = msgspec.structs.replace(request, kind=msgspec.structs.replace(request.kind, clients=len(clients)))
    announcement, validated = request.draft(noise.mechanism, Limits())
    present = clients.without(absent)
    expected = request.invited or tuple(map(_id_of, range(len(clients))))
    ids = tuple(client for place, client in enumerate(expected) if place not in absent)
    match announcement.kind:
        case SecureSum():
            return _secure_sum(announcement, validated, present, len(clients), noise)
        case _ if noise.trusted:
            raise UsageError(
                "a trusted aggregator has no part in a round whose data nodes or clients add their own noise; leave "
                "trusted out"
            )
        case NodeRelease():
            return _node_releases(announcement, validated, present, ids, noise)
        case LdpReport():
            return _reports(announcement, validated, present, ids, noise)


def _secure_sum(
    announcement: Announcement, validated: ValidatedRound, present: Clients, expected: int, noise: _Noise
) -> NoisyAggregate:
    """Return a secure sum over the present clients. Raises `RoundAborted` if they are too few."""
    n_min = validated.kind.n_min
    if len(present) < n_min:
        raise RoundAborted("too few contributions", contributors=len(present), needed=n_min)
    if validated.statement is not None:
        return _verified_sum(announcement, validated, validated.statement, present, expected, noise)
    total = present.contribution(validated.statistic, announcement.rows_max, announcement.fraction_bits)
    if noise.trusted:
        drawn, variance = noise.of_trusted(validated)
        known: dict[str, Any] = {
            "mechanism": TRUSTED + announcement.kind.mechanism,
            "noise_variance": variance * validated.unit**2,
            "sigma_local": 0.0,
        }
    else:
        drawn, known = noise.of_shares(validated, len(present)), {}
    total += drawn
    private = noise.mechanism.private
    aggregate = aggregate_of(
        announcement, validated, to_ring(total), len(present), Hashes(), clients=expected, private=private
    )
    return replace(aggregate, **known)


def _verified_sum(
    announcement: Announcement,
    validated: ValidatedRound,
    statement: Statement,
    present: Clients,
    expected: int,
    noise: _Noise,
) -> NoisyAggregate:
    if noise.trusted or noise.keys is not None:
        raise UsageError("public coins make the noise of a verified sum; leave trusted and keys out")
    f, count = announcement.fraction_bits, len(present)
    fine = value_bits(validated, f)
    values, _ = present.contributions(validated.statistic, announcement.rows_max, fine)
    dither = np.frombuffer(expand(noise.random(KEY_BYTES), 2 * count), dtype="<u2").astype(np.int64)
    rounded = statement.clipped(values + (dither[:, np.newaxis] & (1 << fine - f) - 1) >> fine - f)
    rounded[~statement.holds(rounded)] = 0
    total = (rounded - np.array(statement.lows)).sum(axis=0)
    drawn = count * statement.noises
    for at, bit in product(range(len(total)), range(statement.noise_bits * bool(drawn))):
        total[at] += int(random_bits(noise.random(KEY_BYTES), drawn).sum()) << bit
    elements = statement.field.of(total)
    private = noise.mechanism.private
    return verified_aggregate(announcement, validated, elements, count, Hashes(), clients=expected, private=private)


def _node_releases(
    announcement: Announcement, validated: ValidatedRound, present: Clients, ids: tuple[bytes, ...], noise: _Noise
) -> NoisyAggregate:
    values, counts = present.contributions(validated.statistic, announcement.rows_max, announcement.fraction_bits)
    if not counts.any():
        raise RoundAborted("no data node has released any row", contributors=0, needed=1)
    values += noise.of_nodes(validated, len(present))
    private = noise.mechanism.private
    nodes = [
        release_of(announcement, validated, to_ring(value), rows, Hashes(), client=client, private=private)
        for value, rows, client in zip(values, counts.tolist(), ids, strict=True)
        if rows  # a node without rows releases nothing
    ]
    return sum_releases(nodes, Hashes())


def _reports(
    announcement: Announcement, validated: ValidatedRound, present: Clients, ids: tuple[bytes, ...], noise: _Noise
) -> NoisyAggregate:
    """Return the merged reports of the present clients; a client without rows reports too."""
    mechanism = validated.local
    if not len(present):
        raise RoundAborted("no client has reported anything", contributors=0, needed=1)
    values, _ = present.contributions(validated.statistic, announcement.rows_max, announcement.fraction_bits)
    return merge_reports(announcement, validated, mechanism, noise.of_reports(mechanism, values), ids, Hashes())
