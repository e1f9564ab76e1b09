"""Job `mixture`: a Gaussian mixture of the features, a round for centres and scales, then one for each iteration.

Iterations are planned as those of `mean_field_job` are (`schedule`), but at most 25: a step is only as good as the
average of statistics that it rests on. Measured on three components in a plane and 5,000 clients: mean log density of
new rows at ε = 10, 1, 0.3, 0.1 -3.43, -3.52, -3.75, -4.09 from rough guesses of the means, and -3.44, -3.64, -3.91,
-4.20 without any (medians of 5; the truth has -3.43, as has coordinate ascent without privacy; a single normal
distribution -4.41).

The bound has many maxima. Each start would cost a whole job, so there are no restarts. Without privacy, too, two of
these five random starts end at another maximum (-3.86). If the columns' meaning suggests where components lie, give
`start`. k-means++ picks seeds among rows, and each would reveal a row; a private choice costs rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dca_proto.aggregate import NoAggregate, NoisyAggregate, SecureSumRequest
from dca_proto.wording import listed
from inference.columns import Standardisation, standardisation
from inference.errors import DataError, unknown
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.settings import require_count, require_positive, require_share, setting
from inference.jobs.variational import stages
from inference.locate import locate, located_by
from inference.models.mixture import model as mixture
from inference.models.mixture.fit import MixtureFit, MixtureReference
from inference.models.mixture.model import PRIOR, SPAN, Noise, Prior, State, Statistics
from inference.problem import Array, Problem, Schema
from inference.rounds import Job
from inference.variational.progress import GAINED, Iteration, OnProgress
from inference.variational.schedule import Schedule, schedule_after

ITERATIONS_MAX = 25
PRIORS = ("prior_alpha", "prior_beta", "prior_shape", "prior_rate")
_STARTS = 5  # without privacy


@dataclass(frozen=True)
class Settings:
    """Of the job; all public. Raises `DataError` where a number is out of range."""

    components: int = setting(3, "How many components, 2 or more.")
    epochs: int | None = setting(None, "In how many iterations each client takes part; by default planned.")
    batch: int = setting(0, "Clients of a mini-batch, those first that were asked least often; 0 asks all.")
    std_share: float = setting(0.1, "The first round's share of the budget, between 0 and 1.")
    start: str = setting(
        "", "Guesses of the means in the columns' units, as in -2,0;2,0;0,3: components by semicolons."
    )

    prior_alpha: float = setting(PRIOR.alpha, "Of the Dirichlet prior of the weights, the same for each component.")
    prior_beta: float = setting(PRIOR.beta, "How many rows the prior of a component's mean is worth.")
    prior_shape: float = setting(PRIOR.shape, "Of the Gamma prior of a component's precision.")
    prior_rate: float = setting(PRIOR.rate, f"The same; columns in units of {SPAN:g} standard deviations.")

    def __post_init__(self) -> None:
        for name in PRIORS:
            require_positive(name, getattr(self, name))
        if self.start and len(self.means) != self.components:
            raise DataError(f"setting start has {len(self.means)} means for {self.components} components; give all")
        if self.components < 2:
            raise DataError(f"setting components is {self.components}; expected 2 or more")
        require_count("epochs", self.epochs)
        if self.batch < 0:
            raise DataError(f"setting 'batch' is {self.batch}, expected 0 or more")
        require_share("std_share", self.std_share)

    @property
    def means(self) -> list[list[float]]:
        """Of the components, in the columns' own units; none where none are guessed."""
        try:
            return [[float(word) for word in mean.split(",")] for mean in self.start.split(";") if self.start]
        except ValueError:
            raise DataError(
                f"setting 'start' is {self.start[:80]!r}, expected numbers: commas between columns, semicolons between "
                "components"
            ) from None

    @property
    def priors(self) -> dict[str, float]:
        """The prior's numbers, by the names of their settings."""
        return {name: getattr(self, name) for name in PRIORS}


def gaussian_mixture(
    schema: Schema,
    *,
    rng: np.random.Generator,
    settings: Settings | None = None,
    held_out: Problem | None = None,
    on_progress: OnProgress | None = None,
) -> Job[MixtureFit]:
    """The job of a mixture over the schema's features (its target is left out).

    The rounds ask the same whatever the prior is: iterations are made with the default one.

    Args:
        rng: draws where the components start; a restarted job needs it in the same state again.
        held_out: rows that the trainer holds, for the mean log predictive density that `on_progress` gets; without
            them, what the bound has gained since the first iteration, an estimate that costs no budget.

    Raises:
        NoAggregate: of the first two rounds, without which there is no result.
    """
    settings = settings or Settings()
    phases = yield located_by(schema, settings.std_share, schema.features)
    located, n = locate(phases), phases.contributors
    columns = located.standardisation(schema, SPAN).without_target().in_bounds()
    schedule = schedule_after(
        phases,
        settings.std_share,
        _dimension(schema, settings),
        epochs=settings.epochs,
        batch=settings.batch,
        iterations_max=ITERATIONS_MAX,
    )
    state, stopped, private = mixture.init(_start(settings, columns, rng), n, PRIOR), "", True
    tell = _teller(columns, held_out, on_progress, schedule.iterations)
    for t in range(schedule.iterations):
        at = state.posterior
        try:
            sums = yield _request(at, columns, schedule)
        except NoAggregate as ended:
            if t == 0:
                raise
            stopped = ended.reason
            break
        found, noise = _unpacked(sums, n, settings.components)
        state = mixture.step(state, found, noise, n, mixture.rate(state, noise, n), PRIOR)
        private &= sums.private
        tell(at, found, state)
    fit = MixtureFit(
        schema=schema,
        columns=columns,
        posterior=state.posterior,
        noise=state.noise,
        schedule=schedule,
        iterations=state.iteration,
        stopped=stopped,
        contributors=n,
        private=schema.private and phases.private and private,
        warnings=located.warnings,
    )
    return _under(fit, state.statistics, **settings.priors)


