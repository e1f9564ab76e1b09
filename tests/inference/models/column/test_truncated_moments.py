"""Lemma 3.2 against numerical integration to 34 digits: any polynomial, any quadratic, far from the interval."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from likelihood_check import planted, script

from inference.models.column.log_space import Quadratic, log_integral
from papers.ldp2021 import lemma
from papers.ldp2021.lemma import log_polynomial_gaussian

LOW, HIGH, SD = script.LOW, script.HIGH, 1.5
DEGENERATE = 1 / 4.5  # h2 where the integrand has no curvature: 1/2sd²
TENTH_POWER = (*[0.0] * 10, 1.0)
CELLS = [
    script.Lemma((2.0,), (0.1, -1.0, -0.5), 0.7),
    script.Lemma((1.0, -0.5, 0.3), (0.1, -1.0, -2000.0), 6.0),
    script.Lemma((4.0, 0.0, -1.0), (0.0, 0.0, 0.0), 700.0),
    script.Lemma((0.0, 1.0, 0.0), (0.0, 50.0, DEGENERATE), -3.0),
    script.Lemma((0.0, 1.0, 0.0), (0.0, -0.3, DEGENERATE), -700.0),
    script.Lemma((1.0, 0.0, 2.0), (0.0, -0.55, 0.3), 0.7),  # both ends count
    script.Lemma(TENTH_POWER, (0.0, -1.0, 40.0), 0.7),
    script.Lemma(TENTH_POWER, (0.0, -300.0, -0.5), 0.7),
    script.Lemma(TENTH_POWER, (0.0, 2.0, 0.0), 0.7),
]
SQUARES = [cell for cell in CELLS if len(cell.g) == 3]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with quick_and_double():
        yield


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_it_is_the_integral(cell: Any) -> None:
    found = script.check_lemma(cell)
    assert found["error"] <= found["allowed"]


@jax.jit
def _closed(*at: Any) -> Any:
    return log_integral(at[0], Quadratic(*at[1:4]), *at[4:])


@jax.jit
def _general(*at: Any) -> Any:
    return log_polynomial_gaussian(at[0], [1.0], at[1:4], *at[4:])[0]


@pytest.mark.long
def test_the_closed_form_is_that_of_a_constant() -> None:
    """Value and gradient, by quite different ways."""
    quadratics = [(0.3, 0.0, -0.5), (0.0, -40.0, 0.0), (-1.0, 2.0, -500.0), (0.0, 0.0, 0.2)]
    every = tuple(range(7))
    slopes = [jax.jit(jax.grad(function, every)) for function in (_closed, _general)]
    for z, h in itertools.product((-700.0, -4.0, 0.7, 700.0), quadratics):
        at = (z, *h, LOW, HIGH, SD)
        assert float(_closed(*at)) == pytest.approx(float(_general(*at)), rel=1e-14, abs=1e-13)
        np.testing.assert_allclose(slopes[0](*at), slopes[1](*at), rtol=1e-7, atol=1e-10)


@pytest.mark.long
def test_a_derivative_for_h1_is_the_next_moment() -> None:
    """∂/∂h₁ of the integral of g is that of xg."""
    z = np.array([-30.0, -3.0, 0.7, 6.0])
    g = (1.0, -0.5, 0.3)

    @jax.jit
    def both(h1: float, h2: float) -> Any:
        size, sign = log_polynomial_gaussian(z, g, (0.0, h1, h2), LOW, HIGH, SD)
        next_size, next_sign = log_polynomial_gaussian(z, (0.0, *g), (0.0, h1, h2), LOW, HIGH, SD)
        return size, sign * next_sign * jnp.exp(next_size - size)

    for h2 in (-0.5, DEGENERATE, 0.4):
        slope, _ = jax.jvp(lambda h1, h2=h2: both(h1, h2)[0], (-1.0,), (1.0,))[::-1]
        np.testing.assert_allclose(slope, both(-1.0, h2)[1], rtol=1e-10)


def test_shapes_signs_and_nothing() -> None:
    z = np.linspace(-3, 3, 6).reshape(2, 3)
    several = np.array([-1.0, 0.0, 1.0])
    size, sign = jax.jit(lambda z: log_polynomial_gaussian(z, [-1.0], (0.0, 0.0, several), LOW, HIGH, SD))(z)
    assert size.shape == sign.shape == (2, 3)
    assert (sign == -1).all()
    nothing = script.compiled_lemma(log_polynomial_gaussian)(0.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert [float(one) for one in nothing] == [-np.inf, 0.0]


def test_the_closed_form_refuses_what_is_no_normal_density() -> None:
    assert jnp.isnan(_closed(0.0, 0.0, 0.0, DEGENERATE + 0.1, LOW, HIGH, SD))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(z - x) / sd**2 + h1 + 2 * h2 * x", "(z - x) / sd**2 + h1 + h2 * x"),
        ("1 / sd**2 - 2 * h2", "1 / sd**2 - h2"),
        ("right * jnp.exp(q_right - q)", "right"),
        ("jnp.where(rising, -1, 1)", "1 - 2 * (q_first > q_last)"),
        ("reach = _REACH + _REACH_OF_A_POWER * degree", "reach = 4"),
    ],
)
@pytest.mark.long
def test_a_planted_error_is_seen(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = planted(lemma, right, wrong)
    monkeypatch.setattr(lemma, "log_polynomial_gaussian", changed.log_polynomial_gaussian)
    assert max(script.check_lemma(cell)["error"] for cell in SQUARES) > 1e-3
