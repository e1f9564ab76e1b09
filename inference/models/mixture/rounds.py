"""A Gaussian mixture as a learning job: a round for centres and scales, then one for each iteration of `mixture`.

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

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoAggregate, NoisyAggregate, SecureSumRequest
from inference.columns import Standardisation
from inference.errors import DataError, unknown
from inference.locate import locate, located_by
from inference.models.mixture import model as mixture
from inference.models.mixture.fit import MixtureFit
from inference.models.mixture.model import PRIOR, Noise, Prior, State, Statistics
from inference.problem import Problem, Schema
from inference.rounds import Job
from inference.variational.progress import GAINED, Iteration, OnProgress
from inference.variational.schedule import Schedule, schedule_after

Array = NDArray[np.float64]

ITERATIONS_MAX = 25


@dataclass(frozen=True)
class MixtureSettings:
    """Of the job; all public.

    Attributes:
        components: K >= 2. epochs: E, None plans it. batch: B, 0 for everybody.
        std_share: the first round's share of the job's μ². prior: in units of `mixture.SPAN`.
        start: public guesses of the components' means, in the columns' own units; none are drawn at random.

    Raises:
        DataError: a number is out of range.
    """

    components: int = 3
    epochs: int | None = None
    batch: int = 0
    std_share: float = 0.1
    prior: Prior = PRIOR
    start: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.start and len(self.start) != self.components:
            raise DataError(f"setting start has {len(self.start)} means for {self.components} components; give all")
        if self.components < 2:
            raise DataError(f"setting components is {self.components}; expected 2 or more")
        if self.batch < 0 or (self.epochs is not None and self.epochs < 1):
            raise DataError(f"settings epochs {self.epochs} and batch {self.batch}; expected from 1 and from 0 on")
        if not (0 < self.std_share < 1 and min(self.prior._replace(mean=1.0)) > 0):
            raise DataError("settings std_share and the prior's numbers must be above 0, the share below 1")


DEFAULT = MixtureSettings()


def gaussian_mixture(
    schema: Schema,
    *,
    rng: np.random.Generator,
    settings: MixtureSettings = DEFAULT,
    held_out: Problem | None = None,
    on_progress: OnProgress | None = None,
) -> Job[MixtureFit]:
    """The job of a mixture over the schema's features (its target is left out).

    Args:
        rng: draws where the components start; a restarted job needs it in the same state again.
        held_out: rows that the trainer holds, for the mean log predictive density that `on_progress` is told; without
            them, what the bound has gained since the first iteration, an estimate that costs no budget.

    Raises:
        NoAggregate: of the first two rounds, without which there is no result.
    """
    phases = yield located_by(schema, settings.std_share, schema.features)
    located = locate(phases)
    columns = located.standardisation(schema, mixture.SPAN).without_target().in_bounds()
    schedule = schedule_after(
        phases,
        settings.std_share,
        settings.components * (1 + 2 * len(schema.features)),
        epochs=settings.epochs,
        batch=settings.batch,
        iterations_max=ITERATIONS_MAX,
    )
    start = mixture.init(_start(settings, columns, rng), phases.contributors, settings.prior)
    watch = _Watch(columns, settings.prior, held_out, on_progress, schedule.iterations)
    course = yield from _climb(start, _Rounds(columns, schedule, settings, phases.contributors), watch)
    state, n = course.state, phases.contributors
    found = MixtureFit(
        schema=schema,
        columns=columns,
        posterior=state.posterior,
        noise=state.noise,
        schedule=schedule,
        iterations=state.iteration,
        stopped=course.stopped,
        contributors=n,
        private=schema.private and phases.private and course.private,
        prior=settings.prior,
        warnings=located.warnings,
    )
    return replace(found, again=partial(_under, found, state.statistics))


def _under(found: MixtureFit, statistics: Statistics, **prior: float) -> MixtureFit:
    """The posterior of the averaged statistics under another prior.

    Args:
        prior: numbers of `Prior`, as ``prior_alpha``; those that are left out stay.

    Raises:
        DataError: a name is unknown, or a number out of range.
    """
    names = [f"prior_{name}" for name in Prior._fields]
    for name in prior:
        if name not in names:
            raise unknown("prior parameter", name, None, names)
    given = found.prior._replace(**{name.removeprefix("prior_"): number for name, number in prior.items()})
    MixtureSettings(prior=given)  # refuses what is out of range
    repaired = mixture.repair(statistics, found.noise, found.contributors, given)
    again = partial(_under, found, statistics)
    return replace(found, posterior=mixture.posterior(repaired, given), prior=given, again=again)


def _start(settings: MixtureSettings, columns: Standardisation, rng: np.random.Generator) -> Array:
    """The first means, in units of `mixture.SPAN`. Raises `DataError` where those given have others."""
    d = len(columns.columns)
    if not settings.start:
        return mixture.scattered(settings.components, d, rng)
    if any(len(mean) != d for mean in settings.start):
        raise DataError(f"setting start has means of other lengths than {d}: {', '.join(columns.columns)}")
    return columns.z(np.array(settings.start, float))


class _Course(NamedTuple):
    """The last state, why it is the last, and whether all rounds were private."""

    state: State
    stopped: str
    private: bool


@dataclass(frozen=True)
class _Rounds:
    """What all iterations share."""

    columns: Standardisation
    schedule: Schedule
    settings: MixtureSettings
    clients: int

    def request(self, found: mixture.Posterior) -> SecureSumRequest:
        """Of the expected sufficient statistics at a posterior."""
        log_weights, means, precisions = mixture.natural(found)
        d = len(self.columns.columns)
        parameters = self.columns.parameters() | {
            "weights": list(mixture.weights(d)),
            "offsets": [mixture.OFFSET] * d,
            "log_weights": [float(value) for value in log_weights],
            "means": [[float(value) for value in row] for row in means],
            "precisions": [[float(value) for value in row] for row in precisions],
        }
        return SecureSumRequest("mixture", parameters, budget_share=self.schedule.share, batch=self.schedule.batch)

    def unpacked(self, sums: NoisyAggregate) -> tuple[Statistics, Noise]:
        """The statistics over all clients and their noise: the blocks of components are (w₁ N, w₂ S, w₃ (Q - h N))."""
        scale, d = self.clients / sums.contributors, len(self.columns.columns)
        weights = mixture.weights(d)
        blocks = scale * sums.value.reshape(self.settings.components, 1 + 2 * d)
        N, S = blocks[:, 0] / weights[0], blocks[:, 1 : 1 + d] / weights[1]
        Q = blocks[:, 1 + d :] / weights[2] + mixture.OFFSET * N[:, None]
        return Statistics(N, S, Q), Noise(*(scale**2 * sums.noise_variance / w**2 for w in weights))


class _Watch:
    """Scores the iterations and tells of them, where somebody wants to know."""

    def __init__(
        self,
        columns: Standardisation,
        prior: Prior,
        held_out: Problem | None,
        on_progress: OnProgress | None,
        iterations: int,
    ) -> None:
        self._rows = None if held_out is None else columns.scaled(held_out.X)
        self._per_row = float(np.log(columns.scale).sum())
        self._prior, self._on_progress, self._iterations = prior, on_progress, iterations
        self._before: mixture.Posterior | None = None
        self._gained = 0.0

    def note(self, at: mixture.Posterior, found: Statistics, state: State) -> None:
        """An iteration that found these statistics at a posterior, and made the next state of them."""
        if self._on_progress is None:
            return
        if self._before is not None:
            self._gained += mixture.gain(self._before, at, found, self._prior)
        self._before = at
        self._on_progress(Iteration(state.iteration, self._iterations, *self._scored(state)))

    def _scored(self, state: State) -> tuple[str, float]:
        """What an iteration is told by: the density of the rows held out, or else what the bound has gained."""
        if self._rows is None:
            return GAINED, self._gained
        density = float(mixture.log_density(state.posterior, self._rows).mean()) - self._per_row
        return "held-out log predictive density", density


def _climb(state: State, rounds: _Rounds, watch: _Watch) -> Generator[SecureSumRequest, NoisyAggregate, _Course]:
    """All iterations, or as many as come to something."""
    private = True
    for t in range(rounds.schedule.iterations):
        try:
            sums = yield rounds.request(state.posterior)
        except NoAggregate as ended:
            if t == 0:
                raise
            return _Course(state, ended.reason, private)
        found, noise = rounds.unpacked(sums)
        at = state.posterior
        rate = mixture.rate(state, noise, rounds.clients)
        state, _ = mixture.step(state, found, noise, rounds.clients, rate, rounds.settings.prior)
        private &= sums.private
        watch.note(at, found, state)
    return _Course(state, "", private)
