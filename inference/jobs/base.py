"""The base of all learning jobs: settings, the generator that asks for rounds, and the result made of their sums.

Each job is a subclass of `LearningJob` beside its model. Commands use jobs through this interface alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dca_proto.aggregate import RoundRequest, SecureSumRequest
from dca_proto.wording import listed
from inference.contraction import about_contraction, percent
from inference.draws import InferenceData
from inference.errors import DataError, unknown
from inference.jobs.estimates import rows_of
from inference.jobs.summary import Summary
from inference.problem import Problem, Schema
from inference.rounds import Job
from inference.variational.progress import OnProgress


@dataclass(frozen=True, eq=False)
class Conditions:
    """What a job may know besides the schema, all of it public.

    Attributes:
        clients: N, or J data nodes. tolerated: T, of a round of all of them.
        mu: Gaussian DP parameter of all rounds together.
        rng: for auxiliary data and Monte Carlo draws; nothing private depends on it.
        on_iteration: called after each iteration of an iterative job.
        held_out: rows to score iterations on, if there are any.
        kind: of the job's rounds, one of its `kinds`. T is 0 without Compute nodes.
        on_sampling: called while draws are made after the rounds, with the iterations done and their total.
        epsilon: of all rounds together.
        weights: of the blocks of the statistic "regression" with these parameters, for the least error in all.
    """

    clients: int
    tolerated: int
    mu: float
    rng: np.random.Generator
    on_iteration: OnProgress = lambda iteration: None
    held_out: Problem | None = None
    kind: type[RoundRequest] = SecureSumRequest
    on_sampling: Callable[[int, int], None] = lambda done, total: None
    epsilon: float = 0.0
    weights: Callable[[Mapping[str, Any]], tuple[int, int, int]] = lambda parameters: (1, 1, 1)


@dataclass(frozen=True)
class Stage:
    """Rounds of one sort in a job's plan.

    Attributes:
        rounds: how many. share: of the job's squared Gaussian DP parameter, in each of them.
        purpose: as text, after "10 % of the budget". batch: B clients in each, or 0 for all.
        uses: in how many of them a client takes part; None for all.
    """

    rounds: int
    share: float
    purpose: str
    batch: int = 0
    uses: int | None = None

    @property
    def total(self) -> float:
        """What all of them cost a client."""
        return self.share * (self.rounds if self.uses is None else self.uses)


def one_round(what: str) -> list[Stage]:
    """The plan of a job that spends all of its budget at once."""
    return [Stage(1, 1.0, f"all of the budget on {what}")]


def two_rounds(share: float) -> list[Stage]:
    """The plan of a job that spends this share on centres and scales."""
    return [Stage(1, share, "on centres and scales"), Stage(1, 1 - share, "on the regression")]


def uses(stages: Sequence[Stage]) -> int:
    """In how many rounds a client takes part."""
    return sum(stage.rounds if stage.uses is None else stage.uses for stage in stages)


EFFECT = "Effect on {target}"


class LearningJob(ABC):
    """A job by name.

    Attributes:
        name: as in ``--job``. settings: the dataclass of its settings (`inference.jobs.settings`).
        title: what the estimates are, above a picture of them; ``{target}`` stands for its name.
        dataset: by default. scored: whether there is a score on rows that were held out; else all rows are learned
            from. iterative: whether its rounds are many, one for each iteration. drawable: whether it has a posterior.
        kinds: the kinds of rounds that it can learn from, its default first.
        changeable: its settings, perhaps with "seed", that may change once the rounds are held: `learned` alone reads
            them. Where one also shapes a request, as a choice of the method may, the changed request is refused.
    """

    name: str
    settings: type[Any]
    title: str = EFFECT
    dataset: str = "diabetes"
    scored: bool = True
    iterative: bool = False
    drawable: bool = True
    kinds: tuple[type[RoundRequest], ...] = (SecureSumRequest,)
    changeable: tuple[str, ...] = ()

    @abstractmethod
    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> Sequence[Stage]:
        """The stages, in order, for people and for planning each before anything is started."""

    @abstractmethod
    def make(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Any]:
        """The generator of rounds."""

    @abstractmethod
    def reference(self, train: Problem, settings: Any) -> Any:
        """The same model without privacy, from rows of the caller's own. Raises `DataError` if too few."""

    def learned(self, gave: Any, schema: Schema, settings: Any, conditions: Conditions) -> Any:
        """The result of what the rounds gave: what takes a while and needs nobody any more, as sampling."""
        return gave

    def check(self, schema: Schema, settings: Any) -> None:  # noqa: B027 - most jobs learn from any schema
        """Refuse a schema that the job cannot learn from. Raises `DataError`."""

    def model(self, schema: Schema, settings: Any) -> str:
        """What is learned, as text."""
        return target_on_features(schema)

    def columns(self, settings: Any) -> tuple[str, ...]:
        """What it reads beside the target, where it reads no others."""
        return ()

    def reports(self, settings: Any) -> str:
        """The mechanism of a job on LDP reports; "" of any other."""
        return ""

    def batch(self, settings: Any, clients: int) -> int:
        """B: clients in the smallest round, or 0 where all are asked in all rounds."""
        return 0

    def rows_least(self, schema: Schema, settings: Any) -> int:
        """Rows that a data node must have to count in the result."""
        return 1

    def draws(self, result: Any, rng: np.random.Generator) -> InferenceData:
        """Of the posterior. Args: rng: for those that are drawn now. Raises `DataError` without ArviZ."""
        return result.inference_data(rng)

    def finish(self, gave: Any, schema: Schema, settings: Any, conditions: Conditions) -> Any:
        """`learned`, with ``refit`` by the settings that may change."""
        drawn = deepcopy(conditions.rng)
        found = self.learned(gave, schema, settings, conditions)

        def again(**changed: Any) -> Any:
            for name in changed:
                if name not in (names := [one.name for one in fields(settings)]):
                    raise unknown("setting", name, None, names)
                if name not in self.changeable:
                    raise DataError(
                        f"setting {name!r} shaped the rounds that were held; hold new rounds for another value. A "
                        f"refit changes only: {', '.join(self.changeable)}"
                    )
            own = replace(settings, **changed)
            return self.finish(gave, schema, own, replace(conditions, rng=deepcopy(drawn)))

        if self.changeable and found.again is None:
            object.__setattr__(found, "again", again)
        return found

    def picture_title(self, schema: Schema) -> str:
        """What the estimates are."""
        return self.title.format(target=schema.target)

    def summarise(
        self, result: Any, reference: Any, train: Problem | None, test: Problem | None, schema: Schema
    ) -> Summary:
        """What a result says (`Posterior.summary`), with a warning of what was hardly learned before its own."""
        found: Summary = result.summary(schema, reference, train, test)
        rows = rows_of(found)
        hardly = about_contraction([row["name"] for row in rows], [row["contraction"] for row in rows])
        return {**found, "warnings": [*hardly, *found.get("warnings", [])]}


class RefitJob(LearningJob):
    """A job whose settings that may change are those of the posterior's ``refit``."""

    def learned(self, gave: Any, schema: Schema, settings: Any, conditions: Conditions) -> Any:
        return gave.refit(**{name: getattr(settings, name) for name in self.changeable})


def target_on_features(schema: Schema) -> str:
    """A regression's model as text."""
    return f"{schema.target} on {listed(schema.features)}"


def plan_words(stages: Sequence[Stage]) -> str:
    """The plan as text, as in "over 2 rounds: 10 % of the budget on scales, 90 % on the regression"."""
    rounds = sum(stage.rounds for stage in stages)
    if rounds == 1:
        return f"in one round: {stages[0].purpose}"
    parts: list[str] = []
    for stage in stages:
        of = "" if parts else " of the budget"
        who = f" of {stage.batch} clients each" if stage.batch else ""
        parts.append(f"{share_words(stage.total)}{of} {stage.purpose}{who}")
    return f"over {rounds} rounds: {', '.join(parts)}"


def share_words(share: float) -> str:
    """A share of the budget for people."""
    return percent(share) if share >= 0.01 else f"{100 * share:.2g} %"
