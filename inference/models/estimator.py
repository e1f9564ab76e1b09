"""Estimators with scikit-learn's interface, made from learning jobs: one `fit` for three sources.

    fit(X, y)          raw rows: the same model without privacy, from exact statistics; ``private_`` is False
    fit(aggregates)    a released `NoisyAggregate`, or a list of them
    fit(rounds)        anything that runs rounds (`inference.rounds.Rounds`): a running trainer or the ideal
                       functionality; the estimator runs its learning job over them

An estimator is a dataclass; its fields are its parameters. `inference.estimators` makes a regression's from its job:
the parameters are the job's settings, and `inference.jobs.base.Estimable` states what is learned from rows and
aggregates.
All estimators have `predict`, `predict_interval` and `warnings_`; those of regressions also `coef_interval_`.
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
from inference.draws import all_private
from inference.errors import DataError
from inference.jobs.base import Conditions, Estimable, LearningJob, as_posterior
from inference.jobs.estimates import LEVEL
from inference.jobs.examples import COUNT
from inference.models.coefficients import Coefficients
from inference.models.shrinkage import Shrinkage
from inference.posterior import Posterior
from inference.problem import Array, Schema, as_numbers
from inference.rounds import CostedRounds, Rounds, named, run


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
        fit_: the `inference.posterior.Posterior`. private_: whether it satisfies differential privacy.
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
            private, cost = all_private(aggregates), composed(aggregates)
        elif is_rounds:
            recorded = RecordedRounds(X)
            fit = self._over_rounds(recorded)
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
        self.fit_: Posterior = as_posterior(fit)
        self._keep(self.fit_)
        self.private_ = private and cost is not None
        self.epsilon_: float | None = cost[0] if private and cost else None
        self.delta_: float | None = cost[1] if private and cost else None
        self.warnings_ = (*doubts_of(aggregates), *self.fit_.warnings)
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
    def _over_rounds(self, rounds: Rounds) -> Any:
        """Run the learning job and return the posterior."""

    @abstractmethod
    def _keep(self, fit: Posterior) -> None:
        """Store the posterior's figures, and the features' names unless `validate_data` stored them."""

    def _spent(self, fit: Any, results: Sequence[tuple[RoundRequest, NoisyAggregate]]) -> tuple[float, float] | None:
        """Return (ε, δ) of all rounds. Mini-batch jobs override it, because no client is in every batch."""
        return composed([aggregate for _, aggregate in results])

    def _name_features(self, names: Sequence[str]) -> None:
        self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = len(names)
        self._named_by_rows = False


class Predicting(PrivateEstimator):
    """An estimator whose posterior predicts: one door for all, `inference.posterior.Posterior.predict`."""

    def predict(self, X: Any) -> Any:
        """Return the mean of the prediction at rows ``(k, d)``, shape ``(k,)``."""
        check_is_fitted(self, "fit_")
        return self.fit_.predict(self._checked(X))[0]

    def predict_interval(self, X: Any, level: float = LEVEL) -> Array:
        """Return central intervals of the prediction at rows ``(k, d)``: shape ``(k, 2)``.

        They are of a new row's target, with its own spread; for classes of the second one's probability.
        """
        check_is_fitted(self, "fit_")
        return self.fit_.predict_interval(self._checked(X), level)

    def _checked(self, X: Any) -> Array:
        """Check rows to predict for, shape ``(k, d)``; a data frame's columns must be named as in the fit."""
        with warnings.catch_warnings():
            if not self._named_by_rows:  # plain arrays without names are fine
                warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))


