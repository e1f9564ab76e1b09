"""The HTML of a page: the answer first, at most five figures, then sections, all by one template.

The content policy forbids everything but this page's own style, by its hash: no script, no image, no font, no
connection, no form, no style attribute. Jinja2 escapes all texts, so that they can become nothing but text; what could
mislead a reader's eye is seen to here: control characters and those that turn the writing direction are shown as
U+FFFD, and long texts are cut.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from emulator.report.blocks import Page
from emulator.report.charts import DESK_PX, PHONE_PX, Chart, svg
from emulator.report.figures import plain

FACTS_MAX, ROWS_MAX, CODE_MAX = 5, 200, 20_000


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
        most=ROWS_MAX, style=Markup(style),  # noqa: S704 - our own
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
