"""The result of a regression of categories, in the user's units, from released scores or from rows.

φ ~ N(mean, cov) is that of `scoring.Model` for standardised features. In own units,

    ordered      ln(P(y <= k)/P(y > k)) = threshold_k - Σ_j effect_j x_j
    others       ln(P(y = k)/P(y = first)) = intercept_k + Σ_j effect_kj x_j       for each category but the first

Probabilities of new rows are averaged over draws of the posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import minimize

from dca_proto.aggregate import NoisyAggregate
from dca_proto.statistics import CategoryScore
from dca_proto.statistics.category_score import COUNT, chances_of
from inference.columns import Standardisation, standardisation
from inference.errors import DataError
from inference.jobs.estimates import Estimate, Marginal, score
from inference.jobs.settings import require_positive
from inference.jobs.summary import HeldOut
from inference.laws import Axes, Coords, Draws, Slopes
from inference.models.categories import scoring
from inference.models.categories.curves import curvature
from inference.models.categories.doubts import warnings_of
from inference.models.categories.model import Model
from inference.models.categories.scoring import Released, Request, Rows
from inference.models.coefficients import LOG_ODDS
from inference.models.doubts import about_data, about_not_counted
from inference.models.glm.curves import Places
from inference.models.law import FISHER_SCORING, NormalLaw, rows_of_effects, with_prior
from inference.models.score_regression import Normal, asked_by, by_row, complete_of
from inference.models.shrinkage import shrinkable
from inference.problem import AnyArray, Array, Problem, Schema

ERROR = "mean absolute error"
SCORES = {"log likelihood": True, "accuracy": True, ERROR: False}
"""Scores of held-out rows, and whether a higher one is better."""
EFFECTS, THRESHOLDS = "coefficients", "thresholds"
INTERCEPTS = "intercepts"
PREDICTED_DRAWS = 200  # draws of the posterior that probabilities are averaged over
TINY = 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class Categories(NormalLaw):
    """The posterior of a regression of categories.

    Attributes:
        model: ordered or not, and its sizes. codes: of the categories, ``(K,)``. texts: their labels, or none.
        shares: the part of the rows in each category, as the posterior has it, ``(K,)``.
        effects, effect_sd: posterior mean and sd per feature unit: ``(d,)`` if ordered, else ``(K - 1, d)``, of the
            log odds of each category to the first.
        offsets, offset_sd: thresholds, or intercepts: ``(K - 1,)``.
    """

    model: Model
    codes: Array
    texts: tuple[str, ...] = ()
    effects: Array = field(init=False)
    effect_sd: Array = field(init=False)
    offsets: Array = field(init=False)
    offset_sd: Array = field(init=False)

    def __post_init__(self) -> None:
        mean, sd = self._map @ self.mean, np.sqrt(np.diag(self._map @ self.cov @ self._map.T))
        offsets, effects = self._parted(mean)
        offset_sd, effect_sd = self._parted(sd)
        derived = {"effects": effects, "effect_sd": effect_sd, "offsets": offsets, "offset_sd": offset_sd,
                   "names": tuple(one for part in self._labels for one in part)}  # fmt: skip
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _map(self) -> Array:
        """From φ to offsets, then effects, in own units."""
        centre, scale, d = self.columns.centre[:-1], self.columns.scale[:-1], self.model.features
        heads = self.model.heads
        if self.model.ordered:
            found = np.zeros((heads + d, heads + d))
            found[:heads, :heads] = np.eye(heads)
            found[:heads, heads:], found[heads:, heads:] = centre / scale, np.diag(1 / scale)
            return found
        each = self.model.basis.reshape(heads + 1, d + 1, -1)
        to_first = each[1:] - each[0]
        slopes = to_first[:, 1:] / scale[:, None]
        offsets = to_first[:, 0] - np.einsum("j,kjp->kp", centre, slopes)
        return np.vstack([offsets, slopes.reshape(heads * d, -1)])

    def _parted(self, own: Array) -> tuple[Array, Array]:
        heads = self.model.heads
        effects = own[..., heads:]
        return own[..., :heads], effects if self.model.ordered else effects.reshape(*own.shape[:-1], heads, -1)

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return self.columns.columns[:-1]

    @property
    def target(self) -> str:
        """The target's name."""
        return self.columns.columns[-1]

    @property
    def labels(self) -> tuple[str, ...]:
        """What people call the categories."""
        return self.texts or tuple(f"{code:g}" for code in self.codes)

    @cached_property
    def _labels(self) -> tuple[list[str], list[str]]:
        if self.model.ordered:
            return [f"{self.target} {low} | {high}" for low, high in pairwise(self.labels)], list(self.features)
        against = [f"{self.target}{'=' if self.texts else ' '}{one}" for one in self.labels[1:]]
        return against, [f"{name}, {one}" for one in against for name in self.features]

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        heads, (offsets, effects), figures = self.model.heads, self._labels, self.figures()
        each = 1 if self.model.ordered else heads
        scales, features = np.tile(self.columns.scale[:-1], each), self.features * each
        rows = rows_of_effects(effects, features, figures[heads:], scales, LOG_ODDS, schema or self.schema)
        kind = "threshold" if self.model.ordered else "intercept"
        return rows + [
            Estimate(f"{kind} {name}", LOG_ODDS, one) for name, one in zip(offsets, figures[:heads], strict=True)
        ]

    def figures(self) -> list[Marginal]:
        """Return the figures of thresholds or intercepts, then of effects."""
        if self.shrunk is not None:
            own = self._map @ self.shrunk.drawn[..., None]
            offsets, effects = np.split(own[..., 0], [self.model.heads], axis=-1)
            return self.shrunk.figures(offsets, effects)
        prior = self.model.prior(1.0 if self.prior_sd is None else float(np.asarray(self.prior_sd)))
        before = self._map @ prior.mean, np.sqrt(self._map**2 @ (1 / prior.precision))
        return with_prior(self._map @ self.mean, np.sqrt(np.diag(self._map @ self.cov @ self._map.T)), *before)

    def shrinkable(self) -> Slopes:
        """Return the effects. Those of one feature on categories without an order shrink together."""
        model, places = self.model, self.model.effects
        prior_sd = model.prior(float(np.asarray(self.prior_sd))).precision[places] ** -0.5
        column = np.arange(places.size) % model.features
        return Slopes(self, self.mean, self.cov, places, column, self.features, prior_sd, LOG_ODDS)

    def slopes_in_own_units(self, slopes: Array) -> Array:
        """Convert effects in φ, ``(..., q)``, in the order of the table."""
        return np.asarray(slopes @ self._map[self.model.heads :, self.model.effects].T)

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        offsets, effects = self._parted(drawn @ self._map.T)
        if self.model.ordered:
            return {EFFECTS: effects, THRESHOLDS: np.sort(offsets, axis=-1)}
        return {EFFECTS: effects, INTERCEPTS: offsets}

    @property
    def attrs(self) -> dict[str, object]:
        return {**super().attrs, "target": self.target}

    @property
    def title(self) -> str:
        return "ordinal-regression" if self.model.ordered else "multinomial-regression"

    @property
    def axes(self) -> Axes:
        if self.model.ordered:
            return {EFFECTS: ("feature",), THRESHOLDS: ("category",)}
        return {EFFECTS: ("category", "feature"), INTERCEPTS: ("category",)}

    @property
    def coords(self) -> Coords:
        return {"feature": self.features, "category": tuple(self._labels[0])}

    # --- predictions --------------------------------------------------------------------------------------------------

    def chances(self, X: Array) -> Array:
        """Return the probability of each category at rows ``(k, d)``, averaged over the posterior: ``(k, K)``."""
        drawn = np.random.default_rng(0).multivariate_normal(self.mean, self.cov, PREDICTED_DRAWS, method="eigh")
        x = self.columns.z(np.asarray(X, float))
        return np.asarray(np.mean([self._chances(self.model.theta(phi), x) for phi in drawn], axis=0))

    def _chances(self, theta: Array, x: Array) -> Array:
        return chances_of(theta, x, self.model.classes, ordered=self.model.ordered).each

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return the mean and the standard deviation of the code, each ``(k,)``.

        Of categories without an order they are the most probable code, and the probability of any other.
        """
        chances = self.chances(X)
        if not self.model.ordered:
            return self.codes[chances.argmax(axis=1)], 1 - chances.max(axis=1)
        mean = chances @ self.codes
        return mean, np.sqrt(np.maximum(chances @ self.codes**2 - mean**2, 0.0))

    def simulate(self, X: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Draw a code for each draw and each row, ``(chains, draws, k)``."""
        seen = self.columns.seen(X)
        effects = draws[EFFECTS].reshape(-1, *draws[EFFECTS].shape[2:])
        offsets = draws[THRESHOLDS if self.model.ordered else INTERCEPTS].reshape(len(effects), -1)
        found = np.empty((len(effects), len(seen)))
        for place, (own, offset) in enumerate(zip(effects, offsets, strict=True)):
            if self.model.ordered:
                theta = np.r_[offset, own]
            else:
                theta = np.vstack([np.zeros(own.shape[1] + 1), np.column_stack([offset, own])]).ravel()
            below = np.cumsum(self._chances(theta, seen), axis=1)
            chosen = (rng.random(len(seen))[:, None] > below[:, :-1]).sum(axis=1)
            found[place] = self.codes[chosen]
        return found.reshape(*draws[EFFECTS].shape[:2], -1)

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut:
        """Score by the mean log likelihood, the share of right categories and, if ordered, the mean absolute error."""
        place = np.clip(np.rint(test.y - self.codes[0]), 0, self.model.heads).astype(int)
        constant = np.clip(np.rint((train or test).y - self.codes[0]), 0, self.model.heads).astype(int)
        shares = np.tile(np.bincount(constant, minlength=self.model.classes) / len(constant), (len(test.y), 1))
        known = [self.chances(test.X), None if reference is None else reference.chances(test.X), shares]
        found = [None if p is None else _scores(p, place) for p in known]
        scores = []
        for name, higher in SCORES.items():
            if self.model.ordered or name != ERROR:
                own, other, alone = (None if one is None else one[name] for one in found)
                scores.append(score(name, own or 0.0, other, alone or 0.0, higher_is_better=higher))
        return {"rows": len(test.y), "scores": scores}


