"""Figures 1, 10 and 11: are posteriors from local reports calibrated? Coverage of central intervals over ε.

**The game** (section 4.4). In each repeat the parameters are drawn from the prior, the clients' values given these, and
their reports by the exact mechanism; the fit has the same prior. The truth's place u among the posterior's draws says
which central intervals cover it: that of level L does if |u - ½| <= L/2. Under the right posterior u is uniform, for
each repeat independently, whatever ε is. Every repeat has a random stream of its own, at each ε another one.

As published (errata 5): Gaussian, 5,000 clients, clipped to [-5, 5], 500 repeats; histogram by unary encoding, 1,000
clients, 6 categories, 100 repeats; exponential, 1,000 clients, clipped to [0, 5], 80 repeats; the levels; four chains.

Ours: the ε, and the priors of the first and the last, whose hyper-parameters the paper leaves open. They are this
library's defaults for the bounds (`inference.models.priors`), under which clipping is neither never nor always:

    Gaussian       mean ~ N(0, 2.5²), sd ~ Gamma(2, rate 1.2)   11 % of values are clipped on average; of a third of
                                                                the data sets fewer than 0.1 %, of a twentieth over half
    exponential    rate ~ Gamma(2, rate 10/3)                   16 % on average; 0.3 % to 45 % in 80 % of the data sets
    histogram      shares ~ Dirichlet(1, ..., 1)                (as published)

What was clipped is counted.

**The band.** K coverages are reported, of all parameters, levels and ε of all models, and with all ε together, whose
repeats are independent. `coverage.band` says what all K lie within, with a probability of 99 % at least. Coverage of
the six shares together, which is what Figure 10 shows, is an average of six, so it is in the band whenever they are.
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
from inference.mcmc.posterior import LocalPosterior
from inference.models import fit as fits
from inference.models.priors import DirichletPrior, GaussianPrior, RatePrior
from inference.problem import stream
from papers import picture
from papers.coverage import BAND, band
from papers.experiment import Experiment, Result, option
from papers.ldp2021.column_fits import (
    EPSILONS,
    ITERATIONS,
    QUICK_ITERATIONS,
    Array,
    Diagnosis,
    bit_reports,
    check_mixed,
    described,
    mixed,
    number_reports,
    ready,
)
from papers.runner import Check, table

GAUSSIAN_BOUNDS, EXPONENTIAL_BOUNDS = Interval(-5, 5), Interval(0, 5)
CATEGORIES = 6
PART = 20  # repeats of a cell
LEVELS = (0.5, 0.7, 0.9, 0.95)
TOGETHER = "all ε"
CORES, MINUTES_MAX = 2, 40.0
CLIPPED = (0.01, 0.5)  # between which the mean share of clipped values is neither never nor always
_FEW = 2  # parameters that are shown one by one
_REACH, _BAR = 0.4, 0.17  # of an ε, to both sides; of a band


class Drawn(NamedTuple):
    """One repeat: the true parameters by name, the fit but for how to sample, and the share of values clipped."""

    truth: Mapping[str, Array]
    fit: Callable[..., LocalPosterior]
    clipped: float


def _gaussian(clients: int, epsilon: float, rng: np.random.Generator) -> Drawn:
    prior = GaussianPrior.within(GAUSSIAN_BOUNDS)
    truth = prior.draws(rng, 1)
    x = rng.normal(truth["mean"], truth["sd"], clients)
    told = number_reports(x, GAUSSIAN_BOUNDS, epsilon, rng)
    return Drawn(truth, partial(fits.gaussian, told, prior, bounds=GAUSSIAN_BOUNDS), _beyond(x, GAUSSIAN_BOUNDS))


def _exponential(clients: int, epsilon: float, rng: np.random.Generator) -> Drawn:
    prior = RatePrior.of_exponential(EXPONENTIAL_BOUNDS.upper)
    truth = prior.draws(rng, 1)
    x = rng.exponential(1 / truth["rate"], clients)
    told, bounds = number_reports(x, EXPONENTIAL_BOUNDS, epsilon, rng), EXPONENTIAL_BOUNDS
    return Drawn(truth, partial(fits.exponential, told, prior, bounds=bounds), _beyond(x, bounds))


def _histogram(clients: int, epsilon: float, rng: np.random.Generator) -> Drawn:
    prior = DirichletPrior()
    truth = prior.draws(rng, 1, CATEGORIES)
    held = rng.choice(CATEGORIES, clients, p=truth["shares"][0])
    told = bit_reports(held, UnaryEncoding(epsilon, CATEGORIES), rng)
    return Drawn(truth, partial(fits.histogram, told, prior), 0.0)


def _beyond(x: Array, bounds: Interval) -> float:
    return float(np.mean((x < bounds.lower) | (x > bounds.upper)))


class Game(NamedTuple):
    """A model to be calibrated.

    Attributes:
        figure: as the paper numbers it. name: of the model. parameters: names of all its numbers.
        clients, repeats: as published. draw: one repeat, of clients, ε and a random stream. clips: whether values are.
        cost: of a fit, roughly.
    """

    figure: int
    name: str
    parameters: tuple[str, ...]
    clients: int
    repeats: int
    draw: Callable[[int, float, np.random.Generator], Drawn]
    clips: bool
    cost: float

    @property
    def is_shown_singly(self) -> bool:
        """Whether each parameter is shown."""
        return len(self.parameters) <= _FEW


_SHARES = tuple(f"share {place + 1}" for place in range(CATEGORIES))
GAMES = {
    game.name: game
    for game in (
        Game(1, "Gaussian", ("mean", "sd"), 5000, 500, _gaussian, clips=True, cost=1.4),
        Game(10, "histogram", _SHARES, 1000, 100, _histogram, clips=False, cost=0.2),
        Game(11, "exponential", ("rate",), 1000, 80, _exponential, clips=True, cost=1.0),
    )
}
FIGURES = tuple(game.figure for game in GAMES.values())


class Cell(NamedTuple):
    """Some repeats of a model at an ε: ``number`` from the ``first`` on."""

    model: str
    epsilon: float
    first: int
    number: int


def places(draws: Mapping[str, Array], truth: Mapping[str, Array]) -> list[float]:
    """Of each true number among its draws, between 0 and 1, parameter by parameter.

    Args:
        draws: by name, shape ``(chains, draws, ...)``. truth: by the same names, shape ``(1, ...)``.
    """
    found: list[float] = []
    for name, true in truth.items():
        below = np.sum(draws[name] < true, axis=(0, 1))
        count = draws[name].shape[0] * draws[name].shape[1]
        found += np.round(np.atleast_1d((below + 0.5) / (count + 1)), 5).tolist()
    return found


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


class Results(NamedTuple):
    """What the cells found: coverage, and by model and ε the share of values clipped in each repeat, and all fits."""

    coverages: list[Coverage]
    clipped: Mapping[tuple[str, float], Array]
    fits: Mapping[tuple[str, float], list[Diagnosis]]


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


@dataclass(frozen=True, kw_only=True)
class Calibration(Experiment[Cell, Results]):
    """Figures 1, 10 and 11 of the LDP paper: coverage of central intervals of posteriors from local reports, over ε.

    An hour on two cores, of which Figure 1 takes 55 minutes (7 to 10 for the 500 repeats of one ε). Parameters are
    drawn from their priors, clients' values given these, and reports by the exact mechanisms of the library: Laplace
    noise for Gaussian and exponential data, both clipped, and optimal unary encoding for histograms. Each fit is four
    chains of 2,000 iterations, half of them warm-up. Exit code 4 where a coverage is outside a simultaneous 99 % band
    of nominal, an R-hat is not below 1.1, values are hardly ever or mostly clipped, or 500 repeats of Figure 1 take
    more than 40 minutes of two cores.
    """

    KIND: ClassVar = "ldp-calibration"
    LABEL: ClassVar = "calibration"
    QUICK: ClassVar = {"repeats": 8, "epsilons": (0.5, 5.0), "iterations": QUICK_ITERATIONS}
    DEPENDS: ClassVar = ("seed", "iterations")

    figure: tuple[int, ...] = option(
        FIGURES, "only this one; may be repeated", type=int, action="append", choices=FIGURES
    )
    repeats: int = 0  # at most so many of each model; 0 for those of the paper
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = ITERATIONS

    def prepare(self) -> None:
        ready()

    def cells(self) -> list[Cell]:
        """All of them, the repeats of a model and ε one after the other."""
        found = []
        for game in (game for game in GAMES.values() if game.figure in self.figure):
            repeats = min(game.repeats, self.repeats or game.repeats)
            for epsilon in self.epsilons:
                found += [Cell(game.name, epsilon, at, min(PART, repeats - at)) for at in range(0, repeats, PART)]
        return found

    def cost(self, cell: Cell) -> float:
        return cell.number * GAMES[cell.model].cost

    def work(self, cell: Cell) -> Result:
        """Of each repeat: the truths' places among the draws, what was clipped, and how the fit went."""
        game = GAMES[cell.model]
        found: Result = {"places": [], "clipped": [], "fits": []}
        for repeat in range(cell.first, cell.first + cell.number):
            rng = stream(self.seed, f"local/calibration/{cell.model}/{cell.epsilon:g}/{repeat}")
            drawn = game.draw(game.clients, cell.epsilon, rng)
            posterior, diagnosis = mixed(drawn.fit, self.iterations, int(rng.integers(2**31)))
            found["places"].append(places(posterior.draws, drawn.truth))
            found["clipped"].append(round(drawn.clipped, 6))
            found["fits"].append(diagnosis)
        return found

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> Results:
        joined: dict[str, dict[tuple[str, float], list[Any]]] = {"places": {}, "clipped": {}, "fits": {}}
        for cell, result in zip(cells, results, strict=True):
            for name, by_key in joined.items():
                by_key.setdefault((cell.model, cell.epsilon), []).extend(result[name])
        return Results(
            coverages({key: np.array(found) for key, found in joined["places"].items()}),
            {key: np.array(found) for key, found in joined["clipped"].items()},
            {key: [Diagnosis(*one) for one in found] for key, found in joined["fits"].items()},
        )

    def notes(self, found: Results) -> dict[str, Any]:
        fits = {f"{model}, ε = {at_least(epsilon)}": described(own) for (model, epsilon), own in found.fits.items()}
        looked_at = sum(one.covered.size for one in found.coverages)
        return {"levels": list(LEVELS), "band_level": BAND, "looked_at": looked_at, "fits": fits}

    def tables(self, found: Results) -> Iterator[Table]:
        """Coverage of each figure, and how the fits went."""
        for game in dict.fromkeys(one.game for one in found.coverages):
            yield _covered(game, [one for one in found.coverages if one.game == game])
        columns = ("model", "ε", "fits", "largest R̂", "R̂ > 1.01", "sampled again", "divergent", "fewest effective")
        shown = table("fits of four chains", *columns, "s of a core each", "clipped")
        for (model, epsilon), own in found.fits.items():
            told = list(described(own).values())
            each, clipped = sum(one.seconds for one in own) / len(own), found.clipped[model, epsilon].mean()
            numbers = [f"{told[1]:.3f}", *map(str, told[2:5]), f"{told[5]:.0f}", f"{each:.2f}", f"{clipped:.1%}"]
            shown.add_row(model, at_least(epsilon), str(told[0]), *numbers)
        yield shown

    def checks(self, found: Results) -> Iterator[Check]:
        """All coverages are in the band, chains agree, clipping is part of what is tested, and Figure 1 is in time."""
        looked_at = sum(one.covered.size for one in found.coverages)
        for game in dict.fromkeys(one.game for one in found.coverages):
            own = [one for one in found.coverages if one.game == game]
            outside, count = [words for one in own for words in _outside(one)], sum(one.covered.size for one in own)
            asked = f"all {count} in a band, simultaneous with all {looked_at}, of {BAND:.0%}"
            name = f"coverage of Figure {game.figure}, {game.name}"
            yield Check(name, asked, "; ".join(outside) or "all inside", not outside)
        yield check_mixed([one for own in found.fits.values() for one in own])
        for game in dict.fromkeys(one.game for one in found.coverages if one.game.clips):
            clipped = [own for (model, _), own in found.clipped.items() if model == game.name]
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
        """A panel for each figure: at each ε coverage at the four levels, in their bands, about the nominal lines."""
        games = list(dict.fromkeys(one.game for one in found.coverages))
        title = f"Coverage of central intervals over ε; dashed: nominal; shaded: simultaneous {BAND:.0%} band"
        with picture.drawing(path, columns=len(games), size=(6.0, 5.2), title=title) as panels:
            for axes, game in zip(panels[0], games, strict=True):
                own = [one for one in found.coverages if one.game == game]
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


