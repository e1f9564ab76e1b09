"""What a page and a screen consist of, as data: tables, texts, charts and sections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from emulator.report.charts import Chart
from emulator.report.figures import UNKNOWN

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


def as_json(summary: str, value: Any) -> list[Block]:
    """Plain data as JSON, folded away; nothing where there is none."""
    if not value:
        return []
    return [Folded(summary, Code(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))]
