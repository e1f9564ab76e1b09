"""Bayes-fixedS-fast against its formula and against Bayes' rule; adaSSP against its own, and what its release costs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest

from dca_proto.privacy.accounting import mu_of
from dca_proto.statistics.regression_sensitivity import RowLimits, regression_sensitivity
from inference.errors import DataError
from inference.models.linear.nodes import fixed_s_fast
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.fits import crude_sigma_y2
from papers.mcmc2023.samplers import adassp
from papers.mcmc2023.samplers.adassp import Ridge, Sensitivities, estimate, release


def symmetric(rng: np.random.Generator, J: int, d: int, sd: float) -> np.ndarray:
    upper = np.triu(rng.normal(0, sd, (J, d, d)))
    return upper + np.triu(upper, 1).transpose(0, 2, 1)


def problem(J: int, d: int, seed: int = 1) -> tuple[NodeStatistics, Prior]:
    """Noisy statistics, one of them indefinite, and a prior whose mean is not 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (J, 30, d))
    x[0, :, -1] *= 0.01  # an eigenvalue of almost nothing
    S = x.transpose(0, 2, 1) @ x + symmetric(rng, J, d, 3.0)
    S[0, -1, -1] -= 3.0
    z, one, none = rng.normal(0, 20, (J, d)), np.ones(J), np.full(J, np.nan)
    root = rng.normal(size=(d, d))
    prior = Prior.default(d)._replace(m=rng.normal(size=d), C=root @ root.T + np.eye(d))
    return NodeStatistics(S, z, 30 * one, 9 * one, rng.uniform(1, 20, J), none, none), prior


def test_the_posterior_is_the_formulas_with_the_priors_mean() -> None:
    """Algorithm 3, with a dense inverse."""
    observed, prior = problem(4, 3)
    assert np.linalg.eigvalsh(observed.S).min() < 0
    sigma_y2 = 0.7
    precision, pull = np.linalg.inv(prior.C), np.linalg.solve(prior.C, prior.m)
    for j in range(4):
        values, vectors = np.linalg.eigh(observed.S[j])
        S = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
        middle = np.linalg.inv(sigma_y2 * S + observed.variance_z[j] * np.eye(3))
        precision, pull = precision + S @ middle @ S, pull + S @ middle @ observed.z[j]
    fitted = fixed_s_fast.posterior(observed, prior, sigma_y2)
    np.testing.assert_allclose(fitted.cov, np.linalg.inv(precision), rtol=1e-9)
    np.testing.assert_allclose(fitted.mean, np.linalg.solve(precision, pull), rtol=1e-9)
    assert float(fitted.residual_variance) == sigma_y2


def test_with_one_feature_it_is_bayes_rule_on_a_grid() -> None:
    S, z, v, sigma_y2 = np.array([40.0, 15.0, -2.0]), np.array([25.0, 3.0, 7.0]), np.array([30.0, 8.0, 5.0]), 0.5
    one, none = np.ones(3), np.full(3, np.nan)
    observed = NodeStatistics(S[:, None, None], z[:, None], 50 * one, 4 * one, v, none, none)
    prior = Prior.default(1)._replace(m=np.array([0.4]), C=np.array([[0.3]]))
    theta, kept = np.linspace(-3, 3, 20001), np.maximum(S, 0)
    log = -((theta - 0.4) ** 2) / 0.6
    for j in range(3):
        log -= (z[j] - kept[j] * theta) ** 2 / (2 * (sigma_y2 * kept[j] + v[j]))
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = (weight * theta).sum()
    fitted = fixed_s_fast.posterior(observed, prior, sigma_y2)
    assert fitted.mean[0] == pytest.approx(mean, abs=1e-6)
    assert fitted.cov[0, 0] == pytest.approx((weight * (theta - mean) ** 2).sum(), rel=1e-6)


