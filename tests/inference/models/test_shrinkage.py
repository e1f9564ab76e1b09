"""Horseshoe and group priors: against quadrature without the sampler, calibrated, and the same on every path."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from long_cases import mostly_long
from pandas import DataFrame
from scipy.special import gammaln

from inference.bounds import Interval
from inference.columns import Standardisation
from inference.errors import DataError
from inference.estimators import PrivateLinearRegression
from inference.jobs import find
from inference.models.categories.law import Categories
from inference.models.categories.model import Model
from inference.models.coefficients import LINKS, LOG, Coefficients, Spread
from inference.models.shrinkage import Scales, Shrinkage, gibbs, shrinkable
from inference.models.survival.hazards import Hazards
from inference.models.survival.rounds import Columns
from inference.problem import Schema
from inference.saved import load_result, saved

CHAINS, SIGMAS = 400, 5.0  # a false alarm of one normal figure: 6e-7
ONE, TWO = np.array([[30.0]]), np.array([[60.0, 25.0], [25.0, 40.0]])
CASES = [
    pytest.param(ONE, [0.4], Scales(np.zeros(1, int), True, 1.0, 0.1, np.full(1, 0.8)), id="horseshoe-1"),
    pytest.param(TWO, [0.5, -0.1], Scales(np.zeros(2, int), True, 1.0, 0.05, np.array([1.0, 0.6])), id="horseshoe-2"),
    pytest.param(TWO, [0.3, 0.2], Scales(np.zeros(2, int), False, 4.0, 0.5, np.full(2, 0.5)), id="one-group"),
    pytest.param(TWO, [0.3, 0.2], Scales(np.array([0, 1]), False, 4.0, 0.5, np.full(2, 0.5)), id="two-groups"),
    pytest.param(TWO, [0.3, 0.2], Scales(np.array([-1, 0]), False, 4.0, 0.3, np.full(2, 0.7)), id="one-free"),
    pytest.param(
        TWO, [0.3, 0.2], Scales(np.zeros(2, int), True, 1.0, 0.05, np.full(2, 0.8), np.zeros(2, int)), id="one-column"
    ),
]


def half_t(x: np.ndarray, degrees: float, size: float) -> np.ndarray:
    log = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) + np.log(2 / (size * sqrt(degrees * pi)))
    return np.exp(log) * (1 + (x / size) ** 2 / degrees) ** (-(degrees + 1) / 2)


def by_quadrature(precision: np.ndarray, pull: np.ndarray, scales: Scales) -> tuple[np.ndarray, np.ndarray]:
    """Mean and mean square of slopes: a grid over the logarithms of all scales; given them, slopes are normal."""
    d, groups = len(pull), int(scales.group.max()) + 1
    column = np.arange(d) if scales.column is None else scales.column
    count = groups + (int(column.max()) + 1) * scales.local
    axes = np.meshgrid(*[np.linspace(-14.0, 10.0, 50 if count == 3 else 300)] * count, indexing="ij")
    found = [np.exp(axis.ravel()) for axis in axes]
    shared = [scales.size * one for one in found[:groups]]
    weight = np.prod([half_t(one, scales.degrees, scales.size) * one for one in shared], axis=0)
    if scales.local:
        weight = weight * np.prod([half_t(one, 1.0, 1.0) * one for one in found[groups:]], axis=0)
    diagonal = np.zeros((weight.size, d))
    for j, group in enumerate(scales.group):
        if group >= 0:
            sd = shared[group] * (found[groups + column[j]] if scales.local else 1.0)
            diagonal[:, j] = sd**-2.0
            weight = weight / sd
    Q = precision + np.eye(d) * diagonal[:, None, :]
    cov = np.linalg.inv(Q)
    mean = cov @ pull
    weight = weight * np.linalg.det(Q) ** -0.5 * np.exp((mean @ pull - (mean @ pull).max()) / 2)
    weight /= weight.sum()
    return weight @ mean, weight @ (mean**2 + np.einsum("kjj->kj", cov))


def far(draws: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Standard errors between draws' mean and the expected one; draws of different rows are independent."""
    return np.abs(draws.mean(axis=0) - expected) / (draws.std(axis=0) / sqrt(len(draws)))


