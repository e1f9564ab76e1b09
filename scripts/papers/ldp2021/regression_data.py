"""Wine and Adult for regression from local reports: prepared as published, and for a valid privacy claim.

**As published** (section 4.2: "we use principal component analysis", "we center our data sets to zero mean"). Columns
are divided by their standard deviations, centred, and projected onto their first principal components. All of this is
computed from the training rows: not private. The paper leaves some choices open, which are the same here for both data
sets. There are 4 components (74 % of wine's variance; 6 take six times as long). To give R = 1 a meaning, components
are in units of the `QUANTILE` of their norms, so that clipping to the ball changes half of the rows. The target of wine
is centred by its mean and clipped to ±2 points. There is no intercept. Test features are not clipped, as the paper says
of test targets.

**Valid.** Nothing is computed from rows. Columns are centred and scaled by public constants. A public random
projection, drawn for each repeat, replaces the principal components. The features are then divided by √d, the root mean
square norm of standardised rows, so the ball of radius 1 is public. The model has an intercept. Predictions clip
features to the ball as the clients do.

- Wine: centres are the means that the data's paper prints, weighted by its numbers of red and white wines; a scale is a
  third of the half-width of the printed ranges (`inference.columns`). Both come from the rows, so wine's run is valid
  but for these constants. The target is in thirds of the half-width of the tasters' scale, about its middle.
- Adult: the six columns that are numbers or have two values: age, years of education, hours a week, capital gains and
  losses, sex. Centres are the middles of the public bounds, but 0 for gains and losses, which most people do not have.
  Scales are a third of the half-widths; for sex, the half-width.

Red and white wines form one data set, with the colour as the twelfth feature. Both parts of Adult form one of 48,842
people.
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
"""The radius of the ball that features are clipped to."""
TARGET_BOUND = 2.0  # R_y of wine as published, in points
WINES = {"red": 1599, "white": 4898}  # Cortez et al. 2009, section 2.1


class Choices(NamedTuple):
    """The choices that the paper leaves open: the number of components, and the quantile of the norms that is R."""

    components: int = COMPONENTS
    quantile: float = QUANTILE


@dataclass(frozen=True, eq=False)
class Split:
    """One repeat's rows in the units of the models, not yet clipped to the ball and the target's bound."""

    X: Array  # training rows, shape (n, d)
    y: Array  # shape (n,)
    X_test: Array
    y_test: Array
    target_bound: float  # R_y
    unit: float  # of y, in units of the data
    intercept: bool  # whether the model has one
    private: bool  # True if nothing was computed from rows

    @property
    def seen_test(self) -> Array:
        """The test features that predictions use: clipped to the ball, but not as published."""
        return into_ball(self.X_test, BALL) if self.private else self.X_test

    def some(self, rows: int, rng: np.random.Generator) -> Split:
        """Return the split with at most `rows` training rows, drawn at random."""
        if rows >= len(self.y):
            return self
        chosen = rng.permutation(len(self.y))[:rows]
        return replace(self, X=self.X[chosen], y=self.y[chosen])


@lru_cache(maxsize=2)
def problem(name: str, folder: Path | None) -> Problem:
    """Return a whole data set in its own units, with its public bounds. Raise `DataError` if it is not available."""
    if name == ADULT:  # the training part and the official test part; the target is -1 or 1
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
    """Return one repeat: the same rows in both settings, for all methods and all ε."""
    whole = problem(name, folder)
    order = stream(seed, f"local/split/{name}/{repeat}").permutation(len(whole.y))
    n = ceil(TRAIN_SHARE * len(order))
    prepare = _published if setting == PUBLISHED else _public
    return prepare(whole, order[:n], order[n:], choices, stream(seed, f"local/projection/{name}/{repeat}"))


def _published(whole: Problem, train: Any, test: Any, choices: Choices, rng: np.random.Generator) -> Split:
    mean, sd = whole.X[train].mean(axis=0), whole.X[train].std(axis=0)
    Z = (whole.X - mean) / np.where(sd > 0, sd, 1.0)  # a category may have no row
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


def public_units(problem: Problem) -> tuple[Array, Array]:
    """Return the public centre and scale of each column, the target last, as the module's docstring defines them."""
    schema = problem.schema
    centres, scales = schema.centres, schema.half_widths / PRIOR_BOUND_SDS
    for place, name in enumerate(schema.features):
        if name in LOGARITHMIC:
            centres[place] = 0.0
        elif name == SEX:
            scales[place] *= PRIOR_BOUND_SDS
        elif problem.name == WINE:
            of = {c: RANGES[f"wine-{c}"].get(name, [0.0, 0.0, float(c == COLOUR)])[2] for c in WINES}
            centres[place] = sum(count * of[colour] for colour, count in WINES.items()) / sum(WINES.values())
    return centres, scales


def projection(columns: int, count: int, rng: np.random.Generator) -> Array:
    """Draw orthonormal directions uniformly, shape ``(columns, count)``."""
    Q, R = np.linalg.qr(rng.standard_normal((columns, count)))
    return np.asarray(Q * np.sign(np.diag(R)))