def _scores(chances: Array, place: Any) -> dict[str, float]:
    """Return the figures of `SCORES` for chances, ``(k, K)``; the median category has the least absolute error."""
    median = (np.cumsum(chances, axis=1) < 0.5).sum(axis=1)
    own = np.maximum(chances[np.arange(len(chances)), place], TINY)
    figures = np.log(own), chances.argmax(axis=1) == place, np.abs(median - place)
    return {name: float(np.mean(one)) for name, one in zip(SCORES, figures, strict=True)}


# --- from releases ----------------------------------------------------------------------------------------------------


def statistic_of(columns: Standardisation, model: Model, request: Request) -> CategoryScore:
    """Return the statistic of a round. Args: columns: with the target's first code as its centre."""
    given: dict[str, Any] = columns.parameters()
    return CategoryScore(
        columns=tuple(given["columns"]),
        centre=tuple(given["centre"]),
        scale=tuple(given["scale"]),
        bound=tuple(given["bound"]),
        within=tuple((low, high) for low, high in given["within"]),
        theta=tuple(map(float, request.theta)),
        clip=request.clip,
        classes=model.classes,
        ordered=model.ordered,
        information=request.information,
        cubes=request.cubes,
        curves=request.curves,
    )


def released_of(aggregate: NoisyAggregate) -> tuple[CategoryScore, Released]:
    """Parse a round. Raises `DataError` for one of another statistic or size."""
    statistic = asked_by(aggregate, CategoryScore)
    (p, terms, _), value = statistic.block_sizes, by_row(aggregate, statistic)
    request = Request(
        np.array(statistic.theta), statistic.reach, statistic.information, statistic.cubes, statistic.curves
    )
    sums, whole = (value[:p], value[p : p + terms] / statistic.information), None
    if statistic.curves:
        places = model_of(statistic).among_curves
        sums, whole = (sums[0][places.score], sums[1][places.information]), sums
    return statistic, Released(
        request,
        *sums,
        noise=aggregate.noise_variance / aggregate.contributors**2,
        complete=complete_of(aggregate, COUNT * statistic.reach),
        cubes=value[p + terms : -1] / (statistic.cubes or 1.0),
        whole=whole,
    )