@pytest.mark.long
@pytest.mark.parametrize(("precision", "mean", "scales"), CASES)
def test_draws_have_the_moments_of_quadrature(precision: np.ndarray, mean: list[float], scales: Scales) -> None:
    """Ten figures of a case, so a false alarm in 6e-6 of the runs of a case. Slab and likelihood are one normal law."""
    at = np.array(mean)
    first, second = by_quadrature(precision, precision @ at, scales)
    drawn = gibbs(at, precision, scales, np.random.default_rng(1), CHAINS, 600, 3).slopes[:, 100:]
    assert far(drawn.mean(axis=1), first).max() < SIGMAS
    assert far((drawn**2).mean(axis=1), second).max() < SIGMAS


@pytest.mark.parametrize(("precision", "mean", "scales"), CASES)
def test_draws_of_the_prior_have_the_moments_of_quadrature(
    precision: np.ndarray, mean: list[float], scales: Scales
) -> None:
    """A false alarm in 2e-6 of the runs of a case."""
    _, second = by_quadrature(np.diag(scales.slab**-2.0), np.zeros(len(mean)), scales)
    drawn = scales.prior(np.random.default_rng(2), 20_000)
    assert far(drawn**2, second).max() < SIGMAS
    assert far(drawn, np.zeros(len(mean))).max() < SIGMAS


