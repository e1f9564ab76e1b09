"""What Prometheus receives: all figures of the status that say so, nothing else, and only for who asks rightly."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENCE_S
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from status_samples import PRIVATE, status_of

from dca_proto.cli import main
from dca_proto.errors import InputError, StorageError, UsageError
from dca_proto.results.figure import Metric, figures_of
from dca_proto.results.status import PHASE_S, Status
from dca_proto.runtime import doors, metrics
from dca_proto.runtime.config import read_config
from dca_proto.runtime.listen import Listen, MetricsSettings, parse_listen
from dca_proto.runtime.metrics import ABOUT, PREFIX, _OfStatus, metrics_of, serving

ROOT = Path(__file__).parents[3]
LABELS = {"end", "reason", "phase", "code", "node", "certificate"}
"""Names of labels. None is a client's: each value is a word of ours, or names what the federation file has."""
NEVER = {"results", "schedule", "last", "data_error", "warnings", "rounds", "since_s", "away_because", "broker"}
"""Figures that may name clients, depend on data, or quote anybody's text."""


def text_of(status: Status) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfStatus(lambda: status))
    return generate_latest(registry).decode()


def samples_of(status: Status) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text_of(status)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.mark.parametrize("name", metrics_of())
def test_each_metric_has_a_good_name_a_type_a_help_and_a_value(name: str) -> None:
    figure = metrics_of()[name]
    metric = figure.metric
    assert isinstance(metric, Metric)
    assert re.fullmatch(f"{PREFIX}[a-z][a-z_]*[a-z]", name)
    assert name.endswith("_total") == (metric.kind == "counter")
    assert ("_seconds" in name) == (figure.unit == "s" or "timestamp" in name)
    assert ("_bytes" in name) == (figure.unit == "bytes")
    assert {*metric.labels} <= LABELS
    assert figure.help.endswith(".")
    (family,) = [
        one for one in text_string_to_metric_families(text_of(status_of())) if one.name == name.removesuffix("_total")
    ]
    assert (family.type, family.documentation.endswith(figure.help)) == (metric.kind, True)
    assert family.samples, "a value"


def test_the_values_are_those_of_the_record() -> None:
    status = status_of()
    found = samples_of(status)
    assert found["dca_running_seconds"] == {(): 7200.0}
    assert found["dca_connected"] == {(): 1.0}
    assert found["dca_rounds_total"] == {("completed", "all"): 40, ("completed", "quiet"): 3, ("failed", "too few"): 2}
    assert found["dca_dropped_messages_total"] == {("malformed",): 5, ("phase",): 1}
    assert found["dca_open_rounds"] == {("collecting",): 1}
    assert found["dca_warnings"] == {(): 1}
    assert found["dca_certificate_end_timestamp_seconds"] == {("TLS certificate lab.pem",): 1_796_445_461.0}
    buckets = found["dca_phase_seconds_bucket"]
    assert (len(buckets), buckets[("0.1", "collect")], buckets[("0.25", "collect")]) == (len(PHASE_S) + 1, 0, 1)
    assert (buckets[("+Inf", "collect")], found["dca_phase_seconds_sum"][("collect",)]) == (3, 8000.5)
    assert found[f"{PREFIX}{ABOUT}_info"].keys() == {("wards", "ab" * 16, "trainer", "trainer", found_version())}


def found_version() -> str:
    import dca_proto

    return dca_proto.__version__


def test_a_figure_without_a_value_is_no_metric() -> None:
    names = samples_of(status_of(sessions=None, epsilon_left=None, data_read=None))
    assert {"dca_sessions", "dca_epsilon_left", "dca_data_read_timestamp_seconds"} & names.keys() == set()


def test_no_metric_names_a_client_or_depends_on_data() -> None:
    fields = {field for field, figure in figures_of(Status).items() if figure.metric is not None}
    assert fields & NEVER == set()
    text = text_of(status_of())
    assert [secret for secret in PRIVATE if secret in text] == []
    other = status_of(results=[], last=None, data_error="", rounds=[msgspec.structs.replace(
        status_of().rounds[0], waits_for=["somebody else"], statistic="other", round_id="00" * 16)])  # fmt: skip
    assert text_of(other) == text


def test_the_page_lists_every_metric() -> None:
    """If it fails, put this table into docs/howto/monitor.md."""
    rows = [
        f"| `{name}` | {figure.title} | {figure.metric.kind} | {', '.join(figure.metric.labels)} |"
        for name, figure in metrics_of().items()
        if figure.metric is not None
    ]
    table = "\n".join(["| metric | figure | type | labels |", "| --- | --- | --- | --- |", *rows])
    assert table in (ROOT / "docs" / "howto" / "monitor.md").read_text(encoding="utf-8"), f"\n{table}\n"


# --- the server -------------------------------------------------------------------------------------------------------


