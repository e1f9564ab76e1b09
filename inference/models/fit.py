"""The fits by name: each takes reports or sums and returns a posterior with its diagnostics.

    column           a clipped number of a family of `families`, reported with Laplace or Gaussian noise  (10)
    histogram        one of k categories, by unary encoding or randomised response                        (11)
    regression       linear or logistic, from noisy sums, however they were released                      (13)
    row_regression   the same from perturbed rows                                                         (12)

(The numbers are sections of the LDP paper.) Each takes the aggregates of the protocol (`reports` checks them), an
optional prior, and the options of the sampler as keyword arguments (`run.Options`).

``noise_aware=False`` leaves the noise out of a regression's model. This *noise-naive* posterior is for comparison: it
is too narrow, and biased, because noise in xxᵀ draws coefficients towards zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import sqrt
from typing import TYPE_CHECKING, Unpack

import numpy as np

from dca_proto.statistics.counting import about_missing
from inference.bounds import Interval
from inference.columns import Standardisation
from inference.errors import DataError, unknown
from inference.laws import Draws
from inference.mcmc.run import PRIOR_DRAWS, Options, Run, numpyro_module
from inference.mcmc.sums import Aggregates
from inference.models.coefficients import IDENTITY, LOGIT, Coefficients
from inference.models.column.families import FAMILIES, GAUSSIAN, MISSING_SHARE, bounds_for
from inference.models.glm.regression import moments_of, regression_of_draws
from inference.models.linear.aggregate_stats import coefficients_of, constant_of, sums_of
from inference.models.linear.rows import MISSING
from inference.models.predictive import CategoryClient, ScalarClient
from inference.models.priors import MISSING_PRIOR, ColumnPrior, DirichletPrior, GaussianPrior, RegressionPrior
from inference.posterior import Posterior
from inference.problem import Schema
from inference.releases.reports import (
    Categories,
    Scalars,
    a_value_of,
    categories_of,
    labelled_rows_of,
    rows_of,
    scalars_of,
)
from inference.releases.terms import Given

if TYPE_CHECKING:
    from inference.models.glm.perturbed import Mean

MODELS = "inference.models.noise_aware"
NO_SQUARES = (
    "the squares of {} were not released, so the residuals' standard deviation rests on its prior; ask for "
    "target_square"
)
HIDDEN, HIDDEN_SHARE = 10.0, 0.08  # so far below the end of its interval a spread is with so large a probability
RATES_APART = 100.0  # ratio of the ends of a rate's interval from which on the noise hides it
MISSING_SDS = 4.0  # standard deviations of the number of bits set


def column(
    given: Given,
    family: str = GAUSSIAN,
    prior: ColumnPrior | None = None,
    *,
    bounds: Interval | None = None,
    **run: Unpack[Run],
) -> Posterior:
    """Fit the parameters of a family to one column, in the column's own units.

    Args:
        given: reports of a round of the statistic "sum" or "mean" of one column, with one row per client (rows_max
            1), or bare reports. A client without a value reported the middle of the bounds. With a ``count_weight``
            clients also say whether they have a value: then the parameters are of those who have one, and ``missing``
            is the share of the others. Without it, missing values count as the middle.
        family: one of `families.FAMILIES`. prior: of its parameters; by default it follows from the bounds.
        bounds: the bounds that clients clipped to; bare reports need them.

    Raises:
        DataError: `reports` refuses the reports; the family is unknown; the bounds or the prior do not fit the family;
            JAX or NumPyro is missing; or the chains have not mixed.
    """
    if family not in FAMILIES:
        raise unknown("family", family, None, FAMILIES)
    law, options, models = FAMILIES[family], Options(**run), numpyro_module(MODELS)
    if prior is not None and not isinstance(prior, law.prior):
        raise DataError(f"family {family!r} has a {law.prior.__name__}, found a {type(prior).__name__}")
    reports = scalars_of(given, bounds, parameters=len(law.prior.sites))
    reports = replace(reports, bounds=bounds_for(family, reports.column, reports.bounds))
    prior = prior or law.within(reports.bounds)
    scaled, scaled_prior, middle, half = reports, prior, reports.bounds.centre, reports.bounds.half_width
    if isinstance(prior, GaussianPrior):  # in half-widths, because the chains' starting points fit no other unit
        scaled, scaled_prior = reports.rescaled(middle, half), prior.rescaled(middle, half)
    states_presence = reports.present is not None
    model = models.ClippedColumn(family, scaled.laplace, int(scaled.bounds.upper) if law.counts else 0, states_presence)
    sampled = options.sample(model, {"prior": asdict(scaled_prior), **models.reduced(family, scaled)})

    def in_own_units(drawn: Draws) -> Draws:
        if not (isinstance(prior, GaussianPrior) and drawn):
            return drawn
        return {**drawn, "mean": middle + half * drawn["mean"], "sd": half * drawn["sd"]}

    before = prior.draws(options.rng, PRIOR_DRAWS)
    if states_presence:
        before[MISSING_SHARE] = options.rng.beta(*MISSING_PRIOR, PRIOR_DRAWS)
    return options.checked(
        Posterior(
            family,
            in_own_units(sampled.draws),
            sampled.sampling,
            ScalarClient(family, reports),
            prior=before,
            warmup=in_own_units(sampled.warmup),
            notes=(*reports.notes, *_hidden(family, reports, sampled.draws)),
            attrs={"column": reports.column, **reports.attrs},
        )
    )


def _hidden(family: str, reports: Scalars, draws: Draws) -> tuple[str, ...]:
    return (*_hidden_spread(reports, draws), *_hidden_rate(family, reports, draws))


def _hidden_rate(family: str, reports: Scalars, draws: Draws) -> tuple[str, ...]:
    """Warn if the noise hides a rate: it then has an end that only the prior sets."""
    if "rate" not in draws:
        return ()
    low, high = map(float, np.quantile(draws["rate"], (0.025, 0.975)))
    if high < RATES_APART * low:
        return ()
    end = f"at most {high:.3g}" if FAMILIES[family].counts else f"at least {low:.3g}"
    return (
        f"the noise hides the rate of {reports.column}, which is {end}; give narrower bounds (lower and upper) if the "
        "values allow it, more clients or a larger epsilon",
    )


def _hidden_spread(reports: Scalars, draws: Draws) -> tuple[str, ...]:
    """Warn if the noise hides how large a normal column's spread is: it may well be far below its largest value."""
    if "mean" not in draws:
        return ()
    high = np.quantile(draws["sd"], 0.975)
    if np.mean(draws["sd"] < high / HIDDEN) < HIDDEN_SHARE:
        return ()
    most = float(high * reports.bounds.half_width)
    return (
        f"the noise hides the spread of {reports.column}: its standard deviation may be anything up to {most:.3g}; "
        "give narrower bounds (lower and upper) if the values allow it, more clients or a larger epsilon",
    )


