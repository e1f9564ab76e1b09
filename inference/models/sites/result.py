"""The posterior of a model of sites in the columns' own units: a forest plot's table, and predictions at a new site.

Coefficients of sites are those of the target, or its log odds, on features centred at their mean over all sites. The
first of them is a site's level: what the model expects of an average row there. `Posterior.predict` is for rows of a
site that was not asked: its coefficients are drawn about the mean of sites, so their spread is in the prediction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from inference.columns import Standardisation
from inference.draws import Sampling
from inference.jobs.estimates import COEFFICIENTS, INTERCEPT, Estimate, Marginal, normal, of_draws
from inference.jobs.summary import Summary
from inference.laws import Draws
from inference.models.coefficients import IDENTITY, LOG_ODDS, LOGIT, Coefficients, rows_of_slopes
from inference.models.glm.regression import DrawnRows
from inference.models.predictive import RESIDUAL_SD
from inference.models.sites.evidence import BETWEEN, EFFECT, MEAN, Average, Evidence, Point, fixed, restricted
from inference.posterior import Posterior
from inference.problem import AnyArray, Array, Schema, unit_of

MEAN_OF, NEW, SPREAD, LEVEL = "mean of sites", "a new site", "sd between sites", "level"
ALONE = "site alone, not shrunk"
VAGUE = 10.0  # prior sd of a site's own estimate, standardised


@dataclass(frozen=True, eq=False)
class Units:
    """How standardised coefficients become those of the user's columns.

    Attributes:
        columns: as the data nodes scaled them. link: of the targets. target: size of a unit, in the target's units.
        centre: of the target. feature_mean, feature_sd: of the features, in own units, ``(d,)``.
    """

    columns: Standardisation
    link: str
    target: float
    centre: float
    feature_mean: Array
    feature_sd: Array

    @property
    def scale(self) -> Array:
        """Own units for each unit of a coefficient, the level's first, shape ``(p,)``."""
        return np.asarray(np.r_[self.target, self.target / self.feature_sd])

    def own(self, b: Array) -> Array:
        """Convert coefficients along the last axis."""
        shift = np.zeros(b.shape[-1])
        shift[0] = self.centre
        return np.asarray(b * self.scale + shift)

    def intercept(self, own: Array) -> Array:
        """Return the intercept, at features of zero, of coefficients in own units along the last axis."""
        return np.asarray(own[..., 0] - own[..., 1:] @ self.feature_mean)


def average_level(b: Array, apart: Array) -> Array:
    """Return coefficients, along the last axis, with the level of the average row in place of that at the centres.

    Args:
        apart: how far the average row is from the centres, ``(..., d)``.
    """
    found = np.array(b)
    found[..., 0] += (found[..., 1:] * apart).sum(axis=-1)
    return found


@dataclass(frozen=True, eq=False)
class NewSite(DrawnRows):
    """Predicts rows of a site that was not asked. Attributes: names: of the rows of the table."""

    names: tuple[str, ...]

    def reference_figures(self, reference: Posterior) -> list[Marginal | None]:
        """Return the reference's figures in the order of this table, None for sites that it does not have."""
        others = {one.name: one.marginal for one in reference.estimates()}
        return [others.get(name) for name in self.names]


def posterior_of(
    draws: Draws,
    units: Units,
    sites: Sequence[str],
    varies: Sequence[bool],
    *,
    schema: Schema,
    rng: np.random.Generator,
    prior: Mapping[str, Array],
    alone: Evidence,
    sampling: Sampling | None = None,
    notes: tuple[str, ...] = (),
    remarks: Mapping[str, str] | None = None,
    average: Average | None = None,
    attrs: Mapping[str, object] | None = None,
    private: bool = True,
) -> Posterior:
    """Return the posterior.

    Args:
        draws: standardised, by the names of `sites.evidence` and, for numbers, `RESIDUAL_SD`: ``(chains, draws, ...)``.
        sites: labels. varies: which coefficients differ between sites. schema: of the features and the target.
        prior: draws of the mean and of the spreads. alone: the evidence of each site. notes: warnings. remarks:
            further lines for people. average: the law of the average row, at whose features levels are; by default at
            the features' centres.
    """
    features, places = units.columns.columns[:-1], np.flatnonzero(varies)
    names = (LEVEL, *features)
    mean, effects, between = draws[MEAN], draws[EFFECT], draws[BETWEEN]
    new = np.array(mean)
    new[..., places] += between * rng.standard_normal(between.shape)
    average = average or Average.certain(len(features))
    apart = average.sample(rng, mean.shape[:2])
    at_centres = units.own(new)
    own: dict[str, Array] = {
        COEFFICIENTS: at_centres[..., 1:],
        INTERCEPT: units.intercept(at_centres),
        MEAN: units.own(average_level(mean, apart)),
        BETWEEN: between * units.scale[places],
        EFFECT: units.own(average_level(effects, apart[:, :, None])),
    }
    if RESIDUAL_SD in draws:
        own[RESIDUAL_SD] = units.target * draws[RESIDUAL_SD]
    before = {MEAN: units.own(prior[MEAN]), BETWEEN: prior[BETWEEN] * units.scale[places]}
    naive = _alone(alone, mean.mean(axis=(0, 1)), units, average)
    rows = _rows(own, before, units, sites, names, places, schema, naive, units.own(average_level(new, apart)))
    predictor = NewSite(_linear(own, units, schema), own, tuple(row.name for row in rows)) if features else None
    extras: Summary = {"naive_title": ALONE, "remarks": dict(remarks or {})}
    return Posterior(
        "sites",
        own,
        sampling,
        prior=before,
        axes={COEFFICIENTS: ("feature",), MEAN: ("coefficient",), EFFECT: ("site", "coefficient"),
              BETWEEN: ("varying",)},
        coords={"feature": features, "coefficient": names, "site": tuple(sites),
                "varying": tuple(names[place] for place in places)},
        notes=notes,
        attrs=dict(attrs or {}),
        table=lambda _: rows,
        extras=lambda: extras,
        predictor=predictor,
        private=private,
    )  # fmt: skip


