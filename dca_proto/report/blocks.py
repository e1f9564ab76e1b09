"""The parts of a page as data: tables, texts, charts and sections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from dca_proto.report.charts import Chart
from dca_proto.report.formats import MIB, UNKNOWN, count, seconds, setting, size
from dca_proto.results.round import Traffic
from dca_proto.wording import counted

T = TypeVar("T")
Verdict = Literal["good", "bad", "neutral"]
Line = tuple[str, str]
"""A label and a text."""
_NUMBER = re.compile(r"(?!\d{4}-\d\d-)[−+-]?[\d∞]|below|never|[–(]|$")


class StyledCell(NamedTuple):
    """A cell of a table: its text, a small text below it, and a tone, "good" or "bad".

    `part`, from 0 to 1, is shown as a bar below the text; below 0 there is none.
    """

    text: str
    small: str = ""
    tone: str = ""
    part: float = -1.0


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
    """Preformatted text."""

    text: str


class PageTable(NamedTuple):
    """A table. A page shows only its first rows, and states how many there are."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | StyledCell]]
    title: str = ""

    @property
    def numbers(self) -> list[bool]:
        """For each column, whether it holds numbers: every cell begins like one. The first column never does."""
        return [
            place > 0 and all(_NUMBER.match(text_of(row[place])) for row in self.rows)
            for place in range(len(self.header))
        ]


class Folded(NamedTuple):
    """A block that the reader can unfold."""

    summary: str
    block: Any


Block = Note | Heading | Items | Code | PageTable | Folded | Chart
Section = tuple[str, Sequence[Block]]


class Page(NamedTuple):
    """A page.

    Attributes:
        kind: the kind of run. title: the result in a sentence. badge: the verdict in one or two words.
        verdict: the colour of the badge. answer: the result in full: what was spent, who contributed.
        warnings: what speaks against the result, shown first; beside them no badge is green.
        lead: sections directly under the headline. facts: at most five figures with labels.
        sections: the rest; sections without blocks are left out.
    """

    kind: str
    title: str
    badge: str
    verdict: Verdict
    answer: str
    facts: Sequence[Line]
    sections: Sequence[Section]
    lead: Sequence[Section] = ()
    warnings: Sequence[str] = ()

    @property
    def mark(self) -> tuple[str, Verdict]:
        """The text and the colour of the badge."""
        if not self.warnings:
            return self.badge, self.verdict
        return (
            f"{self.badge}, with {counted(len(self.warnings), 'warning')}",
            "bad" if self.verdict == "good" else self.verdict,
        )

    @property
    def charts(self) -> list[Chart]:
        """The charts in `sections`, in order; each caption begins with the heading above it, if there is one."""
        charts = []
        for _, blocks in self.sections:
            heading = ""
            for block in blocks:
                if isinstance(block, Chart):
                    charts.append(block._replace(caption=f"{heading}{block.caption}"))
                elif isinstance(block, Heading):
                    heading = f"{block.text}. "
        return charts


def text_of(cell: str | StyledCell) -> str:
    """Return the text of a cell."""
    return cell if isinstance(cell, str) else cell.text


def table(
    records: Iterable[T], columns: Mapping[str, Callable[[T], str | StyledCell]], *, title: str = "", note: str = ""
) -> list[Block]:
    """Return a table with a row for each record, and a note below it; nothing if there are no records.

    Args:
        columns: by name, a function from a record to its cell. A column that is empty for all records is left out.
    """
    cells = [[cell_of(record) for cell_of in columns.values()] for record in records]
    if not cells:
        return []
    used = [place == 0 or any(row[place] not in ("", UNKNOWN) for row in cells) for place in range(len(columns))]
    rows = [[cell for cell, is_used in zip(row, used, strict=True) if is_used] for row in cells]
    header = [name for name, is_used in zip(columns, used, strict=True) if is_used]
    return [PageTable(header, rows, title), *([Note(note)] if note else [])]


def settings(pairs: Iterable[Line]) -> list[Block]:
    """Return a table of names and values."""
    rows = list(pairs)
    return [PageTable(("", ""), rows)] if rows else []


def fields(record: msgspec.Struct | Mapping[str, Any] | None) -> list[Block]:
    """Return a table of a record's fields and their values; nothing if there is no record."""
    values = msgspec.structs.asdict(record) if isinstance(record, msgspec.Struct) else record or {}
    return settings((name.replace("_", " "), setting(value)) for name, value in values.items())


def roles_table(
    roles: dict[str, Traffic], core_s: dict[str, float] | None = None, peaks_mb: dict[str, float] | None = None
) -> list[Block]:
    """Return the traffic and the core time of each role and of all; memory is that of a role's largest process."""
    core_s, peaks_mb = {**(core_s or {}), **({"all": sum(core_s.values())} if core_s else {})}, peaks_mb or {}
    traffic = {**dict.fromkeys([*roles, *core_s]), **roles, "all": sum(roles.values(), Traffic())} if roles else {}
    return table(
        traffic.items(),
        {
            "role": lambda item: item[0],
            "messages": lambda item: UNKNOWN if item[1] is None else count(item[1].messages),
            "bytes": lambda item: UNKNOWN if item[1] is None else size(item[1].bytes),
            "core time": lambda item: seconds(core_s.get(item[0])),
            "memory": lambda item: size(
                max((MIB * peak for name, peak in peaks_mb.items() if name.startswith(item[0])), default=None)
            ),
        },
        title="sent and used by each role",
    )


def as_json(summary: str, value: Any) -> list[Block]:
    """Return plain data as folded JSON; nothing if there is no data."""
    if not value:
        return []
    return [Folded(summary, Code(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))]