def model_of(statistic: CategoryScore) -> Model:
    """Return the model that a round asked about."""
    return Model(statistic.ordered, statistic.classes, statistic.features)


def scored(aggregates: Sequence[NoisyAggregate], model: Model) -> tuple[list[Released], Rows]:
    """Parse the rounds of scores; return rows with the features' moments as well."""
    parsed = [released_of(one) for one in aggregates]
    statistic, first = parsed[0]
    columns = Standardisation.of({name: getattr(statistic, name) for name in ("columns", "centre", "scale", "bound")})
    ends = (np.array(statistic.within).T[:, :-1] - columns.centre[:-1]) / columns.scale[:-1]
    return [one for _, one in parsed], Rows.like(first, model, ends)


def categories_from(
    aggregates: Sequence[NoisyAggregate],
    prior_sd: float = scoring.EFFECT_SD,
    *,
    ordered: bool,
    schema: Schema | None = None,
) -> Categories:
    """Return the posterior given the releases of all rounds.

    Args:
        prior_sd: of effects per standardised feature. ordered: whether the categories are expected to have an order.

    Raises:
        DataError: no aggregate has the statistic "category-score", or one is of another model; or ``prior_sd`` is not
            above 0.
    """
    require_positive("prior_sd", prior_sd)
    rounds = [one for one in aggregates if one.statistic == CategoryScore.name]
    if not rounds:
        raise DataError(
            f"no aggregate is of the statistic {CategoryScore.name!r}; give those of all rounds of a job "
            f"{'ordinal-regression' if ordered else 'multinomial-regression'!r}"
        )
    statistic, _ = released_of(rounds[0])
    if statistic.ordered is not ordered:
        found = "ordered" if statistic.ordered else "not ordered"
        raise DataError(f"the aggregates' categories are {found}; take the other estimator")
    model, columns = model_of(statistic), Standardisation.of(rounds[0].parameters)
    released, rows = scored(rounds, model)
    n = rounds[-1].contributors
    phi, curved = scoring.posterior(released, rows, n, model, model.prior(prior_sd)), []
    if shown := curvature(released[-1], rows, n, phi, model):
        places = Places(model.effects, model.levels, model.features)
        curved, phi = shown.warnings(phi, columns.columns[:-1], places, schema), shown.widen(phi, places)
    law = Categories(
        columns=columns,
        model=model,
        codes=columns.centre[-1] + np.arange(model.classes),
        texts=() if schema is None else schema.bounds[schema.target].labels,
        mean=phi.mean,
        cov=phi.cov,
        prior_sd=prior_sd,
        method=FISHER_SCORING,
        refitter=shrinkable(partial(categories_from, tuple(aggregates), ordered=ordered, schema=schema)),
    ).learned_from(aggregates, rounds, schema)
    of_missing = about_not_counted(released[-1].complete, f"they lack a value, or {law.target} is not a whole number")
    doubts = (*about_data(of_missing, aggregates), *warnings_of(law, released, rows, n), *curved)
    return replace(law, warnings=doubts)


