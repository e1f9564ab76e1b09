"""What all fits to rounds of scores share, of generalised linear models, of hazards and of categories.

A round of weighted scores is parsed to a `Released`. The last step of each fit is a linear regression (`regressed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.special import ndtri

from dca_proto.aggregate import NoisyAggregate
from dca_proto.statistics import Statistic, resolve
from inference.errors import DataError
from inference.problem import Array

TINY = 1e-12
FLOOR = 1e-6  # smallest eigenvalue relative to their mean, and smallest noise relative to the sampling variance
WRONG = 1 / 3  # the part of what a model of rows cannot know that counts as its error


class Asked(Protocol):
    """The request of a round: its information was sent with this weight."""

    @property
    def information(self) -> float: ...


S = TypeVar("S", bound=Statistic)
R = TypeVar("R", bound=Asked)


@dataclass(frozen=True, eq=False)
class Released(Generic[R]):
    """A round's result, divided by n; the noise variance of the score, too, divided by n².

    Attributes:
        complete: share of rows that count, and its standard deviation.
    """

    request: R
    score: Array
    information: Array
    noise: float
    complete: tuple[float, float]

    @property
    def information_noise(self) -> float:
        """The variance of each entry of the information."""
        return self.noise / self.request.information**2


def asked_by(aggregate: NoisyAggregate, kind: type[S]) -> S:
    """Return the statistic of a round of scores. Raises `DataError` for one of another kind."""
    found = resolve(aggregate.statistic, dict(aggregate.parameters))
    if not isinstance(found, kind):
        raise DataError(f"an aggregate is of statistic {aggregate.statistic!r}; expected {kind.name!r}")
    return found


def by_row(aggregate: NoisyAggregate, statistic: Statistic) -> Array:
    """Return the sums, divided by the number of rows. Raises `DataError` for another number of them."""
    if aggregate.value.shape != (statistic.dimension,) or not np.isfinite(aggregate.value).all():
        raise DataError(f"the sum has {aggregate.value.size} coordinates; expected {statistic.dimension}, all finite")
    return np.asarray(aggregate.value / aggregate.contributors)


def complete_of(aggregate: NoisyAggregate, unit: float) -> tuple[float, float]:
    """Return the share of rows that count, with its standard deviation. Args: unit: what such a row adds to the sum."""
    n = aggregate.contributors
    return float(aggregate.value[-1] / n) / unit, sqrt(aggregate.noise_variance) / n / unit


def combined(own: Array, noise: Any, simulated: Array, doubt: Array) -> Array:
    """Return what clients sent, with this variance of its noise, combined with what simulated rows send in doubt."""
    return np.asarray((own * doubt + simulated * noise) / (doubt + noise))


def doubt_left(noise: float, doubt: Array) -> Array:
    """Return the variance of what is `combined`."""
    return np.asarray(doubt * noise / np.maximum(doubt + noise, TINY))


class Prior(NamedTuple):
    """φ ~ N(mean, 1/precision), with independent coordinates: shapes ``(p,)``."""

    mean: Array
    precision: Array


class Normal(NamedTuple):
    """A normal law: shapes ``(p,)`` and ``(p, p)``."""

    mean: Array
    cov: Array


def positive(matrix: Array) -> Array:
    """Return the nearest symmetric matrix with eigenvalues above 0."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    least = FLOOR * max(float(np.abs(values).mean()), TINY)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def root(matrix: Array, power: float) -> Array:
    """Return a power of a symmetric matrix, brought to eigenvalues above 0."""
    values, vectors = np.linalg.eigh(positive(matrix))
    return np.asarray((vectors * values**power) @ vectors.T)


def spread_points(dimension: int, log2: int) -> Array:
    """Return 2^log2 Sobol points of the unit cube, always the same: errors of means over them fall about as 1/number.

    The shape is ``(number, dimension)``.
    """
    from scipy.stats.qmc import Sobol  # slow to import

    return np.asarray(Sobol(dimension, rng=np.random.default_rng(0)).random_base2(log2), float)


def simulated_features(points: Array, cov: Array, far: Array) -> Array:
    """Return standardised features for simulated rows, ``(m, d)``, of which some are rare categories.

    Args:
        points: uniform, ``(m, d)``. cov: of the features, of which the correlations count, ``(d, d)``.
        far: how many scales out the rare values of a feature lie, on which side; 0 for a normal one, ``(d,)``.
    """
    sd = np.sqrt(np.diag(cov))
    values, vectors = np.linalg.eigh(cov / np.outer(sd, sd))
    z = ndtri(np.clip(points, TINY, 1 - TINY)) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    distance, side = np.maximum(np.abs(far), 1.0), np.sign(far)
    rare = ndtri(distance**2 / (1 + distance**2))  # values far and -1/far, the former of probability 1/(1 + far²)
    return np.asarray(np.where(far == 0, z, side * np.where(side * z > rare, distance, -1 / distance)))


def regressed(prior: Prior, own: Array, rounds: Iterable[tuple[Array, Array, Array]]) -> Normal:
    """Return the posterior of φ* from rounds that see slope·(φ* + ζ) with independent errors, ζ integrated out.

    Args:
        own: precision of ζ, the sampling error; it has no full rank if no round sees a coordinate.
        rounds: of each the slope, the errors' precisions, and what was seen.
    """
    p = prior.mean.size
    precision, pull = np.zeros((2 * p, 2 * p)), np.zeros(2 * p)
    precision[:p, :p], pull[:p] = np.diag(prior.precision), prior.precision * prior.mean
    precision[p:, p:] = own + TINY * max(1.0, float(np.trace(own))) * np.eye(p)
    for slope, errors, seen in rounds:
        design = np.hstack([slope, slope])
        weighted = design.T * errors
        precision += weighted @ design
        pull += weighted @ seen
    cov = np.asarray(np.linalg.inv(precision), float)
    return Normal((cov @ pull)[:p], cov[:p, :p])
