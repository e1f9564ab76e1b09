"""Figures 4 and 5 as pictures: a panel for each setting, means over ε with standard deviations over repeats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture
from papers.ldp2021.regression_data import PUBLISHED
from papers.ldp2021.regression_methods import (
    BAYES,
    CLASSICAL,
    COROLLARY,
    INPUTS,
    INPUTS_2,
    INPUTS_4,
    NO_MODEL,
    SGD,
    SGD_ALL,
    TIGHT,
    WITHOUT_NOISE,
)
from papers.ldp2021.regression_summary import HINDSIGHT, Results, spread

STYLES: Mapping[str, Mapping[str, Any]] = {
    TIGHT: {"color": picture.BLUE, "marker": "o", "linewidth": 2.0},
    COROLLARY: {"color": picture.SKY, "marker": "s"},
    INPUTS_2: {"color": picture.GREEN, "marker": "^"},
    INPUTS_4: {"color": picture.GREEN, "marker": "<", "linestyle": ":"},
    INPUTS: {"color": picture.GREEN, "marker": "v", "linestyle": "--"},
    SGD: {"color": picture.VERMILION, "marker": "D"},
    SGD_ALL: {"color": picture.PURPLE, "marker": "P"},
    HINDSIGHT: {"color": picture.ORANGE, "marker": "X", "linestyle": ":"},
}
LINES: Mapping[str, Mapping[str, Any]] = {
    BAYES: {"color": picture.BLACK, "linestyle": "--", "linewidth": 1.5, "zorder": 1},
    CLASSICAL: {"color": picture.BLACK, "linestyle": "-.", "linewidth": 1.0, "zorder": 1},
}
_PANEL = (5.6, 4.6)
_ASIDE = 0.035  # between methods, as a part of a decade
_ROOM = 10.0  # of the range between no privacy and no model that a panel shows beyond it
_WORDS = {PUBLISHED: "as published, NOT private"}


def draw(found: Results, path: Path) -> None:
    """Write the picture."""
    task, plan = found.task, found.plan
    title = f"{task.data}: {task.score} from local reports, δ = {at_least(plan.delta)}, {plan.repeats} repeats"
    with picture.drawing(path, columns=len(found.settings), size=_PANEL, title=title) as panels:
        for axes, setting in zip(panels[0], found.settings, strict=True):
            _panel(axes, found, setting)
        panels[0, 0].set_ylabel(task.score)
        picture.legend(panels)


def _panel(axes: Any, found: Results, setting: str) -> None:
    private = [method for method in found.methods(setting) if method not in WITHOUT_NOISE]
    for place, method in enumerate(private):
        epsilons = found.epsilons(setting, method)
        scores = [found.of(setting, method, epsilon) for epsilon in epsilons]
        x = np.array(epsilons) * 10 ** (_ASIDE * (place - (len(private) - 1) / 2))
        means, bars = [float(one.mean()) for one in scores], [spread(one) for one in scores]
        axes.errorbar(x, means, yerr=bars, label=method, markersize=5, capsize=2, elinewidth=0.8, **STYLES[method])
    for method, style in LINES.items():
        axes.axhline(float(found.of(setting, method).mean()), label=method, **style)
    useless = float(found.of(setting, NO_MODEL).mean())
    picture.zero_line(axes, useless, NO_MODEL)
    _limit(axes, found, setting, useless)
    axes.set(xscale="log", xlabel="ε", title=_WORDS.get(setting, setting))
    axes.set_xticks(found.plan.epsilons, [at_least(epsilon) for epsilon in found.plan.epsilons])
    axes.minorticks_off()


def _limit(axes: Any, found: Results, setting: str, useless: float) -> None:
    """What is far worse than no model leaves the panel: how much worse makes no difference."""
    best = float(found.of(setting, found.non_private(setting)).mean())
    reach = abs(useless - best)
    low, high = sorted((best + found.sign * 0.3 * reach, useless - found.sign * _ROOM * reach))
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, low), min(top, high))
