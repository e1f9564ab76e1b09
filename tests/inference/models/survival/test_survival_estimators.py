"""The survival estimators as scikit-learn and pandas use them: names of columns, codes, and estimator checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import check_estimator

from inference.datasets import simulated_trial
from inference.errors import DataError
from inference.estimators import PrivateKaplanMeier, PrivateProportionalHazards
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
