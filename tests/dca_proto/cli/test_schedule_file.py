"""Files of standing jobs: one budget for all slots, and refusals that name the section and the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dca_proto.cli import main
from dca_proto.cli.dashboard import History
from dca_proto.cli.schedule import _job_run
from dca_proto.cli.schedule_file import read_schedule
from dca_proto.errors import UsageError
from dca_proto.jobs.series import Series
from dca_proto.privacy.cost import total
from dca_proto.results.series import DONE, MISSED, SeriesResult
from dca_proto.runtime.keyfile import read_federation

SCHEDULE = """
[schedule]
trainer = "trainer.toml"
begins = 2027-01-01
epsilon = 2
delta = 1e-5
"""
COLUMN = 'target = "x"\nbounds = { x = [0, 50] }\nclients = 500'
MEAN = f'[[job]]\ntitle = "daily mean"\nname = "gaussian"\n{COLUMN}\ntolerate = 50\n'
VERIFIED = f"{MEAN}verified = true\n"
REPORT = f'[[job]]\ntitle = "weekly reports"\nevery = "week"\nname = "ldp-mean"\n{COLUMN}\n'
MORE_REPORTS = REPORT.replace("weekly", "hourly").replace('"week"', '"hour"')
NODES = (
    '[[job]]\ntitle = "nodes"\nevery = "week"\nname = "regression-mcmc"\nkind = "node-release"\nclients = 4\n'
    'target = "x"\nbounds = { x = [0, 50], y = [0, 1] }\n'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schedule-files")
    init = ["federation", "init", str(folder), "--computes", "3", "--clients", "1", "--broker", "mqtt://127.0.0.1"]
    assert main(init) == 0
    return folder


def write(folder: Path, text: str) -> Path:
    path = folder / "jobs.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "jobs",
    [MEAN, VERIFIED, REPORT, REPORT + MORE_REPORTS, MEAN + REPORT, MEAN + REPORT + NODES, VERIFIED + REPORT],
    ids=["means", "verified", "reports", "few and many reports", "both", "all kinds", "verified and reports"],
)
@pytest.mark.parametrize("lasts", ["1y", "30d"])
def test_all_slots_together_cost_the_budget_and_no_more(folder: Path, jobs: str, lasts: str) -> None:
    found = read_schedule(write(folder, f'{SCHEDULE}lasts = "{lasts}"\n{jobs}'))
    costs = [job.charge for job in found.jobs for _ in job.slots]
    assert total(costs).within(2, 1e-5)
    assert total(costs).epsilon(1e-5) == pytest.approx(2, rel=1e-6)
    for job in found.jobs:
        task = job.task(found.config.federation)
        assert task.cost == job.charge


def test_a_share_is_relative_to_those_of_the_other_jobs(folder: Path) -> None:
    other = MEAN.replace("daily mean", "other").replace("title", "share = 3\ntitle")
    mean, three = read_schedule(write(folder, SCHEDULE + MEAN + other)).jobs
    assert three.cost.mu**2 == pytest.approx(3 * mean.cost.mu**2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected [schedule] and 1 to 50 sections [[job]]"),
        (SCHEDULE, "expected [schedule] and 1 to 50 sections [[job]]"),
        ("[job]\n", "expected [schedule]"),
        ("[sched]\n", "unknown section [sched]"),
        ("x", "is not valid TOML"),
        (SCHEDULE + "lsts = 3\n" + MEAN, "unknown key 'lsts' (did you mean 'lasts'?)"),
        (SCHEDULE.replace("2027-01-01", '"soon"') + MEAN, "begins"),
        (SCHEDULE + 'lasts = "1m"\n' + MEAN, "lasts = '1m': expected a number of days, weeks or years"),
        (SCHEDULE.replace("2027", "9999") + MEAN, "the period ends after the year 9999"),
        (SCHEDULE + 'timezone = "Mars"\n' + MEAN, "timezone = 'Mars' is not known here"),
        (SCHEDULE.replace("trainer.toml", "no.toml") + MEAN, "no.toml"),
        (SCHEDULE.replace("epsilon = 2", "epsilon = 0") + MEAN, "epsilon is 0"),
        (SCHEDULE + MEAN.replace("title", "titel"), "job 1: title is missing (did you mean 'titel'?)"),
        (SCHEDULE + MEAN + MEAN, "two jobs have the title 'daily mean'"),
        (SCHEDULE + MEAN + "epsilon = 1\n", "job 'daily mean': epsilon is that of [schedule]"),
        (SCHEDULE + MEAN + 'every = "month"\n', "every = 'month' is unknown; expected hour, day, week"),
        (SCHEDULE + MEAN + 'late = "1d"\n', "late = '1d': expected minutes or hours"),
        (SCHEDULE + MEAN + 'late = "24h"\n', "expected less than the time between two slots"),
        (SCHEDULE + MEAN + "share = 0\n", "share = 0: expected a number above 0"),
        (SCHEDULE + MEAN.replace("gaussian", "gausian"), "(did you mean 'gaussian'?)"),
        (SCHEDULE + MEAN + "clients_min = 3\n", "unknown key 'clients_min'"),
        (
            SCHEDULE + MEAN.replace("500", "5").replace("50\n", "1\n"),
            "'gaussian' has no result from fewer than 6 contributors, and its rounds may close with 4, as they",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    folder: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", str(write(folder, text)), "--plan"]) in (2, 5)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_a_title_is_printable(folder: Path) -> None:
    with pytest.raises(UsageError, match="title = "):
        read_schedule(write(folder, SCHEDULE + MEAN.replace("daily mean", "a\\u0007b")))


def test_each_round_of_a_job_asks_for_its_window(folder: Path) -> None:
    (job,) = read_schedule(write(folder, f"{SCHEDULE}{MEAN}window_s = 86400\n")).jobs
    task = job.task(read_federation(folder / "federation.toml"))
    _, drafts = _job_run(task).plan("")
    assert [announcement.window_s for announcement, _ in drafts] == [86_400] * len(drafts)
    assert task.identity["window_s"] == 86_400


def test_a_plan_warns_of_an_interval_wider_than_the_public_bounds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """± is for people: 780, not 7.8e+02. Few clients in many slots find nothing; many clients in few find the mean."""

    def planned(clients: int, lasts: str) -> str:
        job = f'{MEAN.replace("500", str(clients)).replace("tolerate = 50", "tolerate = 2")}units = {{ x = "°C" }}\n'
        assert main(["schedule", str(write(folder, f'{SCHEDULE}lasts = "{lasts}"\n{job}')), "--plan"]) in (None, 0)
        return " ".join(capsys.readouterr().out.split())

    few, many = planned(25, "1y"), planned(5000, "7d")
    (half,) = re.findall(r"each mean within ± ([0-9,.]+) °C", few)
    assert float(half.replace(",", "")) > 50 / 2
    assert f"warning daily mean: the interval of x is wider than its public bounds: found ± {half} °C" in few
    assert "expected less than the bounds 0 to 50 °C" in few
    (half,) = re.findall(r"each mean within ± ([0-9,.]+) °C", many)
    assert float(half) < 50 / 2
    assert "warning" not in many
    assert "e+" not in few + many


def test_a_plan_of_a_job_that_sums_states_the_noise_of_its_mean(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 5,000 clients with 0 to 50, at epsilon 2 for seven slots: the sum is off by hundreds, the mean by below 1."""
    job = MEAN.replace('"gaussian"', '"exponential"').replace("500", "5000")
    assert main(["schedule", str(write(folder, f'{SCHEDULE}lasts = "7d"\n{job}')), "--plan"]) in (None, 0)
    printed = " ".join(capsys.readouterr().out.split())
    (half,) = re.findall(r"each mean within ± ([0-9,.]+) \(95 %", printed)
    assert 0.01 < float(half.replace(",", "")) < 1
    assert "warning" not in printed


