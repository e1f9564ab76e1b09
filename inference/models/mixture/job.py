"""Job `mixture`: a Gaussian mixture of the features, a round for centres and scales, then one for each iteration.

Iterations are planned like those of `mean_field_job` (`schedule`), but there are at most 25, because a step is only as
good as the averaged statistics. Mean log density of new rows, for three components in a plane and 5,000 clients
(medians of 5 runs):

    ε                                 10       1        0.3      0.1
    with rough guesses of the means   -3.43    -3.52    -3.75    -4.09
    without guesses                   -3.44    -3.64    -3.91    -4.20

The true mixture has -3.43, and so has coordinate ascent without privacy; a single normal distribution has -4.41.

The bound has many maxima. Each start would cost a whole job, so there are no restarts. Even without privacy, two of
these five random starts end at another maximum (-3.86). If you can guess where components lie, give `start`. k-means++
picks seeds among rows, and each would reveal a row; a private choice would cost rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from scipy.special import betaincinv

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.wording import listed
from inference.columns import Standardisation, standardisation
from inference.draws import CHAINS, DRAWS, all_private
from inference.errors import DataError, unknown
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.estimates import BY_SD, SHARE, TAILS, Estimate, Marginal, of_draws, score, student
from inference.jobs.examples import PAIRS, Clean, Example
from inference.jobs.settings import JobSettings, first_share, given, require_count, require_positive, setting, within
from inference.jobs.summary import INTERVAL_NOTE, HeldOut, Standard, Summary
from inference.laws import Drawn
from inference.locate import locate, phases_request
from inference.models.mixture import model as mixture
from inference.models.mixture.model import PRIOR, SPAN, Noise, Prior, Statistics
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema, stream, unit_of
from inference.rounds import Job
from inference.variational.progress import GAINED, Iteration, OnProgress, Score
from inference.variational.schedule import BATCH, Schedule, schedule_after, stages

ITERATIONS_MAX = 25
PRIORS = ("prior_alpha", "prior_beta", "prior_shape", "prior_rate")
_STARTS = 5  # of the reference without privacy
INTERVAL_DRAWS = 10_000  # for the quantiles of intervals; an end is then off by 0.03 posterior standard deviations


@dataclass(frozen=True)
class Settings(JobSettings):
    """Settings of `mixture`; all public. Raises `DataError` if a number is out of range."""

    components: int = setting(3, "Number of components, 2 or more.", within(2))
    epochs: int | None = setting(
        None, "Number of iterations in which each client takes part; by default planned.", require_count
    )
    batch: int = setting(0, BATCH, within(0))
    std_share: float = first_share(0.1)
    start: str = setting(
        "", "Guesses of the means in the columns' units, as in -2,0;2,0;0,3: components by semicolons."
    )

    prior_alpha: float = setting(
        PRIOR.alpha, "Parameter of the Dirichlet prior of the weights, the same for each component.", require_positive
    )
    prior_beta: float = setting(PRIOR.beta, "Rows that the prior of a component's mean is worth.", require_positive)
    prior_shape: float = setting(PRIOR.shape, "Shape of the Gamma prior of a component's precision.", require_positive)
    prior_rate: float = setting(
        PRIOR.rate, f"Rate of that prior, with columns in units of {SPAN:g} standard deviations.", require_positive
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start and len(self.means) != self.components:
            raise DataError(f"setting start has {len(self.means)} means for {self.components} components; give all")

    @property
    def means(self) -> list[list[float]]:
        """The guessed means of the components, in the columns' own units; empty without guesses."""
        try:
            means = [[float(word) for word in mean.split(",")] for mean in self.start.split(";") if self.start]
        except ValueError:
            means = [[nan]]
        if not all(map(isfinite, chain.from_iterable(means))):
            raise DataError(
                f"setting 'start' is {self.start[:80]!r}, expected numbers: commas between columns, semicolons between "
                "components"
            )
        return means


