"""Help and version: `-h` is `--help` in every command and script, each has an example, and neither needs an extra."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import commands

from dca_proto import __version__, wording
from dca_proto.cli import main

ROOT = Path(__file__).parents[3]
NO_SCRIPTS = ("environment", "fuzz_broker.py", "real_data.py", "site_pages.py")  # read by others
SCRIPTS = sorted(
    path
    for path in (ROOT / "scripts").iterdir()
    if path.suffix in ("", ".py") and path.is_file() and path.name not in NO_SCRIPTS
)
WITHOUT_EXTRAS = (
    "import importlib.machinery, sys\n"
    "hidden = {'typer', 'rich', 'click', 'scipy', 'sklearn', 'matplotlib', 'iotcore'}\n"
    "class Finder(importlib.machinery.PathFinder):\n"
    "    @classmethod\n"
    "    def find_spec(cls, name, path=None, target=None):\n"
    "        return None if name in hidden else super().find_spec(name, path, target)\n"
    "sys.meta_path = [Finder if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]\n"
)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    output, error = capsys.readouterr()
    assert error == ""
    return output


def test_all_commands_are_found() -> None:
    assert {("swarm",), ("federation",), ("federation", "enrol"), ("emulate", "sweep")} <= set(commands())
    assert len(commands()) >= 24


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_h_is_help_and_has_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output = shown(capsys, *path, "--help")
    assert shown(capsys, *path, "-h") == output
    _, examples, after = output.partition("Example")
    assert examples
    assert f"dca {' '.join(path)}" in after


@pytest.mark.parametrize("path", [path for path in SCRIPTS if path.suffix], ids=lambda path: path.name)
def test_h_of_a_script(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = []
    for option in ("-h", "--help"):
        monkeypatch.setattr(sys, "argv", [str(path), option])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path), run_name="__main__")
        assert end.value.code == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert f"    scripts/{path.name}" in outputs[0]


@pytest.mark.parametrize("path", [path for path in SCRIPTS if not path.suffix], ids=lambda path: path.name)
def test_h_of_a_shell_script(path: Path, tmp_path: Path) -> None:
    """It needs no environment for that."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv").touch()  # not a folder: making an environment there fails
    for name in (path.name, "environment"):
        (tmp_path / "scripts" / name).write_bytes((path.parent / name).read_bytes())
    outputs = []
    for option in ("-h", "--help"):
        call = ["bash", f"scripts/{path.name}", option]
        outputs.append(subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert outputs[0] == outputs[1]
    assert f"\n  scripts/{path.name}" in outputs[0]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--version"], 0, f"dca {__version__}, protocol 5\n"),
        (["--help"], 0, "\n  swarm  "),
        (["-h"], 0, "\n  swarm  "),
        ([], 0, "\n  swarm  "),
        (["swarm"], 2, "dca: commands need typer and rich, not installed: pip install -e '.[cli]' in the checkout\n"),
        (["help", "swarm"], 2, "dca: commands need typer and rich"),
        (["swram"], 2, "dca: 'swram' is not a command (did you mean 'swarm'?)"),
    ],
)
def test_without_the_extra_cli(arguments: list[str], code: int, line: str) -> None:
    """Help and version work, and a command names in one line what to install."""
    call = WITHOUT_EXTRAS + "from dca_proto.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", call, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert line in (done.stderr if code else done.stdout)
    assert done.stderr.count("\n") == (1 if code else 0)


def test_a_release_names_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wording.to_install("cli") == "pip install -e '.[cli]' in the checkout"
    monkeypatch.setattr(wording, "__file__", str(tmp_path / "site-packages" / "dca_proto" / "wording.py"))
    assert wording.to_install("cli") == "pip install 'dca-proto[cli]', or 'FILE.whl[cli]' of this release"


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--version"], 0, f"dca {__version__}, protocol 5\n"),
        (["--help"], 0, "python -m dca_proto client.toml"),
        (["-h"], 0, "python -m dca_proto client.toml"),
        ([], 2, "dca: the following arguments are required: config; see `python -m dca_proto --help`\n"),
        (["nowhere.toml"], 5, "dca: cannot read nowhere.toml"),
        (["client.toml", "--jsno"], 2, "dca: unrecognized arguments: --jsno; see"),
    ],
)
def test_a_device_without_the_command_line(arguments: list[str], code: int, line: str) -> None:
    call = WITHOUT_EXTRAS + "from dca_proto.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", call, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert line in (done.stderr if code else done.stdout)
    assert done.stderr.count("\n") == (1 if code else 0)


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
