"""The ledger of a user's runs adds up, and refuses a run beyond its total, whichever comes first."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dca_proto.cli import main
from dca_proto.errors import InputError, StorageError, UsageError
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.runtime.run_ledger import RunLedger

DELTA = 1e-5
TWO = PrivacyCost.of(2.0, DELTA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "houses.ledger"


def test_runs_add_up_as_their_releases_do_and_one_too_many_is_refused(path: Path) -> None:
    RunLedger(path, 4.0, DELTA).spend("regression", TWO)
    for _ in range(2):
        RunLedger(path, None, 1e-9).spend("mean", TWO)  # another delta changes nothing
    spent = total([TWO] * 3).epsilon(DELTA)
    words = RunLedger(path, None, DELTA).words()
    assert words.startswith(f"epsilon {spent:.4g} of 4 at delta 1e-05 in 3 runs by {path}; 1.204 is left for one more")
    before = path.read_text()
    for act in (RunLedger(path, 4.0, DELTA).check, lambda cost: RunLedger(path, None, DELTA).spend("mean", cost)):
        with pytest.raises(UsageError, match=r"a run of epsilon 2, expected at most 1\.204, which 3 runs left of 4"):
            act(TWO)
    assert path.read_text() == before
    RunLedger(path, None, DELTA).check(PrivacyCost.of(1.2, DELTA))


def test_a_report_and_a_sum_count_together(path: Path) -> None:
    ledger = RunLedger(path, 3.0, DELTA)
    ledger.spend("ldp-mean", PrivacyCost.of_pure(1.0))
    assert ledger.words().endswith("; 2 is left for one more with reports of delta 0"), "less for a sum"
    with pytest.raises(UsageError, match="expected at most"):
        ledger.check(TWO)
    with pytest.raises(UsageError, match="expected at most 2,"):
        ledger.check(PrivacyCost.of_pure(2.5))
    ledger.check(PrivacyCost.of_pure(2.0))  # two reports add up exactly


def test_a_run_that_another_has_overtaken_is_refused(path: Path) -> None:
    first, second = RunLedger(path, 2.5, DELTA), RunLedger(path, 2.5, DELTA)
    first.check(TWO)
    second.check(TWO)
    first.spend("mean", TWO)
    with pytest.raises(UsageError, match="which 1 run left"):
        second.spend("mean", TWO)


def test_no_other_run_reads_the_file_until_a_run_is_written_down(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, written = RunLedger(path, 2.5, DELTA), []

    def write(content: bytes) -> None:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(folder)
        written.append(content)

    monkeypatch.setattr(ledger, "_write", write)
    ledger.spend("mean", TWO)
    assert len(written) == 1


def test_links_to_a_file_share_its_runs(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "same.ledger"
    link.parent.mkdir()
    link.symlink_to(path)
    RunLedger(link, 2.5, DELTA).spend("mean", TWO)
    assert link.is_symlink()
    for name in (path, link):
        with pytest.raises(UsageError, match="which 1 run left"):
            RunLedger(name, None, DELTA).spend("mean", TWO)


def test_a_file_with_two_names_is_refused(path: Path, tmp_path: Path) -> None:
    """Each run replaces the file: by the other name, it would have missed what this one spent."""
    first = RunLedger(path, 2.5, DELTA)
    first.spend("mean", PrivacyCost.of(0.5, DELTA))
    before, link = path.read_bytes(), tmp_path / "same.ledger"
    link.hardlink_to(path)
    for name in (path, link):
        with pytest.raises(StorageError, match=rf"{name} has 2 names .*; keep one \(find / -samefile {name} lists"):
            RunLedger(name, None, DELTA)
    with pytest.raises(StorageError, match="has 2 names"):
        first.spend("mean", TWO)  # it was linked after the start
    assert path.read_bytes() == before
    link.unlink()
    first.spend("mean", PrivacyCost.of(0.5, DELTA))


def test_a_run_is_on_the_disk_before_its_first_round(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    RunLedger(path, 2.5, DELTA).spend("mean", TWO)
    assert synced == [False, True], "the content, then the name"


def test_an_odd_file_is_named(path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist: give the total of all runs as well, --ledger-epsilon 4"):
        RunLedger(path, None, DELTA)
    with pytest.raises(UsageError):
        RunLedger(path, -1.0, DELTA)
    RunLedger(path, 4.0, DELTA).spend("mean", TWO)
    for other in ((8.0, DELTA), (4.0, 1e-9)):
        with pytest.raises(UsageError, match=r"the total of .* is 4 at delta 1e-05; leave out --ledger-epsilon"):
            RunLedger(path, *other)
    path.write_text("{}")
    with pytest.raises(InputError, match="is no ledger of runs, or is damaged"):
        RunLedger(path, None, DELTA)


@pytest.fixture
def houses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{1 + i % 5},{100_000 + 20_000 * (i % 5) + 500 * (i % 7)}\n" for i in range(60))
    Path("houses.csv").write_text("rooms,price\n" + rows)
    given = ["--csv", "houses.csv", "--target", "price", "--bounds", "rooms=0:10,price=0:1e6", "--no-reference"]
    return ["swarm", *given, "--broker", "embedded", "--seed", "1", "--epsilon", "2"]


def test_a_total_without_a_file_is_refused(houses: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*houses, "--ledger-epsilon", "4"]) == 2
    assert "--ledger-epsilon goes with --ledger FILE" in capsys.readouterr().err
    assert main([*houses, "--ledger", "a.ledger"]) == 2
    assert not Path("a.ledger").exists()


@pytest.mark.parametrize("trial", ["--bounds-from-data", "--fast-noise"])
def test_a_trial_that_is_not_private_has_no_ledger(
    trial: str, houses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    read = houses.index("--bounds")
    given = houses[:read] + houses[read + 2 :] if trial == "--bounds-from-data" else houses
    assert main([*given, trial, "--ledger", "a.ledger", "--ledger-epsilon", "2.5"]) == 2
    assert "this is a trial that is not private: the" in " ".join(capsys.readouterr().err.split())
    assert not Path("a.ledger").exists()


@pytest.mark.long
def test_a_swarm_writes_its_run_down_and_starts_none_too_many(
    houses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*houses, "--ledger", "a.ledger", "--ledger-epsilon", "2.5"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "ledger epsilon 2 of 2.5 at delta 1e-05 in 1 run by a.ledger" in printed
    assert "add up yourself" not in printed
    content: dict[str, Any] = json.loads(Path("a.ledger").read_text())
    assert [run["job"] for run in content["runs"]] == ["regression"]
    assert main([*houses, "--ledger", "a.ledger"]) == 2
    shown = capsys.readouterr()
    assert "expected at most" in shown.err
    assert "broker" not in shown.out, "nothing was started"
    assert json.loads(Path("a.ledger").read_text()) == content


def test_the_command_shows_the_runs_and_what_is_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job in ("regression", "mean"):
        RunLedger(path, 4.0, DELTA).spend(job, TWO)
    assert main(("ledger", str(path), "--json", "-")) == 0
    found, spent = json.loads(capsys.readouterr().out), total([TWO] * 2)
    assert [(run["statistic"], round(run["epsilon"], 9)) for run in found["charges"]] == [
        ("regression", 2),
        ("mean", 2),
    ]
    assert (found["epsilon_allowed"], found["delta"]) == (4, DELTA)
    assert found["epsilon_spent"] == pytest.approx(spent.epsilon(DELTA))
    assert found["epsilon_left"] == pytest.approx(spent.left(4, DELTA))
    assert main(("ledger", str(path))) == 0
    shown = capsys.readouterr().out
    for words in ("regression", "mean", "in 2 runs together", "for one more run, of 4 in total"):
        assert words in shown
    assert main(("ledger", str(path), "--delta", "1e-6")) == 2
    path.write_text("{}")
    assert main(("ledger", str(path))) == 5
    assert "is no ledger of runs, or is damaged" in capsys.readouterr().err
