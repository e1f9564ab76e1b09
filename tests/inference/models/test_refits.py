"""Another prior is free: a refit of stored aggregates is the fit that would have been made with it from the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.accounting import mu_of
from dca_proto.protocol.wire.kinds import SecureSum
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.estimators import (
    PrivateBoundedRegression,
    PrivateKaplanMeier,
    PrivateLogisticRegression,
    PrivatePoissonRegression,
    PrivateProportionalHazards,
    PrivateRobustRegression,
)
from inference.jobs import find, refit
from inference.jobs.base import Conditions
from inference.jobs.settings import settings_from
from inference.models.estimator import RecordedRounds
from inference.models.shrinkage import Shrinkage
from inference.posterior import Posterior
from inference.problem import Schema, stream
from inference.rounds import run

N, EPSILON, DELTA = 600, 4.0, 1e-5
RNG = np.random.default_rng(5)
X = np.clip(RNG.normal(0, 1, (N, 2)), -5, 5)
ETA = X @ [1.0, -0.5]
TARGETS = {
    "number": (np.clip(2 + ETA + RNG.normal(0, 0.7, N), -9, 9), Interval(-9, 9)),
    "class": ((RNG.random(N) < 1 / (1 + np.exp(-ETA))).astype(float), Interval(0, 1)),
    "count": (np.minimum(RNG.poisson(np.exp(0.4 * ETA)), 12.0), Interval(0, 12)),
}
TARGETS["grade"] = np.digitize(TARGETS["number"][0], [1.2, 2.8]).astype(float), Interval(0, 2)
MONTHS = RNG.exponential(np.exp(-0.4 * X[:, 0]) * 10)
TRIAL = Schema(("event", "a"), "months", {"event": Interval(0, 1), "a": Interval(-5, 5), "months": Interval(0, 24)})
TRIAL_ROWS = np.column_stack([MONTHS < 24, X[:, 0], np.minimum(MONTHS, 24)]).astype(float)

JOBS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("regression", "number", {}, {"prior_precision": 50.0}),
    ("regression-bounded", "number", {}, {"prior_precision": 50.0}),
    ("regression-mcmc", "number", {"method": "fast"}, {"coefficient_sd": 0.02, "intercept_sd": 0.01}),
    ("logistic", "class", {"method": "one-sum"}, {"prior_sd": 0.1}),
    ("logistic", "class", {"method": "scores"}, {"prior_sd": 0.1}),
    ("logistic", "class", {"method": "variational", "epochs": 8}, {"prior_sd": 0.1}),
    pytest.param("poisson-regression", "count", {}, {"prior_sd": 0.05}, marks=pytest.mark.long),
    ("robust-regression", "number", {}, {"prior_sd": 0.05}),
    *(
        pytest.param(name, kind, given, {"shrinkage": how}, marks=pytest.mark.long)
        for name, kind, given, how in (
            ("regression", "number", {}, "horseshoe"),
            ("regression-bounded", "number", {}, "groups"),
            ("logistic", "class", {"method": "one-sum"}, "groups"),
            ("logistic", "class", {"method": "scores"}, "horseshoe"),
            ("logistic", "class", {"method": "variational", "epochs": 8}, "horseshoe"),
            ("poisson-regression", "count", {}, "horseshoe"),
            ("robust-regression", "number", {}, "groups"),
            ("ordinal-regression", "grade", {"rounds": 2}, "horseshoe"),
            ("multinomial-regression", "grade", {"rounds": 2}, "groups"),
            ("survival-regression", "trial", {"intervals": 3}, "horseshoe"),
        )
    ),
    ("mixture", "number", {"components": 2, "epochs": 4}, {"prior_beta": 200.0, "prior_alpha": 300.0}),
    ("gaussian", "number", {}, {"prior_kappa": 500.0}),
    ("bernoulli", "class", {}, {"prior_alpha": 900.0}),
    ("poisson", "count", {}, {"prior_a": 900.0}),
    ("exponential", "count", {}, {"prior_a": 900.0}),
    ("survival", "trial", {"intervals": 4}, {"prior_rows": 300.0}),
    ("survival-regression", "trial", {"intervals": 3}, {"prior_sd": 0.02}),
]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same each time, so a few show whether fits are alike."""
    monkeypatch.setattr(Shrinkage.shrink, "__defaults__", (60, ()))


