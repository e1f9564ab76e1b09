"""Figures 1, 10 and 11 from their cells: coverage with its band, plain data, tables, checks, and the picture.

**The band.** K coverages are reported, of all parameters, levels and ε of all models, and with all ε together, whose
repeats are independent. If all are nominal each count is binomial, so that all of them lie between the binomial
quantiles at 0.005/K and 1 - 0.005/K with a probability of 99 % at least, whatever the dependence between them
(Bonferroni; `calibration.band` of the third paper's experiments). Coverage of the six shares together, which is what
Figure 10 shows, is an average of six such counts, so it is in the band whenever they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture
from emulator.experiments.runner import Check, table
from papers.ldp2021.column_calibration import GAMES, Cell, Game, Plan, repeats_of
from papers.ldp2021.column_fits import Array, Diagnosis, check_mixed, described
from papers.mcmc2023.calibration import BAND, band

LEVELS = (0.5, 0.7, 0.9, 0.95)
TOGETHER = "all ε"
CORES, MINUTES_MAX = 2, 40.0
CLIPPED = (0.01, 0.5)  # between which the mean share of clipped values is neither never nor always
_DECILES = (0.1, 0.5, 0.9)
_FEW = 2  # parameters that are shown one by one
_PANEL = (6.0, 5.2)
_REACH = 0.4  # of an ε, to both sides
_BAR = 0.17


@dataclass(frozen=True, eq=False)
class Coverage:
    """Of a model at an ε, or at all of them together.

    Attributes:
        epsilon: None for all. covered: how often central intervals hold the truth, shape ``(parameters, levels)``.
        repeats: of how many. bands: what coverage lies within at each level, as shares.
    """

    game: Game
    epsilon: float | None
    covered: NDArray[np.int64]
    repeats: int
    bands: tuple[tuple[float, float], ...]

    @property
    def shares(self) -> Array:
        """Coverage, shape ``(parameters, levels)``."""
        found: Array = self.covered / self.repeats
        return found

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each is in its band."""
        low, high = np.array(self.bands).T
        found: NDArray[np.bool_] = (low <= self.shares) & (self.shares <= high)
        return found

    @property
    def words(self) -> str:
        """Of the ε."""
        return TOGETHER if self.epsilon is None else at_least(self.epsilon)


@dataclass(frozen=True)
class Results:
    """What the cells found.

    Attributes:
        places: by model and ε, shape ``(repeats, parameters)``. clipped: the share of each repeat, and fits: how each
            went; by the same.
    """

    places: Mapping[tuple[str, float], Array]
    clipped: Mapping[tuple[str, float], Array]
    fits: Mapping[tuple[str, float], list[Diagnosis]]


def gathered(cells: Sequence[Cell], results: Sequence[Mapping[str, Any]]) -> Results:
    """All repeats of each model and ε."""
    keys = list(dict.fromkeys((cell.model, cell.epsilon) for cell in cells))
    parts = {key: repeats_of(cells, results, *key) for key in keys}
    joined = {name: {key: [one for part in parts[key] for one in part[name]] for key in keys} for name in results[0]}
    return Results(
        {key: np.array(found) for key, found in joined["places"].items()},
        {key: np.array(found) for key, found in joined["clipped"].items()},
        {key: [Diagnosis(*one) for one in found] for key, found in joined["fits"].items()},
    )


def coverages(places: Mapping[tuple[str, float], Array]) -> list[Coverage]:
    """Of each model, by ε and then together; all within the bands of one another."""
    asked: list[tuple[Game, float | None, Array]] = []
    for model in dict.fromkeys(model for model, _ in places):
        own = [(epsilon, found) for (name, epsilon), found in places.items() if name == model]
        asked += [(GAMES[model], epsilon, found) for epsilon, found in own]
        if len(own) > 1:
            asked.append((GAMES[model], None, np.concatenate([found for _, found in own])))
    looked_at = len(LEVELS) * sum(found.shape[1] for _, _, found in asked)
    return [
        Coverage(
            game,
            epsilon,
            np.stack([(np.abs(found - 0.5) <= level / 2).sum(axis=0) for level in LEVELS], axis=1),
            len(found),
            tuple(band(level, len(found), looked_at) for level in LEVELS),
        )
        for game, epsilon, found in asked
    ]


