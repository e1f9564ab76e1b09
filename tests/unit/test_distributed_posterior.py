"""What a posterior of distributed regression says of itself: moments, intervals, predictions, names, and warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.draws import mixing
from inference.errors import DataError
from inference.models.linear.closed_form import Posterior
from inference.models.linear.nodes.posterior import DistributedPosterior

pytest.importorskip("arviz")

NAMES = ("age", "bmi")
MEAN, COV = np.array([1.0, -2.0]), np.array([[0.5, 0.2], [0.2, 0.4]])
GAUSSIAN = Posterior(MEAN, COV, np.array(0.25))


def posterior(seed: int = 1, chains: int = 4, draws: int = 500, **changes: Any) -> DistributedPosterior:
    """Independent draws of that Gaussian, as if a sampler had made them."""
    rng = np.random.default_rng(seed)
    theta, sigma_y2 = GAUSSIAN.draws(rng, chains, draws), 5 / rng.gamma(21, size=(chains, draws))
    given = {"method": "normal-x", "draws": {"theta": theta, "sigma_y2": sigma_y2}, "names": NAMES, **changes}
    return DistributedPosterior(**given)


def test_moments_and_intervals_are_those_of_the_draws() -> None:
    """2000 independent draws: means within 5 standard errors, false alarm 1e-6; quantiles within 0.1."""
    found = posterior()
    np.testing.assert_allclose(found.mean, MEAN, atol=5 * np.sqrt(0.5 / 2000))
    np.testing.assert_allclose(found.cov, COV, atol=0.1)
    np.testing.assert_array_equal(found.sd, np.sqrt(np.diag(found.cov)))
    np.testing.assert_allclose(found.intervals(0.8), np.quantile(found.theta, [0.1, 0.9], axis=(0, 1)).T)
    assert found.intervals().shape == (2, 2)
    with pytest.raises(DataError, match="level of an interval is 95"):
        found.intervals(95)


def test_in_closed_form_everything_is_exact_and_nothing_is_diagnosed() -> None:
    found = posterior(gaussian=GAUSSIAN)
    assert (found.mean is MEAN, found.cov is COV) == (True, True)
    half = 1.95996 * np.sqrt([0.5, 0.4])
    np.testing.assert_allclose(found.intervals(0.95), np.column_stack([MEAN - half, MEAN + half]), rtol=1e-5)
    assert found.mixing == []
    assert found.warnings == []


def test_predictions_have_the_residual_and_the_coefficients_spread() -> None:
    """Draws: 4000 of them, so a mean within 5 standard errors and a variance within a tenth (false alarm 1e-5)."""
    found, X = posterior(draws=1000), np.array([[1.0, 0.0], [2.0, -1.0]])
    mean, sd = found.predict(X)
    np.testing.assert_allclose(mean, X @ found.mean)
    expected = found.draws["sigma_y2"].mean() + np.einsum("ki,ij,kj->k", X, found.cov, X)
    np.testing.assert_allclose(sd**2, expected)
    drawn = found.predictive_draws(X, np.random.default_rng(2))
    assert drawn.shape == (4, 1000, 2)
    np.testing.assert_allclose(drawn.mean((0, 1)), mean, atol=5 * sd.max() / 4000**0.5)
    np.testing.assert_allclose(drawn.var((0, 1)), sd**2, rtol=0.15)


def test_mixed_chains_give_no_warning() -> None:
    found = posterior(acceptance={"S": np.full(4, 0.2)}, divergences=np.zeros(4, int))
    assert [one.label for one in found.mixing] == ["theta[age]", "theta[bmi]", "sigma_y2"]
    assert found.warnings == []


def test_unmixed_chains_are_said_to_be_so() -> None:
    stuck = posterior()
    stuck.draws["theta"][2, :, 1] += 3  # type: ignore[index]
    apart, few = stuck.warnings
    assert apart.startswith("chains have not mixed: R-hat of theta[bmi] is 1.")
    assert apart.endswith("expected at most 1.01; take a longer warm-up and more draws, or another method")
    assert few.startswith("few effective draws: theta[bmi] has ")
    short = posterior(draws=50).warnings[-1]
    assert short.startswith("few effective draws: ")
    assert "the worst of 3, expected at least 400" in short
    assert posterior(draws=3).warnings == [
        "too few draws to say whether the chains have mixed; take at least 4 of each chain, better 1000"
    ]


def test_chains_that_stand_still_or_fail_are_named() -> None:
    found = posterior(acceptance={"S": np.array([0.2, 0.001, 0.2, 0.004])}, divergences=np.array([0, 3, 0, 4]))
    still, failed = found.warnings
    assert still.startswith("chain 2, 4 hardly moved: it accepted 0.1 % of the moves of S")
    assert failed.startswith("7 iterations failed numerically")


def test_draws_that_are_no_numbers_are_refused() -> None:
    draws = dict(posterior().draws)
    draws["theta"][1, 6, 0] = np.nan
    with pytest.raises(DataError, match="draw 7 of theta in chain 2 is not finite"):
        DistributedPosterior("normal-x", draws, NAMES)


def test_inference_data_has_names_warm_up_and_the_chains_figures(tmp_path: Path) -> None:
    import xarray

    warm = posterior(seed=2, draws=20)
    found = posterior(
        warmup=warm.draws, acceptance={"S": np.full(4, 0.2)}, divergences=np.zeros(4, int), attrs={"nodes": 5}
    )
    found.inference_data().to_netcdf(str(path := tmp_path / "draws.nc"))
    read = {
        group: xarray.open_dataset(path, group=group, engine="h5netcdf")
        for group in ("posterior", "warmup_posterior", "sample_stats")
    }
    assert list(read["posterior"]["coefficient"].values) == list(NAMES)
    np.testing.assert_array_equal(read["posterior"]["theta"].values, found.theta)
    np.testing.assert_array_equal(read["warmup_posterior"]["sigma_y2"].values, warm.draws["sigma_y2"])
    assert read["sample_stats"]["acceptance_S"].dims == ("chain",)
    assert read["sample_stats"]["divergences"].values.tolist() == [0] * 4
    assert (read["posterior"].attrs["method"], read["posterior"].attrs["nodes"]) == ("normal-x", 5)
    for dataset in read.values():
        dataset.close()
    groups = replace(found, warmup={}, acceptance={}, divergences=None).inference_data()
    assert list(groups) == ["posterior"]


def test_mixing_sees_what_it_should() -> None:
    """An AR(1) chain with correlation 0.9 has 1/19 of its draws effective: 4 x 4000 -> 842, within 40 %."""
    rng = np.random.default_rng(3)
    chain = np.zeros((4, 4000))
    for t in range(1, 4000):
        chain[:, t] = 0.9 * chain[:, t - 1] + rng.normal(size=4)
    [found] = mixing({"x": chain}, {})
    assert 500 < found.bulk < 1200
    assert found.r_hat < 1.02
