"""The door of local inference: which reports and sums it refuses, each with a line that names the remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from exact_rounds import aggregate

from dca_proto.aggregate import LocalReports, NoisyAggregate, RoundRequest
from dca_proto.privacy.local import AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding
from dca_proto.statistics.sensitivity import Sensitivity
from inference.bounds import Interval
from inference.errors import DataError
from inference.models import fit as fits
from inference.models.linear.aggregate_stats import sums_of
from inference.models.priors import DirichletPrior, GaussianPrior, ProbabilityPrior, RatePrior, RegressionPrior
from inference.releases.reports import categories_of, labelled_rows_of, rows_of, scalars_of

BITS = 20
UNIT = 2.0**-BITS
KEY = bytes(range(32))
BOUNDS = Interval(-5.0, 5.0)
BOX = Sensitivity(l1=10 << BITS, l2_squared=(10 << BITS) ** 2, bound=5 << BITS)
"""Of one number clipped to `BOUNDS`."""


def laplace(n: int = 50, epsilon: float = 1.0) -> LocalReports:
    clipped = np.linspace(-4, 4, n)[:, None] / UNIT
    mechanism = GridLaplace(epsilon, BOX)
    return mechanism.decode_reports(mechanism.randomise(clipped.astype(np.int64), KEY), UNIT)


def gaussian(n: int = 50, epsilon: float = 1.0, delta: float = 1e-5) -> LocalReports:
    mechanism = AnalyticGaussian(epsilon, delta, BOX)
    return mechanism.decode_reports(mechanism.randomise(np.zeros((n, 1), np.int64), KEY), UNIT)


def bits(n: int = 50, epsilon: float = 1.0, k: int = 4) -> LocalReports:
    mechanism = UnaryEncoding(epsilon, k)
    return mechanism.decode_reports(mechanism.randomise(np.arange(n) % k, KEY), 1.0)


def answers(n: int = 50, epsilon: float = 1.0, k: int = 4) -> LocalReports:
    mechanism = RandomisedResponse(epsilon, k)
    return mechanism.decode_reports(mechanism.randomise(np.arange(n) % k, KEY), 1.0)


def vectors(n: int = 50, width: int = 3) -> LocalReports:
    """Bare Gaussian rows."""
    return replace(gaussian(), values=np.random.default_rng(1).normal(size=(n, width)))


def aggregate_of(reports: LocalReports, statistic: str, number: int = 0, **parameters: Any) -> NoisyAggregate:
    """The round that these reports are of."""
    made = aggregate(reports.values.sum(0), 1.0, RoundRequest(statistic, parameters), len(reports.values), 10.0)
    return replace(made, reports=reports, mechanism=reports.mechanism, round_id=bytes([number]) * 16)


def column(
    reports: LocalReports, centre: float = 0.0, scale: float = 1.0, number: int = 0, **more: Any
) -> NoisyAggregate:
    parameters = {"columns": ["age"], "centre": [centre], "scale": [scale], "bound": [5.0], **more}
    return aggregate_of(reports, "sum", number, **parameters)


def sums(rows: int = 100, **changes: Any) -> NoisyAggregate:
    """Noisy sums of two features and a target."""
    parameters = {"columns": ["a", "b", "y"], "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [1.0] * 3, **changes}
    size = 5 + bool(parameters.get("target_square"))
    return aggregate(np.full(size, 10.0), 4.0, RoundRequest("regression", parameters), rows)


def test_reports_of_every_mechanism_come_in_at_all_epsilons() -> None:
    """The noise that devices really add, which is widened for the grid, is what ε and the bounds ask for."""
    for epsilon in (0.01, 0.5, 1.0, 8.0, 20.0):
        assert scalars_of(laplace(epsilon=epsilon), BOUNDS, parameters=2).laplace
        for delta in (1e-9, 1e-5, 1e-2):
            assert not scalars_of(gaussian(epsilon=epsilon, delta=delta), BOUNDS, parameters=2).laplace
        assert categories_of(bits(epsilon=epsilon)).categories == 4
        assert categories_of(answers(epsilon=epsilon, k=7)).categories == 7


def test_reports_of_a_round_are_in_the_columns_own_units() -> None:
    reports = laplace()
    found = scalars_of(column(reports, centre=40.0, scale=2.0), parameters=2)
    assert (found.bounds.lower, found.bounds.upper, found.column) == (30.0, 50.0, "age")
    assert found.scale == pytest.approx(20.0)
    np.testing.assert_allclose(found.z, 40 + 2 * reports.values[:, 0])
    assert found.attrs["mechanism"] == "grid-laplace"
    assert (found.attrs["epsilon"], found.attrs["delta"], found.attrs["n"]) == (1.0, 0.0, 50)


def test_a_round_without_privacy_claims_nothing() -> None:
    attrs = scalars_of(replace(column(laplace()), private=False), parameters=2).attrs
    assert (attrs["epsilon"], attrs["delta"], attrs["private"]) == (None, None, False)


def test_several_rounds_of_the_same_terms_are_one() -> None:
    assert len(scalars_of([column(laplace(30)), column(laplace(20), number=1)], parameters=2).z) == 50
    assert len(categories_of([bits(30), bits(20)]).values) == 50


BAD_SCALARS: list[tuple[Callable[[], Any], str]] = [
    (bits, "by the mechanism 'unary-encoding'; this model takes reports by 'grid-laplace' or 'analytic-gaussian'"),
    (lambda: sums(), "a sum of the statistic 'regression' by 'test' has no reports; ask for a round with a local"),
    (lambda: aggregate_of(laplace(), "moments"), "of the statistic 'moments'; expected 'sum' or 'mean'"),
    (list, "no reports; give those of at least one round"),
    (lambda: [laplace(), column(laplace())], "some reports are bare and some have a round's parameters"),
    (lambda: [laplace(), laplace(epsilon=2.0)], "reports 2 have epsilon 2.0, the first have 1.0"),
    (lambda: [laplace(), replace(laplace(), values=np.zeros((5, 2)))], r"reports 2 have the shape \(5, 2\)"),
    (lambda: [column(laplace()), column(laplace())], "a round is given twice"),
    (lambda: [column(laplace()), column(laplace(), 3.0, number=1)], "round 2 has another statistic or other param"),
    (lambda: replace(laplace(), values=np.zeros((9, 2))), r"shape \(9, 2\); expected \(n,\) or \(n, 1\)"),
    (lambda: column(laplace(), columns=["age", "bmi"]), "reports are of 2 columns; this model takes one"),
    (lambda: replace(laplace(), values=np.array([[1.0], [np.nan]])), "1 numbers in the reports are not finite"),
    (lambda: replace(laplace(), values=np.array([[1.0], [np.inf]])), "1 numbers in the reports are not finite"),
    (
        lambda: replace(laplace(), values=np.full((4, 1), 700.0)),
        "4 of 4 reports are more than 413.9 out",
    ),
    (lambda: laplace(1), "1 reports are too few: this model needs at least 2, as many as the model has parameters"),
    (
        lambda: replace(laplace(), epsilon=2.0),
        "noise of scale 10 at epsilon 2 is for bounds 20 apart, and these are 10",
    ),
    (lambda: replace(laplace(), epsilon=0.0), "claim epsilon 0; expected a finite number above 0"),
    (lambda: replace(laplace(), delta=1e-5), "by 'grid-laplace' claim delta 1e-05; expected 0"),
    (lambda: replace(laplace(), noise_scale=0.0), "claim noise of scale 0"),
    (lambda: replace(gaussian(), delta=0.0), "by 'analytic-gaussian' claim delta 0; expected a number between 0 and 1"),
    (lambda: replace(gaussian(), epsilon=1.1), "is not that of epsilon 1.1 and delta 1e-05 at the sensitivity 10"),
    (lambda: replace(gaussian(), delta=2e-5), "is not that of epsilon 1 and delta 2e-05"),
    (lambda: replace(gaussian(), noise_scale=30.0), "Gaussian noise of standard deviation 30 is not that of epsilon 1"),
]


@pytest.mark.parametrize(("given", "message"), BAD_SCALARS, ids=[message[:40] for _, message in BAD_SCALARS])
def test_reports_that_cannot_be_a_columns_are_refused(given: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        scalars_of(given(), BOUNDS, parameters=2)
    assert "\n" not in str(refused.value)


def test_bounds_have_to_be_known_and_to_agree() -> None:
    with pytest.raises(DataError, match=r"bounds are missing: .* give bounds=Interval\(low, high\)"):
        scalars_of(laplace(), parameters=2)
    with pytest.raises(DataError, match="bounds -4:4 were given, but the clients clipped to -5:5; leave them out"):
        scalars_of(column(laplace()), Interval(-4, 4), parameters=2)
    assert scalars_of(column(laplace()), BOUNDS, parameters=2).bounds.upper == 5.0


def test_families_that_start_at_zero_want_bounds_that_do() -> None:
    with pytest.raises(DataError, match="'exponential' describes numbers from 0 on, and value is clipped to -5:5"):
        fits.column(laplace(), "exponential", bounds=BOUNDS)
    with pytest.raises(DataError, match=r"'poisson' describes counts, and value is clipped at 2\.5"):
        fits.column(replace(laplace(), epsilon=0.25), "poisson", bounds=Interval(0, 2.5))


BAD_CATEGORIES: list[tuple[Callable[[], Any], str]] = [
    (laplace, "by the mechanism 'grid-laplace'; this model takes reports by 'randomised-response' or 'unary-encoding'"),
    (lambda: aggregate_of(bits(), "sum", columns=["a"]), "of the statistic 'sum'; expected 'histogram'"),
    (
        lambda: aggregate_of(bits(), "histogram", edges=[0, 1, 2]),
        "reports have 4 categories, but the round's histogram has 2 bins",
    ),
    (lambda: replace(bits(), values=bits().values * 2), "'unary-encoding': a bit is neither 0 nor 1"),
    (lambda: replace(answers(), values=np.arange(5)), "'randomised-response': a category is outside 0 to 3"),
    (lambda: replace(answers(), values=-np.arange(5)), "a category is outside 0 to 3"),
    (lambda: replace(answers(), values=np.zeros(9)), "reports are of type float64; expected whole numbers"),
    (lambda: replace(answers(), values=bits().values), r"shape \(50, 4\); expected categories \(n,\)"),
    (lambda: replace(bits(), values=answers().values), r"shape \(50,\); expected bits \(n, k\)"),
    (lambda: replace(bits(), probabilities=None), "without probabilities"),
    (lambda: replace(bits(), probabilities=(0.2, 0.5)), "p = 0.2 and q = 0.5; expected 0 < q < p < 1"),
    (lambda: replace(bits(), epsilon=2.0), "have epsilon 1, but the reports claim 2"),
    (lambda: replace(answers(), epsilon=2.0), "have epsilon 1, but the reports claim 2"),
    (lambda: bits(2), "2 reports are too few: this model needs at least 3"),
]


@pytest.mark.parametrize(("given", "message"), BAD_CATEGORIES, ids=[message[:40] for _, message in BAD_CATEGORIES])
def test_reports_that_cannot_be_categories_are_refused(given: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        categories_of(given())


def test_labels_and_concentrations_are_one_for_each_category() -> None:
    with pytest.raises(DataError, match="2 labels for 4 categories; give one for each"):
        fits.histogram(answers(), labels=("a", "b"))
    with pytest.raises(DataError, match="2 concentrations for 4 categories"):
        fits.histogram(bits(), DirichletPrior((1.0, 2.0)))


def test_perturbed_rows_are_refused_when_impossible() -> None:
    assert rows_of(vectors()).columns.columns == ("x0", "x1", "y")
    with pytest.raises(DataError, match=r"shape \(50, 1\); expected \(n, d \+ 1\)"):
        rows_of(vectors(width=1))
    with pytest.raises(DataError, match="5 reports are too few: this model needs at least 6"):
        rows_of(vectors(5))
    with pytest.raises(DataError, match="by the mechanism 'grid-laplace'"):
        rows_of(laplace())
    parameters = {"columns": ["a", "b", "y"], "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [5.0] * 3}
    with pytest.raises(DataError, match="at the sensitivity 17"):
        rows_of(replace(aggregate_of(vectors(), "sum", **parameters), sensitivity=17.0))
    with pytest.raises(DataError, match="scaled their rows, features and target, into a ball of radius 4"):
        rows_of(replace(aggregate_of(vectors(), "sum", **parameters, radius=4.0), sensitivity=10.0))


def test_labels_have_to_be_the_same_clients() -> None:
    found = labelled_rows_of(vectors(), answers(k=2))
    assert (found.variance_y, set(found.y)) == (0.0, {0.0, 1.0})
    assert found.p == pytest.approx(np.e / (1 + np.e))
    seen = found.columns
    assert (seen.columns, seen.bound.tolist(), seen.radius) == (("x0", "x1", "x2", "label"), [np.inf] * 4, np.inf)
    histogram = {"columns": ["rich"], "edges": [0.0, 0.5, 1.0]}
    assert (
        labelled_rows_of(vectors(), aggregate_of(answers(k=2), "histogram", **histogram)).columns.columns[-1] == "rich"
    )
    ball = {"columns": ["a", "b", "c"], "centre": [9.0] * 3, "scale": [2.0] * 3, "bound": [5.0] * 3, "radius": 4.0}
    known = labelled_rows_of(replace(aggregate_of(vectors(), "sum", **ball), sensitivity=10.0), answers(k=2)).columns
    assert (known.columns, known.bound.tolist(), known.radius) == (("a", "b", "c", "label"), [5, 5, 5, np.inf], 4.0)
    assert (known.centre.tolist(), known.scale.tolist()) == ([9, 9, 9, 0], [2, 2, 2, 1])
    with pytest.raises(DataError, match="40 labels for 50 clients' features"):
        labelled_rows_of(vectors(), answers(40, k=2))
    with pytest.raises(DataError, match="labels are one of 3 categories; expected randomised response of two"):
        labelled_rows_of(vectors(), answers(k=3))
    with pytest.raises(DataError, match="labels are one of 2 categories"):
        labelled_rows_of(vectors(), bits(k=2))


def test_labels_and_features_are_joined_by_client() -> None:
    """Whoever reported only one of both is left out; a client that is in two rounds of the same is refused."""
    ids = tuple(bytes([place]) * 16 for place in range(50))
    features, labels = replace(vectors(), clients=ids), replace(answers(k=2), clients=ids)
    others = replace(labels, values=labels.values[3:40][::-1], clients=ids[3:40][::-1])
    found = labelled_rows_of(features, others)
    assert found.x.tolist() == features.values[3:40].tolist()
    assert found.y.tolist() == labels.values[3:40].tolist()
    assert found.attrs["n"] == 37
    total = features.epsilon + labels.epsilon
    assert (found.attrs["features_epsilon"], found.attrs["epsilon"]) == (features.epsilon, total)
    strangers = replace(labels, clients=tuple(bytes([100 + place]) * 16 for place in range(50)))
    with pytest.raises(DataError, match="0 clients that reported both features and label are too few"):
        labelled_rows_of(features, strangers)
    with pytest.raises(DataError, match="7 clients reported in several of the rounds"):
        rows_of([features, replace(features, values=features.values[:7], clients=ids[:7])])


def test_a_made_up_report_is_left_out_and_noted() -> None:
    """One of a hundred must not spoil what the others paid for; with two of them they are of something else."""
    honest = np.random.default_rng(7).normal(size=(100, 3))
    parameters = {"columns": ["a", "b", "y"], "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [5.0] * 3}

    def round_of(liars: int) -> NoisyAggregate:
        values = honest.copy()
        values[:liars, 1] = 1e15
        bare = replace(gaussian(), values=values, clients=tuple(bytes([place]) * 16 for place in range(100)))
        return replace(aggregate_of(bare, "sum", **parameters), sensitivity=10.0)

    found = rows_of(round_of(1))
    assert found.x.tolist() == honest[1:, :2].tolist()
    assert found.notes == ("1 of 100 reports are where the mechanism's noise does not reach, and were left out",)
    assert rows_of(round_of(0)).notes == ()
    with pytest.raises(DataError, match=r"2 of 100 reports are more than .* outside the bounds"):
        rows_of(round_of(2))
    one = replace(laplace(100), values=np.vstack([[[1e15]], laplace(100).values[1:]]))
    scalars = scalars_of(one, BOUNDS, parameters=2)
    assert (len(scalars.z), scalars.attrs["n"], len(scalars.notes)) == (99, 99, 1)


def test_sums_come_with_their_weights_divided_out_and_variances_of_their_own() -> None:
    found = sums_of(sums(weights=[1, 2, 5], target_square=True), labels=False)
    np.testing.assert_allclose(found.value, [10, 10, 10, 5, 5, 2])
    np.testing.assert_allclose(found.noise_variance, [4, 4, 4, 1, 1, 0.16])
    assert found.n == 100
    assert len(sums_of(sums(target_square=True), labels=True).value) == 5
    assert (found.attrs["mechanism"], found.attrs["n"], found.attrs["epsilon"]) == ("test", 100, 1.0)


def test_sums_are_refused_where_they_are_no_regressions() -> None:
    with pytest.raises(DataError, match="expected 'regression'"):
        sums_of(column(laplace()), labels=False)
    with pytest.raises(DataError, match="4 rows are too few: this model needs at least 5, as many as there are sums"):
        sums_of(sums(4), labels=False)
    with pytest.raises(DataError, match="clipped to ±2 in units of its scale; logistic regression takes labels of -1"):
        sums_of(sums(bound=[1.0, 1.0, 2.0]), labels=True)
    with pytest.raises(DataError, match="a sum is not finite"):
        sums_of(replace(sums(), value=np.full(5, np.nan)), labels=False)


def test_no_error_holds_a_report() -> None:
    """A report is private already, but nobody else's affair."""
    for given in (np.array([[1234.5], [0.0]]), np.array([[1234.5], [np.nan]])):
        with pytest.raises(DataError) as refused:
            scalars_of(replace(laplace(), values=given), BOUNDS, parameters=2)
        assert "1234" not in str(refused.value)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (lambda: GaussianPrior(np.nan, 1, 1, 1), "setting 'mean' is nan"),
        (lambda: GaussianPrior(0, 0, 1, 1), "setting 'mean_sd' is 0, expected a number above 0"),
        (lambda: RatePrior(1, np.inf), "setting 'rate' is inf"),
        (lambda: ProbabilityPrior(failures=-1), "setting 'failures' is -1"),
        (lambda: DirichletPrior((1.0, 0.0)), r"DirichletPrior: concentration is \(1.0, 0.0\)"),
        (lambda: DirichletPrior((1.0, 1.0)).of(3), "2 concentrations for 3 categories"),
        (lambda: RegressionPrior(lkj=0), "setting 'lkj' is 0"),
    ],
)
def test_priors_are_distributions(prior: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prior()


def test_default_priors_follow_from_the_bounds() -> None:
    """Means of 100,000 draws within 5 standard errors of the values that the bounds imply: false alarm below 1e-5."""
    rng, count = np.random.default_rng(1), 100_000
    drawn = GaussianPrior.within(Interval(20, 80)).draws(rng, count)
    assert drawn["mean"].mean() == pytest.approx(50, abs=5 * 15 / count**0.5)
    assert np.log(drawn["sd"]).mean() == pytest.approx(np.log(6) - 0.1 * 4, abs=5 * 2 / count**0.5)
    assert RatePrior.of_poisson(12).draws(rng, count)["rate"].mean() == pytest.approx(4, abs=5 * 8 / count**0.5)


def test_default_priors_of_rates_allow_means_far_below_the_bounds() -> None:
    """Before, a prior about a third of the bounds overruled data that are a hundredth as wide."""
    rng, count = np.random.default_rng(2), 20_000
    low, high = np.quantile(RatePrior.of_poisson(1).draws(rng, count)["rate"], [0.025, 0.975])
    assert low < 1e-5 < 0.5 < high
    low, high = np.quantile(RatePrior.of_exponential(1).draws(rng, count)["rate"], [0.025, 0.99])
    assert low < 1 < 300 < high


def test_the_default_prior_of_a_normal_spread_allows_one_far_below_the_bounds() -> None:
    """Before, 95 % lay above a twelfth of the half-width."""
    sd = GaussianPrior.within(Interval(-1, 1)).draws(np.random.default_rng(3), 20_000)["sd"]
    low, high = np.quantile(sd, [0.02, 0.975])
    assert low < 1 / 1000 < 0.5 < high


def test_regression_priors_follow_from_the_bounds_and_are_the_papers_without_any() -> None:
    linear, logistic = (RegressionPrior.within(np.array([2.0, 2.0, 6.0]), logistic=one) for one in (False, True))
    assert astuple(linear) == pytest.approx((3.0, 3.0, 2.0, 1.0, 2 / 3, 3.0))
    assert (logistic.coefficient_sd, logistic.feature_sd) == (RegressionPrior().coefficient_sd, 1.0)
    assert RegressionPrior.within(np.full(3, np.inf), logistic=False) == RegressionPrior()
    assert RegressionPrior.within(np.array([1.0, np.inf]), logistic=True).feature_sd == 0.5


@pytest.mark.parametrize("missing", ["numpyro", "jax"])
def test_without_the_samplers_packages_the_error_names_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("inference.models.", "inference.mcmc."))]:
        if any(
            part in name
            for part in ("noise_aware", "nuts", "rectified", "moments", "summed", "perturbed", "categories")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        DataError, match=r"fits of local reports need NumPyro and JAX, .*; pip install -e '\.\[samplers\]'"
    ):
        fits.column(laplace(), bounds=BOUNDS)