@dataclass(frozen=True, eq=False)
class MixtureLaw:
    """A fitted mixture of the schema's features, in the columns' own units.

    The spread includes the privacy noise of the averaged statistics: a weight is a noisy count over n, a mean a noisy
    sum over a count. **It does not include the noise in the responsibilities**, nor correlations. That part is larger
    if components overlap. Measured with three components in a plane and 5,000 clients, at ε = 10, 1 and 0.3: the
    distance of means from those of coordinate ascent without privacy was 1.2, 3.7 and 3.0 times (root mean square) the
    reported spread of the noise. So take spreads as lower bounds.

    Attributes:
        schema, columns: the columns and their standardisation. law, prior: in units of `mixture.SPAN`.
        noise: the privacy noise in the averaged statistics.
        schedule: of the iterations. iterations, stopped, contributors, private, warnings: as for `NormalLaw`.
    """

    schema: Schema
    columns: Standardisation
    law: mixture.Components
    noise: mixture.Noise
    schedule: Schedule
    iterations: int
    stopped: str
    contributors: int
    private: bool
    warnings: tuple[str, ...] = ()
    prior: mixture.Prior = mixture.PRIOR
    refitter: Any = None

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return weight, means and standard deviations of each component, the heaviest first.

        Priors are marginal: a component's weight has a Beta law, and its mean Student's t. Standard deviations have no
        interval, because the noise in them is unknown. Each of the three has its own axis.
        """
        drawn = self.sample(stream(0, "intervals"), 1, INTERVAL_DRAWS)
        prior, schema = self.prior, schema or self.schema
        ends = betaincinv(prior.alpha, (len(self.weights) - 1) * prior.alpha, TAILS)
        spread, by = sqrt(prior.rate / (prior.shape * prior.beta)), f"in {BY_SD}s of the column"
        rows = []
        for place, k in enumerate(np.argsort(-self.weights), 1):
            weight, *moments = _points(self.weights, self.means, self.sds, k)
            own = of_draws(drawn["weights"][..., k]).interval
            weight = weight._replace(sd=float(self.weight_sd[k]), interval=own, prior=(float(ends[0]), float(ends[1])))
            rows.append(Estimate(f"{place}: weight", "", weight, axis=Standard(unit=SHARE, scale=1.0, centre=0.0)))
            for j, name in enumerate(self.columns.columns):
                centre, scale, unit = float(self.columns.centre[j]), float(self.columns.scale[j]), unit_of(schema, name)
                own = of_draws(drawn["means"][..., k, j]).interval
                before = student(centre + scale * prior.mean, scale * spread, 2 * prior.shape).interval
                mean = moments[2 * j]._replace(sd=float(self.mean_sd[k, j]), interval=own, prior=before)
                size = 1 / (scale / mixture.SPAN)
                axis = Standard(unit=f"mean, {by} from its centre", scale=size, centre=centre)
                rows.append(Estimate(f"{place}: mean of {name}", unit, mean, axis=axis))
                axis = Standard(unit=f"sd, {by}", scale=size, centre=0.0)
                rows.append(Estimate(f"{place}: sd of {name}", unit, moments[2 * j + 1], axis=axis))
        return rows

    def reference_figures(self, reference: Any) -> list[Marginal | None]:
        """Match each component with the nearest one of the reference without privacy, one to one."""
        from scipy.optimize import linear_sum_assignment

        apart = (self.means[:, None] - reference.means_[None]) / self.columns.scale
        partners = linear_sum_assignment((apart**2).sum(axis=-1))[1]
        others = reference.weights_, reference.means_, np.sqrt(reference.covariances_)
        return [one for k in np.argsort(-self.weights) for one in _points(*others, partners[k])]

    def extras(self) -> Summary:
        """Return why the job ended early, and a note on what the intervals leave out."""
        note = "private ones leave out the noise in the assignment of rows to components"
        return {INTERVAL_NOTE: note, "stopped": self.stopped or None}

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut:
        """Score the mean log density of a row; the constant is a single Gaussian for each column."""
        rows = (train or test).X
        mean, sd = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
        single = (-0.5 * ((test.X - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)).sum(axis=1).mean()
        other = None if reference is None else float(reference.score_samples(test.X).mean())
        private = float(self.log_density(test.X).mean())
        density = score("log predictive density", private, other, float(single), higher_is_better=True)
        return {"rows": len(test.y), "scores": [density]}

    @property
    def weights(self) -> Array:
        """E[π], shape ``(K,)``."""
        return np.asarray(self.law.alpha / self.law.alpha.sum())

    @property
    def weight_sd(self) -> Array:
        """Standard deviations of π, the privacy noise included, shape ``(K,)``."""
        total = self.law.alpha.sum()
        return np.asarray(np.sqrt(self.weights * (1 - self.weights) / (total + 1) + self.noise.counts / total**2))

    @property
    def means(self) -> Array:
        """E[μ] in the columns' own units, shape ``(K, d)``."""
        return np.asarray(self.columns.centre + self.columns.scale * self.law.mean)

    @property
    def mean_sd(self) -> Array:
        """Standard deviations of μ in own units, the privacy noise included, shape ``(K, d)``."""
        own = self._variances / self.law.beta[:, None]
        return np.asarray(self.columns.scale * np.sqrt(own + self._mean_noise**2))

    @property
    def sds(self) -> Array:
        """The components' own standard deviations, √(b/(a - 1)), in own units, shape ``(K, d)``."""
        return np.asarray(self.columns.scale * np.sqrt(self._variances))

    @property
    def _variances(self) -> Array:
        return np.asarray(self.law.rate / (self.law.shape[:, None] - 1))

    @property
    def _mean_noise(self) -> Array:
        """Noise sd of m, in units of `mixture.SPAN`, shape ``(K, 1)``: that of S over β, but at most τ."""
        noise = np.sqrt(self.noise.sums) / self.law.beta
        return np.asarray(np.minimum(noise, mixture.MEAN_SD)[:, None])

    def log_density(self, X: Array) -> Array:
        """Return the log density of rows ``(k, d)``, ``(k,)``, in own units, at the posterior mean; not projected."""
        density = mixture.log_density(self.law, self.columns.scaled(np.asarray(X, float)))
        return np.asarray(density - np.log(self.columns.scale).sum())

    def sample(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Draw weights ``(chains, draws, K)``, means and sds ``(chains, draws, K, d)``, in own units."""
        q, shape = self.law, (chains, draws)
        sd = float(np.sqrt(self.noise.counts) / q.alpha.sum())
        weights = np.maximum(rng.dirichlet(q.alpha, shape) + sd * rng.standard_normal((*shape, q.alpha.size)), 0.0)
        weights[weights.sum(axis=-1) == 0] = 1.0  # where noise has removed all of them, none is likelier
        precisions = rng.gamma(q.shape[:, None], 1 / q.rate, (*shape, *q.mean.shape))
        spread = np.sqrt(1 / (q.beta[:, None] * precisions) + self._mean_noise**2)
        means = q.mean + spread * rng.standard_normal(precisions.shape)
        return {
            "weights": weights / weights.sum(axis=-1, keepdims=True),
            "means": self.columns.centre + self.columns.scale * means,
            "sds": self.columns.scale / np.sqrt(precisions),
        }

    def posterior(self) -> Posterior:
        """Return the posterior of this law."""
        attrs = {name: getattr(self, name) for name in ("contributors", "iterations", "private")}
        both = ("component", "column")
        return Posterior(
            "mixture",
            Drawn(self.sample),
            axes={"weights": ("component",), "means": both, "sds": both},
            coords={"component": tuple(range(1, len(self.weights) + 1)), "column": self.columns.columns},
            notes=self.warnings,
            attrs=attrs | {"method": "variational Bayes of a Gaussian mixture", "stopped": self.stopped or None},
            table=self.estimates,
            extras=self.extras,
            predictor=self,
            sample=self.sample,
            private=self.private,
            refitter=self.refitter,
        )


def _points(weights: Array, means: Array, sds: Array, k: int) -> list[Marginal]:
    """Return component k's weight, then mean and standard deviation of each column, without intervals."""
    pairs = zip(means[k], sds[k], strict=True)
    return [Marginal(float(weights[k])), *(Marginal(float(number)) for pair in pairs for number in pair)]


def gaussian_mixture(
    schema: Schema,
    *,
    rng: np.random.Generator,
    settings: Settings | None = None,
    held_out: Problem | None = None,
    on_progress: OnProgress | None = None,
) -> Job[MixtureLaw]:
    """Run the job of a mixture of the schema's features (without its target).

    The rounds do not depend on the prior, because iterations use the default one.

    Args:
        rng: for the start of the components; a restarted job needs it in the same state.
        held_out: the trainer's own rows, for the mean log predictive density that `on_progress` gets. None reports the
            estimated gain of the bound since the first iteration, which costs no budget.

    Raises:
        NoAggregate: one of the first two rounds, without which there is no result, ended without a sum.
    """
    settings = settings or Settings()
    phases = yield phases_request(schema, settings.std_share, schema.features)
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
    state, stopped, rounds = mixture.init(_start(settings, columns, rng), n, PRIOR), "", [phases]
    score, before, gained = None if held_out is None else _density_score(held_out), None, 0.0
    for t in range(schedule.iterations):
        current = state.posterior
        try:
            sums = yield _request(current, columns, schedule)
        except NoAggregate as ended:
            if t == 0:
                raise
            stopped = ended.reason
            break
        statistics, noise = _unpacked(sums, n, settings.components)
        state = mixture.step(state, statistics, noise, n, mixture.rate(state, noise, n), PRIOR)
        rounds.append(sums)
        if on_progress is not None:
            gained += 0.0 if before is None else mixture.gain(before, current, statistics, PRIOR)
            before = current
            progress = (GAINED, gained) if score is None else (score.name, score.of(state.posterior, columns))
            on_progress(Iteration(state.iteration, schedule.iterations, *progress))
    fit = MixtureLaw(
        schema=schema,
        columns=columns,
        law=state.posterior,
        noise=state.noise,
        schedule=schedule,
        iterations=state.iteration,
        stopped=stopped,
        contributors=n,
        private=all_private(rounds, schema),
        warnings=located.warnings,
    )
    return _with_prior(fit, state.statistics, **given(settings, PRIORS))


def _dimension(schema: Schema, settings: Settings) -> int:
    return settings.components * (1 + 2 * len(schema.features))


def _with_prior(fit: MixtureLaw, statistics: Statistics, **prior: float) -> MixtureLaw:
    """Return the posterior of the averaged statistics under another prior.

    Args:
        prior: numbers of `Prior`, such as ``prior_alpha``; others stay.

    Raises:
        DataError: a name is unknown, or a number is out of range.
    """
    for name, number in prior.items():
        if name not in (known := [f"prior_{field}" for field in Prior._fields]):
            raise unknown("prior parameter", name, None, known)
        require_positive(name, number if name in PRIORS else None)
    own = fit.prior._replace(**{name.removeprefix("prior_"): number for name, number in prior.items()})
    repaired = mixture.repair(statistics, fit.noise, fit.contributors, own)
    refitter = partial(_with_prior, fit, statistics)
    return replace(fit, law=mixture.posterior(repaired, own), prior=own, refitter=refitter)


def _start(settings: Settings, columns: Standardisation, rng: np.random.Generator) -> Array:
    """Return the first means, in units of `mixture.SPAN`. Raises `DataError` if given ones lack or exceed columns."""
    d, means = len(columns.columns), settings.means
    if not means:
        return mixture.scattered(settings.components, d, rng)
    if any(len(mean) != d for mean in means):
        raise DataError(
            f"setting start: expected {d} numbers in each mean, for the columns {', '.join(columns.columns)}"
        )
    return columns.z(np.array(means))


def _request(current: mixture.Components, columns: Standardisation, schedule: Schedule) -> RoundRequest:
    natural, d = mixture.natural(current), len(columns.columns)
    parameters = columns.parameters() | {"weights": list(mixture.weights(d)), "offsets": [mixture.OFFSET] * d}
    parameters |= {name: array.tolist() for name, array in natural._asdict().items()}
    return RoundRequest("mixture", parameters, budget_share=schedule.share, batch=schedule.batch)


def _unpacked(sums: NoisyAggregate, n: int, components: int) -> tuple[Statistics, Noise]:
    """Return the statistics over all n clients and their noise, from blocks (w₁ N, w₂ S, w₃ (Q - h N))."""
    scale, blocks = n / sums.contributors, sums.value.reshape(components, -1)
    d = blocks.shape[1] // 2
    weights, blocks = mixture.weights(d), scale * blocks
    N, S = blocks[:, 0] / weights[0], blocks[:, 1 : 1 + d] / weights[1]
    Q = blocks[:, 1 + d :] / weights[2] + mixture.OFFSET * N[:, None]
    return Statistics(N, S, Q), Noise(*(scale**2 * sums.noise_variance / w**2 for w in weights))


def _density_score(held_out: Problem) -> Score:
    """Return the score of iterations on the trainer's held-out rows; θ is a posterior."""
    return Score(
        "held-out log predictive density",
        lambda q, columns: (
            float(mixture.log_density(q, columns.scaled(held_out.X)).mean()) - float(np.log(columns.scale).sum())
        ),
    )


class Mixture(LearningJob):
    """A Gaussian mixture of the features by variational Bayes."""

    name, title, settings = "mixture", "Components, the heaviest first", Settings
    iterative = any_labels = True  # no target is predicted
    changeable = PRIORS
    estimator = "scikit-learn's mixtures predict components of rows; this result is a distribution"
    about = "clusters, by variational inference: one round for each iteration"
    examples, clean = (Example(PAIRS, {"components": 2, "epochs": 4}),), Clean(PAIRS)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        numbers = _dimension(schema, settings)
        return stages(numbers, settings.std_share, settings.epochs, settings.batch, conditions, ITERATIONS_MAX)

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[MixtureLaw]:
        known = {"held_out": conditions.held_out, "on_progress": conditions.on_iteration}
        return gaussian_mixture(schema, rng=conditions.rng, settings=settings, **known)  # type: ignore[arg-type]

    def model(self, schema: Schema, settings: Settings) -> str:
        return f"{settings.components} Gaussian components of {listed(schema.features)}"

    def reference(self, train: Problem, settings: Settings) -> Any:
        """Fit by maximum likelihood with scikit-learn: the best of `_STARTS` starts."""
        from sklearn.mixture import GaussianMixture  # slow to import

        if len(train.X) < settings.components:
            raise DataError(f"{len(train.X)} rows are fewer than {settings.components} components; take more rows")
        _, scale = standardisation(train.X)
        least = 1e-6 * float(np.min(scale) ** 2)
        return GaussianMixture(
            settings.components, covariance_type="diag", n_init=_STARTS, reg_covar=least, random_state=0
        ).fit(train.X)
