#!/usr/bin/env python
"""Writes the generated parts of docs/jobs: what the registry knows of each job, and what each page's example prints.

    scripts/make_job_pages.py                    writes what the registry knows, between the markers of each page
    scripts/make_job_pages.py --examples         also runs the examples, and writes what they print
    scripts/make_job_pages.py --check            compares only; exit code 1 if anything differs
    scripts/make_job_pages.py logistic compare   the pages of these jobs alone

`tests/test_job_pages.py` checks every job of the registry: its page, its sections, and these parts.

An example is the command in the page's block that is marked as run by this script. The command runs as typed. Only the
rounds are played by the ideal functionality, whose sums have the law of the protocol's, with fixed keys of the noise
and fixed clients that drop out. So the output is the same at each run, up to the last digits on other processors. Lines
that all jobs share are left out, and "..." stands for them. Data files are those of the folder that DCA_DATA names; a
page whose file is not there is skipped and named.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from math import exp
from pathlib import Path
from textwrap import wrap
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from inference.datasets.uci import SHA256
from inference.jobs import NAMES, find
from inference.jobs.base import Conditions, LearningJob, plan_words, uses
from inference.jobs.examples import problem
from inference.jobs.settings import described
from inference.problem import stream

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "jobs"
SECTIONS = (
    "What it answers",
    "When to use another",
    "What you state",
    "An example",
    "What it means",
    "What one client can change",
    "What it costs",
    "What the warnings mean",
)
"""The sections of a job's page, in order; a page may have further ones."""
SHOWN = (
    'The noise of this run is fixed, so that the page can be checked; that of a run of yours differs. "..." stands for '
    "lines that all jobs print alike. `DCA_DATA` names the folder of data files, if any is needed."
)
CLIENTS, BUDGET = 5_000, Budget(2.0, 1e-5)  # of the costs
EPSILON, DELTA, MU = at_least(BUDGET.epsilon), at_least(BUDGET.delta), at_least(BUDGET.mu, 2)
MARK = "<!-- not run: scripts/make_job_pages.py runs it, with fixed noise -->"
CHARS, COLUMNS = 98, "80"
PUBLIC = (
    "Every job needs public bounds of each column that it reads, as in `--bounds age=0:120`: stated before anybody "
    "sees the data. A number beyond them counts as the nearest bound. The bounds of a column of texts are its "
    "categories, as in `--categories sex=f,m`; another text is missing. Data sets by name have theirs. `--epsilon` and "
    "`--delta` are the budget of all rounds together."
)
EXAMPLE = re.compile(rf"(?ms)^{re.escape(MARK)}\n```console\n\$ ((?:[^\n]*\\\n)*[^\n]*)\n(.*?)^```$")
FILE = re.compile(r"\$DCA_DATA/([\w.-]+)")
OF_ALL_JOBS = (
    *("federation", "fitting", "repair", "not covered by epsilon"),
    *("spent", "holds for", "drop", "adds up", "files", "next"),
)
"""The first words of lines that are left out of an example's output, and of the lines that continue them."""
DATA_FILES = {
    "wine-red": "winequality-red.csv",
    "wine-white": "winequality-white.csv",
    "abalone": "abalone.data",
    "adult": "adult.data",
}
assert set(DATA_FILES.values()) <= SHA256.keys()


# --- what the registry knows ------------------------------------------------------------------------------------------


def facts(name: str) -> dict[str, str]:
    """Return the generated parts of a job's page, by the names of their markers."""
    job = find(name)
    return {
        "about": about(job),
        "settings": settings(job),
        "shown": paragraph(SHOWN),
        "change": change(job),
        "costs": costs(job),
    }


def about(job: LearningJob) -> str:
    """Return what the job learns, with links from docs/jobs."""
    words = re.sub(r"\]\(jobs/", "](", re.sub(r"\]\(#", "](../learning.md#", job.about))
    own = re.sub(rf"\[([^]]*)\]\({job.name}\.md\)", r"\1", words)
    return paragraph(f"Job `{job.name}`: {own}.")


def settings(job: LearningJob) -> str:
    """Return what every job needs, and the job's settings with their defaults, as a list."""
    lines = [paragraph(PUBLIC), "", "Settings, each as `--set NAME=VALUE`:", ""]
    for name, default, meaning in described(job.settings):
        value = "" if default in (None, "") else f" = {str(default).lower() if default in (True, False) else default}"
        lines.append(paragraph(f"- `{name}{value}`: {meaning}"))
    return "\n".join(lines)


