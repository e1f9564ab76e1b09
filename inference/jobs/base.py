"""The base of all learning jobs: settings, the generator that requests rounds, and the result made of their sums.

Each job is a subclass of `LearningJob` beside its model. Commands use jobs only through this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import Kind, SecureSum
from dca_proto.wording import listed
from inference.contraction import about_contraction, percent
from inference.errors import DataError, unknown
from inference.jobs.estimates import rows_of
from inference.jobs.examples import Clean, Example
from inference.jobs.summary import Summary
from inference.problem import Problem, Schema
from inference.rounds import Job, by_labels
from inference.variational.progress import OnProgress


@dataclass(frozen=True, eq=False)
class Conditions:
    """What a job may know besides the schema: public figures and the trainer's own held-out rows.

    Attributes:
        clients: N, or J data nodes. tolerate: T, for rounds of all of them; 0 without Compute nodes.
        epsilon, mu: privacy budget of all rounds together, as ε and as the parameter of Gaussian DP.
        rng: for auxiliary data and Monte Carlo draws; nothing private depends on it.
        on_iteration: called after each iteration of an iterative job.
        held_out: rows of the trainer's own, to score iterations on, or None.
        kind: of the job's rounds, one of its `kinds`.
        on_sampling: called with the iterations done and their total, while draws are made after the rounds.
        weights: returns the block weights with the least total error for these parameters of the statistic
            "regression".
        sites: names of data nodes by their ids, where they are known.
    """

    clients: int
    tolerate: int
    mu: float
    rng: np.random.Generator
    on_iteration: OnProgress = lambda iteration: None
    held_out: Problem | None = None
    kind: type[Kind] = SecureSum
    on_sampling: Callable[[int, int], None] = lambda done, total: None
    epsilon: float = 0.0
    weights: Callable[[Mapping[str, Any]], tuple[int, int, int]] = lambda parameters: (1, 1, 1)
    sites: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A group of similar rounds in a job's plan.

    Attributes:
        rounds: how many. share: each round's share of the job's squared Gaussian DP parameter.
        purpose: as text, after "10 % of the budget". batch: B, the number of clients in each round, or 0 for all.
        uses: the number of these rounds in which one client takes part; None for all.
    """

    rounds: int
    share: float
    purpose: str
    batch: int = 0
    uses: int | None = None

    @property
    def total(self) -> float:
        """The cost of all of them to a client, as a share of the budget."""
        return self.share * (self.rounds if self.uses is None else self.uses)


def one_round(what: str) -> list[Stage]:
    """Return the plan of a job that spends all of its budget at once."""
    return [Stage(1, 1.0, f"all of the budget on {what}")]


def two_rounds(share: float) -> list[Stage]:
    """Return the plan of a job that spends this share on centres and scales."""
    return [Stage(1, share, "on centres and scales"), Stage(1, 1 - share, "on the regression")]


def uses(stages: Sequence[Stage]) -> int:
    """Return the number of rounds in which a client takes part."""
    return sum(stage.rounds if stage.uses is None else stage.uses for stage in stages)


class Estimable(NamedTuple):
    """What an estimator with scikit-learn's interface needs beside a regression's job (`inference.estimators`).

    Attributes:
        name: of its class. target: the kind of its target (`inference.jobs.examples`).
        rows: returns the law given raw features ``(n, d)``, targets ``(n,)`` and the estimator, for its parameters.
        released: returns the law given aggregates of any rounds that inform it, and the estimator.
        own: parameters that are no settings of the job, or accept more, each with a check; None by default.
    """

    name: str
    target: str
    rows: Callable[[Any, Any, Any], Any]
    released: Callable[[Sequence[NoisyAggregate], Any], Any]
    own: Mapping[str, Callable[[str, Any], object]] = {}


EFFECT = "Effect on {target}"
Data = TypeVar("Data", Schema, Problem)


