"""Tables and lines on a terminal, from the blocks of which pages consist."""

from __future__ import annotations

from collections.abc import Iterable

import rich.table
from rich.console import Console

from dca_proto.cli import output
from emulator.report.blocks import Block, Line, Table, text_of


def show(console: Console, blocks: Iterable[Block], lines: Iterable[Line] = ()) -> None:
    """Print the tables among these blocks, then the lines."""
    for block in blocks:
        if isinstance(block, Table):
            console.print(drawn(block), "")
    for line in lines:
        output.say(console, *line)


def drawn(table: Table) -> rich.table.Table:
    """A table; where the console is narrow, columns of texts give way to those of numbers."""
    align = "".join(">" if is_number else "w" for is_number in table.numbers)
    rows = [[text_of(cell) for cell in row] for row in table.rows]
    return output.table(table.header, rows, title=table.title or None, align=align)
