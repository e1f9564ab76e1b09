"""The reference, against integration, against sampling by other libraries, by hand, and beside the product."""

from __future__ import annotations

import itertools
import subprocess
import sys
from math import sqrt
from pathlib import Path

import mpmath
import numpy as np
import pytest

import emulator
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.local.additive import GridLaplace
from dca_proto.privacy.local.categorical import RandomisedResponse, UnaryEncoding
from dca_proto.statistics import Sensitivity, resolve
from dca_proto.statistics.contribution import contribution
from emulator import reference

POINTS = list(itertools.product((0.1, 1.0, 4.0, 20.0), (1e-9, 1e-6, 1e-2)))


@pytest.mark.parametrize(("epsilon", "delta"), POINTS)
def test_mu_is_the_largest_that_is_private(epsilon: float, delta: float) -> None:
    """δ(ε; μ) of two normal laws μ apart, in 40 digits."""
    mu = reference.mu_of(epsilon, delta)
    with mpmath.workdps(40):

        def exact(at: float) -> mpmath.mpf:
            e, m = mpmath.mpf(epsilon), mpmath.mpf(at)
            return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)

        assert exact(mu * (1 - 1e-7)) < delta < exact(mu * (1 + 1e-7))
    assert reference.epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


def test_sensitivities_are_the_largest_distances_of_corners() -> None:
    bounds = [1.0, 0.5, 2.0]
    corners = np.array(list(itertools.product(*[(-b, 0.0, b) for b in bounds])))
    for statistic, values in {"sum": corners, "second-moments": corners**2}.items():
        apart = values[:, None] - values[None]
        l1, l2 = reference.sensitivity(statistic, bounds, rows=3)
        assert l1 == pytest.approx(3 * np.abs(apart).sum(-1).max())
        assert l2 == pytest.approx(3 * np.linalg.norm(apart, axis=-1).max())
    assert reference.sensitivity("histogram", [1.0] * 5) == (2.0, sqrt(2))
    assert reference.sensitivity("histogram", [1.0]) == (1.0, 1.0)


def test_a_rounded_mean_moves_by_one_unit_more_at_each_coordinate() -> None:
    """Means of 0 and of 1 grid unit over three rows: 1/2 is rounded up, and so is what is nearly there."""
    bins = {"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}
    assert reference.grid_sensitivity("histogram", bins, 0, 4) == (2 * 16 + 3, sqrt(2) * 16 + sqrt(3))
    assert reference.grid_sensitivity("histogram", bins, 3, 4) == pytest.approx((3 * 2 * 16, 3 * sqrt(2) * 16))
    assert reference.grid_sensitivity("histogram", bins, 3, 4, of_row=True) == pytest.approx((2 * 16, sqrt(2) * 16))
    column = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
    rows = np.linspace(-1, 1, 9)[:, None]
    means = [reference.contribution("mean", column, (a, b, c), 0, 1)[0] for a in rows for b in rows for c in rows]
    assert max(means) - min(means) <= reference.grid_sensitivity("mean", column, 0, 1)[0]


def test_contributions_are_worked_out_by_hand() -> None:
    """Rows of 0.3 and of a missing value on a grid of 1/4: 0.3 is nearest to 1; ties go to the even integer."""
    columns = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
    rows = [[0.3], [float("nan")], [0.625], [7.0], [-7.0]]
    expected = {("sum", 3): [1 + 0 + 2], ("sum", 4): [1 + 0 + 2 + 4], ("mean", 0): [(2 * 3 + 5) // 10]}
    for (statistic, rows_max), value in expected.items():
        assert reference.contribution(statistic, columns, rows, rows_max, 2) == value
    assert reference.contribution("second-moments", columns, rows, 4, 4) == [1 + 0 + 4 + 16], "on a grid of 1/4"
    bins = {"columns": ["x"], "edges": [-1.0, 0.0, 1.0]}
    assert reference.contribution("histogram", bins, rows, 5, 2) == [4, 12], "what lies outside counts in the nearest"
    assert reference.contribution("sum", columns, [], 3, 2) == [0]
    assert [reference.centred(word) for word in (5, 2**63, 2**64 - 1)] == [5, -(2**63), -1]


def test_the_product_contributes_the_same_and_its_ledger_comes_to_the_same() -> None:
    generator = np.random.default_rng(3)
    ones = [1.0, 1.0]
    columns = {"columns": ["x", "y"], "centre": [0.1, -0.2], "scale": [0.7, 2.0], "bound": ones}
    bins = {"columns": ["x"], "edges": [-1.0, -0.5, 0.0, 1.0]}
    for name, parameters in {"sum": columns, "second-moments": columns, "histogram": bins}.items():
        statistic = resolve(name, parameters)
        for count, rows_max in itertools.product((0, 1, 2, 5), (0, 1, 3)):
            rows = generator.uniform(-2, 2, (count, len(statistic.columns)))
            rows[generator.random(rows.shape) < 0.2] = np.nan
            found = contribution(statistic, rows, rows_max, 16)
            assert found.tolist() == reference.contribution(name, parameters, rows.tolist(), rows_max, 16)
    spent = total([PrivacyCost.of_mu(0.3, 1e-9), PrivacyCost.of_mu(0.4, 2e-9), PrivacyCost.of_pure(1.0)])
    composed = reference.composed([(0.3, 1.0, 1e-6, 1e-9), (0.4, 1.0, 1e-6, 2e-9), (0.0, 1.0, 0.0, 0.0)])
    assert composed == pytest.approx((spent.gaussian, spent.pure, spent.converted, spent.slack))
    for epsilon, kept in itertools.product((0.9, 1.5, 3.0, 8.0), (0.0, 0.5, 1.0)):
        if kept < epsilon:
            assert reference.is_within(composed, epsilon, 1e-5, kept) == spent.within(epsilon, 1e-5, kept)


def test_reports_have_the_noise_of_their_mechanisms() -> None:
    for k, epsilon in itertools.product((2, 5), (0.5, 2.0)):
        for mechanism in (RandomisedResponse(epsilon, k), UnaryEncoding(epsilon, k)):
            odds = reference.odds(mechanism.name, epsilon, k)
            assert odds == pytest.approx((*map(float, mechanism.probabilities), mechanism.stray_of_missing))
            found = reference.report_variance(mechanism.name, epsilon, 0.0, (1.0, 1.0), k)
            assert found == pytest.approx(mechanism.variance_in_sum(1.0))
    laplace = GridLaplace(0.5, Sensitivity(l1=64, l2_squared=64**2, bound=64))
    assert reference.report_variance("grid-laplace", 0.5, 0.0, (64, 64), 0) == pytest.approx(laplace.noise_variance)


def test_it_imports_nothing_of_the_product() -> None:
    path = Path(emulator.__file__).with_name("reference.py")
    own = "[name for name in sys.modules if name.partition('.')[0] in ('dca_proto', 'emulator', 'inference')]"
    code = f"import runpy, sys; runpy.run_path({str(path)!r}); print({own})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
