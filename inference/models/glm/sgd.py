"""Job `ldp-sgd`: stochastic gradient descent over reports, each client used once (LDP paper, section 4.2).

Linear or logistic regression, which needs no sampler and gives a point, without a spread.

    groups    L = ⌊N/G⌋ groups, one after the other, of ⌊N/L⌋ clients each, at most `GROUPS_MAX`
    reports   of each client of group t: its gradient g of the log likelihood at θ_t, within the ball of radius C, with
              Gaussian noise for Δ2 = 2C
    step      θ_{t+1} = θ_t + η_t ḡ_t,   ḡ_t the mean of the group's reports, from θ_1 = 0
    result    the last iterate

A client's whole budget goes into its one report, so that the number of steps costs nothing but time.

**Steps.** The paper gives no rule. Here they are planned from what is public: n, ε and d. Columns are scaled so that
their standard deviations are about 1 (a third of the half-width of their public bounds), and then the gradient's mean
is about h(θ* - θ) in each coordinate, with h = 1 (linear) or ¼ (logistic, where p(1 - p) is largest). So θ_t + ḡ_t/h is
an observation of θ*_j with noise of variance v/h², v that of ḡ_t's coordinates. With θ*_j ~ N(0, q_j) before, Kalman's
filter gives

    η_tj = 1/(h (t + k_j)),   k_j = v/(h² q_j):   much noise, short steps; little noise, θ_t is the mean of observations
    w_j = L/(L + k_j)         the weight of the data in the result, as planned

with q_j = V/d for features and 2V for the intercept, V = ½ (linear: features explain half of the target) or 2
(logistic). Where features are narrower than their bounds say, h is smaller, and the result is drawn towards 0.

**Radius.** By default C = √m (linear) or √m/2 (logistic), the norm of a usual gradient of m coordinates: most pass.

Measured on diabetes (398 clients, 3 features, 40 splits, each with its own noise), as test errors in units of that of
predicting the mean; without privacy 0.74:

    ε                          1       2       4       6       8
    w of slopes                0.23    0.51    0.78    0.88    0.92
    mean                       1.07    0.92    0.85    0.82    0.78
    splits above 0.97          27      13      6       2       1

Steps η_t = 1/(√(C² + d s²) √t) in units of the bounds, the rule of convex functions, give 2.06, 1.11 and 0.84 at ε = 1,
8 and 30. Below w = 0.8 the result warns.

**Failed rounds.** A client's charge for a report never comes back. So where a group gives no report at all the job ends
with the iterates that it has, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np

from dca_proto.aggregate import LdpReportRequest, NoAggregate, NoisyAggregate
from inference.columns import PRIOR_BOUND_SDS, Array, Standardisation
from inference.errors import DataError, unknown
from inference.jobs.base import Conditions, LearningJob, Stage, target_on_features
from inference.jobs.estimates import BY_BOUNDS, Figure
from inference.jobs.settings import require_choice, require_count, setting
from inference.jobs.summary import Summary
from inference.models.coefficients import IDENTITY, LOGIT, Coefficients, area_under_curve, is_positive
from inference.models.glm.ldp_job import FAMILIES, LINEAR, reference
from inference.problem import Problem, Schema
from inference.releases.terms import GAUSSIAN
from inference.rounds import Job
from inference.variational.models import BERNOULLI, NORMAL
from inference.variational.progress import Iteration, OnProgress

GAINED = "log likelihood gained"
GROUPS_MAX = 50
WEIGHT_LEAST = 0.8  # w: with less, a tenth of the runs or more were hardly better than a constant
CURVATURE = {NORMAL: 1.0, BERNOULLI: 0.25}
PREDICTED = {NORMAL: 0.5, BERNOULLI: 2.0}  # V
Gain: TypeAlias = Callable[[int, float], "Array | float"]
"""η_t of a step's number, from 1 on, and the variance of the noise in each coordinate of its mean gradient."""


