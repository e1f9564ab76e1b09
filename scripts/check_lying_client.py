#!/usr/bin/env python
"""One enrolled client lies: the verdict of every job on every lie, and how far a lie moves a result unnoticed.

The first table has production actors in virtual time: 24 clients of which one sends random words, ±10⁶, the least and
the largest words, or bit patterns of NaN and infinity. Verdicts: *refused* (the round fails, its charge stays),
*left out* (the release or report is, by name), *warned*, or *unnoticed* with the largest move of an estimate in
posterior standard deviations. A lie that ends a job with any other error is a fault: exit code 4.

The second table has the ideal functionality with 500 clients. One client sends k times the statistic of a row at a
corner of its bounds, in every round, but counts as one row. k is the largest that raises neither an error nor a
warning. One of the LDP reports is as far beyond the corner as noise reaches at 10⁻⁹, or names the last category.

Examples:

    scripts/check_lying_client.py                    all jobs: some ten minutes on two cores
    scripts/check_lying_client.py --jobs gaussian,regression --json -
    scripts/check_lying_client.py --table reach
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.cli.job_settings import best_weights
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import DcaError, ImplausibleSum, NoAggregate
from dca_proto.jobs.job import Batches, JobTerms
from dca_proto.plausibility import REFUSED, checked, doubts_of
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from dca_proto.runtime.files import write_json
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import contribution
from dca_proto.testing import Lie, Network, TestFederation, make_lie, seeded
from emulator.ideal import IdealSwarm
from inference.errors import DataError
from inference.jobs import NAMES, find
from inference.jobs.base import Conditions, LearningJob
from inference.jobs.estimates import rows_of
from inference.jobs.examples import Example, problem
from inference.jobs.settings import settings_from
from inference.problem import Problem
from inference.rounds import Rounds, run

CLIENTS, COMPUTES, LIAR = 24, 2, 3
BUDGET = Budget(8.0, 1e-5)
FAULT = 4
MINUTES_MS = 20 * 60_000
BITS = 24


def words(size: int) -> np.ndarray:
    """Return random words, the same at each call."""
    return np.frombuffer(seeded("lie")(8 * size), dtype="<i8")


LIES: dict[str, Lie] = {
    "random words": words,
    "1e6": lambda size: np.full(size, 10**6 << BITS),
    "-1e6": lambda size: np.full(size, -(10**6) << BITS),
    "least": lambda size: np.full(size, np.iinfo(np.int64).min),
    "largest": lambda size: np.full(size, np.iinfo(np.int64).max),
    "NaN": lambda size: np.full(size, np.nan).view(np.int64),
    "infinity": lambda size: np.full(size, np.inf).view(np.int64),
}


class Case(NamedTuple):
    """A job, and one of its examples."""

    job: LearningJob
    example: Example


CASES = {
    f"{name} {example.label}".rstrip(): Case(find(name), example) for name in NAMES for example in find(name).examples
}
"""Each example of each job, by name."""


class Setting(NamedTuple):
    """A job that is ready to run over any rounds."""

    job: LearningJob
    own: Any
    data: Problem
    known: Conditions
    terms: JobTerms

    def learned(self, rounds: Rounds) -> dict[str, Any]:
        """Return the summary of the job's result. Raises whatever the job raises."""
        known = dataclasses.replace(self.known, rng=np.random.default_rng(2))
        outcome = run(self.job.make(self.data.schema, self.own, known), rounds)
        result = self.job.finish(outcome, self.data.schema, self.own, known)
        return dict(self.job.summarise(result, None, None, None, self.data.schema))


def setting_of(name: str, clients: int, budget: Budget = BUDGET) -> Setting:
    """Return a job of the table, for that many clients with one row each; data nodes share these rows."""
    job, example = CASES[name]
    data, kind = problem(example.target, clients), example.kind or job.kinds[0]
    summed = kind not in (NodeRelease, LdpReport)
    terms = JobTerms(
        epsilon=budget.epsilon,
        delta=budget.delta,
        clients=clients,
        tolerate=clients // 8 if summed else 0,
        computes=(bytes(16), bytes([1]) * 16) if summed else (),
    )
    rng = np.random.default_rng(2)
    known = Conditions(clients, terms.tolerate, budget.mu, rng, kind=kind, epsilon=budget.epsilon, weights=best_weights)
    return Setting(job, settings_from(job.settings, example.settings, job.name), data, known, terms)


# --- verdicts, with production actors ---------------------------------------------------------------------------------


