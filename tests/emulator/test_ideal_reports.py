"""Report rounds of the ideal functionality: what real clients report, by the same mechanisms, without messages."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from dca_proto.aggregate import LocalReports, NoisyAggregate, RoundRequest
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.jobs.job import FRACTION_BITS, JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.local import (
    MISSING,
    AnalyticGaussian,
    GridLaplace,
    LocalMechanism,
    RandomisedResponse,
    UnaryEncoding,
)
from dca_proto.privacy.mechanism import (
    ANALYTIC_GAUSSIAN,
    GRID_LAPLACE,
    LOCAL_MECHANISMS,
    PURE_MECHANISMS,
    RANDOMISED_RESPONSE,
    UNARY_ENCODING,
)
from dca_proto.protocol.client import answer
from dca_proto.protocol.play import play_releases
from dca_proto.protocol.release import randomised
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.testing import TestFederation, seeded
from emulator.ideal import Clients, IdealSwarm, noisy_sum

EPSILON, DELTA = 1.0, 1e-6
BOX: dict[str, Any] = {"columns": ["x"], "centre": [2.0], "scale": [2.0], "bound": [1.0]}
BINS: dict[str, Any] = {"columns": ["x"], "edges": [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]}
CATEGORICAL = (RANDOMISED_RESPONSE, UNARY_ENCODING)
ROWS = [np.array(values, dtype=float)[:, None] for values in ([3], [], [0, 4], [4], [np.nan], [1, 7, 2], [1])]
"""Of seven clients; a value is its category, too, and 7 has none."""
CATEGORIES = np.array([3, MISSING, 0, 4, MISSING, 1, 1])
BY_ROUND = {"value", "reports", "round_id", "announcement_hash", "contributors_hash"}


def question(by: str, **changes: Any) -> RoundRequest:
    if by in CATEGORICAL:
        return RoundRequest("histogram", BINS, **{"rows_max": 1, "kind": LdpReport(by), **changes})
    return RoundRequest("sum", BOX, **{"kind": LdpReport(by), **changes})


def swarm(rows: Any = ROWS, **changes: Any) -> IdealSwarm:
    terms = JobTerms(epsilon=EPSILON, delta=DELTA, clients=len(rows), tolerate=1, computes=(b"a" * 16, b"b" * 16))
    return IdealSwarm(rows, ("x",), terms, **{"random": seeded("swarm"), **changes})


def mechanism(by: str, rows_max: int) -> LocalMechanism:
    if by == RANDOMISED_RESPONSE:
        return RandomisedResponse(EPSILON, 5)
    if by == UNARY_ENCODING:
        return UnaryEncoding(EPSILON, 5)
    sensitivity = client_sensitivity(resolve("sum", BOX), rows_max, FRACTION_BITS)
    return GridLaplace(EPSILON, sensitivity) if by == GRID_LAPLACE else AnalyticGaussian(EPSILON, DELTA, sensitivity, 1)


def reports_of(aggregate: NoisyAggregate) -> LocalReports:
    assert aggregate.reports is not None
    return aggregate.reports


# --- beside the protocol --------------------------------------------------------------------------------------------


def report_round(actors: TestFederation, by: str) -> OpenRound:
    made = question(by)
    terms = {"kind": LdpReport(by), "delta": 0.0 if by in PURE_MECHANISMS else DELTA}
    return actors.request(statistic=made.statistic, parameters=made.parameters, rows_max=made.rows_max, **terms)


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
def test_the_keys_of_the_clients_give_the_protocols_reports(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with all that is known of them and of their sum, in the order of the clients' ids."""
    keys: list[bytes] = []

    def recorded(*given: Any) -> tuple[int, bytes]:
        keys.append(given[-1])
        return randomised(*given)

    monkeypatch.setattr(answer, "randomised", recorded)
    actors = TestFederation(len(ROWS), 0, rows=ROWS)
    round_request = report_round(actors, by)
    clients = [actors.client(index) for index in range(len(ROWS))]
    protocol = play_releases(actors.trainer(), clients, round_request, 1_700_000_000_000)
    order = sorted(range(len(ROWS)), key=lambda index: actors.clients[index])
    rows, keys = [ROWS[index] for index in order], [keys[index] for index in order]
    direct = noisy_sum(round_request, rows, actors.columns, frozenset(), keys=keys)
    assert protocol.value.tobytes() == direct.value.tobytes()
    assert reports_of(protocol).values.dtype == reports_of(direct).values.dtype
    assert reports_of(protocol).values.tolist() == reports_of(direct).values.tolist()
    for one, other in ((protocol, direct), (reports_of(protocol), reports_of(direct))):
        for field in fields(one):
            if field.name not in BY_ROUND | {"values", "clients"}:
                assert getattr(one, field.name) == getattr(other, field.name), field.name
    fewer = noisy_sum(round_request, rows, actors.columns, frozenset({2}), keys=[*keys[:2], *keys[3:]])
    assert reports_of(fewer).values.tolist() == np.delete(reports_of(direct).values, 2, axis=0).tolist()
    with pytest.raises(UsageError, match="7 noise keys for 6 present clients; give one for each"):
        noisy_sum(round_request, rows, actors.columns, frozenset({2}), keys=keys)