@dataclass(frozen=True)
class SgdSettings:
    """Of the job; all public.

    Attributes:
        family: ``normal`` (linear regression) or ``bernoulli`` (logistic). intercept: whether there is one.
        clip: C, in units of a gradient of scaled columns; None for that at the head.
        gain: η_t; None for that at the head. averaged: the part of the iterates, at the end, whose mean is the result;
            0 for the last one.

    Raises:
        DataError: a number is out of range, or an unknown family.
    """

    family: str = NORMAL
    intercept: bool = True
    clip: float | None = None
    gain: Gain | None = None
    averaged: float = 0.0

    def __post_init__(self) -> None:
        if self.family not in (BERNOULLI, NORMAL):
            raise unknown("family", self.family, "generalised linear models", (BERNOULLI, NORMAL))
        if self.clip is not None and not 0 < self.clip < inf:
            raise DataError(f"setting clip is {self.clip:g}; expected a finite number above 0")
        if not 0 <= self.averaged <= 1:
            raise DataError(f"setting averaged is {self.averaged:g}; expected a part from 0 to 1")

    def radius(self, dimension: int) -> float:
        """C of gradients with so many coordinates."""
        return sqrt(dimension) * (1.0 if self.family == NORMAL else 0.5) if self.clip is None else self.clip

    def noise_to_signal(self, dimension: int, variance: float) -> Array:
        """k of each coordinate, shape ``(dimension,)``.

        Args:
            variance: v, of the noise in each coordinate of a step's mean gradient.
        """
        before = np.full(dimension, PREDICTED[self.family] / max(1, dimension - self.intercept))
        if self.intercept:
            before[0] = 2 * PREDICTED[self.family]
        return np.asarray(variance / (CURVATURE[self.family] ** 2 * before))

    def step(self, number: int, dimension: int, variance: float) -> Array | float:
        """η of a step."""
        if self.gain is not None:
            return self.gain(number, variance)
        return np.asarray(1 / (CURVATURE[self.family] * (number + self.noise_to_signal(dimension, variance))))


DEFAULT = SgdSettings()


class Groups(NamedTuple):
    """L, and how many clients are in each group; those that are left over are asked nothing."""

    number: int
    size: int


