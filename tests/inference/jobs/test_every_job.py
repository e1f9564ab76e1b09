"""What every registered job must have: documents, an estimator or a reason, and rounds over production actors."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest

import inference.estimators
from check_lying_client import CASES, ActorRounds, Setting, setting_of
from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.cli.job_run import JobRun
from dca_proto.cli.job_settings import TERMS
from emulator.ideal import IdealSwarm
from inference.errors import DataError
from inference.jobs import NAMES, find
from inference.jobs.base import Estimable, LearningJob
from inference.jobs.examples import TIME
from inference.models.estimator import RecordedRounds
from inference.models.shrinkage import Shrinkage
from inference.rounds import Replayed, run


def test_each_job_has_an_estimator_or_a_reason() -> None:
    """`inference.estimators` has those of all jobs that state what one needs."""
    made = {job.estimator.name for job in map(find, NAMES) if isinstance(job.estimator, Estimable)}
    assert made <= set(inference.estimators.__all__)
    reasons = [job.estimator for job in map(find, NAMES) if not isinstance(job.estimator, Estimable)]
    assert all(len(text.split()) > 3 for text in reasons)
    by_hand = set(inference.estimators.__all__) - made
    assert all(any(name in text for text in reasons) for name in by_hand), by_hand


@pytest.mark.parametrize("name", NAMES)
def test_no_setting_of_a_job_has_the_name_of_one_that_all_have(name: str) -> None:
    """Both are keys of a trainer's [job], which would take one for the other."""
    assert not {own.name for own in fields(find(name).settings)} & set(TERMS)


COMPILED = {"poisson-regression", "ordinal-regression", "multinomial-regression"}
"""Jobs whose fits compile for seconds."""


def marked(name: str, given: object) -> Any:
    return pytest.param(given, id=name, marks=[pytest.mark.long] if name in COMPILED else [])


ESTIMATORS = [marked(job.name, job) for job in map(find, NAMES) if isinstance(job.estimator, Estimable)]


@pytest.mark.parametrize("job", ESTIMATORS)
def test_an_estimator_is_its_job_over_rounds_and_has_what_all_have(job: LearningJob) -> None:
    """The same sums give the job's estimates; from rows, aggregates and rounds there are the same attributes."""
    assert isinstance(job.estimator, Estimable)
    setting = setting_of(job.name, 60)
    data, made = setting.data, getattr(inference.estimators, job.estimator.name)
    swarm = IdealSwarm(data.rows, data.schema.columns, setting.terms, random=np.random.default_rng(3).bytes)
    recorded = RecordedRounds(swarm)
    seed = {"random_state": np.random.default_rng(2)} if job.iterative else {}
    fitted = made(schema=data.schema, **job.examples[0].settings, **seed).fit(recorded)
    again = setting.learned(Replayed([aggregate for _, aggregate in recorded.results]))
    rows = again.get("coefficients") or again["estimates"]
    np.testing.assert_allclose(np.ravel(fitted.coef_), [row["estimate"] for row in rows])
    np.testing.assert_allclose(fitted.coef_interval_.reshape(-1, 2), [row["interval_95"] for row in rows])
    given = {name: getattr(fitted, name) for name in ("prior_sd", "prior_precision") if hasattr(fitted, name)}
    assert isinstance(fitted.warnings_, tuple)
    schema = {"schema": data.schema} if job.estimator.target == TIME else {}  # which names events
    of_rows, X = made(**given, **schema).fit(data.X, data.y), data.values(*fitted.feature_names_in_)
    for one in (fitted, of_rows):
        assert one.predict(X).shape == (60,)
        low, high = one.predict_interval(X, 0.8).T
        assert (low <= high).all()
        assert (one.predict_interval(X[:5])[:, 0] <= low[:5]).all(), "95 % is wider"
        assert one.coef_interval_.shape == (*one.coef_.shape, 2)
    assert (of_rows.private_, of_rows.epsilon_, fitted.private_) == (False, None, True)


