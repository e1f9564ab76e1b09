"""Draws of the posterior predictive: values of new clients, and the reports that they would send.

For each draw of the parameters it simulates as many clients as the caller asks for. Values are not clipped; reports are
clipped and have the mechanism's noise. If simulated reports look unlike the real ones, the model is wrong. Where only
sums are known, there are values and no reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from inference.columns import Array, into_ball
from inference.jobs.estimates import COEFFICIENTS, INTERCEPT
from inference.models.column.families import FAMILIES
from inference.releases.reports import Categories, Rows, Scalars

THETA, ALPHA, ROOT = "theta", "alpha", "correlation_root"
"""Sites that the models of regressions draw, in their own units."""
CORRELATION = "feature_correlation"  # in the place of the root, as `COEFFICIENTS` and `INTERCEPT` of the other two
FEATURE_SD, FEATURE_MEAN, RESIDUAL_SD = "feature_sd", "feature_mean", "residual_sd"
"""The same in both units."""
VALUE, REPORT = "value", "report"
Axes = Mapping[str, tuple[str, ...]]
"""By what is drawn, names of its axes after chains and draws."""


@dataclass(frozen=True, eq=False)
class ScalarClient:
    """One column's value of that family, and its report."""

    family: str
    reports: Scalars
    axes: ClassVar[Axes] = {VALUE: ("client",), REPORT: ("client",)}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """``value`` and ``report``, shape ``(chains, draws, clients)``, in the column's own units."""
        given = {name: array[..., None] for name, array in parameters.items()}
        shape = (*next(iter(parameters.values())).shape, clients)
        value = FAMILIES[self.family].values(rng, given, shape)
        clipped = np.clip(value, self.reports.bounds.lower, self.reports.bounds.upper)
        noise = rng.laplace if self.reports.laplace else rng.normal
        return {VALUE: value, REPORT: clipped + noise(0.0, self.reports.scale, shape)}


@dataclass(frozen=True, eq=False)
class CategoryClient:
    """One category, reported as one or as bits."""

    reports: Categories

    @property
    def axes(self) -> Axes:
        """Of what is drawn."""
        return {VALUE: ("client",), REPORT: ("client", "category") if self.reports.unary else ("client",)}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """``value`` and ``report``: categories ``(chains, draws, clients)``; bits have an axis of categories more."""
        shares = parameters["shares"]
        below = np.cumsum(shares, axis=-1)[..., None, :-1]
        value = np.sum(rng.random((*shares.shape[:-1], clients, 1)) >= below, axis=-1)
        k, p, q = self.reports.categories, self.reports.p, self.reports.q
        if self.reports.unary:
            chance = np.where(np.arange(k) == value[..., None], p, q)
            return {VALUE: value.astype(float), REPORT: (rng.random(chance.shape) < chance).astype(float)}
        moved = np.where(rng.random(value.shape) < p, 0, rng.integers(1, k, value.shape))
        return {VALUE: value.astype(float), REPORT: ((value + moved) % k).astype(float)}


@dataclass(frozen=True, eq=False)
class RowClient:
    """A row of a regression, its target last: a number, or a label 0 or 1.

    Attributes:
        centre: of the columns, which is the features' mean where this is no parameter. logistic: whether there are
            labels. rows: those that were reported, as to noise and bounds; None where clients reported sums.
    """

    centre: Array
    logistic: bool
    rows: Rows | None = None
    axes: ClassVar[Axes] = {VALUE: ("client", "column"), REPORT: ("client", "column")}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """``value`` and, of rows, ``report``, shape ``(chains, draws, clients, d + 1)``.

        Numbers are in the columns' own units. A client has all of its values: one that lacks some reports zeros.
        """
        sd = parameters[FEATURE_SD]
        mean = parameters.get(FEATURE_MEAN, self.centre[:-1] + np.zeros_like(sd))
        white = rng.standard_normal((*sd.shape[:2], clients, sd.shape[2]))
        if CORRELATION in parameters:
            # RᵀR = Ω; unlike Cholesky's, R is there for all that are singular but for rounding
            values, vectors = np.linalg.eigh(parameters[CORRELATION])
            white = white @ (np.sqrt(np.maximum(values, 0.0))[..., None] * np.swapaxes(vectors, -1, -2))
        x = mean[..., None, :] + sd[..., None, :] * white
        score = (x @ parameters[COEFFICIENTS][..., None])[..., 0] + parameters[INTERCEPT][..., None]
        value = np.concatenate([x, targets_of(score, parameters, rng)[..., None]], axis=-1)
        return {VALUE: value} if self.rows is None else {VALUE: value, REPORT: self._report(value, self.rows, rng)}

    def _report(self, value: Array, rows: Rows, rng: np.random.Generator) -> Array:
        """Clipped, brought into the ball and with noise; a label as it is with probability p."""
        columns, noise = rows.columns, np.sqrt(np.r_[np.full(rows.x.shape[1], rows.variance_x), rows.variance_y])
        seen = np.clip((value - columns.centre) / columns.scale, -columns.bound, columns.bound)
        seen[..., :-1] = into_ball(seen[..., :-1], columns.radius)
        report: Array = columns.centre + columns.scale * (seen + noise * rng.standard_normal(seen.shape))
        if self.logistic:
            report[..., -1] = np.where(rng.random(report.shape[:-1]) < rows.p, report[..., -1], 1 - report[..., -1])
        return report


def targets_of(score: Array, parameters: Mapping[str, Array], rng: np.random.Generator) -> Array:
    """Targets with these means, or labels 0 and 1 of these log odds where there are no residuals.

    Args:
        score: of each draw of the parameters, shape ``(chains, draws, k)``, as what is returned.
    """
    if RESIDUAL_SD not in parameters:
        return np.asarray(rng.random(score.shape) < expit(score), float)
    return score + parameters[RESIDUAL_SD][..., None] * rng.standard_normal(score.shape)
