"""Draws from the posterior predictive: values of new clients, and the reports that they would send.

For each draw of the parameters it simulates as many clients as the caller asks for. Values are not clipped; reports are
clipped and have the mechanism's noise. If simulated reports look unlike the real ones, the model is wrong. If only sums
were released, there are values but no reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from inference.columns import into_ball
from inference.jobs.estimates import COEFFICIENTS, INTERCEPT
from inference.models.column.families import FAMILIES, MISSING_SHARE
from inference.problem import Array
from inference.releases.reports import Categories, Rows, Scalars

THETA, ALPHA, ROOT = "theta", "alpha", "correlation_root"
"""Sites that the regression models draw. In own units `COEFFICIENTS`, `INTERCEPT` and `CORRELATION` replace them."""
CORRELATION = "feature_correlation"
FEATURE_SD, FEATURE_MEAN, RESIDUAL_SD = "feature_sd", "feature_mean", "residual_sd"
"""Sites with the same name in both units."""
VALUE, REPORT = "value", "report"
Axes = Mapping[str, tuple[str, ...]]
"""Names of the axes of each variable, after chains and draws."""


@dataclass(frozen=True, eq=False)
class ScalarClient:
    """Draws a client's value of one column from a family, and its report."""

    family: str
    reports: Scalars
    axes: ClassVar[Axes] = {VALUE: ("client",), REPORT: ("client",)}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draw ``value`` and ``report``, shape ``(chains, draws, clients)``, in the column's own units."""
        given = {name: array[..., None] for name, array in parameters.items()}
        shape = (*next(iter(parameters.values())).shape, clients)
        value = FAMILIES[self.family].values(rng, given, shape)
        clipped = np.clip(value, self.reports.bounds.lower, self.reports.bounds.upper)
        if MISSING_SHARE in given:
            clipped = np.where(rng.random(shape) < given[MISSING_SHARE], self.reports.bounds.centre, clipped)
        noise = rng.laplace if self.reports.laplace else rng.normal
        return {VALUE: value, REPORT: clipped + noise(0.0, self.reports.scale, shape)}


@dataclass(frozen=True, eq=False)
class CategoryClient:
    """Draws a client's category, reported as a category or as bits."""

    reports: Categories

    @property
    def axes(self) -> Axes:
        """The axes of both variables."""
        return {VALUE: ("client",), REPORT: ("client", "category") if self.reports.unary else ("client",)}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draw ``value`` and ``report``, shape ``(chains, draws, clients)``; bits have a further axis of categories."""
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
    """Draws a client's row for a regression; the target comes last: a number, or a label 0 or 1.

    Attributes:
        centre: of the columns; the features' mean if that is not a parameter. logistic: whether the target is a label.
        rows: the reported rows, for their noise and bounds; None if only sums were released.
    """

    centre: Array
    logistic: bool
    rows: Rows | None = None
    axes: ClassVar[Axes] = {VALUE: ("client", "column"), REPORT: ("client", "column")}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draw ``value`` and, if rows were reported, ``report``, shape ``(chains, draws, clients, d + 1)``.

        Numbers are in the columns' own units. No value is missing (a real client that lacks one reports zeros).
        """
        sd = parameters[FEATURE_SD]
        mean = parameters.get(FEATURE_MEAN, self.centre[:-1] + np.zeros_like(sd))
        white = rng.standard_normal((*sd.shape[:2], clients, sd.shape[2]))
        if CORRELATION in parameters:
            # RᵀR = Ω by eigenvalues: unlike Cholesky's factor, R exists if Ω is singular up to rounding
            values, vectors = np.linalg.eigh(parameters[CORRELATION])
            white = white @ (np.sqrt(np.maximum(values, 0.0))[..., None] * np.swapaxes(vectors, -1, -2))
        x = mean[..., None, :] + sd[..., None, :] * white
        score = (x @ parameters[COEFFICIENTS][..., None])[..., 0] + parameters[INTERCEPT][..., None]
        value = np.concatenate([x, targets_of(score, parameters, rng)[..., None]], axis=-1)
        return {VALUE: value} if self.rows is None else {VALUE: value, REPORT: self._report(value, self.rows, rng)}

    def _report(self, value: Array, rows: Rows, rng: np.random.Generator) -> Array:
        """Clip the row, bring it into the ball and add noise; keep a label with probability p, else flip it."""
        columns, noise = rows.columns, np.sqrt(np.r_[np.full(rows.x.shape[1], rows.variance_x), rows.variance_y])
        seen = np.clip((value - columns.centre) / columns.scale, -columns.bound, columns.bound)
        seen[..., :-1] = into_ball(seen[..., :-1], columns.radius)
        report: Array = columns.centre + columns.scale * (seen + noise * rng.standard_normal(seen.shape))
        if self.logistic:
            report[..., -1] = np.where(rng.random(report.shape[:-1]) < rows.p, report[..., -1], 1 - report[..., -1])
        return report


def targets_of(score: Array, parameters: Mapping[str, Array], rng: np.random.Generator) -> Array:
    """Draw targets with these means or, if there is no residual sd, labels 0 and 1 with these log odds.

    Args:
        score: mean or log odds for each draw of the parameters, shape ``(chains, draws, k)``, like the result.
    """
    if RESIDUAL_SD not in parameters:
        return np.asarray(rng.random(score.shape) < expit(score), float)
    return score + parameters[RESIDUAL_SD][..., None] * rng.standard_normal(score.shape)
