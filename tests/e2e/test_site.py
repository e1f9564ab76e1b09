"""The documentation site: built without a warning, whole, and loading nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import dca_proto

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_every_page_has_a_place_and_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        address = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert (site / address / "index.html").exists()
        assert f'href="{address}/"' in start, f"{address} is not in the navigation"
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text("utf-8"))
        assert not loaded, page


@pytest.mark.long
def test_the_reference_has_every_command_option_exit_code_and_exported_name(site: Path) -> None:
    page = (site / "reference/commands/index.html").read_text(encoding="utf-8")
    for entry in entry_points(group="dca.commands"):
        assert f"dca {entry.name}</h2>" in re.sub(r"<a class=\"headerlink.*?</a>", "", page)
    for option in ("--epsilon", "--data-nodes", "--coalition", "--log-json", "--output"):
        assert f"<code>{option}</code>" in page
    assert "StorageError" in page
    described = "".join((site / f"reference/{name}/index.html").read_text("utf-8") for name in ("python", "files"))
    exported = [name for name in dca_proto.__all__ if name not in ("__version__", "device")]
    assert [name for name in exported if f'.{name}" class="doc' not in described] == []
    results = (site / "reference/json/index.html").read_text(encoding="utf-8")
    for field in ("epsilon_charged_with_also", "pure_left", "contributors_hash", "virtual_s", "us_per_contribution"):
        assert f"<code>{field}</code>" in results