def change(job: LearningJob) -> str:
    """Return what replacing the data of one client changes in what is released."""
    parts = [_REPLACED[kind](job) for kind in job.kinds]
    lies = "That holds for clients that follow the protocol; see [what a lying client can do](../concepts/liars.md)."
    return paragraph(" ".join([*parts, lies]))


def _sum(job: LearningJob) -> str:
    return (
        "One client has one row, and may have any other within the bounds instead: in all columns at once, in every "
        f"round. At ε = {EPSILON}, δ = {DELTA}, that moves all released sums together by at most "
        f"{MU} standard deviations of their noise."
    )


def _node(job: LearningJob) -> str:
    also = "With `--data-nodes`, the same holds for" if SecureSum in job.kinds else "Each data node adds the noise for"
    rest = "" if SecureSum in job.kinds else (
        f" At ε = {EPSILON}, δ = {DELTA}, any other row within the bounds moves all of its node's "
        f"releases together by at most {MU} standard deviations of their noise."
    )  # fmt: skip
    return f"{also} each single row of a data node.{rest}"


def _report(job: LearningJob) -> str:
    mechanism = job.mechanism(job.settings())
    if mechanism in PURE_MECHANISMS:
        return (
            f"Each client's report is private by itself, by {mechanism}. With another row, no report becomes more than "
            f"exp(ε) times as likely: {at_least(exp(BUDGET.epsilon), 2)} times at ε = {EPSILON}."
        )
    return (
        f"Each client's report is private by itself, by {mechanism}. At ε = {EPSILON}, δ = {DELTA}, "
        f"another row moves it by at most {MU} standard deviations of its noise."
    )


_REPLACED: dict[Any, Callable[[LearningJob], str]] = {SecureSum: _sum, NodeRelease: _node, LdpReport: _report}


def costs(job: LearningJob) -> str:
    """Return the job's rounds with their shares of the budget, and what may change afterwards."""
    schema = problem(job.examples[0].target, 1).schema
    known = Conditions(CLIENTS, 0, BUDGET.mu, stream(0, "auxiliary"), kind=job.kinds[0], epsilon=BUDGET.epsilon)
    stages = job.plan(schema, job.settings(), known)
    plan = plan_words(stages).replace(f" {schema.target}", " one column")
    once = uses(stages)
    part = "once" if once == 1 else f"in {once} rounds"
    words = [f"By default it learns {plan}. Each client takes part {part}."]
    if len(stages) > 1 or once > 1:
        words.append("The plan may depend on the number of clients, columns and ε; the line `plan` shows it before.")
    if job.changeable:
        names = ", ".join(f"`{name}`" for name in job.changeable)
        words.append(f"After the rounds, these may change at no cost to privacy: {names}.")
    return paragraph(" ".join(words))


