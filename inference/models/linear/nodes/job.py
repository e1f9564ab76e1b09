"""Job `regression-mcmc`: distributed Bayesian regression with the privacy noise in the model, one round, then draws.

Of what J data nodes release by themselves, or of one secure sum over all clients, which is one node.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate, RoundRequest, SecureSumRequest
from dca_proto.wording import to_install
from inference.draws import CHAINS, InferenceData
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, target_on_features
from inference.jobs.coefficients import Effects, figures_of
from inference.jobs.estimates import BY_BOUNDS, LEVEL, Figure, sampling_row
from inference.jobs.settings import require_choice, setting
from inference.jobs.summary import Draws, Summary
from inference.models.linear import job as regression
from inference.models.linear.nodes import METHODS, NAMES, DistributedFit
from inference.models.linear.nodes.methods import (
    DRAWS,
    WARMUP,
    find,
    ready,
)
from inference.models.linear.nodes.rounds import (
    ROWS_MAX,
    fit_released,
    least_rows,
    request_of,
)
from inference.models.linear.result import RegressionResult
from inference.problem import Problem, Schema


@dataclass(frozen=True)
class Settings:
    """Of the job."""

    method: str = setting(NAMES[0], f"How the posterior is found: {', '.join(NAMES)}.")
    chains: int = setting(CHAINS, "How many chains are drawn side by side.")
    warmup: int = setting(WARMUP, "Iterations of each chain before its first draw.")
    draws: int = setting(DRAWS, "Draws that are kept of each chain.")
    thin: int | None = setting(None, "Iterations for each of them; by default the method's own.")
    rows_max: int = setting(ROWS_MAX, "Rows of a data node that count, those first.")
    group: int | None = setting(None, "Rows that a data node averages before it adds up; by default none are.")
    released_for: str | None = setting(None, "The method that data nodes release for, where another learns from that.")

    def __post_init__(self) -> None:
        require_choice("method", self.method, NAMES)
        if self.released_for is not None:
            require_choice("released_for", self.released_for, NAMES)
        least = {"chains": 1, "warmup": 0, "draws": 1, "thin": 1, "rows_max": 1, "group": 1}
        for name, fewest in least.items():
            value = getattr(self, name)
            if value is not None and value < fewest:
                raise DataError(f"setting {name!r} is {value}, expected at least {fewest}")

    @property
    def iterations(self) -> int:
        """Of each chain; 0 in closed form."""
        method = METHODS[self.method]
        thin = method.thin if self.thin is None else self.thin
        return 0 if method.module is None else self.warmup + thin * self.draws


def check(schema: Schema, settings: Settings) -> None:
    """Refuse to start what could not be finished. Raises `DataError` that says what to change or to install."""
    if ready(settings.method, {}).module is not None and find_spec("arviz") is None:
        raise DataError(
            f"whether chains have mixed is judged by ArviZ, which is missing here; {to_install('samplers')}, or take "
            "method 'fast'"
        )
    if settings.rows_max < (least := rows_least(schema, settings)):
        raise DataError(
            f"setting 'rows_max' is {settings.rows_max}, and method {settings.method!r} needs {least} rows of each node"
        )


def rows_least(schema: Schema, settings: Settings) -> int:
    """Rows that a data node must have to count. Raises `DataError` as `job.request_of`."""
    return least_rows(settings.method, _request(schema, settings, settings.rows_max))


def make(
    schema: Schema, settings: Settings, conditions: Conditions
) -> Generator[RoundRequest, NoisyAggregate, NoisyAggregate]:
    """The job's round."""
    rows_max = settings.rows_max if issubclass(conditions.kind, NodeReleaseRequest) else 0
    return (yield _request(schema, settings, rows_max))


def _request(schema: Schema, settings: Settings, rows_max: int) -> RoundRequest:
    group = settings.group or 1
    return request_of(schema, settings.method, rows_max, group=group, released_for=settings.released_for)


def finish(released: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions) -> DistributedFit:
    """The posterior of what was released."""
    return fit_released(
        released,
        schema,
        settings.method,
        chains=settings.chains,
        warmup=settings.warmup,
        draws=settings.draws,
        thin=settings.thin,
        seed=int(conditions.rng.integers(2**31)),
        on_progress=conditions.on_sampling,
    )


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """All of the budget at once."""
    return [Stage(1, 1.0, "all of the budget on the regression")]


def model(schema: Schema, settings: Settings) -> str:
    """In words."""
    iterations = settings.iterations
    how = f"{settings.chains} chains of {iterations} iterations" if iterations else "no chains"
    method = find(settings.method)
    averages = f", from averages of {settings.group} rows" if (settings.group or 1) > 1 else ""
    return f"{target_on_features(schema, settings)}; method {method.name}: {method.about}{averages}; {how}"


# --- what it says -----------------------------------------------------------------------------------------------------


def summary(
    result: DistributedFit,
    reference: RegressionResult | None,
    train: Problem | None,
    test: Problem | None,
    schema: Schema,
) -> Summary:
    """As of `regression`, with credible intervals and what the draws are worth."""
    assert isinstance(result.linear, RegressionResult), "a job learnt it"
    linear, intervals = result.linear, result.intervals(LEVEL)
    means, sds = [linear.intercept, *linear.coefficients], [linear.intercept_sd, *linear.coefficient_sd]
    ends = [intervals["intercept"], *intervals["coefficients"]]
    found = [Figure(*one[:2], tuple(one[2])) for one in zip(means, sds, ends, strict=True)]
    return {
        **regression.summary(linear, reference, train, test, schema),
        **Effects(schema, schema.half_widths[:-1], BY_BOUNDS).summary(found, figures_of(reference)),
        "repair": None,
        "sampling": _sampling(result),
        "warnings": result.warnings,
    }


def _sampling(result: DistributedFit) -> Draws:
    """What the draws are worth; None where the posterior is known in closed form, and draws are independent."""
    drawn, mixing = result.sampled, result.sampled.mixing
    chains, draws = drawn.theta.shape[:2]
    return sampling_row(drawn.method, (chains, draws), drawn.seconds, mixing, drawn.acceptance, drawn.divergences)


def draws(result: DistributedFit, rng: np.random.Generator) -> InferenceData:
    """The chains' own, with their warm-up."""
    return result.inference_data()


JOBS = {
    "regression-mcmc": LearningJob(
        name="regression-mcmc",
        settings=Settings,
        changeable=("method", "released_for", "chains", "warmup", "draws", "thin", "seed"),
        check=check,
        rows_least=rows_least,
        plan=plan,
        make=make,
        finish=finish,
        reference=regression.reference,
        summary=summary,
        draws=draws,
        picture_title=regression.picture_title,
        model=model,
        kinds=(SecureSumRequest, NodeReleaseRequest),
    )
}