class ActorRounds:
    """Rounds of production actors in virtual time, in which one client may lie."""

    def __init__(self, setting: Setting, lie: Lie | None) -> None:
        rows = setting.data.rows
        releases = setting.known.kind is NodeRelease
        policy = Policy(
            clients_min=1, honest_min=1, epsilon_per_round_max=50, epsilon_per_period_max=90, delta_max=1e-3,
            rows_of_many=releases,
        )  # fmt: skip
        self.actors = TestFederation(
            len(rows), COMPUTES, columns=setting.data.schema.asked, rows=list(rows[:, None]), policy=policy
        )
        self.network = self.actors.network(Network())
        summed = bool(setting.terms.computes)
        self._terms = msgspec.structs.replace(setting.terms, computes=self.actors.computes if summed else ())
        self.doubts: list[str] = []
        if lie is not None:
            make_lie(self.network.actors[self.actors.clients[LIAR]], lie)  # type: ignore[arg-type]
        self._count, self._batches, self._random = 0, Batches(), seeded("batches")

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        self._count += 1
        invited: tuple[bytes, ...] = ()
        if request.batch:
            invited = self._batches.pick(sorted(self.actors.clients), request.batch, self._random)
            self._batches.note(invited)
        opened = self._terms.open(request, self._count.to_bytes(ID_BYTES, "big"), invited)
        self.network.command(self.actors.trainer_identity.id, opened)
        self.network.advance(self.network.now_ms + MINUTES_MS)
        ended = [one for one in self.network.reported(RoundCompleted) if one.round_id == opened.round_id]  # type: ignore[attr-defined]
        if ended:
            aggregate: NoisyAggregate = ended[-1].aggregate  # type: ignore[attr-defined]
            self.doubts += aggregate.doubts
            return aggregate
        (failed,) = [one for one in self.network.reported(RoundFailed) if one.round_id == opened.round_id]  # type: ignore[attr-defined]
        assert isinstance(failed, RoundFailed)
        raise ImplausibleSum(failed.reason) if failed.implausible else NoAggregate(failed.reason)


class Verdict(NamedTuple):
    """What became of a lie: one word, and details."""

    job: str
    lie: str
    verdict: str
    detail: str


def verdict_of(name: str, lie: str, setting: Setting, honest: dict[str, Any]) -> Verdict:
    """Run a job with a lie."""
    rounds = ActorRounds(setting, LIES[lie])
    try:
        summary = setting.learned(rounds)
    except ImplausibleSum as error:
        return Verdict(name, lie, "refused", error.reason)
    except (NoAggregate, DataError, DcaError) as error:
        return Verdict(name, lie, "error", f"{type(error).__name__}: {error}")
    except Exception as error:  # a fault is what this script looks for
        return Verdict(name, lie, "FAULT", f"{type(error).__name__}: {error}")
    if rounds.doubts:
        left_out = any("left out" in doubt for doubt in rounds.doubts)
        return Verdict(name, lie, "left out" if left_out else "warned", rounds.doubts[0])
    return Verdict(name, lie, "unnoticed", f"an estimate moved by {moved(honest, summary):.2g} sd")