def paragraph(text: str) -> str:
    """Break a paragraph or an item of a list into lines."""
    indent = "  " if text.startswith("- ") else ""
    return "\n".join(wrap(text, CHARS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def with_facts(text: str, name: str) -> str:
    """Return a page's text with its generated parts as they should be. Raises `ValueError` without a marker."""
    for part, wanted in facts(name).items():
        begin, end = f"<!-- {part} -->\n", f"<!-- /{part} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"docs/jobs/{name}.md needs the markers {begin.strip()} and {end}, once each")
        head, rest = text.split(begin)
        text = f"{head}{begin}{wanted}\n{end}{rest.split(end)[1]}"
    return text


# --- what an example prints -------------------------------------------------------------------------------------------


def needs(command: str) -> str:
    """Return the name of the file in DCA_DATA that a command reads; "" if it needs none."""
    if named := FILE.search(command):
        return named[1]
    chosen = re.search(r"--dataset (\S+)", command)
    return DATA_FILES.get(chosen[1], "") if chosen else ""


def is_there(command: str) -> bool:
    """Return whether the example's data are there."""
    file, folder = needs(command), os.environ.get("DCA_DATA")
    return not file or (folder is not None and (Path(folder) / file).is_file())


def with_example(text: str) -> str:
    """Return a page's text with what its example prints now."""

    def ran(block: re.Match[str]) -> str:
        output = "\n".join(shortened(printed(block[1]).splitlines()))
        return f"{MARK}\n```console\n$ {block[1]}\n{output}\n```"

    return EXAMPLE.sub(ran, text)


def printed(command: str) -> str:
    """Run a command of `dca` as typed, over the ideal functionality with fixed keys, and return what it prints."""
    from dca_proto.cli import main as dca
    from dca_proto.cli import swarm_job

    out = io.StringIO()
    words = shlex.split(os.path.expandvars(command.replace("\\\n", " ")))
    width = words.pop(0).removeprefix("COLUMNS=") if words[0].startswith("COLUMNS=") else COLUMNS
    with (
        mock.patch.object(swarm_job, "run_swarm", _run_swarm),
        mock.patch.object(swarm_job, "summarise", _summarise),
        mock.patch.dict(os.environ, {"COLUMNS": width, "NO_COLOR": "1"}),
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
    ):
        code = dca(words[1:])
    if code:
        raise RuntimeError(f"{command} ended with {code}:\n{out.getvalue()}")
    return out.getvalue()


class _Kept:
    """Rounds that keep their sums."""

    def __init__(self, rounds: Any) -> None:
        self._rounds = rounds
        self.aggregates: list[NoisyAggregate] = []

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        self.aggregates.append(self._rounds.run_round(request))
        return self.aggregates[-1]


async def _run_swarm(options: Any, rows: Any, columns: Any, job: Any, *_: Any) -> Any:
    """Stand in for `emulator.swarm.live.run_swarm`."""
    from dca_proto.crypto.sealing import ID_BYTES
    from dca_proto.testing import seeded
    from emulator.ideal import IdealSwarm
    from emulator.swarm.live import SwarmResult
    from inference.rounds import run

    ids = [place.to_bytes(ID_BYTES, "big") for place in range(max(options.clients, options.computes))]
    swarm = IdealSwarm(
        rows,
        columns,
        options.terms(tuple(ids[: options.computes])),
        absent=_absent(options.clients, options.dropped),
        random=seeded("docs/jobs"),
    )
    kept = _Kept(swarm)
    result = run(job, kept)
    numbers = {client: place for place, client in enumerate(ids)}
    done: Any = SimpleNamespace(options=options, numbers=numbers, aggregates=kept.aggregates)
    return SwarmResult(done, result, None)


def _absent(clients: int, dropped: int) -> Iterator[frozenset[int]]:
    rng = np.random.default_rng(0)
    while True:
        yield frozenset(rng.choice(clients, dropped, replace=False).tolist())


def _summarise(done: Any, not_private: Sequence[str], *, wall_s: float, **fields: Any) -> Any:
    """Stand in for `emulator.swarm.summary.summarise`, without times and messages."""
    from dca_proto.results.round import round_of
    from dca_proto.results.run import run_of

    options = done.swarm.options
    return run_of(
        options,
        options.kind,
        [round_of(one) for one in done.swarm.aggregates],
        not_private,
        ok=True,
        batch=options.batch or None,
        reports=options.reports or None,
        delta=options.spent_delta,
        epsilon_spent=options.epsilon,
        mechanism=options.reports or options.mechanism.name,
        seed=options.seed,
        **fields,
    )


def shortened(lines: Sequence[str]) -> list[str]:
    """Leave out what all jobs print alike, and scores that stand in the line `test`; "..." stands for it."""
    kept: list[str] = []
    out = ""  # why a line is left out: it is of a line that all jobs print, or of a table of scores
    for line in map(str.rstrip, lines):
        if re.match(rf"({'|'.join(OF_ALL_JOBS)})\b", line):
            out = "line"
        elif re.match(r"[\d,]+ held-out rows?:", line):
            out = "table"
        elif (out == "line" and not line.startswith(" ")) or (out == "table" and not line):
            out = ""
        if out and kept[-1:] != ["..."]:
            kept.append("...")
        elif not out and (line or kept[-1:] not in ([""], ["..."])):
            kept.append(line)
    return kept


def has_page(name: str) -> bool:
    """Return whether a job has a page with an example."""
    page = FOLDER / f"{name}.md"
    return page.exists() and MARK in page.read_text(encoding="utf-8")


# --- all pages --------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="by default all that have a page")
    parser.add_argument("--examples", action="store_true", help="also run the examples")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    differ = False
    for name in options.jobs or [name for name in NAMES if has_page(name)]:
        page = FOLDER / f"{find(name).name}.md"
        text = page.read_text(encoding="utf-8")
        wanted = with_facts(text, name)
        if options.examples:
            (example,) = EXAMPLE.finditer(text)
            if is_there(example[1]):
                wanted = with_example(wanted)
            else:
                print(f"skipped the example of {name}: DCA_DATA has no {needs(example[1])}", file=sys.stderr)
        if text != wanted:
            differ = True
            print(f"{'differs' if options.check else 'wrote'}  docs/jobs/{page.name}")
            if not options.check:
                page.write_text(wanted, encoding="utf-8")
    return int(differ and options.check)


if __name__ == "__main__":
    sys.exit(main())
