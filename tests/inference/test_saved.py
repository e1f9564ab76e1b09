"""A posterior that was written into a result file is the same when it is read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from check_lying_client import CASES, setting_of
from dca_proto.cli.job_settings import best_weights
from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.columns import Standardisation
from inference.errors import DataError
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.estimates import separated
from inference.models.categories.law import Categories
from inference.models.categories.model import Model
from inference.models.coefficients import LOGIT, Coefficients
from inference.models.glm.regression import AXES, DrawnRows
from inference.models.survival.hazards import Hazards
from inference.models.survival.rounds import Columns
from inference.posterior import Posterior
from inference.problem import Problem, Schema
from inference.rounds import run
from inference.saved import load_result, saved

SAMPLED = ("ldp-histogram", "ldp-mean", "ldp-regression")  # compiled for seconds; `drawn` has the same parts
X = np.array([[0.5, -1.0], [3.0, 2.0], [99.0, 0.0]])


def learned(name: str) -> tuple[Posterior, dict[str, Any]]:
    setting = setting_of(name, 60)
    data = setting.data
    swarm = IdealSwarm(data.rows, data.schema.columns, setting.terms, random=np.random.default_rng(3).bytes)
    found = setting.job.finish(
        run(setting.job.make(data.schema, setting.own, setting.known), swarm), data.schema, setting.own, setting.known
    )
    return found, dict(setting.job.summarise(found, None, None, None, data.schema))


def file_of(folder: Path, posterior: Posterior, summary: dict[str, Any], **changes: Any) -> Path:
    path = folder / "result.json"
    whole = {**separated({**summary, "posterior": saved(posterior)}), "ok": True, "private": posterior.private}  # type: ignore[typeddict-item]
    path.write_bytes(msgspec.json.encode({**whole, "epsilon": 2.0, **changes}))
    return path


SLOW = ("categorical", "sites-logistic", "sites-regression", "poisson-regression", "multinomial-regression")


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.long] if name in SLOW else [])  # they compile
    for name in CASES if not name.startswith(SAMPLED)
])  # fmt: skip
def test_each_job_has_the_same_table_and_predictions_after_its_file(name: str, tmp_path: Path) -> None:
    before, summary = learned(name)
    after = load_result(file_of(tmp_path, before, summary))
    again = after.summary()
    for key in ("coefficients", "estimates", "intercept", "warnings"):
        assert again.get(key) == summary.get(key), key
    assert after.private == before.private
    assert after.attrs["epsilon"] == 2.0
    if isinstance(before.predictor, Coefficients) and before.predictor.point:
        assert_a_point_estimate(before)
        assert_a_point_estimate(after)
        return
    assert set(after.draws) == set(before.draws)
    for parameter, sd in before.sd.items():
        kept = after.draws[parameter].shape[0] * after.draws[parameter].shape[1]
        apart = np.abs(after.draws[parameter].mean(axis=(0, 1)) - before.draws[parameter].mean(axis=(0, 1)))
        assert np.all(apart <= 6 * np.maximum(sd, before.draws[parameter].std(axis=(0, 1))) / kept**0.5), parameter
    if not hasattr(before.predictor, "predict"):
        with pytest.raises(DataError, match=r"model '.*' predicts nothing of new rows"):
            after.predict(X)
        return
    at = np.array([0.5, 3.0, 19.0]) if name == "survival" else X  # curves predict at times
    for one in (before, after):
        assert_one_door(one)
    if before.sample is not None:  # the law itself is in the file
        np.testing.assert_allclose(after.predict(at), before.predict(at), rtol=1e-12)
        np.testing.assert_allclose(after.predict_interval(at, 0.5), before.predict_interval(at, 0.5), rtol=1e-9)
    else:  # by the draws that are kept
        np.testing.assert_allclose(after.predict(at), before.predict(at), rtol=0.2)
        ends = before.predict_interval(at, 0.5)
        widest = np.ptp(ends, axis=-1).max()
        np.testing.assert_allclose(after.predict_interval(at, 0.5), ends, rtol=0, atol=0.3 * widest)


BAD_ROWS = {
    r"have the shape \(3, 1\); expected \(k, 2\): a column for each of a, b, in this order": X[:, :1],
    r"have the shape \(3, 3\); expected \(k, 2\)": np.c_[X, X[:, :1]],
    r"have the shape \(2,\); expected \(k, 2\)": X[0],
    r"row 1 to predict for has nan in b; expected finite numbers, so leave out rows": np.array([[1.0, 2], [3, np.nan]]),
    r"has cells that are not numbers \(could not convert string to float: .*'x'": [[1.0, "x"]],
    r"has cells that are not numbers \(dtype complex128\)": X + 1j,
    r"column 'b' is not in the data frame \(did you mean 'B'\?\); known: a, B": pd.DataFrame(X, columns=["a", "B"]),
}
BAD_TIMES = {
    r"have the shape \(3, 2\); expected a list of times": X,
    r"have a number that is not finite": [3.0, np.nan],
    r"has cells that are not numbers": ["soon"],
}


def assert_one_door(posterior: Posterior, *, intervals: bool = True) -> None:
    """What cannot be predicted for is refused alike. Before, a wrong number of columns was NumPy's ValueError."""
    bad = BAD_TIMES if posterior.predictor.features is None else BAD_ROWS
    for words, rows in bad.items():
        for predict in (posterior.predict, *([posterior.predict_interval] if intervals else [])):
            with pytest.raises(DataError, match=words):
                predict(rows)
    if bad is BAD_ROWS:  # names decide, whatever else a frame has
        frame = pd.DataFrame(np.c_[X[:, ::-1], X[:, 0]], columns=["b", "a", "other"])
        np.testing.assert_array_equal(posterior.predict(frame), posterior.predict(X))


