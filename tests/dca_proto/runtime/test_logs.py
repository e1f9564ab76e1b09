"""An actor's facts in a log, on a terminal, and in a program that prints them."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from changes import following, hand
from rich.console import Console

from dca_proto.cli.output import Terminal
from dca_proto.cli.reporter import Reporter
from dca_proto.protocol import facts
from dca_proto.runtime.logs import FactLog, configure_logs
from dca_proto.runtime.transport import Connected, Disconnected
from dca_proto.testing import TestFederation


def test_an_embedding_program_sees_only_warnings_and_not_on_stdout() -> None:
    code = (
        "from dca_proto.runtime import device\nimport structlog\n"
        "log = structlog.get_logger('dca.runner')\nlog.info('started')\nlog.warning('lost')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "lost" in done.stderr
    assert "started" not in done.stderr


def test_a_program_that_configures_its_logs_keeps_them() -> None:
    code = (
        "import structlog\nstructlog.configure(processors=[structlog.processors.JSONRenderer()])\n"
        "from dca_proto.runtime import device\nstructlog.get_logger('dca.runner').info('started')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"event": "started"}


def test_a_fact_prints_short_and_with_ids_in_hexadecimal() -> None:
    kept = facts.ContributionKept(bytes.fromhex("0123456789abcdef"), b"\xff" * 16, 3)
    assert repr(kept) == "ContributionKept(round_id=01234567, client=ffffffff, count=3)"
    waiting = facts.WaitingForKeys(bytes(16), (bytes(16),) * 10)
    assert repr(waiting) == "WaitingForKeys(round_id=00000000, computes=<10>)"


def test_a_flood_fills_no_log_and_a_peers_text_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(json=True)
    log = FactLog()
    for _ in range(1000):
        log(facts.Dropped("signature", bytes(16), "\x1b[2J"))
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["count"] for line in lines] == [2**power for power in range(10)]
    assert json.loads(lines[0])["detail"] == "\\x1b[2J"


def test_hardening_9_a_lost_connection_is_a_warning_and_its_return_reports_the_duration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs(json=True)
    terminal = io.StringIO()
    changes = (Disconnected("mqtt://h", "cannot reach it"), Connected("mqtt://h", 12.345), Connected("mqtt://h"))
    name_of = TestFederation(3, 2).federation.person_name_of
    for report in (FactLog(), Reporter(Console(file=terminal, width=200), name_of)):
        for fact in changes:
            report(fact)
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"], line.get("away_s")) for line in logged] == [
        ("Disconnected", "warning", None),
        ("Connected", "info", 12.345),
        ("Connected", "info", 0.0),
    ]
    assert [line[10:] for line in terminal.getvalue().splitlines()] == [
        "cannot reach it; trying again",
        "connected to mqtt://h after 12.3 seconds without a connection",
        "connected to mqtt://h",
    ]


def test_facts_are_printed_as_sentences() -> None:
    actors = TestFederation(3, 2, name="narrated")
    network = actors.network()
    network.deliver()
    network.command(actors.trainer_identity.id, actors.request())
    network.advance(network.now_ms + 1000)
    console = Terminal()
    console.file, console.width, console.record = io.StringIO(), 200, True
    with Reporter(console, actors.federation.person_name_of) as reporter:
        for _, fact in network.facts:
            reporter(fact)
        reporter(facts.Declined(bytes(16), bytes(16), "epsilon", "[red]\x1b[2J", "<= 1"))
        reporter(facts.LedgerReused(bytes(16), actors.computes[0], 3, 7))
        reporter(facts.NodeAborted(bytes(16), actors.computes[0], "too-few", "2 of 3"))
        reporter(facts.Contributed(bytes(16), "histogram", 1.232, 1.0))
        printed = console.export_text()
    for sentence in ("announced sum (1 number)", "contributed to sum", "released the partial sum over 3", "mu = "):
        assert sentence in printed
    assert "found [red]\\x1b[2J; accepts <= 1" in printed
    assert f"compute-0 ({actors.computes[0].hex()[:8]}) aborted the round: 2 of 3 (too-few)" in printed
    assert "contributed to histogram, charged epsilon = 1 at delta 0" in printed
    node = f"compute-0 ({actors.computes[0].hex()[:8]})"
    assert f"ERROR: round 00000000: {node} has already seen charge 3, and charges up to 7" in printed


def test_a_second_answer_to_a_question_that_was_repeated_is_not_printed() -> None:
    terminal = io.StringIO()
    report = Reporter(Console(file=terminal, width=200), lambda one: one.hex())
    for code in ("nonce", "version"):
        report(facts.Dropped(code, bytes(16), f"{code}: found something"))
    assert "nonce" not in terminal.getvalue()
    assert "version: found something" in terminal.getvalue()


def test_a_ledger_that_is_behind_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(json=True)
    FactLog()(facts.LedgerReused(bytes(16), bytes(16), 3, 7))
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["event"], line["charge"], line["highest"]) == ("error", "LedgerReused", 3, 7)


def test_a_changed_file_names_whom_it_revokes(capsys: pytest.CaptureFixture[str]) -> None:
    """A Compute node that is gone keeps its name for people while the actor runs."""
    actors = TestFederation(3, 3, name="revoking")
    network = actors.network()
    network.deliver()
    node, gone, client = actors.computes[0], actors.computes[2], actors.clients[1]
    newer = following(actors, computes=actors.federation.computes[:2], revoked=tuple(sorted((gone, client))))
    hand(network, node, newer)
    (fact,) = network.reported(facts.FederationChanged, node)
    name_of = network.actors[node].name_of
    assert name_of(gone) == f"compute-2 ({gone.hex()[:8]})"
    terminal = io.StringIO()
    Reporter(Console(file=terminal, width=200), name_of)(fact)
    revoked = ", ".join(name_of(one) for one in newer.revoked)
    assert terminal.getvalue().rstrip().endswith(f"which applies from now on; it revokes {revoked}")
    configure_logs(json=True)
    FactLog(name_of)(fact)
    FactLog(name_of)(facts.WaitingForKeys(bytes(16), actors.computes[:2]))
    changed, waiting = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert changed["revoked_names"] == [name_of(one) for one in newer.revoked]
    assert waiting["compute_names"] == [name_of(one) for one in actors.computes[:2]]
