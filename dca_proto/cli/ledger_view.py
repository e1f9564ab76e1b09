"""What stands in a client's or a trainer's ledger, read from its file or its store, as plain values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dca_proto.cli.message_dump import YEAR_10000_MS, is_store, read_store
from dca_proto.errors import InputError, UsageError
from dca_proto.privacy import accounting
from dca_proto.protocol import charges, ledger, sessions
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

SPENDERS = ("client", "trainer")
_LARGEST = {"mu": accounting.MU_MAX, "epsilon": 1e6, "delta": 1.0}
_LARGEST_PURE = {"mu": accounting.mu_of_pure(accounting.PURE_MAX), "epsilon": accounting.PURE_MAX}  # delta is 0
_HEAD_BYTES = 16
_OF_A_COMPUTE_NODE = {compute_round.ROUNDS, compute_round.CONTRIBUTIONS, sessions.SESSIONS, charges.TABLE}
Plain = dict[str, Any]
Dated = TypeVar("Dated", Charge, DeclinedRound)


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """One actor's ledger, and what is known beside it.

    Attributes:
        store: its database. role: ``client`` or ``trainer``; empty where a store alone does not tell.
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


def read_ledger_view(file: Path) -> LedgerView:
    """The ledger that a TOML file or a store belongs to. A store that was not made yet holds nothing.

    Raises:
        UsageError: the file is neither, is a Compute node's, or is in use or damaged.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}; check the path and its rights") from None
    if is_store(head):
        return _ledger_view(file, None)
    return ledger_view_of(read_config(file, SPENDERS))


def ledger_view_of(config: Config) -> LedgerView:
    """The ledger of a client or a trainer that was configured so. Raises `UsageError` as `read_ledger_view`."""
    return _ledger_view(config.files.store, config)


def _ledger_view(store: Path, config: Config | None) -> LedgerView:
    key = None if config is None else read_identity(config.files.identity, config.role).store_key
    rows = read_store(store, key) if store.exists() else []
    if len({owner for owner, *_ in rows}) > 1:
        raise InputError(f"store {store} is shared by many actors: name one that has a store of its own")
    records = [(kind, key, value) for _, kind, key, value in rows]
    kinds = {kind for kind, _, _ in records}
    if kinds & _OF_A_COMPUTE_NODE:
        raise InputError(f"store {store} is a Compute node's, which spends nothing; name a client's or a trainer's")
    try:
        spent = Ledger(_sound(decoded(kind, value, Charge)) for kind, _, value in records if kind == ledger.TABLE)
        told = tuple(map(_dated, Declines(records).rounds))
    except UsageError as error:
        raise InputError(f"store {store}: {error}") from None
    if config is None:
        return LedgerView(store=store, role=_role(kinds), ledger=spent, declined=told)
    is_client = config.role == "client"
    return LedgerView(
        store=store,
        role=config.role,
        ledger=spent,
        declined=told,
        budget_limit=config.policy.budget_limit if is_client else config.account,
        per_round=config.policy.epsilon_per_round_max if is_client else None,
        federation=config.federation,
    )


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


def _role(kinds: set[str]) -> str:
    if trainer_round.ROUNDS in kinds:
        return "trainer"
    return "client" if kinds - {ledger.TABLE} else ""


# --- plain values -----------------------------------------------------------------------------------------------------


def as_plain(view: LedgerView, delta: float, now_ms: int) -> Plain:
    """Everything for tables and JSON; the fields are documented at the command.

    Args:
        delta: the δ at which totals are stated.
    """
    budget_limit = view.budget_limit
    since_ms = 0 if budget_limit is None else budget_limit.since_ms(now_ms)
    spent = view.ledger.spent(since_ms)
    kept = budget_limit.epsilon_for_reports if budget_limit else 0.0
    names = {} if view.federation is None else {one.id: one.name for one in view.federation.trainers}
    return {
        "role": view.role or None,
        "store": str(view.store),
        "federation": None if view.federation is None else view.federation.name,
        "delta": delta,
        "period_days": None if budget_limit is None else budget_limit.period_days,
        "mu_spent": math.sqrt(spent.gaussian) if kept else spent.mu,
        "pure_spent": spent.pure_epsilon,
        "epsilon_spent": spent.epsilon(delta, apart=bool(kept)),
        "epsilon_allowed": None if budget_limit is None else budget_limit.epsilon,
        "epsilon_for_reports": kept or None,
        "epsilon_left": None if budget_limit is None else budget_limit.left(view.ledger, now_ms),
        "pure_left": None if budget_limit is None else budget_limit.left(view.ledger, now_ms, pure=True),
        "epsilon_per_round_max": view.per_round,
        "charges": [_charge(one, names, since_ms) for one in view.ledger.charges],
        "declined": [_declined(one, names) for one in view.declined],
        "warnings": list(_warnings(view)),
    }


def _charge(charge: Charge, names: dict[bytes, str], since_ms: int) -> Plain:
    return {
        "number": charge.number,
        **_asked(charge, names),
        "mu": charge.mu,
        "invited": len(charge.clients) or None,
        "relation": printable(charge.relation),
        "returned": charge.returned,
        "counts": not charge.returned and charge.at_ms >= since_ms,
    }


def _declined(one: DeclinedRound, names: dict[bytes, str]) -> Plain:
    why = {"reason": one.reason, "found": one.found, "expected": one.expected}
    return {**_asked(one, names), **{name: printable(text) for name, text in why.items()}}


def _asked(one: Charge | DeclinedRound, names: dict[bytes, str]) -> Plain:
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


def _warnings(view: LedgerView) -> Iterable[str]:
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
            "from a copy, or runs twice: then more was spent than is shown, and nobody can tell what is left. "
            "Otherwise the node lies or errs"
        )
