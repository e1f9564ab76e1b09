"""The selection of `scripts/test --fast`: every promise and every package has a test in it, and each one exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("dca_proto", "emulator", "inference")
AREAS_MIN = 8


def areas(text: str) -> dict[str, list[str]]:
    """Arguments to pytest by the comment above them; the comment that begins the file is the rule."""
    found = {}
    for paragraph in text.split("\n\n")[1:]:
        title, *lines = paragraph.splitlines()
        assert title.startswith("# "), title
        found[title] = [line for line in lines if line]
    return found


AREAS = areas((ROOT / "tests" / "fast.txt").read_text())
SELECTED = [argument for arguments in AREAS.values() for argument in arguments]


def by_name(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: node for node in found if node.name.startswith("test_")}


def test_every_promise_has_a_test_and_none_is_there_twice() -> None:
    assert len(AREAS) >= AREAS_MIN
    assert [title for title, arguments in AREAS.items() if not arguments] == []
    assert len(set(SELECTED)) == len(SELECTED)
    assert not set(SELECTED) & {argument.partition("::")[0] for argument in SELECTED if "::" in argument}


@pytest.mark.parametrize("argument", SELECTED)
def test_what_is_selected_exists_and_is_not_long(argument: str) -> None:
    """A parametrised test is selected by its name alone, so that other values of its parameters do not lose it."""
    path, _, name = argument.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    found = by_name(tree)
    chosen = [found[name]] if name else list(found.values())
    short = [test for test in chosen if not any("mark.long" in ast.unparse(mark) for mark in test.decorator_list)]
    assert short
    assert not any(re.match(r"pytestmark\b.*mark\.long", ast.unparse(node)) for node in tree.body)


def test_every_package_is_imported_by_a_selected_test() -> None:
    packages = {f"{name}.{path.parent.name}" for name in PACKAGES for path in (ROOT / name).glob("*/__init__.py")}
    text = "".join((ROOT / argument.partition("::")[0]).read_text() for argument in SELECTED)
    imported = set(re.findall(r"^(?:from|import) (\w+\.\w+)", text, re.MULTILINE))
    assert sorted(packages - imported) == []


def test_every_folder_of_tests_is_there() -> None:
    """Of the papers and of whole commands, and of each package's folders; models are one."""
    folders = {path.relative_to(ROOT).parts[1:-1][:2] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert folders - {(name,) for name in PACKAGES} - {tuple(one.split("/")[1:-1][:2]) for one in SELECTED} == set()
