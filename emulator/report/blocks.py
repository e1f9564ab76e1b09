"""What a page and a terminal show, as data: tables, texts, charts and sections; tables and notes on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import rich.table
from rich.console import Console

from dca_proto.cli import output
from emulator.report.charts import Chart
from emulator.report.figures import MIB, UNKNOWN, count, said, seconds, size
from emulator.results import Traffic

T = TypeVar("T")
Verdict = Literal["good", "bad", "neutral"]
Line = tuple[str, str]
"""A label and a text."""
_NUMBER = re.compile(r"[−+-]?[\d∞]|below|never|[–(]|$")


class Cell(NamedTuple):
    """A cell of a table: its text, what stands small below it, and whether it is "good" or "bad"."""

    text: str
    small: str = ""
    tone: str = ""


class Note(NamedTuple):
    """A paragraph."""

    text: str


class Heading(NamedTuple):
    """A heading within a section."""

    text: str


class Items(NamedTuple):
    """A list."""

    texts: Sequence[str]


class Code(NamedTuple):
    """A text as it was written, to be copied."""

    text: str


class Table(NamedTuple):
    """A table; a page shows its first rows, and says how many there are."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    title: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Which columns hold numbers: those, but for the first, of which each cell begins like one."""
        return [
            place > 0 and all(_NUMBER.match(text_of(row[place])) for row in self.rows)
            for place in range(len(self.header))
        ]


class Folded(NamedTuple):
    """Something that is shown on request."""

    summary: str
    block: Any


Block = Note | Heading | Items | Code | Table | Folded | Chart
Section = tuple[str, Sequence[Block]]


class Page(NamedTuple):
    """A page.

    Attributes:
        kind: of what. title: the result, in a sentence. badge: the verdict in one or two words, and `verdict`
        its sense. answer: the same in full: what was spent, who contributed. lead: sections directly under the
        headline. facts: at most five figures with labels. sections: below them; those without blocks are left out.
    """

    kind: str
    title: str
    badge: str
    verdict: Verdict
    answer: str
    facts: Sequence[Line]
    sections: Sequence[Section]
    lead: Sequence[Section] = ()

    @property
    def charts(self) -> list[Chart]:
        """What is drawn of it, in its order; captions begin with the heading above, if there is one."""
        found, heading = [], ""
        for block in (block for _, blocks in self.sections for block in (None, *blocks)):
            if isinstance(block, Chart):
                found.append(block._replace(caption=f"{heading}{block.caption}"))
            elif isinstance(block, Heading) or block is None:
                heading = f"{block.text}. " if block else ""
        return found


def text_of(cell: str | Cell) -> str:
    """What a cell says."""
    return cell if isinstance(cell, str) else cell.text


def table(
    records: Iterable[T], columns: Mapping[str, Callable[[T], str | Cell]], *, title: str = "", note: str = ""
) -> list[Block]:
    """A row for each record, and a note below; nothing where there is no record.

    Args:
        columns: what each says of a record, by its name; those that say nothing of all records are left out.
    """
    found = [[say(one) for say in columns.values()] for one in records]
    if not found:
        return []
    used = [place == 0 or any(row[place] not in ("", UNKNOWN) for row in found) for place in range(len(columns))]
    rows = [[cell for cell, is_used in zip(row, used, strict=True) if is_used] for row in found]
    header = [name for name, is_used in zip(columns, used, strict=True) if is_used]
    return [Table(header, rows, title), *([Note(note)] if note else [])]


def settings(pairs: Iterable[Line]) -> list[Block]:
    """Names and values, as a table."""
    rows = list(pairs)
    return [Table(("", ""), rows)] if rows else []


def fields(record: msgspec.Struct | Mapping[str, Any] | None) -> list[Block]:
    """The fields of a record and their values, as a table; nothing where there is none."""
    found = msgspec.structs.asdict(record) if isinstance(record, msgspec.Struct) else record or {}
    return settings((name.replace("_", " "), said(value)) for name, value in found.items())


def roles_table(
    roles: dict[str, Traffic], core_s: dict[str, float] | None = None, peaks_mb: dict[str, float] | None = None
) -> list[Block]:
    """What the actors of each role sent and used, and all of them; memory is of the largest process of each."""
    core_s, peaks_mb = {**(core_s or {}), **({"all": sum(core_s.values())} if core_s else {})}, peaks_mb or {}
    found = {**dict.fromkeys([*roles, *core_s]), **roles, "all": sum(roles.values(), Traffic())} if roles else {}
    return table(
        found.items(),
        {
            "role": lambda one: one[0],
            "messages": lambda one: UNKNOWN if one[1] is None else count(one[1].messages),
            "bytes": lambda one: UNKNOWN if one[1] is None else size(one[1].bytes),
            "core time": lambda one: seconds(core_s.get(one[0])),
            "memory": lambda one: size(
                max((MIB * most for name, most in peaks_mb.items() if name.startswith(one[0])), default=None)
            ),
        },
        title="sent and used by each role",
    )


def as_json(summary: str, value: Any) -> list[Block]:
    """Plain data as JSON, folded away; nothing where there is none."""
    if not value:
        return []
    return [Folded(summary, Code(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))]


_NAME_MAX = 16


def show(console: Console, blocks: Iterable[Block], lines: Iterable[Line] = ()) -> None:
    """Print the tables and notes among these blocks, then the lines."""
    for block in blocks:
        if isinstance(block, Table):
            console.print(drawn(block), "")
        elif isinstance(block, Note):
            console.print(block.text, "", highlight=False, markup=False, sep="\n")
    for line in lines:
        output.say(console, *line)


def drawn(table: Table) -> rich.table.Table:
    """A table; where the console is narrow, columns of texts give way to those of numbers and to short names."""
    is_short = all(len(text_of(row[0])) <= _NAME_MAX for row in table.rows)
    align = "".join(">" if is_number else "w" for is_number in table.numbers)
    align = ("<" if is_short else "w") + align[1:]
    rows = [
        [cell if isinstance(cell, str) else "\n".join(filter(None, cell[:2])) for cell in row] for row in table.rows
    ]
    return output.table(table.header, rows, title=table.title or None, align=align)