def _covered(game: Game, made: Sequence[Coverage]) -> Table:
    words = "" if game.is_shown_singly else "; all parameters together (least to most of one)"
    title = f"Figure {game.figure}, {game.name}: coverage in %{words}; * one outside the band"
    shown = table(title, "ε", "of", *(f"{level:.0%}" for level in LEVELS), "repeats")
    for one in made:
        if game.is_shown_singly:
            for name, shares, inside in zip(game.parameters, 100 * one.shares, one.inside, strict=True):
                cells = [f"{share:.1f}{'' if held else '*'}" for share, held in zip(shares, inside, strict=True)]
                shown.add_row(one.words, name, *cells, str(one.repeats))
        else:
            both = zip(100 * one.shares.T, one.inside.T, strict=True)
            cells = [f"{c.mean():.1f} ({c.min():.0f} to {c.max():.0f}){'' if held.all() else '*'}" for c, held in both]
            shown.add_row(one.words, f"{len(game.parameters)} shares", *cells, str(one.repeats))
    return shown


def _outside(one: Coverage) -> Iterator[str]:
    for row, column in np.argwhere(~one.inside).tolist():
        share = one.shares[row, column]
        yield f"{one.game.parameters[row]} at ε = {one.words}, {LEVELS[column]:.0%}: {share:.1%}"


def _markers(game: Game) -> dict[str, dict[str, Any]]:
    """Of each parameter where they are few; else of any one, and of all together."""
    hollow = {"markerfacecolor": "white", "markersize": 6}
    if game.is_shown_singly:
        return {name: {"marker": marker, **hollow} for name, marker in zip(game.parameters, "os", strict=False)}
    return {"one share": {"marker": ".", "markersize": 4}, "all shares": {"marker": "D", **hollow}}


def _draw_coverage(axes: Any, place: int, one: Coverage) -> None:
    """A bar and markers for each level, side by side."""
    styles, few = list(_markers(one.game).values()), one.game.is_shown_singly
    for slot in range(len(LEVELS)):
        x = place - _REACH + 2 * _REACH * (slot + 0.5) / len(LEVELS)
        colour, (low, high), shares = picture.COLOURS[slot], one.bands[slot], 100 * one.shares[:, slot]
        axes.bar(x, 100 * (high - low), _BAR, bottom=100 * low, color=colour, alpha=0.25, linewidth=0, zorder=0)
        for heights, style in zip(shares if few else (shares, shares.mean()), styles, strict=True):
            xs = np.full(np.size(heights), x)
            axes.plot(xs, heights, linestyle="", color=colour, zorder=3, **style)
