"""The normal law of a model's parameters, which all regressions share: rounds, rows and reports give the same class.

    θ ~ N(mean, cov), the privacy noise included, for columns as `columns` standardises them

`NormalLaw.posterior` makes the `inference.posterior.Posterior`. A model of its own units is a subclass that says how θ
becomes what people read: its table, its parameters, and what it predicts of rows (`inference.laws.Predictor`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from inference.columns import Standardisation
from inference.draws import CHAINS, DRAWS, all_private
from inference.jobs.estimates import BY_SD, COEFFICIENTS, Estimate, Marginal, normal, slope_axis, student
from inference.jobs.summary import Summary
from inference.laws import Axes, Coords, Drawn, Shrunk
from inference.posterior import Posterior, refitted
from inference.problem import Array, Schema, unit_of

FISHER_SCORING = "private Fisher scoring"


@dataclass(frozen=True, eq=False, kw_only=True)
class NormalLaw:
    """θ ~ N(mean, cov) for columns standardised by `columns`; cov includes the privacy noise.

    Attributes:
        names: of θ's coordinates. columns: how clients standardise and project features and target.
        mean, cov: shapes ``(p,)`` and ``(p, p)``.
        prior_mean, prior_sd: of each coordinate of θ, broadcastable to ``(p,)``. An infinite sd is a flat prior; None
            means that there is no prior, or that it is not normal.
        schema: of the columns, if known.
        method: as text. contributors: number of clients, or of rows. private: False if no epsilon may be claimed.
        iterations: number of gradient rounds that ran. epochs: number of rounds that asked each client.
        stopped: why fewer rounds ran than planned, as a sentence. aggregates: the source, if they are kept.
        warnings: reasons to doubt it. refitter: as for `Posterior`. stretch: sd of an unknown factor of θ, in ``cov``.
        shrunk: the draws under a prior that shrinks (`inference.models.shrinkage`); None under a normal one.
    """

    slopes: ClassVar[str] = COEFFICIENTS
    """The parameter that holds the slopes."""
    root: ClassVar[Literal["eigh", "svd"]] = "eigh"
    """How draws factor `cov`."""
    names: tuple[str, ...] = ()
    columns: Standardisation
    mean: Array
    cov: Array
    prior_mean: ArrayLike = 0.0
    prior_sd: ArrayLike | None = None
    schema: Schema | None = None
    method: str = ""
    contributors: int = 0
    private: bool = False
    iterations: int = 0
    epochs: int = 0
    stopped: str = ""
    aggregates: tuple[NoisyAggregate, ...] = ()
    warnings: tuple[str, ...] = ()
    refitter: Any = None
    stretch: float = 0.0
    shrunk: Shrunk | None = None

    @property
    def sd(self) -> Array:
        """Posterior standard deviations of θ, shape ``(p,)``."""
        return np.sqrt(np.diag(self.cov))

    @property
    def title(self) -> str:
        """The model's name."""
        return self.method or "normal"

    @property
    def axes(self) -> Axes:
        """Names of the axes of each parameter in own units."""
        return {"theta": ("parameter",)}

    @property
    def coords(self) -> Coords:
        """Labels along these axes."""
        return {"parameter": self.names}

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return the table. Args: schema: gives the units; by default the law's."""
        figures = with_prior(self.mean, self.sd, self.prior_mean, self.prior_sd)
        return [Estimate(name, "", figure) for name, figure in zip(self.names, figures, strict=True)]

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Return draws of θ, shape ``(..., p)``, by parameter."""
        return {"theta": drawn}

    def sample(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Return independent draws by parameter."""
        return self.in_own_units(rng.multivariate_normal(self.mean, self.cov, size=(chains, draws), method=self.root))

    @property
    def attrs(self) -> dict[str, object]:
        """The provenance of the draws."""
        names = ("method", "contributors", "iterations", "private")
        return {**{name: getattr(self, name) for name in names}, "stopped": self.stopped or None}

    def extras(self) -> Summary:
        """Return further entries of the summary."""
        remarks: Summary = {"remarks": {"method": self.method}} if self.method else {}
        return {**remarks, "stopped": self.stopped or None}

    def learned_from(
        self, aggregates: Sequence[NoisyAggregate], rounds: Sequence[NoisyAggregate], schema: Schema | None
    ) -> Self:
        """Return the law with its provenance.

        Args:
            aggregates: of all rounds. rounds: those of scores, each of which asked all clients. schema: of the job, if
                a job asked.
        """
        return replace(
            self,
            schema=schema,
            contributors=rounds[-1].contributors,
            private=all_private(aggregates, schema),
            iterations=len(rounds),
            epochs=len(rounds),
            aggregates=tuple(aggregates),
        )

    def refit(self, **prior: Any) -> Any:
        """Return the law under another prior. Arguments and errors as for `Posterior.refit`."""
        return refitted(self.refitter, **prior)

    def with_shrunk(self, shrunk: Shrunk, mean: Array, cov: Array, **more: Any) -> Self:
        """Return the law with these draws and moments. Args: more: attributes."""
        return replace(self, shrunk=shrunk, mean=mean, cov=cov, **{"prior_sd": None, **more})

    def posterior(self) -> Posterior:
        """Return the posterior of this law."""
        found = Posterior(
            self.title,
            Drawn(self.sample),
            axes=self.axes,
            coords=self.coords,
            notes=self.warnings,
            attrs=self.attrs,
            table=self.estimates,
            extras=self.extras,
            predictor=self if hasattr(self, "predict") else None,
            sample=self.sample,
            private=self.private,
            refitter=self.refitter,
        )
        return found if self.shrunk is None else self.shrunk.into(found, self.in_own_units, self.slopes)


