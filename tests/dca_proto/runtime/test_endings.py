"""Warnings before certificates end, and what a supervisor is told."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from patience import PATIENCE_S
from structlog.testing import capture_logs

from dca_proto.runtime import endings
from dca_proto.runtime.endings import (
    BY_REGISTRAR,
    DAY_MS,
    OF_REGISTRAR,
    EndWarner,
    certificate_ends,
    stage_of,
    tls_end_ms,
    warnings_of,
)
from dca_proto.runtime.process import complete
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.status import Watch
from dca_proto.runtime.supervisor import Supervisor
from dca_proto.runtime.transport import Connected, Disconnected

END_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("before_ms", "stage"),
    [(31 * DAY_MS, 0), (30 * DAY_MS + 1, 0), (30 * DAY_MS, 1), (7 * DAY_MS + 1, 1), (7 * DAY_MS, 2), (DAY_MS + 1, 2),
     (DAY_MS, 3), (1, 3), (0, 4), (-DAY_MS, 4)],
)  # fmt: skip
def test_a_warning_is_due_30_7_and_1_days_before_the_end(before_ms: int, stage: int) -> None:
    assert stage_of(END_MS, END_MS - before_ms) == stage
    assert len(warnings_of({"certificate": END_MS}, END_MS - before_ms)) == (stage > 0)


def test_each_warning_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    days = iter([40, 30, 29.9, 8, 7, 6, 1, 0.5, 0, -1])
    warner = EndWarner("ward-7", {"certificate": END_MS}, lambda: int(END_MS - next(days) * DAY_MS))
    with capture_logs() as logged:
        for _ in range(10):
            warner.check()
    ends = "on 2027-01-15 08:00:00 UTC: have the client enrolled again"
    assert [one["event"] for one in logged] == [
        f"the certificate ends in 30 days, {ends}",
        f"the certificate ends in 7 days, {ends}",
        f"the certificate ends in 24 hours, {ends}",
        f"the certificate ended {ends}",
    ]
    assert {one["actor"] for one in logged} == {"ward-7"}


@pytest.mark.parametrize(
    ("what", "remedy"),
    [(BY_REGISTRAR, "dca join INVITATION --renew"), (OF_REGISTRAR, "dca federation add-registrar"), ("CA", "renew it")],
)
def test_a_warning_names_what_to_do(what: str, remedy: str) -> None:
    (sentence,) = warnings_of({what: END_MS}, END_MS - DAY_MS)
    assert sentence.startswith(f"the {what} ends in 24 hours, ")
    assert remedy in sentence


def test_the_certificates_of_tls_are_among_them(tmp_path: Path) -> None:
    pem, key = tmp_path / "broker.pem", tmp_path / "broker.key"
    call = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "20", "-subj", "/CN=localhost"]
    subprocess.run([*call, "-keyout", key, "-out", pem], check=True, capture_output=True)
    end_ms = tls_end_ms(pem)
    assert end_ms is not None
    now = datetime.now(UTC).timestamp() * 1000
    assert 19.9 * DAY_MS < end_ms - now <= 20 * DAY_MS
    ends = certificate_ends(BrokerSettings(url="mqtts://localhost", ca=pem), {"certificate": 5})
    assert ends == {"certificate": 5, "broker's CA broker.pem": end_ms}
    (tmp_path / "other.pem").write_text("no certificate")
    assert tls_end_ms(tmp_path / "other.pem") is None
    assert tls_end_ms(tmp_path / "missing.pem") is None


def test_the_supervisor_hears_that_an_actor_is_ready_and_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real socket, as systemd makes one; without its variables nothing happens."""
    Supervisor().connection("")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    Supervisor().connection("")  # nobody listens
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE_S)
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

        async def watched() -> list[bytes]:
            supervisor = Supervisor()
            watch = Watch(lambda fact: None, bytes.hex)
            watch.on_connection = supervisor.connection
            watch(Connected("mqtt://127.0.0.1"))
            watch(Disconnected("mqtt://127.0.0.1", "refused\nREADY=1"))
            task = asyncio.create_task(supervisor.run())
            heard = [await asyncio.to_thread(listening.recv, 100) for _ in range(4)]
            task.cancel()
            return heard

        away = b"STATUS=no connection: refused\\nREADY=1"
        assert asyncio.run(watched()) == [b"READY=1\nSTATUS=connected", away, b"WATCHDOG=1", b"WATCHDOG=1"]
        monkeypatch.setenv("WATCHDOG_PID", "1")
        asyncio.run(Supervisor().run())  # another process's watchdog: it ends at once


def test_a_crash_leaves_no_file_of_an_actors_memory() -> None:
    """Nor one of a Compute node's processes, which inherit the limit. A watchdog ends actors by SIGABRT."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
        assert complete(asyncio.sleep(0, "done")) == "done"
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def test_the_stages_are_those_that_operators_were_told() -> None:
    assert endings.WARN_DAYS == (30, 7, 1)
