"""Another project's `inference` or `emulator` in place of ours is one clear line, and is not imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dca_proto.cli import foreign_package

ROOT = Path(__file__).parents[1]
FOREIGN = 'raise SystemExit("a foreign package was imported")\n'


def dca(folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """`dca keygen key`, in a folder, with these places first on Python's path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    arguments = [sys.executable, "-m", "dca_proto.cli", "keygen", "key", "--role", "client"]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def refused(done: subprocess.CompletedProcess[str], name: str, found: Path, expected: Path) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"dca: cannot use package '{name}': found another project's, {found}, expected ")
    assert f"this project's, {expected}; install this project into a separate environment" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["inference", "emulator"])
def test_a_foreign_package_earlier_on_the_path_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (planted := tmp_path / name / "__init__.py").write_text(FOREIGN)
    refused(dca(tmp_path, tmp_path, ROOT), name, planted, ROOT / name / "__init__.py")


def test_a_foreign_module_in_the_current_folder_is_refused(tmp_path: Path) -> None:
    (planted := tmp_path / "inference.py").write_text(FOREIGN)
    refused(dca(tmp_path, ROOT), "inference", planted, ROOT / "inference" / "__init__.py")


def test_a_foreign_wheel_over_ours_is_refused_and_ours_is_not(tmp_path: Path) -> None:
    """Installed into the same folder, later."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    for name in ("dca_proto", "inference", "emulator"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    replaced = site / "inference" / "__init__.py"
    ours = replaced.read_text()
    replaced.write_text(FOREIGN)
    refused(dca(work, site), "inference", replaced, replaced)
    replaced.write_text(ours)
    assert foreign_package() is None
    assert "foreign" not in dca(work, site).stderr
    assert (work / "key").exists()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dca_proto.cli.importlib.util.find_spec", lambda name: None)
    assert (foreign_package() or "").startswith("cannot use package 'inference': found no such package, expected this")
