"""Renders a page as HTML with one template: the answer first, then at most five figures, then sections.

The content security policy allows this page's own style, by its hash, and forbids everything else: scripts, images,
fonts, connections, forms and style attributes. Jinja2 escapes all texts. Control characters, and those that change the
writing direction, could mislead a reader: they are shown as U+FFFD. Long texts are cut.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dca_proto.report.blocks import Page
from dca_proto.report.charts import DESK_PX, PHONE_PX, Chart, svg
from dca_proto.report.formats import plain

FACTS_MAX, ROWS_MAX, CODE_MAX = 5, 200, 20_000
_WHOLE = re.compile(r"\b\w{1,24}(?:-\w{1,12}){0,3}-\d{1,8}(?:T[\d:]{4,8}Z)?\b(?!-\w)", re.ASCII)
"""Dates, also with a time, and names with a number, as compute-1."""


def policy(style: str) -> str:
    """Return the content security policy of a page with this style."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def render(page: Page, source: str) -> str:
    """Return the HTML of a page; `source` is the name of the file that it was made from."""
    templates = environment("dca_proto.report")
    style = templates.get_template("page.css").render()
    numbers = itertools.count(1)
    return templates.get_template("page.html").render(
        page=page, source=source, policy=policy(style), facts=page.facts[:FACTS_MAX],
        draw=lambda chart: drawn(chart, f"{next(numbers)}"),
        rows_max=ROWS_MAX, style=Markup(style),  # noqa: S704 - our own
    )  # fmt: skip


def drawn(chart: Chart, name: str) -> Markup:
    """Return the HTML of a chart, wide and narrow; `name` makes the ids in it unique on the page."""
    try:
        wide, narrow = (svg(chart, width, f"{name}-{width}") for width in (DESK_PX, PHONE_PX))
    except Exception as error:  # whatever matplotlib cannot draw: the rest of the page is worth having
        why = plain(f"This chart could not be drawn ({type(error).__name__}: {error}).")
        return Markup('<p class="bad-text">{}</p>').format(why)
    return Markup(f'<div class="desk">{wide}</div><div class="phone">{narrow}</div>')  # noqa: S704 - our own


@cache
def environment(package: str) -> Environment:
    """Return what finds templates in a package. It escapes all texts."""
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda shown: shown if isinstance(shown, Markup) else plain(str(shown), CODE_MAX),
    )
    environment.filters |= {"kind_of": lambda block: type(block).__name__, "cut": plain}
    environment.filters["whole"] = _whole
    return environment


def _whole(shown: object) -> Markup:
    """Escape a text, and keep each date and numbered name in it on one line: a narrow column would break it."""
    html = str(escape(plain(str(shown), CODE_MAX)))
    return Markup(_WHOLE.sub(r'<span class="whole">\g<0></span>', html))  # noqa: S704 - it was escaped
