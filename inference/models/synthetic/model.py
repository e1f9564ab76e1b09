"""A log-linear model of the cells of all columns, and rows drawn from it.

Rows are drawn by summing out one column after the other, and then drawing them in reverse. Within each group of like
rows, draws are spread evenly, so that the rows' marginals differ from the model's by less than independent draws would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from inference.models.synthetic.grid import Cells, Places
from inference.models.synthetic.release import Release, without_hidden
from inference.models.synthetic.structure import Elimination
from inference.problem import Array
from inference.simplex import nearest_on_simplex

_LEAST = 1e-12  # share of a cell without rows
Potentials = list[tuple[Places, Array]]


@dataclass(frozen=True, eq=False)
class Model:
    """A log-linear model of the columns' cells.

    Attributes:
        sizes: the number of cells of each column. potentials: functions of the cells of some columns, whose sum is the
            log density but for a constant.
    """

    sizes: tuple[int, ...]
    potentials: Potentials

    def rows(self, number: int, rng: np.random.Generator) -> Cells:
        """Draw the cells of rows, ``(number, columns)``."""
        elimination = Elimination.of(self.sizes, [places for places, _ in self.potentials])
        factors, joints = list(self.potentials), []
        for place, clique in zip(elimination.order, elimination.cliques, strict=True):
            shape = [self.sizes[one] for one in clique]
            joint = np.zeros(shape)
            for places, values in factors:
                if place in places:
                    joint = joint + _along(values, places, clique)
            joints.append(joint)
            factors = [factor for factor in factors if place not in factor[0]]
            factors.append((clique[1:], logsumexp(joint, axis=0)))
        cells = np.zeros((number, len(self.sizes)), dtype=np.int64)
        for clique, joint in zip(reversed(elimination.cliques), reversed(joints), strict=True):
            around, flat = clique[1:], joint.reshape(len(joint), -1)
            group = np.zeros(number, dtype=np.int64)
            if around:
                group = np.ravel_multi_index(tuple(cells[:, one] for one in around), joint.shape[1:])
            cells[:, clique[0]] = _spread(np.exp(flat - logsumexp(flat, axis=0)).T, group, rng)
        return cells


def independent(release: Release) -> Model:
    """Return the model of columns that were counted alone: the nearest possible shares of each."""
    given, n = without_hidden(release), release.number
    shares = [nearest_on_simplex(table.counts, float(n)) / n for table in given]
    return Model(release.kept, [((place,), np.log(np.maximum(one, _LEAST))) for place, one in enumerate(shares)])


def _along(values: Array, places: Places, clique: Places) -> Array:
    """Return a function of some columns as an array with an axis for each column of a clique."""
    order = sorted(range(len(places)), key=lambda axis: clique.index(places[axis]))
    sizes = dict(zip(places, values.shape, strict=True))
    return np.transpose(values, order).reshape([sizes.get(place, 1) for place in clique])


def _spread(shares: Array, group: Cells, rng: np.random.Generator) -> Cells:
    """Draw a cell for each row by the shares ``(groups, cells)`` of its group, spread evenly within the group."""
    number = len(group)
    order = np.lexsort((rng.random(number), group))
    sizes = np.bincount(group, minlength=len(shares))
    firsts = np.cumsum(sizes) - sizes
    rank = np.empty(number)
    rank[order] = np.arange(number) - firsts[group[order]]
    at = np.minimum((rank + rng.random(number)) / sizes[group], 1 - 1e-12)
    ends = (np.cumsum(shares, axis=1) / shares.sum(axis=1, keepdims=True) + np.arange(len(shares))[:, None]).ravel()
    found = ends.searchsorted(at + group, side="right") - group * shares.shape[1]
    return np.asarray(found.clip(0, shares.shape[1] - 1))
