"""What all pages share: the answer first, then figures, then sections; and a policy that lets nothing in from outside.

The content policy forbids everything but this page's own style, by its hash: no script, no image, no font, no
connection, no form, no style attribute. So even text that were somehow taken for markup could load and run nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from xml.etree.ElementTree import Element

import msgspec

from emulator.report.markup import Child, code, document, element, fill
from emulator.report.style import STYLE

Verdict = Literal["good", "bad", "neutral"]


class Section(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    content: Sequence[Child]


class Page(NamedTuple):
    """A page.

    Attributes:
        kind: of what, in words. title: the result, in a sentence. badge: the verdict in a word or two, and `verdict`
        its sense. answer: the same in full: what was spent, who contributed. facts: figures with labels.
        sections: below the facts. lead: sections above them, directly under the headline.
    """

    kind: str
    title: str
    badge: str
    verdict: Verdict
    answer: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    lead: Sequence[Section] = ()


def policy() -> str:
    """The content security policy of every page."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def render(page: Page, source: str) -> str:
    """The HTML text of a page; `source` is the name of the file that it was made from."""
    root = element("html", _head(page), element("body", _main(page), _footer(source)), lang="en")
    return document(root)


def note(text: str) -> Element:
    """A paragraph."""
    return element("p", text)


def folded(summary: str, value: Any) -> Element:
    """Plain data as JSON, folded away."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return element("details", element("summary", summary), code(text))


def _head(page: Page) -> Element:
    style = element("style")
    style.text = STYLE  # ours, and of fixed content: the policy holds its hash
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{page.title} · {page.kind}"),
        style,
    )


def _main(page: Page) -> Element:
    facts = element("dl", class_="facts")
    for label, value in page.facts:
        facts.append(element("div", element("dt", label), element("dd", value)))
    main = element(
        "main",
        element("p", page.kind, class_="kind"),
        element("h1", page.title),
        element("span", page.badge, class_=f"badge {page.verdict}"),
        element("p", page.answer),
    )
    fill(main, [_section(section) for section in page.lead if section.content])
    fill(main, [facts] if page.facts else [])
    fill(main, [_section(section) for section in page.sections if section.content])
    return main


def _section(section: Section) -> Element:
    return element("section", element("h2", section.heading), *section.content)


def _footer(source: str) -> Element:
    return element("footer", f"Made from {source} by dca report. This page is whole in itself: it loads nothing.")
