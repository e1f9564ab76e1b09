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

# one per client or message at a server: only with `verbose`
_QUIET = (facts.SessionKept, facts.ContributionKept, facts.ReleaseKept, facts.Arrived)
_WARNINGS = (Disconnected,)
_ALARMS = (facts.LedgerReused,)  # somebody has to look at the device
_UNTOLD = (facts.RoundCompleted,)  # the result is the trainer's to print, not a log's

CHARS_MAX = 1000
"""Of a text that may come from a peer: two of its longest fields."""

log = structlog.get_logger("dca.actor")


def configure_logs(*, json: bool = False, level: int = logging.INFO) -> None:
    """Send structlog's events to standard error.

    Args:
        json: one JSON object per line instead of text.
        level: the least that is logged; at `logging.DEBUG` also what happens for every single client.
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
            if count & (count - 1) == 0:  # 1, 2, 4, 8, ...
                log.warning("Dropped", count=count, **fields)
        elif isinstance(fact, _WARNINGS):
            log.warning(type(fact).__name__, **fields)
        elif isinstance(fact, _ALARMS):
            log.error(type(fact).__name__, **fields)
        elif isinstance(fact, _QUIET):
            log.debug(type(fact).__name__, **fields)
        elif isinstance(fact, _UNTOLD):
            log.info(type(fact).__name__, round_id=fields["round_id"])
        else:
            log.info(type(fact).__name__, **fields)


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
