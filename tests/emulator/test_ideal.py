"""The ideal functionality draws what the protocol gives: the same encoding, the same exact noise, the same metadata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import expand
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.jobs.job import FRACTION_BITS, JobTerms
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.play import play, play_releases
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.quorum import NO_NODES
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import contribution
from dca_proto.statistics.sensitivity import REPLACE_ONE_ROW
from dca_proto.testing import NoNoise, TestFederation, seeded
from emulator import ideal
from emulator.ideal import Clients, IdealSwarm, noisy_sum
from emulator.inexact import RoundedGaussian

CLIENTS, COMPUTES = 6, 2
BY_ROUND = {"value", "round_id", "announcement_hash", "contributors_hash"}
BY_SERVERS = {"quorum"}
"""What the ideal functionality cannot have: it has no Compute nodes, which may answer or be lost."""


def request(actors: TestFederation, **changes: Any) -> OpenRound:
    return actors.request(**{"tolerate": 1, "epsilon": 1.0, "delta": 1e-6, **changes})


def by_protocol(actors: TestFederation, **changes: Any) -> NoisyAggregate:
    """A round of the actors, started afresh: its id and all keys are new."""
    computes = [actors.compute(index) for index in range(COMPUTES)]
    clients = [actors.client(index) for index in range(CLIENTS)]
    return play(actors.trainer(), computes, clients, request(actors, **changes), 1_700_000_000_000)


def by_ideal(actors: TestFederation, **changes: Any) -> NoisyAggregate:
    round_request = request(actors, **changes)
    return noisy_sum(
        round_request, actors.rows, actors.columns, frozenset(), seeded(f"noise/{round_request.round_id.hex()}")
    )


def test_the_metadata_of_the_sum_are_the_same() -> None:
    protocol, direct = (draw(TestFederation(CLIENTS, COMPUTES)) for draw in (by_protocol, by_ideal))
    for field in fields(NoisyAggregate):
        if field.name not in BY_ROUND | BY_SERVERS:
            assert getattr(protocol, field.name) == getattr(direct, field.name), field.name
    assert (protocol.quorum.nodes, direct.quorum) == (("compute-0", "compute-1"), NO_NODES)


class Recording(DistributedDiscreteGaussian):
    """The production mechanism, which also remembers what it drew."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, NDArray[np.int64]]] = []
        self.keys: list[bytes] = []

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        noise = super().sample(variance, dimension, key)
        self.drawn.append((variance, noise))
        self.keys.append(key)
        return noise


def test_the_protocols_sum_is_exactly_the_statistics_and_one_share_of_noise_of_each() -> None:
    mechanism = Recording()
    actors = TestFederation(CLIENTS, COMPUTES, mechanism=mechanism)
    round_request = request(actors)
    computes = [actors.compute(index) for index in range(COMPUTES)]
    clients = [actors.client(index) for index in range(CLIENTS)]
    result = play(actors.trainer(), computes, clients, round_request, 1_700_000_000_000)
    unit = 2.0**-round_request.fraction_bits
    ((variance,), shares) = ({one for one, _ in mechanism.drawn}, [noise for _, noise in mechanism.drawn])
    assert len(shares) == CLIENTS
    assert result.value[0] == (CLIENTS * round(0.5 / unit) + int(sum(shares)[0])) * unit
    assert result.noise_variance == CLIENTS * variance * unit**2


def test_the_noise_is_the_same() -> None:
    """Mean and variance of 20 seeded rounds of 100 columns of each against the stated noise, within 4 standard errors:
    a false alarm of each of the four comparisons below 1e-4, and none on the seeds as they stand."""
    columns, rounds = tuple(f"x{index}" for index in range(100)), 20
    parameters = box(*columns) | {"centre": [0.0] * 100, "scale": [1.0] * 100}
    for draw in (by_protocol, by_ideal):
        actors = TestFederation(CLIENTS, COMPUTES, name="ideal", columns=columns)
        results = [draw(actors, statistic="sum", parameters=parameters) for _ in range(rounds)]
        values = np.array([one.value for one in results])
        assert len(set(values.ravel().tolist())) == values.size
        errors = (values - 0.5 * CLIENTS) / np.sqrt(results[0].noise_variance)
        assert abs(errors.mean()) < 4 / np.sqrt(errors.size)
        assert abs(errors.var() - 1) < 4 * np.sqrt(2 / errors.size)


