"""Medians, interquartile ranges and paired intervals of Figure 2, as plain data and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from emulator.experiments.runner import table
from inference.bounds import PUBLISHED_WITH_ROWS
from inference.problem import stream
from papers.dca2017.figure2.data import CAVEAT, DATA_SETS, DELTA, DIFFERENCES, KNOWN, Array
from papers.dca2017.figure2.experiment import (
    AS_PUBLISHED,
    CENTRED,
    CORRECTED,
    CORRECTED_ABSOLUTE,
    JOINT,
    NP,
    OURS,
    PAIRED,
    SETTINGS,
    TIGHT,
    ZERO,
    Split,
)

LABELS = {
    AS_PUBLISHED: "as published, NOT private as claimed",
    CORRECTED_ABSOLUTE: "corrected, absolute eigenvalues",
    CORRECTED: "corrected, noise-aware repair",
    OURS: "this library, documented bounds alone",
}
_HEADINGS = {
    AS_PUBLISHED: "as published, NOT private",
    CORRECTED_ABSOLUTE: "corrected, absolute",
    CORRECTED: "corrected, noise-aware",
    OURS: "this library",
}
STEPS_SAID = (
    "By data: corrected, with centres and ranges of the data themselves, which is NOT private. Joint, "
    "tight: corrected, with our accounting, then with our sensitivity too. Told the same: ours, with the means and "
    "ranges that the corrected one knows."
)
_HEADS = {
    CENTRED: "by data",
    CORRECTED: "corrected",
    JOINT: "+ joint",
    TIGHT: "+ tight",
    OURS: "ours",
}
RESAMPLES = 2000
CLOSER = 0.1  # of the way to non-private


@dataclass(frozen=True)
class Paired:
    """Ours against a corrected configuration with the same repair, for one data set and ε.

    Each is the mean over draws of the noise of the median over splits; intervals are of 95 %, by bootstrap over draws.

    Attributes:
        nonprivate, corrected, ours: mean absolute errors.
        worse: ours less corrected. closer: by how much of the corrected one's distance to non-private ours is closer.
        margin: what is left of that distance, beyond a tenth of it; above 0 where ours is 10 % closer.
    """

    name: str
    epsilon: float
    nonprivate: float
    corrected: float
    ours: float
    worse: tuple[float, float]
    closer: float
    margin: tuple[float, float]

    @property
    def is_closer(self) -> bool:
        """Whether ours is 10 % closer to non-private, the whole interval long."""
        return self.margin[0] > 0


@dataclass(frozen=True)
class Results:
    """All errors.

    Attributes:
        errors: by data set, setting and method, shape ``(ε, splits)``.
        paired: by data set and one of `PAIRED`, shape ``(ε, splits, draws)``.
    """

    epsilons: tuple[float, ...]
    errors: Mapping[str, Mapping[str, Mapping[str, Array]]]
    paired: Mapping[str, Mapping[str, Array]]

    def medians(self, name: str, setting: str, method: str) -> Array:
        """Over splits, shape ``(ε,)``."""
        return np.asarray(np.median(self.errors[name][setting][method], axis=1))

    def steps(self, name: str) -> dict[str, Array]:
        """Means over draws of the noise of medians over splits, of each of `PAIRED`, each of shape ``(ε,)``."""
        return {step: np.median(runs, axis=1).mean(axis=1) for step, runs in self.paired[name].items()}

    @property
    def names(self) -> list[str]:
        """The data sets."""
        return list(self.errors)


def gathered(cells: Sequence[Split], results: Sequence[Mapping[str, Any]]) -> Results:
    """Results of all splits of all data sets, put in order."""
    epsilons = tuple(sorted({cell.epsilon for cell in cells}))
    by_cell = {(cell.name, cell.epsilon, cell.repeat): result for cell, result in zip(cells, results, strict=True)}
    repeats = sorted({cell.repeat for cell in cells})

    def collect(name: str, *path: str) -> Array:
        return np.array([[_at(by_cell[name, epsilon, one], path) for one in repeats] for epsilon in epsilons])

    first = results[0]["errors"]
    names = [one.name for one in DATA_SETS if any(cell.name == one.name for cell in cells)]
    errors = {
        name: {setting: {m: collect(name, "errors", setting, m) for m in first[setting]} for setting in SETTINGS}
        for name in names
    }
    paired = {name: {setting: collect(name, "paired", setting) for setting in PAIRED} for name in names}
    return Results(epsilons, errors, paired)


def _at(value: Any, path: Iterable[str]) -> Any:
    for key in path:
        value = value[key]
    return value


def compared(results: Results, seed: int, opponent: str = CORRECTED) -> list[Paired]:
    """The paired comparison of each data set and ε with one of `PAIRED`."""
    return [
        _compared(results, name, place, opponent, stream(seed, f"bootstrap/{name}/{place}"))
        for name in results.names
        for place in range(len(results.epsilons))
    ]


def _compared(results: Results, name: str, place: int, opponent: str, rng: np.random.Generator) -> Paired:
    nonprivate = float(results.medians(name, OURS, NP)[place])
    theirs, own = (np.median(results.paired[name][one][place], axis=0) for one in (opponent, OURS))  # (draws,)
    resampled = rng.integers(len(own), size=(RESAMPLES, len(own)))
    worse = own - theirs
    margin = (1 - CLOSER) * (theirs - nonprivate) - (own - nonprivate)
    distance = float(theirs.mean()) - nonprivate
    return Paired(
        name,
        results.epsilons[place],
        nonprivate,
        float(theirs.mean()),
        float(own.mean()),
        _interval(worse[resampled].mean(axis=1)),
        -float(worse.mean()) / distance if distance > 0 else 0.0,
        _interval(margin[resampled].mean(axis=1)),
    )


def _interval(means: Array) -> tuple[float, float]:
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def figures(results: Results, comparisons: Sequence[Paired], thresholds: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "kind": "figure-2",
        "delta": DELTA,
        "epsilons": list(results.epsilons),
        "labels": LABELS,
        "known": KNOWN,
        "not_private_because": [PUBLISHED_WITH_ROWS],
        "errors": {
            name: {
                setting: {method: _quartiles(values) for method, values in methods.items()}
                for setting, methods in settings.items()
            }
            for name, settings in results.errors.items()
        },
        "paired": [vars(one) | {"is_closer": one.is_closer} for one in comparisons],
        "steps": {
            name: {step: means.tolist() for step, means in results.steps(name).items()} for name in results.names
        },
        "caveat": CAVEAT,
        "differences": [{"what": what, "corrected": theirs, "ours": own} for what, theirs, own in DIFFERENCES],
        "thresholds": dict(thresholds),
    }


def _quartiles(values: Array) -> dict[str, list[float]]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=1)
    return {"median": middle.tolist(), "quartile_low": low.tolist(), "quartile_high": high.tolist()}


def tables(results: Results, comparisons: Sequence[Paired]) -> list[Table]:
    """One table for each data set, and the paired comparison."""
    return [*(_errors_table(results, one.name, one.title) for one in DATA_SETS if one.name in results.errors),
            _paired_table(comparisons), _steps_table(results), _differences_table()]  # fmt: skip


def _errors_table(results: Results, name: str, title: str) -> Table:
    columns = [_short(epsilon) for epsilon in results.epsilons]
    made = table(f"{title}: median MAE over splits; *: no better than the zero predictor", "ε", *columns)
    for setting in SETTINGS:
        made.add_section()
        made.add_row(f"[bold]{_HEADINGS[setting]}[/]")
        zero = results.medians(name, setting, ZERO)
        for method in results.errors[name][setting]:
            row = results.medians(name, setting, method)
            made.add_row(f"  {method}", *map(_cell, row, (row >= zero) & (method != ZERO)))
    return made


def _cell(median: float, useless: bool) -> str:
    return f"[dim]{median:.3f}*[/]" if useless else f"{median:.3f} "


def _paired_table(comparisons: Sequence[Paired]) -> Table:
    made = table(
        "ours against corrected, same repair, paired by draws of the noise; 95 % intervals, of the noise alone",
        "data", "ε", "NP", "corrected", "ours", "difference", "closer", "by 10 %",
    )  # fmt: skip
    made.caption, made.caption_justify = KNOWN, "left"
    for one in comparisons:
        made.add_row(
            one.name,
            _short(one.epsilon),
            f"{one.nonprivate:.3f}",
            f"{one.corrected:.3f}",
            f"{one.ours:.3f}",
            f"{one.worse[0]:+.3f} to {one.worse[1]:+.3f}",
            f"{100 * one.closer:.0f} %" if one.corrected > one.nonprivate else "",
            "yes" if one.is_closer else "no",
        )
    return made


def _steps_table(results: Results) -> Table:
    made = table(
        "what pays: from the corrected configuration to ours, mean MAE over draws", "data", "ε", "NP", *_HEADS.values()
    )
    for name in results.names:
        steps, nonprivate = results.steps(name), results.medians(name, OURS, NP)
        for place, epsilon in enumerate(results.epsilons):
            row = [f"{steps[step][place]:.3f}" for step in _HEADS]
            made.add_row(name, _short(epsilon), f"{nonprivate[place]:.3f}", *row)
    made.caption, made.caption_justify = STEPS_SAID, "left"
    return made


def _differences_table() -> Table:
    made = table("what differs between the two", "", "corrected", "ours")
    for column in made.columns:
        column.justify = "left"
    made.caption, made.caption_justify = CAVEAT, "left"
    for row in DIFFERENCES:
        made.add_row(*row)
    return made


def _short(epsilon: float) -> str:
    return at_least(epsilon)
