"""Figures 4 and 5 of the LDP paper: data as published and valid, reports, methods and cells.

Statistical tests are seeded; each states how often it would fail by chance with another seed.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from numpy.testing import assert_allclose

from dca_proto.aggregate import RoundRequest
from dca_proto.errors import NoAggregate, UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.local import AnalyticGaussian
from dca_proto.protocol.wire.kinds import LdpReport
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.columns import into_ball
from inference.datasets.uci import wine_schema
from inference.mcmc.run import Options
from inference.problem import Problem, Schema
from papers.ldp2021 import regression as work
from papers.ldp2021 import regression_data as data
from papers.ldp2021 import regression_methods as methods
from papers.ldp2021.regression import Cell, Figure4, Figure5
from papers.ldp2021.regression_data import ADULT, VALID, WINE, Choices, Split
from papers.ldp2021.regression_methods import (
    BAYES,
    CLASSICAL,
    COROLLARY,
    INPUTS,
    INPUTS_2,
    INPUTS_4,
    NO_MODEL,
    SGD,
    TIGHT,
    Conditions,
    Reporters,
    Terms,
)

needs_data = pytest.mark.skipif("DCA_DATA" not in os.environ, reason="DCA_DATA names no folder of data sets")
TERMS = Terms(1.0, 1e-5)


def rows(n: int = 400, *, label: bool = False, private: bool = False, seed: int = 5) -> Split:
    """A made-up split of two features, of which half lie outside of the ball."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) * [1.0, 0.6]
    y = X @ [0.8, -0.4] + 0.5 * rng.standard_normal(n)
    y = np.where(y > 0, 1.0, -1.0) if label else y
    k = n // 5
    return Split(X[k:], y[k:], X[:k], y[:k], 1.0 if label else 2.0, 1.5, intercept=private, private=private)


def wines(n: int = 200) -> Problem:
    """Made-up rows of wine's columns."""
    known, rng = wine_schema(), np.random.default_rng(6)
    names = (*known.features, data.COLOUR)
    bounds = {**known.bounds, data.COLOUR: Interval(0, 1)}
    schema = Schema(names, known.target, bounds)
    X = schema.centres[:-1] + schema.half_widths[:-1] * rng.uniform(-1, 1, (n, len(names)))
    return Problem(WINE, schema, X, rng.integers(3, 9, n).astype(float))


# --- data


@needs_data
@pytest.mark.parametrize(("name", "n", "columns"), [(WINE, 6497, 12), (ADULT, 48_842, 90)])
def test_the_data_are_whole(name: str, n: int, columns: int) -> None:
    whole = data.problem(name, None)
    assert whole.X.shape == (n, columns)
    train = data.split(name, None, VALID, 0, 1, Choices())
    assert len(train.y) == math.ceil(0.8 * n)
    assert len(train.y) + len(train.y_test) == n


def split_of(whole: Problem, prepare: Any) -> Split:
    order = np.arange(len(whole.y))
    made: Split = prepare(whole, order[40:], order[:40], Choices(), np.random.default_rng(1))
    return made


def test_as_published_rows_are_centred_components_with_half_of_them_in_the_ball() -> None:
    found = split_of(wines(), data._published)
    assert found.X.shape == (160, 4)
    assert_allclose(found.X.mean(axis=0), 0, atol=1e-12)
    assert np.median(np.linalg.norm(found.X, axis=1)) == pytest.approx(1)
    assert found.y.mean() == pytest.approx(0)
    covariance = np.cov(found.X.T)
    assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-12)
    assert (np.diff(np.diag(covariance)) < 0).all()
    assert (found.target_bound, found.intercept, found.private) == (2.0, False, False)
    assert found.seen_test is found.X_test