def _dimension(schema: Schema, settings: Settings) -> int:
    return settings.components * (1 + 2 * len(schema.features))


def _under(found: MixtureFit, statistics: Statistics, **prior: float) -> MixtureFit:
    """The posterior of the averaged statistics under another prior.

    Args:
        prior: numbers of `Prior`, as ``prior_alpha``; those that are left out stay.

    Raises:
        DataError: a name is unknown, or a number out of range.
    """
    for name, number in prior.items():
        if name not in (known := [f"prior_{one}" for one in Prior._fields]):
            raise unknown("prior parameter", name, None, known)
        require_positive(name, number if name in PRIORS else None)
    given = found.prior._replace(**{name.removeprefix("prior_"): number for name, number in prior.items()})
    repaired = mixture.repair(statistics, found.noise, found.contributors, given)
    again = partial(_under, found, statistics)
    return replace(found, posterior=mixture.posterior(repaired, given), prior=given, again=again)


def _start(settings: Settings, columns: Standardisation, rng: np.random.Generator) -> Array:
    """The first means, in units of `mixture.SPAN`. Raises `DataError` where those given have others."""
    d, means = len(columns.columns), settings.means
    if not means:
        return mixture.scattered(settings.components, d, rng)
    if any(len(mean) != d for mean in means):
        raise DataError(
            f"setting start: expected {d} numbers in each mean, for the columns {', '.join(columns.columns)}"
        )
    return columns.z(np.array(means))


def _request(found: mixture.Posterior, columns: Standardisation, schedule: Schedule) -> SecureSumRequest:
    """Of the expected sufficient statistics at a posterior."""
    natural, d = mixture.natural(found), len(columns.columns)
    parameters = columns.parameters() | {"weights": list(mixture.weights(d)), "offsets": [mixture.OFFSET] * d}
    parameters |= {name: array.tolist() for name, array in natural._asdict().items()}
    return SecureSumRequest("mixture", parameters, budget_share=schedule.share, batch=schedule.batch)


def _unpacked(sums: NoisyAggregate, n: int, components: int) -> tuple[Statistics, Noise]:
    """The statistics over all n clients and their noise: the blocks of components are (w₁ N, w₂ S, w₃ (Q - h N))."""
    scale, blocks = n / sums.contributors, sums.value.reshape(components, -1)
    d = blocks.shape[1] // 2
    weights, blocks = mixture.weights(d), scale * blocks
    N, S = blocks[:, 0] / weights[0], blocks[:, 1 : 1 + d] / weights[1]
    Q = blocks[:, 1 + d :] / weights[2] + mixture.OFFSET * N[:, None]
    return Statistics(N, S, Q), Noise(*(scale**2 * sums.noise_variance / w**2 for w in weights))


def _teller(
    columns: Standardisation, held_out: Problem | None, on_progress: OnProgress | None, iterations: int
) -> Callable[[mixture.Posterior, Statistics, State], None]:
    """Tells of an iteration that found statistics at a posterior and made the next state of them, with its score."""
    rows = None if held_out is None else columns.scaled(held_out.X)
    per_row, before, gained = float(np.log(columns.scale).sum()), None, 0.0

    def tell(at: mixture.Posterior, found: Statistics, state: State) -> None:
        nonlocal before, gained
        if on_progress is None:
            return
        gained += 0.0 if before is None else mixture.gain(before, at, found, PRIOR)
        before, score = at, (GAINED, gained)
        if rows is not None:
            density = float(mixture.log_density(state.posterior, rows).mean()) - per_row
            score = ("held-out log predictive density", density)
        on_progress(Iteration(state.iteration, iterations, *score))

    return tell


class Mixture(LearningJob):
    """A Gaussian mixture of the features by variational Bayes."""

    name, title, settings = "mixture", "Components, the heaviest first", Settings
    iterative = True
    changeable = PRIORS

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        numbers = _dimension(schema, settings)
        return stages(numbers, settings.std_share, settings.epochs, settings.batch, conditions, ITERATIONS_MAX)

    def make(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[MixtureFit]:
        known = {"held_out": conditions.held_out, "on_progress": conditions.on_iteration}
        return gaussian_mixture(schema, rng=conditions.rng, settings=settings, **known)  # type: ignore[arg-type]

    def batch(self, settings: Settings, clients: int) -> int:
        return settings.batch

    def model(self, schema: Schema, settings: Settings) -> str:
        return f"{settings.components} Gaussian components of {listed(schema.features)}"

    def reference(self, train: Problem, settings: Settings) -> MixtureReference:
        """The best of some starts."""
        from sklearn.mixture import GaussianMixture  # a large import that most users of this module do not need

        if len(train.X) < settings.components:
            raise DataError(f"{len(train.X)} rows are fewer than {settings.components} components; take more rows")
        _, scale = standardisation(train.X)
        least = 1e-6 * float(np.min(scale) ** 2)
        model = GaussianMixture(
            settings.components, covariance_type="diag", n_init=_STARTS, reg_covar=least, random_state=0
        ).fit(train.X)
        return MixtureReference(model.weights_, model.means_, np.sqrt(model.covariances_), model)


JOBS = {"mixture": Mixture()}