def ask(at: Listen, path: str = "/metrics", *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    asking = http.client.HTTPConnection(at.host, at.port, timeout=PATIENCE_S)
    asking.putrequest(method, path, skip_host=True)
    asking.putheader("Host", str(at) if host is None else host)
    asking.endheaders()
    with asking.getresponse() as answer:
        return answer.status, answer.read().decode()


def while_serving(work: Callable[[Listen], Any], make: Callable[[], Status] = status_of) -> Any:
    async def served() -> Any:
        async with serving(Listen("127.0.0.1", 0), make) as at:
            return await asyncio.to_thread(work, at)

    return asyncio.run(served())


def test_whoever_names_the_address_reads_the_metrics() -> None:
    def asked(at: Listen) -> list[tuple[int, str]]:
        hosts = [str(at), f"localhost:{at.port}", "[::1]", "rebound.example", f"rebound.example:{at.port}", "", "[:"]
        return [ask(at, host=host) for host in hosts]

    answers = while_serving(asked)
    assert [status for status, _ in answers] == [200] * 3 + [403] * 4
    assert "dca_connected 1.0" in answers[0][1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 200), ("HEAD", "/metrics", 404), ("POST", "/metrics", 404), ("GET", "/etc", 404),
     ("GET", "/metrics?name[]=x&name[]=dca_connected", 200)],
)  # fmt: skip
def test_there_is_nothing_else_to_ask_for(method: str, path: str, status: int) -> None:
    found, text = while_serving(lambda at: ask(at, path, method=method))
    assert found == status
    assert ("dca_running_seconds" in text) == (status == 200)


def test_a_failure_of_the_record_or_silent_visitors_stop_no_server(capfd: pytest.CaptureFixture[str]) -> None:
    made = iter([RuntimeError("a fault"), status_of()])

    def make() -> Status:
        one = next(made)
        if isinstance(one, Exception):
            raise one
        return one

    def visited(at: Listen) -> int:
        assert ask(at) == (503, "the actor did not answer\n")
        silent = [socket.create_connection((at.host, at.port)) for _ in range(12)]
        for one in silent:
            one.close()
        while True:  # until those who left have been noticed
            try:
                return ask(at)[0]
            except (http.client.HTTPException, OSError):
                continue

    assert while_serving(visited, make) == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_visitor_who_sends_byte_by_byte_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_VISIT_S", 0.2)

    def visited(at: Listen) -> bool:
        with socket.create_connection((at.host, at.port)) as slow:
            slow.settimeout(0.05)
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                try:
                    slow.sendall(b"a")
                    if slow.recv(100) == b"":
                        return True
                except TimeoutError:
                    continue
                except OSError:
                    return True
        return False

    assert while_serving(visited)


def test_a_taken_address_is_said() -> None:
    def again(at: Listen) -> None:
        async def second() -> None:
            async with serving(at, status_of):
                raise AssertionError

        with pytest.raises(StorageError, match=rf"cannot listen at {at}: Address already in use"):
            asyncio.run(second())

    while_serving(again)


# --- where it stands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["127.0.0.1:9464", "localhost:1", "[::1]:9464", "127.1.2.3:0"])
def test_loopback_needs_no_permission(text: str) -> None:
    assert str(MetricsSettings(listen=text).address) == text


@pytest.mark.parametrize("text", ["0.0.0.0:9464", "[::]:9464", "192.0.2.7:9464", "metrics.example:9464"])
def test_what_others_reach_is_asked_for(text: str) -> None:
    with pytest.raises(InputError, match="which other machines reach, expected a loopback address"):
        MetricsSettings(listen=text)
    allowed = MetricsSettings(listen=text, beyond_loopback=True).address
    assert str(allowed) == text
    assert allowed.is_named_by("192.0.2.7:9464"), "by any of its addresses"
    assert not allowed.is_named_by("rebound.example")


@pytest.mark.parametrize("text", ["", "9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "http://127.0.0.1:1",
                                  "a b:1", "u@127.0.0.1:1", "127.0.0.1:1/x", "[::1:1"])  # fmt: skip
def test_another_text_is_no_address(text: str) -> None:
    with pytest.raises(InputError, match=r"expected host:port, as in 127\.0\.0\.1:9464"):
        parse_listen("[metrics] listen", text)


def test_an_actors_file_has_a_section_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["federation", "init", "demo", "--computes", "2", "--clients", "3", "--broker", "mqtt://h"]) == 0
    path = tmp_path / "demo" / "compute-1.toml"
    assert read_config(path).metrics is None
    own = path.read_text()
    path.write_text(f'{own}\n[metrics]\nlisten = "127.0.0.1:9464"\n')
    assert read_config(path).metrics == MetricsSettings(listen="127.0.0.1:9464")
    path.write_text(f'{own}\n[metrics]\nlisten = "0.0.0.0:9464"\n')
    with pytest.raises(InputError, match=r"compute-1.toml: \[metrics\] listen: found 0.0.0.0:9464"):
        read_config(path)


def test_a_missing_package_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dca_proto.runtime.metrics", None)
    with pytest.raises(UsageError, match=r"\[metrics\] needs .* which is not installed: pip install -e '.\[metrics\]'"):
        doors._serving()
