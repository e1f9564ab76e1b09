"""`dca new`: a study that runs, has no fault of style or types, and is written whole or not at all."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dca_proto import TrainerRounds
from dca_proto.cli import main
from dca_proto.cli.new import FILES, NAME
from dca_proto.statistics import base
from emulator.ideal import IdealSwarm
from emulator.swarm.live import run_swarm
from inference.rounds import run as run_job

ROOT = Path(__file__).parents[3]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "warm_days"]) == 0
    return tmp_path / "warm_days"


async def ideal_swarm(*arguments: Any) -> Any:
    """Stand for `run_swarm`: sums come from the ideal functionality."""
    options, rows, columns, job = inspect.signature(run_swarm).bind(*arguments).args[:4]
    swarm = IdealSwarm(rows, columns, options.terms((b"1" * 16,) * 3), random=np.random.default_rng(1).bytes)
    return SimpleNamespace(result=run_job(job, swarm), failure=None)


@pytest.fixture
def programs(study: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of a study, imported into this process, which forgets them afterwards."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    monkeypatch.syspath_prepend(study)
    monkeypatch.syspath_prepend(study / "tests")
    names = ("warm_days", "warm_days.statistic", "warm_days.study", "client", "learn", "test_study")
    assert not set(names) & set(sys.modules)
    try:
        found = {name: importlib.import_module(name) for name in names}
        monkeypatch.setattr(found["learn"], "run_swarm", ideal_swarm)
        yield found
    finally:
        for name in names:
            sys.modules.pop(name, None)


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_all_templates_are_written_under_the_study_s_name(capsys: pytest.CaptureFixture[str], study: Path) -> None:
    shown = "".join(capsys.readouterr())
    written = {str(path.relative_to(study)) for path in study.rglob("*") if path.is_file()}
    assert written == {place.replace(NAME, "warm_days") for place in FILES.values()}
    assert {f"{name}.template" for name in FILES} == {
        path.name for path in (resources.files("dca_proto") / "study").iterdir()
    }
    for place in written:
        assert f"warm_days/{place}" in shown
        text = (study / place).read_text()
        assert NAME not in text
        assert NAME.replace("_", "-") not in text
    assert list(study.parent.iterdir()) == [study]  # no folder that was only for the writing


def test_a_study_has_no_fault_of_style_or_types(study: Path) -> None:
    own = ["--isolated", "--line-length", "120", "--select", "E,F,W,I,B,UP,D1", "--ignore", "D1", "--target-version"]
    checked = run("-m", "ruff", "check", *own, "py311", ".", folder=study)
    assert checked.returncode == 0, checked.stdout
    styled = run("-m", "ruff", "format", "--isolated", "--line-length", "120", "--check", ".", folder=study)
    assert styled.returncode == 0, styled.stdout


def test_a_study_uses_names_and_arguments_that_exist(
    programs: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tests pass, and its trainer's program prints a share; a long test runs it with a live swarm."""
    tests = [value for name, value in vars(programs["test_study"]).items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()
    programs["learn"].main(["--trial", "100"])
    assert capsys.readouterr().out.startswith("temperature > 20: 0.")


def test_a_study_s_trainer_learns_with_the_terms_of_its_file(
    programs: dict[str, ModuleType], study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signed file names the nodes, and study.toml has the other terms."""
    assert (
        main(["federation", "init", "demo", "--computes", "3", "--clients", "1", "--broker", "mqtt://127.0.0.1"]) == 0
    )
    learn, asked = programs["learn"], []

    @contextlib.contextmanager
    def ideal_rounds(*arguments: Any) -> Iterator[IdealSwarm]:
        file, terms = inspect.signature(TrainerRounds).bind(*arguments).args
        asked.append((file, len(set(terms.computes)), terms.clients))
        rows, seed = np.full((terms.clients, 1), 30.0), np.random.default_rng(2)
        yield IdealSwarm(rows, ("temperature",), terms, random=seed.bytes)

    monkeypatch.setattr(learn, "TrainerRounds", ideal_rounds)
    file = study.parent / "demo/trainer.toml"
    found = learn.learn(programs["warm_days.study"].read_study(study / "study.toml"), file)
    assert asked == [(file, 3, 100)]
    assert found["temperature > 20"].low < 1 <= found["temperature > 20"].high


def test_a_study_s_share_is_in_its_interval_whatever_the_noise(programs: dict[str, ModuleType]) -> None:
    """A ratio of noisy sums may be beyond 0 or 1, in every second of these rounds."""
    study = programs["warm_days.study"]
    terms = study.Terms(20, 0, 4.0, 1e-5).with_nodes((b"1" * 16,) * 3)
    for seed in range(20):
        rows = np.full((20, 1), 30.0 if seed % 2 else 10.0)
        swarm = IdealSwarm(rows, ("temperature",), terms, random=np.random.default_rng(seed).bytes)
        (share,) = run_job(study.job(study.Question(("temperature",), 20.0)), swarm).values()
        assert 0 <= share.low <= share.value <= share.high <= 1


def test_another_question_needs_no_change_of_the_programs(study: Path) -> None:
    """They take columns, readings and labels from the study: an owner changes statistic.py, study.py and study.toml."""
    for program in ("learn.py", "client.py"):
        text = (study / program).read_text()
        assert not [word for word in ("threshold", '"temperature"', "Above") if word in text], program


@pytest.mark.long
def test_a_study_passes_its_own_tests_and_mypy_and_finds_a_share(study: Path) -> None:
    tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", folder=study)
    assert "2 passed" in tested.stdout, tested.stdout
    typed = run("-m", "mypy", "--strict", "--cache-dir", os.devnull, "warm_days", "learn.py", "client.py", folder=study)
    assert typed.returncode == 0, typed.stdout
    learned = run("learn.py", "--trial", "100", folder=study)
    assert learned.stdout.startswith("temperature > 20: 0."), learned.stderr
    for words, said in (
        (["--trial", "many"], "python learn.py --trial 200"),
        (["--trial", "1"], "python learn.py --trial 200"),
        (["none.toml"], "learn.py: cannot read none.toml"),
        ([], "python learn.py --trial 200"),
    ):
        refused = run("learn.py", *words, folder=study)
        assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
        assert said in refused.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("clients = 100", "clients = 'many'", "learn.py: study.toml: Expected `int`, got `str` - at `$.terms.clients`"),
        ("epsilon = 1.0", "epsilon = -1.0", "learn.py: study.toml: Expected `float` > 0.0 - at `$.terms.epsilon`"),
        ("epsilon", "epsilom", "learn.py: study.toml: Object contains unknown field `epsilom` - at `$.terms`"),
        ("[terms]", "[terms", "learn.py: study.toml: "),
        ("threshold = 20.0", "threshold = nan", "threshold nan; give a finite number"),
    ],
)
def test_a_fault_in_the_study_s_numbers_is_named(right: str, wrong: str, said: str, study: Path) -> None:
    """From another folder, too."""
    numbers = study / "study.toml"
    assert right in numbers.read_text()
    numbers.write_text(numbers.read_text().replace(right, wrong, 1))
    refused = run(str(study / "learn.py"), "--trial", "20", folder=study.parent)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert said in refused.stderr


@pytest.mark.long
def test_a_study_with_a_wrong_sensitivity_fails_its_test(study: Path) -> None:
    statistic = study / "warm_days/statistic.py"
    right = statistic.read_text()
    wrong = right.replace("l2_squared=self.dimension * unit**2", "l2_squared=unit**2")
    assert wrong != right
    statistic.write_text(wrong)
    tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", "farther_apart", folder=study)
    assert "1 failed" in tested.stdout


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Warm", "expected a-z"),
        ("../warm", "expected a-z"),
        ("", "expected a-z"),
        ("class", "no word of Python"),
        ("warm_", "no _ last"),  # pip refuses a name that ends with a dash
        ("x" * 41, "at most 40"),
        ("con", "Windows takes it for a device"),
        ("lpt1", "Windows takes it for a device"),
        ("numpy", "a Python module has this name"),
        ("client", "a Python module has this name"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused(
    name: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "--", name]) == 2
    assert found in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_kept(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study / "study.toml").write_text("mine")
    assert main(["new", "warm_days"]) == 8
    assert "folder warm_days exists" in capsys.readouterr().err
    assert (study / "study.toml").read_text() == "mine"


def test_a_folder_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dca_proto.cli.new.FILES", {**FILES, "study.py": f"{'x' * 300}/study.py"})
    assert main(["new", "warm_days"]) == 8
    assert "folder warm_days cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
