"""The scikit-learn face of the linear regression: scikit-learn's own checks, exactness, and its three sources."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.accounting import epsilon_of, mu_of
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.estimators import PrivateBoundedRegression, PrivateLinearRegression
from inference.models.estimator import RecordedRounds
from inference.models.linear import closed_form
from inference.models.linear.aggregate_stats import plausible_prior, statistics_of
from inference.problem import Schema

SCHEMA = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-1, 1), "y": Interval(-100, 300)})
READ = replace(SCHEMA, bounds={name: replace(one, public=False) for name, one in SCHEMA.bounds.items()})


@parametrize_with_checks([PrivateLinearRegression(), PrivateBoundedRegression()])  # no failure is expected
def test_scikit_learns_own_checks(estimator: PrivateLinearRegression, check: Callable[[Any], None]) -> None:
    check(estimator)


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(5, 1.5, n), rng.normal(0.1, 0.3, n)])
    return X, 80 + 10 * X[:, 0] - 100 * X[:, 1] + rng.normal(0, 20, n)


def swarm(X: np.ndarray, y: np.ndarray, epsilon: float = 2.0, name: str = "estimators") -> IdealSwarm:
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=len(y), tolerate=0, computes=(bytes(16), bytes([1]) * 16))
    return IdealSwarm(np.column_stack([X, y]), SCHEMA.columns, terms, random=seeded(name))


def released(epsilon: float = 2.0, seed: int = 1, **changes: Any) -> NoisyAggregate:
    parameters = {"columns": ["a", "b", "y"], "centre": [5.0, 0.0, 100.0], "scale": [1.5, 0.3, 40.0]}
    parameters |= {"bound": [2.0, 2.0, 2.0], "intercept": True, "target_square": True} | changes
    return swarm(*rows(1000, seed), epsilon, f"estimators/{seed}").run_round(RoundRequest("regression", parameters))


# Without privacy, equal to scikit-learn


def test_a_flat_prior_is_linear_regression() -> None:
    X, y = rows(200, 1)
    ours, theirs = PrivateLinearRegression(prior_precision=0.0).fit(X, y), LinearRegression().fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-10)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-10)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=0, atol=1e-10)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-12)


@pytest.mark.parametrize(("precision", "variance"), [(1.0, 1.0), (30.0, 0.5), (1e-3, 2.0)])
def test_a_prior_is_ridge_on_standardised_columns(precision: float, variance: float) -> None:
    X, y = rows(200, 2)
    ours = PrivateLinearRegression(prior_precision=precision, residual_variance=variance).fit(X, y)
    theirs = make_pipeline(StandardScaler(), Ridge(alpha=precision * variance)).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=0, atol=1e-10)


def test_the_spread_is_that_of_bayesian_ridge_at_the_same_precisions() -> None:
    """Standardised, with α = 1/λ⁻¹ and λ: (αXᵀX + λI)⁻¹; a mean more for the intercept."""
    X, y = rows(200, 3)
    ours = PrivateLinearRegression(prior_precision=3.0, residual_variance=0.4).fit(X, y)
    z = StandardScaler().fit_transform(X)
    cov = np.linalg.inv(z.T @ z / 0.4 + 3.0 * np.eye(2))
    np.testing.assert_allclose(ours.fit_.predictor.cov[1:, 1:], cov, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.coef_sd_, np.sqrt(np.diag(cov)) * y.std() / X.std(axis=0), rtol=1e-10)
    _, sd = ours.predict(X[:5], return_std=True)
    spread = 0.4 + 0.4 / 200 + np.einsum("ki,ij,kj->k", z[:5], cov, z[:5])
    np.testing.assert_allclose(sd, y.std() * np.sqrt(spread), rtol=1e-10)


def test_raw_rows_are_not_private() -> None:
    fitted = PrivateLinearRegression().fit(*rows(50, 4))
    assert (fitted.private_, fitted.epsilon_, fitted.delta_, fitted.repair_) == (False, None, None, "none")


# From aggregates


def test_an_aggregate_gives_the_posterior_in_own_units_and_what_it_cost() -> None:
    one = released(50.0)
    fitted = PrivateLinearRegression(prior_precision=4.0, residual_variance=0.3).fit(one)
    of_intercept = plausible_prior(statistics_of(one), 2, 0.3)[0]
    posterior = closed_form.posterior(statistics_of(one), [of_intercept, 4.0, 4.0], 0.3)
    np.testing.assert_allclose(fitted.coef_, [10, -100], rtol=0.25)
    np.testing.assert_allclose(fitted.fit_.predictor.mean, posterior.mean, rtol=1e-10)
    assert fitted.residual_sd_ == pytest.approx(40 * np.sqrt(0.3))
    assert (fitted.private_, fitted.epsilon_, fitted.delta_) == (True, 50.0, 1e-5)
    assert fitted.repair_ == "noise-aware"
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    assert fitted.n_features_in_ == 2


def test_several_aggregates_know_more_than_one_and_cost_more() -> None:
    parts = [released(2.0, seed) for seed in (1, 2, 3)]
    one, all_three = PrivateLinearRegression().fit(parts[:1]), PrivateLinearRegression().fit(parts)
    assert (all_three.coef_sd_ < one.coef_sd_).all()
    assert one.epsilon_ == 2.0
    assert all_three.epsilon_ == pytest.approx(3.75, rel=0.05)  # and not 6, since Gaussian rounds compose in mu²


def test_plain_arrays_are_welcome_after_a_fit_from_aggregates_but_not_other_names_or_numbers() -> None:
    fitted = PrivateLinearRegression().fit(released())
    mean, sd = fitted.predict([[5.0, 0.0]], return_std=True)
    assert mean.shape == sd.shape == (1,)
    with pytest.raises(ValueError, match="X has 3 features, but PrivateLinearRegression is expecting 2"):
        fitted.predict([[5.0, 0.0, 1.0]])
    frame = pytest.importorskip("pandas").DataFrame({"a": [5.0], "c": [0.0]})
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame)


@pytest.mark.parametrize("repair", ["nearest-psd", "absolute"])
def test_the_repair_is_the_requested_one(repair: str) -> None:
    one = released(0.5)
    assert PrivateLinearRegression(repair=repair).fit(one).repair_ == repair
    assert (PrivateLinearRegression(repair=repair).fit(one).coef_ != PrivateLinearRegression().fit(one).coef_).any()


def test_a_result_that_is_not_private_claims_nothing() -> None:
    fitted = PrivateLinearRegression().fit([replace(released(), private=False)])
    assert (fitted.private_, fitted.epsilon_) == (False, None)


# Over rounds


@pytest.mark.parametrize("estimator", [PrivateLinearRegression, PrivateBoundedRegression])
def test_rounds_run_the_job_and_give_what_it_cost(estimator: Any) -> None:
    X, y = rows(1000, 5)
    fitted = estimator(schema=SCHEMA).fit(swarm(X, y))
    assert fitted.score(X, y) > 0.6 * LinearRegression().fit(X, y).score(X, y)
    assert fitted.private_
    assert fitted.epsilon_ == pytest.approx(2.0, rel=1e-4)
    assert fitted.epsilon_ <= 2.0
    assert fitted.feature_names_in_.tolist() == ["a", "b"]


class Costly:
    """Rounds of which one was aborted before and kept its charge, of as much as is left for the others."""

    def __init__(self, rounds: IdealSwarm) -> None:
        self.run_round = rounds.run_round
        self.spent = PrivacyCost.of_mu(np.sqrt(2) * mu_of(2.0, 1e-5))


def test_the_cost_of_an_aborted_round_counts_if_the_rounds_know_it() -> None:
    X, y = rows(1000, 5)
    fitted = PrivateBoundedRegression(schema=SCHEMA).fit(Costly(swarm(X, y)))
    assert fitted.epsilon_ == pytest.approx(epsilon_of(np.sqrt(2) * mu_of(2.0, 1e-5), 1e-5), rel=1e-6)
    assert fitted.epsilon_ > 2.9
    assert fitted.delta_ == 1e-5
    schema = READ
    fitted = PrivateBoundedRegression(schema=schema).fit(Costly(swarm(X, y)))
    assert (fitted.private_, fitted.epsilon_) == (False, None), "nothing is claimed of what is not private"


def test_all_options_reach_the_job() -> None:
    """The share shapes a request; the repair and the prior, of one number or one for each slope, shape the result."""
    options = {"repair": "absolute", "std_share": 0.3, "prior_precision": 2.0}
    recorded = RecordedRounds(swarm(*rows(300, 1)))
    fitted = PrivateLinearRegression(schema=SCHEMA, **options).fit(recorded)
    assert [request.budget_share for request, _ in recorded.results] == [0.3, 0.7]
    assert fitted.repair_ == "absolute"
    np.testing.assert_allclose(
        fitted.coef_, fitted.fit_.refit(prior_precision=[2.0, 2.0], repair="absolute").slopes()[0]
    )
    one = PrivateBoundedRegression(schema=SCHEMA, repair="absolute", prior_precision=[2.0, 1e6])
    assert abs(one.fit(swarm(*rows(300, 1))).coef_[1]) < 1.0


def test_the_same_seed_and_sums_give_the_same_fit() -> None:
    X, y = rows(300, 6)
    first, second = (PrivateLinearRegression(schema=SCHEMA).fit(swarm(X, y)) for _ in range(2))
    assert first.coef_.tolist() == second.coef_.tolist()
    assert clone(first).get_params()["schema"] == SCHEMA


def test_rounds_need_a_schema_that_is_private_for_a_claim() -> None:
    X, y = rows(300, 7)
    with pytest.raises(DataError, match="rounds need public bounds; give schema"):
        PrivateLinearRegression().fit(swarm(X, y))
    fitted = PrivateBoundedRegression(schema=READ).fit(swarm(X, y))
    assert (fitted.private_, fitted.epsilon_) == (False, None)


def test_settings_that_the_job_ignores_are_refused_over_rounds() -> None:
    with pytest.raises(DataError, match="rounds run a job that estimates it; it serves rows and aggregates"):
        PrivateLinearRegression(schema=SCHEMA, residual_variance=0.5).fit(swarm(*rows(50, 7)))


def test_stored_sums_are_refitted_under_another_prior_without_a_round() -> None:
    X, y = rows(300, 7)
    recorded = RecordedRounds(swarm(X, y))
    first = PrivateLinearRegression(schema=SCHEMA).fit(recorded)
    ((_, _), (_, released)) = recorded.results
    tight = first.fit_.refit(prior_precision=1e6)
    assert np.abs(tight.slopes()[0]).max() < 0.01 * np.abs(first.coef_).max()
    np.testing.assert_allclose(tight.refit(prior_precision=None).slopes()[0], first.coef_)
    over_rounds = PrivateLinearRegression(schema=SCHEMA, prior_precision=1e6).fit(Replayed(recorded.results))
    np.testing.assert_allclose(over_rounds.coef_, tight.slopes()[0])
    assert np.abs(PrivateLinearRegression(prior_precision=1e6).fit(released).coef_ / tight.slopes()[0] - 1).max() < 0.1


class Replayed:
    """Rounds of before, in order."""

    def __init__(self, results: Sequence[tuple[RoundRequest, NoisyAggregate]]) -> None:
        self._left = list(results)

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        expected, aggregate = self._left.pop(0)
        assert expected == request, "a prior changes no request"
        return aggregate


def test_a_fit_over_rounds_survives_pickling() -> None:
    X, y = rows(100, 7)
    fitted = PrivateBoundedRegression(schema=SCHEMA).fit(swarm(X, y))
    again = pickle.loads(pickle.dumps(fitted))
    for ours, theirs in zip(again.predict(X, return_std=True), fitted.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (again.epsilon_, again.repair_) == (fitted.epsilon_, fitted.repair_)


def test_recorded_rounds_remember_requests_with_their_aggregates() -> None:
    recorded = RecordedRounds(swarm(*rows(50, 8)))
    request = RoundRequest("sum", {"columns": ["a"], "centre": [5.0], "scale": [1.0], "bound": [5.0]})
    assert recorded.run_round(request) is recorded.results[0][1]
    assert recorded.results[0][0] is request


# What does not fit


@pytest.mark.parametrize(
    ("source", "found"), [([], "an empty list"), ("trainer.toml", "a str"), ([1.0], "a list"), (None, "a NoneType")]
)
def test_input_other_than_rows_aggregates_or_rounds_is_refused(source: Any, found: str) -> None:
    with pytest.raises(DataError, match=f"found {found} without targets; expected rows with targets"):
        PrivateLinearRegression().fit(source)


def test_a_target_beside_aggregates_and_a_mixed_list_are_refused() -> None:
    one = released()
    with pytest.raises(DataError, match="y was given beside aggregates or rounds"):
        PrivateLinearRegression().fit(one, [1.0])
    with pytest.raises(DataError, match="found a float among aggregates"):
        PrivateLinearRegression().fit([one, 1.0])
    with pytest.raises(DataError, match="repair 'best' is unknown"):
        PrivateLinearRegression(repair="best").fit(*rows(20, 9))
