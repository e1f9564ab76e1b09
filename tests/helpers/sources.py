"""The source of the packages as syntax trees, each read once for all tests that look at code."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("dca_proto", "emulator", "inference")


class Source(NamedTuple):
    """A file: its path below the root, as text, and all nodes of its tree."""

    path: str
    nodes: tuple[ast.AST, ...]


@cache
def source(path: Path) -> Source:
    """Return one file's source.

    The nodes of all files are a million objects that stay. Searching them for garbage, again and again while there are
    more, would take four times as long as parsing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        nodes = tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    finally:
        gc.freeze()
        if collects:
            gc.enable()
    return Source(path.relative_to(ROOT).as_posix(), nodes)


def sources(*folders: str) -> list[Source]:
    """Return the sources of some folders; by default, of all packages."""
    return [source(path) for folder in folders or PACKAGES for path in sorted((ROOT / folder).rglob("*.py"))]
