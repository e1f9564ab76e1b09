"""Job `ldp-sgd`: stochastic gradient descent over reports, each client used once (LDP paper, section 4.2).

It fits linear or logistic regression without a sampler, and returns a point estimate without a spread.

    groups    L = ⌊N/G⌋ groups, one after the other, of ⌊N/L⌋ clients each, at most `GROUPS_MAX`
    reports   of each client of group t: its gradient g of the log likelihood at θ_t, within the ball of radius C, with
              Gaussian noise for Δ2 = 2C
    step      θ_{t+1} = θ_t + η_t ḡ_t,   ḡ_t the mean of the group's reports, from θ_1 = 0
    result    the last iterate

A client's whole budget goes into its one report, so the number of steps costs nothing but time.

**Steps.** The paper gives no rule. Here steps are planned from public numbers: n, ε and d. Columns are scaled so that
their standard deviations are about 1 (a third of the half-width of their public bounds). Then the gradient's mean is
about h(θ* - θ) in each coordinate, with h = 1 (linear) or ¼ (logistic, where p(1 - p) is largest). So θ_t + ḡ_t/h
observes θ*_j with noise of variance v/h², v being the variance of ḡ_t's coordinates. With the prior θ*_j ~ N(0, q_j),
the Kalman filter gives

    η_tj = 1/(h (t + k_j)),   k_j = v/(h² q_j):   much noise, short steps; little noise, θ_t is the mean of observations
    w_j = L/(L + k_j)         the planned weight of the data in the result

with q_j = V/d for features and 2V for the intercept, V = ½ (linear: features explain half of the target) or 2
(logistic). If features are narrower than their bounds suggest, h is smaller, and the result is drawn towards 0.

**Radius.** By default C = √m (linear) or √m/2 (logistic), the norm of a typical gradient of m coordinates: most
gradients are not shortened.

Below w = 0.8 the result warns. `inference/DESIGN.md` §6 has test errors, also of the steps for convex functions.

**Missing values.** A client without a complete row reports zero and noise. Reports also count complete rows, with the
largest weight that leaves the sensitivity as it is (`dca_proto.statistics.counting`). If clearly fewer rows are
complete, ḡ_t is the mean over their number, as all reports so far show it, and the result warns.

**Failed rounds.** The budget charged for a report is never refunded. So if a group yields no report at all, the job
ends with the iterates so far, and the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.statistics.counting import CompleteRows, about_missing
from inference.columns import COUNT_WEIGHT, PRIOR_BOUND_SDS, Standardisation
from inference.draws import all_private
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, target_on_features
from inference.jobs.estimates import BY_BOUNDS
from inference.jobs.examples import Clean, Example
from inference.jobs.reports import NOT_OF_REPORTS
from inference.jobs.settings import JobSettings, one_of, require_count, require_positive, setting
from inference.locate import LEAST_COMPLETE
from inference.models.coefficients import IDENTITY, LOGIT, Coefficients
from inference.models.glm.ldp_job import FAMILIES, LINEAR, LOGISTIC, reference
from inference.models.logistic.job import of_both_classes, score_on
from inference.problem import Array, Problem, Schema
from inference.releases.terms import GAUSSIAN
from inference.rounds import Job
from inference.variational.models import BERNOULLI, NORMAL
from inference.variational.progress import Iteration, OnProgress, Score

GAINED = "log likelihood gained"
GROUPS_MAX = 50
WEIGHT_LEAST = 0.8  # w; below, at least a tenth of the runs were hardly better than a constant
LAW = {LINEAR: NORMAL, LOGISTIC: BERNOULLI}  # the family's name in the statistic
CURVATURE = {LINEAR: 1.0, LOGISTIC: 0.25}
PREDICTED = {LINEAR: 0.5, LOGISTIC: 2.0}  # V


@dataclass(frozen=True)
class Settings(JobSettings):
    """Settings of `ldp-sgd`; all public."""

    family: str = setting(
        LINEAR, f"{', '.join(FAMILIES)}; the latter for a target whose bounds are its two classes.", one_of(FAMILIES)
    )
    group: int | None = setting(None, f"Clients per step; by default enough for {GROUPS_MAX} steps.", require_count)
    clip: float | None = setting(
        None, "Largest norm of a client's gradient, columns in sds; by default a typical norm.", require_positive
    )

    def radius(self, dimension: int) -> float:
        """Return C for gradients with this number of coordinates, in units of a gradient of scaled columns."""
        return self.clip or sqrt(dimension) * (1.0 if self.family == LINEAR else 0.5)

    def noise_to_signal(self, dimension: int, variance: float) -> Array:
        """Return k of each coordinate, the intercept first, shape ``(dimension,)``.

        Args:
            variance: v, the noise variance in each coordinate of a step's mean gradient.
        """
        before = np.full(dimension, PREDICTED[self.family] / max(1, dimension - 1))
        before[0] = 2 * PREDICTED[self.family]
        return np.asarray(variance / (CURVATURE[self.family] ** 2 * before))

    def step(self, number: int, dimension: int, variance: float) -> Array:
        """Return η of a step."""
        return np.asarray(1 / (CURVATURE[self.family] * (number + self.noise_to_signal(dimension, variance))))


class Groups(NamedTuple):
    """L, and the number of clients in each group; remaining clients are not asked."""

    number: int
    size: int


def groups(clients: int, least: int = 1, most: int = GROUPS_MAX) -> Groups:
    """Split N clients into as many groups as possible, at most ``most``, of at least G = ``least`` clients each.

    Fewer than G clients form one group.

    Raises:
        DataError: there is no client, or ``least`` is below 1.
    """
    if clients < 1 or least < 1:
        raise DataError(f"groups of {least} of {clients} clients; expected at least 1 of each")
    number = max(1, clients // max(least, ceil(clients / most)))
    return Groups(number, clients // number)


def weights(settings: Settings, dimension: int, noise_sd: Sequence[float]) -> Array:
    """Return w of each coordinate of θ, from 0 to 1; it follows from the noise and the steps, not from the reports.

    Args:
        noise_sd: of the mean gradient's coordinates, at each step.
    """
    return np.asarray(
        len(noise_sd) / (len(noise_sd) + settings.noise_to_signal(dimension, float(np.mean(np.square(noise_sd)))))
    )


def about_weight(least: float, contributors: int) -> tuple[str, ...]:
    """Warn if there are too few reports for their noise. Args: least: the smallest weight of the data."""
    if least >= WEIGHT_LEAST:
        return ()
    return (
        f"{contributors} reports are too few for their noise: by the plan the data determine only {100 * least:.0f} % "
        "of a coefficient, so the result may be no better than a constant; take more clients or a larger epsilon: "
        "the information in reports grows with clients times epsilon squared",
    )


def ldp_sgd(
    schema: Schema,
    plan: Groups,
    settings: Settings | None = None,
    *,
    score: Score | None = None,
    on_progress: OnProgress | None = None,
) -> Job[Coefficients]:
    """Run a report round for each group; each round spends its clients' whole budget.

    In a job's plan these are one stage of `plan.number` rounds. Each round has the whole budget and `plan.size`
    clients, and each client is used once.

    Args:
        plan: from `groups`, for all clients.
        score: of iterates, for `on_progress`. None reports the gain in a client's log likelihood, estimated from the
            same reports at no privacy cost.

    Raises:
        NoAggregate: the first group gave no report, so there is no result.
    """
    settings = settings or Settings()
    scaled, dimension = Standardisation.within_bounds(schema, PRIOR_BOUND_SDS), len(schema.columns)
    known = scaled.parameters() | {"clip": settings.radius(dimension), "family": LAW[settings.family]}
    known |= {"intercept": True, "count_weight": COUNT_WEIGHT * settings.radius(dimension)}
    iterates, rounds, gained, stopped = [np.zeros(dimension)], list[NoisyAggregate](), 0.0, ""
    for t in range(1, plan.number + 1):
        asked = known | {"theta": [float(value) for value in iterates[-1]]}
        try:
            reports = yield RoundRequest("gradient", asked, rows_max=1, batch=plan.size, kind=LdpReport(GAUSSIAN))
        except NoAggregate as ended:
            if t == 1:
                raise
            stopped = ended.reason
            break
        rounds.append(reports)
        n = reports.contributors * CompleteRows.of(rounds).share(LEAST_COMPLETE)
        gradient, variance = reports.value[:-1] / n, reports.noise_variance / n**2
        if t > 1:  # this group's noise is independent of the previous step
            gained += float(gradient @ (iterates[-1] - iterates[-2]))
        iterates.append(iterates[-1] + settings.step(t, dimension, variance) * gradient)
        if on_progress is not None:
            progress = (GAINED, gained) if score is None else (score.name, score.of(iterates[-1], scaled))
            on_progress(Iteration(t, plan.number, *progress))
    return _result(schema, scaled, plan, settings, iterates[-1], rounds, stopped)


def _result(
    schema: Schema,
    columns: Standardisation,
    plan: Groups,
    settings: Settings,
    theta: Array,
    rounds: list[NoisyAggregate],
    stopped: str,
) -> Coefficients:
    complete = CompleteRows.of(rounds)
    share, contributors = complete.share(LEAST_COMPLETE), complete.contributors
    noise_sd = tuple(sqrt(reports.noise_variance) / (reports.contributors * share) for reports in rounds)
    weight = weights(settings, len(theta), noise_sd)
    return Coefficients(
        schema=schema,
        columns=columns,
        link=IDENTITY if settings.family == LINEAR else LOGIT,
        mean=theta,
        cov=np.zeros((len(theta), len(theta))),
        iterations=len(rounds),
        stopped=stopped,
        contributors=contributors,
        private=all_private(rounds, schema),
        warnings=(*about_missing(*complete), *about_weight(float(weight.min()), contributors)),
        by=BY_BOUNDS,
        point=True,
        more={"groups": {"number": plan.number, "size": plan.size}},
    )


def _groups(settings: Settings, conditions: Conditions) -> Groups:
    return groups(conditions.clients, settings.group or 1)


def _score(settings: Settings, held_out: Problem | None) -> Score | None:
    """Return a score on the held-out rows; None if there are none, or all are of one class."""
    if settings.family == LOGISTIC:
        held_out = of_both_classes(held_out)
        return None if held_out is None else score_on(held_out)
    if held_out is None:
        return None
    rows = held_out

    def error(theta: Array, columns: Standardisation) -> float:
        residuals = columns.scaled(rows.rows)[:, -1] - theta[0] - columns.z(rows.X) @ theta[1:]
        return float(columns.scale[-1]) * sqrt(float(np.mean(residuals**2)))

    return Score("held-out error", error)


class LdpSgd(LearningJob):
    """Linear or logistic regression by gradient steps over reports; a point estimate without a posterior."""

    name, settings = "ldp-sgd", Settings
    iterative, drawable = True, False
    kinds = (LdpReport,)
    estimator = NOT_OF_REPORTS
    about = "a regression by gradient steps, no intervals, from [LDP reports](jobs/reports.md)"
    examples, clean = (Example(settings={"group": 8}),), Clean("normal features")

    def mechanism(self, settings: Settings) -> str:
        return GAUSSIAN

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        number, size = _groups(settings, conditions)
        purpose = "all of the budget on one gradient step" if number == 1 else "in each client's one report, by groups"
        return [Stage(number, 1.0, purpose, batch=size, uses=1)]

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Coefficients]:
        """Run the descent; iterates are scored on the held-out rows, if there are any."""
        return ldp_sgd(
            schema,
            _groups(settings, conditions),
            settings,
            score=_score(settings, conditions.held_out),
            on_progress=conditions.on_iteration,
        )

    def model(self, schema: Schema, settings: Settings) -> str:
        return f"{target_on_features(schema)} ({settings.family}), by gradient steps over reports by {GAUSSIAN}"

    def reference(self, train: Problem, settings: Settings) -> object:
        return reference(train, settings)
