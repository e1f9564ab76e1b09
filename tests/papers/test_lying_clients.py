"""`scripts/compare_robustness.py`: errors beside what can be computed in other ways.

Each simulated error is compared with theory at five standard errors, by a fixed seed: a false alarm is impossible once
the test has passed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from compare_robustness import SYSTEMS, Setting, cell, grouped, refused_beyond, verified, verified_grid, verified_sd
from dca_proto.plausibility import REFUSED
from dca_proto.privacy.accounting import delta_of
from dca_proto.privacy.verified import TAU, release_cost

SETTING = Setting(400, 20, 3, 1.0, 1e-5)


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name not in ("no check", "random groups, median")])
@pytest.mark.parametrize("liars", [0, 7])
def test_errors_are_what_theory_says(system: str, liars: int) -> None:
    found = cell(system, SETTING, liars, 300, 1)
    assert found.rmse is not None
    assert found.expected is not None
    assert abs(found.rmse - found.expected) < 5 * found.error
    assert found.error < 0.05 * found.rmse


def test_without_a_check_one_liar_is_enough() -> None:
    assert cell("no check", SETTING, 1, 10, 1).rmse is None
    assert cell("no check", SETTING, 0, 300, 1).rmse == pytest.approx(SETTING.sd / SETTING.trusted_sd, rel=0.2)


def test_a_median_of_groups_holds_while_most_groups_are_honest() -> None:
    rng = np.random.default_rng(1)
    few, many = (np.sqrt(np.mean(grouped(SETTING, liars, 300, rng) ** 2)) for liars in (2, 20))
    assert few / SETTING.trusted_sd < 10
    assert many / SETTING.trusted_sd > 50


def test_all_systems_are_equally_private() -> None:
    """The noise of a trusted party, and the grid of a verified sum: the largest at which it is private."""
    assert delta_of(1.0, 1 / SETTING.trusted_sd) == pytest.approx(1e-5, rel=1e-6)
    size = verified_grid(SETTING)
    for grid, fits in ((size, True), (size + 1, False)):
        cost = release_cost(grid, 1, SETTING.honest, 1, 6)
        assert (delta_of(1.0, cost.mu) + (1 + math.e) * TAU <= 1e-5) is fits
    assert verified_sd(SETTING) / SETTING.sd == pytest.approx(1.04, abs=0.02), "κ and rounding"


def test_liars_stay_below_what_is_refused() -> None:
    limit = 400 + math.sqrt(2 * math.log(3 / REFUSED)) * SETTING.sd
    assert refused_beyond(400, SETTING.sd) == pytest.approx(limit - 2.33 * SETTING.sd)


def test_noise_bits_of_liars_do_not_shift_a_verified_sum() -> None:
    """All of them send the largest noise there is, before the coins: the mean error is that of their lie alone."""
    errors = verified(SETTING, 20, 400, np.random.default_rng(3))
    assert abs(errors.mean() - 20 / 2) < 5 * errors.std() / math.sqrt(400)
