"""Job `mixture`: a Gaussian mixture of the features by variational Bayes, one round for scales and one an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from dca_proto.wording import listed
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.estimates import BY_SD, SHARE, TAILS, Figure, of_draws, row, score, student, with_standard
from inference.jobs.settings import setting
from inference.jobs.summary import INTERVAL_NOTE, HeldOut, Row, Summary
from inference.jobs.variational import settings_for, stages
from inference.models.mixture.fit import MixtureFit
from inference.models.mixture.model import PRIOR, SPAN
from inference.models.mixture.rounds import ITERATIONS_MAX, MixtureSettings, gaussian_mixture
from inference.problem import Problem, Schema, stream
from inference.rounds import Job
from inference.scale import standardisation

Array = NDArray[np.float64]
_DEFAULT = MixtureSettings()
_STARTS = 5
_DRAWS = 10_000  # whose quantiles are the intervals: an end is then off by 0.03 posterior standard deviations


@dataclass(frozen=True)
class Settings:
    """Of the job."""

    components: int = setting(_DEFAULT.components, "How many components, 2 or more.")
    epochs: int | None = setting(None, "In how many iterations each client takes part; by default planned.")
    batch: int = setting(0, "Clients of a mini-batch, those first that were asked least often; 0 asks all.")
    std_share: float = setting(_DEFAULT.std_share, "The first round's share of the budget, between 0 and 1.")
    start: str = setting(
        "", "Guesses of the means in the columns' units, as in -2,0;2,0;0,3: components by semicolons."
    )

    def __post_init__(self) -> None:
        _ = self.own

    @property
    def own(self) -> MixtureSettings:
        """As the job has them. Raises `DataError` where a number is out of range."""
        return settings_for(MixtureSettings, self, start=_means(self.start))


def _means(text: str) -> tuple[tuple[float, ...], ...]:
    """Those of the setting ``start``. Raises `DataError` where there is anything but numbers."""
    try:
        return tuple(tuple(float(word) for word in mean.split(",")) for mean in text.split(";")) if text else ()
    except ValueError:
        raise DataError(
            f"setting 'start' is {text[:80]!r}, expected numbers: commas between columns, semicolons between components"
        ) from None


def make(schema: Schema, settings: Settings, conditions: Conditions) -> Job[MixtureFit]:
    """The job's rounds."""
    return gaussian_mixture(
        schema,
        rng=conditions.rng,
        settings=settings.own,
        held_out=conditions.held_out,
        on_progress=conditions.on_iteration,
    )


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """Scales first, then as many iterations as the first round's noise will probably make worth while."""
    numbers = settings.components * (1 + 2 * len(schema.features))
    return stages(numbers, settings.std_share, settings.epochs, settings.batch, conditions, ITERATIONS_MAX)


# --- without privacy --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MixtureReference:
    """Maximum likelihood on raw rows, by scikit-learn: weights ``(K,)``, means and standard deviations ``(K, d)``."""

    weights: Array
    means: Array
    sds: Array
    model: Any = field(repr=False)

    def log_density(self, X: Array) -> Array:
        """Of rows, shape ``(k,)``."""
        density: Array = self.model.score_samples(X)
        return density


def reference(train: Problem, settings: Settings) -> MixtureReference:
    """The best of some starts. Raises `DataError` where there are fewer rows than components."""
    from sklearn.mixture import GaussianMixture  # a large import that most users of this module do not need

    if len(train.X) < settings.components:
        raise DataError(f"{len(train.X)} rows are fewer than {settings.components} components; take more rows")
    _, scale = standardisation(train.X)
    least = 1e-6 * float(np.min(scale) ** 2)
    model = GaussianMixture(
        settings.components, covariance_type="diag", n_init=_STARTS, reg_covar=least, random_state=0
    ).fit(train.X)
    return MixtureReference(model.weights_, model.means_, np.sqrt(model.covariances_), model)


def _partners(result: MixtureFit, reference: MixtureReference) -> NDArray[np.intp]:
    """The component without privacy that each private one is nearest to, each once."""
    from scipy.optimize import linear_sum_assignment

    apart = (result.means[:, None] - reference.means[None]) / result.columns.scale
    return np.asarray(linear_sum_assignment((apart**2).sum(axis=-1))[1])


# --- what it says -----------------------------------------------------------------------------------------------------