# --- from rows --------------------------------------------------------------------------------------------------------


def exact_categories(
    X: Array,
    y: Array,
    codes: Array,
    *,
    ordered: bool,
    prior_sd: float = scoring.EFFECT_SD,
    names: Sequence[str] = (),
    texts: tuple[str, ...] = (),
) -> Categories:
    """Fit the same model to raw rows, without privacy: the mode, and the inverse curvature there.

    Args:
        X: shape ``(n, d)``. y: codes, ``(n,)``. names: of the features, then the target. texts: labels of the codes.
    """
    centre, scale = standardisation(X)
    model = Model(ordered, len(codes), X.shape[1])
    labels = tuple(names) or (*(f"x{j}" for j in range(X.shape[1])), "y")
    x, place = (X - centre) / scale, np.searchsorted(codes, y)
    phi = _mode(model, x, place, prior_sd)
    columns = Standardisation(
        labels, np.r_[centre, codes[0]], np.r_[scale, 1.0], np.r_[np.full(X.shape[1], np.inf), len(codes) - 1.0]
    )
    own: dict[str, Any] = {"columns": columns, "model": model, "codes": codes, "texts": texts, "prior_sd": prior_sd}
    return Categories(**own, mean=phi.mean, cov=phi.cov, contributors=len(y))


