"""Released reports, checked and brought into the shape that the models take.

    Scalars     reports of one column with additive noise, and the bounds that clients clipped it to
    Categories  reports of one of k categories, by randomised response or unary encoding
    Rows        perturbed features and targets of each client

Reports come as `NoisyAggregate.reports` of a report round, with the statistic's public parameters, or as bare
`LocalReports`; then the caller gives the bounds. Several, of different clients on the same terms, are merged.

**Impossible reports are refused** (`terms`), and so are other mechanisms, statistics and shapes.

**Number of reports.** With a proper prior a single report gives a posterior. But with fewer reports than parameters it
is little more than the prior. So there must be at least as many reports as the model has parameters. Error messages
contain no report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.statistics.counting import OF_THE_OTHERS, about_missing
from dca_proto.wording import listed
from inference.bounds import Interval
from inference.columns import Standardisation
from inference.draws import attributes
from inference.errors import DataError
from inference.problem import Array
from inference.releases.terms import (
    GAUSSIAN,
    LAPLACE,
    RESPONSE,
    UNARY,
    Given,
    check_gaussian,
    check_noise,
    close,
    merge_reports,
    number_of_categories,
    within_noise,
)

COLUMNS = ("sum", "mean")  # statistics whose reports are scaled and clipped columns plus noise
HISTOGRAM = "histogram"
TARGET, LABEL = "y", "label"  # name of the last column if no round gives one
TAKEN_FOR_MIDDLE = (
    "without the noise in the model (noise_aware=false) these count as the middle of the bounds, which draws the "
    "estimates there; leave that setting out, or ask only clients that have all columns"
)


@dataclass(frozen=True, eq=False)
class Scalars:
    """Reports of one column, in its own units.

    Attributes:
        z: shape ``(n,)``. bounds: that clients clipped to. laplace: True for Laplace noise, False for Gaussian.
        scale: Laplace's b, or the standard deviation, in the same units.
        column: its name. attrs: provenance of the draws. notes: warnings about the reports.
        present: noisy reports of whether there is a value, 1 or 0, in the same order; the noise has the scale
            ``present_scale``. None if clients did not say. A client without a value reports the middle of the bounds.
    """

    z: Array
    bounds: Interval
    laplace: bool
    scale: float
    column: str = "value"
    attrs: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    present: Array | None = None
    present_scale: float = 0.0

    def rescaled(self, origin: float, unit: float) -> Scalars:
        """Return the same reports, measured from ``origin`` in units of ``unit``."""
        low, high = ((end - origin) / unit for end in (self.bounds.lower, self.bounds.upper))
        return replace(self, z=(self.z - origin) / unit, bounds=Interval(low, high), scale=self.scale / unit)


@dataclass(frozen=True, eq=False)
class Categories:
    """Reports of one of k categories.

    Attributes:
        values: categories, shape ``(n,)``, or bits, shape ``(n, k)``. categories: k.
        p, q: probability of reporting one's own category, and each other one. attrs: provenance of the draws.
        clients: ids of those who reported, in order, if known. column: its name, if a round gives it.
    """

    values: NDArray[Any]
    categories: int
    p: float
    q: float
    attrs: Mapping[str, object] = field(default_factory=dict)
    clients: tuple[bytes, ...] = ()
    column: str = ""

    @property
    def unary(self) -> bool:
        """True if the reports are bits."""
        return self.values.ndim == 2


@dataclass(frozen=True, eq=False)
class Rows:
    """Perturbed rows.

    Attributes:
        x: features with Gaussian noise, shape ``(n, d)``. y: the target with Gaussian noise, or labels 0 and 1 by
            randomised response, shape ``(n,)``.
        variance_x, variance_y: of the noise in each feature and in the target. p: of a true label; 1 for a target.
        columns: the features, then the target. Bounds are infinite for labels, and if they are unknown.
        attrs: provenance of the draws. notes: warnings about the reports.
        present: noisy reports of whether the row is complete, 1 or 0, in the same order; the noise has the standard
            deviation ``present_sd``. None if clients did not say. A client without a complete row reports zeros.
    """

    x: Array
    y: Array
    variance_x: float
    variance_y: float
    p: float
    columns: Standardisation
    attrs: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    present: Array | None = None
    present_sd: float = 0.0

    def about_missing(self, *, noise_aware: bool) -> tuple[str, ...]:
        """Return a warning if clearly fewer rows are complete than reported.

        Args:
            noise_aware: whether the model takes the others for what they are, else for reports of the middle.
        """
        if self.present is None:
            return ()
        what = a_value_of(self.columns.columns)
        return _of_missing(self.present, self.present_sd, what, OF_THE_OTHERS if noise_aware else TAKEN_FOR_MIDDLE)

    def without_noise(self) -> Rows:
        """Return the rows as if nobody had clipped them or added noise, or lacked a value."""
        endless = replace(self.columns, bound=np.full_like(self.columns.bound, inf), radius=inf)
        return replace(self, variance_x=0.0, variance_y=0.0, p=1.0, columns=endless, present=None)


def scalars_of(given: Given, bounds: Interval | None = None, *, parameters: int) -> Scalars:
    """Return reports of one column.

    Args:
        given: of the statistic "sum" or "mean" of one column, or bare. bounds: that the clients clipped to, in the
            units of bare reports; a round's own parameters state them, and must agree.
        parameters: of the model; there must be at least as many reports.

    Raises:
        DataError: as described at the head of this file.
    """
    reports, rounds = merge_reports(given, (LAPLACE, GAUSSIAN))
    columns = Standardisation.of(_expected(rounds[0], COLUMNS)) if rounds else None
    interval = _bounds(columns, bounds)
    weight = float(rounds[0].parameters.get("count_weight", 0.0)) if rounds else 0.0
    width, values = 1 + (weight > 0), reports.values.reshape(len(reports.values), -1).astype(float)
    if values.shape[1] != width:
        expected = "(n, 2), of one column and the count of rows" if weight else "(n,) or (n, 1), one column's"
        raise DataError(f"reports have the shape {reports.values.shape}; expected {expected}")
    name, centre, unit = "value", 0.0, 1.0
    if columns is not None:
        name, centre, unit = columns.columns[0], float(columns.centre[0]), float(columns.scale[0])
    laplace, scale = reports.mechanism == LAPLACE, unit * reports.noise_scale
    z, half, one = unit * values + np.array([centre, 0.0])[:width], interval.half_width, unit * weight
    _check_enough(len(z), parameters)
    beside = half + one if laplace else hypot(half, one)  # from a client with a value to one without
    check_noise(reports, scale, max(2 * half, beside))
    ends = np.array([interval.lower, 0.0])[:width], np.array([interval.upper, one])[:width]
    kept, notes = within_noise(z, *ends, laplace=laplace, scale=scale)
    attrs = _attributes(reports, rounds) | {"n": int(kept.sum())}
    found = Scalars(z[kept, 0], interval, laplace, scale, name, attrs, notes)
    if not weight:
        return found
    found = replace(found, present=z[kept, 1] / one, present_scale=scale / one)
    return replace(found, notes=(*notes, *_about_missing(found)))


def _about_missing(found: Scalars) -> tuple[str, ...]:
    """Warn if clearly fewer clients have a value than reported."""
    assert found.present is not None, "only where clients say whether they have a value"
    return _of_missing(found.present, found.present_scale * sqrt(2 if found.laplace else 1), "a value")


def _of_missing(present: Array, sd: float, what: str, so: str = OF_THE_OTHERS) -> tuple[str, ...]:
    """Warn if clearly fewer clients are complete than reported. Args: sd: of the noise in each report."""
    n = len(present)
    return about_missing(float(present.sum()), sd * sqrt(n), n, what, so=so)


def a_value_of(columns: Sequence[str]) -> str:
    """Return what an incomplete row lacks, as text."""
    return f"a value of at least one of {listed(columns)}"


def categories_of(given: Given) -> Categories:
    """Return reports of a category.

    Args:
        given: of the statistic "histogram" with mechanism "unary-encoding" or "randomised-response", or bare.

    Raises:
        DataError: as described at the head of this file.
    """
    reports, rounds = merge_reports(given, (RESPONSE, UNARY))
    if reports.probabilities is None:
        raise DataError(f"reports by {reports.mechanism!r} without probabilities; give p and q of the mechanism")
    p, q = reports.probabilities
    values = np.asarray(reports.values)
    categories = number_of_categories(reports, values)
    column = _binned(rounds[0], categories) if rounds else ""
    unary, largest = reports.mechanism == UNARY, 1 if reports.mechanism == UNARY else categories - 1
    if values.dtype.kind not in "biu":
        raise DataError(f"reports are of type {values.dtype}; expected {'bits' if unary else 'whole numbers'}")
    if values.size and (values.min() < 0 or values.max() > largest):
        what = "a bit is neither 0 nor 1" if unary else f"a category is outside 0 to {largest}"
        raise DataError(f"reports cannot be by {reports.mechanism!r}: {what}; check how they were read")
    _check_enough(len(values), categories - 1)
    return Categories(values, categories, p, q, _attributes(reports, rounds), reports.clients, column)


def rows_of(given: Given) -> Rows:
    """Return perturbed rows with Gaussian noise in the features and in the target, which comes last.

    Raises:
        DataError: as described at the head of this file.
    """
    reports, rounds, columns, notes, present = _perturbed(given, 2, "(n, d + 1) of d features and the target")
    d, variance = reports.values.shape[1] - 1, reports.noise_scale**2
    if not rounds:
        columns = replace(columns, columns=(*columns.columns[:-1], TARGET))
    if columns.radius < inf:
        raise DataError(
            f"clients scaled their rows, features and target, into a ball of radius {columns.radius:g}, "
            "which this model does not describe; ask for a round without a radius"
        )
    _check_enough(len(reports.values), d + d * (d + 1) // 2 + 1)
    x, y, attrs = reports.values[:, :-1], reports.values[:, -1], _attributes(reports, rounds)
    return _with_presence(Rows(x, y, variance, variance, 1.0, columns, attrs, notes), present, rounds)


def labelled_rows_of(given: Given, labels: Given) -> Rows:
    """Return perturbed features with Gaussian noise, and labels by randomised response.

    Args:
        given: of the features; where clients also say whether their row is complete, the target comes after them, and
            its number is left out (`ldp_job`).
        labels: of the same clients, 0 or 1. Clients that reported only one of both are left out; bare reports without
            client ids must be in the same order.

    Raises:
        DataError: as described at the head of this file.
    """
    reports, rounds, columns, notes, present = _perturbed(given, 1, "(n, d) of d features")
    if present is not None:
        reports, columns = replace(reports, values=reports.values[:, :-1]), columns.without_target()
    answers = categories_of(labels)
    if answers.unary or answers.categories != 2:
        raise DataError(f"labels are one of {answers.categories} categories; expected randomised response of two")
    first, second = _pairs(reports.clients, len(reports.values), answers.clients, len(answers.values))
    d = reports.values.shape[1]
    _check_enough(len(first), d + d * (d + 1) // 2, "clients that reported both features and label")
    attrs = _joint_attributes(_attributes(reports, rounds), answers.attrs) | {"n": len(first)}
    with_label = Standardisation(
        (*columns.columns, answers.column or LABEL),
        np.r_[columns.centre, 0.0],
        np.r_[columns.scale, 1.0],
        np.r_[columns.bound, inf],
        columns.radius,
    )
    rows = Rows(
        reports.values[first],
        answers.values[second].astype(float),
        reports.noise_scale**2,
        0.0,
        answers.p,
        with_label,
        attrs,
        notes,
    )
    return _with_presence(rows, None if present is None else present[first], rounds)


def _with_presence(rows: Rows, present: Array | None, rounds: Sequence[NoisyAggregate]) -> Rows:
    """Add reports of whether rows are complete, if there are any."""
    if present is None:
        return rows
    sd = sqrt(rows.variance_x) / float(rounds[0].parameters["count_weight"])
    return replace(rows, present=present, present_sd=sd)


def _binned(aggregate: NoisyAggregate, categories: int) -> str:
    """Return the name of the histogram's column, if it has as many bins as there are categories."""
    parameters = _expected(aggregate, (HISTOGRAM,))
    bins = len(parameters["edges"]) - 1
    if bins != categories:
        raise DataError(f"reports have {categories} categories, but the round's histogram has {bins} bins")
    return str(parameters["columns"][0])


