"""`dca schedule` as a trainer meets it: two standing jobs over a real broker, and no slot is paid twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from commands import Done, one_line
from live_actors import WIDE, Actors, federation
from schemas import parsed

from dca_proto.cli import main
from dca_proto.jobs.series import Series
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.spending import read_ledger_view

pytestmark = pytest.mark.long
CLIENTS = 8
Dca = Callable[..., Done]


@cache  # the hour may change between two plans
def today() -> tuple[str, str]:
    """A zone in which midnight was less than an hour ago, and its date."""
    now = datetime.now(UTC)
    behind = now.hour if now.hour <= 12 else now.hour - 24
    return f"Etc/GMT{behind:+d}", f"{(now - timedelta(hours=behind)).date()}"


def jobs(epsilon: float = 60) -> str:
    zone, day = today()
    column = 'target = "x"\nbounds = { x = [-3, 3] }\nunits = { x = "cm" }'
    return f"""
[schedule]
trainer = "trainer.toml"
begins = {day}
lasts = "1d"
epsilon = {epsilon}
delta = 1e-5
timezone = "{zone}"

[[job]]
title = "daily mean"
late = "22h"
share = 3
name = "gaussian"
{column}
clients = {CLIENTS}
tolerate = 1

[[job]]
title = "own reports"
late = "22h"
name = "ldp-mean"
{column}
clients = {CLIENTS}
"""


@pytest.fixture(scope="module")
def folder(embedded_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("schedule")
    data = [f"x\n{x}\n" for x in (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5)]
    federation(folder, embedded_broker.url, data, policy=WIDE, trainer="[account]\nepsilon = 100\n")
    (folder / "jobs.toml").write_text(jobs())
    with Actors(folder):
        yield folder


@pytest.fixture
def dca(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dca:
    monkeypatch.chdir(folder)
    return lambda *arguments: Done(main([*arguments]), *capsys.readouterr())


def test_a_schedule_runs_its_slots_once_and_keeps_their_results(dca: Dca, folder: Path) -> None:
    planned = dca("schedule", "jobs.toml", "--plan", "--json", "-")
    assert planned.returncode == 0, planned.stderr
    plan = parsed(planned.stdout, "schedule")
    assert [(job["title"], job["slots"], job["delta"]) for job in plan["jobs"]] == [
        ("daily mean", 1, 1e-5),
        ("own reports", 1, 0),
    ]
    assert plan["epsilon_planned"] == pytest.approx(60, rel=1e-6)
    assert not (folder / "jobs.results.db").exists()

    done = dca("schedule", "jobs.toml")
    assert done.returncode == 0, done.stderr
    assert "over        daily mean: 1 of 1 slot done" in done.stdout
    overview = parsed(dca("results", "--json", "-").stdout, "results")
    assert [(job["title"], job["done"], job["gaps"]) for job in overview["jobs"]] == [
        ("daily mean", 1, 0),
        ("own reports", 1, 0),
    ]
    found = parsed(dca("results", "daily mean", "--plot", "days.png", "--json", "-").stdout, "results")
    (slot,) = found["slots"]
    mean = slot["result"]["estimates"][0]
    assert (mean["name"], mean["unit"]) == ("mean of x", "cm")
    low, high = mean["interval_95"]
    assert low < high
    assert abs(mean["estimate"] - 0.75) < 7 * mean["sd"]  # false alarm: below 1e-11
    assert slot["result"]["epsilon"] == pytest.approx(plan["jobs"][0]["epsilon"])
    assert (folder / "days.png").read_bytes().startswith(b"\x89PNG")
    only = parsed(dca("results", "daily mean", "--estimate", "mean of x", "--json", "-").stdout, "results")
    assert [one["name"] for one in only["slots"][0]["result"]["estimates"]] == ["mean of x"]

    again = dca("schedule", "jobs.toml")
    assert again.returncode == 0, again.stderr
    spent = [len(read_ledger_view(folder / f"client-{n}.toml").ledger.charges) for n in range(1, CLIENTS + 1)]
    assert max(spent) == 2  # one for each slot; a round may end without a client that is slow, whose charge comes later
    assert not list(folder.glob("*.journal"))


def test_a_plan_under_way_keeps_its_settings(dca: Dca, folder: Path) -> None:
    (folder / "other.toml").write_text(jobs(epsilon=50).replace("lasts", 'results = "jobs.results.db"\nlasts'))
    dca("schedule", "jobs.toml")
    done = dca("schedule", "other.toml")
    assert done.returncode == 2
    assert "has other settings (epsilon, jobs), and its slot" in one_line(done.stderr)


def test_unknown_names_are_refused_in_one_line(dca: Dca, folder: Path) -> None:
    dca("schedule", "jobs.toml")
    for arguments, message in (
        (("results", "daily men"), "(did you mean 'daily mean'?); jobs: 'daily mean', 'own reports'"),
        (("results", "daily mean", "--estimate", "x"), "known: mean of x, variance of x"),
        (("results", "--last", "3"), "are of one job"),
        (("results", "--schedule", "no.db"), "no.db does not exist"),
        (("results", "--schedule", "trainer.key"), "is no database of a schedule's results"),
    ):
        done = dca(*arguments)
        assert done.returncode in (2, 5, 8), arguments
        assert message in one_line(done.stderr), arguments


def test_a_result_is_read_while_a_schedule_has_the_database(folder: Path, dca: Dca) -> None:
    path = folder / "busy.db"
    with Series(path):
        assert json.loads(dca("results", "--schedule", str(path), "--json", "-").stdout)["jobs"] == []