def data(kind: str) -> tuple[np.ndarray, Schema]:
    if kind == "trial":
        return TRIAL_ROWS, TRIAL
    y, bounds = TARGETS[kind]
    return np.column_stack([X, y]), Schema(("a", "b"), "y", {"a": Interval(-5, 5), "b": Interval(-5, 5), "y": bounds})


def rounds(kind: str) -> RecordedRounds:
    rows, schema = data(kind)
    terms = JobTerms(epsilon=EPSILON, delta=DELTA, clients=N, tolerate=0, computes=(b"a" * 32, b"b" * 32))
    return RecordedRounds(IdealSwarm(rows, schema.columns, terms, random=np.random.default_rng(3).bytes))


def learned(name: str, kind: str, settings: dict[str, Any]) -> tuple[Posterior, RecordedRounds]:
    job, source, (_, schema) = find(name), rounds(kind), data(kind)
    own = settings_from(job.settings, settings, name)
    known = Conditions(N, 0, mu_of(EPSILON, DELTA), stream(0, "auxiliary"), kind=SecureSum, epsilon=EPSILON)
    found = run(job.make(schema, own, known), source)
    return job.finish(found, schema, own, known), source


def numbers(found: Posterior, schema: Schema | None = None) -> np.ndarray:
    """Means, sds and the ends of intervals and of the prior's, of all estimates."""
    unknown, figures = (np.nan, np.nan), [one.marginal for one in found.estimates(schema)]
    return np.array([[f.mean, f.sd or 0, *(f.interval or unknown), *(f.prior or unknown)] for f in figures])


@pytest.mark.parametrize(("name", "kind", "options", "prior"), JOBS, ids=[f"{job[0]}-{job[2]}" for job in JOBS])
def test_a_refit_is_the_fit_with_that_prior_from_the_start(
    name: str, kind: str, options: dict[str, Any], prior: dict[str, Any]
) -> None:
    """Of the same noise: by the result's own ``refit``, by the job from its aggregates, and by new rounds."""
    before, source = learned(name, kind, options)
    aggregates = [one for _, one in source.results]
    again = refit(name, aggregates, data(kind)[1], **options, **prior)
    fresh, _ = learned(name, kind, {**options, **prior})
    np.testing.assert_allclose(numbers(before.refit(**prior)), numbers(fresh))
    np.testing.assert_allclose(numbers(again), numbers(fresh))
    np.testing.assert_allclose(numbers(before), numbers(refit(name, aggregates, data(kind)[1], **options)))
    assert not np.allclose(numbers(before)[:, 0], numbers(fresh)[:, 0], rtol=1e-3), "the prior shows"


CURVE = {"times": (6, 12, 24), "duration": "months", "random_state": 1}
ESTIMATORS: list[tuple[Any, str, dict[str, Any], dict[str, Any]]] = [
    (PrivateBoundedRegression, "number", {}, {"prior_precision": 50.0}),
    (PrivateLogisticRegression, "class", {"method": "one-sum"}, {"prior_sd": 0.1}),
    pytest.param(PrivatePoissonRegression, "count", {}, {"prior_sd": 0.05}, marks=pytest.mark.long),
    (PrivateRobustRegression, "number", {}, {"prior_sd": 0.05}),
    *(
        pytest.param(kind, target, given, {"shrinkage": "horseshoe"}, marks=pytest.mark.long)
        for kind, target, given in (
            (PrivateBoundedRegression, "number", {}),
            (PrivateLogisticRegression, "class", {"method": "one-sum"}),
            (PrivatePoissonRegression, "count", {}),
            (PrivateProportionalHazards, "trial", {}),
        )
    ),
    (
        PrivateKaplanMeier,
        "trial",
        CURVE,
        {"prior_rows": 300.0},
    ),
    (PrivateProportionalHazards, "trial", {}, {"prior_sd": 0.02}),
]


