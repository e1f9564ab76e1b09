"""Prints the parts of a page on a terminal: its tables and notes, and labelled lines."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from dca_proto.cli.output import say, table
from dca_proto.report import blocks

_NAME_MAX = 16  # characters of a short name


def show(console: Console, parts: Iterable[blocks.Block], lines: Iterable[blocks.Line] = ()) -> None:
    """Print the tables and notes among a page's parts, then the lines."""
    for part in parts:
        if isinstance(part, blocks.PageTable):
            console.print(drawn(part), "")
        elif isinstance(part, blocks.Note):
            console.print(part.text, "", sep="\n")
    for line in lines:
        say(console, *line)


def drawn(data: blocks.PageTable) -> Table:
    """Return a table for rich. On a narrow console, text columns shrink first; numbers and short names stay whole."""
    is_short = all(len(blocks.text_of(row[0])) <= _NAME_MAX for row in data.rows)
    align = "".join(">" if is_number else "w" for is_number in data.numbers)
    align = ("<" if is_short else "w") + align[1:]
    rows = [[cell if isinstance(cell, str) else "\n".join(filter(None, cell[:2])) for cell in row] for row in data.rows]
    return table(data.header, rows, title=data.title or None, align=align)
