"""Standardisation of columns: centred, divided by a scale, and clipped.

Features should be alike, with mean about 0 and standard deviation about 1. Only then does one step length suit all
directions, and one clipping norm and one prior suit all coefficients. Centres and scales come from a first round
(`locate`). A wrong centre costs little: the intercept absorbs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from inference.bounds import Interval
from inference.problem import Array, Schema

PRIOR_BOUND_SDS = 3.0
"""Assumed standard deviations per half-width: people state bounds that contain most values."""
FREE_BOUND = 1.665  # the largest bound, in scales, at which the squares of the statistic "moments" cost nothing
COUNT_WEIGHT = 1.732  # the largest weight of a count of complete rows that costs nothing beside one column's sum
COUNT_WEIGHT_L1 = 1.0  # the same for Laplace noise
MOMENTS_COUNT_WEIGHT = 2.522  # the same beside both moments of a column with `FREE_BOUND`
COUNT_LEAST = 1e-6  # bound of a column that only counts as missing or not, in its half-width: noise hides its value
PRIOR_MEAN_SD = 1 / PRIOR_BOUND_SDS  # prior sd of a column's mean about the public centre, in half-widths


@dataclass(frozen=True, eq=False)
class Standardisation:
    """z = clip((x - centre)/scale, ±bound), for the features and then the target: shapes ``(d + 1,)``.

    Clients then bring the features into the ball of that radius, if it is finite. If ``ends`` are given, the lower and
    upper bounds of each column in own units, shape ``(2, d + 1)``, clients clip to them first: then no client has to
    let values count beyond the public bounds.
    """

    columns: tuple[str, ...]
    centre: Array
    scale: Array
    bound: Array
    radius: float = inf
    ends: Array | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Standardisation:
        """Return the standardisation of a statistic with these public parameters."""
        centre, scale, bound = (np.array(parameters[name], float) for name in ("centre", "scale", "bound"))
        radius = parameters.get("radius")
        ends = np.array(given, float).T if (given := parameters.get("within")) else None
        return cls(tuple(parameters["columns"]), centre, scale, bound, inf if radius is None else radius, ends)

    @classmethod
    def within_bounds(cls, schema: Schema, unit: float = 1.0) -> Standardisation:
        """Return a standardisation about the middle of the public bounds; their half-width becomes ``unit`` scales."""
        bound = np.full(len(schema.columns), unit)
        return cls(schema.columns, schema.centres, schema.half_widths / bound, bound)

    def parameters(self) -> dict[str, object]:
        """Return the parameters for a statistic of scaled columns."""
        numbers = {"centre": self.centre, "scale": self.scale, "bound": self.bound}
        known: dict[str, object] = {"columns": list(self.columns)}
        known |= {name: [float(x) for x in row] for name, row in numbers.items()}
        if self.ends is not None:
            known["within"] = self.ends.T.tolist()
        return known if self.radius == inf else known | {"radius": self.radius}

    def seen(self, X: Array) -> Array:
        """Return rows ``(k, d)`` as the model sees them, clipped as clients clip, in own units."""
        return np.asarray(self.centre[:-1] + self.scale[:-1] * self.z(np.asarray(X, float)))

    def z(self, X: Array) -> Array:
        """Standardise rows of features in their own units, shape ``(k, d)``, as the clients do."""
        m = X.shape[1]
        X = X if self.ends is None else np.clip(X, *self.ends[:, :m])
        return into_ball(np.clip(self.scaled(X), -self.bound[:m], self.bound[:m]), self.radius)

    def scaled(self, X: Array) -> Array:
        """Centre and scale the first m columns, without clipping, shape ``(k, m)``."""
        m = X.shape[1]
        return np.asarray((X - self.centre[:m]) / self.scale[:m])

    def farthest(self, schema: Schema) -> Array:
        """Return the distance from the centres to the farther public bound, in scales, shape ``(d + 1,)``."""
        return np.asarray((schema.half_widths + np.abs(schema.centres - self.centre)) / self.scale)

    def in_own_units(self, theta: Array) -> Array:
        """Convert (θ₀, θ), shape ``(..., d + 1)``, of θ₀ + Σ θ_j z_j to the intercept and slopes in own units."""
        slopes = theta[..., 1:] / self.scale[:-1]
        return np.concatenate([theta[..., :1] - (slopes @ self.centre[:-1])[..., None], slopes], axis=-1)

    def with_own_target(self, bounds: Interval) -> Standardisation:
        """Return a standardisation that leaves the target in its own units, within its public bounds."""
        last = 0.0, 1.0, max(abs(bounds.lower), abs(bounds.upper))
        rows = zip(("centre", "scale", "bound"), (self.centre, self.scale, self.bound), last, strict=True)
        return replace(self, **{name: np.r_[row[:-1], value] for name, row, value in rows})

    def without_target(self) -> Standardisation:
        """Return the standardisation of the features alone."""
        ends = None if self.ends is None else self.ends[:, :-1]
        parts = self.columns[:-1], self.centre[:-1], self.scale[:-1], self.bound[:-1]
        return Standardisation(*parts, self.radius, ends)

    def in_bounds(self) -> Standardisation:
        """Return the same projection with the bounds as units, so that each bound is 1."""
        return replace(self, scale=self.scale * self.bound, bound=np.ones_like(self.bound))


def into_ball(z: Array, radius: float) -> Array:
    """Scale vectors (along the last axis) that lie outside the ball to its surface; the radius may be infinite."""
    return np.asarray(z / np.maximum(1.0, np.linalg.norm(z, axis=-1, keepdims=True) / radius))


def standardisation(rows: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each column of raw rows, not private; 1 for a constant column."""
    scale = rows.std(axis=0)
    return rows.mean(axis=0), np.where(scale > 0, scale, 1.0)