class LearningJob(ABC):
    """A learning job, found by name.

    Attributes:
        name: as in ``--job``. settings: the dataclass of its settings (`inference.jobs.settings`).
        title: a description of the estimates, above a picture of them; ``{target}`` stands for the target's name.
        dataset: the default. scored: True if it is scored on held-out rows; otherwise it learns from all rows.
        whole: True if it describes all columns with bounds alike, so that no target need be named.
        iterative: True if it has many rounds, one per iteration. drawable: True if its result has draws of a posterior.
        makes_rows: True if its result has synthetic rows, for a CSV file.
        any_labels: True if a regression's target may have three texts or more.
        of_two: True if a regression's target has two classes.
        kinds: the kinds of rounds that it can learn from, its default first.
        about: what it learns, for the list of jobs in `docs/learning.md`.
        estimator: what its estimator needs, or a sentence why there is none.
        examples, clean: invented rows to try it on (`inference.jobs.examples`).
        changeable: the settings, possibly with "seed", that may change after the rounds: only `learned` reads them. If
            one also shapes a request, as a choice of method may, a changed request is refused.
    """

    name: str
    settings: type[Any]
    title: str = EFFECT
    dataset: str = "diabetes"
    scored: bool = True
    whole: bool = False
    iterative: bool = False
    drawable: bool = True
    makes_rows: bool = False
    any_labels: bool = False
    of_two: bool = False
    kinds: tuple[type[Kind], ...] = (SecureSum,)
    changeable: tuple[str, ...] = ()
    about: str
    estimator: Estimable | str
    examples: tuple[Example, ...] = (Example(),)
    clean: Clean = Clean()

    @abstractmethod
    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> Sequence[Stage]:
        """Return the stages, in order, for people and to plan each before anything starts."""

    def make(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Any]:
        """Return the generator of rounds, which state the labels of columns that have some."""
        return by_labels(self.rounds(schema, settings, conditions), schema)

    @abstractmethod
    def rounds(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Any]:
        """Return the generator of rounds, by the schema's names of columns."""

    @abstractmethod
    def reference(self, train: Problem, settings: Any) -> Any:
        """Fit the same model without privacy, on the caller's own rows. Raises `DataError` if there are too few."""

    def learned(self, outcome: Any, schema: Schema, settings: Any, conditions: Conditions) -> Any:
        """Make the result from the outcome of `make`. Slow work without clients, such as sampling, belongs here."""
        return outcome

    def check(self, schema: Schema, settings: Any) -> None:  # noqa: B027 - most jobs learn from any schema
        """Refuse a schema that the job cannot learn from. Raises `DataError`."""

    def model(self, schema: Schema, settings: Any) -> str:
        """Return a description of the model, as text."""
        return target_on_features(schema)

    @property
    def regresses(self) -> bool:
        """Whether features of texts become indicators."""
        return self.scored and not self.whole

    def numbers(self, schema: Schema, settings: Any) -> tuple[str, ...]:
        """Return the columns of which the job takes sizes, so that codes of texts mean nothing to it."""
        return ()

    def averaged(self, schema: Schema, settings: Any) -> tuple[str, ...]:
        """Return the columns whose mean or share in the first round's sum is an estimate of the result.

        The noise of the sum is that of the estimate, so a plan knows it. Of other estimates, rows decide it, too.
        """
        return ()

    def codes(self, settings: Any) -> tuple[str, ...]:
        """Return the columns named in the settings that a regression reads as codes, such as groups and sites."""
        return (column,) if (column := self.site_column(settings)) else ()

    def read(self, data: Data, settings: Any) -> Data:
        """Return a schema or a problem as the job reads it: a regression's features of texts become indicators.

        Raises:
            DataError: a regression of numbers or of two classes has a target of more texts, or a column whose sizes the
                job takes has texts.
        """
        schema = data if isinstance(data, Schema) else data.schema
        for name in self.numbers(schema, settings):
            if texts := schema.bounds[name].labels:
                raise DataError(
                    f"column {name!r} has the texts {listed(texts, 5)}, and job {self.name!r} takes numbers: codes of "
                    "texts have no sizes. For shares of texts take job categorical; for one of them the column "
                    f"{name}={texts[-1]}; if the cells are numbers, give bounds LO:HI instead of a list"
                )
        if not self.regresses:
            return data
        if len(labels := schema.bounds[schema.target].labels) > 2 and not self.any_labels:
            raise DataError(
                f"the target {schema.target!r} has {len(labels)} texts, and job {self.name!r} predicts a number or one "
                "of two texts; take ordinal-regression for grades in their order, multinomial-regression for others, "
                f"or the target {schema.target}={labels[-1]}"
            )
        return data.with_indicators(self.codes(settings))

    def columns(self, settings: Any) -> tuple[str, ...]:
        """Return the columns named in the settings that the job reads beside the target, if it predicts nothing."""
        return ()

    def mechanism(self, settings: Any) -> str:
        """Return the local mechanism of the clients' reports; "" if the job does not learn from LDP reports."""
        return ""

    def site_column(self, settings: Any) -> str:
        """Return the column that names the data node of each row in a trial on one machine; "" if there is none."""
        return ""

    def batch(self, settings: Any) -> int:
        """Return B, the number of clients in the smallest round, or 0 if all rounds ask all clients."""
        return int(getattr(settings, "batch", 0))

    def contributors_least(self, schema: Schema, settings: Any, kind: type[Kind]) -> int:
        """Return how many contributions, data nodes or reports the job must have for a result."""
        return 1

    def check_contributors(self, schema: Schema, settings: Any, conditions: Conditions) -> None:
        """Refuse rounds that may end with too few contributors for a result. Raises `DataError`."""
        least = self.contributors_least(schema, settings, conditions.kind)
        fewest, tolerate = conditions.clients - conditions.tolerate, conditions.tolerate
        if fewest < least:
            close = (
                f"its rounds may close with {fewest}, as they tolerate {tolerate}" if tolerate else f"found {fewest}"
            )
            raise DataError(
                f"job {self.name!r} has no result from fewer than {least} contributors, and {close}; "
                f"expected clients of at least {least + tolerate}"
            )

    def rows_least(self, schema: Schema, settings: Any) -> int:
        """Return how many rows a data node must have to count in the result."""
        return 1

    def finish(self, outcome: Any, schema: Schema, settings: Any, conditions: Conditions) -> Any:
        """Return the result of `learned`, with a ``refit`` by the changeable settings."""
        drawn = deepcopy(conditions.rng)
        result = as_posterior(self.learned(outcome, schema, settings, conditions))
        result = replace(result, texts=schema.labelled, private=result.private and schema.private)

        def refit_with(**changed: Any) -> Any:
            names = [setting.name for setting in fields(settings)]
            for name in changed:
                if name not in names:
                    raise unknown("setting", name, None, names)
                if name not in self.changeable:
                    raise DataError(
                        f"setting {name!r} shaped the rounds that have run; run new rounds for another value. A "
                        f"refit changes only: {', '.join(self.changeable)}"
                    )
            own = replace(settings, **changed)
            return self.finish(outcome, schema, own, replace(conditions, rng=deepcopy(drawn)))

        refits = self.changeable and result.refitter is None
        return replace(result, refitter=refit_with) if refits else result

    def summarise(
        self, result: Any, reference: Any, train: Problem | None, test: Problem | None, schema: Schema
    ) -> Summary:
        """Return `Posterior.summary`, with a warning about what was hardly learned before its own warnings.

        Of a regression, remarks say whose odds it states, and with what the indicators are compared.
        """
        summary: Summary = as_posterior(result).summary(schema, reference, train, test)
        rows = rows_of(summary)
        hardly = about_contraction([row["name"] for row in rows], [row["contraction"] for row in rows])
        remarks = {**summary.get("remarks", {})} | ({"odds": f"of {schema.odds}"} if self.of_two else {})
        if self.regresses and (compared := schema.references):
            remarks["reference"] = "; ".join(f"{name} against {rest}" for name, rest in compared.items())
        found: Summary = {**summary, "warnings": [*hardly, *summary.get("warnings", [])]}
        return {**found, "remarks": remarks} if remarks else found


