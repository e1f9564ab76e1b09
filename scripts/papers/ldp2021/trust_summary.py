"""Who adds the noise, from the cells: errors and coverage with intervals, when which pays, tables, checks, picture.

**Intervals** are Student's over the repeats, which are independent, each at the level 1 - 0.01/K for the K of a kind
that are looked at: so all of a kind hold together with a probability of 99 %, about (Bonferroni). Coverage of a repeat
is that of several numbers, which depend on each other; the repeat is what is counted.

**It pays** where the mean error is at most `NEAR` above the one without privacy.

"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture, student
from emulator.experiments.runner import Check, table
from inference.bounds import PUBLISHED_WITH_ROWS
from inference.draws import R_HAT_REQUIRED
from papers.ldp2021.column_fits import Array
from papers.ldp2021.trust import AWARE, DCA, LEVELS, LOCAL, NAIVE, TRUST, TRUSTED, WINES, Cell, Plan

FITS = (AWARE, NAIVE)
LEVEL = 0.99
NEAR = 0.1
SAME = 0.05
SHOWN = 1  # of the levels: 90 %
STYLES: Mapping[str, Mapping[str, Any]] = {
    trust: {"color": colour, "marker": marker}
    for trust, colour, marker in zip(TRUST, picture.COLOURS, picture.MARKERS, strict=False)
}
LINES: Mapping[str, Mapping[str, Any]] = {
    AWARE: {"linestyle": "-"},
    NAIVE: {"linestyle": ":", "markerfacecolor": "white"},
}
_PANEL = (5.0, 3.9)
_ASIDE = 0.03  # between curves, as a part of a decade


@dataclass(frozen=True)
class Series:
    """All repeats of one fit at an ε, by who adds the noise.

    Attributes:
        error: shape ``(repeats,)``. covered: by level, ``(repeats, levels)``. r_hat: ``(repeats,)``.
    """

    error: Array
    covered: Array
    r_hat: Array


Key = tuple[str, str, float, str]
"""Data, who adds the noise, ε, fit."""


@dataclass(frozen=True)
class Results:
    """What the cells found.

    Attributes:
        series: by key. without: by data, the errors without privacy and without a model, shape ``(2, repeats)``.
    """

    plan: Plan
    series: Mapping[Key, Series]
    without: Mapping[str, Array]

    def of(self, data: str, trust: str, epsilon: float, fit: str) -> Series:
        """One of them."""
        return self.series[data, trust, epsilon, fit]


def gathered(cells: Sequence[Cell], results: Sequence[Mapping[str, Any]], plan: Plan) -> Results:
    """All repeats of each, in their order."""
    parts: dict[tuple[str, str, float], list[Mapping[str, Any]]] = {}
    for cell, result in zip(cells, results, strict=True):
        parts.setdefault((cell.data, cell.trust, cell.epsilon), []).append(result)
    series = {
        (*key, fit): _series([one for part in own for one in part[fit]]) for key, own in parts.items() for fit in FITS
    }
    names = ("without privacy", "without a model")
    without = {
        data: np.array([[one for part in parts[data, LOCAL, plan.epsilons[0]] for one in part[name]] for name in names])
        for data in plan.data
    }
    return Results(plan, series, without)


def _series(repeats: Sequence[Mapping[str, Any]]) -> Series:
    return Series(*(np.array([one[name] for one in repeats]) for name in ("error", "covered", "r_hat")))


def interval(values: Array, count: int) -> tuple[float, float, float]:
    """The mean over repeats and its interval, simultaneous with `count` in all."""
    mean = float(values.mean())
    reach = student.t_half_width(values, LEVEL, count)
    return mean, mean - reach, mean + reach


def pays_from(found: Results, data: str, trust: str, fit: str) -> float | None:
    """The smallest ε of those run from which on the error is near the one without privacy; None where it never is."""
    limit = (1 + NEAR) * float(found.without[data][0].mean())
    near = [float(found.of(data, trust, epsilon, fit).error.mean()) <= limit for epsilon in found.plan.epsilons]
    last = max((place for place, one in enumerate(near) if not one), default=-1)
    return found.plan.epsilons[last + 1] if last + 1 < len(near) else None


# --- as data and tables -----------------------------------------------------------------------------------------------


def figures(found: Results) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "kind": "ldp-or-dca",
        "not_private_because": {WINES: [PUBLISHED_WITH_ROWS]},
        "levels": list(LEVELS),
        "cells": [
            {
                "data": data,
                "noise_by": trust,
                "epsilon": epsilon,
                "fit": fit,
                "errors": one.error.tolist(),
                "coverage": one.covered.mean(axis=0).tolist(),
                "coverage_of_repeats": one.covered.tolist(),
                "r_hat": one.r_hat.tolist(),
            }
            for (data, trust, epsilon, fit), one in found.series.items()
        ],
        "without_privacy": {data: errors[0].tolist() for data, errors in found.without.items()},
        "without_a_model": {data: errors[1].tolist() for data, errors in found.without.items()},
        "pays_from": [
            {"data": data, "noise_by": trust, "fit": fit, "epsilon": pays_from(found, data, trust, fit)}
            for data in found.plan.data
            for trust in TRUST
            for fit in FITS
        ],
    }


def tables(found: Results) -> list[Table]:
    """Errors and coverage of each data, and when which pays."""
    return [one for data in found.plan.data for one in (_errors(found, data), _coverage(found, data))] + [_pays(found)]


def _errors(found: Results, data: str) -> Table:
    private, nothing = found.without[data].mean(axis=1)
    title = (
        f"{data}: test RMSE, mean ± standard deviation ({private:.3f} without privacy, {nothing:.3f} without a model)"
    )
    return _by_epsilon(found, data, title, lambda one: f"{one.error.mean():.3f} ± {one.error.std():.3f}")


def _coverage(found: Results, data: str) -> Table:
    what = "held-out targets" if data == WINES else "coefficients"
    levels = " and ".join(f"{level:.0%}" for level in LEVELS)
    title = f"{data}: coverage of {what} by central {levels} intervals"
    return _by_epsilon(found, data, title, lambda one: " / ".join(f"{share:.2f}" for share in one.covered.mean(axis=0)))


def _by_epsilon(found: Results, data: str, title: str, shown: Any) -> Table:
    made = table(title, "noise by, model", *(f"ε = {at_least(epsilon)}" for epsilon in found.plan.epsilons))
    for trust in TRUST:
        for fit in FITS:
            made.add_row(
                f"{trust}, {fit}", *(shown(found.of(data, trust, epsilon, fit)) for epsilon in found.plan.epsilons)
            )
    return made


def _pays(found: Results) -> Table:
    title = f"smallest ε from which on the mean error is at most {NEAR:.0%} above that without privacy"
    made = table(title, "noise by, model", *found.plan.data)
    for trust in TRUST:
        for fit in FITS:
            epsilons = [pays_from(found, data, trust, fit) for data in found.plan.data]
            made.add_row(f"{trust}, {fit}", *("never" if one is None else f"{one:g}" for one in epsilons))
    return made


# --- checks -----------------------------------------------------------------------------------------------------------


def checks(found: Results) -> list[Check]:
    """What the figure must show."""
    return [*_nominal(found), *_naive(found), *_ordered(found), *_same(found), *_mixed(found)]


def _covered(found: Results, fit: str) -> Iterator[tuple[str, float, tuple[float, float, float]]]:
    """Of simulated data, whose truth is known: in words, the level, and coverage with its interval."""
    own = [(key, one) for key, one in found.series.items() if key[3] == fit and key[0] != WINES]
    for (data, trust, epsilon, _), one in own:
        for place, level in enumerate(LEVELS):
            words = f"{data}, {trust}, ε = {at_least(epsilon)}, {level:.0%}"
            yield words, level, interval(one.covered[:, place], len(own) * len(LEVELS))


def _nominal(found: Results) -> Iterator[Check]:
    looked_at = list(_covered(found, AWARE))
    off = [f"{words}: {mean:.2f}" for words, level, (mean, low, high) in looked_at if not low <= level <= high]
    asked = f"all {len(looked_at)} nominal by simultaneous {LEVEL:.0%} intervals"
    if looked_at:
        yield Check(f"{AWARE} coverage", asked, "; ".join(off) or "all", not off)


def _naive(found: Results) -> Iterator[Check]:
    least = f"ε = {at_least(min(found.plan.epsilons))},"
    looked_at = [one for one in _covered(found, NAIVE) if least in one[0]]
    missed = [words for words, level, (_, _, high) in looked_at if high >= level]
    shares = [mean / level for _, level, (mean, _, _) in looked_at]
    if looked_at:
        asked = f"whole intervals below nominal, whoever adds the noise, at {least[:-1]}"
        told = "; ".join(missed) or f"at most {max(shares):.0%} of nominal"
        yield Check(f"{NAIVE} is overconfident", asked, told, not missed)


def _ordered(found: Results) -> Iterator[Check]:
    pairs = [(data, epsilon) for data in found.plan.data for epsilon in found.plan.epsilons]
    for data in found.plan.data:
        words = {"ahead": [], "behind": []}  # type: dict[str, list[str]]
        for epsilon in found.plan.epsilons:
            one, other = (found.of(data, trust, epsilon, AWARE).error for trust in (DCA, LOCAL))
            _, low, high = interval(other - one, len(pairs))
            words["ahead"] += [at_least(epsilon)] * (low > 0)
            words["behind"] += [at_least(epsilon)] * (high < 0)
        told = "; ".join(f"{name} at ε = {', '.join(own)}" for name, own in words.items() if own)
        holds = bool(words["ahead"]) and not words["behind"]
        yield Check(f"{DCA} and {LOCAL} reports, {data}", "ahead at some ε, behind at none", told or "open", holds)


def _same(found: Results) -> Iterator[Check]:
    keys = [(data, epsilon) for data in found.plan.data for epsilon in found.plan.epsilons]
    apart = []
    for data, epsilon in keys:
        one, other = (found.of(data, trust, epsilon, AWARE).error for trust in (DCA, TRUSTED))
        mean, low, high = interval(np.log(one / other), len(keys))
        apart += [f"{data}, ε = {at_least(epsilon)}: {math.exp(mean):.3f}"] * (low > SAME or high < -SAME)
    asked = f"no ratio of errors surely more than {SAME:.0%} from 1"
    yield Check(f"{DCA} and the {TRUSTED}", asked, "; ".join(apart) or "none", not apart)


def _mixed(found: Results) -> Iterator[Check]:
    r_hat, words = max(
        (one.r_hat.max(), ", ".join(map(str, key))) for key, one in found.series.items() if key[3] == AWARE
    )
    yield Check("R-hat", f"below {R_HAT_REQUIRED:g}, {AWARE}", f"{r_hat:.3f} at most ({words})", r_hat < R_HAT_REQUIRED)


# --- picture ----------------------------------------------------------------------------------------------------------


def draw(path: Path, found: Results) -> None:
    """Above test error, below coverage, over ε; a column for each data."""
    title = "Linear regression at the same (ε, δ), by who adds the noise"
    with picture.drawing(path, rows=2, columns=len(found.plan.data), size=_PANEL, title=title) as panels:
        for column, data in enumerate(found.plan.data):
            above, below = panels[:, column]
            _curves(above, found, data, lambda one: one.error.mean())
            private, nothing = found.without[data].mean(axis=1)
            above.axhline(private, color=picture.BLACK, linestyle="--", linewidth=1.2, label="no privacy", zorder=1)
            picture.zero_line(above, nothing, "no model")
            above.set(yscale="log", title=data, ylim=(0.93 * private, 3 * nothing))
            above.yaxis.set_major_formatter("{x:g}")
            above.yaxis.set_minor_formatter("{x:g}")
            _curves(below, found, data, lambda one: 100 * one.covered[:, SHOWN].mean())
            below.axhline(100 * LEVELS[SHOWN], color=picture.BLACK, linestyle="--", linewidth=0.8, zorder=1)
            below.set(ylim=(0, 102), xlabel="ε")
            below.set_title("of held-out targets" if data == WINES else "of coefficients", fontsize="medium")
        panels[0, 0].set_ylabel("test RMSE")
        panels[1, 0].set_ylabel(f"coverage of {LEVELS[SHOWN]:.0%} intervals, %")
        picture.legend(panels)


def _curves(axes: Any, found: Results, data: str, height: Any) -> None:
    for place, trust in enumerate(TRUST):
        x = np.array(found.plan.epsilons) * 10 ** (_ASIDE * (place - (len(TRUST) - 1) / 2))
        for fit in FITS:
            heights = [height(found.of(data, trust, epsilon, fit)) for epsilon in found.plan.epsilons]
            axes.plot(x, heights, label=f"{trust}, {fit}", markersize=5, **STYLES[trust], **LINES[fit])
    axes.set(xscale="log")
    axes.set_xticks(found.plan.epsilons, [at_least(epsilon) for epsilon in found.plan.epsilons])
    axes.minorticks_off()