@pytest.mark.parametrize(("prepare", "reads"), [(data._published, True), (data._public, False)])
def test_only_the_valid_setting_reads_nothing_from_rows(prepare: Any, reads: bool) -> None:
    whole = wines()
    X, y = whole.X.copy(), whole.y.copy()
    X[-1], y[-1] = 1e3, 0.0
    before, after = split_of(whole, prepare), split_of(replace(whole, X=X, y=y), prepare)
    assert np.allclose(before.X[:-1], after.X[:-1]) != reads
    assert np.allclose(before.X_test, after.X_test) != reads
    assert np.allclose(before.y[:-1], after.y[:-1]) != reads


def test_valid_rows_are_in_public_units() -> None:
    found = split_of(wines(), data._public)
    assert (found.target_bound, found.intercept, found.private) == (3.0, True, True)
    assert_allclose(found.unit * found.y, wines().y[40:] - 5)  # the middle of the tasters' scale
    assert np.linalg.norm(found.seen_test, axis=1).max() <= 1 + 1e-12


def test_public_units_are_the_known_scales_of_people_and_wines() -> None:
    names = ("age", "capital-gain", data.SEX)
    bounds = {"age": Interval(17, 90), "capital-gain": Interval(0, 12), data.SEX: Interval(0, 1), "t": Interval(-1, 1)}
    people = Problem(ADULT, Schema(names, "t", bounds), np.zeros((1, 3)), np.ones(1))
    centres, scales = data.public_units(people)
    assert_allclose(centres, [53.5, 0, 0.5, 0])
    assert_allclose(scales, [36.5 / 3, 2, 0.5, 1 / 3])
    centres, _ = data.public_units(wines())
    assert centres[11] == pytest.approx(4898 / 6497)
    assert centres[-1] == 5


def test_projections_are_orthonormal_and_differ_by_stream() -> None:
    first, second = (data.projection(6, 4, np.random.default_rng(seed)) for seed in (1, 2))
    assert_allclose(first.T @ first, np.eye(4), atol=1e-12)
    assert not np.allclose(first, second)


@needs_data
def test_all_methods_of_a_repeat_see_the_same_rows() -> None:
    experiment = Figure5()
    first, again = (experiment.rows_of(Cell(VALID, method, 1.0), 2) for method in (SGD, INPUTS_2))
    assert_allclose(first.X, again.X)
    assert len(first.y) == work.RECORDS
    assert len(experiment.rows_of(Cell(VALID, TIGHT, 1.0), 2).y) == 39_074


# --- reports


def test_the_corollaries() -> None:
    assert methods.corollary(2.0, label=False) == pytest.approx(34)
    assert methods.corollary(1.0, label=True) == 4.5


@pytest.mark.parametrize(("label", "ratio"), [(False, 34 / 22), (True, 1.0)])
def test_the_papers_noise_is_no_less_than_the_exact(label: bool, ratio: float) -> None:
    """Of equal weights: 34 for the exact 22 at R_y = 2; of labels the same."""
    split, rng = rows(label=label), np.random.default_rng(1)
    statistic = methods.statistic_of(split, label=label, weighted=False)
    exact = AnalyticGaussian(*TERMS, methods.exact_sensitivity(statistic), statistic.dimension)
    release = methods.sufficient(split, TERMS, rng, label=label, tight=False)
    assert release.contributors == 320
    assert release.noise_variance / (320 * exact.noise_variance * methods.UNIT**2) == pytest.approx(ratio, rel=1e-5)


def test_the_papers_noise_is_not_for_an_intercept() -> None:
    with pytest.raises(UsageError, match="constant"):
        methods.sufficient(rows(private=True), TERMS, np.random.default_rng(1), label=False, tight=False)


@pytest.mark.parametrize("label", [False, True])
def test_tight_noise_has_the_smaller_total_error(label: bool) -> None:
    errors = {}
    for tight in (True, False):
        release = methods.sufficient(rows(label=label), TERMS, np.random.default_rng(1), label=label, tight=tight)
        statistic = methods.resolve(release.statistic, release.parameters)
        errors[tight] = float((statistic.noise_std(math.sqrt(release.noise_variance)) ** 2).sum())  # type: ignore[attr-defined]
    assert errors[True] < errors[False]


