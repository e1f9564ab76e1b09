"""`dca ledger`: what a client or a trainer has spent, on what, what is left, and what was declined and why."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dca_proto.cli.inspect import HEAD_BYTES, YEAR_10000_MS, is_store, read_store
from dca_proto.cli.options import DELTA, Json
from dca_proto.cli.output import result_console, table, write_json
from dca_proto.errors import InputError, UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol import charges, sessions
from dca_proto.protocol import ledger as records
from dca_proto.protocol.client.round import DeclinedRound, Declines
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.runtime.config import Config, read_config
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.logs import printable
from dca_proto.statistics import REPLACE_ONE_ROW

SPENDERS = ("client", "trainer")
_LARGEST = {"mu": accounting.MU_MAX, "epsilon": 1e6, "delta": 1.0}
_LARGEST_PURE = {"mu": accounting.mu_of_pure(accounting.PURE_MAX), "epsilon": accounting.PURE_MAX}  # delta is 0
_OF_A_COMPUTE_NODE = {compute_round.ROUNDS, compute_round.CONTRIBUTIONS, sessions.SESSIONS, charges.TABLE}
_DECLINED_SHOWN = 10
_WHAT = ("when (UTC)", "statistic", "trainer")
Dated = TypeVar("Dated", Charge, DeclinedRound)
EXAMPLES = """Examples:

  dca ledger client.toml                       what was asked, given and declined, and what the policy leaves
  dca ledger trainer.toml                      the federation's account, as this trainer keeps it
  dca ledger client.db --delta 1e-6            a store by itself: what is spent, stated at that delta
  dca ledger client.toml --json - | jq .epsilon_left

The actor must have stopped: a running one keeps its store to itself. Nothing is changed.
"""


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """One actor's ledger, and what is known beside it.

    Attributes:
        store: its database. role: ``client`` or ``trainer``; empty where a store alone does not show it.
        ledger: the charges. declined: a client's newest declines, in their order.
        budget_limit: what may be spent in a period, per_round: the largest ε of a client's round; both from its file.
        federation: from its file.
    """

    store: Path
    role: str
    ledger: Ledger
    declined: tuple[DeclinedRound, ...]
    budget_limit: BudgetLimit | None = None
    per_round: float | None = None
    federation: Federation | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A round that was asked for: when, what, by whom, and at what price."""

    at: str
    round_id: str
    statistic: str
    trainer: str
    trainer_name: str | None
    epsilon: float | None
    delta: float | None


class Charged(Asked, frozen=True, kw_only=True):
    """A round that was charged.

    Attributes:
        invited: how many clients a trainer invited, where not everybody; the round cost these alone.
        relation: of a node release ``replace-one-row``: it protects a row, and a total that it is in protects no more.
        returned: whether the charge came back. counts: whether it is in the totals.
    """

    number: int
    mu: float
    invited: int | None
    relation: str
    returned: bool
    counts: bool


