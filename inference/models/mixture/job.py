"""Job `mixture`: a Gaussian mixture of the features by variational Bayes, one round for scales and one an iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.wording import listed
from inference.columns import standardisation
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.settings import require_positive, setting
from inference.jobs.variational import stages
from inference.models.mixture.fit import MixtureFit
from inference.models.mixture.model import PRIOR, SPAN
from inference.models.mixture.rounds import ITERATIONS_MAX, MixtureSettings, gaussian_mixture
from inference.problem import Problem, Schema
from inference.rounds import Job

Array = NDArray[np.float64]
_DEFAULT = MixtureSettings()
_STARTS = 5
PRIORS = ("prior_alpha", "prior_beta", "prior_shape", "prior_rate")


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

    prior_alpha: float = setting(PRIOR.alpha, "Of the Dirichlet prior of the weights, the same for each component.")
    prior_beta: float = setting(PRIOR.beta, "How many rows the prior of a component's mean is worth.")
    prior_shape: float = setting(PRIOR.shape, "Of the Gamma prior of a component's precision.")
    prior_rate: float = setting(PRIOR.rate, f"The same; columns in units of {SPAN:g} standard deviations.")

    def __post_init__(self) -> None:
        _ = self.own
        for name in PRIORS:
            require_positive(name, getattr(self, name))

    @property
    def own(self) -> MixtureSettings:
        """As the job has them. Raises `DataError` where a number is out of range."""
        start = _means(self.start)
        return MixtureSettings(self.components, self.epochs, self.batch, self.std_share, start=start)


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


def finish(result: MixtureFit, schema: Schema, settings: Settings, conditions: Conditions) -> MixtureFit:
    """The posterior under the prior that is set; the rounds ask the same whatever it is."""
    return result.refit(**{name: getattr(settings, name) for name in PRIORS})


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


def model(schema: Schema, settings: Settings) -> str:
    """In words."""
    return f"{settings.components} Gaussian components of {listed(schema.features)}"


JOBS = {
    "mixture": LearningJob(
        name="mixture",
        settings=Settings,
        plan=plan,
        make=make,
        finish=finish,
        changeable=PRIORS,
        reference=reference,
        title="Components, the heaviest first",
        model=model,
        iterative=True,
        batch=lambda settings, clients: settings.batch,
    )
}
