"""Reads an actor's ledger from its store, and computes what was spent and what is left."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.privacy import accounting
from dca_proto.protocol import charges, sessions
from dca_proto.protocol import ledger as records
from dca_proto.protocol.client.round import DeclinedRound, DeclinedRounds
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.records import decoded
from dca_proto.protocol.restore import Mark, mark_of, words
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.results.figure import about
from dca_proto.runtime.config import Config, read_config
from dca_proto.runtime.files import open_input
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.store_check import ANEW, MAGIC, STORE_BYTES_MAX, read_store
from dca_proto.wording import YEAR_10000_MS, iso, moment, printable

_LARGEST = {"mu": accounting.MU_MAX, "epsilon": 1e6, "delta": 1.0}
_LARGEST_PURE = {"mu": accounting.mu_of_pure(accounting.PURE_MAX), "epsilon": accounting.PURE_MAX}  # for delta 0
_COMPUTE_NODE_TABLES = {compute_round.ROUNDS, compute_round.CONTRIBUTIONS, sessions.SESSIONS, charges.TABLE}
Dated = TypeVar("Dated", Charge, DeclinedRound)


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """One actor's ledger, with its limits.

    Attributes:
        store: the database. role: ``client`` or ``trainer``; empty if a store alone does not show it.
        ledger: the charges. declined: a client's newest declines, in their order.
        budget_limit: the limit on a period, per_round: the largest ε of a client's round; both from the actor's file.
        federation: from the actor's file.
        mark: of a client that was restored and has not heard all Compute nodes: its later charges are unknown.
    """

    store: Path
    role: str
    ledger: Ledger
    declined: tuple[DeclinedRound, ...]
    budget_limit: BudgetLimit | None = None
    per_round: float | None = None
    federation: Federation | None = None
    mark: Mark | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A requested round: time, statistic, trainer and privacy cost."""

    at: Annotated[str, about("When, in UTC.")]
    round_id: Annotated[str, about("In hexadecimal; empty for a run of `dca swarm`.")]
    statistic: Annotated[str, about("What was asked for; of a run of `dca swarm` its job.")]
    trainer: Annotated[str, about("Its id, in hexadecimal; empty for a run of `dca swarm`.")]
    trainer_name: Annotated[str | None, about("From the federation file; null without one.")]
    epsilon: Annotated[float | None, about("The cost to each participant; null if none is known.")]
    delta: Annotated[float | None, about("As epsilon.")]


class Charged(Asked, frozen=True, kw_only=True):
    """A round that was charged."""

    number: Annotated[int, about("Of the charge: 1, 2, ...")]
    mu: Annotated[float, about("The cost as a parameter of Gaussian differential privacy.")]
    slack: Annotated[float, about("Of a verified sum: its distance, in total variation, from a release of that mu.")]
    invited: Annotated[int | None, about("How many clients the trainer invited, if not all; only they are charged.")]
    relation: Annotated[
        str, about("`replace-one-row` for a node release, which protects a row; so does a total that includes it.")
    ]
    returned: Annotated[bool, about("Whether the charge was given back.")]
    counts: Annotated[bool, about("Whether it is in the totals.")]


