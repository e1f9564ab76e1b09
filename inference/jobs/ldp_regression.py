"""Job `ldp-regression`: linear or logistic regression from one report of each client, of its sufficient statistics.

A report is the products of a client's own row, clipped to public bounds, with Gaussian noise; their sum is a noisy sum
like any other, and the model has its noise. With ``inputs`` a client reports its row itself, with noise: of few columns
that may tell more, and the products of noise are then in the model. (Of logistic regression that would take two reports
of each client, one for its features and one for its label, which no round holds.)
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.bounded_regression import INTERCEPT_BOUND
from inference.errors import DataError
from inference.jobs import logistic, regression
from inference.jobs.base import Conditions, LearningJob, Stage, Summary, target_on_features
from inference.jobs.estimates import Row, row, with_interval
from inference.jobs.reports import LEVEL, SAMPLED, SamplerSettings, check_clients, check_installed, figure, sampling
from inference.jobs.settings import require_choice, require_positive, setting
from inference.local import LocalRegression, RegressionPrior, fit
from inference.local.regression import COEFFICIENTS, INTERCEPT
from inference.local.terms import GAUSSIAN
from inference.logistic_regression import LogisticPosterior
from inference.problem import Problem, Schema
from inference.released import STATISTIC

Array = NDArray[np.float64]
LINEAR, LOGISTIC = FAMILIES = ("linear", "logistic")
DEFAULT = RegressionPrior()
PRIORS = ("coefficient_sd", "intercept_sd", "lkj", "feature_sd", "feature_mean_sd", "residual_sd")
PREDICTED_ROWS = 500  # at a time: for each of them there are as many probabilities as draws


@dataclass(frozen=True)
class Settings(SamplerSettings):
    """Of the job."""

    family: str = setting(LINEAR, f"{LINEAR}, or {LOGISTIC} of a target whose bounds are its two classes.")
    inputs: bool = setting(False, "Clients report their rows with noise, in place of the products; linear only.")
    radius: float | None = setting(None, "Clients bring their scaled features into a ball; by default the bounds' box.")
    noise_aware: bool = setting(True, "false leaves the noise out of the model, to compare.")
    coefficient_sd: float = setting(DEFAULT.coefficient_sd, "Of each coefficient's normal prior; bounds are ±1 here.")
    intercept_sd: float = setting(DEFAULT.intercept_sd, "The same of the target at the middle of all bounds.")
    lkj: float = setting(DEFAULT.lkj, "Of the prior of the features' correlations; 1 is uniform.")
    feature_sd: float = setting(DEFAULT.feature_sd, "Of the half-normal prior of the features' standard deviations.")
    feature_mean_sd: float = setting(DEFAULT.feature_mean_sd, "Of the normal prior of the features' means.")
    residual_sd: float = setting(DEFAULT.residual_sd, "Of the half-normal prior of the residuals' deviation.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("family", self.family, FAMILIES)
        require_positive("radius", self.radius)
        for name in PRIORS:
            require_positive(name, getattr(self, name))
        if self.inputs and self.family == LOGISTIC:
            raise DataError(
                "setting 'inputs' is for family 'linear': of a logistic regression a client would report twice, its "
                "features and its label, at a split budget; leave it out"
            )

    @property
    def prior(self) -> RegressionPrior:
        """As the fits take it."""
        return RegressionPrior(**{name: getattr(self, name) for name in PRIORS})


def check(schema: Schema, settings: Settings) -> None:
    """Refuse to start what could not be finished. Raises `DataError`."""
    check_installed()


def make(
    schema: Schema, settings: Settings, conditions: Conditions
) -> Generator[RoundRequest, NoisyAggregate, NoisyAggregate]:
    """The job's round of reports. Raises `DataError` where clients are too few."""
    d = len(schema.features)
    if settings.inputs:
        least, statistic, parameters = d + d * (d + 1) // 2 + 1, "sum", _columns(schema, settings)
    else:
        squares = int(settings.family == LINEAR)
        least, statistic = (d + 1) * (d + 2) // 2 + d + 1 + squares, STATISTIC
        parameters = _columns(schema, settings) | {
            "intercept": True,
            "intercept_bound": INTERCEPT_BOUND,
            "target_square": bool(squares),
        }
        parameters["weights"] = list(conditions.weights(parameters))
    check_clients(conditions.clients, least, f"a regression on {d} features")
    return (yield RoundRequest(statistic, parameters, rows_max=1, mechanism=GAUSSIAN))


