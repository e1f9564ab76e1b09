"""One run of a learning job, whoever holds its rounds: planned, made, finished, written, drawn and shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console

from dca_proto.aggregate import LocalReports, NoisyAggregate, RoundRequest
from dca_proto.cli.job_settings import Draft, best_weights, check_plan
from dca_proto.cli.output import whole_file
from dca_proto.cli.progress import SamplingBar
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.runner import HeldRound
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.rounding import claim_words
from dca_proto.runtime.outcome import report_values
from emulator.report import learned as view
from emulator.report.blocks import Block, show
from emulator.report.run import aborted_lines, closing_lines, missing_lines, tables
from emulator.results import Histogram, Node, Reports, Round, Run
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.estimates import separated
from inference.jobs.picture import plot_estimates
from inference.jobs.summary import Iterated, Summary
from inference.problem import Problem, Schema, stream
from inference.rounds import Job
from inference.variational.progress import Iteration

SHOWN_ESTIMATES = 12
_NUMBERS_MAX = 10**6  # of reports, that are written to a file
_BINS = 30


def reports_of(reports: LocalReports) -> Reports:
    """What clients reported in one round, in the order of their ids; very many numbers are left out."""
    plain, values, counts, histogram = report_values(reports, most=_NUMBERS_MAX), reports.values, None, None
    if reports.categories:  # how many reports name each
        found = values.sum(axis=0) if values.ndim == 2 else np.bincount(values, minlength=reports.categories)
        counts = [int(one) for one in found]
    elif values.shape[1] == 1:
        bins, edges = np.histogram(values[:, 0], _BINS)
        histogram = Histogram(float(edges[0]), float(edges[-1]), bins.tolist())
    return Reports(**msgspec.structs.asdict(plain), counts=counts, histogram=histogram)


def node_of(node: NoisyAggregate, **known: Any) -> Node:
    """What one data node released; all that is not here it has in common with the round."""
    variance = node.noise_variance
    return Node(
        rows=node.contributors, noise_variance=variance, noise_sd=variance**0.5, value=node.value.tolist(), **known
    )


def figures_of(aggregate: NoisyAggregate) -> dict[str, Any]:
    """The fields of a round that follow from its sum; no epsilon of noise that is not private."""
    is_private = aggregate.private
    return {
        **{name: getattr(aggregate, name) for name in _FIGURES},
        "ok": True,
        "round_id": aggregate.round_id.hex(),
        "epsilon": aggregate.epsilon if is_private else None,
        "mu": aggregate.mu if is_private else None,
        "value": aggregate.value.tolist(),
        "reports": None if aggregate.reports is None else reports_of(aggregate.reports),
    }


_FIGURES = ("dimension", "clients", "contributors", "fewest", "sigma_local", "noise_variance", "sensitivity",
            "relation", "mechanism")  # fmt: skip


def job_round(held: HeldRound) -> Round:
    """What is public about a request of a job that has ended."""
    sum_ = held.aggregate
    figures: dict[str, Any] = {"ok": False, "error": held.reason} if sum_ is None else figures_of(sum_)
    return Round(
        name=held.request.statistic,
        number=held.number,
        attempts=held.attempts,
        recalled=held.recalled,
        expected=figures.get("clients"),
        arrived=None if sum_ is None else len(sum_.nodes) or (None if sum_.reports is None else sum_.contributors),
        nodes=[] if sum_ is None else [node_of(one) for one in sum_.nodes],
        **figures,
    )


def iterated(iteration: Iteration) -> Iterated:
    """The score after an iteration; None where it has none."""
    value = None if math.isnan(iteration.value) else iteration.value
    return {"number": iteration.number, "name": iteration.name, "value": value}


def claimed_by(run: Run, learned: Summary) -> Summary:
    """What was learned, with what its tables need of the run."""
    return {**learned, "private": run.private, "epsilon": run.epsilon, "delta": run.delta, "reports": run.reports}


def written(run: Run, summary: Summary) -> dict[str, Any]:
    """The object for programs: the run's fields beside what was learned."""
    return {**separated(summary), **msgspec.to_builtins(run)}


def caption(run: Run) -> str:
    """Of a picture: what was spent, and on whose data."""
    if run.epsilon is None or run.delta is None:
        return f"not private: {'; '.join(run.not_private_because)}"
    most = max(one.contributors or 0 for one in run.rounds)  # of mini-batches, none is everybody
    of = f"{most} rows of {len(run.nodes)} data nodes" if run.nodes else f"{most} contributors"
    return f"{claim_words(run.epsilon, run.delta)}, {f'{run.reported} reports' if run.reports else of}"


def show_run(console: Console, run: Run, summary: Summary) -> None:
    """Rounds, then, if there is a result, estimates and scores: of many coefficients those farthest from zero."""
    show(console, tables(run), [*aborted_lines(run), *missing_lines(run)])
    if run.ok:
        blocks: list[Block] = [view.estimates(summary, SHOWN_ESTIMATES), *view.scores(summary)]
        show(console, blocks, closing_lines(run, summary))


@dataclass
class JobRun:
    """A job with its settings, on the terms of its rounds.

    Attributes:
        job, settings, schema: what is learned. terms, kind: of the rounds. seed: of the job's own random stream.
        test: rows to score it on, if there are any. on_iteration: called with each. iterations: so far.
    """

    job: LearningJob
    settings: Any
    schema: Schema
    terms: JobTerms
    kind: type[RoundRequest]
    seed: int
    test: Problem | None
    on_iteration: Callable[[Iteration], None]
    iterations: list[Iteration] = field(default_factory=list)

    def plan(self, said: str, mechanism: Mechanism = EXACT) -> tuple[list[Stage], list[Draft]]:
        """The stages, and each round as its participants will work it out.

        Args:
            said: the terms as the caller gave them, for errors. mechanism: of every actor.

        Raises:
            UsageError: there cannot be such rounds.
        """
        stages = list(self.job.plan(self.schema, self.settings, self._conditions()))
        return stages, check_plan(self.make(), stages, self.terms, said, mechanism)

    def make(self) -> Job[Any]:
        """The job, not yet started."""
        return self.job.make(self.schema, self.settings, self._conditions())

    def finish(self, result: Any, console: Console) -> Any:
        """What the job makes of its rounds, where it has work left to do. Raises whatever the job raises."""
        with SamplingBar(console) as bar:
            return self.job.finish(result, self.schema, self.settings, replace(self._conditions(), on_sampling=bar))

    def summarise(self, result: Any, reference: Any = None, rows: Problem | None = None) -> Summary:
        """What was learned, and the score after each iteration, if the job has any.

        Args:
            reference: the same without privacy, learned from `rows`; None where nobody has them.
        """
        found = self.job.summarise(result, reference, rows, self.test, self.schema)
        if self.iterations:
            found["iterations"] = [iterated(one) for one in self.iterations]
        return found

    def draw(self, summary: Summary, path: Path, run: Run) -> None:
        """A picture of what was learned."""
        title = self.job.picture_title(self.schema)
        with whole_file(path) as place:
            plot_estimates(summary, place, title=title, private=run.private, caption=caption(run))

    def _conditions(self) -> Conditions:
        return Conditions(
            clients=self.terms.clients,
            tolerated=self.terms.tolerated,
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