def summary(
    result: MixtureFit,
    reference: MixtureReference | None,
    train: Problem | None,
    test: Problem | None,
    schema: Schema,
) -> Summary:
    """Weight, means and standard deviations of each component, the heaviest first, and the held-out log density."""
    partners = None if reference is None else _partners(result, reference)
    drawn = result.draws(stream(0, "intervals"), 1, _DRAWS)
    rows: list[Row] = []
    for place, k in enumerate(np.argsort(-result.weights), 1):
        exact = None if reference is None or partners is None else _points(reference, partners[k])
        own = _figures(result, drawn, k)
        for number, (name, unit) in enumerate(_names(schema)):
            found = row(f"{place}: {name}", unit, own[number], None if exact is None else exact[number])
            rows.append(_on_axis(found, result, number))
    return {
        "estimates": rows,
        INTERVAL_NOTE: "private ones leave out what the noise did to which row counts for which component",
        "stopped": result.stopped or None,
        "test": None if test is None else _scores(result, reference, train, test),
    }


def _names(schema: Schema) -> list[tuple[str, str]]:
    """Name and unit of each figure of a component."""
    units = [(name, schema.units.get(name, "")) for name in schema.features]
    return [("weight", ""), *((f"{what} of {name}", unit) for name, unit in units for what in ("mean", "sd"))]


def _points(found: MixtureFit | MixtureReference, k: int) -> list[Figure]:
    """Of component k, in the order of `_names`, without intervals."""
    moments = zip(found.means[k], found.sds[k], strict=True)
    return [Figure(float(found.weights[k])), *(Figure(float(one)) for pair in moments for one in pair)]


def _figures(fit: MixtureFit, drawn: Mapping[str, Array], k: int) -> list[Figure]:
    """The same with the posterior's intervals; none of standard deviations, of which the noise is not known.

    Priors are the marginal ones: a component's weight is of a Beta law, and its mean of Student's t.
    """
    found, components = _points(fit, k), len(fit.weights)
    scale = sqrt(PRIOR.rate / (PRIOR.shape * PRIOR.beta))
    ends = betaincinv(PRIOR.alpha, (components - 1) * PRIOR.alpha, TAILS)
    own = of_draws(drawn["weights"][..., k]).interval
    found[0] = found[0]._replace(sd=float(fit.weight_sd[k]), interval=own, prior=(float(ends[0]), float(ends[1])))
    for j in range(fit.means.shape[1]):
        centre, unit = float(fit.columns.centre[j]), float(fit.columns.scale[j])
        own = of_draws(drawn["means"][..., k, j]).interval
        before = student(centre + unit * PRIOR.mean, unit * scale, 2 * PRIOR.shape).interval
        found[1 + 2 * j] = found[1 + 2 * j]._replace(sd=float(fit.mean_sd[k, j]), interval=own, prior=before)
    return found


def _on_axis(found: Row, fit: MixtureFit, number: int) -> Row:
    """A row of `_names` as a picture shows it: weights; means; standard deviations, each on an axis of their own."""
    if number == 0:
        return with_standard(found, SHARE)
    column, is_sd = divmod(number - 1, 2)
    sd = fit.columns.scale[column] / SPAN
    if is_sd:
        return with_standard(found, f"sd, in {BY_SD}s of the column", 1 / sd)
    return with_standard(found, f"mean, in {BY_SD}s of the column from its centre", 1 / sd, fit.columns.centre[column])


def _scores(result: MixtureFit, reference: MixtureReference | None, train: Problem | None, test: Problem) -> HeldOut:
    """The mean log density of a row; a single Gaussian of each column is the constant."""
    rows = (train or test).X
    mean, sd = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
    single = (-0.5 * ((test.X - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)).sum(axis=1).mean()
    other = None if reference is None else float(reference.log_density(test.X).mean())
    private = float(result.log_density(test.X).mean())
    found = score("log predictive density", private, other, float(single), higher_is_better=True)
    return {"rows": len(test.y), "scores": [found]}


def picture_title(schema: Schema) -> str:
    """What the estimates are."""
    return "Components, the heaviest first"


def model(schema: Schema, settings: Settings) -> str:
    """In words."""
    return f"{settings.components} Gaussian components of {listed(schema.features)}"


def batch(settings: Settings, clients: int) -> int:
    """B of the iterations."""
    return settings.batch


JOBS = {
    "mixture": LearningJob(
        name="mixture",
        settings=Settings,
        plan=plan,
        make=make,
        reference=reference,
        summary=summary,
        picture_title=picture_title,
        model=model,
        iterative=True,
        batch=batch,
    )
}