class RefitJob(LearningJob):
    """A job whose changeable settings are those of the posterior's ``refit``."""

    def learned(self, outcome: Any, schema: Schema, settings: Any, conditions: Conditions) -> Any:
        return as_posterior(outcome).refit(**{name: getattr(settings, name) for name in self.changeable})


class ColumnJob(LearningJob):
    """A job that describes one column: that of the setting ``column``, by default the target."""

    scored = False
    estimator = "one column: nothing to predict"

    def numbers(self, schema: Schema, settings: Any) -> tuple[str, ...]:
        return (schema.column(settings.column),)

    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> Sequence[Stage]:
        return one_round(schema.column(settings.column))


def as_posterior(result: Any) -> Any:
    """Return the `inference.posterior.Posterior` of a law, or the result if it is one."""
    return result.posterior() if hasattr(result, "posterior") else result


def target_on_features(schema: Schema) -> str:
    """Return a regression's model as text."""
    return f"{schema.outcome} on {listed(schema.features)}"


def plan_words(stages: Sequence[Stage]) -> str:
    """Return the plan as text, as in "over 2 rounds: 10 % of the budget on scales, 90 % on the regression"."""
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
    """Format a share of the budget for people."""
    return percent(share) if share >= 0.01 else f"{100 * share:.2g} %"
