"""95 % intervals: their values against independent calculations, how they are written, and how they are drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib.colors
import matplotlib.figure
import numpy as np
import pytest
import scipy.stats as st
from pages import outline_of
from report_samples import whole_swarm
from rich.console import Console

from dca_proto.cli.show import drawn as drawn_table
from dca_proto.drawing import PALETTE
from dca_proto.report.learned import estimates, read
from inference.bounds import Interval
from inference.columns import Standardisation
from inference.jobs import find
from inference.jobs.estimates import (
    Estimate,
    Marginal,
    figures,
    interval_words,
    normal,
    of_draws,
    separated,
    student,
    table_of,
)
from inference.jobs.picture import plot_estimates
from inference.jobs.summary import Standard
from inference.mcmc.sums import NoisySums
from inference.models.coefficients import rows_of_slopes
from inference.models.conjugate import family
from inference.models.conjugate.family import CONJUGATE, posterior_of
from inference.models.glm.families import Bernoulli
from inference.models.glm.scored_fit import exact_fit
from inference.models.linear.baselines import nonprivate_regression
from inference.models.mixture.job import MixtureLaw
from inference.models.mixture.model import NO_NOISE, Components
from inference.models.sites.result import ALONE
from inference.problem import Problem, Schema

LEVEL = 0.95


def data(n: int = 12) -> Problem:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 2))
    bounds = {"a": Interval(-4, 4), "b": Interval(-2, 2), "y": Interval(-9, 9)}
    return Problem("made", Schema(("a", "b"), "y", bounds, {"y": "kg"}), X, X @ [2.0, -1.0] + rng.normal(size=n))


# --- values -----------------------------------------------------------------------------------------------------------


def test_least_squares_have_students_intervals() -> None:
    """By the normal equations; 9 degrees of freedom reach 2.26 standard errors, and not 1.96."""
    rows = data()
    design = np.column_stack([np.ones(12), rows.X])
    beta, (residual,), _, _ = np.linalg.lstsq(design, rows.y, rcond=None)
    errors = np.sqrt(residual / 9 * np.diag(np.linalg.inv(design.T @ design)))
    found = nonprivate_regression(rows).figures()
    for figure, mean, error in zip(found, beta, errors, strict=True):
        assert figure.mean == pytest.approx(mean)
        assert figure.interval == pytest.approx(st.t(9, mean, error).interval(LEVEL), rel=1e-6)


def test_a_normal_posterior_reaches_1_96_standard_deviations() -> None:
    assert normal(3.0, 2.0).interval == pytest.approx((3 - 2 * 1.959963985, 3 + 2 * 1.959963985))
    assert student(3.0, 2.0, 4).interval == pytest.approx((3 - 2 * 2.776445105, 3 + 2 * 2.776445105))
    rows = data(60)
    posterior = exact_fit(rows.X, (rows.y > 0) * 1.0, Bernoulli(), 1.0)
    found = posterior.figures()
    sd = posterior.covariance[1, 1] ** 0.5
    assert found[1].interval == pytest.approx(st.norm(posterior.coefficients[0], sd).interval(LEVEL))


def test_draws_have_quantiles_and_no_normal_approximation() -> None:
    drawn = np.random.default_rng(0).exponential(size=(4, 5000))
    found = of_draws(drawn)
    assert found.interval == pytest.approx(np.percentile(drawn, [2.5, 97.5]))
    assert found.interval is not None
    assert found.interval[0] > 0 > found.mean - 1.96 * (found.sd or 0)


CLOSED: list[tuple[str, Interval, Any]] = [
    ("bernoulli", Interval(0, 1), lambda x: {"theta": st.beta(1 + x.sum(), 1 + len(x) - x.sum())}),
    ("poisson", Interval(0, 4), lambda x: {"rate": st.gamma(0.25 + x.sum(), scale=1 / (0.125 + len(x)))}),
    ("exponential", Interval(0, 4), lambda x: {"rate": st.gamma(len(x) - 0.25, scale=1 / (2e-7 + x.sum()))}),
    ("categorical", Interval(0, 1), lambda x: {"theta": st.beta(1 + (x == 0).sum(), 1 + (x == 1).sum())}),
]


@pytest.mark.parametrize(("name", "interval", "law"), CLOSED, ids=[name for name, _, _ in CLOSED])
def test_a_family_without_noise_has_exact_quantiles(name: str, interval: Interval, law: Any) -> None:
    """Skewed ones: 2 of 30 values are 1, so that a normal interval of the share would go below zero."""
    x = np.r_[np.ones(2), np.zeros(28)]
    problem = Problem("made", Schema((), "x", {"x": interval}, alone=True), np.empty((30, 0)), x)
    job = find(name)
    result = job.reference(problem, job.settings())
    estimates = job.summarise(result, result, problem, None, problem.schema)["estimates"]
    ((_, exact),) = law(x).items()
    assert estimates[0]["interval_95"] == pytest.approx(exact.interval(LEVEL), rel=1e-9)
    assert estimates[0]["nonprivate_interval_95"] == estimates[0]["interval_95"]
    assert estimates[0]["interval_95"][0] > 0
    if name == "categorical":
        assert estimates[1]["interval_95"] == pytest.approx(st.beta(3, 29).interval(LEVEL))


def test_a_gaussian_without_noise_has_students_mean_and_inverse_gamma_variance() -> None:
    x = np.array([-1.0, 0.5, 2.0, 0.0, 1.5, 1.0])
    model = family("gaussian", "x", Interval(-10, 10), m=0.0, kappa=0.5, a=2.0, b=3.0)
    release = NoisySums(np.array([x.sum() / 10, (x**2).sum() / 100]), np.zeros(2), 6)
    found = posterior_of(model, release, rng=np.random.default_rng(0), method=CONJUGATE).quantile([0.025, 0.975])
    kappa, a = 0.5 + 6, 2 + 3.0
    b = 3 + ((x - x.mean()) ** 2).sum() / 2 + 0.5 * 6 * x.mean() ** 2 / (2 * kappa)
    mean = st.t(2 * a, x.sum() / kappa, (b / (a * kappa)) ** 0.5)
    assert found["mean"] == pytest.approx(mean.interval(LEVEL), rel=1e-9)
    assert found["variance"] == pytest.approx(st.invgamma(a, scale=b).interval(LEVEL), rel=1e-9)


def test_with_noise_a_family_has_the_quantiles_of_its_draws() -> None:
    model = family("bernoulli", "x", Interval(0, 1))
    result = posterior_of(model, NoisySums(np.array([2.0]), np.array([9.0]), 30), rng=np.random.default_rng(0))
    assert result.quantile([0.025, 0.975])["theta"] == pytest.approx(np.percentile(result.draws["theta"], [2.5, 97.5]))


def test_a_component_has_a_beta_weight_and_a_students_mean() -> None:
    """10,000 draws: an end is off by 0.03 posterior standard deviations (one standard error); within 5."""
    posterior = Components(np.array([3.0, 9.0]), np.array([2.0, 8.0]), np.array([[0.1], [0.5]]),
                          np.array([2.5, 6.0]), np.array([[0.3], [0.8]]))  # fmt: skip
    columns = Standardisation(("a",), np.array([10.0]), np.array([5.0]), np.ones(1))
    schema = Schema(("a",), "y", {"a": Interval(0, 20), "y": Interval(0, 1)})
    fit = MixtureLaw(schema, columns, posterior, NO_NOISE, None, 1, "", 12, True)  # type: ignore[arg-type]
    weight, mean, sd = (one.marginal for one in fit.estimates()[3:])
    student_t = st.t(5, 10 + 5 * 0.1, 5 * (0.3 / (2.5 * 2)) ** 0.5)
    assert weight.interval == pytest.approx(st.beta(3, 9).interval(LEVEL), abs=0.15 * st.beta(3, 9).std())
    assert mean.interval == pytest.approx(student_t.interval(LEVEL), abs=0.3 * student_t.std())
    assert sd.interval is None, "the noise in it is not known"


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "interval", "text"),
    [
        (7.267, [2.13, 12.41], "7.27 [2.1, 12.4]"),
        (52.21, [12.9, 91.4], "52.2 [13, 91]"),
        (-435.2, [-582.0, -288.0], "-435 [-580, -290]"),
        (0.98371, [0.4978, 1.4696], "0.984 [0.50, 1.47]"),
        (0.001, [-0.004, 0.006], "0.00100 [-0.0040, 0.0060]"),
        (123456.0, [111111.0, 135801.0], "123,500 [111,000, 136,000]"),
        (1.2e-9, [1.0e-9, 1.4e-9], "1.2e-09 [1e-09, 1.4e-09]"),
        (-0.01, [-0.6, 0.58], "-0.010 [-0.60, 0.58]"),
        (2.5, None, "2.5"),
        (2.5, [2.5, 2.5], "2.5 [2.5, 2.5]"),
    ],
)
def test_an_interval_is_rounded_to_two_digits_of_half_its_width(
    mean: float, interval: list[float] | None, text: str
) -> None:
    assert interval_words(mean, interval) == text


def test_the_page_agrees_with_the_terminal_and_the_file() -> None:
    """The same intervals, to the same digits, where they are read from the file again."""
    whole = whole_swarm()
    cells = [row[1] for row in estimates(whole).rows]
    assert cells == [row[1] for row in estimates(read(separated(whole))).rows]
    assert cells[0] == interval_words(6.156, whole["coefficients"][0]["interval_95"]) == "6.16 [0.2, 12.1]"
    on_page = [row[1] for row in outline_of(separated(whole)).rows if row and row[0] in ("bmi", "intercept")]
    assert on_page == [cells[0], cells[3].replace("-", "−")]


def coefficients(count: int) -> dict[str, Any]:
    """Of features with long names; the first feature's scale is 10."""
    rows = []
    for place in range(count):
        axis = Standard(unit="log odds per half-width", scale=10.0 - place / 10, centre=0.0)
        found = Estimate(f"worst fractal dimension {place}", "log odds", normal(-0.00508 * place, 0.0017), axis=axis)
        rows.append(found.row(normal(-0.0012, 0.005)))
    return {"private": True, "coefficients": rows, "intercept": figures(normal(46.0, 11.0), normal(38.1, 13.0))}