def moved(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest move of an estimate, in its posterior standard deviations in `one`."""
    pairs = zip(rows_of(one), rows_of(other), strict=True)  # type: ignore[arg-type]
    moves = [  # a point estimate has no standard deviation; its move is in its own units
        abs(right["estimate"] - left["estimate"]) / (left["estimate_sd"] or 1.0) for left, right in pairs
    ]
    return max(moves, default=0.0)


def verdicts(names: Iterable[str], lies: Iterable[str], say: Callable[[str], None]) -> list[Verdict]:
    """Return the verdicts of all jobs on all lies."""
    found = []
    for name in names:
        began, setting = time.perf_counter(), setting_of(name, CLIENTS)
        honest = setting.learned(ActorRounds(setting, None))
        found += [verdict_of(name, lie, setting, honest) for lie in lies]
        say(f"{name}: {time.perf_counter() - began:.0f} s")
    return found


# --- how far a lie moves a result unnoticed ---------------------------------------------------------------------------

HONEST, REACH_BUDGET, LARGEST = 500, Budget(2.0, 1e-5), 2.0**14


class Exaggerated:
    """Ideal rounds in which one client's contribution is k times that of a row at a corner of its bounds."""

    def __init__(self, setting: Setting, k: float) -> None:
        data, rng = setting.data, np.random.default_rng(3)
        self._schema, self._k = data.schema, k
        self._swarm = IdealSwarm(data.rows, data.schema.columns, setting.terms, random=rng.bytes)
        self.doubts: list[str] = []

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        aggregate = self._swarm.run_round(request)
        if not self._k:
            return aggregate
        statistic = resolve(request.statistic, request.parameters)
        columns, ends = statistic.columns, self._schema.bounds
        corner = np.array([[ends[column].upper for column in columns]])
        rows = np.repeat(corner, statistic.rows_per_value, axis=0)
        rows_max = max(request.rows_max, statistic.rows_per_value) if request.rows_max else 0
        own = contribution(statistic, rows, rows_max, BITS) * 2.0**-BITS
        if aggregate.reports is not None:
            return self._report(aggregate, own)
        sent = self._k * own
        if getattr(statistic, "counts", False):  # a count of many rows would be noticed first
            sent[-1] = own[-1]
        if aggregate.nodes:
            node = aggregate.nodes[LIAR]
            lied = dataclasses.replace(node, value=node.value + sent)
            nodes = (*aggregate.nodes[:LIAR], checked(lied), *aggregate.nodes[LIAR + 1 :])
            aggregate = dataclasses.replace(aggregate, value=aggregate.value + sent, nodes=nodes)
        else:
            aggregate = dataclasses.replace(aggregate, value=aggregate.value + sent)
        aggregate = checked(aggregate)
        self.doubts += doubts_of([aggregate])
        return aggregate

    def _report(self, aggregate: NoisyAggregate, own: np.ndarray) -> NoisyAggregate:
        """Return the reports with one replaced: as far beyond the corner as is possible, or the corner's category."""
        reports = aggregate.reports
        assert reports is not None
        values = reports.values.copy()
        if reports.categories:
            values[LIAR] = np.arange(reports.categories) == reports.categories - 1 if values.ndim == 2 else len(own) - 1
        else:
            t = math.log(2 * values.size / REFUSED)
            values[LIAR] = own + self._k * reports.noise_scale * (t if reports.delta == 0 else math.sqrt(2 * t))
        total = aggregate.value if reports.categories else values.sum(axis=0)
        return dataclasses.replace(aggregate, reports=dataclasses.replace(reports, values=values), value=total)


class Reach(NamedTuple):
    """The largest unnoticed exaggeration of a job, and how far it moves an estimate.

    `sds` is the move in posterior standard deviations, or in the estimate's own units if it has none.
    """

    job: str
    factor: float
    sds: float
    moved: str


def unnoticed(setting: Setting, k: float) -> dict[str, Any] | None:
    """Return the result of an exaggeration; None if it is noticed."""
    rounds = Exaggerated(setting, k)
    try:
        summary = setting.learned(rounds)
    except (NoAggregate, DataError, DcaError):
        return None
    return None if rounds.doubts else summary


def reach_of(name: str) -> Reach:
    """Search for the largest k that raises neither an error nor a warning."""
    setting = setting_of(name, CLIENTS if CASES[name].example.kind is NodeRelease else HONEST, REACH_BUDGET)
    honest, low, best = setting.learned(Exaggerated(setting, 0.0)), 0.0, None
    high = 1.0
    if setting.known.kind is LdpReport:
        low, best = 1.0, unnoticed(setting, 1.0)
    else:
        while high < LARGEST and (found := unnoticed(setting, high)) is not None:
            low, best, high = high, found, 2 * high
        for _ in range(3):
            middle = (low + high) / 2
            if (found := unnoticed(setting, middle)) is not None:
                low, best = middle, found
            else:
                high = middle
    best = best or honest
    sds, _, row, other = max(
        (abs(b["estimate"] - a["estimate"]) / (a["estimate_sd"] or 1.0), place, a, b)
        for place, (a, b) in enumerate(zip(rows_of(honest), rows_of(best), strict=True))  # type: ignore[arg-type]
    )
    return Reach(name, low, sds, f"{row['name']}: {row['estimate']:.3g} to {other['estimate']:.3g}")


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(CASES), help="names, separated by commas (default: all)")
    parser.add_argument("--lies", default=",".join(LIES), help="of the first table (default: all)")
    parser.add_argument("--table", choices=("verdicts", "reach", "both"), default="both")
    parser.add_argument("--json", help="write the tables to a file, or - for stdout")
    given = parser.parse_args()
    console = Console(stderr=given.json == "-", width=None if sys.stdout.isatty() else 160)
    warnings.simplefilter("error", RuntimeWarning)
    names, lies = given.jobs.split(","), given.lies.split(",")
    found = verdicts(names, lies, console.print) if given.table != "reach" else []
    reaches = [reach_of(name) for name in names] if given.table != "verdicts" else []
    if found:
        table = Table("job", *lies, title=f"one of {CLIENTS} clients lies")
        for name in names:
            table.add_row(name, *(_shown(one) for one in found if one.job == name))
        console.print(table)
        for one in found:
            if one.verdict in ("FAULT", "error"):
                console.print(f"{one.job}, {one.lie}: {one.verdict}: {one.detail}", markup=False)
    if reaches:
        table = Table(
            "job", "k", "moved by (sd)", "largest move", title=f"one of {HONEST} clients exaggerates, unnoticed"
        )
        for reach in reaches:
            table.add_row(reach.job, f"{reach.factor:.3g}", f"{reach.sds:.2g}", reach.moved)
        console.print(table)
    record = {"verdicts": [one._asdict() for one in found], "reach": [one._asdict() for one in reaches]}
    if given.json:
        write_json(record, given.json)
    return FAULT if any(one.verdict == "FAULT" for one in found) else 0


def _shown(one: Verdict) -> str:
    return one.verdict + (f" ({one.detail.split()[-2]} sd)" if one.verdict == "unnoticed" else "")


if __name__ == "__main__":
    sys.exit(main())
