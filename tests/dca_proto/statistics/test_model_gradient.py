"""Gradients of a user's own model: clipped like the built-in ones, whatever the model does."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from dca_proto.aggregate import RoundRequest
from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.protocol import facts
from dca_proto.statistics import Gradient, ModelGradient, base, model_gradient, register, resolve
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.testing import NoNoise, TestFederation
from emulator.ideal import IdealSwarm

F = 24
BOX: dict[str, Any] = {
    "columns": ("a", "b", "y"),
    "centre": (0.5, 0.0, 2.0),
    "scale": (2.0, 1.0, 2.0),
    "bound": (1.5, 2.0, 1.0),
}
THETA = (0.4, -0.7)


class Poisson(ModelGradient, frozen=True, kw_only=True):
    """Counts y, of mean exp(xᵀθ)."""

    name = "poisson-gradient"

    def gradient(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        x, y = rows[:, :-1], rows[:, -1]
        return (y - np.exp(x @ theta))[:, None] * x


class Student(ModelGradient, frozen=True, kw_only=True):
    """Regression with errors of Student's t distribution; its gradient is JAX's."""

    name = "student-gradient"
    degrees: float

    def log_density(self, theta: Any, rows: Any) -> Any:
        import jax.numpy as jnp

        residual = rows[:, -1] - rows[:, :-1] @ theta
        return -(self.degrees + 1) / 2 * jnp.log1p(residual**2 / self.degrees)


class Rogue(ModelGradient, frozen=True, kw_only=True):
    """Whatever its rows say: the worst that a model can return."""

    name = "rogue-gradient"

    def gradient(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        worst = np.array([np.nan, np.inf, -np.inf, 1e308, -1e200, 5e-324, 1.0, 0.0])
        return worst[np.abs(np.rint(rows)).astype(int) % 8]


class Shapeless(ModelGradient, frozen=True, kw_only=True):
    """Of the wrong shape."""

    name = "shapeless-gradient"

    def gradient(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return rows


def test_a_users_model_is_a_statistic_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, with the parameters of a round, over all clients at once."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    register(Poisson)
    parameters: dict[str, Any] = {**BOX, "theta": THETA, "clip": 1.0}
    parameters = {key: list(value) if isinstance(value, tuple) else value for key, value in parameters.items()}
    rows = np.random.default_rng(1).normal(size=(30, 3))
    terms = JobTerms(epsilon=1.0, delta=1e-6, clients=30, tolerate=1, computes=(b"a" * 16, b"b" * 16))
    found = IdealSwarm(rows, BOX["columns"], terms, mechanism=NoNoise()).run_round(
        RoundRequest(Poisson.name, parameters)
    )
    statistic = resolve(Poisson.name, parameters)
    each = sum(contribution(statistic, row[None], 0, F) for row in rows)
    np.testing.assert_allclose(found.value, dequantise(each, F), atol=30 * 2.0**-F)
    assert statistic.labels() == ("gradient at theta[0]", "gradient at theta[1]")
    assert client_sensitivity(statistic, 1, F).l2 == pytest.approx(2 * 2**F)
    z = np.clip((rows - BOX["centre"]) / BOX["scale"], -np.array(BOX["bound"]), BOX["bound"])
    plain = (z[:, -1] - np.exp(z[:, :-1] @ np.array(THETA)))[:, None] * z[:, :-1]
    clipped = plain / np.maximum(1, np.linalg.norm(plain, axis=1))[:, None]
    np.testing.assert_allclose(found.value, clipped.sum(axis=0), atol=1e-4)


def test_it_is_clipped_as_the_built_in_gradient_is() -> None:
    """The same model by hand: the same integers."""

    class Normal(ModelGradient, frozen=True, kw_only=True):
        name = "normal-by-hand"

        def gradient(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
            x, y = rows[:, :-1], rows[:, -1]
            return (y - (x * theta).sum(axis=1))[:, None] * x

    rows = np.random.default_rng(2).normal(size=(500, 3), scale=3)
    for clip in (0.3, 1.0, 1e6):
        own, built_in = (kind(**BOX, theta=THETA, clip=clip) for kind in (Normal, Gradient))
        assert np.array_equal(own.evaluate(rows, F), built_in.evaluate(rows, F))
        assert own.row_sensitivity(F) == built_in.row_sensitivity(F)


def test_no_gradient_however_wild_leaves_the_ball() -> None:
    wide = {"columns": ("a", "b", "c"), "centre": (0.0,) * 3, "scale": (1.0,) * 3, "bound": (9.0,) * 3}
    statistic = Rogue(**wide, theta=(0.0,) * 3, clip=0.7)
    rows = np.array(np.meshgrid(*[np.arange(8.0)] * 3)).reshape(3, -1).T
    values = statistic.evaluate(rows, F)
    limit = math.floor(0.7 * 2**F)
    assert max(sum(int(one) ** 2 for one in row) for row in values) <= limit**2
    wild = (rows < 3).any(axis=1)  # a NaN or an infinity
    assert (values[wild] == 0).all()
    long = values[~wild & (rows <= 4).any(axis=1)].astype(float)
    assert (np.linalg.norm(long, axis=1) >= 0.999999 * limit).all(), "long gradients keep the clip's length"
    first = statistic.evaluate(np.array([[3.0, 7.0, 4.0]]), F)[0]
    assert abs(first[0] - limit) <= 1, "and their direction"
    assert first[1:].tolist() == [0, 0]


def test_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gradient of 'shapeless-gradient' has shape \(2, 3\); expected \(2, 2\)"):
        Shapeless(**BOX, theta=THETA, clip=1.0).evaluate(np.ones((2, 3)), F)
    with pytest.raises(UsageError, match=r"theta\[1\] is nan; give finite numbers"):
        Poisson(**BOX, theta=(0.0, math.nan), clip=1.0)
    with pytest.raises(UsageError, match="clip is 0; give a finite number above 0"):
        Poisson(**BOX, theta=THETA, clip=0.0)


def test_jax_derives_the_gradient() -> None:
    """In float64, of a model with a parameter of its own; compiled once for all θ of a job."""
    pytest.importorskip("jax")
    model_gradient._derived.cache_clear()
    rows = np.random.default_rng(3).normal(size=(40, 3))
    z = np.clip((rows - BOX["centre"]) / BOX["scale"], -np.array(BOX["bound"]), BOX["bound"])
    for theta in (THETA, (0.1, 0.2)):
        statistic = Student(**BOX, theta=theta, clip=50.0, degrees=4.0)
        residual = z[:, -1] - z[:, :-1] @ np.array(theta)
        expected = (5.0 * residual / (4.0 + residual**2))[:, None] * z[:, :-1]
        np.testing.assert_allclose(dequantise(statistic.evaluate(rows, F), F), expected, atol=2.0**-F * 1.01)
        np.testing.assert_allclose(statistic.gradient(np.array(theta), z), expected, rtol=1e-12, atol=1e-15)
    assert model_gradient._derived.cache_info().misses == 1


class Exponential(ModelGradient, frozen=True, kw_only=True):
    """Waiting times of a rate that must be above 0; with a field that cannot be hashed."""

    name = "exponential-gradient"
    settings: dict[str, float]

    def __post_init__(self) -> None:
        if not min(self.theta) > 0:
            raise UsageError("the rate must be above 0")
        super().__post_init__()

    def log_density(self, theta: Any, rows: Any) -> Any:
        import jax.numpy as jnp

        return self.settings["weight"] * (jnp.log(theta[0]) - theta[0] * rows[:, 0])


def test_a_model_may_check_its_theta_and_have_parameters_of_any_kind() -> None:
    pytest.importorskip("jax")
    rows = np.abs(np.random.default_rng(4).normal(size=(5, 3)))
    z = np.clip((rows[:, 0] - 0.5) / 2.0, -1.5, 1.5)
    for weight in (1.0, 3.0):
        statistic = Exponential(**BOX, theta=(0.4,), clip=50.0, settings={"weight": weight})
        found = dequantise(statistic.evaluate(rows, F), F)[:, 0]
        np.testing.assert_allclose(found, weight * (1 / 0.4 - z), atol=2.0**-F * 1.01)


def test_a_log_density_of_the_wrong_shape_is_refused() -> None:
    class Total(ModelGradient, frozen=True, kw_only=True):
        name = "total-gradient"

        def log_density(self, theta: Any, rows: Any) -> Any:
            return (rows[:, 0] * theta[0]).sum()

    pytest.importorskip("jax")
    with pytest.raises(UsageError, match=r"of 'total-gradient' has shape \(\) for one row; expected \(1,\)"):
        Total(**BOX, theta=THETA, clip=1.0).evaluate(np.ones((2, 3)), F)


class Failing(ModelGradient, frozen=True, kw_only=True):
    """Fails on what its rows hold."""

    name = "failing-gradient"

    def gradient(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if (rows[:, 0] < 0).any():
            raise ArithmeticError(f"cannot take the logarithm of {rows[0, 0]}")
        return rows


def test_a_client_whose_model_fails_takes_part_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    register(Failing)
    rows = [np.array([[-0.25 if index == 2 else 0.5]]) for index in range(5)]
    actors = TestFederation(5, 2, rows=rows, mechanism=NoNoise())
    parameters = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0], "theta": [0.0], "clip": 1.0}
    network = actors.network()
    network.command(actors.trainer_identity.id, actors.request(statistic=Failing.name, parameters=parameters))
    network.advance(network.now_ms + 1000)
    (done,) = network.reported(facts.RoundCompleted)
    assert (done.aggregate.contributors, done.aggregate.value.tolist()) == (5, [2.0])
    (trouble,) = network.reported(facts.DataFailed)
    assert "ArithmeticError" in repr(trouble)
    assert "0.25" not in repr(trouble)


@pytest.mark.parametrize(("bound", "said"), [(1e-9, "below one grid unit"), (1e12, "is not below 5.36871e")])
def test_bounds_that_do_not_fit_the_grid_are_refused_before_anybody_takes_part(bound: float, said: str) -> None:
    """And not by each client for itself, whose contribution would be zero."""
    for kind in (Gradient, Poisson):
        with pytest.raises(UsageError, match=said):
            client_sensitivity(kind(**BOX | {"bound": (1.0, bound, 1.0)}, theta=THETA, clip=1.0), 1, F)


def test_without_jax_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    model_gradient._derived.cache_clear()
    with pytest.raises(UsageError, match=r"student-gradient.* needs JAX: pip install -e '\.\[samplers\]'"):
        Student(**BOX, theta=THETA, clip=1.0, degrees=3.0).evaluate(np.ones((1, 3)), F)


def test_a_client_without_jax_declines_and_the_others_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is contributed as zero where the library is missing: that depends on no row."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    monkeypatch.setitem(sys.modules, "jax", None)
    model_gradient._derived.cache_clear()
    register(Student)
    register(Poisson)
    parameters = {**BOX, "theta": THETA, "clip": 1.0}
    parameters = {key: list(value) if isinstance(value, tuple) else value for key, value in parameters.items()}
    actors = TestFederation(3, 2, columns=BOX["columns"], mechanism=NoNoise())
    for name, more, declined in ((Student.name, {"degrees": 3.0}, 3), (Poisson.name, {}, 0)):
        network = actors.network()
        opened = actors.request(statistic=name, parameters=parameters | more)
        network.command(actors.trainer_identity.id, opened)
        network.advance(network.now_ms + 1000)
        refusals = network.reported(facts.Declined, actors.trainer_identity.id)
        assert [one.found.endswith("'.[samplers]' in the checkout") for one in refusals] == [True] * declined
        assert len(network.reported(facts.Contributed)) == 3 - declined
        assert network.reported(facts.DataFailed) == []


def test_a_model_without_either_is_refused() -> None:
    class Empty(ModelGradient, frozen=True, kw_only=True):
        name = "empty-gradient"

    pytest.importorskip("jax")
    with pytest.raises(UsageError, match="'empty-gradient' has neither gradient nor log_density; define one of them"):
        Empty(**BOX, theta=THETA, clip=1.0).evaluate(np.ones((1, 3)), F)
