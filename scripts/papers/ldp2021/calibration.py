"""Figures 1, 10 and 11: are posteriors from local reports calibrated? Coverage of central intervals over ε.

**The game** (section 4.4). Each repeat draws parameters from the prior, then the clients' values, then their reports by
the exact mechanism; the fit has the same prior. Let u be the truth's rank among the posterior's draws, between 0 and 1.
The central interval of level L covers the truth if |u - ½| <= L/2. If the posterior is right, u is uniform,
independently for each repeat, whatever ε is.

As published (errata 5): Gaussian, 5,000 clients, clipped to [-5, 5], 500 repeats; histogram by unary encoding, 1,000
clients, 6 categories, 100 repeats; exponential, 1,000 clients, clipped to [0, 5], 80 repeats; the levels; four chains.
Ours: the ε, and the priors of the Gaussian and the exponential, whose hyper-parameters the paper leaves open. Under
them some values are clipped, but not most. The Gaussian's is this library's default for the bounds
(`inference.models.priors`). The default for an exponential leaves the scale open, so most draws would be clipped:

    Gaussian       mean ~ N(0, 2.5²), sd by default    9 % of values are clipped on average; of half of the data sets
                                                       fewer than 0.1 %, of a twentieth over half
    exponential    rate ~ Gamma(2, rate 10/3)          16 % on average; 0.3 % to 46 % in 80 % of the data sets
    histogram      shares ~ Dirichlet(1, ..., 1)                (as published)

**The band** (`experiment.band`) holds for all parameters, levels and ε of all models, and all ε together. Figure 10
shows the mean coverage of the six shares, which is in the band whenever all six are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from dca_proto.privacy.local import UnaryEncoding
from dca_proto.privacy.rounding import at_least
from inference.bounds import Interval
from inference.models import fit as fits
from inference.models.column.families import EXPONENTIAL, GAUSSIAN
from inference.models.priors import DirichletPrior, GaussianPrior, RatePrior
from inference.posterior import Posterior
from inference.problem import Array, stream
from papers import picture
from papers.experiment import BAND, Result, band, option
from papers.ldp2021 import column_fits
from papers.ldp2021.column_fits import QUICK_ITERATIONS, Diagnosis, RepeatedFits, described, mixed
from papers.runner import Check, table

GAUSSIAN_BOUNDS, EXPONENTIAL_BOUNDS = Interval(-5, 5), Interval(0, 5)
CATEGORIES = 6
PART = 20  # repeats of a cell
LEVELS = (0.5, 0.7, 0.9, 0.95)
TOGETHER = "all ε"
CORES, MINUTES_MAX = 2, 40.0
CLIPPED = (0.01, 0.5)  # required range of the mean share of clipped values
_FEW = 2  # so many parameters or fewer are shown one by one
_REACH, _BAR = 0.4, 0.17  # half the width of an ε, and the width of a band


class Drawn(NamedTuple):
    """One repeat."""

    truth: Mapping[str, Array]  # true parameters by name
    fit: Callable[..., Posterior]  # lacks only the sampling options
    clipped: float  # share of clipped values


def _numbers(
    family: str, prior: Any, bounds: Interval, values: Any, clients: int, epsilon: float, rng: np.random.Generator
) -> Drawn:
    """Draw the truth and reports of numbers; `values` draws the numbers given the truth."""
    truth = prior.draws(rng, 1)
    x = values(rng, truth, clients)
    reports = column_fits.number_reports(x, bounds, epsilon, rng)
    clipped = float(np.mean((x < bounds.lower) | (x > bounds.upper)))
    return Drawn(truth, partial(fits.column, reports, family, prior, bounds=bounds), clipped)


def _categories(clients: int, epsilon: float, rng: np.random.Generator) -> Drawn:
    prior = DirichletPrior()
    truth = prior.draws(rng, 1, CATEGORIES)
    values = rng.choice(CATEGORIES, clients, p=truth["shares"][0])
    reports = column_fits.bit_reports(values, UnaryEncoding(epsilon, CATEGORIES), rng)
    return Drawn(truth, partial(fits.histogram, reports, prior), 0.0)


_gaussian = partial(
    _numbers, GAUSSIAN, GaussianPrior.within(GAUSSIAN_BOUNDS), GAUSSIAN_BOUNDS,
    lambda rng, truth, clients: rng.normal(truth["mean"], truth["sd"], clients),
)  # fmt: skip
_exponential = partial(
    _numbers, EXPONENTIAL, RatePrior(2.0, 10 / 3), EXPONENTIAL_BOUNDS,
    lambda rng, truth, clients: rng.exponential(1 / truth["rate"], clients),
)  # fmt: skip


class Game(NamedTuple):
    """A model whose calibration is checked."""

    figure: int  # number in the paper
    name: str
    parameters: tuple[str, ...]  # names of the parameters' components
    clients: int  # clients, repeats: as published
    repeats: int
    draw: Callable[[int, float, np.random.Generator], Drawn]  # draws one repeat, given clients, ε and a stream
    clips: bool  # whether values are clipped
    cost: float  # rough cost of a fit

    @property
    def is_shown_singly(self) -> bool:
        return len(self.parameters) <= _FEW


_SHARES = tuple(f"share {place + 1}" for place in range(CATEGORIES))
GAMES = {
    game.name: game
    for game in (
        Game(1, "Gaussian", ("mean", "sd"), 5000, 500, _gaussian, clips=True, cost=1.4),
        Game(10, "histogram", _SHARES, 1000, 100, _categories, clips=False, cost=0.2),
        Game(11, "exponential", ("rate",), 1000, 80, _exponential, clips=True, cost=1.0),
    )
}
FIGURES = tuple(game.figure for game in GAMES.values())


class Cell(NamedTuple):
    """``number`` repeats of a model at an ε, from the ``first`` on."""

    model: str
    epsilon: float
    first: int
    number: int


def places(draws: Mapping[str, Array], truth: Mapping[str, Array]) -> list[float]:
    """Return the rank of each true number among its draws, between 0 and 1, parameter by parameter.

    Args:
        draws: by name, shape ``(chains, draws, ...)``. truth: by the same names, shape ``(1, ...)``.
    """
    found: list[float] = []
    for name, true in truth.items():
        below, count = np.sum(draws[name] < true, axis=(0, 1)), draws[name].shape[0] * draws[name].shape[1]
        found += np.round(np.atleast_1d((below + 0.5) / (count + 1)), 5).tolist()
    return found


class Coverage(NamedTuple):
    """How often central intervals of a model's parameters cover the truth."""

    game: Game
    epsilon: float | None  # None for all ε together
    covered: NDArray[np.int64]  # number of repeats, (parameters, levels)
    repeats: int  # in all
    bands: tuple[tuple[float, float], ...]  # band of the coverage at each level, as shares

    @property
    def shares(self) -> Array:
        return np.asarray(self.covered / self.repeats)

    @property
    def inside(self) -> NDArray[np.bool_]:
        low, high = np.array(self.bands).T
        return np.asarray((low <= self.shares) & (self.shares <= high))

    @property
    def words(self) -> str:
        return TOGETHER if self.epsilon is None else at_least(self.epsilon)


