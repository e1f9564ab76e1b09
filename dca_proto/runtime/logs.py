"""Structured logs of an actor: one event per line on standard error, for people or as JSON. No secret is in any fact.

What a hostile peer can make an actor drop is logged the first, second, fourth, eighth... time of each code, so that no
flood fills a disk.

A program that configures structlog decides itself what is logged, and where; in any other, warnings go to standard
error and the rest nowhere.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from typing import Any

import msgspec
import structlog

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol import facts
from dca_proto.runtime.transport import Disconnected

_LEVELS = {
    Disconnected: "warning",
    facts.Dropped: "warning",
    facts.LedgerReused: "error",  # somebody has to look at the device
    # one per client or message at a server: only with `verbose`
    **dict.fromkeys((facts.SessionKept, facts.ContributionKept, facts.ReleaseKept, facts.Arrived), "debug"),
}
"""Of facts that are not logged at `info`."""

CHARS_MAX = 1000
"""Of a text that may come from a peer: two of its longest fields."""

log = structlog.get_logger("dca.actor")


def configure_logs(*, json: bool = False, level: int = logging.INFO) -> None:
    """Send structlog's events to standard error: of `level` and above, as text or as one JSON object per line.

    At `logging.DEBUG` there is also what happens for every single client.
    """
    renderer: Any = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


if not structlog.is_configured():  # structlog's own default would print everything between a program's results
    configure_logs(level=logging.WARNING)


class FactLog:
    """Logs an actor's facts; call it with each."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()

    def __call__(self, fact: object) -> None:
        assert isinstance(fact, msgspec.Struct), "actors report facts"
        fields = {name: _plain(value) for name, value in msgspec.structs.asdict(fact).items()}
        if isinstance(fact, facts.Dropped):
            self._dropped[fact.code] += 1
            count = self._dropped[fact.code]
            if count & (count - 1):  # logged are 1, 2, 4, 8, ...
                return
            fields = {"count": count, **fields}
        elif isinstance(fact, facts.RoundCompleted):  # the result is the trainer's to print, not a log's
            fields = {"round_id": fields["round_id"]}
        getattr(log, _LEVELS.get(type(fact), "info"))(type(fact).__name__, **fields)


def _plain(value: object) -> object:
    """Ids in hexadecimal; texts of peers cut and without control characters; long lists as their length."""
    if isinstance(value, bytes):
        return value[:ID_BYTES].hex()
    if isinstance(value, str):
        return printable(value)
    return len(value) if isinstance(value, tuple) else value


def printable(text: str) -> str:
    """A text that may come from a peer, cut, with whatever could steer a terminal or begin a line escaped."""
    cut = text if len(text) <= CHARS_MAX else f"{text[:CHARS_MAX]}... ({len(text)} characters)"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