def remarks_of(evidence: Evidence, varies: Sequence[bool], units: Units, average: Average) -> dict[str, str]:
    """Return the classical estimates of a meta-analysis of the same evidence, as lines for people."""
    point, common = restricted(evidence, varies), fixed(evidence)
    scale = float(units.scale[0])

    def words(one: Point) -> str:
        level = units.own(average_level(one.mean, average.mean))[0]
        return f"{level:.4g} ± {scale * float(np.sqrt(one.cov[0, 0])):.2g}"

    spread = f"sd between sites {scale * float(point.tau[0]):.3g}"
    return {"REML": f"mean of sites {words(point)}, {spread}", "fixed": f"one level for all sites {words(common)}"}


def ordered(nodes: Sequence[NoisyAggregate], names: Mapping[bytes, str]) -> list[NoisyAggregate]:
    """Return the releases in the order of the sites' names, numbers in them by size; those without a name last."""

    def key(node: NoisyAggregate) -> list[tuple[bool, float, str]]:
        parts = re.findall(r"\d+|\D+", names.get(node.client, ""))
        return [(not part.isdigit(), float(part) if part.isdigit() else 0.0, part) for part in parts]

    return sorted(nodes, key=key) if names else list(nodes)


def labels_of(nodes: Sequence[NoisyAggregate], names: Mapping[bytes, str]) -> tuple[str, ...]:
    """Return a label for each site: its name, or a number by the order of ids, with its number of rows."""
    return tuple(names.get(node.client, f"site {place}") for place, node in enumerate(nodes, 1))


def _alone(evidence: Evidence, mean: Array, units: Units, average: Average) -> tuple[Array, Array]:
    """Return estimates of each site's coefficients, and standard deviations, in own units, ``(J, p)``.

    Each is from the site alone, with its other coefficients at the mean of sites, ``(p,)``.
    """
    own = np.diagonal(evidence.precision, axis1=1, axis2=2)
    precision = own + VAGUE**-2
    of_others = (evidence.precision @ mean[:, None])[..., 0] - own * mean
    estimates = (evidence.h - of_others) / precision
    estimates[:, 0] += mean[1:] @ average.mean
    return units.own(estimates), units.scale / np.sqrt(precision)


def _rows(
    own: Draws,
    before: Draws,
    units: Units,
    sites: Sequence[str],
    names: Sequence[str],
    places: AnyArray,
    schema: Schema,
    alone: tuple[Array, Array],
    new: Array,
) -> list[Estimate]:
    """Return the table: slopes, then for each varying coefficient the sites, their mean, a new site and the spread."""
    target = unit_of(schema, schema.target, schema.target) if units.link == IDENTITY else LOG_ODDS
    figures = [of_draws(own[MEAN][..., k], before[MEAN][..., k]) for k in range(len(names))]
    slopes = rows_of_slopes(figures, units.columns.columns, schema, units.link, units.feature_sd, "plausible sd")[1:]
    rows = list(slopes)
    for nth, place in enumerate(places):
        of = "" if place == 0 else f"{names[place]}, "
        unit = target if place == 0 else slopes[place - 1].unit
        for j, site in enumerate(sites):
            naive = normal(alone[0][j, place], alone[1][j, place])
            rows.append(Estimate(f"{of}{site}", unit, of_draws(own[EFFECT][..., j, place]), naive=naive))
        rows.append(Estimate(f"{of}{MEAN_OF}", unit, figures[place]))
        rows.append(Estimate(f"{of}{NEW}", unit, of_draws(new[..., place])))
        spread = of_draws(own[BETWEEN][..., nth], before[BETWEEN][..., nth])
        rows.append(Estimate(f"{of}{SPREAD}", f"{unit} (sd)", spread))
    if 0 not in places:
        rows.append(Estimate(MEAN_OF, target, figures[0]))
    return rows


def _linear(own: Draws, units: Units, schema: Schema) -> Coefficients:
    """Return mean and covariance of a new site's coefficients, as the statistic scales its columns."""
    columns, identity = units.columns, units.link == IDENTITY
    unit = float(columns.scale[-1]) if identity else 1.0
    slopes = own[COEFFICIENTS] * columns.scale[:-1] / unit
    first = own[INTERCEPT] - (columns.centre[-1] if identity else 0.0) + own[COEFFICIENTS] @ columns.centre[:-1]
    theta = np.concatenate([first[..., None] / unit, slopes], axis=-1).reshape(-1, slopes.shape[-1] + 1)
    residual = float(np.mean(own[RESIDUAL_SD] ** 2)) / unit**2 if RESIDUAL_SD in own else 0.0
    more: dict[str, Any] = {"link": units.link, "residual_variance": residual, "schema": schema}
    return Coefficients(columns=columns, mean=theta.mean(axis=0), cov=np.cov(theta, rowvar=False), **more)


__all__ = ["IDENTITY", "LOGIT", "Units", "labels_of", "ordered", "posterior_of", "remarks_of"]