@pytest.mark.parametrize("job", ["regression", "logistic", "survival", "compare", "describe", "categorical"])
def test_a_plan_says_plainly_that_rows_decide_how_exact_a_job_is(
    folder: Path, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    """It printed the noise of the first round's sums, as "cos 1·x ± 190", of which nobody can make anything."""
    more = {"survival": 'event = "y"\n', "compare": 'group = "y"\n'}.get(job, "")
    target = "y" if job in ("logistic", "categorical") else "x"
    columns = f'target = "{target}"\nbounds = {{ x = [0, 50], y = [0, 1] }}\nclients = 5000\ntolerate = 50\n{more}'
    text = f'{SCHEDULE}lasts = "7d"\n[[job]]\ntitle = "daily"\nname = "{job}"\n{columns}'
    assert main(["schedule", str(write(folder, text)), "--plan"]) in (None, 0)
    printed = " ".join(capsys.readouterr().out.split())
    assert "±" not in printed
    assert "exactness daily: how wide its intervals will be depends on the rows, too; learn it from made-up" in printed


def test_the_dashboard_reads_the_results_of_standing_jobs_when_they_change(folder: Path) -> None:
    path = write(folder, SCHEDULE + MEAN)
    found, history = read_schedule(path), History(path)
    assert history.read() == {}
    (job,) = found.jobs
    first, second = job.slots[:2]
    with Series(found.results) as series:
        plan = series.adopt({}, found.begins_ms)
        series.begin(plan, "daily mean", first)
        series.finish("daily mean", first, SeriesResult(estimates=[]), first.at_ms)
        seen = history.read()
        assert [(slot.slot, slot.state) for slot in seen["daily mean"]] == [("2027-01-01", DONE)]
        assert history.read() is seen
        series.leave_out(plan, "daily mean", [second], "the trainer did not run", second.at_ms)
        assert [slot.state for slot in history.read()["daily mean"]] == [DONE, MISSED]