class Results(NamedTuple):
    """The results of all cells."""

    coverages: list[Coverage]
    clipped: Mapping[tuple[str, float], Array]  # share of clipped values in each repeat, by model and ε
    fits: Mapping[tuple[str, float], list[Diagnosis]]  # by model and ε

    def games(self) -> dict[Game, list[Coverage]]:
        found: dict[Game, list[Coverage]] = {}
        for one in self.coverages:
            found.setdefault(one.game, []).append(one)
        return found


def coverages(places: Mapping[tuple[str, float], Array]) -> list[Coverage]:
    """Return the coverages of each model, by ε and then for all ε together, with simultaneous bands."""
    asked: list[tuple[Game, float | None, Array]] = []
    for model in dict.fromkeys(model for model, _ in places):
        own = [(epsilon, found) for (name, epsilon), found in places.items() if name == model]
        asked += [(GAMES[model], epsilon, found) for epsilon, found in own]
        if len(own) > 1:
            asked.append((GAMES[model], None, np.concatenate([found for _, found in own])))
    looked_at, made = len(LEVELS) * sum(found.shape[1] for _, _, found in asked), []
    for game, epsilon, found in asked:
        covered = np.stack([(np.abs(found - 0.5) <= level / 2).sum(axis=0) for level in LEVELS], axis=1)
        bands = tuple(band(level, len(found), looked_at) for level in LEVELS)
        made.append(Coverage(game, epsilon, covered, len(found), bands))
    return made