def assert_a_point_estimate(posterior: Posterior) -> None:
    """A point estimate has predictions, but no spread, neither a wrong one nor none."""
    mean, sd = posterior.predict(X)
    assert np.isfinite(mean).all()
    assert np.isnan(sd).all()
    assert_one_door(posterior, intervals=False)
    for spread in (lambda: posterior.predict_interval(X), posterior.intervals, lambda: posterior.sd):
        with pytest.raises(DataError, match="point estimate, without draws and intervals"):
            spread()


def test_shares_of_very_rare_categories_are_numbers_in_the_file(tmp_path: Path) -> None:
    before = Posterior("categorical", {"theta": np.array([[[1e-310, 1e-200, 1.0], [5e-324, 0.0, 1.0]]])})
    after = load_result(file_of(tmp_path, before, {"warnings": []}))
    np.testing.assert_allclose(after.draws["theta"], before.draws["theta"], rtol=1e-5, atol=1e-290)


def drawn(link: str) -> Posterior:
    """A sampled regression of features a and b."""
    rng = np.random.default_rng(1)
    columns = Standardisation(("a", "b", "y"), np.array([1.0, 0.0, 5.0]), np.array([2.0, 1.0, 3.0]), np.full(3, 4.0))
    linear = Coefficients(columns=columns, mean=np.zeros(3), cov=np.eye(3), link=link)
    draws = {"coefficients": rng.normal(1, 0.1, (4, 500, 2)), "intercept": rng.normal(size=(4, 500))}
    if link != LOGIT:
        draws["residual_sd"] = np.abs(rng.normal(1, 0.1, (4, 500)))
    return Posterior(
        link, draws, axes=AXES, coords={"feature": ("a", "b")}, predictor=DrawnRows(linear, draws), private=False
    )


