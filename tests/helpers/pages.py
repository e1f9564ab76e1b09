"""Parses pages of runs: their text, their tables, and the texts of their charts."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from unittest.mock import patch

from dca_proto.report import page as pages
from dca_proto.report.blocks import Page
from dca_proto.report.page import render
from dca_proto.report.reading import KINDS


class Outline(HTMLParser):
    """Elements, attributes and texts of a page; `rows`, of its tables, as the texts of their cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self._cells: list[list[str]] = []
        self._texts: list[str] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._in_style = tag == "style"
        if tag == "tr":
            self._cells.append([])
        elif tag in ("td", "th"):
            self._cells[-1].append("")
        elif tag != "span" and self._cells and self._cells[-1]:
            self._cells[-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self._in_style = False
        if tag == "table":
            self._cells.append([])

    def handle_data(self, data: str) -> None:
        if self._in_style:
            return
        self._texts.append(data)
        if self._cells and self._cells[-1]:
            self._cells[-1][-1] += data

    @property
    def rows(self) -> list[list[str]]:
        """The texts of cells, row by row; an empty row after each table."""
        return [[" ".join(cell.replace("\u00a0", " ").split()) for cell in row] for row in self._cells]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).replace("\u00a0", " ").split())


def page_of(run: dict[str, Any]) -> Page:
    """Return the page of a run, with nothing drawn yet."""
    return KINDS[run["kind"]].page(run)


def html_of(run: dict[str, Any], *, drawn: bool = True) -> str:
    """Return the HTML of a run's page; charts, which are slow, are drawn on request."""
    if drawn:
        return render(page_of(run), "run.json")
    with patch.object(pages, "svg", lambda chart, width, name: "<svg></svg>"):
        return render(page_of(run), "run.json")


def outline_of(run: dict[str, Any], *, drawn: bool = False) -> Outline:
    """Return the outline of a run's page."""
    return Outline(html_of(run, drawn=drawn))


def text_of(run: dict[str, Any], *, drawn: bool = False) -> str:
    """Return the text of a run's page, without its charts unless they are drawn."""
    return outline_of(run, drawn=drawn).text
