"""`dca ledger` shows a client's or trainer's charges, its remaining budget, and a client's declined rounds.

Of a file of `dca swarm --ledger` it shows the runs, and what is left for further ones.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dca_proto.cli.options import Json
from dca_proto.cli.output import result_console, say, table
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.accounting import DELTA
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.config import Config
from dca_proto.runtime.files import write_json
from dca_proto.runtime.run_ledger import RunLedger, is_run_ledger
from dca_proto.runtime.spending import Asked, Spending, ledger_view_of, read_ledger_view, spending
from dca_proto.statistics import REPLACE_ONE_ROW
from dca_proto.wording import counted

_DECLINED_SHOWN = 10
_ROUND_COLUMNS = ("when (UTC)", "statistic", "trainer")
OUTPUT = Spending
EXAMPLES = """Examples:

  dca ledger client.toml                       rounds charged and declined, and what the policy leaves
  dca ledger trainer.toml                      the federation's account, as this trainer keeps it
  dca ledger client.db --delta 1e-6            a store without its file: the total spent, at that delta
  dca ledger runs.json                         the runs of dca swarm --ledger runs.json, and what is left
  dca ledger client.toml --json - | jq .epsilon_left

The actor may run meanwhile. The command changes nothing.
"""


def ledger(
    file: Annotated[
        Path,
        typer.Argument(
            help="A client's or a trainer's TOML file, its store, or a file of dca swarm --ledger.", metavar="FILE"
        ),
    ],
    delta: Annotated[
        float | None, typer.Option(help=f"State totals at this delta; by default the policy's, or {at_least(DELTA)}.")
    ] = None,
    json_to: Json = None,
) -> None:
    """Show what a client or a trainer has spent, on which rounds, and what is left.

    Charges of Gaussian rounds add up exactly as squares of mu. So several rounds cost less than the sum of their
    epsilons, and what is left is the largest single round that still fits. Reports with delta 0 add up in epsilon, or
    count as Gaussian rounds with a mu that covers them if that is less. Together with Gaussian rounds they always count
    as Gaussian, although that is more, since rounds may be chosen in view of results. If the file keeps a part of
    epsilon for reports (epsilon_for_reports), their epsilons add up to that part, and other rounds share the rest.
    """
    console = result_console(json_to)
    if is_run_ledger(file):
        if delta is not None:
            raise UsageError(f"--delta is for a store only; {file} has the delta of its total")
        of_runs = RunLedger(file, None, DELTA).spending()
        show_runs(console, of_runs)
        write_json(of_runs, json_to)
        return
    view = read_ledger_view(file)
    limit = view.budget_limit
    if delta is not None and limit is not None:
        raise UsageError(f"--delta is for a store only; the limits in {file} are at delta {at_least(limit.delta)}")
    stated = delta if delta is not None else DELTA if limit is None else limit.delta
    accounting.epsilon_of(0.0, stated)  # raises for a delta out of range
    result = spending(view, stated, now_ms())
    show(console, result)
    write_json(result, json_to)


def account_line(config: Config) -> str:
    """Return a sentence on what is left in a trainer's account."""
    limit = config.account
    left = spending(ledger_view_of(config), limit.delta, now_ms()).epsilon_left
    one_more = f"epsilon {at_most(left or 0)} is left for one more round, of {at_least(limit.epsilon)} in total"
    return f"{one_more}, at delta {at_least(limit.delta)} in {limit.period_days:g} days"


def show(console: Console, spent: Spending) -> None:
    """Print charges, totals, declines and warnings."""
    of = f" of federation {spent.federation}" if spent.federation else ""
    _say(console, f"{spent.role or 'ledger'}{of}, {spent.store}\n")
    if spent.charges:
        console.print(charges_table(spent))
    for label, line in totals(spent):
        _say(console, f"{label:<10}{line}")
    if spent.declined:
        count, shown = len(spent.declined), spent.declined[-_DECLINED_SHOWN:]
        title = "declined" if count <= _DECLINED_SHOWN else f"declined, the last {_DECLINED_SHOWN} of {count}"
        rows = [(*_round_cells(entry), entry.reason, entry.found, entry.expected) for entry in shown]
        console.print()
        console.print(table((*_ROUND_COLUMNS, "reason", "found", "accepted"), rows, title=title, align="<ww<ww"))
        reasons = Counter(entry.reason for entry in spent.declined)
        _say(console, "in total   " + ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common()))
    for warning in spent.warnings:
        say(console, "warning", warning)