def test_a_table_of_many_coefficients_fits_80_columns_with_each_interval_whole() -> None:
    screen = io.StringIO()
    Console(file=screen, width=80).print(drawn_table(estimates(coefficients(30), 12)))
    lines = screen.getvalue().splitlines()
    assert lines[0].strip() == "12 of 31, the JSON has all; posterior: mean [95 % interval], log odds"
    assert max(map(len, lines)) <= 80
    assert sum(line.count("[") == 2 == line.count("]") for line in lines) == 12
    assert "…" not in screen.getvalue()


def test_a_table_of_sites_with_long_numbers_fits_80_columns() -> None:
    """Before, the head of the sites' own estimates took the room, and numbers were broken or names cut to pieces."""
    screen = io.StringIO()
    rows = [Estimate(f"hospital St. Elisabeth {place}", "euro", normal(-11_234.0, 557.0)) for place in range(3)]
    numbers = [{**row.row(normal(-11_201.0, 204.0)), "naive": -11_230.0} for row in rows]
    summary = {"private": True, "naive_title": ALONE, "estimates": numbers, "warnings": []}
    Console(file=screen, width=80).print(drawn_table(estimates(summary, 12)))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("-11,230 [-12,300, -10,100]" in line and "-11,201 [-11,600, -10,800]" in line for line in lines) == 3
    assert "Elisabeth" in screen.getvalue()


