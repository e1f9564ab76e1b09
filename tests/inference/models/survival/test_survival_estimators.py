"""The survival estimators as scikit-learn and pandas use them: names of columns, codes, and estimator checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import check_estimator

from dca_proto import JobTerms
from emulator.ideal import IdealSwarm
from inference.datasets import simulated_trial
from inference.errors import DataError
from inference.estimators import PrivateKaplanMeier, PrivateProportionalHazards
from inference.models.estimator import RecordedRounds
from inference.problem import Schema

TRIAL = simulated_trial()
FRAME = pd.DataFrame(TRIAL.rows, columns=list(TRIAL.schema.columns))
TIMES = (6.0, 12.0, 24.0)


def kaplan_meier(**more: Any) -> PrivateKaplanMeier:
    return PrivateKaplanMeier(TIMES, duration="months", group="arm", random_state=1, **more)


def hazards(**bounds: tuple[float, float]) -> PrivateProportionalHazards:
    schema = Schema(TRIAL.schema.features, "months", {**TRIAL.schema.bounds, **bounds})
    return PrivateProportionalHazards(schema=schema, group="arm")


def test_columns_of_a_frame_are_found_by_their_names() -> None:
    """By position, a frame in another order gave S(6) = 0.001 for 0.9."""
    expected = kaplan_meier().fit(FRAME[["months", "event", "arm"]].to_numpy()).survival_
    for order in (["months", "event", "arm"], ["arm", "age", "months", "event"], ["event", "arm", "months"]):
        assert (kaplan_meier().fit(FRAME[order]).survival_ == expected).all()
    with pytest.raises(DataError, match="column 'arm' is not in the data frame; known: months, event"):
        kaplan_meier().fit(FRAME[["months", "event"]])


def test_features_of_a_frame_are_found_by_their_names() -> None:
    expected = hazards().fit(TRIAL.X, TRIAL.y)
    mixed = FRAME[["severity", "months", "arm", "age", "event"]]
    found = hazards().fit(mixed, FRAME["months"])
    assert (found.coef_ == expected.coef_).all()
    assert (found.predict(mixed) == expected.predict(FRAME[["age", "severity"]].to_numpy())).all()
    with pytest.raises(DataError, match="column 'age' is not in the data frame"):
        found.predict(FRAME[["severity"]])


def test_events_and_groups_coded_1_and_2() -> None:
    coded = FRAME.assign(event=FRAME.event + 1, arm=FRAME.arm + 1)
    expected, found = kaplan_meier().fit(FRAME), kaplan_meier(censored=1, first_group=1).fit(coded)
    assert (found.survival_ == expected.survival_).all()
    assert found.fit_.predictor.columns.group_labels == ("arm 1", "arm 2")
    same = hazards(event=(1, 2), arm=(1, 2)).fit(coded, FRAME.months)
    assert same.coef_ == pytest.approx(hazards().fit(FRAME, FRAME.months).coef_)
    with pytest.raises(DataError, match="column 'event' has values 1, 2; expected 0 to 1: recode it"):
        kaplan_meier().fit(coded)
    with pytest.raises(DataError, match="column 'arm' has values 1, 2; expected 0 to 1: recode it"):
        kaplan_meier().fit(FRAME.assign(arm=coded.arm))
    with pytest.raises(DataError, match="column 'event' has values 0, 1, 2; expected 0 to 1: recode it"):
        hazards().fit(FRAME.assign(event=FRAME.event.mask(FRAME.index == 3, 2)), FRAME.months)


def test_negative_durations_are_refused() -> None:
    with pytest.raises(DataError, match="durations in 'months' go down to -1; expected 0 or more"):
        kaplan_meier().fit(FRAME.assign(months=np.where(FRAME.index == 3, -1.0, FRAME.months)))


@pytest.mark.parametrize("estimator", [PrivateKaplanMeier(TIMES), hazards()], ids=["curves", "hazards"])
def test_scikit_learns_checks_pass_but_for_those_that_fit_numbers_without_events(estimator: BaseEstimator) -> None:
    """Each check that fails does so because its random numbers are no durations and events."""
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    passed = [one["check_name"] for one in results if one["status"] == "passed"]
    assert len(passed) >= 14
    assert {"check_estimator_cloneable", "check_no_attributes_set_in_init", "check_estimator_repr"} <= set(passed)
    for one in results:
        if one["status"] == "failed":
            assert _about_rows(one["exception"]), f"{one['check_name']}: {one['exception']!r}"


def _about_rows(error: BaseException | None) -> bool:
    """Whether rows without durations or events are behind the failure."""
    while error is not None:
        if isinstance(error, DataError):
            return True
        error = error.__cause__ or error.__context__
    return False


TEXTS = {"event": ("alive", "dead"), "arm": ("placebo", "drug"), "stage": ("I", "II", "III")}
STAGES = np.arange(len(FRAME)) % 3
WORDS = FRAME.assign(
    stage=[TEXTS["stage"][code] for code in STAGES],
    **{name: [TEXTS[name][int(code)] for code in FRAME[name]] for name in ("event", "arm")},
)
LABELLED = Schema(("arm", "event", "age", "stage"), "months", {**TRIAL.schema.bounds, **TEXTS})


def test_curves_of_a_frame_with_texts_are_those_of_its_codes() -> None:
    found = PrivateKaplanMeier(TIMES, schema=LABELLED, group="arm", random_state=1).fit(WORDS)
    expected = kaplan_meier().fit(FRAME)
    assert (found.survival_ == expected.survival_).all()
    assert found.fit_.predictor.columns.group_labels == ("arm=placebo", "arm=drug")
    assert [*found.feature_names_in_] == ["months", "event", "arm"]
    with pytest.raises(DataError, match="row 3 has none of the labels of 'arm', which are placebo, drug"):
        kaplan_meier(schema=LABELLED).fit(WORDS.assign(arm=WORDS.arm.mask(WORDS.index == 3, "aspirin")))
    with pytest.raises(DataError, match="duration is 'days', and the schema's target 'months'"):
        PrivateKaplanMeier(TIMES, schema=LABELLED, duration="days").fit(WORDS)
    assert PrivateKaplanMeier(schema=LABELLED).fit(WORDS).survival_.shape == (1, 12), "the job's own grid"


@pytest.mark.long
def test_hazards_of_a_frame_with_texts_are_those_of_their_indicators() -> None:
    """A code of three stages would be a number with one slope, in a frame as over rounds."""
    found = PrivateProportionalHazards(schema=LABELLED, group="arm").fit(WORDS, WORDS["months"])
    bounds = {**TRIAL.schema.bounds, "II": (0, 1), "III": (0, 1)}
    plain = PrivateProportionalHazards(
        schema=Schema(("arm", "event", "age", "II", "III"), "months", bounds), group="arm"
    )
    numbers = FRAME.assign(II=STAGES == 1, III=STAGES == 2).astype(float)
    plain.fit(numbers, FRAME["months"])
    assert found.coef_ == pytest.approx(plain.coef_)
    assert [*found.feature_names_in_] == ["age", "stage=II", "stage=III"]
    assert found.predict(WORDS) == pytest.approx(plain.predict(numbers))
    assert found.predict_interval(WORDS[["stage", "age"]]) == pytest.approx(plain.predict_interval(numbers))
    with pytest.raises(DataError, match="row 0 has none of the labels of 'stage', which are I, II, III"):
        found.predict(pd.DataFrame({"age": [60.0], "stage": ["IV"]}))


@pytest.mark.long
def test_over_rounds_survival_estimators_state_the_labels() -> None:
    seen = LABELLED.with_indicators(("event", "arm"))
    rows = np.column_stack([FRAME.arm, FRAME.event, FRAME.age, STAGES == 1, STAGES == 2, FRAME.months])
    for kind in (PrivateKaplanMeier(TIMES, schema=LABELLED, group="arm"), hazards().set_params(schema=LABELLED)):
        terms = JobTerms(epsilon=20.0, delta=1e-5, clients=len(rows), tolerate=20, computes=(b"a", b"b"))
        recorded = RecordedRounds(IdealSwarm(rows, seen.columns, terms, random=np.random.default_rng(3).bytes))
        fit = kind.fit(recorded)
        asked = {column for request, _ in recorded.results for column in request.parameters["columns"]}
        assert {"event in {alive, dead}", "arm in {placebo, drug}"} <= asked
        assert not asked & {"stage", "stage in {I, II, III}", "arm", "event"}
        assert fit.private_
