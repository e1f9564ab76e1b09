"""How much was learned: contraction of normal and of heavy-tailed posteriors, and the words for it."""

from __future__ import annotations

import numpy as np
import pytest

from inference.bounds import Interval
from inference.contraction import about_contraction, contraction, of_draws, percent
from inference.jobs.estimates import contraction_words
from inference.mcmc.sums import NoisySums
from inference.models.conjugate import family
from inference.models.conjugate.family import posterior_of
from inference.models.linear.baselines import exact_fit
from inference.variational.mean_field_job import least_variance

BOUNDS = {"gaussian": (0, 10), "bernoulli": (0, 1), "categorical": (0, 3), "poisson": (0, 9), "exponential": (0, 9)}


def test_is_the_weight_of_the_data_in_a_normal_posterior_mean() -> None:
    prior_variance, noise_variance, seen = 4.0, 1.5, 10.0
    variance = 1 / (1 / prior_variance + 1 / noise_variance)
    mean = variance * seen / noise_variance  # Bayes' rule about a prior mean of 0
    assert contraction(np.sqrt(variance), np.sqrt(prior_variance)) == pytest.approx(mean / seen)


def test_limits() -> None:
    found = contraction([0.0, 1.0, 2.0, 1.0, 1.0, np.nan], [1.0, 1.0, 1.0, np.inf, 0.0, 1.0])
    assert found[:4] == pytest.approx([1.0, 0.0, -3.0, 1.0])
    assert np.isnan(found[4:]).all()


def test_of_draws_is_that_of_the_law_also_where_the_prior_has_no_variance() -> None:
    rng = np.random.default_rng(1)
    normal = of_draws(0.5 * rng.standard_normal((4, 5000, 2)), rng.standard_normal((20_000, 2)))
    assert normal == pytest.approx([0.75, 0.75], abs=0.03)  # 7 standard errors
    cauchy = of_draws(0.5 * rng.standard_cauchy((4, 5000)), rng.standard_cauchy(20_000))
    assert float(cauchy) == pytest.approx(0.75, abs=0.1)  # 7 standard errors


def test_only_estimates_near_the_prior_give_a_warning() -> None:
    assert about_contraction(["a", "b", "c"], [0.9, 0.5, None]) == []
    assert about_contraction([], []) == []
    nothing = about_contraction(["a", "b"], [0.03, -0.02])
    assert len(nothing) == 1
    assert "nothing was learned" in nothing[0]
    assert "3 % at most" in nothing[0]
    hardly, weak = about_contraction(["a", "b", "c"], [0.03, 0.3, 0.9])
    assert "of a:" in hardly
    assert "nearly the prior" in hardly
    assert "in b:" in weak


def test_of_a_linear_fit_is_in_the_users_units_and_whole_for_a_flat_prior() -> None:
    rows = np.random.default_rng(2).normal([5.0, -2.0, 1.0], [3.0, 0.1, 2.0], (200, 3))
    proper, flat = (exact_fit(rows, precision) for precision in ([0.0, 4.0, 4.0], 0.0))
    slope = proper.columns.scale[-1] / proper.columns.scale[:-1]
    assert proper.priors is not None
    assert proper.contraction is not None
    prior_sd = proper.priors[1]
    assert prior_sd[1:] == pytest.approx(slope / 2)
    assert prior_sd[0] == np.inf
    assert proper.contraction == pytest.approx([1.0, *(1 - (proper.coefficient_sd / (slope / 2)) ** 2)])
    assert flat.contraction == pytest.approx(np.ones(3))


def test_of_families_is_nothing_where_noise_hides_all() -> None:
    for name, bounds in BOUNDS.items():
        model = family(name, "x", Interval(*bounds))
        value = model.exact(np.random.default_rng(3).integers(0, 2, 500).astype(float)).value
        drowned = NoisySums(value, np.full(value.shape, 1e12), 500)
        result = posterior_of(model, drowned, rng=np.random.default_rng(4), draws=5000)
        before = model.prior_quantiles(np.array([0.025, 0.975]), 500)
        for number, (low, high) in result.quantile([0.025, 0.975]).items():
            # Of the heaviest prior, a variance whose scale is open, the width is known to a tenth (one standard error).
            spread = np.ptp(before[number], axis=0)
            assert contraction(high - low, spread) == pytest.approx(np.zeros_like(spread), abs=0.4), (name, number)


def test_terminals_name_each_contraction_and_of_many_the_extremes() -> None:
    rows = [{"name": f"x{j}", "contraction": j / 10} for j in range(9)]
    assert contraction_words(rows[7:]) == "70 % of x7, 80 % of x8 (0 % is the prior)"
    assert contraction_words(rows) == "0 % (x0) to 80 % (x8) (0 % is the prior)"
    assert contraction_words([{"name": "a", "contraction": None}]) == ""


def test_iterates_that_noise_keeps_near_their_start_do_not_look_certain() -> None:
    """With noise far above the gradients the prior is left, whatever the iterates' own spread is."""
    assert least_variance(500 * 0.25, [1e6] * 50, 0.2) == pytest.approx(5.0, rel=1e-4)
    assert least_variance(500 * 0.25, [125.0] * 10, 0.2) == pytest.approx(1 / 10.2)  # each sum of variance 1


@pytest.mark.parametrize(
    ("part", "text"),
    [(1.0, "100 %"), (0.994, "99 %"), (0.995, "99.5 %"), (0.99996, "99.996 %"), (1 - 1e-9, "99.9999 %"), (0.5, "50 %"),
     (0.004, "0 %"), (-0.002, "0 %"), (-0.3, "-30 %")],
)  # fmt: skip
def test_a_part_below_1_is_never_printed_as_100_percent(part: float, text: str) -> None:
    assert percent(part) == text
