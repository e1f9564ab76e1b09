"""Each hyperparameter is checked by its one declaration on every path: settings, words, estimators, model functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import inference.estimators
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs import NAMES, find
from inference.jobs.settings import Numbers, parse_words, require_finite, settings_from
from inference.mcmc.run import Options
from inference.models.conjugate import FAMILIES, family
from inference.models.conjugate.family import posterior_of
from inference.models.glm.families import Poisson, StudentT
from inference.models.glm.job import scored_regression
from inference.models.linear.job import regression_in_bounds, regression_with_projection
from inference.models.logistic.job import logistic_regression
from inference.models.priors import GaussianPrior, RatePrior
from inference.models.survival.hazards_fit import hazards_job
from inference.models.survival.rounds import Columns, curves_job
from inference.problem import Schema
from tests.inference.models.conjugate.test_families import released

NEVER = (math.nan, math.inf, -math.inf, 10**400, object(), b"1", {})
WRONG = ("bogus", [1, 2], "1 2")
SCHEMA = Schema(("x",), "y", {"x": Interval(-1, 1), "y": Interval(0, 10)})


def accepted(wanted: Any) -> set[Any]:
    """The types that a setting of this type accepts; ``tuple[float, ...]`` is one."""
    return {wanted} if wanted == Numbers else set(get_args(wanted)) or {wanted}


def bad_values(entry: Any, wanted: Any) -> Iterator[object]:
    """Values of which none is right for a setting of this type and check."""
    kinds, check = accepted(wanted), entry.metadata.get("check")
    yield from NEVER
    if NoneType not in kinds:
        yield None
    if Numbers in kinds:
        yield from ("a,b", [math.nan, 1.0], [[3]], True, -4)  # a number alone is a list of one
    elif str in kinds:
        lists = [[3], ["a,b"]] if entry.metadata.get("names") else [["text"]]
        yield from (3, 0.5, *lists, *(("bogus",) if check else ()))
    elif bool in kinds:
        yield from (*WRONG, 1, 0.0)
    else:
        yield from (*WRONG, True, *((-4,) if check not in (None, require_finite) else ()))


def cases() -> list[Any]:
    found = []
    for job in NAMES:
        kind = find(job).settings
        types = get_type_hints(kind)
        found += [pytest.param(job, entry, types[entry.name], id=f"{job}-{entry.name}") for entry in fields(kind)]
    return found


def check_message(error: pytest.ExceptionInfo[DataError], name: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert name in message
    assert "expected" in message or "known: " in message, message


@pytest.mark.parametrize(("job", "entry", "wanted"), cases())
def test_a_job_refuses_a_bad_value_of_each_setting_on_every_path(job: str, entry: Any, wanted: Any) -> None:
    kind = find(job).settings
    for bad in bad_values(entry, wanted):
        for make in (lambda bad: kind(**{entry.name: bad}), lambda bad: settings_from(kind, {entry.name: bad}, job)):
            with pytest.raises(DataError) as error:
                make(bad)
            check_message(error, entry.name)
    if accepted(wanted) & {int, float} and entry.metadata.get("check"):
        for word in ("NaN", "Infinity", "many", *(("-4",) if entry.metadata["check"] is not require_finite else ())):
            with pytest.raises(DataError) as error:
                settings_from(kind, parse_words([f"{entry.name}={word}"]), job)
            check_message(error, entry.name)


@pytest.mark.parametrize("job", NAMES)
def test_numbers_that_must_be_in_a_range_have_a_check(job: str) -> None:
    """That of a number that may be anywhere is `require_finite`."""
    kind = find(job).settings
    types = get_type_hints(kind)
    kind()
    for entry in fields(kind):
        if accepted(types[entry.name]) & {int, float}:
            assert entry.metadata.get("check"), entry.name


class NoRounds:
    """Rounds that must not be asked."""

    def run_round(self, request: object) -> Any:
        raise AssertionError("a round was asked before the parameters were checked")


ESTIMATORS = [getattr(inference.estimators, name) for name in inference.estimators.__all__]
FREE = {"duration": str, "event": str, "group": str, "codes": str, "whole": str}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_an_estimator_refuses_a_bad_value_of_each_parameter_from_every_source(estimator: Any) -> None:
    rows = np.array([[0.1], [0.5], [-0.3], [0.7]])
    aggregate = released(family("bernoulli", "x", Interval(0, 1)).request(), np.ones(9))
    sources = ((rows, np.array([1.0, 0.0, 1.0, 2.0])), (aggregate, None), ([aggregate], None), (NoRounds(), None))
    for name in estimator().get_params():
        for bad in (object(), -4, math.nan, "bogus"):
            if isinstance(bad, str) and name in FREE:
                continue
            for source in sources:
                with pytest.raises(DataError) as error:
                    estimator(**{name: bad}).fit(*source)
                check_message(error, name)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -4.0, 0.0, "bogus", [1.0]])
def test_model_functions_refuse_bad_values_before_a_round(bad: Any) -> None:
    columns, rng = Columns("y", "x", (5.0, 10.0)), np.random.default_rng(1)
    calls: list[tuple[str, Any]] = [
        ("prior_sd", lambda: next(scored_regression(SCHEMA, Poisson(), prior_sd=bad))),
        ("rounds", lambda: next(scored_regression(SCHEMA, Poisson(), rounds=bad))),
        ("std_share", lambda: next(scored_regression(SCHEMA, Poisson(), std_share=bad))),
        ("degrees", lambda: StudentT(bad)),
        ("std_share", lambda: next(regression_with_projection(SCHEMA, std_share=bad))),
        ("repair", lambda: next(regression_in_bounds(SCHEMA, repair=bad))),
        ("method", lambda: next(logistic_regression(SCHEMA, rng=rng, method=bad))),
        ("prior_sd", lambda: next(logistic_regression(SCHEMA, rng=rng, prior_sd=bad))),
        ("prior_sd", lambda: next(hazards_job(SCHEMA, columns, prior_sd=bad))),
        ("std_share", lambda: next(hazards_job(SCHEMA, columns, std_share=bad))),
        ("rows_max", lambda: next(hazards_job(SCHEMA, columns, rows_max=bad))),
        ("prior_rows", lambda: next(curves_job(columns, rng=rng, prior_rows=bad))),
        ("draws", lambda: Options(draws=bad)),
        ("chains", lambda: Options(chains=bad)),
        ("mean_sd", lambda: GaussianPrior(0.0, bad, 1.0, 1.0)),
        ("rate", lambda: RatePrior(1.0, bad)),
    ]
    for name, call in calls:
        with pytest.raises(DataError) as error:
            call()
        check_message(error, name)
    if bad != 0.0:
        with pytest.raises(DataError) as error:
            next(regression_in_bounds(SCHEMA, prior_precision=bad if bad != [1.0] else [[1.0]]))
        check_message(error, "prior_precision")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conjugate_model_refuses_bad_values(name: str) -> None:
    bounds = Interval(0, 1)
    for entry in fields(FAMILIES[name])[2:]:
        for bad in (math.nan, math.inf, "two", *(() if entry.name == "m" else (-1, 0.0))):
            with pytest.raises(DataError) as error:
                family(name, "x", bounds, **{entry.name: bad})
            check_message(error, f"prior_{entry.name}")
    model = family(name, "x", bounds)
    aggregate = released(model.request(), np.r_[np.ones(9), np.zeros(9)])
    for key, value in (("method", "bogus"), ("method", 3), ("chains", 0), ("draws", 3), ("draws", math.nan)):
        with pytest.raises(DataError) as error:
            posterior_of(model, aggregate, rng=np.random.default_rng(1), **{key: value})  # type: ignore[arg-type]
        check_message(error, key)