class Declined(Asked, frozen=True, kw_only=True):
    """A round that a client declined, and why."""

    reason: str
    found: str
    expected: str


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What `dca ledger --json` writes. What is not known is null.

    Attributes:
        role: client or trainer. delta: at which totals are stated. period_days: of the limit.
        epsilon_spent: in the period; of everything where no file states a period. A trainer's totals are of the client
            that all of it cost most.
        mu_spent: rounds of delta 0 converted, unless a part is kept for them. pure_spent: Σε of rounds of delta 0.
        epsilon_allowed: in the period. epsilon_for_reports: the part of it that is kept for rounds of delta 0.
        epsilon_left: of the largest single Gaussian round that still fits. pure_left: of one of delta 0.
        epsilon_per_round_max: of a client's policy.
    """

    role: str | None
    store: str
    federation: str | None
    delta: float
    period_days: float | None
    mu_spent: float
    pure_spent: float
    epsilon_spent: float
    epsilon_allowed: float | None
    epsilon_for_reports: float | None
    epsilon_left: float | None
    pure_left: float | None
    epsilon_per_round_max: float | None
    charges: list[Charged]
    declined: list[Declined]
    warnings: list[str]


OUTPUT = Spending


def ledger(
    file: Annotated[Path, typer.Argument(help="A client's or a trainer's TOML file, or its store.", metavar="FILE")],
    delta: Annotated[
        float | None, typer.Option(help=f"State totals at this delta; by default the policy's, or {at_least(DELTA)}.")
    ] = None,
    json_to: Json = None,
) -> None:
    """Show what a client or a trainer has spent, on what, and what is left.

    Charges of Gaussian rounds add up as squares of mu, exactly. So several rounds cost less than the sum of their
    epsilons, and what is left is stated as the largest single round that still fits. Reports that are private by
    epsilon alone (delta 0) add up in epsilon. If that comes to less, each is counted as a Gaussian round whose mu
    covers it. Beside Gaussian rounds each is always counted so, since such rounds may be chosen in view of results;
    that comes to more. If the file keeps a part of epsilon for reports (epsilon_for_reports), their epsilons add up to
    that part, and the other rounds share the rest.
    """
    console = result_console(json_to)
    view = read_ledger_view(file)
    limit = view.budget_limit
    if delta is not None and limit is not None:
        raise UsageError(f"--delta goes with a store; the limits in {file} are at delta {at_least(limit.delta)}")
    stated = delta if delta is not None else DELTA if limit is None else limit.delta
    accounting.epsilon_of(0.0, stated)  # a delta out of range is the caller's mistake
    found = spending(view, stated, time.time_ns() // 1_000_000)
    show(console, found)
    write_json(found, json_to)


def account_line(config: Config) -> str:
    """What a trainer's account has left now."""
    limit = config.account
    found = spending(ledger_view_of(config), limit.delta, time.time_ns() // 1_000_000)
    left = f"epsilon {at_most(found.epsilon_left or 0)} is left in one more round, of {at_least(limit.epsilon)} in all"
    return f"{left}, at delta {at_least(limit.delta)} in {limit.period_days:g} days"


# --- what a store holds -----------------------------------------------------------------------------------------------


def read_ledger_view(file: Path) -> LedgerView:
    """The ledger that a TOML file or a store belongs to. A store that was not made yet holds nothing.

    Raises:
        UsageError: the file is neither, is a Compute node's, or is in use or damaged.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}; check the path and its rights") from None
    return _view(file, {}) if is_store(head) else ledger_view_of(read_config(file, SPENDERS))


def ledger_view_of(config: Config) -> LedgerView:
    """The ledger of a client or a trainer that was configured so. Raises `UsageError` as `read_ledger_view`."""
    is_client = config.role == "client"
    known = {
        "role": config.role,
        "budget_limit": config.policy.budget_limit if is_client else config.account,
        "per_round": config.policy.epsilon_per_round_max if is_client else None,
        "federation": config.federation,
    }
    return _view(config.files.store, known, read_identity(config.files.identity, config.role).store_key)


def _view(store: Path, known: Mapping[str, Any], key: bytes | None = None) -> LedgerView:
    rows = read_store(store, key) if store.exists() else []
    if len({owner for owner, *_ in rows}) > 1:
        raise InputError(f"store {store} is shared by many actors: name one that has a store of its own")
    kinds = {kind for _, kind, _, _ in rows}
    if kinds & _OF_A_COMPUTE_NODE:
        raise InputError(f"store {store} is a Compute node's, which spends nothing; name a client's or a trainer's")
    try:
        spent = Ledger(_sound(decoded(kind, value, Charge)) for _, kind, _, value in rows if kind == records.TABLE)
        declined = tuple(map(_dated, Declines([row[1:] for row in rows]).rounds))
    except UsageError as error:
        raise InputError(f"store {store}: {error}") from None
    role = "trainer" if trainer_round.ROUNDS in kinds else "client" if kinds - {records.TABLE} else ""
    return LedgerView(**{"store": store, "role": role, "ledger": spent, "declined": declined, **known})


def _sound(charge: Charge) -> Charge:
    """A charge whose figures can be. Raises `UsageError`."""
    for name, largest in (_LARGEST if charge.delta else _LARGEST_PURE).items():
        value = getattr(charge, name)
        if not 0 < value <= largest:
            raise _damaged(f"charge {charge.number} has {name} = {value:g}, expected above 0 and at most {largest:g}")
    if charge.number < 1:
        raise _damaged(f"a charge has number {charge.number}, expected 1 or more")
    return _dated(charge)


def _dated(one: Dated) -> Dated:
    """An entry with a time that a calendar knows. Raises `UsageError`."""
    if not 0 <= one.at_ms < YEAR_10000_MS:
        raise _damaged(f"an entry has time {one.at_ms} ms, expected 0 to below {YEAR_10000_MS}, the year 10000")
    return one


def _damaged(what: str) -> UsageError:
    return InputError(
        f"{what}: it is damaged; start with a fresh store (a client enrolled anew), not with an old copy, which would "
        "forget what was spent"
    )


# --- what it comes to -------------------------------------------------------------------------------------------------


def spending(view: LedgerView, delta: float, now_ms: int) -> Spending:
    """What was spent and what is left.

    Args:
        delta: the δ at which totals are stated.
    """
    limit = view.budget_limit
    since_ms = limit.since_ms(now_ms) if limit else 0
    spent = view.ledger.spent(since_ms)
    kept = limit.epsilon_for_reports if limit else 0.0
    names = {one.id: one.name for one in view.federation.trainers} if view.federation else {}
    return Spending(
        role=view.role or None,
        store=str(view.store),
        federation=view.federation.name if view.federation else None,
        delta=delta,
        period_days=limit.period_days if limit else None,
        mu_spent=math.sqrt(spent.gaussian) if kept else spent.mu,
        pure_spent=spent.pure_epsilon,
        epsilon_spent=spent.epsilon(delta, apart=bool(kept)),
        epsilon_allowed=limit.epsilon if limit else None,
        epsilon_for_reports=kept or None,
        epsilon_left=limit.left(view.ledger, now_ms) if limit else None,
        pure_left=limit.left(view.ledger, now_ms, pure=True) if limit else None,
        epsilon_per_round_max=view.per_round,
        charges=[
            Charged(
                **_asked(one, names),
                number=one.number,
                mu=one.mu,
                invited=len(one.clients) or None,
                relation=printable(one.relation),
                returned=one.returned,
                counts=not one.returned and one.at_ms >= since_ms,
            )
            for one in view.ledger.charges
        ],
        declined=[
            Declined(
                **_asked(one, names),
                reason=printable(one.reason),
                found=printable(one.found),
                expected=printable(one.expected),
            )
            for one in view.declined
        ],
        warnings=list(_warnings(view)),
    )


def _asked(one: Charge | DeclinedRound, names: Mapping[bytes, str]) -> dict[str, Any]:
    return {
        "at": _time(one.at_ms),
        "round_id": one.round_id.hex(),
        "statistic": printable(one.statistic),
        "trainer": one.trainer.hex(),
        "trainer_name": names.get(one.trainer),
        "epsilon": one.epsilon if math.isfinite(one.epsilon) else None,
        "delta": one.delta if math.isfinite(one.delta) else None,
    }


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _warnings(view: LedgerView) -> Iterator[str]:
    """What makes the ledger look like an old copy of itself, and that nobody has looked whether it is damaged."""
    if view.budget_limit is None and view.ledger.charges:
        yield "the records were not authenticated, for the key is the actor's: name its TOML file in place of the store"
    held = {charge.number for charge in view.ledger.charges}
    missing = max(held, default=0) - len(held)
    if missing:
        first = next(number for number in itertools.count(1) if number not in held)
        yield (
            f"{missing} of the charges 1 to {max(held)} are not there, the first of them {first}: more was spent than "
            "is shown"
        )
    behind = [one for one in view.declined if one.reason == "ledger"]
    if behind:
        last = behind[-1]
        yield (
            f"a round was declined on {_time(last.at_ms)} for a Compute node's word that this ledger is an old copy "
            f"({printable(last.found)}; expected {printable(last.expected)}). That is so where the store was restored "
            "from a copy, or runs twice: then more was spent than is shown, and nobody knows what is left. "
            "Otherwise the node lies or errs"
        )


# --- what a person sees -----------------------------------------------------------------------------------------------


def show(console: Console, found: Spending) -> None:
    """Charges, totals, declines and warnings."""
    of = f" of federation {found.federation}" if found.federation else ""
    _say(console, f"{found.role or 'ledger'}{of}, {found.store}\n")
    if found.charges:
        console.print(charges_table(found))
    for label, line in totals(found):
        _say(console, f"{label:<10}{line}")
    if found.declined:
        count, shown = len(found.declined), found.declined[-_DECLINED_SHOWN:]
        title = "declined" if count <= _DECLINED_SHOWN else f"declined, the last {_DECLINED_SHOWN} of {count}"
        rows = [(*_what(one), one.reason, one.found, one.expected) for one in shown]
        console.print()
        console.print(table((*_WHAT, "reason", "found", "accepted"), rows, title=title, align="<ww<ww"))
        reasons = Counter(one.reason for one in found.declined)
        _say(console, "in all     " + ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common()))
    for warning in found.warnings:
        console.print(f"[bold red]warning[/]    {escape(warning)}", highlight=False, soft_wrap=True)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def charges_table(found: Spending) -> Table:
    """A line for each charge."""
    rows = []
    for one in found.charges:
        counts = f"counts for {one.invited}" if one.invited else "counts"
        counts += ", of one row" if one.relation == REPLACE_ONE_ROW else ""
        state = counts if one.counts else "returned" if one.returned else "past its period"
        price = (at_least(one.epsilon or 0), at_least(one.delta or 0), at_least(one.mu) if one.delta else "")
        rows.append((str(one.number), *_what(one), *price, state))
    return table(("no.", *_WHAT, "epsilon", "delta", "mu", "state"), rows, title="charged", align="><ww>>>w")


def _what(one: Asked) -> tuple[str, str, str]:
    when = one.at.replace("T", " ").removesuffix("Z")
    return when, one.statistic, one.trainer_name or one.trainer[:8]


def totals(found: Spending) -> list[tuple[str, str]]:
    """What was spent and what is left, a label and a line each."""
    counted = sum(one.counts for one in found.charges)
    kept = found.epsilon_for_reports
    pure = kept or any(one.counts and one.delta == 0 for one in found.charges)
    of = f"{counted} charge{'' if counted == 1 else 's'}, mu = {at_least(found.mu_spent)}"
    if pure:
        of += ", and epsilon" if kept else ", those at delta 0 converted, whose epsilons are"
        of += f" {at_least(found.pure_spent)} {'at delta 0' if kept else 'in all'}"
    of += ", of the worst-off client" if any(one.invited for one in found.charges) else ""
    spent, at = f"epsilon {at_least(found.epsilon_spent)}", f"at delta {at_least(found.delta)}"
    if found.epsilon_left is None or found.epsilon_allowed is None:
        return [("spent", f"{spent} {at} in all ({of}); name its TOML file to see what is left")]
    left = f"epsilon {at_most(found.epsilon_left)} {at} in one more round"
    whole, reports = f", of {at_least(found.epsilon_allowed)} in all", f"{at_most(found.pure_left or 0)} at delta 0"
    if kept:
        left += f", and {reports}{whole}, {at_least(kept)} of it for reports of delta 0"
    else:
        left += whole + (f", or {reports}" if pure else "")
    if found.epsilon_per_round_max is not None:
        left += f"; at most {at_least(found.epsilon_per_round_max)} in each round"
    return [("spent", f"{spent} {at} in the last {found.period_days:g} days ({of})"), ("left", left)]
