"""The model of categories: its parameters φ, and what rows would send and how it moves with φ.

Ordered categories: φ = θ, thresholds and effects. Others: θ_k adds up to zero over the categories, and φ are its
coordinates in an orthonormal basis. So each category has the same prior, whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, helmert
from scipy.special import logit

from dca_proto.statistics.category_score import chances_of, scores, with_one
from inference.models.linear.closed_form import symmetric
from inference.models.score_regression import Prior
from inference.problem import Array

INTERCEPT_SD = 3.0  # of thresholds and intercepts
GAP_LEAST = 0.02  # between thresholds of a request


class Places(NamedTuple):
    """Places in a model with curves: of φ without them, of the curves' effects in φ, of the score and information."""

    own: NDArray[np.int64]
    curves: NDArray[np.int64]
    score: NDArray[np.int64]
    information: NDArray[np.int64]


@dataclass(frozen=True)
class Model:
    """The model. Attributes: ordered, classes: K, features: d, as in the statistic."""

    ordered: bool
    classes: int
    features: int

    @property
    def heads(self) -> int:
        """How many linear predictors, or thresholds, are free: K - 1."""
        return self.classes - 1

    @cached_property
    def basis(self) -> Array:
        """B, shape ``(q, p)``."""
        if self.ordered:
            return np.eye(self.heads + self.features)
        return np.asarray(np.kron(helmert(self.classes).T, np.eye(self.features + 1)))

    @cached_property
    def contrasts(self) -> Array:
        """An orthonormal basis of scores, which add up to zero over the categories: ``(size of t, p)``."""
        if self.ordered:
            return np.asarray(block_diag(helmert(self.classes).T, np.eye(self.features)))
        return self.basis

    @cached_property
    def effects(self) -> NDArray[np.int64]:
        """The places of the effects in φ."""
        places = np.arange(self.basis.shape[1])
        return places[self.heads :] if self.ordered else places[places % (self.features + 1) > 0]

    @property
    def terms(self) -> int:
        """The number of terms of the information."""
        k, d = self.classes, self.features
        if self.ordered:
            return (k - 1) * (1 + 2 * d) + d * (d + 1) // 2
        return k * (k - 1) // 2 * ((d + 1) * (d + 2) // 2)

    @property
    def with_curves(self) -> Model:
        """The model whose features are these and then their curves, as the statistic sends them."""
        return replace(self, features=2 * self.features)

    @cached_property
    def among_curves(self) -> Places:
        """Where this model's parameters, score and information are in those of `with_curves`."""
        k, d, wide = self.classes, self.features, 2 * self.features
        size = d if self.ordered else d + 1
        whole = wide if self.ordered else wide + 1
        terms = whole * (whole + 1) // 2

        def products(first: int) -> NDArray[np.int64]:
            square = symmetric(np.arange(terms, dtype=float), whole)[:size, :size]
            return first + square[np.triu_indices(size)].astype(int)

        if self.ordered:
            heads, crossed = np.arange(k - 1), np.arange((k - 1) * (1 + 2 * wide))[k - 1 :].reshape(2 * (k - 1), wide)
            information = np.r_[heads, crossed[:, :d].ravel(), products((k - 1) * (1 + 2 * wide))]
            return Places(np.arange(k - 1 + d), k - 1 + d + np.arange(d), np.arange(k + d), information)
        each = np.arange((k - 1) * whole).reshape(k - 1, whole)
        information = np.concatenate([products(pair * terms) for pair in range(k * (k - 1) // 2)])
        score = np.arange(k * whole).reshape(k, whole)[:, :size].ravel()
        return Places(each[:, :size].ravel(), each[:, size:].ravel(), score, information)

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """The places of thresholds or intercepts in φ."""
        return np.setdiff1d(np.arange(self.basis.shape[1]), self.effects)

    def prior(self, effect_sd: float) -> Prior:
        """Return the prior of φ. Args: effect_sd: of effects; for a softmax of differences between two categories."""
        mean = np.zeros(self.basis.shape[1])
        sd = np.full(mean.size, INTERCEPT_SD)
        sd[self.effects] = effect_sd if self.ordered else effect_sd / np.sqrt(2)
        if self.ordered:
            mean[: self.heads] = logit(np.arange(1, self.classes) / self.classes)
        return Prior(mean, sd**-2)

    def phi(self, theta: Array) -> Array:
        """Return φ of a θ."""
        return np.asarray(theta @ self.basis)

    def theta(self, phi: Array) -> Array:
        """Return θ; thresholds increase."""
        theta = self.basis @ phi
        if self.ordered:
            rise = np.arange(self.heads) * GAP_LEAST
            theta[: self.heads] = np.maximum.accumulate(theta[: self.heads] - rise) + rise
        return np.asarray(theta)

    def answers(self, theta: Array, x: Array) -> Array:
        """Return t of rows in each category, by `contrasts`: ``(m, K, p)``."""
        chances = chances_of(theta, x, self.classes, ordered=self.ordered)
        own = np.eye(self.classes)
        each = [scores(chances, x, np.tile(own[k], (len(x), 1))) for k in range(self.classes)]
        return np.stack(each, axis=1) @ self.contrasts

    def moves(self, theta: Array, x: Array) -> tuple[Array, Array]:
        """Return the chances of rows, ``(m, K)``, and their derivatives by φ, ``(m, K, p)``."""
        chances, classes = chances_of(theta, x, self.classes, ordered=self.ordered), self.classes
        each = chances.each
        if self.ordered:
            f = chances.densities
            by = np.zeros((*each.shape, self.heads + self.features))
            for k in range(self.heads):
                by[:, k, k], by[:, k + 1, k] = f[:, k], -f[:, k]
            own = np.diff(f, axis=1, prepend=0.0, append=0.0)
            by[:, :, self.heads :] = -own[:, :, None] * x[:, None, :]
            return each, by
        curved = each[:, :, None] * (np.eye(classes) - each[:, None, :])
        by = (curved[..., None] * with_one(x)[:, None, None, :]).reshape(len(x), classes, -1)
        return each, by @ self.basis

    def matrix(self, information: Array, *, squared: bool = False) -> Array:
        """Return ∂E[t]/∂θ from the entries of the information, or if `squared` their variances: ``(size of t, q)``."""
        k, d, sign = self.classes, self.features, 1.0 if squared else -1.0
        if not self.ordered:
            found = np.zeros((k, d + 1, k, d + 1))
            pairs = information.reshape(k * (k - 1) // 2, -1)
            for (a, b), terms in zip(combinations(range(k), 2), pairs, strict=True):
                block = symmetric(terms, d + 1)
                found[a, :, a] += block
                found[b, :, b] += block
                found[a, :, b] = found[b, :, a] = sign * block
            return np.asarray(found.reshape(k * (d + 1), -1))
        f, crossed = information[: k - 1], information[k - 1 : (k - 1) * (1 + 2 * d)].reshape(2, k - 1, d)
        found = np.zeros((k + d, k - 1 + d))
        for place in range(k - 1):
            found[place, place], found[place + 1, place] = f[place], sign * f[place]
            found[place, k - 1 :] += sign * crossed[0, place]
            found[place + 1, k - 1 :] += crossed[0, place]
        found[k:, : k - 1] = sign * crossed[1].T
        found[k:, k - 1 :] = symmetric(information[(k - 1) * (1 + 2 * d) :], d)
        return found

    def sizes(self, information: Array) -> Array:
        """Return the size of each entry: the root of the diagonal ones of its row and column."""
        k, d = self.classes, self.features
        size = d if self.ordered else d + 1
        upper, first = np.triu_indices(size), (k - 1) * (1 + 2 * d) if self.ordered else 0
        terms = information[first:].reshape(-1, size * (size + 1) // 2)
        own = np.sqrt(np.maximum(terms[:, upper[0] == upper[1]], 0.0))
        products = (own[:, upper[0]] * own[:, upper[1]]).ravel()
        if not self.ordered:
            return np.asarray(products)
        f = information[: k - 1]
        return np.asarray(np.r_[f, np.repeat(f, d), np.repeat(f, d), products])