def test_exact_statistics_give_the_conjugate_posterior() -> None:
    """No noise: (6) and (7) of any textbook, also where S is singular."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 3)) @ np.diag([1.0, 1.0, 0.0])
    y, zero, none = x @ [1.0, -1.0, 0.0] + rng.normal(size=50), np.zeros(1), np.full(1, np.nan)
    observed = NodeStatistics((x.T @ x)[None], (x.T @ y)[None], np.array([50.0]), zero, zero, none, none)
    prior = Prior.default(3)
    fitted = fixed_s_fast.posterior(observed, prior, 2.0)
    precision = np.linalg.inv(prior.C) + x.T @ x / 2
    np.testing.assert_allclose(fitted.cov, np.linalg.inv(precision), atol=1e-12)
    np.testing.assert_allclose(fitted.mean, np.linalg.solve(precision, x.T @ y / 2), atol=1e-12)


def test_a_third_of_the_bound_is_the_sd_and_in_the_code_the_variance() -> None:
    assert crude_sigma_y2(1.5) == 0.25
    assert crude_sigma_y2(1.5, as_published=True) == 0.5
    with pytest.raises(DataError, match="sigma_y2 is -1"):
        fixed_s_fast.posterior(*problem(1, 2), -1.0)


EPSILON, DELTA, X, Y = 3.0, 1e-4, 2.0, 1.5


def of_node(seed: int, **options: Any) -> tuple[Ridge, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (200, 3))
    S, z = x.T @ x, x.T @ (x @ [1.0, 0.0, -1.0])
    given = {"sensitivities": Sensitivities.add_or_remove(X, Y), "mu_of": mu_of, **options}
    return release(S, z, EPSILON, DELTA, np.random.default_rng(seed), **given), S, z


@pytest.mark.parametrize("published", [False, True])
def test_a_release_is_the_formulas(published: bool) -> None:
    """Appendix C.2, with the same random numbers."""
    found, S, z = of_node(3, published=published)
    if not published:
        sigma_S = sigma_z = math.sqrt(X**4 + X**2 * Y**2) / mu_of(2 * EPSILON / 3, 2 * DELTA / 3)
    else:
        sigma_S, sigma_z = X**2 / mu_of(EPSILON / 3, DELTA / 3), X * Y / mu_of(EPSILON / 3, DELTA / 3)
    assert (found.sigma_S, found.sigma_z) == pytest.approx((sigma_S, sigma_z))
    root, per_unit = math.sqrt(math.log(6 / DELTA)), X**2 / (EPSILON / 3)
    s, assumed = (root * per_unit,) * 2 if published else (X**2 / mu_of(EPSILON / 3, DELTA / 3), sigma_S)
    rng = np.random.default_rng(3)
    smallest = np.linalg.eigvalsh(S)[0] + s * rng.standard_normal()
    bound = max(smallest - root * s, 0)
    assert found.ridge == pytest.approx(max(0, math.sqrt(3 * math.log(2 * 9 / adassp.FAILURE)) * assumed - bound))
    np.testing.assert_array_equal(found.S, found.S.T)
    noise = np.triu(rng.standard_normal((3, 3)))
    np.testing.assert_allclose(np.triu(found.S - S), sigma_S * noise)
    np.testing.assert_allclose(found.z - z, sigma_z * rng.standard_normal(3))


def test_the_estimate_is_that_of_the_sums() -> None:
    """Equation (15)."""
    nodes = [of_node(seed)[0] for seed in (1, 2, 3)]
    S, z = sum(node.S for node in nodes), sum(node.z for node in nodes)
    ridge = sum(node.ridge for node in nodes)
    np.testing.assert_allclose(estimate(nodes), np.linalg.inv(S + ridge * np.eye(3)) @ z)


def cost(epsilon: float, sensitivity: float, sigma: float) -> mpmath.mpf:
    """δ at ε of a Gaussian release, exact (Balle and Wang 2018, theorem 8)."""
    with mpmath.workdps(40):
        mu = mpmath.mpf(sensitivity) / mpmath.mpf(sigma)
        loss = mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - loss / mu) - mpmath.exp(loss) * mpmath.ncdf(-mu / 2 - loss / mu)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (5.0, 1e-4), (10.0, 1e-5), (30.0, 1e-7)])
def test_the_exact_eigenvalue_costs_its_third_and_the_published_one_more(epsilon: float, delta: float) -> None:
    def eigenvalue_cost(published: bool) -> float:
        found = release(
            np.eye(2), np.ones(2), epsilon, delta, np.random.default_rng(1),
            sensitivities=Sensitivities.replacement(X, Y), mu_of=mu_of, published=published,
        )  # fmt: skip
        return float(cost(epsilon / 3, X**2, found.sigma_eigenvalue) / (delta / 3))

    assert eigenvalue_cost(False) == pytest.approx(1, rel=1e-6)
    assert (eigenvalue_cost(True) > 1) == (epsilon >= 1)
    if (epsilon, delta) == (10.0, 1e-5):
        assert eigenvalue_cost(True) * delta / 3 == pytest.approx(1.4e-4, rel=0.05)


def pairs(d: int, rng: np.random.Generator) -> np.ndarray:
    """Rows in the ball and targets in the interval, many of them at an end, shape (pairs, 2, d + 1)."""
    rows = rng.normal(size=(4000, 2, d + 1))
    norm = np.linalg.norm(rows[..., :d], axis=-1, keepdims=True)
    rows[..., :d] *= X / norm * np.where(rng.random((4000, 2, 1)) < 0.7, 1, rng.random((4000, 2, 1)))
    rows[..., d] = Y * rng.choice([-1, -0.5, 0, 0.5, 1], size=(4000, 2))
    return rows


def unique_distance(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far replacing one row by the other moves S (unique terms) and z, each squared."""
    d = rows.shape[-1] - 1
    x, y = rows[..., :d], rows[..., d:]
    S = x[..., :, None] * x[..., None, :]
    S, z = S[:, 0] - S[:, 1], (x * y)[:, 0] - (x * y)[:, 1]
    i, j = np.triu_indices(d)
    return (S[:, i, j] ** 2).sum(-1), (z**2).sum(-1)


