"""One run of a learning job, whoever holds its rounds: planned, made, finished, summarised and drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dca_proto.aggregate import RoundRequest
from dca_proto.cli.job_settings import Draft, best_weights, check_plan
from dca_proto.cli.learn_view import iteration_row
from dca_proto.cli.output import whole_file
from dca_proto.cli.progress import SamplingBar
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.mechanism import Mechanism
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.picture import plot_estimates
from inference.jobs.summary import Summary
from inference.problem import Problem, Schema, stream
from inference.rounds import Job
from inference.variational.progress import Iteration


class JobRun:
    """A job with its settings, on the terms of its rounds.

    Args:
        job, settings, schema: what is learned. terms, kind: of the rounds. seed: of the job's own random stream.
        test: rows to score it on, if there are any. on_iteration: told of each.

    Attributes:
        iterations: so far.
    """

    def __init__(
        self,
        job: LearningJob,
        settings: Any,
        schema: Schema,
        terms: JobTerms,
        *,
        kind: type[RoundRequest],
        seed: int,
        test: Problem | None,
        on_iteration: Callable[[Iteration], None],
    ) -> None:
        self.iterations: list[Iteration] = []
        self._job, self._settings, self._schema, self._terms = job, settings, schema, terms
        self._kind, self._seed, self._test, self._on_iteration = kind, seed, test, on_iteration

    def plan(self, said: str, mechanism: Mechanism = EXACT) -> tuple[list[Stage], list[Draft]]:
        """The stages, and each round as its participants will work it out.

        Args:
            said: the terms as the caller gave them, for errors. mechanism: of every actor.

        Raises:
            UsageError: there cannot be such rounds.
        """
        stages = list(self._job.plan(self._schema, self._settings, self._conditions()))
        return stages, check_plan(self.make(), stages, self._terms, said, mechanism)

    def make(self) -> Job[Any]:
        """The job, not yet started."""
        return self._job.make(self._schema, self._settings, self._conditions())

    def finish(self, result: Any, console: Console) -> Any:
        """What the job makes of its rounds, where it has work left to do. Raises whatever the job raises."""
        with SamplingBar(console) as bar:
            return self._job.finish(result, self._schema, self._settings, replace(self._conditions(), on_sampling=bar))

    def summarise(self, result: Any, reference: Any = None, rows: Problem | None = None) -> Summary:
        """What was learned, and the score after each iteration, if the job has any.

        Args:
            reference: the same without privacy, learned from `rows`; None where nobody has them.
        """
        learned = self._job.summarise(result, reference, rows, self._test, self._schema)
        if self.iterations:
            learned["iterations"] = [iteration_row(one) for one in self.iterations]
        return learned

    def draw(self, summary: Summary, path: Path, *, private: bool, caption: str) -> None:
        """A picture of what was learned."""
        title = self._job.picture_title(self._schema)
        with whole_file(path) as place:
            plot_estimates(summary, place, title=title, private=private, caption=caption)

    def _conditions(self) -> Conditions:
        return Conditions(
            clients=self._terms.clients,
            tolerated=self._terms.tolerated,
            mu=self._terms.budget.mu,
            rng=stream(self._seed, "auxiliary"),
            on_iteration=self._iterated,
            held_out=self._test,
            kind=self._kind,
            epsilon=self._terms.budget.epsilon,
            weights=best_weights,
        )

    def _iterated(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        self._on_iteration(iteration)
