"""Renders the dashboard: the whole page once, and then the sections whose HTML has changed.

Jinja2 escapes all texts, as in `dca_proto.report.page`, whose macros, style and charts these are. The page's script and
style are files of this server. Its policy lets a browser load these two and the events, and run or style nothing else.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dca_proto.dashboard.view import BoardView
from dca_proto.report.charts import Chart
from dca_proto.report.page import drawn, environment
from dca_proto.wording import counted

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_FOLDER = Path(__file__).parent


@cache
def script() -> str:
    """Return the page's script."""
    return (_FOLDER / "page.js").read_text(encoding="utf-8")


@cache
def style() -> str:
    """Return the page's style: that of reports, and what only the dashboard has."""
    report = environment("dca_proto.report").get_template("page.css").render()
    return report + (_FOLDER / "page.css").read_text(encoding="utf-8")


class Renderer:
    """Renders views. A chart is drawn again only if its caption, which states its latest point, has changed."""

    def __init__(self) -> None:
        self._macros: Any = environment("dca_proto.report").get_template("blocks.html")
        self._page = environment("dca_proto.dashboard").get_template("page.html")
        self._drawn: dict[str, Markup] = {}
        self._numbers = itertools.count(1)  # an old chart may stand beside a new one, so names are never used again

    def sections(self, view: BoardView) -> dict[str, str]:
        """Return the HTML of what changes on the page, by the id of its element."""
        used: dict[str, Markup] = {}

        def draw(chart: Chart) -> Markup:
            used[chart.caption] = self._drawn.get(chart.caption) or drawn(chart, f"{next(self._numbers)}")
            return used[chart.caption]

        module = self._macros.make_module({"draw": draw, "source": "dca status --json", "rows_max": 200})
        found = {"title": str(Markup.escape(view.title)), "badge": str(module.badge(*_badge(view))).strip()}
        found |= {part.name: str(module.section(part.heading, part.blocks)).strip() for part in view.parts}
        self._drawn = used
        return found

    def page(self, sections: dict[str, str], token: str) -> str:
        """Return the whole page. Its links have the token, which a browser sends to nobody else."""
        parts = {name: Markup(html) for name, html in sections.items()}  # noqa: S704 - escaped by the macros
        return self._page.render(parts=parts, token=token)


def _badge(view: BoardView) -> tuple[str, str]:
    if view.is_well:
        return "all is well", "good"
    (warnings,) = (part for part in view.parts if part.name == "warnings")
    return counted(sum(len(getattr(block, "texts", ())) for block in warnings.blocks), "warning"), "bad"
