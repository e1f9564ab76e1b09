"""A job that a real federation's trainer has learned: the answer, its course, and who was in each sum."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from emulator.report.figures import claimed, count, counted, number
from emulator.report.learned import Learned, lead_of, learned_words, nodes_of, reports_of, sections_of
from emulator.report.page import Block, Page, Table, Verdict
from emulator.results import Amount, Count, Node, Reports

_ROUNDS_MAX = 100


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
    nodes: list[Node] = []
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
        return self.rounds[-1].nodes if self.rounds else []


def page(run: Learning) -> Page:
    """The page of a job."""
    verdict: Verdict = "good" if run.ok and run.private else "bad"
    badge = ("private" if run.private else "not private") if run.ok else "ended without a result"
    reports = [(one.contributors or 0, one.noise_variance, one.reports) for one in run.rounds]
    return Page(
        kind="Learned from a federation",
        title=_title(run),
        badge=badge,
        verdict=verdict,
        answer=_answer(run),
        facts=[*_facts(run)],
        sections=[
            *sections_of(run),
            ("Data nodes", nodes_of(run.nodes)),
            ("Reports", reports_of(run.reports, reports, [one.name for one in run.estimates])),
            ("Rounds", _rounds(run)),
        ],
        lead=lead_of(run),
    )


def _title(run: Learning) -> str:
    if not run.ok:
        return f"No result: {run.error or 'the reason was not recorded'}"
    most = max((one.contributors or 0 for one in run.rounds), default=0)  # of mini-batches, none is everybody
    who = run.rounds[-1].who if run.nodes else counted(most, "client")
    if run.reports is not None:
        who = counted(sum(one.contributors or 0 for one in run.rounds), "private report")
    return f"Learned from {who}{learned_words(run)}"


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
    yield "rounds", count(len(run.rounds))
    if run.epsilon is not None:
        yield "epsilon of all rounds", claimed(run.epsilon)
    for one in (run.test.every_score if run.test else [])[:1]:
        yield f"test {one.name}, not covered by epsilon", one.said(one.private)
        yield f"{one.name} by {one.of_constant}, not covered by epsilon", one.said(one.constant)


def _rounds(run: Learning) -> list[Block]:
    """Who was in each sum, and the noise in it."""
    rows = [
        (str(one.number), one.name, count(one.dimension), one.who if one.ok else "no sum", count(one.attempts),
         number(None if one.noise_variance is None else math.sqrt(one.noise_variance)), one.error or "")
        for one in run.rounds[:_ROUNDS_MAX]
    ]  # fmt: skip
    header = ("round", "asked for", "values", "contributors", "attempts", "noise (sd)", "why no sum")
    return [Table(header, rows, text_columns=(0, 1, 6))] if rows else []