def show_runs(console: Console, spent: Spending) -> None:
    """Print the runs of a swarm's ledger, what they have spent together, and what is left."""
    _say(console, f"{spent.role}, {spent.store}\n")
    rows = [(str(run.number), _round_cells(run)[0], run.statistic, at_least(run.epsilon or 0)) for run in spent.charges]
    if rows:
        console.print(table(("no.", "when (UTC)", "job", "epsilon"), rows, title="charged", align="><w>"))
    at = f"at delta {at_least(spent.delta)}"
    _say(console, f"spent     epsilon {at_least(spent.epsilon_spent)} {at} in {counted(len(rows), 'run')} together")
    left = f"epsilon {at_most(spent.epsilon_left or 0)} {at} for one more run"
    left += f", of {at_least(spent.epsilon_allowed or 0)} in total"
    _say(console, f"left      {left}, or {at_most(spent.pure_left or 0)} for one with reports of delta 0")


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True)


def charges_table(spent: Spending) -> Table:
    """Return a table with a row for each charge."""
    rows = []
    for charge in spent.charges:
        counts = f"counts for {charge.invited}" if charge.invited else "counts"
        counts += ", of one row" if charge.relation == REPLACE_ONE_ROW else ""
        state = counts if charge.counts else "returned" if charge.returned else "past its period"
        mu = at_least(charge.mu) if charge.delta else ""
        mu += f", slack {at_least(charge.slack)}" if charge.slack else ""
        cost = (at_least(charge.epsilon or 0), at_least(charge.delta or 0), mu)
        rows.append((str(charge.number), *_round_cells(charge), *cost, state))
    return table(("no.", *_ROUND_COLUMNS, "epsilon", "delta", "mu", "state"), rows, title="charged", align="><ww>>>w")


def _round_cells(entry: Asked) -> tuple[str, str, str]:
    when = entry.at.replace("T", " ").removesuffix("Z")
    return when, entry.statistic, entry.trainer_name or entry.trainer[:8]


def totals(result: Spending) -> list[tuple[str, str]]:
    """Return labelled lines on what was spent and what is left."""
    kept = result.epsilon_for_reports
    pure = kept or any(charge.counts and charge.delta == 0 for charge in result.charges)
    details = f"{counted(sum(charge.counts for charge in result.charges), 'charge')}, mu = {at_least(result.mu_spent)}"
    details += f", slack = {at_least(result.slack_spent)}" if result.slack_spent else ""
    if pure:
        details += ", and epsilon" if kept else ", those at delta 0 converted; their epsilons add up to"
        details += f" {at_least(result.pure_spent)}{' at delta 0' if kept else ''}"
    details += ", of the client charged most" if any(charge.invited for charge in result.charges) else ""
    spent, at = f"epsilon {at_least(result.epsilon_spent)}", f"at delta {at_least(result.delta)}"
    if result.epsilon_allowed is None:
        return [("spent", f"{spent} {at} in total ({details}); name the actor's TOML file to see what is left")]
    if result.epsilon_left is None:  # of a restored client
        return [("spent", f"at least {spent} {at} in the last {result.period_days:g} days ({details})")]
    left = f"epsilon {at_most(result.epsilon_left)} {at} for one more round"
    whole = f", of {at_least(result.epsilon_allowed)} in total"
    reports = f"{at_most(result.pure_left or 0)} at delta 0"
    if kept:
        left += f", and {reports}{whole}, {at_least(kept)} of it for reports of delta 0"
    else:
        left += whole + (f", or {reports}" if pure else "")
    if result.epsilon_per_round_max is not None:
        left += f"; at most {at_least(result.epsilon_per_round_max)} in each round"
    return [("spent", f"{spent} {at} in the last {result.period_days:g} days ({details})"), ("left", left)]
