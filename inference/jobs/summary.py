"""The typed record of a job's summary: plain JSON values with checked names.

    {"coefficients": [{"name": "bmi", "unit": "points per kg/m²", "estimate": 8.1, "estimate_sd": 1.2,
                       "interval_95": [5.7, 10.5], "prior_interval_95": [-20.0, 20.0], "contraction": 0.986,
                       "nonprivate": 7.6, "nonprivate_sd": 0.7, "nonprivate_interval_95": [6.2, 9.0], ...}], ...}

Unknown values are None: the trainer of a real federation has no rows from which to compute an estimate without privacy.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NotRequired, TypedDict

NAIVE: Final = "naive_title"
INTERVAL_NOTE: Final = "interval_note"
Ends = list[float]
"""Lower and upper end of an interval."""


class Standard(TypedDict):
    """How a picture shows an estimate: as (value - centre)·scale, on one axis with all others of that unit."""

    unit: str
    scale: float
    centre: float


class Place(TypedDict):
    """An estimate's position on a curve.

    Attributes:
        series: the curve's name. x: the abscissa. axis: what it measures, with its unit.
    """

    series: str
    x: float
    axis: NotRequired[str]


class Family(TypedDict):
    """Differences whose 95 % intervals hold together, by Bonferroni: each has the level 1 - 0.05/size.

    Attributes:
        size: how many differences. p_adjusted: of no difference, for this one: times size, at most 1.
    """

    size: int
    p_adjusted: float


class Figures(TypedDict):
    """One estimate without its name, with and without privacy.

    Attributes:
        prior_interval_95: of a proper prior. contraction: how much of the prior's spread is gone.
        nonprivate, nonprivate_sd, nonprivate_interval_95: files have them in `not_covered_by_epsilon` instead.
    """

    estimate: float | None
    estimate_sd: float | None
    interval_95: Ends | None
    prior_interval_95: Ends | None
    contraction: float | None
    nonprivate: NotRequired[float | None]
    nonprivate_sd: NotRequired[float | None]
    nonprivate_interval_95: NotRequired[Ends | None]


class Row(Figures):
    """One estimate.

    Attributes:
        naive: the estimate from the reports without a model of their noise, with its sd and interval.
        family: of a difference of two groups out of more, whose interval holds together with those of the others.
    """

    name: str
    unit: str
    standard: NotRequired[Standard]
    family: NotRequired[Family]
    at: NotRequired[Place]
    naive: NotRequired[float | None]
    naive_sd: NotRequired[float | None]
    naive_interval_95: NotRequired[Ends | None]


class Score(TypedDict):
    """A score on held-out rows, with the one without privacy and that of a constant prediction."""

    name: str
    private: float | None
    nonprivate: float | None
    constant: float | None
    higher_is_better: bool


class HeldOut(TypedDict):
    """Root mean square errors in `unit`, or scores, on held-out rows."""

    rows: int
    unit: NotRequired[str]
    rmse_private: NotRequired[float]
    rmse_nonprivate: NotRequired[float | None]
    rmse_zero: NotRequired[float]
    scores: NotRequired[list[Score]]


class Draws(TypedDict):
    """Number and quality of draws; diagnostics are None for independent draws from a closed form.

    Attributes:
        acceptance: mean acceptance rate of each block.
    """

    method: str
    chains: int
    draws: int
    seconds: float
    r_hat_max: float | None
    ess_bulk_min: float | None
    ess_tail_min: float | None
    acceptance: dict[str, float]
    divergences: int | None


class Iterated(TypedDict):
    """The score after an iteration."""

    number: int
    name: str
    value: float | None


class LogRank(TypedDict):
    """The log-rank test: the statistic is chi-squared with these degrees of freedom if all groups have one hazard."""

    statistic: float
    degrees: int
    p_value: float


class AtRisk(TypedDict):
    """Numbers at risk of one survival curve: at each abscissa the estimate and the noise's standard deviation."""

    series: str
    x: list[float]
    number: list[float]
    sd: list[float]


class Test(TypedDict):
    """A test of a column between groups: F with these degrees of freedom, or chi-squared if those below are None."""

    test: str
    column: str
    statistic: float
    degrees: float
    degrees_below: float | None
    p_value: float


class TableCell(TypedDict):
    """Where an estimate stands in a table of columns: which column, which figure, which group of rows."""

    column: str
    figure: str
    group: str


class MarginalFit(TypedDict):
    """A released marginal beside synthetic rows; distances are total variations, shares of rows in another cell.

    Attributes:
        name: of its columns. cells: of the table. noise_distance: what noise makes of the release, on average.
        released_distance: from the release to the synthetic rows.
        nonprivate_distance, nonprivate_released_distance: from the true rows to the synthetic ones, and to the release;
            files have them in `not_covered_by_epsilon` instead.
    """

    name: str
    cells: int
    noise_distance: float
    released_distance: float
    nonprivate_distance: NotRequired[float | None]
    nonprivate_released_distance: NotRequired[float | None]


class MarginalError(TypedDict):
    """How far a marginal of synthetic rows, and its release, are from that of the true rows."""

    name: str
    nonprivate_distance: float | None
    nonprivate_released_distance: float | None


class Groups(TypedDict):
    """Groups of clients that are asked in turn: the number of groups, and of clients in each."""

    number: int
    size: int