def with_prior(
    mean: Array, sd: Array, prior_mean: ArrayLike = 0.0, prior_sd: ArrayLike | None = None, degrees: float = inf
) -> list[Marginal]:
    """Return marginals of a normal (or Student's t) posterior, with the interval of the normal prior if there is one.

    Args:
        degrees: of freedom of Student's t, whose scale is ``sd``.
    """
    found = [student(m, s, degrees) for m, s in zip(mean, sd, strict=True)]
    if prior_sd is None:
        return found
    before = np.broadcast_to(np.asarray(prior_mean, float), mean.shape), np.broadcast_to(prior_sd, mean.shape)
    priors = [normal(float(m), float(s)).interval for m, s in zip(*before, strict=True)]
    return [one._replace(prior=prior) for one, prior in zip(found, priors, strict=True)]


def rows_of_effects(
    names: Sequence[str],
    features: Sequence[str],
    marginals: Sequence[Marginal],
    scales: Sequence[float] | Array,
    predicted: str,
    schema: Schema | None,
    *,
    by: str = BY_SD,
    table: str = COEFFICIENTS,
    per_unit: bool = False,
    indicators: Collection[str] = (),
) -> list[Estimate]:
    """Return the rows of a table of slopes.

    Args:
        names: of the rows. features: of each row's slope, in own units. marginals: of each.
        scales: of each row's feature in own units, public or privately estimated; plots multiply the slope by it.
        predicted: the unit of what a slope changes. schema: gives the features' units.
        by: describes the scales, as text. per_unit: whether to name a feature's unit even if it is not known.
        indicators: features that are 0 or 1, beside those of texts.
    """
    known, rows = {*indicators, *({} if schema is None else schema.references)}, []
    for name, feature, marginal, size in zip(names, features, marginals, scales, strict=True):
        per = unit_of(schema, feature, f"unit of {feature}" if per_unit else "")
        axis = slope_axis(predicted, by, size, is_indicator=feature in known)
        rows.append(Estimate(name, f"{predicted} per {per}" if per else predicted, marginal, table, axis))
    return rows