@pytest.mark.parametrize("link", ["identity", LOGIT])
def test_a_sampled_regression_predicts_from_the_draws_of_its_file(link: str, tmp_path: Path) -> None:
    before = drawn(link)
    after = load_result(file_of(tmp_path, before, dict(before.summary())))
    assert after.draws["coefficients"].shape == (4, 250, 2)
    for one in (before, after):
        assert_one_door(one)
    np.testing.assert_allclose(after.predict(X), before.predict(X), rtol=0.1, atol=0.15)
    np.testing.assert_allclose(after.predict_interval(X), before.predict_interval(X), rtol=0.3, atol=0.3)
    assert (np.diff(after.predict_interval(X, 0.5)) < np.diff(after.predict_interval(X, 0.9))).all()
    assert after.plot(tmp_path / "again.svg").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "is not the result of a job"),
        pytest.param("[" * 20_000 + "]" * 20_000, "is nested too deeply to be the result of a job", id="deep"),
        ('{"ok": false, "posterior": null}', "is a result of a job that failed"),
        ('{"ok": true, "kind": "swarm"}', "is a result without a posterior"),
        ('{"ok": true, "coefficients": 3}', r"is not the result of a job: Expected `array`, got `int`.*coefficients"),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words) as error:
        load_result(path)
    assert str(path) in str(error.value)
    assert "dca learn --json" in str(error.value)
    with pytest.raises(DataError, match=r"missing\.json"):
        load_result(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one["draws"].update(intercept=[[1, "two"]]), "draws of 'intercept' are not finite numbers"),
        (lambda one: one["draws"].update(intercept=[]), "draws of 'intercept' are not finite numbers"),
        (lambda one: one["draws"].update(intercept=[[1.0]]), "differ in chains and draws"),
        (lambda one: one["regression"].update(link="probit"), "does not fit its columns a, b, y"),
        (lambda one: one["regression"].update(mean=[0.0]), "does not fit its columns a, b, y"),
        (lambda one: one["regression"].update(scale=[0.0, 1.0, 1.0]), "does not fit its columns a, b, y"),
        (lambda one: one["regression"].update(cov=[[1, 2, 0], [2, 1, 0], [0, 0, 1]]), "is no covariance matrix"),
        (lambda one: one["regression"].update(cov=[[1, 0, 0], [0, 1], [0, 0, 1]]), "does not fit its columns a, b, y"),
        (lambda one: one["regression"].update(residual_variance=-1.0), "does not fit its columns a, b, y"),
        (lambda one: one["draws"].pop("intercept"), "are not those of a regression"),
        (lambda one: one["draws"].pop("residual_sd"), "are not those of a regression"),
        (
            lambda one: one["axes"].clear() or one["draws"].update(coefficients=np.ones((4, 250, 3)).tolist()),
            "are not those of a regression",
        ),
        (lambda one: one["coords"].update(feature=["a"]), "do not fit the labels along feature"),
        (lambda one: one.update(regression=None, draws={}), "has neither draws nor a regression's law"),
    ],
)
def test_a_damaged_posterior_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    posterior = drawn("identity")
    path = file_of(tmp_path, posterior, dict(posterior.summary()))
    table = json.loads(path.read_text(encoding="utf-8"))
    change(table["posterior"])
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(DataError, match=words):
        load_result(path)


