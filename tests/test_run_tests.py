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


def test_options_of_the_environment_count(tmp_path: Path) -> None:
    assert run_tests(tmp_path, "tests", [1, 0], "-v -x")[0] == 1
