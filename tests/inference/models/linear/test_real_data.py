"""How `scripts/check_real_data.py` judges fits of real data, and bike sharing, where one column is rarely 1."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import check_real_data as long_form
from inference.locate import HIDDEN
from real_data import folder_of, is_there

NAMES = ("intercept", "age", "bmi")


def fits(*, missed: int = 0, named: bool = False, error: float = 1.1, hidden: bool = False) -> list[dict[str, Any]]:
    """Ten fits, of which some miss the coefficient of bmi."""
    errors = {long_form.OURS: error, long_form.MEAN: 1.5, long_form.ADASSP: 1.3, long_form.LESS: 1.2}
    return [
        {"holds": [True, True, place >= missed], "named": [False, False, named], "hidden": hidden, "errors": errors}
        for place in range(10)
    ]


def failed(*groups: list[dict[str, Any]]) -> list[str]:
    figures = [long_form.reliability_of("wine-red", 1.0, NAMES, group) for group in groups]
    return [check.name for check in long_form.judged(figures) if not check.holds]


def test_a_miss_counts_unless_a_warning_names_its_coefficient() -> None:
    assert not failed(fits(missed=3))
    assert not failed(fits(missed=10, named=True))
    assert failed(fits(missed=4)) == ["intervals that miss, and no warning names the coefficient"]
    assert "the same of the worst coefficient" in failed(fits(), fits(missed=5))


def test_an_error_above_the_means_counts_unless_noise_hides_where_columns_lie() -> None:
    assert "median error over adaSSP's" in failed(fits(error=1.4))
    worse = "fits worse than the mean, without a warning"
    assert worse in failed(fits(error=1.6))
    assert worse not in failed(fits(error=1.6, hidden=True))
    assert "median error over the mean's" in failed(fits(error=1.6, hidden=True))


def test_warnings_name_coefficients() -> None:
    np.testing.assert_array_equal(long_form.named(["noise hides how much bmi varies"], NAMES), [False, False, True])
    np.testing.assert_array_equal(long_form.named([HIDDEN + " age, bp and 7 more lie"], NAMES), [True, True, True])
    np.testing.assert_array_equal(long_form.named([], NAMES), [False, False, False])


@pytest.mark.long
@pytest.mark.skipif(not is_there("bike", folder_of(None)), reason="hour.csv is not in the folder that DCA_DATA names")
def test_bike_sharing_is_never_worse_than_the_mean() -> None:
    """Ten splits at ε = 0.3, at which noise hides `holiday`: RMSE over least squares at most 1.1, the mean's is 1.28.

    With a scale of `holiday` that was ten times too small, three of ten were worse than the mean.
    """
    for seed in range(10):
        found = long_form.fit_of(long_form.Cell("bike", seed), 0.3, folder_of(None))
        assert found["errors"][long_form.OURS] < 1.1


@pytest.mark.long
@pytest.mark.skipif(not is_there("adult-few", folder_of(None)), reason="DCA_DATA names no folder with adult.data")
def test_a_curved_relation_is_covered_or_named() -> None:
    """Age and hours of work in 8,000 rows of Adult, six fits: the slopes were 1.1 to 1.3 times the one of all rows.

    None of 80 fits of the first release had a warning, and a third of these intervals held. The noise alone leaves at
    most one miss of 24 with a probability of 0.66, and at most five with 0.998.
    """
    cells = product((1.0, 2.0, 4.0), range(2))
    found = [long_form.fit_of(long_form.Cell("adult-few", seed), epsilon, folder_of(None)) for epsilon, seed in cells]
    holds, named = (np.array([one[key] for one in found]) for key in ("holds", "named"))
    slopes = slice(1, None)
    assert (~holds & ~named)[:, slopes].sum() <= 5
    assert (holds | named)[:, 1].all()
    assert named[:, 1].all()