def minutes(fits: Sequence[Diagnosis], repeats: int) -> float:
    """Estimate the minutes that `repeats` take on `CORES` cores, from the core time of these fits."""
    return repeats * sum(one.seconds for one in fits) / len(fits) / CORES / 60


@dataclass(frozen=True, kw_only=True)
class Calibration(RepeatedFits[Cell, Results]):
    """Figures 1, 10 and 11 of the LDP paper: coverage of central intervals of posteriors from local reports, over ε.

    Takes an hour on two idle cores, 55 minutes of it for Figure 1. Exit code 4 if a coverage is outside a simultaneous
    99 % band of nominal, an R-hat is not below 1.1, values are hardly ever or mostly clipped, or 500 repeats of Figure
    1 take more than 40 minutes on two idle cores.
    """

    KIND, LABEL = "ldp-calibration", "calibration"
    QUICK: ClassVar = {"repeats": 8, "epsilons": (0.5, 5.0), "iterations": QUICK_ITERATIONS}

    figure: tuple[int, ...] = option(
        FIGURES, "only this figure; may be repeated", type=int, action="append", choices=FIGURES
    )
    repeats: int = 0  # maximum for each model; 0 for the paper's numbers

    def cells(self) -> list[Cell]:
        found = []
        for game in (game for game in GAMES.values() if game.figure in self.figure):
            repeats = min(game.repeats, self.repeats or game.repeats)
            for epsilon in self.epsilons:
                found += [Cell(game.name, epsilon, *part) for part in column_fits.parts(repeats, PART)]
        return found

    def cost(self, cell: Cell) -> float:
        return cell.number * GAMES[cell.model].cost

    def once(self, cell: Cell, repeat: int) -> Result:
        game, rng = GAMES[cell.model], stream(self.seed, f"local/calibration/{cell.model}/{cell.epsilon:g}/{repeat}")
        drawn = game.draw(game.clients, cell.epsilon, rng)
        posterior, diagnosis = mixed(drawn.fit, self.iterations, int(rng.integers(2**31)))
        found = places(posterior.draws, drawn.truth)
        return {"places": found, "clipped": round(drawn.clipped, 6), "fits": diagnosis}

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> Results:
        by_key = column_fits.joined(cells, results)
        return Results(
            coverages({key: np.array(one["places"]) for key, one in by_key.items()}),
            {key: np.array(one["clipped"]) for key, one in by_key.items()},
            {key: [Diagnosis(*fit) for fit in one["fits"]] for key, one in by_key.items()},
        )

    def notes(self, found: Results) -> dict[str, Any]:
        summary = {f"{model}, ε = {at_least(epsilon)}": described(own) for (model, epsilon), own in found.fits.items()}
        looked_at = sum(one.covered.size for one in found.coverages)
        return {"levels": list(LEVELS), "band_level": BAND, "looked_at": looked_at, "fits": summary}

    def tables(self, found: Results) -> Iterator[Table]:
        for game, own in found.games().items():
            words = "" if game.is_shown_singly else "; all parameters together (least to most of one)"
            title = f"Figure {game.figure}, {game.name}: coverage in %{words}; * one outside the band"
            shown = table(title, "ε", "of", *(f"{level:.0%}" for level in LEVELS), "repeats")
            for one in own:
                for name, cells in _covered(one):
                    shown.add_row(one.words, name, *cells, str(one.repeats))
            yield shown
        columns = ("model", "ε", "fits", "largest R̂", "R̂ > 1.01", "sampled again", "divergent", "fewest effective")
        shown = table("fits of four chains", *columns, "s of a core each", "clipped")
        for (model, epsilon), runs in found.fits.items():
            count, r_hat, *rest, effective, _ = described(runs).values()
            each, clipped = sum(one.seconds for one in runs) / len(runs), found.clipped[model, epsilon].mean()
            numbers = [f"{r_hat:.3f}", *map(str, rest), f"{effective:.0f}", f"{each:.2f}", f"{clipped:.1%}"]
            shown.add_row(model, at_least(epsilon), str(count), *numbers)
        yield shown

    def checks(self, found: Results) -> Iterator[Check]:
        looked_at = sum(one.covered.size for one in found.coverages)
        for game, own in found.games().items():
            count = sum(one.covered.size for one in own)
            outside = [
                f"{game.parameters[row]} at ε = {one.words}, {LEVELS[column]:.0%}: {one.shares[row, column]:.1%}"
                for one in own
                for row, column in np.argwhere(~one.inside).tolist()
            ]
            asked = f"all {count} in a band, simultaneous with all {looked_at}, of {BAND:.0%}"
            name = f"coverage of Figure {game.figure}, {game.name}"
            yield Check(name, asked, "; ".join(outside) or "all inside", not outside)
        yield column_fits.check_mixed([one for own in found.fits.values() for one in own])
        for game in (game for game in found.games() if game.clips):
            clipped = [shares for (model, _), shares in found.clipped.items() if model == game.name]
            mean, (low, high) = float(np.concatenate(clipped).mean()), CLIPPED
            asked = f"{low:.0%} to {high:.0%} on average"
            yield Check(f"values clipped, {game.name}", asked, f"{mean:.1%}", low <= mean <= high)
        game = next(iter(GAMES.values()))
        spent = [minutes(own, game.repeats) for (model, _), own in found.fits.items() if model == game.name]
        if spent:
            name = f"time of {game.repeats} repeats, {game.name}, at the slowest ε"
            asked = f"at most {MINUTES_MAX:g} minutes on {CORES} cores"
            yield Check(name, asked, f"{max(spent):.1f} minutes", max(spent) <= MINUTES_MAX)

    def draw(self, found: Results, path: Path) -> None:
        games = found.games()
        title = f"Coverage of central intervals over ε; dashed: nominal; shaded: simultaneous {BAND:.0%} band"
        with picture.drawing(path, columns=len(games), size=(6.0, 5.2), title=title) as panels:
            for axes, (game, own) in zip(panels[0], games.items(), strict=True):
                styles = _markers(game)
                for place, one in enumerate(own):
                    _draw_coverage(axes, place, one, styles)
                for level, colour in zip(LEVELS, picture.COLOURS, strict=False):
                    axes.axhline(100 * level, color=colour, linestyle="--", linewidth=0.8, zorder=1)
                words = f"Figure {game.figure}: {game.name}, {own[0].repeats} repeats at each ε"
                axes.set(title=words, xlabel="ε", ylim=(0, 102))
                axes.set_yticks([0, 20, 40, *(100 * level for level in LEVELS)])
                axes.set_xticks(range(len(own)), [one.words for one in own])
                for name, style in styles.items():
                    axes.plot([], [], linestyle="", color=picture.BLACK, label=name, **style)
                axes.legend(frameon=False, loc="lower right", ncols=len(styles))
            panels[0, 0].set_ylabel("coverage in %")