def test_reports_carry_the_stated_noise() -> None:
    """A sample variance of 6 x 4,000 normals is off by more than 5 % once in 10⁷ seeds."""
    split = rows(5000)
    release = methods.sufficient(split, TERMS, np.random.default_rng(2), label=False, tight=True)
    assert release.reports is not None
    quiet = methods.unnoised(split, label=False)
    assert release.reports.values.shape == (4000, 6)
    statistic = methods.resolve(release.statistic, release.parameters)
    per_row = statistic.evaluate(np.column_stack([split.X, split.y]), methods.FRACTION_BITS) * methods.UNIT
    assert (release.reports.values - per_row).var() == pytest.approx(release.noise_variance / 4000, rel=0.05)
    assert_allclose(per_row.sum(axis=0), quiet.value)
    assert (quiet.noise_variance, quiet.private, quiet.epsilon) == (0.0, False, None)


def test_sums_without_noise_are_of_the_clipped_rows() -> None:
    split = rows()
    release = methods.unnoised(split, label=False)
    X, y = into_ball(split.X, 1.0), np.clip(split.y, -2, 2)
    xx, xy, yy = methods.resolve(release.statistic, release.parameters).unpack(release.value)  # type: ignore[attr-defined]
    assert_allclose(xx, X.T @ X, atol=0.1)  # the grid of 2^-12
    assert_allclose(xy, X.T @ y, atol=0.1)
    assert yy == pytest.approx(y @ y, abs=0.2)