def minutes(fits: Sequence[Diagnosis], repeats: int) -> float:
    """Of so many repeats on `CORES` cores, from the cores' time that these took."""
    return repeats * sum(one.seconds for one in fits) / len(fits) / CORES / 60


def figures(found: Results, made: Sequence[Coverage], plan: Plan) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "kind": "ldp-calibration",
        "levels": list(LEVELS),
        "band_level": BAND,
        "looked_at": sum(one.covered.size for one in made),
        "iterations": plan.iterations,
        "coverage": [
            {
                "figure": one.game.figure,
                "model": one.game.name,
                "epsilon": TOGETHER if one.epsilon is None else one.epsilon,
                "repeats": one.repeats,
                "parameters": dict(zip(one.game.parameters, one.shares.tolist(), strict=True)),
                "parameters_together": one.shares.mean(axis=0).tolist(),
                "band": [list(ends) for ends in one.bands],
            }
            for one in made
        ],
        "fits": [
            {
                "model": model,
                "epsilon": epsilon,
                "clipped": {"mean": float(clipped.mean()), "deciles_1_5_9": np.quantile(clipped, _DECILES).tolist()},
                **described(found.fits[model, epsilon]),
                "minutes_on_two_cores": round(minutes(found.fits[model, epsilon], GAMES[model].repeats), 2),
            }
            for (model, epsilon), clipped in found.clipped.items()
        ],
    }


def tables(found: Results, made: Sequence[Coverage]) -> list[Table]:
    """Coverage of each figure, and how the fits went."""
    figures_shown = dict.fromkeys(one.game.figure for one in made)
    return [*(_covered([one for one in made if one.game.figure == number]) for number in figures_shown), _fits(found)]


def _covered(made: Sequence[Coverage]) -> Table:
    game, levels = made[0].game, [f"{level:.0%}" for level in LEVELS]
    few = len(game.parameters) <= _FEW
    words = "" if few else "; all parameters together (least to most of one)"
    title = f"Figure {game.figure}, {game.name}: coverage in %{words}; * one outside the band"
    shown = table(title, "ε", "of", *levels, "repeats")
    for one in made:
        marks = np.where(one.inside.all(axis=0), "", "*") if not few else np.where(one.inside, "", "*")
        if few:
            for name, shares, own in zip(game.parameters, 100 * one.shares, marks, strict=True):
                cells = [f"{share:.1f}{mark}" for share, mark in zip(shares, own, strict=True)]
                shown.add_row(one.words, name, *cells, str(one.repeats))
        else:
            columns = 100 * one.shares.T
            cells = [
                f"{c.mean():.1f} ({c.min():.0f} to {c.max():.0f}){mark}" for c, mark in zip(columns, marks, strict=True)
            ]
            shown.add_row(one.words, f"{len(game.parameters)} shares", *cells, str(one.repeats))
    return shown


def _fits(found: Results) -> Table:
    columns = ("model", "ε", "fits", "largest R̂", "R̂ > 1.01", "sampled again", "divergent", "fewest effective")
    shown = table("fits of four chains", *columns, "s of a core each", "clipped")
    for (model, epsilon), clipped in found.clipped.items():
        fits = found.fits[model, epsilon]
        told = list(described(fits).values())
        each = sum(one.seconds for one in fits) / len(fits)
        numbers = [f"{told[1]:.3f}", *map(str, told[2:5]), f"{told[5]:.0f}", f"{each:.2f}", f"{clipped.mean():.1%}"]
        shown.add_row(model, at_least(epsilon), str(told[0]), *numbers)
    return shown


# --- checks -----------------------------------------------------------------------------------------------------------


def checks(found: Results, made: Sequence[Coverage]) -> list[Check]:
    """What the figures must show."""
    fits = [one for own in found.fits.values() for one in own]
    return [*check_coverage(made), check_mixed(fits), *_check_clipping(found), *_check_time(found)]


def check_coverage(made: Sequence[Coverage]) -> Iterator[Check]:
    """Of each model all coverages are in the band."""
    looked_at = sum(one.covered.size for one in made)
    for game in dict.fromkeys(one.game for one in made):
        own = [one for one in made if one.game == game]
        outside = [words for one in own for words in _outside(one)]
        asked = (
            f"all {sum(one.covered.size for one in own)} in a band, simultaneous with all {looked_at}, of {BAND:.0%}"
        )
        name = f"coverage of Figure {game.figure}, {game.name}"
        yield Check(name, asked, "; ".join(outside) or "all inside", not outside)