def _mode(model: Model, x: Array, place: Any, prior_sd: float) -> Normal:
    """Find the mode by BFGS, then Newton's method with a numerical curvature of the exact gradient."""
    prior, rows, counts = model.prior(prior_sd), np.arange(len(x)), np.bincount(place, minlength=model.classes)
    free = _free(model, counts)
    heads = free.shape[1] - model.features if model.ordered else 0

    def loss(part: Array) -> tuple[float, Array]:
        phi = free @ part
        if (np.diff(part[:heads]) <= 0).any():
            return np.inf, np.zeros_like(part)
        each, by = _own_moves(model, model.basis @ phi, x, place)
        left = phi - prior.mean
        gradient = -(by / np.maximum(each, TINY)[:, None]).sum(axis=0) + prior.precision * left
        return float(-np.log(np.maximum(each, TINY)).sum() + 0.5 * prior.precision @ left**2), free.T @ gradient

    start = prior.mean.copy()
    if model.ordered:
        below = np.cumsum(counts + 0.5)[:-1] / (counts + 0.5).sum()
        start[: model.heads] = np.log(below / (1 - below))
    start = free.T @ start / free.sum(axis=0)
    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-6 * max(len(rows), 1)}).x
    for _ in range(10):
        gradient, curvature = loss(found)[1], _curvature(loss, found)
        step = np.linalg.solve(curvature, gradient)
        found = found - step
        if np.abs(step).max() < 1e-8:
            break
    return Normal(free @ found, np.asarray(free @ np.linalg.inv(_curvature(loss, found)) @ free.T, float))


def _free(model: Model, counts: AnyArray) -> Array:
    """Return φ by what is free in the mode, ``(p, q)``.

    The two thresholds of an ordered category without rows meet there.
    """
    if not model.ordered:
        return np.eye(model.basis.shape[1])
    groups = np.r_[0, np.cumsum(counts[1:-1] > 0)]
    return np.asarray(block_diag(np.eye(groups[-1] + 1)[groups], np.eye(model.features)))


def _own_moves(model: Model, theta: Array, x: Array, place: Any) -> tuple[Array, Array]:
    """Return the chance of each row's own category, and its derivative by φ."""
    each, by = np.empty(len(x)), np.empty((len(x), model.basis.shape[1]))
    for start in range(0, len(x), 2048):
        part = slice(start, start + 2048)
        chances, moves = model.moves(theta, x[part])
        own = np.arange(len(chances)), place[part]
        each[part], by[part] = chances[own], moves[own]
    return each, by


def _curvature(loss: Any, phi: Array, step: float = 1e-4) -> Array:
    columns = [(loss(phi + move)[1] - loss(phi - move)[1]) / (2 * step) for move in step * np.eye(phi.size)]
    found = np.column_stack(columns)
    return np.asarray((found + found.T) / 2)
