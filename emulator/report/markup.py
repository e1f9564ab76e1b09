"""HTML and SVG elements, built as a tree: text can become nothing but text, whatever stands in it.

Serialising and escaping is the standard library's (`xml.etree`). What could mislead a reader's eye is seen to here:
control characters and those that turn the writing direction are shown as U+FFFD, long texts are cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from xml.etree.ElementTree import Element, SubElement, tostring

TEXT_MAX, LABEL_MAX, CODE_MAX = 2_000, 80, 20_000
_ALSO_SHOWN = "\n\u00a0"  # breaks, and the space between a number and its unit
Child = Element | str | None


def element(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """An element.

    Args:
        tag: its name; never from data. children: elements and texts; None is left out.
        attributes: names with underscores for hyphens, `class_` for class; None is left out.
    """
    made = Element(tag, {_attribute(key): _value(value) for key, value in attributes.items() if value is not None})
    fill(made, children)
    return made


def fill(parent: Element, children: Iterable[Child]) -> None:
    """Append children, texts among them."""
    for child in children:
        if isinstance(child, str):
            _append_text(parent, plain(child))
        elif child is not None:
            parent.append(child)


def plain(text: str, longest: int = TEXT_MAX) -> str:
    """A text as it may be shown: printable, and not too long."""
    cut = text if len(text) <= longest else f"{text[:longest]}…"
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() or one in _ALSO_SHOWN else "\ufffd" for one in cut)


def chart_row(label: str, drawn: Element, value: str) -> Element:
    """One row of a chart: what is drawn between its label and its value in words."""
    beside = element("span", plain(label, LABEL_MAX), class_="label"), drawn, element("span", value, class_="value")
    return element("div", *beside, class_="row")


def code(text: str) -> Element:
    """A text as it was written, to be copied."""
    made = element("pre")
    made.text = plain(text, CODE_MAX)
    return made


def table(header: Iterable[Child], rows: Iterable[Iterable[Child]], *, text_columns: Collection[int] = (0,)) -> Element:
    """A table that scrolls by itself where the page is narrow; columns that are not `text_columns` hold numbers."""
    made = element("table")
    SubElement(made, "thead").append(_row("th", header, text_columns))
    body = SubElement(made, "tbody")
    for row in rows:
        body.append(_row("td", row, text_columns))
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label="table")


def document(root: Element) -> str:
    """The HTML text of a whole page."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def _row(cell: str, values: Iterable[Child], text_columns: Collection[int]) -> Element:
    cells = [
        element(cell, value, class_=None if place in text_columns else "number") for place, value in enumerate(values)
    ]
    return element("tr", *cells)


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return plain(value, len(value)) if isinstance(value, str) else f"{value:.6g}"


def _append_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
