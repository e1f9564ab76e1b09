"""LDP-SGD: stochastic gradient descent over reports, in which each client takes part once (LDP paper, section 4.2).

    groups    L = ⌊N/G⌋ groups, one after the other, of ⌊N/L⌋ clients each      G = ⌈d max(ln d, 1)/ε²⌉
    reports   of each client of group t: its gradient g of the log likelihood at θ_t, within the ball of radius C, with
              Gaussian noise for Δ2 = 2C
    step      θ_{t+1} = θ_t + η_t ḡ_t,   ḡ_t the mean of the group's reports, from θ_1 = 0
    result    the mean of the last iterates

A client's whole budget goes into its one report, so that the number of steps costs nothing; the paper (after Wang et
al. 2019, "Collecting and analyzing multidimensional data with local differential privacy") asks for G of the order
d log d/ε² and names no constant. With that one, the noise of ḡ_t is about as large at every ε, and ε decides how many
steps there are. They are no more than `GROUPS_MAX`, beyond which groups grow instead: nobody waits for more rounds.

**Steps.** The paper gives no rule. Here it is that of convex functions whose noisy gradients have E|ḡ|² <= ρ² (Bassily,
Smith and Thakurta 2014, after Shamir and Zhang 2013),

    η_t = rate/(ρ√t),      ρ² = C² + d s²,      s² the variance of the noise in each coordinate of ḡ_t,

so that the first step is about as long as `rate`, in units of scaled columns, whatever the noise; their rate is the
largest |θ|. All of it is public: s is what the reports themselves say of their noise. The last iterates are averaged
(Rakhlin, Shamir and Sridharan 2012); `averaged` is their part of all.

**Failed rounds.** A client's charge for a report never comes back. So where a group gives no report at all the job ends
with the iterates that it has, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dca_proto.aggregate import LdpReportRequest, NoAggregate, NoisyAggregate
from dca_proto.privacy.rounding import at_least
from inference.errors import DataError, unknown
from inference.problem import Schema
from inference.releases.terms import GAUSSIAN
from inference.rounds import Job
from inference.variational.models import BERNOULLI, NORMAL
from inference.variational.progress import Iteration, OnProgress
from inference.variational.standardise import Standardisation

Array = NDArray[np.float64]

GAINED = "log likelihood gained"
GROUPS_MAX = 2000


@dataclass(frozen=True)
class SgdSettings:
    """Of the job; all public.

    Attributes:
        family: ``normal`` (linear regression) or ``bernoulli`` (logistic). intercept: whether there is one.
        clip: C, in units of a gradient of scaled columns.
        rate: the length of the first step, about. averaged: the part of the iterates, at the end, whose mean is the
            result.

    Raises:
        DataError: a number is out of range, or an unknown family.
    """

    family: str = NORMAL
    intercept: bool = True
    clip: float = 1.0
    rate: float = 1.0
    averaged: float = 0.5

    def __post_init__(self) -> None:
        if self.family not in (BERNOULLI, NORMAL):
            raise unknown("family", self.family, "generalised linear models", (BERNOULLI, NORMAL))
        for name in ("clip", "rate"):
            if not 0 < (found := getattr(self, name)) < inf:
                raise DataError(f"setting {name} is {found:g}; expected a finite number above 0")
        if not 0 < self.averaged <= 1:
            raise DataError(f"setting averaged is {self.averaged:g}; expected a part above 0 and at most 1")


DEFAULT = SgdSettings()


class Groups(NamedTuple):
    """L, and how many clients are in each group; those that are left over are asked nothing."""

    number: int
    size: int


def group_size(dimension: int, epsilon: float) -> int:
    """G, as at the head.

    Args:
        dimension: d, how many coefficients, the intercept included. epsilon: of each client's report.

    Raises:
        DataError: no coefficient, or an ε that is not finite and above 0.
    """
    if dimension < 1 or not 0 < epsilon < inf:
        raise DataError(
            f"{dimension} coefficients at epsilon {at_least(epsilon)}; expected 1 or more, at a finite one above 0"
        )
    return ceil(dimension * max(log(dimension), 1.0) / epsilon**2)


def groups(clients: int, least: int) -> Groups:
    """As many groups as can be of at least so many clients, up to `GROUPS_MAX`; one, where clients are fewer.

    Args:
        clients: N. least: G.

    Raises:
        DataError: no client, or groups of none.
    """
    if clients < 1 or least < 1:
        raise DataError(f"groups of {least} of {clients} clients; expected at least 1 of each")
    number = max(1, clients // max(least, ceil(clients / GROUPS_MAX)))
    return Groups(number, clients // number)


class Score(NamedTuple):
    """A score of θ, in units of scaled columns, on rows that the trainer holds."""

    name: str
    of: Callable[[Array], float]


@dataclass(frozen=True, eq=False)
class SgdFit:
    """What LDP-SGD learnt: a point, without a spread.

    Attributes:
        schema: of the data. columns: how clients scaled and clamped them.
        theta: in units of scaled columns, the intercept first if there is one.
        settings: as given. groups: as planned. steps: how many groups reported. stopped: why not all; empty if all did.
        contributors: clients that reported. noise_sd: of the mean gradient's coordinates, at each step.
        private: whether the reports, and the bounds, are private.
    """

    schema: Schema
    columns: Standardisation
    theta: Array
    settings: SgdSettings
    groups: Groups
    steps: int
    stopped: str
    contributors: int
    noise_sd: tuple[float, ...]
    private: bool

    @property
    def coefficients(self) -> Array:
        """Slopes per feature unit: of the target in its units, or of the log odds. Shape ``(d,)``."""
        slopes: Array = self._target[1] * self._slopes / self.columns.scale[:-1]
        return slopes

    @property
    def intercept(self) -> float:
        """The target, or the log odds, at features of zero."""
        centre, scale = self._target
        constant = float(self.theta[0]) if self.settings.intercept else 0.0
        return centre + scale * constant - float(self.coefficients @ self.columns.centre[:-1])

    def linear_predictor(self, X: Array) -> Array:
        """The target, or the log odds, of rows ``X`` in their own units, shape ``(k, d)``, as clients clamp theirs."""
        centre, scale = self._target
        constant = float(self.theta[0]) if self.settings.intercept else 0.0
        predicted: Array = centre + scale * (constant + self.columns.z(np.asarray(X, float)) @ self._slopes)
        return predicted

    def predict(self, X: Array) -> Array:
        """The target of rows in its units; of ``bernoulli``, the probability of its upper bound. Shape ``(k,)``."""
        predicted = self.linear_predictor(X)
        return predicted if self.settings.family == NORMAL else np.asarray(expit(predicted))

    @property
    def _slopes(self) -> Array:
        return self.theta[1:] if self.settings.intercept else self.theta

    @property
    def _target(self) -> tuple[float, float]:
        """Centre and scale of what is predicted."""
        if self.settings.family == BERNOULLI:
            return 0.0, 1.0
        return float(self.columns.centre[-1]), float(self.columns.scale[-1])


def ldp_sgd(
    schema: Schema,
    plan: Groups,
    settings: SgdSettings = DEFAULT,
    *,
    columns: Standardisation | None = None,
    score: Score | None = None,
    on_progress: OnProgress | None = None,
) -> Job[SgdFit]:
    """The job: a report round for each group, each of which spends its clients' whole budget.

    In a job's plan these are one stage of `plan.number` rounds, each with all of the budget, of `plan.size` clients and
    one use of each.

    Args:
        plan: from `groups`, of all clients and the `group_size` of the budget's ε.
        columns: how clients scale and clamp; by default to ±1 from the public bounds.
        score: of iterates, for `on_progress`; without one, what the log likelihood of a client has gained is told, an
            estimate from the same reports that costs no budget.

    Raises:
        NoAggregate: of the first group, without which there is no result.
        DataError: the columns are not the schema's.
    """
    scaled = in_bounds(schema) if columns is None else columns
    if scaled.columns != schema.columns:
        raise DataError(f"columns {', '.join(scaled.columns)} are scaled, and the schema has others; give one for each")
    descent = _Descent(scaled, settings, plan)
    for t in range(1, plan.number + 1):
        try:
            reports = yield descent.request()
        except NoAggregate as ended:
            if t == 1:
                raise
            descent.stopped = ended.reason
            break
        descent.step(reports)
        if on_progress is not None:
            on_progress(Iteration(t, plan.number, *descent.scored(score)))
    return descent.result(schema)


def in_bounds(schema: Schema) -> Standardisation:
    """Columns mapped from their public bounds to ±1."""
    return Standardisation(schema.columns, schema.centres, schema.half_widths, np.ones(len(schema.columns)))


class _Descent:
    """The iterates so far."""

    def __init__(self, columns: Standardisation, settings: SgdSettings, plan: Groups) -> None:
        dimension = len(columns.columns) - 1 + settings.intercept
        self._columns, self._settings, self._plan = columns, settings, plan
        self._iterates = [np.zeros(dimension)]
        self._noise_sd: list[float] = []
        self._contributors, self._gained, self._private = 0, 0.0, True
        self.stopped = ""

    def request(self) -> LdpReportRequest:
        """Of the clipped gradients of the next group at the last iterate."""
        settings, theta = self._settings, self._iterates[-1]
        parameters = self._columns.parameters() | {
            "theta": [float(value) for value in theta],
            "clip": settings.clip,
            "family": settings.family,
            "intercept": settings.intercept,
        }
        return LdpReportRequest("gradient", parameters, rows_max=1, batch=self._plan.size, mechanism=GAUSSIAN)

    def step(self, reports: NoisyAggregate) -> None:
        """The next iterate."""
        n, theta, settings = reports.contributors, self._iterates[-1], self._settings
        gradient, variance = reports.value / n, reports.noise_variance / n**2
        if len(self._iterates) > 1:  # this group's noise has nothing to do with what was moved before
            self._gained += float(gradient @ (theta - self._iterates[-2]))
        norm = sqrt(settings.clip**2 + len(theta) * variance)
        self._iterates.append(theta + settings.rate / (norm * sqrt(len(self._iterates))) * gradient)
        self._noise_sd.append(sqrt(variance))
        self._contributors += n
        self._private &= reports.private

    def scored(self, score: Score | None) -> tuple[str, float]:
        """What a step is told by."""
        return (GAINED, self._gained) if score is None else (score.name, score.of(self._iterates[-1]))

    def result(self, schema: Schema) -> SgdFit:
        """The mean of the last iterates; the first, zero, is never among them."""
        steps = len(self._iterates) - 1
        last = self._iterates[-max(1, round(self._settings.averaged * steps)) :]
        return SgdFit(
            schema=schema,
            columns=self._columns,
            theta=np.mean(last, axis=0),
            settings=self._settings,
            groups=self._plan,
            steps=steps,
            stopped=self.stopped,
            contributors=self._contributors,
            noise_sd=tuple(self._noise_sd),
            private=schema.private and self._private,
        )