# --- all clients at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "rows_max"), [(by, 1) for by in CATEGORICAL] + [
    (by, rows_max) for by in (ANALYTIC_GAUSSIAN, GRID_LAPLACE) for rows_max in (0, 1, 2)
])  # fmt: skip
def test_each_present_client_reports_its_value(by: str, rows_max: int) -> None:
    """Whether it has no row, a missing value, or several: what its value gives, in one call, with one fresh key."""
    statistic = resolve("sum", BOX)
    sums = np.array([contribution(statistic, table, rows_max, FRACTION_BITS) for table in ROWS])
    values = CATEGORIES if by in CATEGORICAL else sums
    present, unit = [0, 2, 3, 4, 5, 6], 1.0 if by in CATEGORICAL else 2.0**-FRACTION_BITS
    whole, part = (
        swarm(absent=[absent], random=bytes).run_round(question(by, rows_max=rows_max))
        for absent in (frozenset(), frozenset({1}))
    )
    for aggregate, inputs in ((whole, values), (part, values[present])):
        expected = mechanism(by, rows_max).randomise(inputs, bytes(32))
        assert reports_of(aggregate).values.tolist() == (expected * unit if unit < 1 else expected).tolist()
        assert (aggregate.contributors, aggregate.clients, aggregate.n_min) == (
            len(inputs),
            len(inputs),
            0,
        )
        assert (aggregate.nodes, aggregate.colluders, aggregate.private) == ((), 0, True)
        assert (aggregate.epsilon, aggregate.delta) == (EPSILON, 0.0 if by in PURE_MECHANISMS else DELTA)


def test_every_report_has_randomness_of_its_own_and_the_law_of_its_value() -> None:
    """3,000 clients of each of two categories and 3,000 without any, in one round and in the next: how often each
    category is reported, within 5 standard errors of 6 figures of each (false alarm 4e-6), and pairs within a round and
    between two are no more often alike than independent ones are."""
    categories = np.tile([0.0, 1.0, np.nan], 3000)[:, None]
    rounds = swarm(categories, random=seeded("law"))
    first, second = (reports_of(rounds.run_round(question(RANDOMISED_RESPONSE))).values for _ in range(2))
    p, q = map(float, RandomisedResponse(EPSILON, 5).probabilities)
    for reports in (first, second):
        for place, odds in enumerate(((p, q), (q, p), (0.2, 0.2))):
            for category, chance in enumerate(odds):
                error = np.mean(reports[place::3] == category) - chance
                assert abs(error) < 5 * np.sqrt(chance * (1 - chance) / 3000)
    alike = p**2 + 4 * q**2
    for one, other in ((first[0::3], second[0::3]), (first[0:4500:3], first[4500::3])):
        assert abs(np.mean(one == other) - alike) < 5 * np.sqrt(alike * (1 - alike) / len(one))