@pytest.mark.long
@pytest.mark.parametrize("shrinkage", ["horseshoe", "groups"])
@pytest.mark.parametrize("job", [job for job in map(find, NAMES) if issubclass(job.settings, Shrinkage)])
def test_an_estimator_shrinks_as_its_job_does(job: LearningJob, shrinkage: str) -> None:
    """Of the same sums; the prior of groups is of two groups."""
    assert isinstance(job.estimator, Estimable)
    setting = setting_of(job.name, 60)
    data, given = setting.data, {"shrinkage": shrinkage, **({"prior_groups": "a;b"} if shrinkage == "groups" else {})}
    recorded = RecordedRounds(
        IdealSwarm(data.rows, data.schema.columns, setting.terms, random=np.random.default_rng(3).bytes)
    )
    outcome = setting._replace(own=replace(setting.own, **given)).learned(recorded)
    seed = {"random_state": np.random.default_rng(2)} if job.iterative else {}
    made = getattr(inference.estimators, job.estimator.name)(
        schema=data.schema, **job.examples[0].settings, **given, **seed
    )
    fitted = made.fit(Replayed([aggregate for _, aggregate in recorded.results]))
    rows = [row["estimate"] for row in outcome.get("coefficients") or outcome["estimates"]]
    np.testing.assert_allclose(np.ravel(fitted.coef_), rows[: np.size(fitted.coef_)])


class Observed(ActorRounds):
    """Rounds of honest production actors, and how many of them contributed to each, of how many."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, None)
        self.contributors: list[tuple[int, int]] = []
        self.factors: list[float] = []

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        aggregate = super().run_round(request)
        self.contributors.append((aggregate.contributors, request.batch or aggregate.clients))
        self.factors += [aggregate.liar_factor] * aggregate.verified
        return aggregate


@pytest.mark.parametrize("name", [marked(name, name) for name in CASES])
def test_each_job_learns_over_production_actors(name: str) -> None:
    """All rounds complete, with every client that was invited; what is made of their sums is tested elsewhere."""
    setting = setting_of(name, 24)
    rounds = Observed(setting)
    assert run(setting.job.make(setting.data.schema, setting.own, setting.known), rounds) is not None
    assert rounds.doubts == []
    assert all(count == invited for count, invited in rounds.contributors), rounds.contributors


@pytest.mark.parametrize("name", CASES)
def test_a_job_is_refused_before_any_round_if_one_may_close_with_too_few_for_a_result(name: str) -> None:
    """With the stated number it is not."""
    setting = setting_of(name, 24)
    least = setting.job.contributors_least(setting.data.schema, setting.own, setting.known.kind)
    room = bool(setting.terms.computes)  # only a secure sum closes with fewer than all

    def planned(clients: int) -> JobRun:
        terms = msgspec.structs.replace(setting.terms, clients=clients, tolerate=int(room))
        return JobRun(setting.job, setting.own, setting.data.schema, terms, setting.known.kind, 1, None, lambda _: None)

    if least > 1:
        with pytest.raises(DataError, match=f"fewer than {least} contributors.* at least {least + room}$"):
            planned(least + room - 1).plan("job")
    planned(max(least, 2) + room).plan("job")


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_each_job_has_a_result_from_the_fewest_contributors_that_it_states(name: str) -> None:
    setting = setting_of(name, 24)
    least = setting.job.contributors_least(setting.data.schema, setting.own, setting.known.kind)
    few = setting_of(name, max(least, 2))
    swarm = IdealSwarm(few.data.rows, few.data.schema.columns, few.terms, random=np.random.default_rng(3).bytes)
    assert few.learned(swarm)


SUMS = [name for name in CASES if name in NAMES and setting_of(name, 24).terms.computes]


@pytest.mark.long
@pytest.mark.parametrize("name", SUMS)
def test_each_job_of_sums_can_be_verified(name: str) -> None:
    """Every client proves each of its contributions. A liar may move a sum farther than they, but not far."""
    setting = setting_of(name, 24)
    setting = setting._replace(terms=msgspec.structs.replace(setting.terms, verified=True))
    rounds = Observed(setting)
    assert run(setting.job.make(setting.data.schema, setting.own, setting.known), rounds) is not None
    assert rounds.doubts == []
    assert all(count == invited for count, invited in rounds.contributors), rounds.contributors
    assert len(rounds.factors) == len(rounds.contributors)
    assert 1 <= max(rounds.factors) < 10