def _covered(one: Coverage) -> Iterator[tuple[str, list[str]]]:
    """Yield a table row for each parameter if there are few, else one row for all."""
    if one.game.is_shown_singly:
        for name, shares, inside in zip(one.game.parameters, 100 * one.shares, one.inside, strict=True):
            yield name, [f"{share:.1f}{'' if ok else '*'}" for share, ok in zip(shares, inside, strict=True)]
        return
    both = zip(100 * one.shares.T, one.inside.T, strict=True)
    cells = [f"{c.mean():.1f} ({c.min():.0f} to {c.max():.0f}){'' if ok.all() else '*'}" for c, ok in both]
    yield f"{len(one.game.parameters)} shares", cells


def _markers(game: Game) -> dict[str, dict[str, Any]]:
    """Return the styles of each parameter if there are few, else of a single one and of their mean."""
    hollow = {"markerfacecolor": "white", "markersize": 6}
    if game.is_shown_singly:
        return {name: {"marker": marker, **hollow} for name, marker in zip(game.parameters, "os", strict=False)}
    return {"one share": {"marker": ".", "markersize": 4}, "all shares": {"marker": "D", **hollow}}


def _draw_coverage(axes: Any, place: int, one: Coverage, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw a band and markers for each level, side by side."""
    for slot in range(len(LEVELS)):
        x = place - _REACH + 2 * _REACH * (slot + 0.5) / len(LEVELS)
        colour, (low, high), shares = picture.COLOURS[slot], one.bands[slot], 100 * one.shares[:, slot]
        axes.bar(x, 100 * (high - low), _BAR, bottom=100 * low, color=colour, alpha=0.25, linewidth=0, zorder=0)
        heights_of = shares if one.game.is_shown_singly else (shares, shares.mean())
        for heights, style in zip(heights_of, styles.values(), strict=True):
            xs = np.full(np.size(heights), x)
            axes.plot(xs, heights, linestyle="", color=colour, zorder=3, **style)
