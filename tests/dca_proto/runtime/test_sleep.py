"""A client that sleeps by plan alarms nobody, and one that overslept, was killed or ended by an error does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from status_samples import status_of

from dca_proto.cli import main
from dca_proto.cli.status import details
from dca_proto.errors import InputError
from dca_proto.results.figure import figures_of
from dca_proto.results.status import STATUS, Status
from dca_proto.runtime import sleep as sleep_module
from dca_proto.runtime.config import read_config
from dca_proto.runtime.device import load
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.sleep import asleep_path
from dca_proto.runtime.transport import Connected

HOUR_S = 3600


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A client's file, which states that it sleeps for an hour at most."""
    monkeypatch.chdir(tmp_path)
    call = ["federation", "init", "demo", "--computes", "2", "--clients", "1", "--broker", "mqtt://127.0.0.1:1"]
    assert main(call) == 0
    Path("demo/client-1.csv").write_text("x\n1\n")
    path = tmp_path / "demo/client-1.toml"
    path.write_text(path.read_text().replace("store =", f"sleep_max_s = {HOUR_S}\nstore ="))
    return path


def one_wake(path: Path, *facts: object, ends_by: BaseException | None = None) -> None:
    """Run the client until it is cancelled, or until it ends by an error."""

    async def wake() -> None:
        device = load(path)
        async with device.open() as parts:
            runner = Runner(parts.actor, parts.transport, parts.store, federation=device.config.federation.id)
            async with device._attended(runner, parts.watch):
                assert not asleep_path(device.config.files.store).exists(), "it is awake"
                for fact in facts:
                    parts.watch(fact)
                raise ends_by or asyncio.CancelledError

    with contextlib.suppress(asyncio.CancelledError, InputError):
        asyncio.run(wake())


def checked(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, dict[str, Any]]:
    """The exit code of `dca status --check`, what it prints, and its record."""
    capsys.readouterr()
    code = main(["status", "--check", str(path)])
    text = capsys.readouterr().out
    main(["status", "--json", "-", str(path)])
    return int(code or 0), text, json.loads(capsys.readouterr().out)


def later(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    now_ms = sleep_module.now_ms
    monkeypatch.setattr(sleep_module, "now_ms", lambda: now_ms() + int(1000 * by_s))


def test_a_client_that_sleeps_by_plan_is_well_until_it_oversleeps(
    client: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a supervisor was alarmed between any two connections, and so could not be told of real trouble."""
    one_wake(client, Connected("mqtt://127.0.0.1:1"))
    store = read_config(client).files.store
    assert stat.S_IMODE(asleep_path(store).stat().st_mode) == 0o600
    later(monkeypatch, HOUR_S / 2)
    code, text, found = checked(client, capsys)
    assert (code, found["stopped"], found["actors"][0]["connected"]) == (0, [], False)
    assert text.startswith("client    client-1     asleep for 30 minutes, epoch ")
    assert "epsilon 4 left of 4" in text
    assert abs(found["actors"][0]["asleep_s"] - HOUR_S / 2) < 60
    later(monkeypatch, HOUR_S / 2 + 60)
    code, text, _ = checked(client, capsys)
    assert code == 1
    assert "it overslept: it is asleep for 61 minutes, expected" in text
    assert "client-1     OVERSLEPT, away for 61 minutes" in text
    assert "no connection     it overslept" in text
    assert "by plan" not in text, "it does not sleep by plan any more"
    assert "contributions     0 in its last wake" in text, "its ledger has those of all wakes"
    one_wake(client, Connected("mqtt://127.0.0.1:1"))


def test_what_a_sleeping_client_counted_is_of_its_last_wake() -> None:
    """A total of all wakes would be taken for it. The kind of the metric tells, not the words of its help."""
    counters = {
        figure.title
        for figure in figures_of(Status).values()
        if figure.table == STATUS and figure.metric is not None and figure.metric.kind == "counter"
    }
    assert {"connections lost", "bytes sent", "unproven"} <= counters
    asleep = details(status_of("client", connected=False, asleep_s=60.0))
    assert {label for label, text in asleep if text.endswith(" in its last wake")} == counters | {"dropped"}
    assert not [text for _, text in details(status_of("client")) if "wake" in text], "it is awake"


def test_a_client_that_found_no_broker_is_no_sleeper_in_peace(client: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_wake(client)
    code, text, _ = checked(client, capsys)
    assert code == 1
    assert "no connection for" in text


@pytest.mark.parametrize("left", ["nothing", "damaged"])
def test_a_client_that_ended_by_an_error_or_was_killed_does_not_run(
    left: str, client: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_wake(client, Connected("mqtt://127.0.0.1:1"))
    one_wake(client, Connected("mqtt://127.0.0.1:1"), ends_by=InputError("the broker refuses the password"))
    if left == "damaged":
        asleep_path(read_config(client).files.store).write_text("{")
    code, text, _ = checked(client, capsys)
    assert code == 1
    assert "its actor does not run" in text


def test_a_client_without_a_plan_leaves_nothing(client: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client.write_text(client.read_text().replace(f"sleep_max_s = {HOUR_S}\n", ""))
    one_wake(client, Connected("mqtt://127.0.0.1:1"))
    assert not asleep_path(read_config(client).files.store).exists()
    assert checked(client, capsys)[0] == 1
    client.write_text(client.read_text().replace("store =", "sleep_max_s = -1\nstore ="))
    with pytest.raises(InputError, match="sleep_max_s: found -1, expected 0 to"):
        read_config(client)