def histogram(
    given: Given, prior: DirichletPrior | None = None, *, labels: Sequence[str] | None = None, **run: Unpack[Run]
) -> Posterior:
    """Fit ``shares``, the probabilities of k categories.

    Args:
        given: reports by "unary-encoding" or "randomised-response" of a round of the statistic "histogram", or bare
            reports. Clients without a category report too; many of them draw the shares towards each other. Under
            unary encoding `warnings` says so; randomised response cannot show it.
        prior: by default uniform over shares. labels: of the categories; by default "0", "1", ....

    Raises:
        DataError: as for `column`, or the number of labels or concentrations is not k.
    """
    reports, prior, options = categories_of(given), prior or DirichletPrior(), Options(**run)
    k = reports.categories
    names = tuple(str(place) for place in range(k)) if labels is None else tuple(labels)
    if len(names) != k:
        raise DataError(f"{len(names)} labels for {k} categories; give one for each")
    concentration, models = prior.of(k), numpyro_module(MODELS)
    data = {"prior": {"concentration": concentration}, "p": reports.p, "q": reports.q}
    sampled = options.sample(models.Histogram(reports.unary), {**data, **models.pattern_counts(reports)})
    return options.checked(
        Posterior(
            "histogram",
            sampled.draws,
            sampled.sampling,
            CategoryClient(reports),
            prior=prior.draws(options.rng, PRIOR_DRAWS, k),
            axes={"shares": ("category",)},
            coords={"category": names},
            warmup=sampled.warmup,
            notes=_missing_warning(reports),
            attrs=reports.attrs,
        )
    )


def _missing_warning(reports: Categories) -> tuple[str, ...]:
    """Warn if clearly fewer bits are set than if every client had a category (false-alarm rate 3e-5)."""
    if not reports.unary:
        return ()
    n, k, p, q = len(reports.values), reports.categories, reports.p, reports.q
    expected, variance = n * (p + (k - 1) * q), n * (p * (1 - p) + (k - 1) * q * (1 - q))
    lacking = expected - float(reports.values.sum())
    if lacking < MISSING_SDS * sqrt(variance):
        return ()
    return (
        f"about {100 * lacking / (n * (p - q)):.2g} % of the clients seem to have no category, which draws the shares "
        "towards each other; ask for a round that has a category for them",
    )