def test_mini_batches_report_once_an_epoch_each() -> None:
    """At an ε so large that a report shows its client's category; a round of which all are absent is repeated."""
    budget, computes, everybody = Budget(60.0, DELTA), (b"a" * 16, b"b" * 16), frozenset(range(12))
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=12, tolerate=1, computes=computes)
    bins = {"columns": ["x"], "edges": [place - 0.5 for place in range(13)]}
    ldp_request = RoundRequest("histogram", bins, rows_max=1, batch=4, kind=LdpReport(GRID_LAPLACE))
    absent = [everybody, frozenset({10}), frozenset({10}), frozenset({10})]
    rounds = IdealSwarm(np.arange(12.0)[:, None], ("x",), terms, absent=absent, random=seeded("batches"))
    with pytest.raises(RoundAborted, match="no client has reported anything") as aborted:
        rounds.run_round(ldp_request)
    assert (aborted.value.contributors, aborted.value.needed) == (0, 1)
    named: list[int] = []
    for _ in range(3):
        found = reports_of(rounds.run_round(ldp_request))
        reports = np.rint(found.values)
        assert reports.sum(axis=1).tolist() == [1.0] * len(reports)
        assert found.clients == tuple(place.to_bytes(16, "big") for place in reports.argmax(axis=1).tolist())
        named += reports.argmax(axis=1).tolist()
    assert sorted(named) == sorted(everybody - {10})


@pytest.mark.parametrize("rows_max", [0, 1, 3])
@pytest.mark.parametrize("chunk", [2**18, 24])
def test_each_clients_value_is_the_same_computed_at_once(
    rows_max: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, of clients of one row, of as many each, of none to five, beyond the bounds and with missing values,
    in small chunks, for a statistic of rows and one of groups of them; columns in another order than stored."""
    monkeypatch.setattr("dca_proto.statistics.contribution._CHUNK_WORDS", chunk)
    generator = np.random.default_rng(4)
    one = generator.normal(size=(40, 2))
    one[3, 1], one[5, 0] = np.nan, np.inf
    uneven = [generator.normal(size=(index % 6, 2)) for index in range(40)]
    box = {"columns": ["b", "a"], "centre": [0.1] * 2, "scale": [0.7] * 2, "bound": [1.5] * 2}
    for name, more in (("sum", {}), ("regression", {"target_square": True}), ("averaged-regression", {"group": 2})):
        if name.startswith("averaged") and 0 < rows_max < 2:
            continue  # a group would not fit
        statistic = resolve(name, {**box, **more})
        for rows in (one, one.reshape(20, 2, 2), uneven):
            expected = [contribution(statistic, np.atleast_2d(table)[:, ::-1], rows_max, 24) for table in rows]
            found, _ = Clients.of(rows, ("a", "b")).contributions(statistic, rows_max, 24)
            assert found.tolist() == np.array(expected).tolist()


def test_a_users_own_statistic_must_respect_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a client: no mechanism is private for a value beyond it."""
    statistic = resolve("sum", BOX)
    monkeypatch.setattr(type(statistic), "evaluate", lambda self, rows, bits: np.full((len(rows), 1), 1 << 60))
    found, _ = Clients.of(ROWS, ("x",)).contributions(statistic, 1, 24)
    assert found.tolist() == [contribution(statistic, table, 1, 24).tolist() for table in ROWS]
    assert found.max() == client_sensitivity(statistic, 1, 24).bound


def test_a_request_that_is_no_report_round_is_refused() -> None:
    with pytest.raises(UsageError, match="a trusted aggregator has no part in a round whose data nodes or clients"):
        swarm(trusted=True).run_round(question(UNARY_ENCODING))
    with pytest.raises(UsageError, match="expected 1: a report by unary-encoding is of one row's category"):
        swarm().run_round(question(UNARY_ENCODING, rows_max=2))
    with pytest.raises(UsageError, match="mechanism 'exponential' makes no reports; use one of analytic-gaussian"):
        swarm().run_round(question("exponential"))
