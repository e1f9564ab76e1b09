"""`dca ledger`: what a client or a trainer has spent, on what, what is left, and what was declined and why."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dca_proto.cli.ledger_view import LedgerView, Plain, as_plain, read_ledger_view
from dca_proto.cli.options import DELTA
from dca_proto.cli.output import STDOUT, require_json_target, write_json
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.statistics import REPLACE_ONE_ROW

_DECLINED_SHOWN = 10
EXAMPLES = """Examples:

  dca ledger client.toml                       what was asked, given and declined, and what the policy leaves
  dca ledger trainer.toml                      the federation's account, as this trainer keeps it
  dca ledger client.db --delta 1e-6            a store by itself: what is spent, stated at that delta
  dca ledger client.toml --json - | jq .epsilon_left

The actor must have stopped: a running one keeps its store to itself. Nothing is changed.
"""


def ledger(
    file: Annotated[Path, typer.Argument(help="A client's or a trainer's TOML file, or its store.", metavar="FILE")],
    delta: Annotated[
        float | None, typer.Option(help=f"State totals at this delta; by default the policy's, or {at_least(DELTA)}.")
    ] = None,
    json_to: Annotated[str | None, typer.Option("--json", help="Write everything to a file, or - for stdout.")] = None,
) -> None:
    """Show what a client or a trainer has spent, on what, and what is left.

    Charges of Gaussian rounds add up in mu: the squares do, exactly. So several rounds cost less than the sum of their
    epsilons, and what is left is told as the largest single round that still fits. Rounds of reports that are private
    by epsilon alone (delta 0) add up in epsilon, or, where that comes to less, in the mu that each of them is within;
    beside Gaussian rounds always in mu, which comes to more: such rounds may be chosen in view of results. Where the
    file keeps a part of epsilon for reports (epsilon_for_reports), their epsilons add up to that part, and the others
    share the rest.

    Fields of the JSON object: role (client, trainer or null), store, federation; delta (at which totals are stated),
    period_days, epsilon_spent (in the period; of everything where no file says a period), mu_spent (rounds of delta 0
    converted, unless a part is kept for them), pure_spent (the sum of epsilon of rounds of delta 0), epsilon_allowed,
    epsilon_for_reports (the part of it that is kept for these; null where none is), epsilon_left (of the largest
    single Gaussian round that still fits) and pure_left (of one of delta 0), epsilon_per_round_max; charges (number,
    at, round_id, statistic, trainer, trainer_name, epsilon, delta, mu, invited, relation, returned, counts); declined
    (at, round_id, statistic, trainer, trainer_name, epsilon, delta, reason, found, expected); warnings. What is not
    known is null. A round to which a trainer invited some clients (so many; null: everybody) cost these alone: a
    trainer's totals are of the client that it all cost most. A node release's charge (relation replace-one-row)
    protects one row, and a total with such a charge in it does no more.
    """
    require_json_target(json_to)
    view = read_ledger_view(file)
    if delta is not None and view.budget_limit is not None:
        raise UsageError(
            f"--delta goes with a store; the limits in {file} are at delta {at_least(view.budget_limit.delta)}"
        )
    stated = delta if delta is not None else DELTA if view.budget_limit is None else view.budget_limit.delta
    accounting.epsilon_of(0.0, stated)  # a delta out of range is the caller's mistake
    plain = as_plain(view, stated, time.time_ns() // 1_000_000)
    _show(Console(stderr=json_to == STDOUT), view, plain)
    write_json(plain, json_to)


def _show(console: Console, view: LedgerView, plain: Plain) -> None:
    of = f" of federation {plain['federation']}" if plain["federation"] else ""
    _say(console, f"{view.role or 'ledger'}{of}, {plain['store']}\n")
    if plain["charges"]:
        console.print(_charges(plain))
    for label, line in _totals(view, plain):
        _say(console, f"{label:<10}{line}")
    if plain["declined"]:
        console.print()
        console.print(_declines(plain))
        reasons = Counter(one["reason"] for one in plain["declined"])
        _say(console, "in all     " + ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common()))
    for warning in plain["warnings"]:
        console.print(f"[bold red]warning[/]    {escape(warning)}", highlight=False, soft_wrap=True)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _charges(plain: Plain) -> Table:
    table = _table("charged", ("no.", "when (UTC)", "statistic", "trainer", "epsilon", "delta", "mu", "state"))
    for one in plain["charges"]:
        counts = f"counts for {one['invited']}" if one["invited"] else "counts"
        counts += ", of one row" if one["relation"] == REPLACE_ONE_ROW else ""
        state = counts if one["counts"] else "returned" if one["returned"] else "past its period"
        figures = (
            at_least(one["epsilon"]),
            at_least(one["delta"]),
            at_least(one["mu"]) if one["delta"] else "",
        )
        table.add_row(str(one["number"]), *_what(one), *figures, state)
    return table


def _declines(plain: Plain) -> Table:
    count = len(plain["declined"])
    title = "declined" if count <= _DECLINED_SHOWN else f"declined, the last {_DECLINED_SHOWN} of {count}"
    table = _table(title, ("when (UTC)", "statistic", "trainer", "reason", "found", "accepted"))
    for one in plain["declined"][-_DECLINED_SHOWN:]:
        table.add_row(*_what(one), *(Text(one[name]) for name in ("reason", "found", "expected")))
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    numbers = ("no.", "epsilon", "delta", "mu")
    for name in columns:
        right = name in numbers
        whole = right or name in ("when (UTC)", "reason")
        table.add_column(name, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    return table


def _what(one: Plain) -> tuple[Text, ...]:
    when = one["at"].replace("T", " ").removesuffix("Z")
    return Text(when), Text(one["statistic"]), Text(one["trainer_name"] or one["trainer"][:8])


def _totals(view: LedgerView, plain: Plain) -> list[tuple[str, str]]:
    """What was spent and what is left, a label and a line each."""
    counted = sum(one["counts"] for one in plain["charges"])
    worst = ", of the worst-off client" if any(one["invited"] for one in plain["charges"]) else ""
    kept = plain["epsilon_for_reports"]
    pure = kept or any(one["counts"] and one["delta"] == 0 for one in plain["charges"])
    of = f"{counted} charge{'' if counted == 1 else 's'}, mu = {at_least(plain['mu_spent'])}"
    if pure:
        of += ", and epsilon" if kept else ", those at delta 0 converted, whose epsilons are"
        of += f" {at_least(plain['pure_spent'])} {'at delta 0' if kept else 'in all'}"
    of += worst
    spent, at = f"epsilon {at_least(plain['epsilon_spent'])}", f"at delta {at_least(plain['delta'])}"
    if view.budget_limit is None:
        return [("spent", f"{spent} {at} in all ({of}); its TOML file tells what is left")]
    period = f"in the last {view.budget_limit.period_days:g} days"
    lines = [("spent", f"{spent} {at} {period} ({of})")]
    left = f"epsilon {at_most(plain['epsilon_left'])} {at} in one more round"
    of = f", of {at_least(view.budget_limit.epsilon)} in all"
    reports = f", {'and' if kept else 'or'} {at_most(plain['pure_left'])} at delta 0" if pure else ""
    left += f"{reports}{of}, {at_least(kept)} of it for reports of delta 0" if kept else of + reports
    limit = f"; at most {at_least(view.per_round)} in each round" if view.per_round is not None else ""
    return [*lines, ("left", left + limit)]
