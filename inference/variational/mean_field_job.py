"""Variational inference as a learning job: a first round for centres and scales, then one round for each iteration.

    round 0        noisy moments of the columns -> centres, scales, and from its noise how many iterations
                                                                              `standardise`, `schedule`
    round t        θ = m + s ξ; the clients' clipped gradients at θ -> a step of m and s          `mean_field`
    at the end     the average of the last iterates, and their noise                             `noise_spread`

The job ends earlier where a round comes to nothing (too many dropped too often, or the budget is spent): the result is
then of the iterations held so far and says why it stopped.

**Defaults.** A row of d standardised features has |x| ≈ √d, so C = √d/4 bounds the residual of a typical row to a
quarter: larger norms distort less and cost noise in proportion. A first step of 1 is what moves log odds of a typical
row by about one. They were chosen while looking at breast cancer and at Adult, its test part included, so they were
tried again on data that had no part in it (is the target above its median? is the digit odd?), as they are, and with
one of them halved or doubled at a time (rate, C, the first round's share, the averaged part, and at most 30 or 120
iterations). AUC on a third of the rows, held out, at δ = 1e-5, T = N/10 and emulated noise, the mean of 24 splits; in
brackets the lowest and the highest of the changed ones:

                  N     d  no privacy   ε = 0.3                 1                       4
    wine, red   1066   12    0.870      0.757 (0.719, 0.771)    0.836 (0.831, 0.837)    0.864 (0.856, 0.869)
    wine, white 3265   12    0.787      0.757 (0.747, 0.757)    0.770 (0.764, 0.774)    0.777 (0.771, 0.779)
    abalone     2784    9    0.872      0.844 (0.838, 0.845)    0.865 (0.854, 0.865)    0.866 (0.853, 0.870)
    power plant 6378    5    0.991      0.988 (0.988, 0.989)    0.989 (0.988, 0.990)    0.989 (0.988, 0.990)
    digits      1198   62    0.972      0.879 (0.867, 0.885)    0.935 (0.929, 0.936)    0.963 (0.960, 0.964)
    simulated    666   21    0.911      0.838 (0.812, 0.845)    0.879 (0.870, 0.881)    0.900 (0.895, 0.903)

So from ε = 1 on, a factor of two in any of them changes AUC by 0.013 at most, and gains 0.005 at most; where noise
prevails, at ε = 0.3, it is 0.038 and 0.014. On a third of Adult's training part, which did have a part in the choice,
one split: 0.891 (0.888, 0.893) at ε = 1 and 0.878 (0.871, 0.881) at 0.1; no privacy 0.894.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoAggregate, NoisyAggregate, SecureSumRequest
from inference.errors import DataError
from inference.problem import Schema
from inference.rounds import Job
from inference.variational import mean_field
from inference.variational.mean_field_fit import VariationalFit
from inference.variational.models import Model
from inference.variational.noise_spread import noise_sd
from inference.variational.progress import GAINED, Iteration, OnProgress
from inference.variational.schedule import Schedule, schedule_after
from inference.variational.standardise import Standardisation, moments_request, standardised

Array = NDArray[np.float64]


class Score(NamedTuple):
    """A score of q(θ) on rows that the trainer holds: ``of(mean, sd, columns)``, given in standardised units."""

    name: str
    of: Callable[[Array, Array, Standardisation], float]


@dataclass(frozen=True)
class VariationalSettings:
    """Of the job; all public.

    Attributes:
        epochs: E, how often each client takes part after the first round; None plans it (`schedule`).
        batch: B, clients of one iteration; 0 for all of them.
        clip: C; None for √d/4. bound: to how many standard deviations clients project their columns.
        rate: the length of the first step of m: in standardised units, by how much it moves log odds, say, of a typical
        row.
        std_share: the first round's share of the job's μ², in (0, 1).
        averaged: the part of the iterations, at the end, whose mean is the result.

    Raises:
        DataError: a number is out of range.
    """

    epochs: int | None = None
    batch: int = 0
    clip: float | None = None
    bound: float = 4.0
    rate: float = 1.0
    std_share: float = 0.1
    averaged: float = 0.3

    def __post_init__(self) -> None:
        _require("epochs", self.epochs if self.epochs is not None else 1, 1, inf)
        _require("batch", self.batch, 0, inf)
        for name in ("clip", "bound", "rate"):
            value = getattr(self, name)
            _require(name, 1.0 if value is None else value, 1e-9, 1e9)
        _require("std_share", self.std_share, 1e-6, 1 - 1e-6)
        _require("averaged", self.averaged, 1e-6, 1)


def _require(name: str, found: float, least: float, most: float) -> None:
    if not least <= found <= most:
        raise DataError(f"setting {name} is {found:g}; expected {least:g} to {most:g}")


DEFAULT = VariationalSettings()


def variational_inference(
    schema: Schema,
    model: Model,
    *,
    rng: np.random.Generator,
    settings: VariationalSettings = DEFAULT,
    score: Score | None = None,
    on_progress: OnProgress | None = None,
) -> Job[VariationalFit]:
    """The job: yields `SecureSumRequest`s, is sent `NoisyAggregate`s, returns the fit.

    Args:
        rng: draws ξ; nothing private depends on it, and a restarted job needs it in the same state again.
        score: on rows that the trainer holds, for `on_progress`; without one, what the bound has gained in m is
            told, an estimate from the same noisy gradients that costs no budget.

    Raises:
        NoAggregate: of the first two rounds, without which there is no result.
    """
    moments = yield moments_request(schema, settings.std_share, target=model.standardise_target)
    columns = standardised(schema, moments, settings.bound)
    schedule = schedule_after(
        moments, settings.std_share, model.dimension, epochs=settings.epochs, batch=settings.batch
    )
    ascent = _Ascent(model, columns, schedule, settings, moments.contributors)
    course = yield from _ascend(ascent, rng, score, on_progress)
    return _result(schema, ascent, course, moments)


@dataclass(frozen=True)
class _Ascent:
    """What all iterations share."""

    model: Model
    columns: Standardisation
    schedule: Schedule
    settings: VariationalSettings
    clients: int

    def request(self, theta: Array) -> SecureSumRequest:
        """Of the clipped gradients at θ."""
        clip = self.settings.clip or sqrt(self.model.dimension) / 4
        return self.model.request(theta, self.columns, clip, self.schedule.share, self.schedule.batch)

    def gradient(self, theta: Array, sums: NoisyAggregate) -> Array:
        """g: the sum over a batch stands for that over all clients, by their numbers."""
        prior = np.asarray(self.model.prior_gradient(theta), float)  # JAX's have half the digits
        gradient: Array = self.scale(sums) * sums.value + prior
        return gradient

    def scale(self, sums: NoisyAggregate) -> float:
        """What the sum is multiplied by."""
        return self.model.weight * self.clients / sums.contributors

    def noise(self, sums: NoisyAggregate) -> float:
        """σ, of each coordinate of g."""
        return self.scale(sums) * sqrt(sums.noise_variance)

    def start(self) -> mean_field.State:
        """m = 0, and s as the guess of the curvature says."""
        precision = self.clients * self.model.weight * self.model.curvature
        return mean_field.init(np.full(self.model.dimension, 1 / sqrt(precision)))


@dataclass
class _Course:
    """What was seen on the way: iterates, rates and noise, one of each for each iteration."""

    means: list[Array] = field(default_factory=list)
    log_sds: list[Array] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    noise_sds: list[float] = field(default_factory=list)
    gained: float = 0.0
    private: bool = True
    stopped: str = ""


def _ascend(
    ascent: _Ascent, rng: np.random.Generator, score: Score | None, on_progress: OnProgress | None
) -> Generator[SecureSumRequest, NoisyAggregate, _Course]:
    """All iterations, or as many as come to something."""
    state, course = ascent.start(), _Course()
    moved, total = np.zeros(ascent.model.dimension), ascent.schedule.iterations
    for t in range(total):
        theta, state = mean_field.propose(state, rng)
        try:
            sums = yield ascent.request(theta)
        except NoAggregate as ended:
            if t == 0:
                raise
            course.stopped = ended.reason
            break
        gradient, before, noise = ascent.gradient(theta, sums), state.mean, ascent.noise(sums)
        state, info = mean_field.step(
            state, gradient, moved, noise=noise, rate=ascent.settings.rate, left=1 - t / total
        )
        moved = state.mean - before
        _note(course, state, info, noise, sums.private)
        if on_progress is not None:
            on_progress(Iteration(state.iteration, total, *_scored(course, state, ascent.columns, score)))
    return course


def _note(course: _Course, state: mean_field.State, info: mean_field.Info, noise: float, private: bool) -> None:
    course.means.append(state.mean)
    course.log_sds.append(state.log_sd)
    course.rates.append(info.rate)
    course.noise_sds.append(noise)
    course.gained += info.gain
    course.private &= private


def _scored(
    course: _Course, state: mean_field.State, columns: Standardisation, score: Score | None
) -> tuple[str, float]:
    """What an iteration is told by: the score's name and its value, or else what the bound has gained."""
    if score is None:
        return GAINED, course.gained
    return score.name, score.of(state.mean, np.exp(state.log_sd), columns)


def _result(schema: Schema, ascent: _Ascent, course: _Course, moments: NoisyAggregate) -> VariationalFit:
    done = len(course.means)
    averaged = max(1, round(ascent.settings.averaged * done))
    return VariationalFit(
        schema=schema,
        model=ascent.model,
        columns=ascent.columns,
        mean=np.mean(course.means[-averaged:], axis=0),
        posterior_sd=np.exp(np.mean(course.log_sds[-averaged:], axis=0)),
        noise_sd=np.full(ascent.model.dimension, noise_sd(course.rates, course.noise_sds, averaged)),
        schedule=ascent.schedule,
        iterations=done,
        stopped=course.stopped,
        contributors=moments.contributors,
        private=schema.private and moments.private and course.private,
    )
