"""The reference of noise amounts, against integration and against sampling by other libraries."""

from __future__ import annotations

import itertools
import subprocess
import sys
from math import sqrt
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import stats

import emulator
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


def test_the_alarms_are_no_likelier_than_they_say_and_ring_for_a_quarter() -> None:
    """How likely each alarm is under a sound mechanism, exactly; a hundred draws of a quarter of the variance ring."""
    for count in (1, 10, 100, 1000):
        parts = np.linspace(0.01, 0.999, 400)
        rings = [part for part in parts if reference.too_little(part * count, count)]
        if rings:
            assert stats.chi2.cdf(max(rings) * count, count) <= reference.ALARM
        rings = [part for part in parts if reference.too_little(part * count, count, half=False)]
        if rings:
            assert stats.gamma.cdf(max(rings) * count, count) <= reference.ALARM
        hits = [hit for hit in range(count + 1) if reference.unlikely(hit, count, 0.3, above=True)]
        if hits:
            assert stats.binom.sf(min(hits) - 1, count, 0.3) <= reference.ALARM
    assert reference.too_little(0.25 * 100, 100)
    assert not reference.too_little(1.0 * 100, 100)


def test_it_imports_nothing_of_the_product() -> None:
    path = Path(emulator.__file__).with_name("reference.py")
    own = "[name for name in sys.modules if name.partition('.')[0] in ('dca_proto', 'emulator', 'inference')]"
    code = f"import runpy, sys; runpy.run_path({str(path)!r}); print({own})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"
