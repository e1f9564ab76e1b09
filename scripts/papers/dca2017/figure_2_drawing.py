"""Draws Figure 2: the paper's panels with its curves on its axes, one picture of each valid setting, and a comparison.

The first picture has the authors' experiments above this library's, with the same curves on the same axes. In the
others, each setting has the axis that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from dca_proto.privacy.rounding import at_least
from inference.problem import Array
from papers import picture
from papers.dca2017 import figure_2 as of
from papers.dca2017.data import BY_NAME, DELTA
from papers.dca2017.figure_2 import AS_PUBLISHED, NP, OURS, PROJ_DDP, SAID, ZERO, Results

_STYLES: Mapping[str, Mapping[str, Any]] = {
    NP: {"color": picture.BLACK, "linestyle": "--", "marker": ""},
    of.PROJ_NP: {"color": picture.GREY, "linestyle": "--", "marker": ""},
    of.TA: {"color": picture.SKY, "marker": "o"},
    of.DDP: {"color": picture.BLUE, "marker": "s"},
    of.PERTURB: {"color": picture.PURPLE, "marker": "X"},
    of.PROJ_TA: {"color": picture.ORANGE, "marker": "^"},
    PROJ_DDP: {"color": picture.VERMILION, "marker": "D"},
}
_COMPARED, _FILES = "compared", dict(zip(of.SETTINGS[1:], ("corrected-absolute", "corrected", "ours"), strict=True))
_ABOVE: dict[str, Any] = {"marker": 10, "markersize": 7, "linestyle": ""}  # a triangle on the edge
_DODGE, _PANEL, _SMALL_PANEL, _RELATIVE_TOP, _NOTE_COLUMNS = 0.06, (4.8, 5.2), (4.8, 3.6), 1.5, 170


def draw_all(results: Results, path: Path) -> None:
    """Write all pictures: the paper's figure at the path, and the others beside it with their names added."""
    splits = next(iter(results.errors.values()))[OURS][NP].shape[1]
    runs = f"({splits} splits, δ = {at_least(DELTA)})"
    columns, words = len(results.errors), {setting: SAID["settings"][setting]["words"] for setting in of.SETTINGS}
    title = f"Figure 2: the paper's methods on its axes {runs}"
    with picture.drawing(path, rows=2, columns=columns, size=_SMALL_PANEL, title=title) as panels:
        for setting, line in zip((AS_PUBLISHED, OURS), panels, strict=True):
            for axes, name in zip(line, results.errors, strict=True):
                _panel(axes, results.errors[name][setting], BY_NAME[name].axis_max)
            line[0].set_ylabel("\n".join([*wrap(words[setting], 22), "MAE: median, quartiles"]))
        for column in panels.T:
            for axes in column:
                axes.set_ylim(min(one.get_ylim()[0] for one in column))
        _dress(panels, results, f"{SAID['known']}\n{SAID['not_private']}")
    beside = path.with_stem(f"{path.stem}-{_COMPARED}")
    title = f"Figure 2: projected DDP in all settings, relative to the zero predictor {runs}"
    with picture.drawing(beside, columns=columns, size=_PANEL, title=title) as panels:
        for axes, name in zip(panels[0], results.errors, strict=True):
            _compare(axes, results.errors[name])
        panels[0, 0].set_ylabel("MAE / MAE of the zero predictor")
        _dress(panels, results, f"{SAID['known']}\n{SAID['not_private']}")
    for setting, word in _FILES.items():
        beside, title = path.with_stem(f"{path.stem}-{word}"), f"Figure 2, {words[setting]} {runs}"
        with picture.drawing(beside, columns=columns, size=_PANEL, title=title) as panels:
            for axes, name in zip(panels[0], results.errors, strict=True):
                _panel(axes, results.errors[name][setting], None if setting == OURS else BY_NAME[name].axis_max)
            panels[0, 0].set_ylabel("MAE of the scaled target: median, quartiles")
            _dress(panels, results, SAID["known"])


def _panel(axes: Any, methods: Mapping[str, Array], top: float | None) -> None:
    """Draw all methods of one setting on one data set. Our errors, far below the paper's axis, have their own."""
    zero = float(np.median(methods[ZERO]))
    top = 1.35 * zero if top is None else top
    shown = [method for method in _STYLES if method in methods]
    for place, method in enumerate(shown):
        if method == NP:
            axes.axhline(np.median(methods[NP]), label=NP, linewidth=1.8, zorder=1, color=picture.BLACK, linestyle="--")
        else:
            _line(axes, methods[method], method, dict(_STYLES[method]), _DODGE * (place - len(shown) / 2), top)
    picture.zero_line(axes, zero)
    bottom = min(float(np.median(methods[NP])), *(float(np.min(np.median(methods[m], axis=1))) for m in shown))
    axes.set_ylim(bottom - 0.05 * (top - bottom), top)


def _line(axes: Any, values: Array, label: str, style: dict[str, Any], shift: float, top: float) -> None:
    """Draw medians with quartiles; mark values above the axis at its edge."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=1)
    x = np.arange(len(middle)) + shift
    bars = None if style["marker"] == "" else [middle - low, high - middle]
    axes.errorbar(x, middle, yerr=bars, label=label, linewidth=1.8, markersize=5, capsize=2, elinewidth=1, **style)
    for place in x[middle > top]:
        axes.plot([place], [top], **_ABOVE | {"color": style["color"], "clip_on": False})


def _compare(axes: Any, settings: Mapping[str, Mapping[str, Array]]) -> None:
    """Draw one method in all settings on one data set."""
    for setting, colour in ((AS_PUBLISHED, picture.ORANGE), (OURS, picture.BLACK)):
        label = "non-private" if setting == OURS else "non-private, as published"
        height = np.median(settings[setting][NP]) / np.median(settings[setting][ZERO])
        axes.axhline(height, color=colour, linestyle="--", linewidth=1.5, label=label, zorder=1)
    picture.zero_line(axes, 1.0, "zero predictor: above it is useless")
    for place, (setting, one) in enumerate(SAID["settings"].items()):
        dots = ":" if setting == AS_PUBLISHED else "-"
        style = {"color": getattr(picture, one["colour"]), "marker": one["marker"], "linestyle": dots}
        relative = settings[setting][PROJ_DDP] / np.median(settings[setting][ZERO])
        _line(axes, relative, one["words"], style, _DODGE * (place - 1.5), _RELATIVE_TOP)
    axes.set_ylim(0.62, _RELATIVE_TOP)


def _dress(panels: Any, results: Results, note: str) -> None:
    """Draw titles, axes and a legend for all panels, under a note on what is public and what is not private."""
    for letter, column, name in zip("abc", panels.T, results.errors, strict=False):
        one = BY_NAME[name]
        column[0].set_title(f"({letter}) {one.title}, n = {one.train:,}", fontsize=12, pad=10)
        for axes in column:
            axes.set_xticks(range(len(results.epsilons)), [at_least(epsilon) for epsilon in results.epsilons])
        column[-1].set_xlabel("ε")
    panels[0, 0].plot([], [], label="beyond the axis", **_ABOVE | {"color": picture.GREY})
    handles, labels = panels[0, 0].get_legend_handles_labels()
    columns = -(-len(labels) // 2) if len(labels) > 5 else len(labels)
    order = [place for column in range(columns) for place in range(column, len(labels), columns)]
    title = "\n".join(part for line in note.split("\n") for part in wrap(line, _NOTE_COLUMNS))
    style = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 11, "title_fontsize": 9}
    panels[0, 0].figure.legend([handles[at] for at in order], [labels[at] for at in order], title=title, **style)