def _joint_attributes(features: Mapping[str, object], labels: Mapping[str, object]) -> dict[str, object]:
    """Merge the provenance of two reports of each client. ε adds up, as both rounds were planned beforehand."""
    claims = features["epsilon"], labels["epsilon"]
    together = None if None in claims else PrivacyCost(pure=sum(map(float, claims))).pure_epsilon  # type: ignore[arg-type]
    apart = {"features_epsilon": claims[0], **{f"label_{name}": value for name, value in labels.items()}}
    return {**features, **apart, "epsilon": together}


def _pairs(
    clients: Sequence[bytes], features: int, others: Sequence[bytes], labels: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the features and of the labels of clients that reported both: by id, or else in order."""
    if clients and others:
        places = {client: place for place, client in enumerate(others)}
        both = [(place, places[client]) for place, client in enumerate(clients) if client in places]
        first, second = np.array(both, dtype=np.intp).reshape(-1, 2).T
        return first, second
    if features != labels:
        raise DataError(f"{labels} labels for {features} clients' features; give those of the same clients")
    return np.arange(features), np.arange(labels)


def _bounds(columns: Standardisation | None, stated: Interval | None) -> Interval:
    """Return the bounds of a single column, in its own units; given bounds must agree with the round's."""
    if columns is None:
        if stated is None:
            raise DataError(
                "bounds are missing: bare reports do not say what clients clipped to; give bounds=Interval(low, high)"
            )
        return stated
    if len(columns.columns) != 1:
        raise DataError(
            f"reports are of {len(columns.columns)} columns; this model takes one, so ask for a round of one column"
        )
    centre, half = float(columns.centre[0]), float(columns.scale[0]) * float(_limits(columns)[0])
    own = Interval(centre - half, centre + half)
    if stated is not None and not close((own.lower, own.upper), (stated.lower, stated.upper), own.half_width):
        raise DataError(
            f"bounds {stated.lower:g}:{stated.upper:g} were given, but the clients clipped to "
            f"{own.lower:g}:{own.upper:g}; leave them out"
        )
    return own


def _limits(columns: Standardisation) -> Array:
    """Return the largest absolute value of each column, in units of its scale."""
    return np.minimum(columns.bound, columns.radius)


def _perturbed(
    given: Given, least: int, wanted: str
) -> tuple[LocalReports, list[NoisyAggregate], Standardisation, tuple[str, ...], Array | None]:
    """Return Gaussian reports of at least `least` columns, without impossible ones, and notes about those.

    The last is whether each row is complete, 1 or 0, with noise; None if clients did not say.
    """
    reports, rounds = merge_reports(given, (GAUSSIAN,))
    if reports.values.ndim != 2 or reports.values.shape[1] < least:
        raise DataError(f"reports have the shape {reports.values.shape}; expected {wanted}")
    width = reports.values.shape[1]
    if not rounds:
        names = tuple(f"x{j}" for j in range(width))
        return reports, rounds, Standardisation(names, np.zeros(width), np.ones(width), np.full(width, inf)), (), None
    columns = Standardisation.of(parameters := _expected(rounds[0], COLUMNS))
    check_gaussian(reports, reports.noise_scale, rounds[0].sensitivity)
    limits, weight = _limits(columns), float(parameters.get("count_weight", 0.0))
    low, high = np.append(-limits, [0.0] * (weight > 0)), np.append(limits, [weight] * (weight > 0))
    kept, notes = within_noise(reports.values, low, high, laplace=False, scale=reports.noise_scale)
    ids = tuple(client for client, inside in zip(reports.clients, kept.tolist(), strict=False) if inside)
    values = reports.values[kept]
    present = values[:, -1] / weight if weight else None
    return replace(reports, values=values[:, : len(limits)], clients=ids), rounds, columns, notes, present


def _expected(aggregate: NoisyAggregate, statistics: Sequence[str]) -> Mapping[str, Any]:
    if aggregate.statistic not in statistics:
        wanted = " or ".join(repr(name) for name in statistics)
        raise DataError(f"reports are of the statistic {aggregate.statistic!r}; expected {wanted}")
    return aggregate.parameters


def _check_enough(found: int, needed: int, what: str = "reports") -> None:
    if found < needed:
        raise DataError(
            f"{found} {what} are too few: this model needs at least {needed}, as many as the model has parameters"
        )


def _attributes(reports: LocalReports, rounds: Sequence[NoisyAggregate]) -> dict[str, object]:
    """Return the provenance of the draws. If a round is not private, nothing is claimed."""
    terms = {
        "mechanism": reports.mechanism,
        "n": len(reports.values),
        "epsilon": reports.epsilon,
        "delta": reports.delta,
    }
    if not rounds:
        return terms
    known = attributes(*rounds)
    claims = {} if known["private"] else {"epsilon": None, "delta": None}
    return {**known, **terms, **claims}