class JobEstimator(Predicting):
    """The base class of estimators that are made from jobs."""

    job: ClassVar[LearningJob]
    shown: ClassVar[tuple[str, ...]] = (
        "coef_, coef_sd_, coef_interval_: posterior mean, sd and 95 % interval of the slopes.",
        "intercept_, intercept_sd_, intercept_interval_: the same at features of zero; all in own units.",
    )
    """Attributes with their meanings."""
    needs_schema: ClassVar[str] = "only over rounds"
    schema: Schema | None

    @property
    def _learns(self) -> Estimable:
        assert isinstance(self.job.estimator, Estimable), "it was made of a job that has one"
        return self.job.estimator

    def job_settings(self) -> Any:
        """Return the parameters as the job's settings. Raises `DataError` for one that is out of range."""
        names = {field.name for field in fields(self.job.settings)} - set(self._learns.own)
        return self.job.settings(**{name: getattr(self, name) for name in names})

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name, check in self._learns.own.items():
            check(name, getattr(self, name))

    @property
    def _schema(self) -> Schema | None:
        """The schema as the job reads it: features with labels are indicators."""
        return None if self.schema is None else self.job.read(self.schema, self.job_settings())

    def _validated(self, X: Any, y: Any) -> tuple[Array, Array]:
        checked: tuple[Array, Array] = validate_data(self, self._coded(X), y, dtype=np.float64, y_numeric=True)
        return checked

    def _checked(self, X: Any) -> Array:
        return super()._checked(self._coded(X))

    def _coded(self, X: Any) -> Any:
        """Return a data frame with the columns of the schema as numbers, if it has labels; all else as it is."""
        schema = self._schema
        return X if schema is None else as_numbers(X, schema.features, schema.labelled)

    def _of_rows(self, X: Any, y: Any) -> Any:
        fit = self._learns.rows(*self._validated(X, y), self)
        names = getattr(self, "feature_names_in_", None)
        if names is None and (schema := self._schema) is not None and len(schema.features) == self.n_features_in_:
            names = schema.features
        return self._shrunk(fit, () if names is None else tuple(names))

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Any:
        return self._shrunk(self._learns.released([named(aggregate, self._schema) for aggregate in aggregates], self))

    def _shrunk(self, fit: Any, features: Sequence[str] = ()) -> Any:
        settings = self.job_settings()
        return settings.shrink(fit, features=features) if isinstance(settings, Shrinkage) else fit

    def _over_rounds(self, rounds: Rounds) -> Posterior:
        if (schema := self._schema) is None:
            raise DataError("rounds need public bounds; give schema=Schema(features, target, bounds)")
        more = {name: getattr(self, name) for name in self._learns.own if getattr(self, name) is not None}
        for name in more:
            if name not in self.job.changeable:
                raise DataError(
                    f"{name} is {more[name]}, but rounds run a job that estimates it; it serves rows and aggregates, "
                    "so leave it out"
                )
        own, rng = self.job_settings(), np.random.default_rng(getattr(self, "random_state", None))
        known = Conditions(1, 0, 1.0, rng, kind=self.job.kinds[0])
        self.job.check(schema, own)
        outcome = run(self.job.make(schema, own, known), rounds)
        posterior: Posterior = self.job.finish(outcome, schema, own, known)
        changed = {name: getattr(self, name) for name in self.job.changeable}
        return posterior.refit(**changed) if more else posterior

    def _spent(self, fit: Any, results: Sequence[tuple[RoundRequest, NoisyAggregate]]) -> tuple[float, float] | None:
        """Return (ε, δ) for a client in all rounds that ask every client, and in one round of gradients per epoch."""
        aggregates = [aggregate for _, aggregate in results]
        if not (epochs := fit.predictor.epochs):
            return composed(aggregates)
        return composed(aggregates[: sum(request.statistic != "gradient" for request, _ in results) + epochs])

    def _keep(self, fit: Posterior) -> None:
        """Store the coefficients in the columns' own units, and the spread of the targets."""
        law: Coefficients = fit.predictor
        if not self._named_by_rows:
            self._name_features(law.names[1:])
        self.coef_, self.coef_sd_, self.coef_interval_ = fit.slopes()
        self.intercept_, self.intercept_sd_ = fit.intercept.mean, fit.intercept.sd
        self.intercept_interval_ = np.array(fit.intercept.interval)
        if law.repair is not None:
            self.repair_, self.residual_sd_ = law.repair, float(law.columns.scale[-1] * np.sqrt(law.residual_variance))
        if law.spread is not None:
            name = law.spread.name.replace(" ", "_")
            setattr(self, f"{name}_", law.spread.mean)
            setattr(self, f"{name}_sd_", law.spread.sd)


class JobRegressor(RegressorMixin, JobEstimator):  # type: ignore[misc]
    """The base class of regressions with a numeric target."""

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the posterior predictive mean at rows ``(k, d)`` and, if ``return_std``, its standard deviation."""
        check_is_fitted(self, "fit_")
        mean, sd = self.fit_.predict(self._checked(X))
        return (mean, sd) if return_std else mean

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._learns.target == COUNT
        tags.regressor_tags.poor_score = self._learns.target == COUNT or tags.regressor_tags.poor_score
        return tags


def check_schema(schema: Any) -> None:
    """Raise `DataError` for anything but a schema or None."""
    if schema is not None and not isinstance(schema, Schema):
        raise DataError(f"schema is a {type(schema).__name__}, expected schema=Schema(features, target, bounds)")


def check_random_state(state: Any) -> None:
    """Raise `DataError` for anything but a seed, a generator or None."""
    whole = isinstance(state, int | np.integer) and not isinstance(state, bool) and state >= 0
    if not (state is None or whole or isinstance(state, np.random.Generator)):
        raise DataError(f"random_state is {state!r}, expected a whole number from 0 on, a numpy Generator or None")


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
    costs = []
    for one in aggregates:
        if one.mu is None or one.epsilon is None:
            return None
        costs.append(PrivacyCost.of_mu(one.mu, one.slack) if one.delta else PrivacyCost.of_pure(one.epsilon))
    if not costs:
        return None
    delta = max(one.delta or 0.0 for one in aggregates)
    if len(aggregates) == 1:
        return aggregates[0].epsilon or 0.0, delta
    return total(costs).epsilon(delta), delta
