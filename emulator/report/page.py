"""What a page consists of, and its HTML: the answer first, at most five figures, then sections, all by one template.

The content policy forbids everything but this page's own style, by its hash: no script, no image, no font, no
connection, no form, no style attribute. Jinja2 escapes all texts, so that they can become nothing but text; what could
mislead a reader's eye is seen to here: control characters and those that turn the writing direction are shown as
U+FFFD, and long texts are cut.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from emulator.report.charts import DESK_PX, PHONE_PX, Chart, svg
from emulator.report.figures import plain

Verdict = Literal["good", "bad", "neutral"]
FACTS_MAX, CODE_MAX = 5, 20_000


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
    """A table, which scrolls by itself where the page is narrow; columns that are not `text_columns` hold numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    text_columns: Sequence[int] = (0,)


class Folded(NamedTuple):
    """Something that is shown on request."""

    summary: str
    block: Any


Block = Note | Heading | Items | Code | Table | Folded | Chart
Section = tuple[str, Sequence[Block]]


class Page(NamedTuple):
    """A page.

    Attributes:
        kind: of what, in words. title: the result, in a sentence. badge: the verdict in a word or two, and `verdict`
        its sense. answer: the same in full: what was spent, who contributed. lead: sections directly under the
        headline. facts: at most five figures with labels. sections: below them; those without blocks are left out.
    """

    kind: str
    title: str
    badge: str
    verdict: Verdict
    answer: str
    facts: Sequence[tuple[str, str]]
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


def settings(pairs: Iterable[tuple[str, str]]) -> list[Block]:
    """Names and values, as a table."""
    rows = list(pairs)
    return [Table(("", ""), rows, text_columns=(0, 1))] if rows else []


def as_json(summary: str, value: Any) -> list[Block]:
    """Plain data as JSON, folded away; nothing where there is none."""
    if not value:
        return []
    return [Folded(summary, Code(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))]


def policy(style: str) -> str:
    """The content security policy of a page with that style."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def render(page: Page, source: str) -> str:
    """The HTML text of a page; `source` is the name of the file that it was made from."""
    environment = _environment()
    style = environment.get_template("page.css").render()
    drawn: list[Chart] = []

    def both(chart: Chart) -> Markup:
        drawn.append(chart)
        wide, narrow = (svg(chart, width, f"{len(drawn)}-{width}") for width in (DESK_PX, PHONE_PX))
        return Markup(f'<div class="desk">{wide}</div><div class="phone">{narrow}</div>')  # noqa: S704 - our own

    return environment.get_template("page.html").render(
        page=page, source=source, policy=policy(style), draw=both, facts=page.facts[:FACTS_MAX],
        style=Markup(style),  # noqa: S704 - our own
    )  # fmt: skip


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("emulator.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda shown: shown if isinstance(shown, Markup) else plain(str(shown), CODE_MAX),
    )
    made.filters |= {"kind_of": lambda block: type(block).__name__, "cut": plain}
    return made
