"""The scikit-learn face of logistic regression: scikit-learn's own checks, its mode, and fits over rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exact_rounds import ExactRounds
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from inference.bounds import Interval
from inference.errors import DataError
from inference.estimators import PrivateLogisticRegression
from inference.problem import Schema

SCHEMA = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-3, 3), "y": Interval(0, 1)})


@parametrize_with_checks([PrivateLogisticRegression()])  # no failure is expected
def test_scikit_learns_own_checks(estimator: PrivateLogisticRegression, check: Callable[[Any], None]) -> None:
    check(estimator)


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(5, 1.5, n).clip(0, 10), rng.normal(0.3, 0.8, n).clip(-3, 3)])
    return X, (rng.random(n) < 1 / (1 + np.exp(-(X[:, 0] - 5 - 2 * X[:, 1])))).astype(float)


def test_without_privacy_it_is_the_mode() -> None:
    X, y = rows(300)
    ours = PrivateLogisticRegression(prior_sd=1e3).fit(X, y)
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-3)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=0.02)
    assert not ours.private_
    assert ours.epsilon_ is None


class Aborting:
    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        raise NoAggregate("nobody came")


def test_a_failed_fit_leaves_the_estimator_unchanged() -> None:
    X, y = rows(300)
    fresh, fitted = PrivateLogisticRegression(schema=SCHEMA), PrivateLogisticRegression(schema=SCHEMA).fit(X, y + 7)
    for one in (fresh, fitted):
        before = dict(vars(one))
        for source in ((Aborting(),), (X[:, :1], y - y), (X[:, :1], np.arange(300) % 3)):
            with pytest.raises((NoAggregate, DataError, ValueError)):
                one.fit(*source)
            assert vars(one) == before
    assert list(fitted.classes_) == [7, 8]


def test_over_rounds_it_learns_and_reports_its_cost() -> None:
    """With mini-batches of a quarter nobody takes part in more than E + 1 of the rounds."""
    X, y = rows(400)
    source = ExactRounds(np.column_stack([X, y]), SCHEMA.columns, noise=0.2)
    whole, parts = (
        PrivateLogisticRegression(schema=SCHEMA, epochs=20, batch=batch, random_state=0).fit(source)
        for batch in (0, 100)
    )
    for fitted in (whole, parts):
        assert fitted.score(X, y) > 0.75
        assert fitted.private_
        assert list(fitted.feature_names_in_) == ["a", "b"]
        assert fitted.coef_.shape == fitted.coef_sd_.shape == (1, 2)
        np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)
    assert whole.epsilon_ == pytest.approx(parts.epsilon_)


def test_it_warns_about_a_doubtful_fit() -> None:
    X, y = rows(5000)
    source = ExactRounds(np.column_stack([X, y]), SCHEMA.columns)
    assert PrivateLogisticRegression().fit(X, y).warnings_ == ()
    assert PrivateLogisticRegression(schema=SCHEMA, random_state=0).fit(source).warnings_ == ()
    warned = PrivateLogisticRegression(schema=SCHEMA, method="one-sum", random_state=0).fit(source)
    assert "intervals rest on normal features" in warned.warnings_[0]
    again = PrivateLogisticRegression(random_state=0).fit(source.run_round(source.requests[-1]))
    assert "an aggregate alone does not show whether they are normal" in again.warnings_[0]


def test_data_that_it_cannot_learn_from_are_refused_with_a_reason() -> None:
    X, y = rows(50)
    source = ExactRounds(np.column_stack([X, y]), SCHEMA.columns)
    with pytest.raises(DataError, match="rounds need public bounds"):
        PrivateLogisticRegression().fit(source)
    with pytest.raises(DataError, match=r"method 'foo' is unknown; known: auto, one-sum, scores, variational"):
        PrivateLogisticRegression(schema=SCHEMA, method="foo").fit(source)
    assert not source.requests
    parameters = {"columns": ["a"], "centre": [5.0], "scale": [5.0], "bound": [1.0]}
    with pytest.raises(DataError, match="expected 'regression'"):
        PrivateLogisticRegression().fit(source.run_round(RoundRequest("sum", parameters)))
    with pytest.raises(DataError, match="one class"):
        PrivateLogisticRegression().fit(X, np.ones(50))
    with pytest.raises(DataError, match="setting 'prior_sd' is 0, expected a number above 0"):
        PrivateLogisticRegression(prior_sd=0.0).fit(X, y)
