"""What jobs say of rows that lack values, and what they do with them without privacy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from check_lying_client import CASES, setting_of
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.wire.kinds import NodeRelease
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import NAMES, find
from inference.jobs.examples import problem
from inference.models.sites.logistic import Released, released_by
from inference.problem import Problem, Schema

OF_A_COLUMN = tuple(name for name in NAMES if hasattr(find(name).settings(), "column"))


@pytest.mark.parametrize("name", OF_A_COLUMN)
def test_a_reference_is_of_the_values_that_are_there(name: str) -> None:
    """Before, one missing value made all figures NaN, or an error."""
    setting = setting_of(name, 60)
    data, holes = setting.data, setting.data.y.copy()
    holes[::3] = np.nan
    lacking = Problem(data.name, data.schema, data.X, holes)
    found = setting.job.reference(lacking, setting.own)
    expected = setting.job.reference(lacking.complete, setting.own)
    figures = [getattr(one, "estimates", lambda one=one: one)() for one in (found, expected)]
    assert str(figures[0]) == str(figures[1])
    assert "nan" not in str(figures[0])


def test_exact_hazards_leave_out_rows_without_a_value() -> None:
    setting = setting_of("survival-regression", 200)
    data, holes = setting.data, setting.data.X.copy()
    holes[::5, 0] = np.nan
    lacking = Problem(data.name, data.schema, holes, data.y)
    found, expected = (setting.job.reference(one, setting.own) for one in (lacking, lacking.complete))
    np.testing.assert_allclose(found.mean, expected.mean)


SAID = ("lack a value", "did not count", "seem to have no category")
SAMPLED = ("ldp-histogram", "ldp-mean", "ldp-regression", "ldp-sgd")  # these compile for seconds
SLOW = (*SAMPLED, "synthetic", "sites", "categorical", "poisson-regression", "multinomial-regression")
UNUSED = {"mixture": -1, "survival": 0} | dict.fromkeys(OF_A_COLUMN, 0)
"""Columns that the job does not read, by job."""
HIDING = "ldp-histogram by randomised response"  # whose reports look alike with and without missing values
METHODS = {
    "logistic one-sum": ("logistic", {"method": "one-sum"}),
    "logistic variational": ("logistic", {"method": "variational", "epochs": 20}),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.long] if name.startswith(SLOW) else [])
    for name in (*CASES, *METHODS) if name != HIDING
])  # fmt: skip
def test_every_job_says_that_rows_lack_a_value(name: str) -> None:
    """A third of the cells of a feature, then of the target, is missing among 2,000 rows at epsilon 4, or 60 for one.

    Before, `regression-mcmc` in closed form and `logistic` by one sum or gradients said nothing. Of whole tables each
    job warns by chance in at most 3e-3.
    """
    job, more = METHODS.get(name, (name, {}))
    setting = setting_of(job, 2_000, Budget(60.0 if job == "ldp-regression" else 4.0, 1e-5))
    if more:
        setting = setting._replace(own=setting.job.settings(**more))
    shared = 10 if setting.known.kind is NodeRelease or job.startswith("sites") else 0
    if shared:
        known, terms = replace(setting.known, clients=shared), msgspec.structs.replace(setting.terms, clients=shared)
        setting = setting._replace(known=known, terms=msgspec.structs.replace(terms, tolerate=0))

    def said(rows: np.ndarray) -> list[str]:
        tables = np.array([rows[place::shared] for place in range(shared)]) if shared else rows
        swarm = IdealSwarm(tables, setting.data.schema.columns, setting.terms, random=np.random.default_rng(3).bytes)
        summary = setting.learned(swarm)
        counts = [row["name"] for row in summary.get("estimates", []) if row["name"].endswith(" missing")]
        return counts + [text for text in summary["warnings"] if any(words in text for words in SAID)]

    assert said(setting.data.rows) == []
    for column in {0, -1} - {UNUSED.get(setting.job.name)}:
        rows = setting.data.rows.copy()
        rows[::3, column] = np.nan
        tables = 2 if name == "describe by group" and column else 1
        assert len(said(rows)) == tables, (column, "one text for each table")


def warned(rows: np.ndarray, n: int = 5_000) -> list[str]:
    schema = Schema(("a", "b"), "y", {"a": Interval(-4, 4), "b": Interval(-4, 4), "y": Interval(-6, 6)})
    setting = setting_of("regression-bounded", n, Budget(4.0, 1e-5))
    swarm = IdealSwarm(rows, schema.columns, setting.terms, random=np.random.default_rng(3).bytes)
    return list(setting.learned(swarm)["warnings"])


@pytest.mark.long
@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.parametrize("name", ["logistic", "poisson-regression", "robust-regression"])
def test_regressions_in_rounds_count_the_rows_that_lack_a_value(name: str, column: int) -> None:
    """Before, nothing was said if a label was missing, nor if features were binary or skewed.

    A warning by chance comes in 3e-5 of complete tables.
    """
    rng, n = np.random.default_rng(4), 2_000
    X = np.column_stack([rng.random(n) < 0.3, rng.exponential(size=n).clip(0, 8)]).astype(float)
    eta = 0.6 * X[:, 0] - 0.4 * X[:, 1]
    y, end = {
        "logistic": ((eta + rng.logistic(size=n) > 0).astype(float), (0.0, 1.0)),
        "poisson-regression": (rng.poisson(2 * np.exp(eta)).clip(0, 20).astype(float), (0.0, 20.0)),
        "robust-regression": ((eta + rng.normal(size=n)).clip(-6, 6), (-6.0, 6.0)),
    }[name]
    schema = Schema(("a", "b"), "y", {"a": Interval(0, 1), "b": Interval(0, 8), "y": Interval(*end)})
    setting = setting_of(name, n, Budget(4.0, 1e-5))
    setting = setting._replace(data=Problem("made", schema, X, y), own=setting.job.settings())

    def said(rows: np.ndarray) -> list[str]:
        swarm = IdealSwarm(rows, schema.columns, setting.terms, random=np.random.default_rng(3).bytes)
        return [text for text in setting.learned(swarm)["warnings"] if "seem to lack a value" in text]

    rows = setting.data.rows
    assert said(rows) == []
    rows[::2, column] = np.nan
    (warning,) = said(rows)
    assert warning.startswith("about 5")


@pytest.mark.long
def test_sites_without_labels_make_intervals_no_narrower() -> None:
    """Before, one share of complete rows stood for all sites: with half of them, intervals were half as wide."""
    setting = setting_of("sites-logistic", 4_000, Budget(4.0, 1e-5))
    sites = 8
    known, terms = replace(setting.known, clients=sites), msgspec.structs.replace(setting.terms, clients=sites)

    def width(rows: np.ndarray) -> float:
        tables = np.array([rows[place::sites] for place in range(sites)])
        swarm = IdealSwarm(tables, setting.data.schema.columns, terms, random=np.random.default_rng(3).bytes)
        slope = setting._replace(known=known).learned(swarm)["coefficients"][0]
        return float(np.ptp(slope["interval_95"]))

    rows = setting.data.rows
    whole = width(rows)
    rows[::2, -1] = np.nan  # every second site lacks all of its labels
    assert width(rows) > 0.9 * whole


@pytest.mark.long
def test_sites_too_small_for_a_count_of_their_own_take_the_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the labels are missing at random, in 100 sites of 40 rows, whose noise hides how many are complete.

    Before, each site counted as whole, so intervals were narrower with half of the rows; and nothing was said. The
    count in all sites has a standard deviation of 4 % of the rows, so one beyond 35 to 65 % is chance in 2e-4.
    """
    setting, sites = setting_of("sites-logistic", 4_000, Budget(1.0, 1e-5)), 100
    known, terms = replace(setting.known, clients=sites), msgspec.structs.replace(setting.terms, clients=sites)
    rows = setting.data.rows
    rows[np.random.default_rng(5).random(len(rows)) < 0.5, -1] = np.nan
    found: list[Released] = []

    def spy(*given: Any) -> Released:
        found.append(released_by(*given))
        return found[-1]

    monkeypatch.setattr("inference.models.sites.logistic.released_by", spy)
    tables = np.array([rows[place::sites] for place in range(sites)])
    swarm = IdealSwarm(tables, setting.data.schema.columns, terms, random=np.random.default_rng(3).bytes)
    warnings = setting._replace(known=known).learned(swarm)["warnings"]
    assert 0.35 * 4_000 < found[-1].n.sum() < 0.65 * 4_000
    (warning,) = [text for text in warnings if "seem to lack a value" in text]
    assert "% of the rows" in warning


