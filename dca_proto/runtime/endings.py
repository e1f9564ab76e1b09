"""Warns before a certificate ends: 30, 7 and 1 days before, at the start, in the log, and in the status."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from dca_proto.protocol.params import DAY_MS
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.wording import duration, moment

log = structlog.get_logger("dca.certificates")
WARN_DAYS = (30, 7, 1)
OF_CLIENT, BY_REGISTRAR, OF_REGISTRAR = "certificate", "certificate by the registrar", "registrar's time"
OF_BROKER = "broker's certificate"
_REMEDIES = {
    OF_CLIENT: "have the client enrolled again",
    BY_REGISTRAR: "dca join INVITATION --renew, then start it again",
    OF_REGISTRAR: "dca federation add-registrar",
    OF_BROKER: "have the broker's operator renew it, or nobody connects any more",
}
_AGAIN_S = 3600.0


def certificate_ends(broker: BrokerSettings, own: Mapping[str, int]) -> dict[str, int]:
    """Return when each certificate ends that an actor depends on, in Unix milliseconds, by what it is.

    These are its `own` for the federation, its own for TLS, and those of the file with the broker's CA.
    """
    ends = dict(own)
    return ends | tls_ends({"TLS certificate": broker.certificate, "broker's CA": broker.ca})


def tls_ends(files: Mapping[str, Path | None]) -> dict[str, int]:
    """Return when the certificates of PEM files end, in Unix milliseconds, by what they are and their names."""
    known = ((f"{what} {path.name}", tls_end_ms(path)) for what, path in files.items() if path is not None)
    return {what: end_ms for what, end_ms in known if end_ms is not None}


def tls_end_ms(path: Path) -> int | None:
    """Return when the first certificate of a PEM file ends, in Unix milliseconds; None if it cannot be told."""
    decode: Any = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)  # no public function reads one
    if decode is None or not path.is_file():
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):  # the first is also ssl.SSLError
        return int(ssl.cert_time_to_seconds(decode(str(path))["notAfter"])) * 1000
    return None


def stage_of(end_ms: int, at_ms: int) -> int:
    """Return how many of the warnings before an end are due: 0 to 3; 4 after it."""
    if at_ms >= end_ms:
        return len(WARN_DAYS) + 1
    return sum(end_ms - at_ms <= days * DAY_MS for days in WARN_DAYS)


def warnings_of(ends: Mapping[str, int], at_ms: int) -> list[str]:
    """Return a sentence for each certificate that ends within 30 days, or has ended."""
    return [_sentence(what, end_ms, at_ms) for what, end_ms in ends.items() if stage_of(end_ms, at_ms)]


def _sentence(what: str, end_ms: int, at_ms: int) -> str:
    remedy = _REMEDIES.get(what, "renew it")
    if at_ms >= end_ms:
        return f"the {what} ended on {moment(end_ms)}: {remedy}"
    return f"the {what} ends in {duration(end_ms - at_ms)}, on {moment(end_ms)}: {remedy}"


class EndWarner:
    """Logs each warning once: at the start if it is due, and when its day comes. `who` names the actor."""

    def __init__(self, who: str, ends: Mapping[str, int], clock: Callable[[], int] = now_ms) -> None:
        self._who = who
        self._ends = ends
        self._clock = clock
        self._said: dict[str, int] = {}

    def check(self) -> None:
        """Log what is due and was not logged yet."""
        at_ms = self._clock()
        for what, end_ms in self._ends.items():
            stage = stage_of(end_ms, at_ms)
            if stage > self._said.get(what, 0):
                log.warning(_sentence(what, end_ms, at_ms), actor=self._who)
            self._said[what] = stage

    async def run(self) -> None:
        """Check now and every hour, until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(_AGAIN_S)
