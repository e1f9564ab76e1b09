"""Figures 1, 10 and 11: are posteriors from local reports calibrated? Data sets, reports and fits, as cells of work.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dca_proto.local import UnaryEncoding
from inference.bounds import Interval
from inference.mcmc.posterior import LocalPosterior
from inference.models import fit as fits
from inference.models.priors import DirichletPrior, GaussianPrior, RatePrior
from inference.problem import stream
from papers.ldp2021.column_fits import EPSILONS, ITERATIONS, QUICK_ITERATIONS, Array, bit_reports, mixed, number_reports

GAUSSIAN_BOUNDS, EXPONENTIAL_BOUNDS = Interval(-5, 5), Interval(0, 5)
CATEGORIES = 6
PART = 20  # repeats of a cell
QUICK_EPSILONS, QUICK_REPEATS = (0.5, 5.0), 8


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
    return Drawn(truth, partial(fits.gaussian, told, prior, bounds=GAUSSIAN_BOUNDS), _outside(x, GAUSSIAN_BOUNDS))


def _exponential(clients: int, epsilon: float, rng: np.random.Generator) -> Drawn:
    prior = RatePrior.of_exponential(EXPONENTIAL_BOUNDS.upper)
    truth = prior.draws(rng, 1)
    x = rng.exponential(1 / truth["rate"], clients)
    told, bounds = number_reports(x, EXPONENTIAL_BOUNDS, epsilon, rng), EXPONENTIAL_BOUNDS
    return Drawn(truth, partial(fits.exponential, told, prior, bounds=bounds), _outside(x, bounds))


def _histogram(clients: int, epsilon: float, rng: np.random.Generator) -> Drawn:
    prior = DirichletPrior()
    truth = prior.draws(rng, 1, CATEGORIES)
    held = rng.choice(CATEGORIES, clients, p=truth["shares"][0])
    told = bit_reports(held, UnaryEncoding(epsilon, CATEGORIES), rng)
    return Drawn(truth, partial(fits.histogram, told, prior), 0.0)


def _outside(x: Array, bounds: Interval) -> float:
    return float(np.mean((x < bounds.lower) | (x > bounds.upper)))


@dataclass(frozen=True)
class Game:
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


GAMES = {
    game.name: game
    for game in (
        Game(1, "Gaussian", ("mean", "sd"), 5000, 500, _gaussian, clips=True, cost=1.4),
        Game(
            10,
            "histogram",
            tuple(f"share {place + 1}" for place in range(CATEGORIES)),
            1000,
            100,
            _histogram,
            clips=False,
            cost=0.2,
        ),
        Game(11, "exponential", ("rate",), 1000, 80, _exponential, clips=True, cost=1.0),
    )
}
FIGURES = tuple(game.figure for game in GAMES.values())


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        figures: which. repeats: at most so many of each model; 0 for those of the paper. iterations: of each chain.
    """

    seed: int
    figures: tuple[int, ...] = FIGURES
    repeats: int = 0
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = ITERATIONS

    @classmethod
    def quick(cls, seed: int, figures: tuple[int, ...]) -> Plan:
        """A look."""
        return cls(seed, figures, QUICK_REPEATS, QUICK_EPSILONS, QUICK_ITERATIONS)


@dataclass(frozen=True)
class Cell:
    """Some repeats of a model at an ε: ``count`` from the ``first`` on."""

    model: str
    epsilon: float
    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.model}, epsilon {self.epsilon:g}, repeats {self.first} to {self.first + self.count - 1}"

    @property
    def cost(self) -> float:
        """Roughly, to do what takes longest first."""
        return self.count * GAMES[self.model].cost


def cells(plan: Plan) -> list[Cell]:
    """All of them, the repeats of a model and ε one after the other."""
    found = []
    for game in (game for game in GAMES.values() if game.figure in plan.figures):
        repeats = min(game.repeats, plan.repeats or game.repeats)
        for epsilon in plan.epsilons:
            found += [Cell(game.name, epsilon, first, min(PART, repeats - first)) for first in range(0, repeats, PART)]
    return found


def work(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Of each repeat: the truths' places among the draws, what was clipped, and how the fit went."""
    game = GAMES[cell.model]
    found: dict[str, Any] = {"places": [], "clipped": [], "fits": []}
    for repeat in range(cell.first, cell.first + cell.count):
        rng = stream(plan.seed, f"local/calibration/{cell.model}/{cell.epsilon:g}/{repeat}")
        drawn = game.draw(game.clients, cell.epsilon, rng)
        posterior, diagnosis = mixed(drawn.fit, plan.iterations, int(rng.integers(2**31)))
        found["places"].append(places(posterior.draws, drawn.truth))
        found["clipped"].append(round(drawn.clipped, 6))
        found["fits"].append(diagnosis)
    return found


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


def repeats_of(cells: Sequence[Cell], results: Sequence[Mapping[str, Any]], model: str, epsilon: float) -> list[Any]:
    """The results of the cells of a model at an ε."""
    both = zip(cells, results, strict=True)
    return [result for cell, result in both if (cell.model, cell.epsilon) == (model, epsilon)]
