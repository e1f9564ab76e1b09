"""Every job of the registry over `dca swarm`, and each kind of round over `dca learn` on one live federation.

One federation of 24 clients serves all jobs, in turn: each client has a few rows with all kinds of targets, so it also
serves as a data node. A job that lacks a route over the protocol, its files, or its output fails here; what its result
is worth has tests of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Dca, one_line
from compiling import quick
from live_actors import Actors, federation
from schemas import parsed

from dca_proto.cli import main
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from dca_proto.runtime.broker import Broker
from inference.jobs import NAMES, find
from inference.jobs.base import LearningJob
from inference.jobs.examples import TARGETS, TIME, Example, problem

CLIENTS, ROWS, NODES = 24, 30, 3
EPSILON = "8"
LIMITS = """clients_min = 1
honest_min = 1
rows_of_many = true
epsilon_per_round_max = 100
epsilon_per_period_max = 1000
delta_max = 1e-2
"""
LEARNED = {
    "regression": {"shrinkage": "groups", "prior_groups": "a;b"},
    "regression-mcmc": {},
    "survival": {},
    "ldp-quantiles": {},
}
"""Jobs over `dca learn`, of sums, node releases and reports, with settings beside those of their first examples."""
TABLE = {target: problem(target, CLIENTS * ROWS) for target in TARGETS}
COLUMNS = {"a": (-4, 4), "b": (-4, 4), "event": (0, 1)} | {
    f"y_{target}": (one.schema.bounds["y"].lower, one.schema.bounds["y"].upper) for target, one in TABLE.items()
}


def text_of(places: slice) -> str:
    """These rows as a CSV: features, the event, and a target of each kind."""
    columns = [*TABLE[TIME].X[places].T, *(one.y[places] for one in TABLE.values())]
    lines = [",".join(f"{value:.6g}" for value in row) for row in np.column_stack(columns).tolist()]
    return "\n".join([",".join(COLUMNS), *lines]) + "\n"


def settings_of(example: Example) -> dict[str, Any]:
    """The example's settings with the columns' names of the table."""
    target = f"y_{example.target}"
    return {name: target if value == "y" else value for name, value in example.settings.items()}


def options_of(job: LearningJob, example: Example) -> list[str]:
    """The words of a command for a case."""
    target, features = f"y_{example.target}", "a,b,event" if example.target == TIME else "a,b"
    given = ["--job", job.name, "--target", target, "--features", features, "--epsilon", EPSILON]
    for name, value in settings_of(example).items():
        given += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return given


def is_whole(result: dict[str, Any]) -> bool:
    """Whether there are finite estimates."""
    rows = [*result.get("coefficients", []), *result.get("estimates", [])]
    return bool(rows) and all(np.isfinite(row["estimate"]) for row in rows)


@pytest.fixture(autouse=True, scope="module")
def quickly() -> Iterator[None]:
    with quick():
        yield


@pytest.fixture(scope="module")
def folder(embedded_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The federation's files, with its clients and Compute nodes running."""
    folder = tmp_path_factory.mktemp("every-job")
    bounds = ", ".join(f"{name} = [{low}, {high}]" for name, (low, high) in COLUMNS.items())
    trainer = f"[account]\nepsilon = 1e6\n\n[job]\nbounds = {{ {bounds} }}\ndelta = 1e-5\nclients = {CLIENTS}\n"
    data = [text_of(slice(place * ROWS, (place + 1) * ROWS)) for place in range(CLIENTS)]
    federation(folder, embedded_broker.url, data, limits="", policy=LIMITS, trainer=trainer)
    with Actors(folder):
        yield folder


@pytest.mark.long
@pytest.mark.parametrize("name", LEARNED)
def test_each_kind_of_round_serves_a_live_federation(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    job = find(name)
    given = options_of(job, job.examples[0]._replace(settings={**job.examples[0].settings, **LEARNED[name]}))
    if job.kinds[0] is NodeRelease:
        given += ["--set", "kind=node-release"]
    elif job.kinds[0] is LdpReport:
        given += ["--set", "invite=."]
    capsys.readouterr()
    code = main(["learn", "trainer.toml", *given, "--journal", f"{name}.journal", "--json", "-"])
    done = capsys.readouterr()
    assert code == 0, one_line(done.err)[-1500:]
    result = parsed(done.out, "learn")
    assert (result["job"], result["private"]) == (job.name, True)
    assert all(one["ok"] and not one["recalled"] for one in result["rounds"])
    assert is_whole(result)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_each_job_learns_in_a_swarm(name: str, embedded_broker: Broker, dca: Dca, tmp_path: Path) -> None:
    job = find(name)
    table = tmp_path / "rows.csv"
    table.write_text(text_of(slice(None)))
    bounds = ",".join(f"{name}={low}:{high}" for name, (low, high) in COLUMNS.items())
    count = ("--data-nodes", str(NODES)) if job.kinds[0] is NodeRelease else ("--clients", str(CLIENTS))
    given = ["--csv", str(table), "--bounds", bounds, *count, "--broker", embedded_broker.url, "--json", "-"]
    done = dca(*options_of(job, job.examples[0]), *given)
    assert done.returncode == 0, one_line(done.stderr)[-1500:]
    result = parsed(done.stdout, "swarm")
    assert (result["job"], result["private"]) == (job.name, True)
    assert is_whole(result)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["job"] == job.name