def request(**changes: Any) -> RoundRequest:
    ball = {"columns": ["x1", "x2", "y"], "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [1.0] * 3}
    terms = {"statistic": "sum", "parameters": ball, "rows_max": 1, "kind": LdpReport("analytic-gaussian")}
    return RoundRequest(**{**terms, **changes})


class Fixed(np.random.Generator):
    """Everybody in order, and the same keys for ever."""

    def permutation(self, x: Any, axis: int = 0) -> Any:
        return np.arange(x)

    def bytes(self, length: int) -> bytes:
        return bytes(range(length))


def test_reporters_are_the_ideal_functionality() -> None:
    split = rows()
    statistic = methods.statistic_of(split, label=False, weighted=True)
    request = RoundRequest("regression", to_builtins(statistic), rows_max=1, kind=LdpReport("analytic-gaussian"))
    release = methods.sufficient(split, TERMS, Fixed(np.random.PCG64(1)), label=False, tight=True)
    job = JobTerms(epsilon=TERMS[0], delta=TERMS[1], clients=320, tolerate=0, computes=())
    table = np.column_stack([split.X, split.y])
    ideal = IdealSwarm(table, methods.names_of(split), job, random=lambda n: bytes(range(n))).run_round(request)
    assert release.reports is not None
    assert ideal.reports is not None
    assert np.array_equal(release.reports.values, ideal.reports.values)
    assert np.array_equal(release.value, ideal.value)
    for name in ("contributors", "clients", "parameters", "relation", "epsilon", "delta", "mechanism"):
        assert getattr(release, name) == getattr(ideal, name), name
    for name in ("noise_variance", "sensitivity", "sigma_local", "mu"):
        assert getattr(release, name) == pytest.approx(getattr(ideal, name), rel=1e-12), name


def test_clients_report_once() -> None:
    clients = Reporters(np.zeros((10, 3)), ("x1", "x2", "y"), TERMS, np.random.default_rng(1))
    assert [clients.run_round(request(batch=size)).contributors for size in (4, 5)] == [4, 5]
    with pytest.raises(NoAggregate, match="needs 2 clients; 1"):
        clients.run_round(request(batch=2))


@pytest.mark.parametrize("wrong", [{"kind": LdpReport("")}, {"rows_max": 0}, {"budget_share": 0.5}])
def test_requests_on_other_terms_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Reporters(np.zeros((9, 3)), ("x1", "x2", "y"), TERMS, np.random.default_rng(1)).run_round(request(**wrong))
    with pytest.raises(UsageError, match="columns"):
        Reporters(np.zeros((9, 3)), ("x2", "x1", "y"), TERMS, np.random.default_rng(1)).run_round(request())


def test_inputs_share_the_budget() -> None:
    split = rows(label=True)
    features, labels = methods.inputs(split, Terms(2.0, 1e-5), 0.25, np.random.default_rng(1))
    assert (features.epsilon, features.delta) == (1.5, 1e-5)
    assert labels.probabilities is not None
    p, q = labels.probabilities
    assert math.log(p / q) == pytest.approx(0.5)
    assert features.values.shape == split.X.shape
    assert set(labels.values.tolist()) == {0, 1}


# --- methods


def test_methods_without_noise() -> None:
    split, conditions, rng = rows(2000), Conditions(TERMS, label=False), np.random.default_rng(1)
    least_squares = methods.scored(CLASSICAL, split, conditions, rng).score
    assert least_squares == pytest.approx(1.5 * 0.5, rel=0.2)  # the residuals' sd, in units of the data
    assert methods.scored(NO_MODEL, split, conditions, rng).score == pytest.approx(1.5 * split.y_test.std(), rel=0.05)
    labelled = rows(2000, label=True)
    assert methods.scored(NO_MODEL, labelled, Conditions(TERMS, label=True), rng).score == 0.5
    assert methods.scored(CLASSICAL, labelled, Conditions(TERMS, label=True), rng).score > 0.85


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("label", [False, True])
def test_ldp_sgd_runs_in_both_settings(label: bool, private: bool) -> None:
    split = rows(1500, label=label, private=private)
    found = methods.scored(SGD, split, Conditions(Terms(30.0, 1e-5), label), np.random.default_rng(1))
    nothing = methods.scored(NO_MODEL, split, Conditions(TERMS, label), np.random.default_rng(1)).score
    assert found.score > 0.8 if label else found.score < nothing
    assert found.report["groups"] * found.report["group_size"] <= 1200


def test_predictions_are_means_over_draws() -> None:
    rng, X = np.random.default_rng(8), np.array([[1.0, 2.0], [0.0, -1.0]])
    draws = {"coefficients": rng.standard_normal((2, 50, 2)), "intercept": rng.standard_normal((2, 50))}
    found: Any = SimpleNamespace(draws=draws)
    scores = draws["coefficients"].reshape(100, 2) @ X.T + draws["intercept"].reshape(100, 1)
    assert_allclose(methods._predicted(found, X, label=False), scores.mean(axis=0))
    assert_allclose(methods._predicted(found, X, label=True), (1 / (1 + np.exp(-scores))).mean(axis=0))


class SamplerCalledError(Exception):
    """Carries a sampler's arguments, raised in place of drawing."""


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(options: Options, model: Any, data: Any, *start: Any) -> Any:
        raise SamplerCalledError(model, data)

    monkeypatch.setattr(Options, "sample", sample)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(("method", "label"), [
    (TIGHT, False), (TIGHT, True), (COROLLARY, False), (COROLLARY, True), (BAYES, False), (BAYES, True),
    (INPUTS_2, True), (INPUTS_4, True), (INPUTS, True),
])  # fmt: skip
def test_each_method_has_its_own_model_and_noise(method: str, label: bool, private: bool, sampler: None) -> None:
    pytest.importorskip("numpyro")
    if method == COROLLARY and private:
        return  # it is without an intercept
    split = rows(label=label, private=private)
    fit = methods._fit(method, split, Conditions(TERMS, label), np.random.default_rng(1))
    with pytest.raises(SamplerCalledError) as called:
        fit()
    model, given = called.value.args
    n, mu = len(split.y), mu_of(*TERMS)
    if method in methods.ORDERS:
        assert (type(model).__name__, model.logistic) == ("RowRegression", True)
        from papers.ldp2021 import chebyshev  # needs JAX

        order = {INPUTS_2: 2, INPUTS_4: 4}.get(method)
        assert model.mean is (None if order is None else chebyshev.clipped(order))
        assert model.intercept == private
        assert given["var_x"] == pytest.approx((2 / mu_of(0.5, 1e-5)) ** 2, rel=0.01)
        assert given["p"] == pytest.approx(1 / (1 + math.exp(-0.5)))
        return
    assert (type(model).__name__, model.logistic, model.constant) == (
        "SummedRegression",
        label,
        1.0 if private else None,
    )
    if method == BAYES:
        assert not np.any(given["noise"])
    elif method == COROLLARY:
        assert_allclose(given["noise"], n * methods.corollary(split.target_bound, label=label) / mu**2, rtol=1e-3)
    else:
        exact = methods.exact_sensitivity(methods.statistic_of(split, label=label, weighted=True)).l2 * methods.UNIT
        assert given["noise"].min() * max(methods.statistic_of(split, label=label, weighted=True).weights) ** 2 == (
            pytest.approx(n * (exact / mu) ** 2, rel=1e-3)
        )


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("rate", [None, 0.3])
def test_ldp_sgd_takes_the_papers_steps(rate: float | None, private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean gradients of ones, with noise of variance 2: iterates are sums of the steps; the last half is averaged."""
    called, d = list[Any](), 2 + private

    def run_round(self: object, request: Any) -> Any:
        called.append(request.parameters)
        return SimpleNamespace(value=np.full(d, request.batch), noise_variance=2.0 * request.batch**2)

    monkeypatch.setattr(methods.Reporters, "run_round", run_round)
    split = rows(private=private)
    predicted, report = methods._descended(split, Conditions(TERMS, False, rate), np.random.default_rng(1))
    numbers = np.arange(1, report["groups"] + 1)
    path = np.cumsum((rate or 1.0) / np.sqrt((1 + d * 2.0) * numbers))
    assert_allclose([one["theta"] for one in called], np.outer(np.r_[0.0, path[:-1]], np.ones(d)), rtol=1e-9)
    assert {(one["clip"], one["intercept"]) for one in called} == {(1.0, private)}
    averaged = path[-max(1, round(len(path) / 2)) :].mean()
    seen = np.clip(split.seen_test, -1, 1) if private else split.seen_test
    assert_allclose(predicted, averaged * (seen.sum(axis=1) + private), rtol=1e-9)


@pytest.mark.parametrize(
    ("dimension", "epsilon", "size"), [(6, 1.0, 11), (6, 0.1, 1076), (1, 0.5, 4), (2, 1.0, 2), (6, 100.0, 1)]
)
def test_groups_are_of_the_papers_order(dimension: int, epsilon: float, size: int) -> None:
    assert methods.group_size(dimension, epsilon) == size


# --- cells


def test_cells() -> None:
    made = Figure5(inputs=2).cells()
    assert len({str(cell) for cell in made}) == len(made)
    assert not [cell for cell in made if cell.method == COROLLARY and cell.setting == VALID]
    assert not [cell for cell in made if cell.method == INPUTS]
    assert {cell.repeats for cell in made if cell.method == INPUTS_2} == {2}
    assert {cell.epsilon for cell in made if cell.method == TIGHT} == set(work.EPSILONS)
    assert 0.8 in work.EPSILONS


@needs_data
def test_more_repeats_leave_the_first_as_they_are() -> None:
    cell = Cell(VALID, SGD, 0.4, repeats=2)
    two, three = (Figure4().work(cell._replace(repeats=count))["scores"] for count in (2, 3))
    assert three[:2] == two
    assert len(set(three)) == 3


def test_a_quick_look_has_few_cells() -> None:
    quick = Figure5.of(Figure5.parser("ldp_figure_5").parse_args(["--quick"]))
    assert (quick.inputs, quick.exact_inputs) == (0, 0)
    assert len(quick.cells()) < 40
