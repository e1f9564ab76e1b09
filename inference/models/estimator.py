"""The base class of all estimators with scikit-learn's interface: one `fit` for three sources.

    fit(X, y)          raw rows: the same model without privacy, from exact statistics; ``private_`` is False
    fit(aggregates)    a released `NoisyAggregate`, or a list of them
    fit(rounds)        anything that runs rounds (`inference.rounds.Rounds`): a running trainer or the ideal
                       functionality; the estimator runs its learning job over them

An estimator is a dataclass; its fields are its parameters. It implements learning from each source.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.plausibility import checked, doubts_of
from dca_proto.privacy.cost import PrivacyCost, total
from inference.errors import DataError
from inference.models.coefficients import Coefficients
from inference.problem import Array, Schema
from inference.rounds import CostedRounds, Job, Rounds, run


class RecordedRounds:
    """Rounds that record their results: ``results`` lists each request with its aggregate, in order."""

    def __init__(self, rounds: Rounds) -> None:
        self.results: list[tuple[RoundRequest, NoisyAggregate]] = []
        self._rounds = rounds

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        """Run the round (`Rounds.run_round`) and record it."""
        aggregate = self._rounds.run_round(request)
        self.results.append((request, aggregate))
        return aggregate


class PrivateEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator that learns from rows, from aggregates or over rounds.

    Attributes:
        fit_: the posterior. private_: whether it satisfies differential privacy.
        epsilon_, delta_: the total cost to each participant; None if `private_` is False. Rounds that know their cost,
            such as a trainer's, report it (`inference.rounds.CostedRounds`); otherwise the estimator composes the
            rounds that released a sum.
        warnings_: reasons to doubt the fit, a sentence each.
        n_features_in_: number of features. feature_names_in_: their names, if known.
    """

    settings: ClassVar[type[Any]]
    """The settings of its job: parameters of the same names are checked as there, whatever the source."""
    own: ClassVar[tuple[str, ...]] = ()
    """Parameters that accept more than the job's settings of these names."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from one source.

        Args:
            X: rows of shape ``(n, d)``; or a `NoisyAggregate` or a list of them; or `Rounds`.
            y: targets of shape ``(n,)`` with rows; None otherwise.

        Raises:
            DataError: a parameter has a wrong type or is out of range, the source does not fit the estimator, or ``y``
                was given with aggregates or rounds.
            NoAggregate: a round ended without a sum, or no honest clients can have made it (`ImplausibleSum`).

        A failed fit leaves the estimator as it was, ``epsilon_`` included. The privacy cost of its rounds stays spent.
        """
        self._check_parameters()
        before = dict(vars(self))
        try:
            return self._learn(X, y)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _learn(self, X: Any, y: Any) -> Self:
        aggregates, is_rounds = aggregates_in(X), callable(getattr(X, "run_round", None))
        self._named_by_rows = not (aggregates or is_rounds)
        if not self._named_by_rows and y is not None:
            raise DataError("y was given beside aggregates or rounds; the targets are in them, so leave y out")
        private, cost = False, None
        if aggregates:
            aggregates = [checked(aggregate) for aggregate in aggregates]
            fit = self._of_aggregates(aggregates)
            private, cost = all(aggregate.private for aggregate in aggregates), composed(aggregates)
        elif is_rounds:
            recorded = RecordedRounds(X)
            fit = run(self._job(), recorded)
            aggregates = [checked(aggregate) for _, aggregate in recorded.results]
            private, cost = fit.private, self._spent(fit, recorded.results)
            if cost is not None and isinstance(X, CostedRounds):  # these also count the cost of aborted rounds
                cost = X.spent.epsilon(cost[1]), cost[1]
        elif y is None and not _could_be_rows(X):
            raise DataError(
                f"found {'an empty list' if X == [] else f'a {type(X).__name__}'} without targets; expected rows with "
                "targets, as in fit(X, y), a NoisyAggregate or a list of them, or rounds, which have a method "
                "'run_round'"
            )
        else:
            fit = self._of_rows(X, y)
        self._keep(fit)
        self.private_ = private and cost is not None
        self.epsilon_: float | None = cost[0] if private and cost else None
        self.delta_: float | None = cost[1] if private and cost else None
        self.warnings_ = (*doubts_of(aggregates), *fit.warnings)
        return self

    def _check_parameters(self) -> None:
        """Refuse parameters that are out of range. Raises `DataError`; a subclass adds those that its job lacks."""
        shared = {field.name for field in fields(self.settings)} & set(self.get_params(deep=False)) - set(self.own)
        self.settings(**{name: getattr(self, name) for name in shared})
        check_schema(getattr(self, "schema", None))
        check_random_state(getattr(self, "random_state", None))

    @abstractmethod
    def _of_rows(self, X: Any, y: Any) -> Any:
        """Check raw rows and return their posterior."""

    @abstractmethod
    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Any:
        """Return the posterior from at least one aggregate."""

    @abstractmethod
    def _job(self) -> Job[Any]:
        """Return the learning job; its result is the posterior."""

    @abstractmethod
    def _keep(self, fit: Any) -> None:
        """Store the posterior, and the features' names unless `validate_data` stored them (`_name_features`)."""

    def _spent(self, fit: Any, results: Sequence[tuple[RoundRequest, NoisyAggregate]]) -> tuple[float, float] | None:
        """Return (ε, δ) of all rounds. Mini-batch jobs override it, because no client is in every batch."""
        return composed([aggregate for _, aggregate in results])

    def _name_features(self, names: Sequence[str]) -> None:
        self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = len(names)
        self._named_by_rows = False

    def _checked(self, X: Any) -> Array:
        """Check rows to predict for, shape ``(k, d)``; a data frame's columns must be named as in the fit."""
        with warnings.catch_warnings():
            if not self._named_by_rows:  # plain arrays without names are fine
                warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))