def groups(clients: int, least: int = 1, most: int = GROUPS_MAX) -> Groups:
    """As many groups as can be, at most ``most``, of at least G = ``least`` of N clients; one, where those are fewer.

    Raises:
        DataError: no client, or groups of none.
    """
    if clients < 1 or least < 1:
        raise DataError(f"groups of {least} of {clients} clients; expected at least 1 of each")
    number = max(1, clients // max(least, ceil(clients / most)))
    return Groups(number, clients // number)


class Score(NamedTuple):
    """A score of θ, in units of scaled columns, on rows that the trainer holds."""

    name: str
    of: Callable[[Array], float]


@dataclass(frozen=True, eq=False, kw_only=True)
class SgdFit(Coefficients):
    """What LDP-SGD learnt: a point, without a spread.

    Attributes:
        groups: as planned. noise_sd: of the mean gradient's coordinates, at each step.
        weight: w, of the data in each of θ, from 0 to 1: by the plan, whatever was reported.
    """

    groups: Groups
    noise_sd: tuple[float, ...]
    weight: Array

    def figures(self) -> list[Figure]:
        return [Figure(float(value)) for value in (self.intercept, *self.coefficients)]

    def more(self) -> Summary:
        return {**super().more(), "groups": {"number": self.groups.number, "size": self.groups.size}}


def about_weight(least: float, contributors: int) -> tuple[str, ...]:
    """Whether reports are too few for their noise, in a sentence. Args: least: weight of the data in a coefficient."""
    if least >= WEIGHT_LEAST:
        return ()
    return (
        f"{contributors} reports are too few for their noise: by the plan it is {100 - 100 * least:.0f} % of "
        "what a coefficient would rest on, so the result may be no better than a constant; take more clients or "
        "a larger epsilon: the information in reports grows with clients times epsilon squared",
    )


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
        plan: from `groups`, of all clients.
        columns: how clients scale and clamp; by default in what standard deviations probably are (`Standardisation`).
        score: of iterates, for `on_progress`; without one, the gain in the log likelihood of a client is reported, an
            estimate from the same reports that costs no budget.

    Raises:
        NoAggregate: of the first group, without which there is no result.
        DataError: the columns are not the schema's.
    """
    scaled = Standardisation.within_bounds(schema, PRIOR_BOUND_SDS) if columns is None else columns
    if scaled.columns != schema.columns:
        raise DataError(f"columns {', '.join(scaled.columns)} are scaled, and the schema has others; give one for each")
    dimension = len(scaled.columns) - 1 + settings.intercept
    known = scaled.parameters() | {"clip": settings.radius(dimension), "family": settings.family}
    known["intercept"] = settings.intercept
    iterates, held, gained, stopped = [np.zeros(dimension)], list[NoisyAggregate](), 0.0, ""
    for t in range(1, plan.number + 1):
        asked = known | {"theta": [float(value) for value in iterates[-1]]}
        try:
            reports = yield LdpReportRequest("gradient", asked, rows_max=1, batch=plan.size, mechanism=GAUSSIAN)
        except NoAggregate as ended:
            if t == 1:
                raise
            stopped = ended.reason
            break
        held.append(reports)
        n = reports.contributors
        gradient, variance = reports.value / n, reports.noise_variance / n**2
        if t > 1:  # this group's noise has nothing to do with what was moved before
            gained += float(gradient @ (iterates[-1] - iterates[-2]))
        iterates.append(iterates[-1] + settings.step(t, dimension, variance) * gradient)
        if on_progress is not None:
            told = (GAINED, gained) if score is None else (score.name, score.of(iterates[-1]))
            on_progress(Iteration(t, plan.number, *told))
    return _result(schema, scaled, plan, settings, iterates, held, stopped)


def _result(
    schema: Schema,
    columns: Standardisation,
    plan: Groups,
    settings: SgdSettings,
    iterates: list[Array],
    held: list[NoisyAggregate],
    stopped: str,
) -> SgdFit:
    """The mean of the last iterates; the first, zero, is never among them."""
    noise_sd = tuple(sqrt(one.noise_variance / one.contributors**2) for one in held)
    contributors, steps = sum(one.contributors for one in held), len(held)
    last = iterates[-max(1, round(settings.averaged * steps)) :]
    weight = steps / (steps + settings.noise_to_signal(len(last[0]), float(np.mean(np.square(noise_sd)))))
    theta = np.mean(last, axis=0)
    theta = theta if settings.intercept else np.r_[0.0, theta]
    return SgdFit(
        schema=schema,
        columns=columns,
        link=IDENTITY if settings.family == NORMAL else LOGIT,
        mean=theta,
        cov=np.zeros((len(theta), len(theta))),
        constant=float(settings.intercept),
        groups=plan,
        iterations=steps,
        stopped=stopped,
        contributors=contributors,
        noise_sd=noise_sd,
        weight=weight,
        private=schema.private and all(one.private for one in held),
        warnings=about_weight(float(weight.min()), contributors),
        by=BY_BOUNDS,
    )


@dataclass(frozen=True)
class Settings:
    """Of the job."""

    family: str = setting(LINEAR, f"{', '.join(FAMILIES)}; the latter of a target whose bounds are its two classes.")
    group: int | None = setting(None, f"Clients of each step; by default for {GROUPS_MAX} steps.")
    clip: float | None = setting(None, "Largest norm of a client's gradient, features being in sds; by default usual.")

    def __post_init__(self) -> None:
        require_choice("family", self.family, FAMILIES)
        require_count("group", self.group)
        _ = self.own

    @property
    def own(self) -> SgdSettings:
        """As the descent takes them. Raises `DataError` where a number is out of range."""
        return SgdSettings(NORMAL if self.family == LINEAR else BERNOULLI, True, self.clip)


def _groups(settings: Settings, conditions: Conditions) -> Groups:
    return groups(conditions.clients, settings.group or 1)


def _score(schema: Schema, settings: Settings, held_out: Problem | None) -> Score | None:
    """None where the rows that are held out show nothing."""
    if held_out is None:
        return None
    columns = Standardisation.within_bounds(schema, PRIOR_BOUND_SDS)
    z, positive = columns.z(held_out.X), is_positive(held_out)
    if settings.family == LINEAR:
        target, unit = columns.scaled(held_out.rows)[:, -1], float(columns.scale[-1])
        return Score(
            "held-out error", lambda theta: unit * sqrt(float(np.mean((target - theta[0] - z @ theta[1:]) ** 2)))
        )
    if len(np.unique(positive)) < 2:
        return None
    return Score("held-out AUC", lambda theta: area_under_curve(theta[0] + z @ theta[1:], positive))


class LdpSgd(LearningJob):
    """Linear or logistic regression by gradient steps over reports; a point, without a posterior."""

    name, settings = "ldp-sgd", Settings
    iterative, drawable = True, False
    kinds = (LdpReportRequest,)

    def reports(self, settings: Settings) -> str:
        return GAUSSIAN

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        number, size = _groups(settings, conditions)
        purpose = "all of the budget on one gradient step" if number == 1 else "in each client's one report, by groups"
        return [Stage(number, 1.0, purpose, batch=size, uses=1)]

    def make(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[SgdFit]:
        """Iterates are scored on the held-out rows, where there are any."""
        return ldp_sgd(
            schema,
            _groups(settings, conditions),
            settings.own,
            score=_score(schema, settings, conditions.held_out),
            on_progress=conditions.on_iteration,
        )

    def model(self, schema: Schema, settings: Settings) -> str:
        return f"{target_on_features(schema)} ({settings.family}), by gradient steps over reports by {GAUSSIAN}"

    def reference(self, train: Problem, settings: Settings) -> object:
        return reference(train, settings)


JOBS = {"ldp-sgd": LdpSgd()}