class Nonprivate(TypedDict):
    """An estimate without privacy."""

    name: NotRequired[str]
    nonprivate: float | None
    nonprivate_sd: float | None
    nonprivate_interval_95: Ends | None


class SavedColumns(TypedDict):
    """How clients project rows: the features, then the target.

    Attributes:
        centre, scale, bound, radius, within: as in `inference.columns`; a bound or radius of None is infinite.
    """

    columns: list[str]
    centre: list[float]
    scale: list[float]
    bound: list[float | None]
    radius: float | None
    within: list[list[float]] | None


class SavedRegression(SavedColumns):
    """The normal law of a regression, in the standardised columns of the rounds (`inference.models.coefficients`).

    Attributes:
        link: one of identity, logit and log. constant: the constant feature.
        mean, cov: of its coefficient and the slopes. residual_variance: of a linear regression.
        spread: mean and sd of a further parameter of the targets. log_most: ln of the largest mean count.
        by_draws: whether draws also have the spread of residuals, for predictions.
    """

    link: str
    constant: float
    mean: list[float]
    cov: list[list[float]]
    residual_variance: float
    spread: list[float] | None
    log_most: float | None
    by_draws: bool


class SavedCategories(SavedColumns):
    """The normal law of a regression of categories (`inference.models.categories`).

    Attributes:
        ordered: whether the categories have an order. codes: of the categories. texts: their labels, if they have
            some. mean, cov: of the model's parameters.
    """

    ordered: bool
    codes: list[float]
    texts: NotRequired[list[str]]
    mean: list[float]
    cov: list[list[float]]


class SavedHazards(TypedDict):
    """The normal law of proportional hazards (`inference.models.survival`).

    Attributes:
        duration, event, group, features: names of columns. times: the ends of the intervals. groups: how many.
        censored, first_group: the first code of the event and of the group. texts: their labels, if they have some.
        centre, scale: of the features.
        group_shares: of each further group. mean, cov: of log hazards, then of effects of groups and features.
    """

    duration: str
    event: str
    times: list[float]
    group: str | None
    groups: int
    features: list[str]
    censored: int
    first_group: int
    texts: NotRequired[tuple[list[str], list[str]]]
    centre: list[float]
    scale: list[float]
    group_shares: list[float]
    mean: list[float]
    cov: list[list[float]]


class SavedPosterior(TypedDict):
    """The posterior's law, from which `inference.saved.load_result` makes it again.

    Attributes:
        draws: by parameter, nested lists by chain, draw and the parameter's own axes; empty if the law is exact.
        axes: names of each parameter's own axes. coords: labels along them.
        regression, categories, hazards: the law of such a model; None of all others.
        texts: the labels of each column of texts, in the order of their codes.
    """

    model: str
    axes: dict[str, list[str]]
    coords: dict[str, list[str | float]]
    draws: dict[str, list[Any]]
    regression: SavedRegression | None
    categories: SavedCategories | None
    hazards: SavedHazards | None
    texts: NotRequired[dict[str, list[str]]]


class NotCovered(TypedDict):
    """Figures from raw rows, without noise."""

    why: str
    coefficients: NotRequired[list[Nonprivate]]
    estimates: NotRequired[list[Nonprivate]]
    intercept: NotRequired[Nonprivate]
    marginals: NotRequired[list[MarginalError]]
    test: NotRequired[HeldOut]
    iterations: NotRequired[list[Iterated]]


class Summary(TypedDict, total=False):
    """A job's result, and what a run adds to it.

    Attributes:
        coefficients, intercept: of a regression. estimates: of any other model.
        naive_title: describes the naive estimates. interval_note: what the intervals leave out.
        stopped: why a job ended early. test: None if no row was held out. remarks: by label, for people.
        headline: the name of the estimate, or the label of the remark, that stands for the result.
        cells: places in a table, by an estimate's name.
        tests: between groups. marginals: of synthetic rows.
        named_times: whether people named the times of curves; then a terminal leaves none out.
        log_rank, at_risk, groups, method, outside_bounds: of single jobs.
        not_covered_by_epsilon: in files, the figures from raw rows, which are not private.
        posterior: in files, the law, for `inference.saved.load_result`.
        ok, private, epsilon, delta, reports, iterations: of the run.
    """

    coefficients: list[Row]
    estimates: list[Row]
    intercept: Figures | None
    repair: str | None
    sampling: Draws | None
    warnings: list[str]
    stopped: str | None
    test: HeldOut | None
    interval_note: str
    naive_title: str
    remarks: dict[str, str]
    log_rank: LogRank | None
    at_risk: list[AtRisk]
    named_times: bool
    headline: str
    tests: list[Test]
    marginals: list[MarginalFit]
    cells: dict[str, TableCell]
    groups: Groups
    method: str
    outside_bounds: float | None
    ok: bool
    private: bool
    epsilon: float | None
    delta: float | None
    reports: str | None
    iterations: list[Iterated]
    not_covered_by_epsilon: NotCovered | None
    posterior: SavedPosterior | None


class Point(NamedTuple):
    """An estimate and its interval."""

    mean: float | None
    interval: Ends | None


def estimate_of(row: Row, kind: str) -> Point:
    """Return the "estimate", the "naive" or the "nonprivate" one of a row."""
    if kind == "naive":
        return Point(row.get("naive"), row.get("naive_interval_95"))
    if kind == "nonprivate":
        return Point(row["nonprivate"], row["nonprivate_interval_95"])
    return Point(row["estimate"], row["interval_95"])
