"""The base of all estimators with the interface of scikit-learn: one `fit` for three sources.

    fit(X, y)          raw rows: the same model without privacy, from exact statistics; ``private_`` is False
    fit(aggregates)    a `NoisyAggregate` that was released, or a list of them
    fit(rounds)        anything that holds rounds (`inference.rounds.Rounds`): a running trainer or the ideal
                       functionality; the estimator runs its learning job over it

An estimator is a dataclass, whose fields are its parameters. It says what it learns from each source.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.privacy.cost import PrivacyCost, total
from inference.columns import Array
from inference.errors import DataError
from inference.models.coefficients import Coefficients
from inference.problem import Schema
from inference.rounds import CostedRounds, Job, Rounds, run


class Recorded:
    """Rounds that remember what was held: ``results`` has each request with its aggregate, in order."""

    def __init__(self, rounds: Rounds) -> None:
        self.results: list[tuple[RoundRequest, NoisyAggregate]] = []
        self._rounds = rounds

    def hold(self, request: RoundRequest) -> NoisyAggregate:
        """As `Rounds.hold`."""
        aggregate = self._rounds.hold(request)
        self.results.append((request, aggregate))
        return aggregate


class PrivateEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator that learns from rows, from aggregates or over rounds.

    Attributes:
        fit_: what was learned. private_: whether it satisfies differential privacy.
        epsilon_, delta_: what it cost each participant in all; None where `private_` is False. Rounds that know
            what they cost, as a trainer's do, are asked (`inference.rounds.CostedRounds`); of others, those that gave
            a sum are added up.
        warnings_: reasons to doubt the fit, a sentence each.
        n_features_in_: how many features there are. feature_names_in_: their names, where known.
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn.

        Args:
            X: rows of shape ``(n, d)``; or a `NoisyAggregate` or a list of them; or `Rounds`.
            y: targets of shape ``(n,)`` with rows; nothing otherwise.

        Raises:
            DataError: the source does not fit the estimator, or a target was given beside aggregates or rounds.
            NoAggregate: a round ended without a sum.

        A fit that fails leaves the estimator as it was, ``epsilon_`` too. What its rounds have cost stays spent.
        """
        before = dict(vars(self))
        try:
            return self._learn(X, y)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _learn(self, X: Any, y: Any) -> Self:
        aggregates, holds = aggregates_in(X), callable(getattr(X, "hold", None))
        self._named_by_rows = not (aggregates or holds)
        if not self._named_by_rows and y is not None:
            raise DataError("y was given beside aggregates or rounds; the targets are in them, so leave y out")
        private, cost = False, None
        if aggregates:
            fit = self._of_aggregates(aggregates)
            private, cost = all(one.private for one in aggregates), composed(aggregates)
        elif holds:
            recorded = Recorded(X)
            fit = run(self._job(), recorded)
            private, cost = fit.private, self._spent(fit, recorded.results)
            if cost is not None and isinstance(X, CostedRounds):  # which count what aborted rounds cost, too
                cost = X.spent.epsilon(cost[1]), cost[1]
        elif y is None and not _could_be_rows(X):
            raise DataError(
                f"found {'an empty list' if X == [] else f'a {type(X).__name__}'} without targets; expected rows with "
                "targets, as in fit(X, y), a NoisyAggregate or a list of them, or rounds, which have a method 'hold'"
            )
        else:
            fit = self._of_rows(X, y)
        self._keep(fit)
        self.private_ = private and cost is not None
        self.epsilon_: float | None = cost[0] if private and cost else None
        self.delta_: float | None = cost[1] if private and cost else None
        self.warnings_ = tuple(fit.warnings)
        return self

    @abstractmethod
    def _of_rows(self, X: Any, y: Any) -> Any:
        """The posterior of raw rows, which it checks."""

    @abstractmethod
    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Any:
        """The posterior of what was released (at least one)."""

    @abstractmethod
    def _job(self) -> Job[Any]:
        """The learning job, whose result is the posterior."""

    @abstractmethod
    def _keep(self, fit: Any) -> None:
        """Note the posterior, and the features where scikit-learn's `validate_data` has not (`_name_features`)."""

    def _spent(self, fit: Any, results: Sequence[tuple[RoundRequest, NoisyAggregate]]) -> tuple[float, float] | None:
        """(ε, δ) of all rounds; a job of mini-batches, of which no client takes part in all, overrides it."""
        return composed([aggregate for _, aggregate in results])

    def _name_features(self, names: Sequence[str]) -> None:
        self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = len(names)
        self._named_by_rows = False

    def _checked(self, X: Any) -> Array:
        """Rows to predict for, shape ``(k, d)``; columns of a data frame must have the names of the fit."""
        with warnings.catch_warnings():
            if not self._named_by_rows:  # plain arrays are welcome
                warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))


class RegressionEstimator(PrivateEstimator):
    """A regression. A subclass says what it learns from each source."""

    coef_: Any
    coef_sd_: Any
    intercept_: Any
    intercept_sd_: Any

    def _keep(self, fit: Coefficients) -> None:
        """Note a posterior, in the columns' own units."""
        if not self._named_by_rows:
            self._name_features(fit.names[1:])
        self.fit_ = fit
        self.coef_, self.coef_sd_ = fit.coefficients, fit.coefficient_sd
        self.intercept_, self.intercept_sd_ = fit.intercept, fit.intercept_sd


class PrivateRegressor(RegressorMixin, RegressionEstimator):  # type: ignore[misc]
    """A regression of a number."""

    def _validated(self, X: Any, y: Any) -> tuple[Array, Array]:
        checked: tuple[Array, Array] = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        return checked

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The posterior predictive mean at rows of shape ``(k, d)``, with its standard deviation if asked for."""
        check_is_fitted(self, "fit_")
        mean, sd = self.fit_.predict(self._checked(X))
        return (mean, sd) if return_std else mean


def required(schema: Schema | None) -> Schema:
    """The schema that rounds need. Raises `DataError` where there is none."""
    if schema is None:
        raise DataError("rounds need public bounds; give schema=Schema(features, target, bounds)")
    return schema


def _could_be_rows(X: Any) -> bool:
    return hasattr(X, "shape") or (isinstance(X, list | tuple) and bool(X) and isinstance(X[0], list | tuple))


def aggregates_in(X: Any) -> list[NoisyAggregate]:
    """The aggregates, if X is one or a sequence of nothing else; otherwise none. Raises `DataError` of a mixture."""
    if isinstance(X, NoisyAggregate):
        return [X]
    if not isinstance(X, list | tuple) or not any(isinstance(one, NoisyAggregate) for one in X):
        return []
    wrong = next((one for one in X if not isinstance(one, NoisyAggregate)), None)
    if wrong is not None:
        raise DataError(f"found a {type(wrong).__name__} among aggregates; expected a list of NoisyAggregate alone")
    return list(X)


def composed(aggregates: Sequence[NoisyAggregate]) -> tuple[float, float] | None:
    """(ε, δ) of all these rounds for a client that took part in each of them, at the largest δ of a round.

    None where one of them was not private, so that nothing can be claimed.
    """
    if not aggregates or any(one.mu is None or one.epsilon is None for one in aggregates):
        return None
    delta = max(one.delta or 0.0 for one in aggregates)
    if len(aggregates) == 1:
        return aggregates[0].epsilon or 0.0, delta
    costs = [PrivacyCost.of_mu(one.mu) if one.delta else PrivacyCost.of_pure(one.epsilon) for one in aggregates]  # type: ignore[arg-type]
    return total(costs).epsilon(delta), delta