def of_law(name: str) -> Posterior:
    """Categories 1 to 3 by a and b, or hazards until 1 and 2 of two arms by a and b: invented normal laws."""
    ends = np.full(3, 4.0)
    if name == "categories":
        columns = Standardisation(("a", "b", "y"), np.array([1.0, 0.0, 1.0]), np.array([2.0, 1.0, 1.0]), ends)
        mean = np.array([-1.0, 1.0, 0.5, -0.5])
        law: Any = Categories(columns=columns, model=Model(True, 3, 2), codes=np.arange(1.0, 4.0), mean=mean,
                              cov=0.04 * np.eye(4), prior_sd=2.5)  # fmt: skip
    else:
        columns = Standardisation(("a", "b"), np.array([1.0, 0.0]), np.array([2.0, 1.0]), ends[:2])
        layout = Columns("t", "event", (1.0, 2.0), "arm", 2, ("a", "b"))
        mean = np.array([-1.0, -1.2, 0.3, 0.5, -0.5])
        law = Hazards(columns=columns, layout=layout, group_shares=np.array([0.5]), mean=mean, cov=0.04 * np.eye(5))
    found: Posterior = law.posterior()
    return found


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("categories", {"codes": [1.0, 3.0, 2.0]}),
        ("categories", {"codes": [1.0, 2.0]}),
        ("categories", {"mean": [0.0]}),
        ("categories", {"cov": (-np.eye(4)).tolist()}),
        ("categories", {"scale": [0.0, 1.0, 1.0]}),
        ("categories", {"within": [[0.0, 1.0]]}),
        ("hazards", {"times": []}),
        ("hazards", {"times": [1.0, "two"]}),
        ("hazards", {"centre": [1.0]}),
        ("hazards", {"scale": [1.0, -1.0]}),
        ("hazards", {"group_shares": [1.5]}),
        ("hazards", {"groups": -1}),
        ("hazards", {"mean": [[0.0]]}),
        ("hazards", {"cov": [[1.0, 2.0], [3.0]]}),
        ("hazards", {"features": ["a"]}),
    ],
)
def test_a_damaged_law_is_refused(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    posterior = of_law(name)
    path = file_of(tmp_path, posterior, dict(posterior.summary()))
    np.testing.assert_allclose(load_result(path).predict(X), posterior.predict(X), rtol=1e-12)
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["posterior"]["draws"] == {}
    table["posterior"][name].update(change)
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(DataError) as error:
        load_result(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["categories", "hazards"])
def test_files_written_before_columns_had_texts_are_read(name: str) -> None:
    """The files in `results` are those that `of_law` had when laws were kept without the texts of their codes."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    assert "texts" not in json.loads(path.read_text(encoding="utf-8"))["posterior"][name]
    before, after = of_law(name), load_result(path)
    np.testing.assert_allclose(after.predict(X), before.predict(X), rtol=1e-12)
    assert [row.name for row in after.estimates()] == [row.name for row in before.estimates()]


def test_curves_of_a_file_answer_within_their_grid(tmp_path: Path) -> None:
    curves = np.tile([[0.9, 0.5], [0.8, 0.4]], (2, 5, 1, 1))
    known = {"axes": {"survival": ("group", "time")}, "coords": {"group": ("arm 0", "arm 1"), "time": (6.0, 12.0)}}
    after = load_result(file_of(tmp_path, Posterior("survival", {"survival": curves}, **known), {"warnings": []}))  # type: ignore[arg-type]
    np.testing.assert_allclose(after.predict(np.array([0.0, 9.0, 12.0]))[0], [[1.0, 0.7, 0.5], [1.0, 0.6, 0.4]])
    with pytest.raises(DataError, match="the grid is from 0 to 12"):
        after.predict(np.array([13.0]))


def test_a_model_that_predicts_nothing_says_so_and_levels_are_checked() -> None:
    alone = Posterior("gaussian", {"mean": np.zeros((4, 10))})
    with pytest.raises(DataError, match="model 'gaussian' predicts nothing of new rows"):
        alone.predict_interval(X)
    for level in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(DataError, match="give a probability between 0 and 1"):
            drawn("identity").predict_interval(X, level)


@pytest.mark.long
@pytest.mark.parametrize("name", ["regression", "logistic", "survival-regression", "ordinal-regression"])
def test_a_frame_of_texts_is_predicted_by_a_file_as_by_the_indicators(name: str, tmp_path: Path) -> None:
    job, clinics = find(name), ("north", "south", "west")
    rng, n = np.random.default_rng(1), 300
    target = {"survival-regression": (0, 20), "ordinal-regression": (1, 3)}.get(name, (0, 1))
    features = ("clinic", "age", *(["event"] if name.startswith("survival") else []))
    bounds = {"clinic": clinics, "age": (0, 90), "event": (0, 1), "y": target}
    whole = Schema(features, "y", bounds)
    columns = {"clinic": rng.integers(0, 3, n), "age": rng.uniform(20, 80, n), "event": rng.integers(0, 2, n)}
    rows = Problem(
        "made", whole, np.column_stack([columns[one] for one in features]), rng.integers(*target, n, endpoint=True)
    )
    own = job.settings()
    data = job.read(rows, own)
    known = Conditions(n, 20, 1.0, rng, weights=best_weights)
    terms = JobTerms(epsilon=20.0, delta=1e-5, clients=n, tolerate=20, computes=(b"a", b"b"))
    swarm = IdealSwarm(data.rows, data.schema.columns, terms, random=np.random.default_rng(3).bytes)
    before = job.finish(run(job.make(data.schema, own, known), swarm), data.schema, own, known)
    after = load_result(file_of(tmp_path, before, dict(job.summarise(before, None, None, None, data.schema))))
    texts = pd.DataFrame({"age": [40.0, 50.0, 60.0], "clinic": ["south", "north", "west"]})
    numbers = np.array([[1.0, 0.0, 40.0], [0.0, 0.0, 50.0], [0.0, 1.0, 60.0]])
    for found in (before, after):
        np.testing.assert_allclose(found.predict(texts)[0], before.predict(numbers)[0], rtol=1e-9)
    assert before.predict(numbers)[0][0] != before.predict(numbers - [1.0, 0.0, 0.0])[0][0]
    with pytest.raises(DataError, match="row 0 has none of the labels of 'clinic'"):
        after.predict(pd.DataFrame({"age": [40.0], "clinic": ["east"]}))