def test_one_slope_has_the_density_of_its_definition() -> None:
    """The quadrature itself, against a grid over slope, λ and τ that knows no normal law's algebra."""
    scales = CASES[0].values[2]
    b, v, c = 0.3, 0.1, 0.8
    size = np.exp(np.linspace(-16, 1, 150))
    theta = np.r_[-size[::-1], size][:, None, None]
    local, shared = np.exp(np.linspace(-8, 7, 70))[:, None], 0.1 * np.exp(np.linspace(-8, 7, 70))
    sd = local * shared
    prior = np.exp(-((theta / sd) ** 2) / 2) / sd / (1 + local**2) / (1 + (shared / 0.1) ** 2) * local * shared
    given = np.exp(-(((theta - b) / v) ** 2) / 2 - (theta / c) ** 2 / 2) * np.abs(theta)
    weight = (prior * given).sum(axis=(1, 2))
    precision = np.array([[v**-2 + c**-2]])
    found, _ = by_quadrature(precision, np.array([b / v**2]), scales)
    assert found[0] == pytest.approx((weight @ theta[:, 0, 0]) / weight.sum(), rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("local", [True, False], ids=["horseshoe", "groups"])
def test_ranks_of_the_truth_are_uniform(local: bool) -> None:
    """Simulation-based calibration: truths from the prior, sums given them. A false alarm in 1 of 1,000 runs."""
    d, rounds, kept, cells = 3, 240, 99, 10
    group = np.zeros(d, int) if local else np.array([0, 0, 1])
    scales = Scales(group, local, 1.0 if local else 4.0, 0.15, np.full(d, 0.7))
    rng = np.random.default_rng(4)
    V = 0.15**2 * np.array([[1.0, 0.6, 0.0], [0.6, 1.0, 0.3], [0.0, 0.3, 1.0]])
    precision = np.linalg.inv(V) + np.diag(scales.slab**-2.0)
    truths, ranks = scales.prior(rng, rounds), []
    for truth in truths:
        b = rng.multivariate_normal(truth, V)
        drawn = gibbs(np.linalg.solve(precision, np.linalg.solve(V, b)), precision, scales, rng, kept, 60, 60).slopes
        ranks.append((drawn[:, -1] < truth).sum(axis=0))
    counts = [np.bincount(np.array(ranks)[:, j] * cells // (kept + 1), minlength=cells) for j in range(d)]
    worst = max(float(((one - rounds / cells) ** 2).sum() / (rounds / cells)) for one in counts)
    assert worst < 29.7  # chi-squared with 9 degrees: exceeded with probability 5e-4 by one of 3 slopes, 1e-3 by any


def law(link: str = "identity", d: int = 3, **more: Any) -> Coefficients:
    """A regression whose second slope is large beside its error; the others are not."""
    names = tuple("abcdefgh"[:d])
    columns = Standardisation((*names, "y"), np.full(d + 1, 2.0), np.full(d + 1, 4.0), np.full(d + 1, 5.0))
    mean = np.r_[0.2, 0.02, 0.5, np.full(d - 2, -0.02)]
    given = {"prior_sd": 1.0, "residual_variance": 0.5, "warnings": ("a doubt",), "private": True, **more}
    return Coefficients(columns=columns, mean=mean, cov=0.05**2 * np.eye(d + 1), link=link, **given)


def test_small_effects_shrink_and_large_ones_stay() -> None:
    before = law()
    after = Shrinkage(shrinkage="horseshoe").shrink(before, 100)
    ratio = np.abs(after.mean / before.mean)[1:]
    assert ratio[1] > 0.9
    assert ratio[[0, 2]].max() < 0.7
    assert after.sd[1] < before.sd[1] * 0.9
    assert after.warnings == before.warnings
    assert after.posterior().private
    grouped = Shrinkage(shrinkage="groups", prior_groups="a,c;b").shrink(before, 100)
    assert np.abs(grouped.mean[2]) > 0.9 * 0.5
    assert grouped.sd[1] < before.sd[1] * 0.9


@pytest.mark.parametrize("link", LINKS)
def test_a_file_keeps_draws_table_and_predictions(link: str, tmp_path: Path) -> None:
    spread = Spread("dispersion", 0.3, 0.1) if link == LOG else None
    before = Shrinkage(shrinkage="horseshoe").shrink(law(link, spread=spread), 60).posterior()
    path, X = tmp_path / "result.json", np.array([[2.0, 3.0, 1.0], [0.0, 8.0, 2.0]])
    file = {**before.summary(), "ok": True, "private": True, "posterior": saved(before)}
    path.write_text(json.dumps(file), encoding="utf-8")
    after = load_result(path)
    np.testing.assert_allclose(after.draws["coefficients"], before.draws["coefficients"], rtol=1e-4)
    np.testing.assert_allclose(after.predict(X), before.predict(X), rtol=1e-6)
    np.testing.assert_allclose(after.predict_interval(X), before.predict_interval(X), rtol=0.02, atol=0.01)
    for own, other in zip(after.estimates(), before.estimates(), strict=True):
        assert own.marginal[:2] == pytest.approx(other.marginal[:2])
        assert own.marginal.interval == pytest.approx(other.marginal.interval)
        assert own.marginal.prior == pytest.approx(other.marginal.prior)
    assert [one.marginal.prior is None for one in before.estimates()][:2] == [True, False]
    assert any("doubt" in one for one in after.warnings)


def test_columns_that_repeat_each_other_share_an_effect() -> None:
    """The sum of two slopes is known, their difference is not: predictions stay, and intervals hold either slope."""
    cov = 0.02**2 * np.eye(3)
    cov[1:, 1:] += 0.6**2 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    columns = Standardisation(("a", "b", "y"), np.zeros(3), np.ones(3), np.full(3, 5.0))
    twins = Coefficients(columns=columns, mean=np.array([0.0, 0.3, 0.2]), cov=cov, prior_sd=1.0)
    after = Shrinkage(shrinkage="horseshoe").shrink(twins, 400).posterior()
    mean, _, ends = after.slopes()
    assert mean.sum() == pytest.approx(0.5, abs=0.05)
    assert (ends[:, 0] < 0.02).all()
    assert (ends[:, 1] > 0.48).all()


def test_settings_say_what_is_wrong() -> None:
    for given, words in (
        ({"shrinkage": "horsehoe"}, "did you mean 'horseshoe'"),
        ({"prior_groups": "a"}, "'prior_groups' is 'a'.*expected it with shrinkage=groups"),
        ({"prior_effects": 3, "shrinkage": "groups"}, "'prior_effects' is 3.*expected it with shrinkage=horseshoe"),
        ({"prior_effects": 0, "shrinkage": "horseshoe"}, "'prior_effects' is 0, expected a number above 0"),
    ):
        with pytest.raises(DataError, match=words):
            Shrinkage(**given)
    features = ("age", "smoker=no", "smoker=yes", "bmi")
    for groups, words in (("age;bim", "'bim' is unknown.*'bmi'"), ("age,bmi;age", "'age' twice")):
        with pytest.raises(DataError, match=words):
            Shrinkage(shrinkage="groups", prior_groups=groups).places(features)
    found = Shrinkage(shrinkage="groups", prior_groups="smoker;bmi").places(features)
    assert found.tolist() == [-1, 0, 0, 1]
    with pytest.raises(DataError, match="no normal law of slopes"):
        Shrinkage(shrinkage="horseshoe").shrink(law(point=True))


def grades(classes: int = 3, *, ordered: bool = True, backwards: bool = False) -> Categories:
    """A law of a regression of categories: the second feature matters, the others hardly do."""
    model, d = Model(ordered, classes, 3), 3
    effects = [0.02, 0.6, -0.02]
    theta = np.r_[-1.0, 1.0, effects] if ordered else np.r_[np.zeros(4), 0.3, effects, -0.2, np.negative(effects)]
    theta = theta.reshape(-1, d + 1)[::-1].ravel() if backwards else theta
    names, ones = ("a", "b", "c", "y"), np.r_[2.0, 4.0, 5.0, 1.0]
    columns = Standardisation(names, np.zeros(4), ones, np.full(4, 5.0))
    phi = model.phi(theta)
    return Categories(
        columns=columns, model=model, codes=np.arange(3.0), mean=phi, cov=0.05**2 * np.eye(phi.size), prior_sd=2.0
    )


def hazards() -> Hazards:
    """A law of two intervals, a treatment, and two features, of which the second matters."""
    return Hazards(
        columns=Standardisation(("a", "b"), np.zeros(2), np.array([2.0, 4.0]), np.full(2, np.inf)),
        layout=Columns("months", "event", (6.0, 12.0), "arm", 2, ("a", "b")),
        group_shares=np.array([0.5]),
        mean=np.array([-2.0, -1.5, 0.1, 0.02, 0.6]),
        cov=0.05**2 * np.eye(5),
        prior_sd=2.5,
    )


@pytest.mark.parametrize("before", [grades(), grades(ordered=False), hazards()], ids=["grades", "kinds", "hazards"])
def test_laws_of_categories_and_hazards_shrink_alike(before: Any) -> None:
    """Effects of one feature stay, others shrink; the table, the draws and the prior's interval are of own units."""
    after = Shrinkage(shrinkage="horseshoe").shrink(before, 200)
    effects = ["b"] if isinstance(before, Hazards) else [name for name in before.names if name.startswith("b")]
    plain, shrunk = before.posterior(), after.posterior()
    for own, other in zip(shrunk.estimates(), plain.estimates(), strict=True):
        held = own.name in effects or own.name.startswith(("threshold", "intercept", "arm"))
        ratio = abs(own.marginal.mean / other.marginal.mean)
        assert (0.85 < ratio < 1.15) if held else ratio < 0.85, own.name
    drawn = next(iter(shrunk.draws.values())).reshape(-1, len(before.shrinkable().places))
    slopes = [one.marginal.mean for one in shrunk.estimates()][-drawn.shape[1] :]
    if not isinstance(before, Hazards):
        slopes = list(shrunk.slopes()[0])
    np.testing.assert_allclose(drawn.mean(axis=0), slopes)
    assert "about" in after.method
    with pytest.raises(DataError, match="'months' is unknown"):
        Shrinkage(shrinkage="groups", prior_groups="months").shrink(before)


@pytest.mark.long
def test_no_category_is_special() -> None:
    """Effects to the first category are those to the last, with all categories in the other order."""
    first, last = (
        Shrinkage(shrinkage="horseshoe").shrink(grades(ordered=False, backwards=backwards), 400)
        for backwards in (False, True)
    )
    np.testing.assert_allclose(last.effects[1], -first.effects[1], atol=0.01)
    np.testing.assert_allclose(last.effect_sd[1], first.effect_sd[1], rtol=0.25)


SHRINKING = (
    "regression",
    "regression-bounded",
    "logistic",
    "poisson-regression",
    "robust-regression",
    "ordinal-regression",
    "multinomial-regression",
    "survival-regression",
)


@pytest.mark.parametrize("name", SHRINKING)
def test_a_job_refuses_unknown_columns_before_its_rounds(name: str) -> None:
    job, bounds = find(name), {"event": Interval(0, 1), "a": Interval(-1, 1), "y": Interval(0, 1)}
    schema = Schema(("event", "a"), "y", bounds)
    with pytest.raises(DataError, match="column of prior_groups 'b' is unknown"):
        job.check(schema, job.settings(shrinkage="groups", prior_groups="b"))


def test_flat_slabs_and_single_columns_have_a_posterior() -> None:
    for d in (2, 3):
        for kind in ("horseshoe", "groups"):
            found = Shrinkage(shrinkage=kind).shrink(law(d=d, prior_sd=None), 30)
            assert found.shrunk is not None
            assert np.isfinite(found.shrunk.drawn).all()
    free = Shrinkage(shrinkage="groups", prior_groups="a").shrink(law(prior_sd=None), 30)
    assert [one.prior is None for one in free.figures()] == [True, False, True, True]


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shrinkage.shrink, "__defaults__", (60, ()))


@pytest.mark.long
@pytest.mark.usefixtures("few_draws")
def test_a_refit_keeps_the_prior_that_it_does_not_name() -> None:
    """Of a law whose refits differ in the slab alone. Before, each refit of a shrunk fit went back to the normal prior.

    Draws are the same each time, so the figures are those of the fit with all settings from the start.
    """

    def fit(prior_sd: float = 1.0) -> Coefficients:
        return law(prior_sd=prior_sd, refitter=shrinkable(partial(fit, prior_sd=prior_sd)))

    before = fit()
    few = Shrinkage(shrinkage="horseshoe", prior_effects=0.1).shrink(before)
    fresh = Shrinkage(shrinkage="horseshoe", prior_effects=1.5).shrink(law(prior_sd=2.0))
    again = few.posterior().refit(prior_sd=2.0, prior_effects=1.5)
    np.testing.assert_allclose(again.slopes()[2], fresh.posterior().slopes()[2])
    kept = few.posterior().refit(prior_sd=0.7).slopes()[2]
    plain = law(prior_sd=0.7).posterior().slopes()[2]
    assert (np.diff(kept)[[0, 2]] < 0.9 * np.diff(plain)[[0, 2]]).all()
    np.testing.assert_allclose(again.refit(shrinkage="none").slopes()[0], law().posterior().slopes()[0])
    grouped = again.refit(shrinkage="groups", prior_groups="a,c").refit(prior_sd=2.0)
    other = Shrinkage(shrinkage="groups", prior_groups="a,c").shrink(law(prior_sd=2.0)).posterior()
    np.testing.assert_allclose(grouped.slopes()[2], other.slopes()[2])


@pytest.mark.usefixtures("few_draws")
def test_groups_of_an_estimator_have_the_names_of_its_rows() -> None:
    """Before, only x0, x1 and so on were known in a fit of raw rows."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 2))
    y = X[:, 0] + rng.standard_normal(60)
    given = {"shrinkage": "groups", "prior_groups": "age;bmi"}
    named = PrivateLinearRegression(**given).fit(DataFrame(X, columns=["age", "bmi"]), y)
    schema = Schema(("age", "bmi"), "y", {name: Interval(-9, 9) for name in ("age", "bmi", "y")})
    numbered = PrivateLinearRegression(shrinkage="groups", prior_groups="x0;x1").fit(X, y)
    for one in (named, PrivateLinearRegression(schema=schema, **given).fit(X, y)):
        np.testing.assert_allclose(one.coef_interval_, numbered.coef_interval_)


@pytest.mark.usefixtures("few_draws")
def test_too_few_raw_rows_are_refused() -> None:
    """Before, the sampler broke off: the fit took the residuals of more columns than rows for nothing."""
    X = np.random.default_rng(3).standard_normal((6, 8))
    y = X[:, 0] + 1
    with pytest.raises(DataError, match="6 rows cannot determine 9 coefficients and the residual variance"):
        PrivateLinearRegression(shrinkage="horseshoe").fit(X, y)
    known = PrivateLinearRegression(shrinkage="horseshoe", residual_variance=0.5).fit(X, y)
    assert np.isfinite(known.coef_interval_).all()
    exact = law(refitter=None)
    sure = Coefficients(columns=exact.columns, mean=exact.mean, cov=np.zeros((4, 4)), prior_sd=1.0)
    with pytest.raises(DataError, match="knows some combination of the 3 slopes exactly"):
        Shrinkage(shrinkage="groups").shrink(sure)


@pytest.mark.parametrize("shrinkage", mostly_long(["horseshoe", "groups"], ["groups"]))
@pytest.mark.parametrize("link", LINKS)
def test_a_prior_warns_if_noise_hides_effects_that_matter(link: str, shrinkage: str) -> None:
    """Effects of a third, or of half of the largest, within four times the slopes' typical standard deviation."""
    spread = Spread("dispersion", 0.3, 0.1) if link == LOG else None
    for sd, largest, named in (
        (0.05, 0.5, False),
        (0.07, 0.7, False),
        (0.07, 0.5, True),
        (0.09, 0.9, True),
        (0.13, 0.0, True),
        (0.02, 0.10, True),
        (0.02, 0.20, False),
        (0.02, 0.05, False),  # may be chance, and 0.08 is small
    ):
        noisy = replace(law(link, spread=spread), cov=sd**2 * np.eye(4), mean=np.array([0.2, 0.01, largest, -0.01]))
        texts = Shrinkage(shrinkage=shrinkage).shrink(noisy, 30).warnings
        assert any("may take effects of up to about" in text for text in texts) == named, (sd, largest)


@pytest.mark.parametrize("shrinkage", mostly_long(["horseshoe", "groups"], ["groups"]))
def test_a_stretch_of_all_coefficients_does_not_explain_effects(shrinkage: str) -> None:
    """As from clipped gradients. In the covariance alone it would be noise along the effects."""
    mean, sd, stretch = np.r_[0.2, 0.5, -0.4, 0.3, 0.5, -0.4, 0.3], 0.05, 0.15
    plain = replace(law(d=6), mean=mean, cov=sd**2 * np.eye(7))
    unsure = replace(plain, cov=plain.cov + stretch**2 * np.outer(mean, mean), stretch=stretch)
    before, after = (Shrinkage(shrinkage=shrinkage).shrink(one, 400) for one in (plain, unsure))
    assert after.mean == pytest.approx(before.mean, abs=0.02)
    assert after.sd[1:] == pytest.approx(np.hypot(before.sd, stretch * before.mean)[1:], rel=0.15)
