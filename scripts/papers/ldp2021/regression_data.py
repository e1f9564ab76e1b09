"""Wine and Adult for regression from local reports: as the paper has them, and as a valid privacy claim needs them.

**As published** (section 4.2: "we use principal component analysis", "we center our data sets to zero mean"). Columns
are divided by their standard deviations, centred, and turned into their first principal components, all of it read from
the rows learnt from: not private. What the paper leaves open is chosen here, the same for both data sets: 4 components
(74 % of wine's variance; a posterior given 6 takes six times as long), and, so that a radius of R = 1 means something,
components in units of the `QUANTILE` of their norms, so that half of the rows are brought into the ball. The target of
wine is centred by its mean and clipped to ±2 points. There is no intercept. Features to test on are not clipped, as the
paper says of targets.

**Valid.** Nothing is read from rows. Columns are centred and scaled by what is public of them. A random projection that
is public and drawn anew for each repeat takes the place of the principal components; the features are then divided by
√d, which is the root mean square norm of standardised rows, so that the ball of radius 1 is a public one. The model has
an intercept. Whoever predicts brings features into the ball as the clients do.

- Wine: centres are the means that the data's own paper prints, weighted by its numbers of red and white wines; a scale
  is a third of the half-width of the ranges that it prints (`inference.columns`). Both are the rows' own, so wine's run
  is valid but for these. The target is in thirds of the half-width of the tasters' scale, about its middle.
- Adult: the six columns that are numbers or have two values: age, years of education, hours a week, capital gains and
  losses, sex. Centres are the middles of the public bounds, but 0 for gains and losses, which most people do not have;
  scales are a third of the half-widths, and of sex the half-width.

Red and white wines are one data set with the colour as the twelfth feature; the 48,842 people are both parts of Adult.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inference.bounds import Interval
from inference.columns import PRIOR_BOUND_SDS, into_ball
from inference.datasets import adult, wine
from inference.datasets.uci import LOGARITHMIC, NUMBERS
from inference.problem import Array, Problem, Schema, stream
from papers.dca2017.data import BOUNDS, RANGES

PUBLISHED, VALID = SETTINGS = ("as published", "valid")
WINE, ADULT = "wine", "adult"
COLOUR, SEX = "white", "sex=Male"
COMPONENTS, QUANTILE, TRAIN_SHARE = 4, 0.5, 0.8
BALL = 1.0
"""The radius of the ball that features are brought into."""
TARGET_BOUND = 2.0  # R_y of wine as published, in points
WINES = {"red": 1599, "white": 4898}  # Cortez et al. 2009, section 2.1


class Choices(NamedTuple):
    """What the paper leaves open: how many components, and which quantile of the norms is the radius."""

    components: int = COMPONENTS
    quantile: float = QUANTILE


@dataclass(frozen=True, eq=False)
class Split:
    """One repeat's rows, in the units that the models see; not yet within the ball and the target's bound."""

    X: Array  # to learn from, shape (n, d)
    y: Array  # shape (n,)
    X_test: Array
    y_test: Array
    target_bound: float  # R_y
    unit: float  # of y, in units of the data
    intercept: bool  # whether the model has one
    private: bool  # whether nothing was read from rows

    @property
    def seen_test(self) -> Array:
        """The features to test on as whoever predicts takes them: as published as they are, else within the ball."""
        return into_ball(self.X_test, BALL) if self.private else self.X_test

    def some(self, rows: int, rng: np.random.Generator) -> Split:
        """The same with so many of the rows to learn from, drawn at random; with all where there are no more."""
        if rows >= len(self.y):
            return self
        chosen = rng.permutation(len(self.y))[:rows]
        return replace(self, X=self.X[chosen], y=self.y[chosen])


@lru_cache(maxsize=2)
def problem(name: str, folder: Path | None) -> Problem:
    """A whole data set in its own units, with what is public of it. Raises `DataError` where it cannot be had."""
    if name == ADULT:  # the training and the official test part; the target is -1 or 1
        parts = [adult(folder), adult(folder, part="test")]
        schema = parts[0].schema
        bounds = {**schema.bounds, schema.target: Interval(-1, 1, "-1 or 1")}
        X, y = np.vstack([part.X for part in parts]), np.concatenate([part.y for part in parts])
        return Problem(ADULT, replace(schema, bounds=bounds), X, 2 * y - 1)
    parts = [wine("red", folder), wine("white", folder)]
    schema, both = parts[0].schema, [BOUNDS[f"wine-{colour}"] for colour in WINES]
    reason = "range of red and white wines in Cortez et al. 2009, Table 1"
    bounds = {COLOUR: Interval(0, 1, "0 or 1"), schema.target: schema.bounds[schema.target]}
    for name in schema.features:
        ends = min(one[name].lower for one in both), max(one[name].upper for one in both)
        bounds[name] = Interval(*ends, reason, public=False)
    X = np.column_stack([np.vstack([part.X for part in parts]), np.repeat([0.0, 1.0], [len(part.y) for part in parts])])
    known = Schema((*schema.features, COLOUR), schema.target, bounds, schema.units)
    return Problem(WINE, known, X, np.concatenate([part.y for part in parts]))


@lru_cache(maxsize=64)
def split(name: str, folder: Path | None, setting: str, repeat: int, seed: int, choices: Choices) -> Split:
    """One repeat: the same rows in both settings, for all methods and all ε."""
    whole = problem(name, folder)
    order = stream(seed, f"local/split/{name}/{repeat}").permutation(len(whole.y))
    n = ceil(TRAIN_SHARE * len(order))
    prepare = _published if setting == PUBLISHED else _public
    return prepare(whole, order[:n], order[n:], choices, stream(seed, f"local/projection/{name}/{repeat}"))


def _published(whole: Problem, train: Any, test: Any, choices: Choices, rng: np.random.Generator) -> Split:
    mean, sd = whole.X[train].mean(axis=0), whole.X[train].std(axis=0)
    Z = (whole.X - mean) / np.where(sd > 0, sd, 1.0)  # a category may be in no row
    learnt = Z[train]
    chosen = np.linalg.eigh(learnt.T @ learnt)[1][:, ::-1][:, : choices.components]  # of the largest variances
    largest = chosen[np.abs(chosen).argmax(axis=0), np.arange(chosen.shape[1])]
    P = Z @ (chosen * np.sign(largest))
    P /= np.quantile(np.linalg.norm(P[train], axis=1), choices.quantile)
    y, bound = whole.y, 1.0
    if whole.name == WINE:
        y, bound = y - y[train].mean(), TARGET_BOUND
    return Split(P[train], y[train], P[test], y[test], bound, 1.0, intercept=False, private=False)


def _public(whole: Problem, train: Any, test: Any, choices: Choices, rng: np.random.Generator) -> Split:
    known = whole if whole.name == WINE else whole.select((*NUMBERS, SEX))
    centres, scales = public_units(known)
    Z = (known.X - centres[:-1]) / scales[:-1]
    Z = Z @ projection(Z.shape[1], min(choices.components, Z.shape[1]), rng)
    P, y, bound, unit = Z / sqrt(Z.shape[1]), known.y, 1.0, 1.0
    if known.name == WINE:
        y, bound, unit = (y - centres[-1]) / scales[-1], PRIOR_BOUND_SDS, float(scales[-1])
    return Split(P[train], y[train], P[test], y[test], bound, unit, intercept=True, private=True)


def public_units(known: Problem) -> tuple[Array, Array]:
    """Centre and scale of each column, the target last, from public knowledge; as at the head."""
    schema = known.schema
    centres, scales = schema.centres, schema.half_widths / PRIOR_BOUND_SDS
    for place, name in enumerate(schema.features):
        if name in LOGARITHMIC:
            centres[place] = 0.0
        elif name == SEX:
            scales[place] *= PRIOR_BOUND_SDS
        elif known.name == WINE:
            of = {c: RANGES[f"wine-{c}"].get(name, [0.0, 0.0, float(c == COLOUR)])[2] for c in WINES}
            centres[place] = sum(count * of[colour] for colour, count in WINES.items()) / sum(WINES.values())
    return centres, scales


def projection(columns: int, count: int, rng: np.random.Generator) -> Array:
    """Orthonormal directions, uniform over all, shape ``(columns, count)``."""
    Q, R = np.linalg.qr(rng.standard_normal((columns, count)))
    return np.asarray(Q * np.sign(np.diag(R)))
