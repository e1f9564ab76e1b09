"""The files and names to which docs/code.md leads a reader, and the version that the citation names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
WALKS = CODE.partition("## Walk 1")[2].partition("## Dependencies")[0]
STEPS = re.findall(r"^\| .* \| (`.*`) \|$", WALKS, re.MULTILINE)


def found(path: str) -> Path:
    """A file of a walk: in the checkout, or, as the walks shorten it, in `dca_proto`."""
    places = [place for place in (ROOT / path, ROOT / "dca_proto" / path) if place.exists()]
    assert places, path
    return places[0]


def test_the_walks_have_steps() -> None:
    assert len(STEPS) > 30


@pytest.mark.parametrize("step", STEPS)
def test_a_step_leads_to_a_file_and_to_what_it_defines(step: str) -> None:
    for file, names in re.findall(r"`([\w/]+(?:\.py)?)`(?:: `([\w.]+)`)?", step):
        path = found(file)
        for name in filter(None, names.split(".")):
            assert re.search(rf"^\s*(?:def|class) {name}\b", path.read_text(), re.MULTILINE), f"{name} is not in {path}"


def test_the_folders_of_the_layout_exist() -> None:
    layout = CODE.partition("## Layout")[2].partition("\n## ")[0]
    folders = re.findall(r"^\| `([\w/.]+)`", layout, re.MULTILINE)
    assert len(folders) > 15
    assert not [folder for folder in folders if not (ROOT / folder).exists()]


def test_the_citation_names_the_version_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f'\nversion: "{project["version"]}"\n' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