def test_points_beside_intervals_and_different_units_are_labelled() -> None:
    point = Estimate("a", "kg per cm", Marginal(1.0)).row(normal(1.0, 0.1))
    title, names, cells = table_of({"private": False}, [point], compared=True)
    assert title == "estimates; without privacy: mean [95 % interval], kg per cm"
    assert names == ["", "not private", "not covered by ε:\nwithout privacy"]
    assert cells == [["a", "1", "1.000 [0.80, 1.20]"]]
    other = Estimate("b", "kg per s", Marginal(1.0)).row(None)
    title, names, cells = table_of({"private": True}, [point, other], compared=False)
    assert (title, names[-1], [one[-1] for one in cells]) == ("estimates", "unit", ["kg per cm", "kg per s"])


# --- pictures ---------------------------------------------------------------------------------------------------------


def drawn(summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    """The figure, which is not written."""
    kept: list[Any] = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, path, **how: kept.append(figure))
    plot_estimates(summary, Path("unwritten.png"), title="Effect", private=True, **more)
    return kept[0]


def marks(axes: Any) -> list[np.ndarray]:
    """Of each estimate, the points as (x, y), shape ``(rows, 2)``."""
    return [np.column_stack(container.lines[0].get_data()) for container in axes.containers]


def test_many_coefficients_are_one_forest_with_two_marks_each(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = coefficients(30)
    figure = drawn(summary, monkeypatch)
    (axes,) = figure.axes
    private, plain = marks(axes)
    assert len(private) == len(plain) == 30
    scales = [one["standard"]["scale"] for one in summary["coefficients"]]
    estimates = [one["estimate"] for one in summary["coefficients"]]
    assert private[:, 0] == pytest.approx(np.multiply(scales, estimates))
    ends = axes.containers[0].lines[2][0].get_segments()[3][:, 0]
    assert ends == pytest.approx(scales[3] * np.array(summary["coefficients"][3]["interval_95"]))
    heights = np.sort(np.r_[private[:, 1], plain[:, 1]])[::-1]
    assert np.all(np.diff(heights) < -0.2), "no two intervals lie on each other"
    assert np.all(private[:, 1] > plain[:, 1])
    assert [label.get_text() for label in axes.get_yticklabels()][:1] == ["worst fractal dimension 0"]
    assert axes.get_xlabel() == "log odds per half-width"
    shapes = {(container.lines[0].get_marker(), container.lines[0].get_color()) for container in axes.containers}
    assert shapes == {("o", PALETTE[0]), ("s", PALETTE[1])}, "distinct without colours too"


def test_each_unit_has_its_own_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, variance = (
        Estimate(f"{name} of a", unit, normal(5, 1)).row(None) for name, unit in (("mean", "cm"), ("variance", ""))
    )
    axis = Standard(unit="share", scale=1.0, centre=0.0)
    shares = [Estimate(name, "", normal(0.2, 0.1), axis=axis).row(None) for name in "xy"]
    figure = drawn({"estimates": [mean, variance, *shares]}, monkeypatch)
    assert [axes.get_xlabel() for axes in figure.axes] == ["cm", "", "share"]
    assert [len(points) for axes in figure.axes for points in marks(axes)] == [1, 1, 2]


def test_coefficients_are_scaled_by_what_is_released_or_public() -> None:
    """The private fit's own scale, or the bounds' half-width: never the rows' standard deviation."""
    rows = data()
    scale = rows.schema.half_widths[:-1]
    found = rows_of_slopes([normal(0, 1)] * 3, ("a", "b", "y"), rows.schema, "identity", scale, "half-width")[1:]
    assert [one.axis for one in found] == [
        {"unit": "kg per half-width of the feature", "scale": size, "centre": 0.0} for size in (4.0, 2.0)
    ]
