"""What was learned: one class for every posterior, known by its draws or by an exact law, in the user's units.

    draws, warmup, prior       by parameter, with names of their axes; an exact law draws at first use
    estimates, figures         the table: mean, sd, 95 % interval, and the prior's interval of each number
    mean, sd, intervals        by parameter; exact if the law has them (`Moments`)
    predict, predict_interval  of new rows, if the model predicts (`Predictor`)
    warnings                   reasons to doubt it: chains that have not mixed, and the model's own notes
    summary, plot              the table with estimates without privacy, warnings and scores on held-out rows
    inference_data             draws, for ArviZ
    refit                      the posterior of the same aggregates under another prior; it spends no privacy

A sampler makes a `Posterior` of its draws. A model with an exact law (`inference.models.coefficients`, hazards, a
mixture) keeps the law's parameters in a class of its own, whose ``posterior()`` returns the `Posterior`.
`inference.saved` writes one into a result file and reads it again.

**Mixing.** `inference.draws` has the rule for all fits: a warning from R̂ 1.01 on, and an error from 1.1 on, unless
``require_mixed`` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, signature
from math import isfinite
from pathlib import Path
from typing import Any, Self

import numpy as np

from inference.contraction import of_draws as contraction_of
from inference.draws import (
    ACCEPT,
    ADVICE,
    CHAINS,
    DRAWS,
    InferenceData,
    Mixing,
    Sampling,
    about_chains,
    about_mixing,
    check_mixing,
    inference_data,
    mixing,
)
from inference.errors import DataError, unknown
from inference.jobs.base import as_posterior
from inference.jobs.estimates import COEFFICIENTS, INTERCEPT, LEVEL, Estimate, Marginal, figures, of_draws
from inference.jobs.summary import Summary
from inference.laws import Axes, Coords, Drawn, Draws, Moments, Predictive, Predictor, Sample
from inference.problem import Array, Problem, Schema, rows_to_predict, times_to_predict

CHANGED, PRIOR = ("repair", "shrinkage"), "prior_"  # a refit may change these settings, and those with the prefix
Table = Callable[[Schema | None], list[Estimate]]


@dataclass(frozen=True, eq=False)
class Posterior:
    """A posterior distribution.

    Attributes:
        model: its name. draws: by parameter, shape ``(chains, draws, ...)``. prior: draws of the same parameters from
            the prior, shape ``(draws, ...)``, for parameters that have them.
        axes: names of a parameter's axes after the first two; coords: labels along each of them.
        sampling: diagnostics of NUTS; None for other samplers. warmup: draws from the chains' adaptation; empty unless
            requested. advice: what to change if chains have not mixed.
        predictive: the distribution of new clients, if the model defines it.
        notes: further sentences for `warnings`. attrs: provenance of the draws (mechanism, epsilon, delta, n).
        table: makes the estimates of the summary; by default one for each number of each parameter.
        extras: makes further entries of the summary. predictor: what is predicted at rows, and the model's own figures.
        moments: exact ones, if known. sample: makes new draws of an exact law; None if `draws` are all there are.
        private: False if no epsilon may be claimed.
        refitter: makes the posterior from the same aggregates under another prior; None if no aggregates are kept.
        synthetic: rows that resemble the clients' rows (`inference.models.synthetic.rows`), if the model makes them.
        texts: the labels of columns of texts, in the order of their codes; a data frame to predict for may have these.

    Raises:
        DataError: a draw is not finite.
    """

    model: str
    draws: Draws
    sampling: Sampling | None = None
    predictive: Predictive | None = None
    prior: Draws = field(default_factory=dict)
    axes: Axes = field(default_factory=dict)
    coords: Coords = field(default_factory=dict)
    warmup: Draws = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)
    advice: str = ""
    table: Table | None = None
    extras: Callable[[], Summary] = Summary
    predictor: Any = None
    moments: Moments | None = None
    sample: Sample | None = None
    private: bool = True
    refitter: Callable[..., Any] | None = None
    synthetic: Any = None
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in () if isinstance(self.draws, Drawn) else self.draws.items():
            if not np.all(np.isfinite(array)):
                raise DataError(f"draws of {name} are not finite in model {self.model!r}; take another prior")

    # --- the table ----------------------------------------------------------------------------------------------------

    def figures(self, name: str) -> list[Marginal]:
        """Return the figure of each number of a parameter, matrices row by row."""
        drawn, before = self.draws[name], self.prior.get(name)
        columns = drawn.reshape(*drawn.shape[:2], -1)
        priors = [None] * columns.shape[-1] if before is None else list(before.reshape(len(before), -1).T)
        return [of_draws(columns[..., place], prior) for place, prior in enumerate(priors)]

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return the table; by default the estimates of all parameters except matrices and constants.

        Args:
            schema: gives the columns' names and units.
        """
        if self.table is not None:
            return self.table(schema)
        return [
            Estimate(f"{name}[{label}]" if self.draws[name].ndim > 2 else name, "", figure)
            for name in self._numbers
            for label, figure in zip(self.labels(name) or ("",), self.figures(name), strict=True)
        ]

    def slopes(self) -> tuple[Array, Array, Array]:
        """Return mean, sd and 95 % interval of each coefficient of a regression: ``(d,)``, ``(d,)``, ``(d, 2)``.

        Unknown ones are nan.
        """
        return _numbers_of([one.marginal for one in self.estimates() if one.table == COEFFICIENTS])

    @property
    def intercept(self) -> Marginal:
        """The intercept of a regression. Raises `DataError` if the model has none."""
        found = [one.marginal for one in self.estimates() if one.table == INTERCEPT]
        if not found:
            raise DataError(f"model {self.model!r} has no intercept")
        return found[0]

    # --- moments ------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> dict[str, Array]:
        """Posterior mean of each parameter."""
        if self.moments is not None:
            return self.moments.mean
        return {name: np.asarray(array.mean(axis=(0, 1))) for name, array in self.draws.items()}

    @property
    def sd(self) -> dict[str, Array]:
        """Posterior standard deviation of each parameter."""
        if self.moments is not None:
            return self.moments.sd
        return {name: np.asarray(array.std(axis=(0, 1))) for name, array in self.draws.items()}

    def quantile(self, q: float | Sequence[float]) -> dict[str, Array]:
        """Return posterior quantiles of each parameter: shape of `q`, then the parameter's own axes."""
        exact = None if self.moments is None else self.moments.quantile(np.asarray(q, float))
        if exact is not None:
            return exact
        return {name: np.asarray(np.quantile(array, q, axis=(0, 1))) for name, array in self.draws.items()}

    def intervals(self, level: float = 0.9) -> dict[str, Array]:
        """Central credible intervals, shape ``(..., 2)``. Raises `DataError` unless the level is between 0 and 1."""
        tails = tails_of(level)
        return {name: np.moveaxis(np.quantile(array, tails, axis=(0, 1)), 0, -1) for name, array in self.draws.items()}

    @cached_property
    def contraction(self) -> dict[str, Array]:
        """The contraction (`inference.contraction`) of each number that has a prior."""
        return {name: contraction_of(self.draws[name], prior) for name, prior in self.prior.items()}

    @property
    def _numbers(self) -> list[str]:
        """The names of the parameters except matrices and constants."""
        return [name for name, array in self.draws.items() if array.ndim <= 3 and np.ptp(array) > 0]

    def labels(self, name: str) -> tuple[Any, ...]:
        """Return the labels along a parameter's first own axis."""
        axes = self.axes.get(name, ())
        return tuple(self.coords[axes[0]]) if axes else ()

    # --- predictions --------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> tuple[Array, Array]:
        """Return mean and standard deviation of the prediction, each ``(k,)``, at rows ``(k, d)``.

        Of a data frame the columns' names decide, and further columns do not matter; a column of texts stands for its
        indicators. Survival curves are predicted at times, ``(k,)``.

        Raises:
            DataError: the model predicts nothing; a column is missing or too much; or a cell is no finite number.
        """
        mean, sd = self._predictor.predict(self._rows(X))
        return np.asarray(mean), np.asarray(sd)

    def predict_interval(self, X: Any, level: float = LEVEL) -> Array:
        """Return central intervals of the prediction at rows ``(k, d)``, shape ``(k, 2)``, from draws of the posterior.

        They are of a new row's target, with its own spread. For classes they are of the probability, for hazards of the
        log hazard ratio, for curves of the survival.

        Raises:
            DataError: as for `predict`, or the level is not between 0 and 1.
        """
        tails = tails_of(level)
        drawn = self._predictor.simulate(self._rows(X), self.draws, np.random.default_rng(0))
        return np.moveaxis(np.quantile(drawn, tails, axis=(0, 1)), 0, -1)

    @property
    def _predictor(self) -> Predictor:
        if not hasattr(self.predictor, "predict"):
            raise DataError(f"model {self.model!r} predicts nothing of new rows")
        predictor: Predictor = self.predictor
        return predictor

    def _rows(self, X: Any) -> Array:
        """Return what to predict for, checked."""
        features = self._predictor.features
        return times_to_predict(X) if features is None else rows_to_predict(X, features, self.texts)

    def new_clients(self, clients: int = 1, seed: int = 0) -> dict[str, Array]:
        """Posterior predictive draws: ``value`` of new clients, and ``report`` if the model is of single reports.

        Shape ``(chains, draws, clients, ...)``.
        """
        if self.predictive is None:
            raise DataError(f"model {self.model!r} does not describe single clients")
        return self.predictive.draws(self.draws, clients, np.random.default_rng(seed))

    # --- doubts -------------------------------------------------------------------------------------------------------

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the posterior, a sentence each; empty if there are none."""
        return [*self.about_mixing, *about_chains(self.sampling), *self.notes]

    @cached_property
    def mixing(self) -> list[Mixing]:
        """R̂ and effective draws of each number except matrices and constants; empty for independent draws.

        Raises:
            DataError: ArviZ is not installed.
        """
        if self.sampling is None and not self.warmup:
            return []
        return mixing({name: self.draws[name] for name in self._numbers},
                      {name: self.labels(name) for name in self._numbers})  # fmt: skip

    @property
    def about_mixing(self) -> list[str]:
        """Reasons to doubt that the chains have mixed."""
        try:
            return about_mixing(self.mixing, self.advice or ADVICE)
        except DataError as unknown:  # no ArviZ
            return [f"whether the chains have mixed is not known: {unknown}"]

    def require_mixed(self) -> Self:
        """Return the posterior if its chains agree.

        Raises:
            DataError: R̂ of a number is not below 1.1, or there are too few draws to say.
        """
        check_mixing(self.mixing, self.advice or f"{ADVICE}, or {ACCEPT}")
        return self

    # --- results ------------------------------------------------------------------------------------------------------

    def refit(self, **prior: Any) -> Posterior:
        """Return the posterior of the same aggregates under another prior; it needs no round and spends no privacy.

        Args:
            prior: by the names of the job's settings.

        Raises:
            DataError: no aggregates are kept, as in a fit of raw rows; a name is unknown; a number is out of range.
        """
        found: Posterior = as_posterior(refitted(self.refitter, **prior))
        return found

    def summary(
        self,
        schema: Schema | None = None,
        reference: Any = None,
        train: Problem | None = None,
        test: Problem | None = None,
    ) -> Summary:
        """Return the table with the one without privacy, warnings, and scores on rows that nobody learned from.

        Args:
            reference: the same model without privacy, or its figures. train: rows that were learned from, which give
                the constant prediction to compare with. test: rows to score on.
        """
        own = self.estimates(schema)
        references: Sequence[Marginal | None] = [None] * len(own)
        if reference is not None:
            references = self._figures_of(reference, schema)
        summary: Summary = {"warnings": list(self.warnings), **self._sampled(), **self.extras()}
        for estimate, other in zip(own, references, strict=True):
            if estimate.table == INTERCEPT:
                summary["intercept"] = figures(estimate.marginal, other)
            elif estimate.table == COEFFICIENTS:
                summary.setdefault("coefficients", []).append(estimate.row(other))
            else:
                summary.setdefault("estimates", []).append(estimate.row(other))
        scored = test is not None and self.predictor is not None
        summary["test"] = self.predictor.held_out_scores(reference, train, test) if scored else None
        return summary

    def _figures_of(self, reference: Any, schema: Schema | None) -> Sequence[Marginal | None]:
        """Return the figures without privacy, in the order of the estimates."""
        if (match := getattr(self.predictor, "reference_figures", None)) is not None:
            found: Sequence[Marginal | None] = match(reference)
            return found
        return reference if isinstance(reference, list) else [one.marginal for one in reference.estimates(schema)]

    def plot(
        self,
        path: Path | str,
        *,
        title: str = "Posterior",
        reference: Any = None,
        schema: Schema | None = None,
        caption: str = "",
    ) -> Path:
        """Write a picture of the estimates and intervals, with those without privacy, and return its path.

        Args:
            path: the file; its suffix chooses the format (png, svg, pdf). caption: a line below the title. Others as in
                `summary`.
        """
        from inference.jobs.picture import plot_estimates  # needs Matplotlib

        return plot_estimates(
            self.summary(schema, reference), Path(path), title=title, private=self.private, caption=caption
        )

    def _sampled(self) -> Summary:
        """Return the diagnostics of the draws."""
        if self.sampling is None:
            return {}
        (chains, draws), sampling, mixing = next(iter(self.draws.values())).shape[:2], self.sampling, self.mixing
        return {
            "sampling": {
                "method": "NUTS",
                "chains": chains,
                "draws": draws,
                "seconds": sampling.seconds,
                "r_hat_max": _extreme(max, [number.r_hat for number in mixing]),
                "ess_bulk_min": _extreme(min, [number.bulk for number in mixing]),
                "ess_tail_min": _extreme(min, [number.tail for number in mixing]),
                "acceptance": {"proposals": float(np.mean(sampling.acceptance))},
                "divergences": int(sampling.divergences.sum()),
            }
        }

    def inference_data(
        self,
        rng: np.random.Generator | None = None,
        X: Any = None,
        *,
        predicted: Draws | None = None,
        chains: int = CHAINS,
        draws: int = DRAWS,
    ) -> InferenceData:
        """Return draws as ArviZ's common type; warm-up, prior and diagnostics are separate groups.

        Args:
            rng: for new draws of an exact law, and of predictions; by default those of `draws`, without predictions.
            X: rows, shape ``(k, d)``; if given, the group ``posterior_predictive`` holds a ``target`` for each.
            predicted: draws for that group instead, as from `new_clients`.
            chains, draws: of an exact law.

        Raises:
            DataError: ArviZ is not installed.
        """
        own = self.draws if self.sample is None or rng is None else self.sample(rng, chains, draws)
        if predicted is None and rng is not None and X is not None:
            predicted = {"target": self._predictor.simulate(self._rows(X), own, rng, labels=True)}
        elif predicted is None and rng is not None and self.predictive is not None:
            predicted = self.new_clients(seed=int(rng.integers(2**31)))
        duration = {"sampling_time": self.sampling.seconds} if self.sampling else {}
        return inference_data(
            own,
            dims={**self.axes, "target": ("row",), **(self.predictive.axes if self.predictive else {})},
            coords=self.coords,
            attrs={"model": self.model, **self.attrs, **duration},
            posterior_predictive=predicted,
            prior={name: array[None] for name, array in self.prior.items()} or None,
            warmup_posterior=self.warmup or None,
            sample_stats=self.sampling.stats if self.sampling else None,
        )


def refitted(refitter: Callable[..., Any] | None, **prior: Any) -> Any:
    """Call a refitter. Arguments and errors as for `Posterior.refit`."""
    if refitter is None:
        raise DataError(
            "this posterior keeps no aggregates to learn from; with the other prior, fit the rows again, or run "
            "`dca learn` again, which takes the rounds from its journal"
        )
    takes = signature(refitter).parameters
    if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in takes.values()):  # else it checks the names
        changes = [name for name in takes if name in CHANGED or name.startswith(PRIOR)]
        for name in prior:
            if name not in changes:
                raise unknown("setting", name, "what a refit changes", changes)
    return refitter(**prior)


def tails_of(level: float) -> tuple[float, float]:
    """Return the two quantiles of a central interval. Raises `DataError` unless the level is between 0 and 1."""
    if not 0 < level < 1:
        raise DataError(f"the level of an interval is {level:g}; give a probability between 0 and 1, such as 0.9")
    return (1 - level) / 2, (1 + level) / 2


def _numbers_of(figures: Sequence[Marginal]) -> tuple[Array, Array, Array]:
    nothing = float("nan")
    return (
        np.array([one.mean for one in figures]),
        np.array([nothing if one.sd is None else one.sd for one in figures]),
        np.array([one.interval or (nothing, nothing) for one in figures]).reshape(-1, 2),
    )


def _extreme(choose: Callable[[list[float]], float], numbers: list[float]) -> float | None:
    """Return the extreme, or None if there are no numbers or one is not finite."""
    return float(choose(numbers)) if numbers and all(map(isfinite, numbers)) else None