def swarm_of(clients: int, rows: Any, columns: tuple[str, ...] = ("a", "b"), **changes: Any) -> IdealSwarm:
    terms = JobTerms(epsilon=1.0, delta=1e-6, clients=clients, tolerate=1, computes=(b"a" * 16, b"b" * 16))
    return IdealSwarm(rows, columns, terms, **{"random": seeded("swarm"), "mechanism": NoNoise(), **changes})


def box(*columns: str) -> dict[str, Any]:
    n = len(columns)
    return {"columns": list(columns), "centre": [0.1] * n, "scale": [0.7] * n, "bound": [1.5] * n}


QUESTIONS = [
    ("sum", box("b", "a")),
    ("moments", box("a", "b")),
    ("regression", {**box("a", "b"), "intercept": True, "target_square": True}),
    ("gradient", {**box("b", "a"), "theta": [0.3, -0.2], "clip": 0.8, "intercept": True}),
    ("mixture", {**box("a"), "log_weights": [0.0, 0.3], "means": [[0.5], [-0.5]], "precisions": [[2.0], [3.0]]}),
]


# The encoding: all clients at once, and each by itself.


@pytest.mark.parametrize("rows_max", [0, 1, 3])
@pytest.mark.parametrize(("statistic", "parameters"), QUESTIONS)
def test_all_rows_at_once_give_the_sum_of_the_contributions(
    statistic: str, parameters: dict[str, Any], rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, for clients of one row, of as many each, of none to five, with missing values, in small chunks."""
    generator, resolved = np.random.default_rng(4), resolve(statistic, parameters)
    one = generator.normal(size=(40, 2))
    one[3, 1], one[5, 0] = np.nan, np.inf
    uneven = [generator.normal(size=(index % 6, 2)) for index in range(40)]
    uneven[9][2, 0] = np.nan
    request = RoundRequest(statistic, parameters, rows_max=rows_max)
    places = [("a", "b").index(column) for column in resolved.columns]
    for chunk in (2**18, 16):
        monkeypatch.setattr("dca_proto.statistics.contribution._CHUNK_WORDS", chunk)
        for rows in (one, one.reshape(20, 2, 2), uneven):
            each = [np.atleast_2d(table)[:, places] for table in rows]
            expected = sum(contribution(resolved, table, rows_max, FRACTION_BITS) for table in each)
            found = swarm_of(len(rows), rows).run_round(request)
            assert found.value.tolist() == np.ldexp(expected, -FRACTION_BITS).tolist()


def test_wide_rows_are_computed_in_one_order() -> None:
    """100 columns in another order than they are stored in: numpy adds up in an order that depends on the layout."""
    generator, columns = np.random.default_rng(5), tuple(f"c{index}" for index in range(100))
    rows = generator.normal(size=(50, 100))
    gradient = box(*reversed(columns)) | {"theta": generator.normal(size=99).tolist(), "clip": 1.0}
    each = sum(contribution(resolve("gradient", gradient), row[None, ::-1], 0, FRACTION_BITS) for row in rows)
    whole = swarm_of(50, rows, columns).run_round(RoundRequest("gradient", gradient))
    assert whole.value.tolist() == np.ldexp(each, -24).tolist()


def test_the_protocols_sum_without_noise_is_the_ideal_one() -> None:
    actors = TestFederation(CLIENTS, COMPUTES, mechanism=NoNoise())
    computes = [actors.compute(index) for index in range(COMPUTES)]
    clients = [actors.client(index) for index in range(CLIENTS)]
    round_request = request(actors)
    protocol = play(actors.trainer(), computes, clients, round_request, 1_700_000_000_000)
    direct = noisy_sum(round_request, actors.rows, actors.columns, frozenset(), seeded("x"), NoNoise())
    assert protocol.value.tolist() == direct.value.tolist()


# The noise.


def test_the_protocols_keys_give_the_protocols_sum() -> None:
    mechanism = Recording()
    actors = TestFederation(CLIENTS, COMPUTES, mechanism=mechanism)
    computes = [actors.compute(index) for index in range(COMPUTES)]
    clients = [actors.client(index) for index in range(CLIENTS)]
    round_request = request(actors)
    protocol = play(actors.trainer(), computes, clients, round_request, 1_700_000_000_000)
    direct = noisy_sum(round_request, actors.rows, actors.columns, frozenset(), keys=mechanism.keys)
    assert protocol.value.tolist() == direct.value.tolist()
    with pytest.raises(UsageError, match="6 noise keys for 5 present clients; give one for each"):
        noisy_sum(round_request, actors.rows, actors.columns, frozenset({2}), keys=mechanism.keys)


def test_one_draw_has_the_law_of_all_shares() -> None:
    """S = 64, n = 6, 20,000 sums of shares and 20,000 single draws: each against the exact probabilities of N_Z(0, nS),
    and against each other (χ² over some 100 integers); mean and variance within 4.5 standard errors. False alarm: 1e-4
    for each χ², 7e-6 for each moment, and none on the seeds as they stand."""
    n, draws, mechanism = 6, 20_000, DistributedDiscreteGaussian()
    key = [expand(bytes([place]) * 32, 32) for place in range(n + 1)]
    shares = sum(mechanism.sample(64, draws, one) for one in key[:n])
    single = mechanism.sample(n * 64, draws, key[n])
    reach = 60
    points = np.arange(-reach, reach + 1)
    law = np.exp(-(np.arange(-400, 401) ** 2) / (2 * n * 64))
    expected = draws * law[400 - reach : 401 + reach] / law.sum()
    counts = [np.array([(one == point).sum() for point in points]) for one in (shares, single)]
    kept = expected > 20
    for one, count in zip((shares, single), counts, strict=True):
        assert stats.chisquare(*(np.append(v[kept], draws - v[kept].sum()) for v in (count, expected))).pvalue > 1e-4
        assert abs(one.mean()) < 4.5 * math.sqrt(n * 64 / draws)
        assert abs(one.var() / (n * 64) - 1) < 4.5 * math.sqrt(2 / draws)
    assert stats.chi2_contingency([count[kept] for count in counts]).pvalue > 1e-4


def test_a_sum_of_shares_is_nearly_a_discrete_gaussian_to_1e_270() -> None:
    """The lemma that the single draw stands on, where it is worst (S = 64, two shares), in 300 digits."""
    with mpmath.workdps(300):

        def mass(x: int, variance: int) -> Any:
            return mpmath.exp(-mpmath.mpf(x * x) / (2 * variance))

        total = {v: mpmath.fsum(mass(x, v) for x in range(-460, 461)) for v in (64, 128)}
        for x in (0, 1, 7, 40):
            pair = mpmath.fsum(mass(y, 64) * mass(x - y, 64) for y in range(-320, 361)) / total[64] ** 2
            assert abs(pair * total[128] / mass(x, 128) - 1) < mpmath.mpf(10) ** -270


def test_a_sum_wider_than_the_samplers_widest_is_drawn_in_parts() -> None:
    noise = ideal._Noise(seeded("wide"), DistributedDiscreteGaussian())
    drawn = noise._drawn(2**80 // 3, 10, 2000).astype(float)
    assert drawn.std() == pytest.approx(math.sqrt(10 * 2**80 / 3), rel=0.08)  # 5 standard errors


def test_a_trusted_aggregator_adds_its_noise_once_and_pairs_with_the_clients() -> None:
    """On the same unit normals the distributed sum's error is that of the trusted one, times √(N/(N - T - 1))."""
    rows, mechanism = np.random.default_rng(6).normal(size=(50, 2)), RoundedGaussian()
    question = RoundRequest("regression", {**box("a", "b"), "target_square": True})
    exact = swarm_of(50, rows).run_round(question).value
    both = [swarm_of(50, rows, mechanism=mechanism, trusted=trusted).run_round(question) for trusted in (True, False)]
    trusted, distributed = both
    assert trusted.mechanism == "trusted-aggregator:rounded-gaussian-not-private"
    assert (trusted.contributors, trusted.clients, trusted.n_min, trusted.sigma_local) == (50, 50, 49, 0.0)
    assert trusted.mu == distributed.mu
    ratio = distributed.noise_variance / trusted.noise_variance
    assert ratio == pytest.approx(50 / 48, rel=1e-9)
    assert (distributed.value - exact) / (trusted.value - exact) == pytest.approx([math.sqrt(ratio)] * 3, rel=1e-5)
    honest = swarm_of(50, rows, mechanism=DistributedDiscreteGaussian(), trusted=True).run_round(question)
    assert (honest.private, honest.mechanism) == (True, "trusted-aggregator:distributed-discrete-gaussian")
    assert math.sqrt(honest.noise_variance) == pytest.approx(honest.sensitivity / honest.mu, rel=1e-6)


# Jobs of several rounds.


def test_mini_batches_go_round() -> None:
    """Two epochs of three batches of 20 of 60 clients: in each everybody is used once, an aborted round aside."""
    rows = np.arange(60.0)[:, None] * np.array([[1.0, 0.0]])
    swarm = swarm_of(60, rows, absent=[frozenset(), frozenset(range(60))])
    question = RoundRequest("sum", {**box("a"), "centre": [0.0], "scale": [1.0], "bound": [100.0]}, batch=20)
    first = swarm.run_round(question)
    assert (first.clients, first.contributors) == (20, 20)
    with pytest.raises(RoundAborted) as aborted:
        swarm.run_round(question)
    assert (aborted.value.contributors, aborted.value.needed) == (0, 19)
    sums = [first.value[0], *(swarm.run_round(question).value[0] for _ in range(5))]
    assert sum(sums[:3]) == sum(sums[3:]) == 59 * 60 / 2
    assert len(set(sums[:5])) == 5, "batches are random"
    assert sums[2] == sums[5], "whose round was given back come last among equals"


def test_who_drops_is_missing_by_its_place_in_the_batch() -> None:
    rows = [np.full((1, 2), 2.0**index) for index in range(10)]
    question = RoundRequest("sum", {**box("a"), "centre": [0.0], "scale": [1.0], "bound": [4096.0]})
    whole = swarm_of(10, rows, absent=[frozenset({7})]).run_round(question)
    part = swarm_of(10, rows, absent=[frozenset({7})]).run_round(replace(question, batch=10))
    assert whole.contributors == part.contributors == 9
    assert whole.value[0] == part.value[0] == 2**10 - 1 - 2**7


def test_who_drops_of_a_mini_batch_is_missing_from_its_sum_alone() -> None:
    """Clients of one row and of two, whose values identify them, in two batches of one epoch."""
    rows = [np.full((1 + index % 2, 2), 2.0**index) for index in range(12)]
    question = RoundRequest("sum", {**box("a"), "centre": [0.0], "scale": [1.0], "bound": [4096.0]}, batch=6)
    swarm = swarm_of(12, rows, absent=[frozenset({7})] * 2)
    sums = [int(swarm.run_round(question).value[0]) for _ in range(2)]
    assert sums[0] + sums[1] == 2**12 - 1 - 2**7
    assert sorted(total.bit_count() for total in sums) == [5, 6]


def test_a_sum_of_fewer_than_are_needed_is_not_released() -> None:
    """N = 10, T = 3, c = 2: nine are enough, eight are not."""
    terms = JobTerms(epsilon=1.0, delta=1e-6, clients=10, tolerate=3, colluders=2, computes=(b"a" * 16, b"b" * 16))
    absent = [frozenset({1}), frozenset({1, 2})]
    swarm = IdealSwarm(np.ones((10, 2)), ("a", "b"), terms, absent=absent, mechanism=NoNoise())
    assert swarm.run_round(RoundRequest("sum", box("a"))).contributors == 9
    with pytest.raises(RoundAborted) as aborted:
        swarm.run_round(RoundRequest("sum", box("a")))
    assert (aborted.value.contributors, aborted.value.needed) == (8, 9)


@pytest.mark.parametrize(
    ("clients", "rows", "message"),
    [
        (2, [["x", 1], [2, 3]], "rows are not arrays of numbers: could not convert"),
        (2, 5, "rows are not arrays of numbers: 'int' object is not iterable"),
        (9, np.ones((10, 2)), "there are rows of 10 clients, but terms.clients is 9; make them equal"),
        (2, np.ones((2, 3)), r"a client's rows have shape \(1, 3\); expected \(m, 2\): a, b"),
        (5, [np.ones((2, 2))] * 4 + [np.ones((1, 3))], r"have shape \(1, 3\); expected \(m, 2\)"),
        (5, np.ones(5), r"a client's rows have shape \(\); expected \(m, 2\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused(clients: int, rows: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        swarm_of(clients, rows)


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="column 'c' is not in the rows; expected some of a, b"):
        swarm_of(4, np.ones((4, 2))).run_round(RoundRequest("sum", box("c")))
    with pytest.raises(UsageError, match="a column is named twice in a, a; name each once"):
        swarm_of(4, np.ones((4, 2)), ("a", "a"))


@pytest.mark.parametrize("batch", [0, 5])
def test_who_is_absent_must_be_one_of_the_clients(batch: int) -> None:
    """Else a client that is in the sum would be counted as missing from it."""
    for index in (-1, 10):
        with pytest.raises(UsageError, match=f"absent client {index} is unknown; the clients are 0 to 9"):
            swarm_of(10, np.ones((10, 2)), absent=[frozenset({1, index})]).run_round(
                RoundRequest("sum", box("a"), batch=batch)
            )
    actors = TestFederation(CLIENTS, COMPUTES)
    with pytest.raises(UsageError, match="absent client 6 is unknown; the clients are 0 to 5"):
        noisy_sum(request(actors), actors.rows, actors.columns, frozenset({6}))


def test_a_trusted_aggregator_takes_no_keys_of_shares() -> None:
    actors = TestFederation(CLIENTS, COMPUTES)
    with pytest.raises(UsageError, match="a trusted aggregator uses none; leave them out"):
        noisy_sum(request(actors), actors.rows, actors.columns, frozenset(), keys=[bytes(32)] * CLIENTS, trusted=True)


# Node releases.


def nodes_of(sizes: Sequence[int], seed: int = 8) -> list[NDArray[np.float64]]:
    """Tables of data nodes of so many rows, of columns a and b; a value of the first node is missing."""
    generator = np.random.default_rng(seed)
    tables = [generator.normal(size=(size, 2)) for size in sizes]
    tables[0][0, 1] = np.nan
    return tables


RELEASES = RoundRequest("regression", {**box("a", "b"), "target_square": True}, rows_max=5, kind=NodeRelease())


def test_each_data_node_releases_its_own_rows_and_the_sum_is_of_them() -> None:
    """Bit for bit, with missing values and rows beyond rows_max; a node without any row is left out."""
    tables = nodes_of([3, 9, 0, 5, 3])
    resolved = resolve(RELEASES.statistic, RELEASES.parameters)
    expected = [np.ldexp(contribution(resolved, table, 5, FRACTION_BITS), -FRACTION_BITS).tolist() for table in tables]
    whole = swarm_of(5, tables).run_round(RELEASES)
    assert [node.value.tolist() for node in whole.nodes] == [expected[index] for index in (0, 1, 3, 4)]
    assert [node.contributors for node in whole.nodes] == [3, 5, 5, 3]
    assert whole.value.tolist() == sum(node.value for node in whole.nodes).tolist()
    assert (whole.contributors, whole.clients, whole.relation) == (16, 4, REPLACE_ONE_ROW)
    part = swarm_of(5, tables, absent=[frozenset({1, 3})]).run_round(replace(RELEASES, batch=5))
    assert [node.value.tolist() for node in part.nodes] == [expected[index] for index in (0, 4)]
    assert (part.contributors, part.clients) == (6, 2)


def test_rows_count_in_whole_groups_where_a_statistic_is_of_groups() -> None:
    averages = replace(RELEASES, statistic="averaged-regression", parameters={**box("a", "b"), "group": 2})
    whole = swarm_of(3, nodes_of([3, 9, 1])).run_round(averages)
    assert [node.contributors for node in whole.nodes] == [2, 4], "as the data nodes count them; the third has no group"


def test_each_data_node_adds_the_whole_noise_of_one_rows_replacement() -> None:
    """However many rows count. 40 seeded rounds of 5 nodes: the noise of each coordinate has mean zero and the stated
    variance within 4 standard errors, and two nodes' do not hang together; a false alarm of each of five comparisons
    below 1e-4, and none on the seeds as they stand."""
    tables, exact = nodes_of([3, 9, 1, 5, 3]), DistributedDiscreteGaussian()
    silent = swarm_of(5, tables).run_round(RELEASES)
    swarm = swarm_of(5, tables, mechanism=exact)
    results = [swarm.run_round(RELEASES) for _ in range(40)]
    row = resolve(RELEASES.statistic, RELEASES.parameters).stated_sensitivity(FRACTION_BITS)
    variance = exact.share_variance(row.l2, results[0].mu, 1, silent.dimension) * 2.0 ** (-2 * FRACTION_BITS)
    assert {node.noise_variance for one in results for node in one.nodes} == {variance}
    assert {one.noise_variance for one in results} == {5 * variance}
    assert {node.sensitivity for one in results for node in one.nodes} == {row.l2 * 2.0**-FRACTION_BITS}
    noise = np.array([[node.value for node in one.nodes] for one in results])
    noise = (noise - [node.value for node in silent.nodes]) / math.sqrt(variance)
    for errors in (noise, noise.sum(axis=1) / math.sqrt(5)):
        assert abs(errors.mean()) < 4 / math.sqrt(errors.size)
        assert abs(errors.var() - 1) < 4 * math.sqrt(2 / errors.size)
    assert abs((noise[:, 0] * noise[:, 1]).mean()) < 4 / math.sqrt(noise[:, 0].size)
    wider = swarm_of(5, tables, mechanism=exact).run_round(replace(RELEASES, rows_max=1000))
    assert wider.nodes[0].noise_variance == variance


def test_the_keys_of_the_data_nodes_give_the_protocols_releases() -> None:
    """Bit for bit, with all that is known of each and of the sum; the protocol has them in the order of their ids."""
    mechanism, policy = Recording(), Policy(rows_of_many=True)
    actors = TestFederation(CLIENTS, COMPUTES, rows=[np.full((n + 1, 1), n / 9) for n in range(CLIENTS)], policy=policy)
    actors.mechanism = mechanism
    round_request = request(actors, kind=NodeRelease(), rows_max=4)
    clients = [actors.client(index) for index in range(CLIENTS)]
    protocol = play_releases(actors.trainer(), clients, round_request, 1_700_000_000_000)
    keys = mechanism.keys
    direct = noisy_sum(round_request, actors.rows, actors.columns, frozenset(), keys=keys)
    order = sorted(range(CLIENTS), key=lambda index: actors.clients[index])
    pairs = zip(protocol.nodes, [direct.nodes[index] for index in order], strict=True)
    for one, other in [(protocol, direct), *pairs]:
        assert one.value.tolist() == other.value.tolist()
        for field in fields(NoisyAggregate):
            if field.name not in BY_ROUND | {"nodes", "client"}:
                assert getattr(one, field.name) == getattr(other, field.name), field.name
    with pytest.raises(UsageError, match="6 noise keys for 5 present clients; give one for each"):
        noisy_sum(round_request, actors.rows, actors.columns, frozenset({2}), keys=keys)


def test_a_round_without_any_release_and_one_by_a_trusted_aggregator_are_refused() -> None:
    tables = nodes_of([2, 2, 2])
    with pytest.raises(RoundAborted, match="no data node has released any row") as aborted:
        swarm_of(3, tables, absent=[frozenset(range(3))]).run_round(RELEASES)
    assert aborted.value.contributors == 0
    with pytest.raises(UsageError, match="a trusted aggregator has no part in a round whose data nodes or clients"):
        swarm_of(3, tables, trusted=True).run_round(RELEASES)
    with pytest.raises(UsageError, match="rows_max"):
        swarm_of(3, tables).run_round(replace(RELEASES, rows_max=0))


def test_a_data_frame_is_one_row_for_each_client_by_its_columns_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"b": [1.0, 2.0], "text": ["u", "v"], "a": [3.0, None]})
    ((_, tables),) = Clients.of(frame, ("a", "b")).groups
    np.testing.assert_array_equal(tables, [[[3.0, 1.0]], [[np.nan, 2.0]]])
    with pytest.raises(UsageError, match=r"the data frame has no column 'c'; it has b, text, a"):
        Clients.of(frame, ("a", "c"))
    with pytest.raises(UsageError, match=r"values that are not numbers: could not convert.*; encode texts as numbers"):
        Clients.of(frame, ("a", "text"))


def test_texts_are_read_by_their_lists_as_on_a_device_and_refused_without_one() -> None:
    pandas = pytest.importorskip("pandas")
    clinic, age, listed = ["north", "south", "east"], [30.0, 40.0, 50.0], {"clinic": ("south", "north")}
    frame, array = pandas.DataFrame({"clinic": clinic, "age": age}), np.array([clinic, age]).T
    terms = JobTerms(epsilon=1.0, delta=1e-5, clients=3, tolerate=1, computes=(b"a", b"b"))
    for rows in (frame, array, np.array([clinic, age], dtype=object).T):
        found = IdealSwarm(rows, ("clinic", "age"), terms, random=seeded("texts"), categories=listed)._clients
        assert found.columns == ("clinic", "clinic=south", "clinic=north", "clinic in {south, north}", "age")
        ((_, tables),) = found.groups
        wanted = [[1, 0, 1, 1, 30], [0, 1, 0, 0, 40], [np.nan] * 4 + [50]]
        np.testing.assert_array_equal(tables[:, 0], wanted)
        with pytest.raises(UsageError, match=r"could not convert.*categories=schema\.labelled"):
            IdealSwarm(rows, ("clinic", "age"), terms, random=seeded("texts"))
    with pytest.raises(UsageError, match=r"rows with texts have shape \(3, 2\); expected \(N, 3\)"):
        IdealSwarm(array, ("clinic", "age", "bmi"), terms, random=seeded("texts"), categories=listed)
