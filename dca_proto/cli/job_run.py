"""Plans a learning job, records its rounds, summarises its result, and draws and prints it.

`dca learn` and `dca swarm` share this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from dca_proto.cli.job_settings import Draft, best_weights, check_plan
from dca_proto.cli.output import draw
from dca_proto.cli.progress import SamplingBar
from dca_proto.cli.show import show
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.runner import FinishedRequest
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.wire.kinds import Kind
from dca_proto.report import learned as view
from dca_proto.report.blocks import Block
from dca_proto.report.run import aborted_lines, closing_lines, lost_lines, missing_lines, tables
from dca_proto.results.lost import fields_of
from dca_proto.results.round import Round, round_of
from dca_proto.results.run import Run
from dca_proto.wording import JsonObject, counted
from inference.jobs.base import Conditions, LearningJob, Stage, as_posterior
from inference.jobs.estimates import separated
from inference.jobs.picture import plot_estimates
from inference.jobs.summary import Iterated, Summary
from inference.problem import Problem, Schema, stream
from inference.rounds import Job
from inference.saved import saved
from inference.variational.progress import Iteration

SHOWN_ESTIMATES = 12


def job_round(finished: FinishedRequest) -> Round:
    """Return the public record of a job's request that has ended."""
    known: dict[str, Any] = {"number": finished.number, "attempts": finished.attempts, "recalled": finished.recalled}
    if finished.aggregate is None:
        known |= {"unproven_clients": finished.unproven, **fields_of(finished.quorum)}
        return Round(ok=False, statistic=finished.request.statistic, error=finished.reason, **known)
    found = round_of(finished.aggregate, **known)
    arrived = len(found.nodes) or (None if found.reports is None else found.contributors)
    return msgspec.structs.replace(found, arrived=arrived)


def iterated(iteration: Iteration) -> Iterated:
    """Return the record of an iteration's score; its value is None if it has no score."""
    value = None if math.isnan(iteration.value) else iteration.value
    return {"number": iteration.number, "name": iteration.name, "value": value}


def claimed_by(run: Run, learned: Summary) -> Summary:
    """Return the summary with the run's privacy claim and reports, which its tables need, and warnings about sums."""
    learned = doubted(run, learned)
    return {**learned, "private": run.private, "epsilon": run.epsilon, "delta": run.delta, "reports": run.reports}


def doubted(run: Run, summary: Summary) -> Summary:
    """Return the summary with warnings about the run's sums, also if there is no result."""
    doubts = dict.fromkeys(text for round_ in run.rounds for text in round_.doubts)
    return {**summary, "warnings": [*doubts, *summary.get("warnings", [])]} if doubts else summary


def written(run: Run, summary: Summary) -> JsonObject:
    """Return the JSON object: the run's fields beside the summary's."""
    return {**separated(summary), **msgspec.to_builtins(run)}


def caption(run: Run) -> str:
    """Return a picture's caption: the privacy cost and the number of contributors."""
    if run.epsilon is None or run.delta is None:
        return f"not private: {'; '.join(run.not_private_because)}"
    most = max(round_.contributors or 0 for round_ in run.rounds)
    source = f"{most:,} rows of {counted(len(run.nodes), 'data node')}" if run.nodes else f"{most:,} contributors"
    return f"{claim_words(run.epsilon, run.delta)}, {f'{run.reported:,} reports' if run.reports else source}"


def show_run(console: Console, run: Run, summary: Summary) -> None:
    """Print the rounds and, if there is a result, estimates and scores; of many coefficients the largest."""
    show(console, tables(run), [*aborted_lines(run), *lost_lines(run), *missing_lines(run)])
    if run.ok:
        blocks: list[Block] = [*view.tables(summary, SHOWN_ESTIMATES), *view.scores(summary)]
        show(console, blocks, closing_lines(run, summary))


@dataclass
class JobRun:
    """A job with its settings and the terms of its rounds.

    Attributes:
        job, settings, schema: the job and its data. terms, kind: of its rounds. seed: of the job's random stream.
        test: rows to score the result on, if any. on_iteration: called after each. iterations: those so far.
    """

    job: LearningJob
    settings: Any
    schema: Schema
    terms: JobTerms
    kind: type[Kind]
    seed: int
    test: Problem | None
    on_iteration: Callable[[Iteration], None]
    iterations: list[Iteration] = field(default_factory=list)

    def plan(self, claim: str, mechanism: Mechanism = EXACT) -> tuple[list[Stage], list[Draft]]:
        """Return the stages, and a round of each as its participants will compute it. Arguments as for `check_plan`.

        Raises `DataError` if a round may close with too few contributors for a result.
        """
        conditions = self._conditions()
        self.job.check_contributors(self.schema, self.settings, conditions)
        stages = list(self.job.plan(self.schema, self.settings, conditions))
        return stages, check_plan(self.make(), stages, self.terms, claim, mechanism)

    def make(self) -> Job[Any]:
        """Return the job, not yet started."""
        return self.job.make(self.schema, self.settings, self._conditions())

    def finish(self, result: Any, console: Console, sites: Mapping[bytes, str] | None = None) -> Any:
        """Compute the job's result from its rounds, with a progress bar. Raises whatever the job raises.

        Args:
            sites: names of data nodes by their ids, where they are known.
        """
        with SamplingBar(console) as bar:
            known = replace(self._conditions(), on_sampling=bar, sites=sites or {})
            return self.job.finish(result, self.schema, self.settings, known)

    def summarise(self, result: Any, reference: Any = None, rows: Problem | None = None) -> Summary:
        """Return a summary of the result, with the score after each iteration if the job has any.

        Args:
            reference: the result without privacy, learned from `rows`; None if not available.
        """
        summary = self.job.summarise(result, reference, rows, self.test, self.schema)
        summary["posterior"] = saved(as_posterior(result))
        if self.iterations:
            summary["iterations"] = [iterated(iteration) for iteration in self.iterations]
        return summary

    def draw(self, console: Console, summary: Summary, path: Path, run: Run) -> bool:
        """Draw the result to a file; return whether there is a picture (`dca_proto.cli.output.draw`)."""
        title = self.job.title.format(target=self.schema.outcome)
        drawing = partial(plot_estimates, summary, title=title, private=run.private, caption=caption(run))
        return draw(console, path, drawing)

    def _conditions(self) -> Conditions:
        return Conditions(
            clients=self.terms.clients,
            tolerate=self.terms.tolerate,
            mu=self.terms.budget.mu,
            rng=stream(self.seed, "auxiliary"),
            on_iteration=self._iterated,
            held_out=self.test,
            kind=self.kind,
            epsilon=self.terms.budget.epsilon,
            weights=best_weights,
        )

    def _iterated(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        self.on_iteration(iteration)