def _outside(one: Coverage) -> Iterator[str]:
    for row, column in np.argwhere(~one.inside).tolist():
        share = one.shares[row, column]
        yield f"{one.game.parameters[row]} at ε = {one.words}, {LEVELS[column]:.0%}: {share:.1%}"


def _check_clipping(found: Results) -> Iterator[Check]:
    """It is part of what is tested."""
    low, high = CLIPPED
    for game in (game for game in GAMES.values() if game.clips):
        own = [clipped for (model, _), clipped in found.clipped.items() if model == game.name]
        if own:
            mean = float(np.concatenate(own).mean())
            name = f"values clipped, {game.name}"
            yield Check(name, f"{low:.0%} to {high:.0%} on average", f"{mean:.1%}", low <= mean <= high)


def _check_time(found: Results) -> Iterator[Check]:
    """Of Figure 1, the largest."""
    game = next(iter(GAMES.values()))
    own = {epsilon: fits for (model, epsilon), fits in found.fits.items() if model == game.name}
    if own:
        slowest = max(minutes(fits, game.repeats) for fits in own.values())
        name = f"time of {game.repeats} repeats, {game.name}, at the slowest ε"
        asked = f"at most {MINUTES_MAX:g} minutes on {CORES} cores"
        yield Check(name, asked, f"{slowest:.1f} minutes", slowest <= MINUTES_MAX)


# --- picture ----------------------------------------------------------------------------------------------------------


def draw(path: Path, made: Sequence[Coverage]) -> None:
    """A panel for each figure: at each ε coverage at the four levels, in their bands, about the nominal lines."""
    games = list(dict.fromkeys(one.game for one in made))
    title = f"Coverage of central intervals over ε; dashed: nominal; shaded: simultaneous {BAND:.0%} band"
    with picture.drawing(path, columns=len(games), size=_PANEL, title=title) as panels:
        for axes, game in zip(panels[0], games, strict=True):
            own = [one for one in made if one.game == game]
            for place, one in enumerate(own):
                _draw_coverage(axes, place, one)
            for level, colour in zip(LEVELS, picture.COLOURS, strict=False):
                axes.axhline(100 * level, color=colour, linestyle="--", linewidth=0.8, zorder=1)
            words = f"Figure {game.figure}: {game.name}, {own[0].repeats} repeats at each ε"
            axes.set(title=words, xlabel="ε", ylim=(0, 102))
            axes.set_yticks([0, 20, 40, *(100 * level for level in LEVELS)])
            axes.set_xticks(range(len(own)), [one.words for one in own])
            for name, style in _markers(game).items():
                axes.plot([], [], linestyle="", color=picture.BLACK, label=name, **style)
            axes.legend(frameon=False, loc="lower right", ncols=len(_markers(game)))
        panels[0, 0].set_ylabel("coverage in %")


def _markers(game: Game) -> dict[str, dict[str, Any]]:
    """Of each parameter where they are few; else of any one, and of all together."""
    hollow = {"markerfacecolor": "white", "markersize": 6}
    if len(game.parameters) <= _FEW:
        return {name: {"marker": marker, **hollow} for name, marker in zip(game.parameters, "os", strict=False)}
    return {"one share": {"marker": ".", "markersize": 4}, "all shares": {"marker": "D", **hollow}}


def _draw_coverage(axes: Any, place: int, one: Coverage) -> None:
    """A bar and markers for each level, side by side."""
    styles, few = list(_markers(one.game).values()), len(one.game.parameters) <= _FEW
    for slot in range(len(LEVELS)):
        x = place - _REACH + 2 * _REACH * (slot + 0.5) / len(LEVELS)
        colour, (low, high), shares = picture.COLOURS[slot], one.bands[slot], 100 * one.shares[:, slot]
        axes.bar(x, 100 * (high - low), _BAR, bottom=100 * low, color=colour, alpha=0.25, linewidth=0, zorder=0)
        for heights, style in zip(shares if few else (shares, shares.mean()), styles, strict=True):
            xs = np.full(np.size(heights), x)
            axes.plot(xs, heights, linestyle="", color=colour, zorder=3, **style)