@pytest.mark.parametrize(("estimator", "kind", "given", "prior"), ESTIMATORS)
def test_an_estimator_fitted_with_another_prior_to_the_same_aggregates_is_a_refit(
    estimator: Any, kind: str, given: dict[str, Any], prior: dict[str, Any]
) -> None:
    schema = {} if estimator is PrivateKaplanMeier else {"schema": data(kind)[1]}
    source = rounds(kind)
    model = estimator(**given, **schema).fit(source)
    over_rounds = estimator(**given, **schema, **prior).fit(rounds(kind))
    np.testing.assert_allclose(numbers(model.fit_.refit(**prior)), numbers(over_rounds.fit_))
    aggregates = (
        [one for _, one in source.results][-1:] if kind in ("number", "class") and len(source.results) < 3 else None
    )
    results = aggregates or [one for _, one in source.results]
    first, second = estimator(**given, **schema).fit(results), estimator(**given, **schema, **prior).fit(results)
    np.testing.assert_allclose(numbers(first.fit_.refit(**prior)), numbers(second.fit_))
    assert not np.allclose(numbers(first.fit_)[:, 0], numbers(second.fit_)[:, 0], rtol=1e-3), "the prior shows"


def test_aggregates_of_other_rounds_are_refused() -> None:
    _, source = learned("regression", "number", {})
    aggregates, schema = [one for _, one in source.results], data("number")[1]
    with pytest.raises(DataError, match="the job asks for one more round, of 'regression'"):
        refit("regression", aggregates[:1], schema)
    with pytest.raises(DataError, match="an aggregate of 'regression' does not answer the round that the job asks for"):
        refit("regression", aggregates[::-1], schema)
    other = replace(schema, bounds={**schema.bounds, "a": Interval(-6, 6)})
    with pytest.raises(DataError, match="does not answer the round"):
        refit("regression", aggregates, other)
    with pytest.raises(DataError, match="prior_precision"):
        refit("regression", aggregates, schema, prior_precision=-1.0)


@pytest.mark.parametrize(("job", "kind", "options", "names"), [
    ("regression", "number", {}, "prior_precision"),
    ("logistic", "class", {"method": "scores"}, "prior_sd"),
    ("logistic", "class", {"method": "one-sum"}, "prior_sd"),
    ("poisson-regression", "count", {}, "prior_sd"),
    ("mixture", "number", {"components": 2, "epochs": 4}, "prior_alpha"),
    ("gaussian", "number", {}, "prior_kappa"),
    ("survival", "trial", {"intervals": 4}, "prior_rows"),
])  # fmt: skip
def test_a_refit_refuses_an_unknown_name(job: str, kind: str, options: dict[str, Any], names: str) -> None:
    found, _ = learned(job, kind, options)
    with pytest.raises(DataError, match=f"'priors'.*{names}"):
        found.refit(priors=1.0)


def test_a_refit_refuses_settings_that_shaped_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shaped, changeable in (
        ("ldp-mean", {"lower": -1.0, "upper": 1.0}, "prior_mean"),
        ("ldp-histogram", {"bins": 3}, "concentration"),
        ("ldp-histogram", {"mechanism": "randomised-response"}, "concentration"),
        ("ldp-histogram", {"column": "a"}, "concentration"),
    ):
        job, used = find(name), []

        def finish(job: Any, gave: Any, schema: Schema, settings: Any, known: Any, used: Any = used) -> Posterior:
            used.append(settings)
            return Posterior("of reports", {})

        settings = job.settings()
        monkeypatch.setattr(type(job), "learned", finish)
        fit = job.finish("reports", data("number")[1], settings, Conditions(1, 0, 1.0, stream(0, "auxiliary")))
        with pytest.raises(DataError, match=f"'{next(iter(shaped))}' shaped the rounds.*{changeable}"):
            fit.refit(**shaped)
        fit.refit(**{changeable: 3.0})
        assert [getattr(one, changeable) for one in used[1:]] == [3.0]


def test_a_refit_needs_aggregates() -> None:
    with pytest.raises(DataError, match="no aggregates are given; expected those of all rounds of job 'regression'"):
        refit("regression", [], data("number")[1])


def test_survival_curves_of_raw_rows_have_the_prior_that_was_given() -> None:
    rows = TRIAL_ROWS[:, [2, 0]]
    weak, strong = (PrivateKaplanMeier(times=(6, 12, 24), prior_rows=a, random_state=1).fit(rows) for a in (1, 5000))
    assert np.abs(weak.survival_ - strong.survival_).max() > 0.1
    with pytest.raises(DataError, match="setting 'prior_rows' is -1"):
        PrivateKaplanMeier(times=(6, 12, 24), prior_rows=-1).fit(rows)
