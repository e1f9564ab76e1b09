"""The last step of all fits to rounds of scores, of generalised linear models and of hazards: a linear regression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from inference.problem import Array

TINY = 1e-12


class Prior(NamedTuple):
    """φ ~ N(mean, 1/precision), with independent coordinates: shapes ``(p,)``."""

    mean: Array
    precision: Array


class Normal(NamedTuple):
    """A normal law: shapes ``(p,)`` and ``(p, p)``."""

    mean: Array
    cov: Array


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