def _columns(schema: Schema, settings: Settings) -> dict[str, Any]:
    """Mapped from their bounds to ±1."""
    parameters: dict[str, Any] = {
        "columns": list(schema.columns),
        "centre": [float(centre) for centre in schema.centres],
        "scale": [float(width) for width in schema.half_widths],
        "bound": [1.0] * len(schema.columns),
    }
    return parameters if settings.radius is None else {**parameters, "radius": settings.radius}


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """All of the budget at once."""
    return [Stage(1, 1.0, "all of the budget on the regression")]


def finish(released: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions) -> LocalRegression:
    """The posterior given the reports, or their sum."""
    run, prior, aware = settings.run(conditions), settings.prior, settings.noise_aware
    if settings.inputs:
        return fit.linear_inputs(released, prior, noise_aware=aware, **run)
    chosen = fit.linear if settings.family == LINEAR else fit.logistic
    return chosen(released, prior, schema=schema, noise_aware=aware, **run)


def model(schema: Schema, settings: Settings) -> str:
    """In words."""
    what = "rows" if settings.inputs else "products"
    noise = "" if settings.noise_aware else ", their noise left out of the model"
    told = f"{settings.family}, from {what} told by {GAUSSIAN}{noise}"
    return f"{target_on_features(schema, settings)} ({told}); {settings.words}"


# --- what it says -----------------------------------------------------------------------------------------------------


def reference(train: Problem, settings: Settings) -> Any:
    """Least squares, or a logistic regression, on the raw rows."""
    if settings.family == LINEAR:
        return regression.reference(train, settings)
    return logistic.reference(train, logistic.Settings())


def summary(
    result: LocalRegression,
    reference: Any,
    train: Problem | None,
    test: Problem | None,
    schema: Schema,
) -> Summary:
    """Coefficients with credible intervals, and scores on rows that nobody learned from."""
    unit = logistic.unit if result.logistic else Schema.slope_unit
    drawn, intervals, others = (
        result.draws,
        result.intervals(LEVEL),
        reference_figures(reference, len(schema.features) + 1),
    )
    return {
        "coefficients": [
            with_interval(
                row(name, unit(schema, name), figure(drawn[COEFFICIENTS][..., j]), others[j + 1]),
                intervals[COEFFICIENTS][j],
                LEVEL,
            )
            for j, name in enumerate(schema.features)
        ],
        "intercept": _unnamed(
            with_interval(row("", "", figure(drawn[INTERCEPT]), others[0]), intervals[INTERCEPT], LEVEL)
        ),
        "interval_level": LEVEL,
        "sampling": sampling(result),
        "warnings": result.warnings,
        "test": None if test is None else _tested(result, reference, train, test),
    }


def reference_figures(reference: Any, count: int) -> list[Any]:
    """Of the intercept and each coefficient without privacy; None where nothing is known of them."""
    if reference is None:
        return [None] * count
    if isinstance(reference, LogisticPosterior):
        return list(zip(reference.mean, np.sqrt(np.diag(reference.cov)), strict=True))
    return [
        (reference.intercept, reference.intercept_sd),
        *zip(reference.coefficients, reference.coefficient_sd, strict=True),
    ]


def _unnamed(found: Row) -> Row:
    return {key: value for key, value in found.items() if key not in ("name", "unit")}


def _tested(result: LocalRegression, reference: Any, train: Problem | None, test: Problem) -> Summary:
    if not result.logistic:
        return regression.errors(result.linear.predict(test.X)[0], reference, train, test)
    parts = np.array_split(test.X, -(-len(test.X) // PREDICTED_ROWS))
    return logistic.scores(np.concatenate([result.probability(part) for part in parts]), reference, train, test)


def picture_title(schema: Schema) -> str:
    """What the coefficients are."""
    return regression.picture_title(schema)


JOBS = {
    "ldp-regression": LearningJob(
        name="ldp-regression",
        settings=Settings,
        changeable=("noise_aware", *PRIORS, *SAMPLED),
        check=check,
        plan=plan,
        make=make,
        finish=finish,
        reference=reference,
        summary=summary,
        draws=lambda result, rng: result.inference_data(),
        picture_title=picture_title,
        model=model,
        reports=lambda settings: GAUSSIAN,
    )
}
