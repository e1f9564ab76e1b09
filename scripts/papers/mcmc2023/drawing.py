"""Tables 1 and 2 as a picture: a panel for each data set and setting, means and intervals over J."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture
from papers.mcmc2023.data import PUBLISHED, ROAD
from papers.mcmc2023.paper import ADASSP, BERNSTEIN_SHELDON, FAST, FIXED_S, NORMAL_X, TABLES, Printed
from papers.mcmc2023.summary import Found
from papers.mcmc2023.tables import EPSILON, NON_PRIVATE, ZERO

STYLES: Mapping[str, Mapping[str, Any]] = {
    NORMAL_X: {"color": picture.BLUE, "marker": "o"},
    FIXED_S: {"color": picture.GREEN, "marker": "s"},
    FAST: {"color": picture.ORANGE, "marker": "^"},
    BERNSTEIN_SHELDON: {"color": picture.PURPLE, "marker": "X"},
    ADASSP: {"color": picture.VERMILION, "marker": "D"},
}
"""Of the private methods, in all pictures of these experiments."""
FLOOR_STYLE: Mapping[str, Any] = {"color": picture.BLACK, "linestyle": "--", "linewidth": 1.5, "zorder": 1}
_PANEL = (4.6, 3.8)
_REACH = 0.36  # of a panel's J, to both sides
_ASIDE = 0.35  # of a method's width: the paper's beside ours
_LEAST = 1e-4  # of what is drawn: bike sharing has no error without privacy


def draw_tables(found: Sequence[Found], path: Path) -> None:
    """Write the picture."""
    settings = list(dict.fromkeys(one.cell.setting for one in found))
    names = list(dict.fromkeys(one.cell.name for one in found))
    title = f"Prediction errors at ε = {at_least(EPSILON)}: means and 90 % intervals (grey, aside: the paper's)"
    rows, columns = len(settings), len(names)
    with picture.drawing(path, rows=rows, columns=columns, size=_PANEL, title=title) as panels:
        for line, setting in zip(panels, settings, strict=True):
            for axes, name in zip(line, names, strict=True):
                _panel(axes, [one for one in found if (one.cell.setting, one.cell.name) == (setting, name)])
                axes.set_title(f"{name}{' (simulated)' if name == ROAD else ''}, {setting}", fontsize=11)
            line[0].set_ylabel("mean squared error")
        picture.legend(panels)


def _panel(axes: Any, found: Sequence[Found]) -> None:
    nodes = list(dict.fromkeys(one.cell.nodes for one in found))
    shown = [method for method in STYLES if any(one.cell.method == method for one in found)]
    width = 2 * _REACH / max(len(shown), 1)
    for place, method in enumerate(shown):
        own = [one for one in found if one.cell.method == method]
        x = [nodes.index(one.cell.nodes) - _REACH + width * (place + 0.5) for one in own]
        for at, one in zip(x, own, strict=True):
            if one.cell.setting == PUBLISHED and one.key in TABLES:
                _printed(axes, at + _ASIDE * width, TABLES[one.key])
        means = [one.mean for one in own]
        bars = [[one.mean - one.low for one in own], [one.high - one.mean for one in own]]
        axes.errorbar(x, means, yerr=bars, label=method, linestyle="", markersize=5, capsize=2, **STYLES[method])
    _lines(axes, found)
    axes.set_yscale("log")
    axes.set_xticks(range(len(nodes)), [f"J = {J}" for J in nodes])


def _printed(axes: Any, at: float, printed: Printed) -> None:
    """The paper's mean and interval, in grey."""
    bars = [[printed.mean - printed.low], [printed.high - printed.mean]]
    style = {"color": picture.GREY, "marker": "_", "markersize": 6, "elinewidth": 1}
    axes.errorbar([at], [printed.mean], yerr=bars, linestyle="", zorder=0, **style)


def _lines(axes: Any, found: Sequence[Found]) -> None:
    """Heights of what uses no privacy, and no data."""
    by_method = {one.cell.method: one.mean for one in found}
    if by_method.get(NON_PRIVATE, 0.0) > _LEAST:
        axes.axhline(by_method[NON_PRIVATE], label=NON_PRIVATE, **FLOOR_STYLE)
    if ZERO in by_method:
        picture.zero_line(axes, by_method[ZERO])
