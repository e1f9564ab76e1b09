"""Fits: reports or sums in, a posterior with its diagnosis out.

    gaussian, exponential, poisson, geometric   a clipped column, reported with Laplace or Gaussian noise     (10)
    histogram                                   one of k categories, by unary encoding or randomised response (11)
    linear, logistic                            regression from noisy sums, however they were released        (13)
    linear_inputs, logistic_inputs              regression from perturbed rows                                (12)

(The numbers are sections of the LDP paper.) Each takes what the protocol gives (`reports` says what is refused), a
prior that may be left out, and how to sample, as keyword arguments (`run.Options`).

``noise_aware=False`` leaves the noise out of a regression's model: the *noise-naive* posterior, to compare with. It is
too narrow, and off where noise in xxᵀ draws coefficients towards zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import sqrt
from typing import TYPE_CHECKING, TypeAlias, Unpack

import numpy as np

from inference.bounds import Interval
from inference.columns import Standardisation
from inference.errors import DataError
from inference.mcmc.posterior import Draws, LocalPosterior
from inference.mcmc.run import PRIOR_DRAWS, Options, Run, numpyro_module
from inference.models.glm.regression import LocalRegression, regression_of_rows, regression_of_sums
from inference.models.linear.aggregate_stats import Aggregates, constant_of, sums_of
from inference.models.predictive import EXPONENTIAL, GAUSSIAN, GEOMETRIC, POISSON, CategoryClient, ScalarClient
from inference.models.priors import DirichletPrior, GaussianPrior, ProbabilityPrior, RatePrior, RegressionPrior
from inference.problem import Schema
from inference.releases.reports import (
    Categories,
    Scalars,
    categories_of,
    labelled_rows_of,
    rows_of,
    scalars_of,
)
from inference.releases.terms import Given

if TYPE_CHECKING:
    from inference.models.glm.perturbed import Mean

MODELS = "inference.models.noise_aware"
COUNTS_MAX = 1000  # where counts may be clipped: each step of a chain takes its square, in time and memory
MISSING_SDS = 4.0  # of the number of bits
ColumnPrior: TypeAlias = GaussianPrior | RatePrior | ProbabilityPrior
NEAR = 1e-9  # relative, for bounds that went through centre and scale


def gaussian(
    given: Given, prior: GaussianPrior | None = None, *, bounds: Interval | None = None, **run: Unpack[Run]
) -> LocalPosterior:
    """``mean`` and ``sd`` of normal data, in the column's own units.

    Args:
        given: reports of a round of the statistic "sum" or "mean" of one column, of one row for each client (rows_max
            1), or bare. A client without a value reported the middle of the bounds.
        prior: by default that of the bounds. bounds: that clients clipped to; bare reports need them.

    Raises:
        DataError: what `reports` refuses, JAX or NumPyro is missing, or the chains have not mixed.
    """
    reports = scalars_of(given, bounds, parameters=2)
    return _scalar(GAUSSIAN, reports, prior or GaussianPrior.within(reports.bounds), Options(**run))


def exponential(
    given: Given, prior: RatePrior | None = None, *, bounds: Interval | None = None, **run: Unpack[Run]
) -> LocalPosterior:
    """``rate`` of exponential data clipped to [0, high]. Arguments and errors as of `gaussian`."""
    reports = _from_zero(EXPONENTIAL, scalars_of(given, bounds, parameters=1))
    return _scalar(EXPONENTIAL, reports, prior or RatePrior.of_exponential(reports.bounds.upper), Options(**run))


def poisson(
    given: Given, prior: RatePrior | None = None, *, bounds: Interval | None = None, **run: Unpack[Run]
) -> LocalPosterior:
    """``rate`` (the mean) of counts clipped to 0, ..., high. Arguments and errors as of `gaussian`."""
    reports = _counted(POISSON, scalars_of(given, bounds, parameters=1))
    return _scalar(POISSON, reports, prior or RatePrior.of_poisson(reports.bounds.upper), Options(**run))


def geometric(
    given: Given, prior: ProbabilityPrior | None = None, *, bounds: Interval | None = None, **run: Unpack[Run]
) -> LocalPosterior:
    """``probability`` of a success after x failures, x clipped to 0, ..., high. The rest as of `gaussian`."""
    reports = _counted(GEOMETRIC, scalars_of(given, bounds, parameters=1))
    return _scalar(GEOMETRIC, reports, prior or ProbabilityPrior(), Options(**run))


def histogram(
    given: Given, prior: DirichletPrior | None = None, *, labels: Sequence[str] | None = None, **run: Unpack[Run]
) -> LocalPosterior:
    """``shares`` of k categories.

    Args:
        given: reports by "unary-encoding" or "randomised-response" of a round of the statistic "histogram", or bare.
            Clients without a category report by a law of their own; many of them draw the shares towards each other.
            (Of bits `warnings` tells so; one category of each client does not show it.)
        prior: by default uniform over shares. labels: of the categories; by default "0", "1", ....

    Raises:
        DataError: as `gaussian`, or other than k labels or concentrations.
    """
    reports, prior, options = categories_of(given), prior or DirichletPrior(), Options(**run)
    k = reports.categories
    names = tuple(str(place) for place in range(k)) if labels is None else tuple(labels)
    if len(names) != k:
        raise DataError(f"{len(names)} labels for {k} categories; give one for each")
    concentration, models = prior.of(k), numpyro_module(MODELS)
    data = {"prior": {"concentration": concentration}, "p": reports.p, "q": reports.q}
    sampled = options.sample(models.Histogram(reports.unary), {**data, **models.counted(reports)})
    return options.checked(
        LocalPosterior(
            "histogram",
            sampled.draws,
            sampled.sampling,
            CategoryClient(reports),
            prior=prior.draws(options.rng, PRIOR_DRAWS, k),
            axes={"shares": ("category",)},
            coords={"category": names},
            warmup=sampled.warmup,
            notes=_about_missing(reports),
            attrs=reports.attrs,
        )
    )


def linear(
    given: Aggregates,
    prior: RegressionPrior | None = None,
    *,
    schema: Schema | None = None,
    noise_aware: bool = True,
    **run: Unpack[Run],
) -> LocalRegression:
    """Linear regression from noisy sums of the statistic "regression", in own units. Errors as of `gaussian`.

    Args:
        given: a sum, or several of different clients: of the protocol, of a trusted aggregator, of data nodes or of
            clients' reports; only the noise's variance differs. With its parameter ``target_square`` the sum says what
            the residuals are like. Columns are normal, about unknown means where there is a constant (``intercept``),
            else about the public centres; clipping is not in the model, but in `warnings`.
        prior: by default that of the columns' bounds (`RegressionPrior.within`). schema: of the columns, for their
            units. noise_aware: False leaves the noise out of the model.
    """
    return _summed(given, prior, schema, noise_aware, Options(**run), logistic=False)


def logistic(
    given: Aggregates,
    prior: RegressionPrior | None = None,
    *,
    schema: Schema | None = None,
    noise_aware: bool = True,
    **run: Unpack[Run],
) -> LocalRegression:
    """Logistic regression from the same sums, the target being -1 or 1 in units of its scale; the rest as `linear`."""
    return _summed(given, prior, schema, noise_aware, Options(**run), logistic=True)


def linear_inputs(
    given: Given,
    prior: RegressionPrior | None = None,
    *,
    intercept: bool = True,
    noise_aware: bool = True,
    **run: Unpack[Run],
) -> LocalRegression:
    """Linear regression from perturbed rows. Errors as of `gaussian`.

    Args:
        given: reports by "analytic-gaussian" of the statistic "sum" or "mean", one row for each client: the features,
            then the target; or bare. Rows are normal; clipping is not in the model, but in `warnings`.
        prior: as of `linear`; bare reports, whose bounds are not known, have the paper's.
        intercept: whether there is one and the features have unknown means; the paper's model has neither.
        noise_aware: False takes the reports for the rows.
    """
    rows, options = rows_of(given), Options(**run)
    prior = prior or RegressionPrior.within(np.minimum(rows.bound, rows.radius), logistic=False)
    rows = rows if noise_aware else rows.taken_at_their_word()
    w = np.column_stack([rows.x, rows.y])
    noise = {"var_x": rows.variance_x, "var_y": rows.variance_y}
    data = {"prior": asdict(prior), "scatter": w.T @ w, "total": w.sum(axis=0), "n": len(w), **noise}
    sampled = options.sample(numpyro_module(MODELS).LinearRows(rows.x.shape[1], intercept), data)
    attrs = {**rows.attrs, "noise_aware": noise_aware}
    return options.checked(regression_of_rows(sampled, rows, prior, options, attrs, intercept=intercept))


def logistic_inputs(
    given: Given,
    labels: Given,
    prior: RegressionPrior | None = None,
    *,
    intercept: bool = True,
    mean: Mean | None = None,
    noise_aware: bool = True,
    **run: Unpack[Run],
) -> LocalRegression:
    """Logistic regression from perturbed features, and labels by randomised response. Errors as of `gaussian`.

    Args:
        given: reports by "analytic-gaussian" of the features, one row for each client; their law is as of
            `linear_inputs`.
        labels: the same clients' labels 0 and 1, by "randomised-response". Reports of two rounds are put together by
            who reported them. (How a client's budget is split between the two is the rounds' affair.)
        mean: in the place of the sigmoid's mean under a normal law (`perturbed.Mean`); by default itself.
        prior, intercept, noise_aware: as of `linear_inputs`.
    """
    rows, options = labelled_rows_of(given, labels), Options(**run)
    prior = prior or RegressionPrior.within(np.minimum(rows.bound, rows.radius), logistic=True)
    rows = rows if noise_aware else rows.taken_at_their_word()
    sums = {"scatter": rows.x.T @ rows.x, "total": rows.x.sum(axis=0)}
    data = {"prior": asdict(prior), "x": rows.x, "y": rows.y, **sums, "var_x": rows.variance_x, "p": rows.p}
    model = numpyro_module(MODELS).LogisticRows(rows.x.shape[1], intercept, mean)
    sampled = options.sample(model, data)
    attrs = {**rows.attrs, "noise_aware": noise_aware}
    return options.checked(regression_of_rows(sampled, rows, prior, options, attrs, intercept=intercept))


def _about_missing(reports: Categories) -> tuple[str, ...]:
    """Whether fewer bits were reported than of clients that all have a category, by far (false alarm 3e-5)."""
    if not reports.unary:
        return ()
    n, k, p, q = len(reports.values), reports.categories, reports.p, reports.q
    expected, variance = n * (p + (k - 1) * q), n * (p * (1 - p) + (k - 1) * q * (1 - q))
    lacking = expected - float(reports.values.sum())
    if lacking < MISSING_SDS * sqrt(variance):
        return ()
    return (
        f"some {100 * lacking / (n * (p - q)):.2g} % of the clients seem to have no category, which draws the shares "
        "towards each other; ask for a round with a category for what they have",
    )


def _scalar(family: str, reports: Scalars, prior: ColumnPrior, options: Options) -> LocalPosterior:
    """Draws of the family's parameters; of normal data in half-widths, as other units do not fit chains' starts."""
    models, seen, believed = numpyro_module(MODELS), reports, prior
    middle, half = reports.bounds.centre, reports.bounds.half_width
    if isinstance(prior, GaussianPrior):
        seen, believed = reports.seen_from(middle, half), prior.seen_from(middle, half)
    data = {"prior": asdict(believed), **models.reduced(family, seen)}
    high = int(seen.bounds.upper) if family in (POISSON, GEOMETRIC) else 0
    sampled = options.sample(models.ClippedColumn(family, seen.laplace, high), data)

    def in_own_units(drawn: Draws) -> Draws:
        own = isinstance(prior, GaussianPrior) and drawn
        return {"mean": middle + half * drawn["mean"], "sd": half * drawn["sd"]} if own else drawn

    return options.checked(
        LocalPosterior(
            family,
            in_own_units(sampled.draws),
            sampled.sampling,
            ScalarClient(family, reports),
            prior=prior.draws(options.rng, PRIOR_DRAWS),
            warmup=in_own_units(sampled.warmup),
            notes=reports.notes,
            attrs={"column": reports.column, **reports.attrs},
        )
    )


def check_counts(high: float) -> None:
    """Raise `DataError` where counts are clipped too far up: the likelihood of a report adds up over all of them."""
    if high > COUNTS_MAX:
        raise DataError(
            f"counts clipped at {high:g} are too many to add up over for each report; clip them at {COUNTS_MAX} or "
            f"less, or take the model {GAUSSIAN!r}"
        )


def _from_zero(family: str, reports: Scalars) -> Scalars:
    low, high = reports.bounds.lower, reports.bounds.upper
    if abs(low) > NEAR * abs(high):
        raise DataError(
            f"{family} data start at 0, and the clients clipped theirs to {low:g}:{high:g}; ask for a round with "
            "bounds 0:HIGH"
        )
    return replace(reports, bounds=Interval(0.0, high))


def _counted(family: str, reports: Scalars) -> Scalars:
    found = _from_zero(family, reports)
    high = found.bounds.upper
    if abs(high - round(high)) > NEAR * high or round(high) < 1:
        raise DataError(f"{family} data are counts, and the clients clipped theirs at {high:g}; give a whole number")
    check_counts(high)
    return replace(found, bounds=Interval(0.0, float(round(high))))


def _summed(
    given: Aggregates,
    prior: RegressionPrior | None,
    schema: Schema | None,
    noise_aware: bool,
    options: Options,
    *,
    logistic: bool,
) -> LocalRegression:
    sums = sums_of(given, labels=logistic)
    columns, constant = Standardisation.of(sums.parameters), constant_of(sums.parameters) or None
    prior = prior or RegressionPrior.within(np.minimum(columns.bound, columns.radius), logistic=logistic)
    noise = sums.noise_variance if noise_aware else np.zeros_like(sums.noise_variance)
    data = {"prior": asdict(prior), "value": sums.value, "noise": noise, "n": sums.n}
    counted = constant is not None and noise[0] > 0
    model = numpyro_module(MODELS).SummedRegression(len(columns.columns) - 1, constant, logistic, counted)
    sampled = options.sample(model, data, model.start(data))
    attrs = {**sums.attrs, "noise_aware": noise_aware}
    return options.checked(regression_of_sums(sampled, given, prior, options, attrs, schema=schema, logistic=logistic))
