"""A job that a real federation's trainer has learned: the answer, its course, and who was in each sum."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from emulator.report.figures import claimed, count, counted, number
from emulator.report.learned import (
    WITHOUT_PRIVACY,
    Learned,
    baseline_fact,
    compared,
    course,
    estimate_words,
    estimates,
    score_words,
    scores,
    warned,
)
from emulator.report.markup import Child, table
from emulator.report.nodes import Node, released, worth
from emulator.report.page import Page, Section, Verdict
from emulator.report.reports import Reports, told
from emulator.report.types import Amount, Count

_ROUNDS_MAX = 100
_NAMES = ("private", WITHOUT_PRIVACY)


class NodeRelease(msgspec.Struct, frozen=True):
    """What a data node released by itself."""

    rows: Count
    noise_sd: Amount


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asked for, and its sum; None where there is none."""

    number: Count
    name: str
    ok: bool
    attempts: Count
    contributors: Count | None = None
    clients: Count | None = None
    dimension: Count | None = None
    noise_variance: Amount | None = None
    error: str | None = None
    nodes: list[NodeRelease] = []
    reports: Reports | None = None

    @property
    def who(self) -> str:
        """Whose data are in it."""
        if self.reports is not None:
            return counted(self.contributors or 0, "private report")
        if self.nodes:
            return f"{counted(self.contributors or 0, 'row')} of {counted(len(self.nodes), 'data node')}"
        return f"{count(self.contributors)} of {count(self.clients)}"


class Learning(Learned, frozen=True, kw_only=True):
    """What the page reads of `dca learn --json`."""

    ok: bool
    job: str
    federation: str
    rounds: list[Held]
    error: str | None = None
    stopped: str | None = None

    @property
    def nodes(self) -> list[Node]:
        """What data nodes released in the last round, as they stand there."""
        last = self.rounds[-1].nodes if self.rounds else []
        return [Node(number, one.rows, one.noise_sd) for number, one in enumerate(last, 1)]


def page(run: Learning) -> Page:
    """The page of a job."""
    verdict: Verdict = "good" if run.ok and run.private else "bad"
    badge = ("private" if run.private else "not private") if run.ok else "ended without a result"
    lead = [
        Section(
            "Estimates",
            [
                *estimates(run.every_estimate, _NAMES, run.interval_note),
                *compared(run.every_estimate, _NAMES, run.naive_title),
            ],
        ),
        Section("Warnings", [*warned(run.warnings)]),
    ]
    sections = [
        Section("Score", [] if run.test is None else [*scores(run.test, _NAMES)]),
        Section("Draws", [*worth(run.sampling)]),
        Section("Data nodes", [*released(run.nodes)]),
        Section("Reports", [*told(run.reports, run.rounds, [one.name for one in run.estimates])]),
        Section("Iterations", [*course(run.course, run.test)]),
        Section("Rounds", [*_rounds(run)]),
    ]
    return Page(
        kind="Learned from a federation",
        title=_title(run),
        badge=badge,
        verdict=verdict,
        answer=_answer(run),
        facts=[*_facts(run)],
        sections=sections,
        lead=lead,
    )


def _title(run: Learning) -> str:
    if not run.ok:
        return f"No result: {run.error or 'the reason was not recorded'}"
    most = max((one.contributors or 0 for one in run.rounds), default=0)  # of mini-batches, none is everybody
    who = run.rounds[-1].who if run.nodes else counted(most, "client")
    if run.reports is not None:
        who = counted(sum(one.contributors or 0 for one in run.rounds), "private report")
    if run.test is not None:
        return f"Learned from {who}: {score_words(run.test)}"
    return f"Learned from {who}: {estimate_words(run.every_estimate)}" if run.every_estimate else f"Learned from {who}"


def _answer(run: Learning) -> str:
    held = f"Job {run.job} held {counted(sum(one.ok for one in run.rounds), 'round')} with {run.federation}."
    early = f" It stopped before all that were planned: {run.stopped}." if run.stopped else ""
    if not run.private:
        return f"{held}{early} No epsilon can be claimed."
    if run.epsilon is None or run.delta is None:
        return f"{held}{early}"
    whom = "row" if run.nodes else "client"
    own = "" if run.reports is None else " Each report is private by itself."
    spent = f"at most epsilon {claimed(run.epsilon)} at delta {claimed(run.delta)}"
    return f"{held}{early} They cost each {whom} {spent}.{own}"


def _facts(run: Learning) -> Iterator[tuple[str, str]]:
    yield "job", run.job
    yield "federation", run.federation
    yield "rounds", count(len(run.rounds))
    yield from run.remarks.items()
    if run.repair is not None:
        yield "repair of the noisy matrix", run.repair
    if run.epsilon is not None:
        yield "epsilon of all rounds", claimed(run.epsilon)
    if run.test is not None:
        yield from baseline_fact(run.test)


def _rounds(run: Learning) -> Iterator[Child]:
    """Who was in each sum, and the noise in it."""
    if not run.rounds:
        return
    shown = run.rounds[:_ROUNDS_MAX]
    yield table(
        ("round", "asked for", "values", "contributors", "attempts", "noise (sd)", ""),
        [
            (
                str(one.number),
                one.name,
                count(one.dimension),
                one.who if one.ok else "no sum",
                count(one.attempts),
                number(None if one.noise_variance is None else math.sqrt(one.noise_variance)),
                one.error or "",
            )
            for one in shown
        ],
        text_columns=(0, 1, 6),
    )
