"""`run_tests` of `scripts/environment`: what fails is run once more, and no failure is hidden by that."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[1] / "scripts" / "environment"
PYTHON = """#!/bin/sh
echo "$*" >>calls
read -r status <statuses
sed -i 1d statuses
exit "$status"
"""
"""Stands for Python: it ends each time with the next status of a list."""


def run_tests(folder: Path, arguments: str, statuses: list[int], more: str = "") -> tuple[int, list[str]]:
    """Return the exit code, and the arguments of each run."""
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (folder / "statuses").write_text("".join(f"{status}\n" for status in statuses))
    function = ENVIRONMENT.read_text().partition("\nrun_tests() {")
    script = f"set -eu\npython={python}\n{''.join(function[1:])}run_tests {arguments}\n"
    ended = subprocess.run(
        ["bash", "-c", script], cwd=folder, env={"PATH": "/usr/bin:/bin", "PYTEST_ADDOPTS": more}, timeout=60
    )
    return ended.returncode, (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize(
    ("statuses", "expected"), [([0], 0), ([1, 0], 0), ([1, 1], 1), ([1, 5], 5), ([2], 2), ([3], 3), ([5], 5)]
)
def test_what_failed_is_run_once_more(tmp_path: Path, statuses: list[int], expected: int) -> None:
    """2: interrupted, as by a file that cannot be imported; 3: an error of pytest; 5: no test."""
    code, calls = run_tests(tmp_path, "-n 3 tests", statuses)
    assert (code, len(calls)) == (expected, len(statuses))
    assert calls[0] == "-m pytest -n 3 tests"


@pytest.mark.parametrize("arguments", ["-x tests", "tests -qx", "tests --exitfirst", "--maxfail=2", "--maxfail 2"])
def test_a_run_that_stopped_at_a_failure_fails(tmp_path: Path, arguments: str) -> None:
    """The tests after it did not run: that the one passes a second time says nothing about them."""
    assert run_tests(tmp_path, arguments, [1, 0])[0] == 1


MYPY = """#!/bin/sh
while [ ! -e tested ]; do sleep 0.01; done
echo "x.py:1: error"
exit "$(cat status)"
"""
"""Stands for mypy: it ends after the tests."""


@pytest.mark.parametrize(("found", "tested", "expected"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (1, 2, 1)])
def test_errors_of_types_fail_a_run_whose_tests_pass(tmp_path: Path, found: int, tested: int, expected: int) -> None:
    """As `scripts/test` calls them: mypy runs beside the tests."""
    (tmp_path / "python").write_text(MYPY)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "status").write_text(f"{found}\n")
    whole = (ENVIRONMENT.parent / "test").read_text()
    functions = "start_types() {" + ENVIRONMENT.read_text().partition("\nstart_types() {")[2].partition("\n# Runs")[0]
    beside = "start_types\n" + whole.partition("\nstart_types\n")[2]
    beside = beside.replace('"$python" -m pytest --collect-only -q $fast', "true")
    tests = f"run_tests() {{ touch tested; return {tested}; }}\n"
    script = f"set -eu\npython=./python fast=\n{functions}\n{tests}{beside}"
    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, timeout=60, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (expected, "x.py:1: error\n")
    assert "scripts/test took" in ended.stderr


def test_options_of_the_environment_count(tmp_path: Path) -> None:
    assert run_tests(tmp_path, "tests", [1, 0], "-v -x")[0] == 1