def test_replacement_sensitivities_hold_and_are_attained() -> None:
    """Brute force over random pairs; the worst pair: orthogonal rows (S), one row and both signs of y (z)."""
    of = Sensitivities.replacement(X, Y)
    for d in (1, 2, 3):
        S, z = unique_distance(pairs(d, np.random.default_rng(d)))
        assert S.max() <= of.S**2 * (1 + 1e-9)
        assert z.max() <= of.z**2 * (1 + 1e-9)
        assert (S + z).max() <= of.both**2 * (1 + 1e-9)
    assert unique_distance(np.array([[[X, 0, 0], [0, X, 0]]]))[0][0] == pytest.approx(of.S**2)
    assert unique_distance(np.array([[[X, 0, Y], [X, 0, -Y]]]))[1][0] == pytest.approx(of.z**2)
    assert (S + z).max() > 0.9 * of.both**2


@pytest.mark.parametrize(("x", "y"), [(2.0, 1.5), (1.0, 1.0), (1.0, 1.4), (1.0, 2.0), (3.0, 20.0)])
def test_replacement_sensitivities_are_those_of_the_protocols_statistic(x: float, y: float) -> None:
    """On its grid of 2^-12."""
    bits = 2.0**12
    limits = RowLimits(0, (int(x * bits),) * 2, int(x * bits), int(y * bits), False)
    found = math.sqrt(regression_sensitivity(limits, (1, 1, 1)).l2_squared) / bits**2
    assert Sensitivities.replacement(x, y).both == pytest.approx(found, rel=2e-3)


def test_no_row_moves_the_smallest_eigenvalue_beyond_its_sensitivity() -> None:
    """Brute force: 3000 sums of up to 6 rows, one of them replaced, added or removed; and a sum that moves that far."""
    rng, furthest = np.random.default_rng(7), 0.0
    for d, n in itertools.product((1, 2, 3), range(1, 6)):
        x = rng.normal(size=(200, n + 1, d))
        x *= X * rng.choice([1.0, 1.0, 0.3], size=(200, n + 1, 1)) / np.linalg.norm(x, axis=-1, keepdims=True)
        S = np.swapaxes(x[:, :n], 1, 2) @ x[:, :n]
        outer = x[..., :, None] * x[..., None, :]
        replaced = S - outer[:, 0] + outer[:, n]
        smallest = [np.linalg.eigvalsh(A)[:, 0] for A in (S, replaced, S - outer[:, 0], S + outer[:, n])]
        furthest = max(furthest, *(np.abs(other - smallest[0]).max() for other in smallest[1:]))
    allowed = Sensitivities.replacement(X, Y).eigenvalue
    assert allowed == Sensitivities.add_or_remove(X, Y).eigenvalue == X**2
    assert 0.9 * allowed < furthest <= allowed * (1 + 1e-9)
    before, after = np.diag([0, 5 * X**2]), np.diag([X**2, 4 * X**2])  # a row of the second axis for one of the first
    assert np.linalg.eigvalsh(after)[0] - np.linalg.eigvalsh(before)[0] == allowed
