"""Logs an actor's facts: one event per line on standard error, for people or as JSON. No fact contains a secret.

Dropped messages are logged the first, second, fourth, eighth... time of each code, so that a hostile peer cannot fill
the disk.

A program that configures structlog decides what is logged and where. Without that, only warnings are logged, to
standard error.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol import facts
from dca_proto.runtime.transport import Disconnected
from dca_proto.wording import printable

_LEVELS = {
    Disconnected: "warning",
    facts.Dropped: "warning",
    facts.LedgerRestored: "warning",  # the owner sees what a restore has cost
    facts.DataFailed: "warning",  # the owner has to look at the data source
    facts.LedgerReused: "error",  # the owner has to look at the device
    # one per client or message, so many of them: logged only with `verbose`
    **dict.fromkeys((facts.SessionKept, facts.ContributionKept, facts.ReleaseKept, facts.Arrived), "debug"),
}
"""The log level by type of fact; all others are logged at `info`."""


_NAMED_MAX = 100
_MEMBERS = ("sender", "client", "compute")
"""The fields of facts that are members' ids."""
_LISTS = {"clients": "names", "computes": "compute_names", "revoked": "revoked_names"}
"""The fields that are several members' ids, and what the log calls their names."""

log = structlog.get_logger("dca.actor")


class _Stderr:
    """Standard error as it is now; a line that cannot be written is lost, because an actor goes on without its log."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the latter if it is closed
            if sys.stderr is not None:
                sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if sys.stderr is not None:
                sys.stderr.flush()


_STDERR: Any = _Stderr()


def configure_logs(*, json: bool = False, level: int = logging.INFO) -> None:
    """Send structlog's events of `level` and above to standard error, as text or as one JSON object per line.

    `logging.DEBUG` adds the events that occur for every single client.
    """
    renderer: Any = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(_STDERR),
        cache_logger_on_first_use=False,
    )


if not structlog.is_configured():  # by default structlog would print all events among a program's results
    configure_logs(level=logging.WARNING)


class FactLog:
    """Logs an actor's facts; call it with each.

    `name_of` returns a member's name with its short id, which is logged beside the id.
    """

    def __init__(self, name_of: Callable[[bytes], str] | None = None) -> None:
        self._name_of = name_of
        self._dropped: Counter[str] = Counter()

    def __call__(self, fact: object) -> None:
        assert isinstance(fact, msgspec.Struct), "actors report facts"
        fields = {name: _plain(value) for name, value in msgspec.structs.asdict(fact).items()}
        if isinstance(fact, facts.Dropped):
            self._dropped[fact.code] += 1
            count = self._dropped[fact.code]
            if count & (count - 1):  # not a power of two
                return
            fields = {"count": count, **fields}
        elif isinstance(fact, facts.RoundCompleted):  # the trainer prints the result; the log leaves it out
            fields = {"round_id": fields["round_id"]}
        if self._name_of is not None:
            fields |= {
                f"{field}_name": printable(self._name_of(getattr(fact, field)))
                for field in _MEMBERS
                if isinstance(getattr(fact, field, None), bytes)
            }
            for field, named in _LISTS.items():
                if members := getattr(fact, field, ()):
                    fields[named] = [printable(self._name_of(one)) for one in members[:_NAMED_MAX]]
        getattr(log, _LEVELS.get(type(fact), "info"))(type(fact).__name__, **fields)


def _plain(value: object) -> object:
    """Return ids in hexadecimal, texts made printable, and tuples as their length."""
    if isinstance(value, bytes):
        return value[:ID_BYTES].hex()
    if isinstance(value, str):
        return printable(value)
    return len(value) if isinstance(value, tuple) else value