def regression(
    given: Aggregates,
    prior: RegressionPrior | None = None,
    *,
    logistic: bool = False,
    schema: Schema | None = None,
    noise_aware: bool = True,
    **run: Unpack[Run],
) -> Posterior:
    """Fit a regression to noisy sums of the statistic "regression", in own units. Errors as for `column`.

    The model takes columns to be normal: about unknown means if there is a constant (``intercept``), else about the
    public centres. It ignores clipping; `warnings` reports it.

    Args:
        given: a sum, or several over different clients. They may come from the protocol, a trusted aggregator, data
            nodes or clients' reports: only the noise's variance differs. With the parameter ``target_square`` a sum
            also informs the residuals' standard deviation.
        prior: by default it follows from the columns' bounds (`RegressionPrior.within`).
        logistic: whether the target is a label, -1 or 1 in units of its scale. schema: of the columns, for their units.
        noise_aware: False leaves the noise out of the model. It then takes the released count of complete rows for the
            number of rows, if some clearly lack a value.
    """
    options, sums = Options(**run), sums_of(given, labels=logistic)
    columns, constant = Standardisation.of(sums.parameters), constant_of(sums.parameters) or None
    prior = prior or RegressionPrior.within(np.minimum(columns.bound, columns.radius), logistic=logistic)
    noise = sums.noise_variance if noise_aware else np.zeros_like(sums.noise_variance)
    missing: tuple[str, ...] = ()
    n = sums.n
    if constant is not None and sums.noise_variance[0] > 0:
        rows, sd = sums.value[0] / constant**2, sqrt(sums.noise_variance[0]) / constant**2
        missing = about_missing(rows, sd, n, a_value_of(columns.columns))
        if missing and not noise_aware:
            n = max(round(rows), len(sums.value))
    data = {"prior": asdict(prior), "value": sums.value, "noise": noise, "n": n}
    infers_rows = constant is not None and noise[0] > 0
    model = numpyro_module(MODELS).SummedRegression(len(columns.columns) - 1, constant, logistic, infers_rows)
    sampled = options.sample(model, data, model.start(data))
    moments, link = moments_of(sampled.draws, constant or 0.0), LOGIT if logistic else IDENTITY
    before = prior.draws(options.rng, PRIOR_DRAWS, len(columns.columns) - 1)
    attrs = {**sums.attrs, "noise_aware": noise_aware}
    notes = [] if logistic or sums.parameters["target_square"] else [NO_SQUARES.format(columns.columns[-1])]
    notes += missing
    return options.checked(
        regression_of_draws(sampled, coefficients_of(given, moments, schema, link=link), before, attrs, notes)
    )


def row_regression(
    given: Given,
    prior: RegressionPrior | None = None,
    *,
    labels: Given | None = None,
    intercept: bool = True,
    mean: Mean | None = None,
    noise_aware: bool = True,
    **run: Unpack[Run],
) -> Posterior:
    """Fit a regression to perturbed rows: logistic if there are labels, else linear. Errors as for `column`.

    The model takes rows to be normal. It ignores clipping; `warnings` reports it.

    Args:
        given: reports by "analytic-gaussian" of the statistic "sum" or "mean", one row per client, or bare reports.
            Columns are the features, then, without labels, the target. With a ``count_weight`` clients also say
            whether their rows are complete, and the regression is of those; else missing values count as the middle.
        prior: as for `regression`; the paper's for bare reports, whose bounds are unknown.
        labels: the same clients' labels 0 and 1, by "randomised-response". Reports of two rounds are matched by client.
            (The rounds split a client's budget between the two.)
        intercept: whether there is an intercept and the features have unknown means; the paper's model has neither.
        mean: replaces the sigmoid's mean under a normal law (`perturbed.Mean`); None keeps it.
        noise_aware: False takes the reports for the rows, also those of clients without a complete one.
    """
    options, logistic = Options(**run), labels is not None
    rows = rows_of(given) if labels is None else labelled_rows_of(given, labels)
    prior = prior or RegressionPrior.within(np.minimum(rows.columns.bound, rows.columns.radius), logistic=logistic)
    notes = *rows.notes, *rows.about_missing(noise_aware=noise_aware)
    rows = rows if noise_aware else rows.without_noise()
    models, states_presence = numpyro_module(MODELS), rows.present is not None
    model = models.RowRegression(rows.x.shape[1], intercept, logistic, mean, states_presence)
    data = (
        models.counted_rows(rows, labelled=logistic)
        if states_presence
        else models.scattered_rows(rows, labelled=logistic)
    )
    start = (
        {MISSING_SHARE: np.array(MISSING / 2)} if states_presence else None
    )  # with nearly all missing is a second mode
    sampled = options.sample(model, {"prior": asdict(prior), **data}, start)
    attrs = {**rows.attrs, "noise_aware": noise_aware}
    constant, link = float(intercept), LOGIT if logistic else IDENTITY
    linear = Coefficients.of(rows.columns, moments_of(sampled.draws, constant), constant, link=link)
    before = prior.draws(options.rng, PRIOR_DRAWS, rows.x.shape[1])
    return options.checked(regression_of_draws(sampled, linear, before, attrs, notes, rows))