class Declined(Asked, frozen=True, kw_only=True):
    """A round that a client declined, with the reason."""

    reason: Annotated[str, about("The term that the client does not accept.")]
    found: Annotated[str, about("What was asked.")]
    expected: Annotated[str, about("What the client accepts.")]


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dca ledger --json`. Unknown values are null."""

    role: Annotated[
        str | None,
        about("client or trainer; `runs of dca swarm` for a file of `dca swarm --ledger`, whose runs are its charges."),
    ]
    store: Annotated[str, about("Its file.")]
    federation: Annotated[str | None, about("Its name.")]
    delta: Annotated[float, about("The δ of the totals.")]
    period_days: Annotated[float | None, about("Of the limit.")]
    mu_spent: Annotated[float, about("Includes converted rounds of delta 0, unless a part is kept for them.")]
    pure_spent: Annotated[float, about("Σε of the rounds of delta 0.")]
    slack_spent: Annotated[float, about("Of verified sums; epsilon_spent includes it.")]
    epsilon_spent: Annotated[
        float,
        about(
            "In the period, or ever if no file states a period. A trainer's totals are the highest of any client, "
            "taken separately for Gaussian rounds and for rounds of delta 0."
        ),
    ]
    epsilon_allowed: Annotated[float | None, about("In the period.")]
    epsilon_for_reports: Annotated[float | None, about("The part of it that is kept for rounds of delta 0.")]
    epsilon_left: Annotated[
        float | None,
        about("Of the largest single Gaussian round that still fits; null for a restored client that asks the nodes."),
    ]
    pure_left: Annotated[float | None, about("Of the largest one of delta 0.")]
    epsilon_per_round_max: Annotated[float | None, about("From a client's policy.")]
    charges: Annotated[list[Charged], about("The rounds that were charged.")]
    declined: Annotated[list[Declined], about("The rounds that a client declined.")]
    warnings: Annotated[list[str], about("Reasons to look at the store.")]


# --- reading a store --------------------------------------------------------------------------------------------------


def read_ledger_view(file: Path) -> LedgerView:
    """Read the ledger of the actor with this TOML file or store. A store that does not exist yet is empty.

    Raises `UsageError` if the file is neither, is a Compute node's, or is damaged.
    """
    with open_input(file, bytes_max=STORE_BYTES_MAX) as opened:
        is_store = opened.read(len(MAGIC)) == MAGIC
    return _view(file, {}) if is_store else ledger_view_of(read_config(file, ("client", "trainer")))


def ledger_view_of(config: Config) -> LedgerView:
    """Read the ledger of a client or trainer with this configuration. Raises as `read_ledger_view`."""
    is_client = config.role == "client"
    known = {
        "role": config.role,
        "budget_limit": config.policy.budget_limit if is_client else config.account,
        "per_round": config.policy.epsilon_per_round_max if is_client else None,
        "federation": config.federation,
    }
    return _view(config.files.store, known, read_identity(config.files.identity, config.role).store_key)


def _view(store: Path, fields: Mapping[str, Any], key: bytes | None = None) -> LedgerView:
    rows = read_store(store, key)
    if len({owner for owner, *_ in rows}) > 1:
        raise InputError(f"store {store} is shared by many actors; name the store of a single actor")
    kinds = {kind for _, kind, _, _ in rows}
    if kinds & _COMPUTE_NODE_TABLES:
        raise InputError(f"store {store} is a Compute node's, which spends nothing; name a client's or a trainer's")
    try:
        spent = Ledger(_sound(decoded(kind, value, Charge)) for _, kind, _, value in rows if kind == records.TABLE)
        declined = tuple(map(_dated, DeclinedRounds([row[1:] for row in rows]).rounds))
        mark = mark_of(row[1:] for row in rows)
    except UsageError as error:
        raise InputError(f"store {store}: {error}") from None
    role = "trainer" if trainer_round.ROUNDS in kinds else "client" if kinds - {records.TABLE} else ""
    return LedgerView(**{"store": store, "role": role, "ledger": spent, "declined": declined, "mark": mark, **fields})


def _sound(charge: Charge) -> Charge:
    """Return the charge if its figures are possible. Raises `UsageError` otherwise."""
    for name, largest in (_LARGEST if charge.delta else _LARGEST_PURE).items():
        value = getattr(charge, name)
        if not 0 < value <= largest:
            raise _damaged(f"charge {charge.number} has {name} = {value:g}, expected above 0 and at most {largest:g}")
    if not 0 <= charge.slack < 1:
        raise _damaged(f"charge {charge.number} has slack = {charge.slack:g}, expected at least 0 and below 1")
    if charge.number < 1:
        raise _damaged(f"a charge has number {charge.number}, expected 1 or more")
    return _dated(charge)


def _dated(entry: Dated) -> Dated:
    """Return the entry if its time is possible. Raises `UsageError` otherwise."""
    if not 0 <= entry.at_ms < YEAR_10000_MS:
        raise _damaged(f"an entry is of {moment(entry.at_ms)}")
    return entry


def _damaged(what: str) -> UsageError:
    return InputError(f"{what}: the store is damaged; {ANEW}")


# --- totals -----------------------------------------------------------------------------------------------------------


def spending(view: LedgerView, delta: float, at_ms: int) -> Spending:
    """Compute what was spent and what is left at a time, with totals at δ = `delta`."""
    limit = view.budget_limit
    since_ms = limit.since_ms(at_ms) if limit else 0
    spent = view.ledger.spent(since_ms)
    kept = limit.epsilon_for_reports if limit else 0.0
    names = {trainer.id: trainer.name for trainer in view.federation.trainers} if view.federation else {}
    return Spending(
        role=view.role or None,
        store=str(view.store),
        federation=view.federation.name if view.federation else None,
        delta=delta,
        period_days=limit.period_days if limit else None,
        mu_spent=math.sqrt(spent.gaussian) if kept else spent.mu,
        pure_spent=spent.pure_epsilon,
        slack_spent=spent.slack,
        epsilon_spent=spent.epsilon(delta, apart=bool(kept)),
        epsilon_allowed=limit.epsilon if limit else None,
        epsilon_for_reports=kept or None,
        epsilon_left=limit.left(view.ledger, at_ms) if limit and not view.mark else None,
        pure_left=limit.left(view.ledger, at_ms, pure=True) if limit and not view.mark else None,
        epsilon_per_round_max=view.per_round,
        charges=[
            Charged(
                **msgspec.structs.asdict(_asked(charge, names)),
                number=charge.number,
                mu=charge.mu,
                slack=charge.slack,
                invited=len(charge.clients) or None,
                relation=printable(charge.relation),
                returned=charge.returned,
                counts=not charge.returned and charge.at_ms >= since_ms,
            )
            for charge in view.ledger.charges
        ],
        declined=[
            Declined(
                **msgspec.structs.asdict(_asked(entry, names)),
                reason=printable(entry.reason),
                found=printable(entry.found),
                expected=printable(entry.expected),
            )
            for entry in view.declined
        ],
        warnings=list(_warnings(view)),
    )


def _asked(entry: Charge | DeclinedRound, names: Mapping[bytes, str]) -> Asked:
    return Asked(
        at=iso(entry.at_ms),
        round_id=entry.round_id.hex(),
        statistic=printable(entry.statistic),
        trainer=entry.trainer.hex(),
        trainer_name=names.get(entry.trainer),
        epsilon=entry.epsilon if math.isfinite(entry.epsilon) else None,
        delta=entry.delta if math.isfinite(entry.delta) else None,
    )


def _warnings(view: LedgerView) -> Iterator[str]:
    """Yield a warning if there is no store, if its records were not authenticated, and if it looks like an old copy."""
    if not view.store.exists():
        yield (
            "there is no store: if this actor has run before, its store is lost, and more was spent than is shown; "
            "restore a backup before it starts"
        )
    if view.budget_limit is None and view.ledger.charges:
        yield "the records were not authenticated, since the store lacks the key: name the actor's TOML file instead"
    if view.mark is not None:
        yield f"{words(view.mark)}: what was spent since is unknown until all Compute nodes have answered this client"
    numbers = {charge.number for charge in view.ledger.charges}
    missing = max(numbers, default=0) - len(numbers)
    if missing:
        first = next(number for number in itertools.count(1) if number not in numbers)
        yield (
            f"{missing} of the charges 1 to {max(numbers)} are missing, the first of them {first}: more was spent than "
            "is shown"
        )
    reuses = [entry for entry in view.declined if entry.reason == "ledger"]
    if reuses:
        last = reuses[-1]
        yield (
            f"a round was declined on {moment(last.at_ms)} because a Compute node reported that this ledger is an old "
            f"copy ({printable(last.found)}; expected {printable(last.expected)}). If the store was restored from a "
            "copy, or runs twice, then more was spent than is shown, and what is left is unknown. Otherwise the node "
            "lies or errs"
        )