@pytest.mark.long
@pytest.mark.parametrize("heavy", [False, True])
def test_a_regression_of_few_rows_says_how_many_lack_a_value_at_least(*, heavy: bool) -> None:
    """At n = 310 the first round often says nothing, and before, so did the result.

    Whether rows are complete is told by the lengths of scaled rows, whatever law features have. A warning by chance
    comes in 3e-5 of complete tables. With four of five labels missing, noise would have to be 8 deviations off.
    """
    rng, n = np.random.default_rng(6), 310
    X = rng.standard_t(1.5, (n, 2)).clip(-8, 8) if heavy else (rng.random((n, 2)) < [0.1, 0.5]).astype(float)
    y = (X @ [1.0, -0.5] + rng.standard_normal(n)).clip(-20, 20)
    schema = Schema(("a", "b"), "y", {"a": Interval(-8, 8), "b": Interval(-8, 8), "y": Interval(-20, 20)})
    setting = setting_of("regression", n, Budget(4.0, 1e-5))
    setting = setting._replace(data=Problem("made", schema, X, y))

    def said(rows: np.ndarray, seed: int) -> list[str]:
        swarm = IdealSwarm(rows, schema.columns, setting.terms, random=np.random.default_rng(seed).bytes)
        return [text for text in setting.learned(swarm)["warnings"] if "seem to lack a value" in text]

    rows = setting.data.rows
    assert [said(rows, seed) for seed in range(3)] == [[]] * 3
    rows[np.arange(n) % 5 > 0, -1] = np.nan
    for seed in range(3):
        (warning,) = said(rows, seed)
        if not warning.startswith("roughly"):  # the first round's, which may say it better
            assert 40 <= int(warning.split()[2]) <= 80


def test_a_regression_within_bounds_warns_of_missing_values_and_of_constant_features() -> None:
    """Before it never did."""
    rows = problem("number", 5_000).rows
    assert warned(rows) == []
    half = rows.copy()
    half[::2, 1] = np.nan
    assert any("seem to lack a value: the estimates are of the others" in text for text in warned(half))
    constant = rows.copy()
    constant[:, 0] = 1.5
    assert any("noise hides whether a varies at all" in text for text in warned(constant))