class RegressionEstimator(PrivateEstimator):
    """The base class of regressions; subclasses implement learning from each source."""

    coef_: Any
    coef_sd_: Any
    intercept_: Any
    intercept_sd_: Any

    def _keep(self, fit: Coefficients) -> None:
        """Store the posterior and its coefficients in the columns' own units."""
        if not self._named_by_rows:
            self._name_features(fit.names[1:])
        self.fit_ = fit
        self.coef_, self.coef_sd_ = fit.coefficients, fit.coefficient_sd
        self.intercept_, self.intercept_sd_ = fit.intercept, fit.intercept_sd


class PrivateRegressor(RegressorMixin, RegressionEstimator):  # type: ignore[misc]
    """The base class of regressions with a numeric target."""

    def _validated(self, X: Any, y: Any) -> tuple[Array, Array]:
        checked: tuple[Array, Array] = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        return checked

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the posterior predictive mean at rows ``(k, d)`` and, if ``return_std``, its standard deviation."""
        check_is_fitted(self, "fit_")
        mean, sd = self.fit_.predict(self._checked(X))
        return (mean, sd) if return_std else mean


def check_schema(schema: Any) -> None:
    """Raise `DataError` for anything but a schema or None."""
    if schema is not None and not isinstance(schema, Schema):
        raise DataError(f"schema is a {type(schema).__name__}, expected schema=Schema(features, target, bounds)")


def check_random_state(state: Any) -> None:
    """Raise `DataError` for anything but a seed, a generator or None."""
    whole = isinstance(state, int | np.integer) and not isinstance(state, bool) and state >= 0
    if not (state is None or whole or isinstance(state, np.random.Generator)):
        raise DataError(f"random_state is {state!r}, expected a whole number from 0 on, a numpy Generator or None")


def required(schema: Schema | None) -> Schema:
    """Return the schema that rounds need. Raises `DataError` if there is none."""
    if schema is None:
        raise DataError("rounds need public bounds; give schema=Schema(features, target, bounds)")
    return schema


def _could_be_rows(X: Any) -> bool:
    return hasattr(X, "shape") or (isinstance(X, list | tuple) and bool(X) and isinstance(X[0], list | tuple))


def aggregates_in(X: Any) -> list[NoisyAggregate]:
    """Return X as a list of aggregates; empty if X has none. Raises `DataError` if X mixes them with other values."""
    if isinstance(X, NoisyAggregate):
        return [X]
    if not isinstance(X, list | tuple) or not any(isinstance(item, NoisyAggregate) for item in X):
        return []
    wrong = next((item for item in X if not isinstance(item, NoisyAggregate)), None)
    if wrong is not None:
        raise DataError(f"found a {type(wrong).__name__} among aggregates; expected a list of NoisyAggregate alone")
    return list(X)


def composed(aggregates: Sequence[NoisyAggregate]) -> tuple[float, float] | None:
    """Return (ε, δ) of all these rounds for a client in each of them, at the largest δ of a round.

    Return None if a round was not private, because then nothing can be claimed.
    """
    if not aggregates or any(one.mu is None or one.epsilon is None for one in aggregates):
        return None
    delta = max(one.delta or 0.0 for one in aggregates)
    if len(aggregates) == 1:
        return aggregates[0].epsilon or 0.0, delta
    costs = [PrivacyCost.of_mu(one.mu) if one.delta else PrivacyCost.of_pure(one.epsilon) for one in aggregates]  # type: ignore[arg-type]
    return total(costs).epsilon(delta), delta
