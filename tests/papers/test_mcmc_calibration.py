"""What the calibration of distributed regression asks for: which cells it judges, and that each check can fail."""

from __future__ import annotations

from argparse import ArgumentTypeError

import numpy as np
import pytest

from papers.mcmc2023 import calibration, fits
from papers.mcmc2023.calibration import JUDGED, NORMAL, NORMAL_X, Calibration, Cell, Coverage
from papers.mcmc2023.paper import ADASSP, METHODS
from papers.mcmc2023.simulated import Figure4

COUNT = 400


def figures(cell: Cell, *, wrong: bool = False, mixed: float = 1.0, clipped: float = 0.0) -> Coverage:
    """Of truths at even places among the draws, or all in the middle of them."""
    names = 4 if cell.method == NORMAL else 3
    places = np.full(COUNT, 0.5) if wrong else (np.arange(COUNT) + 0.5) / COUNT
    result = {
        "places": np.tile(places[:, None], names).tolist(),
        "mixed": [1.0] * (names - 1) + [mixed],
        "clipped": clipped,
    }
    return Calibration().gather([cell], [result])[0]


def test_every_method_but_adassp_is_calibrated_and_both_exact_samplers_are_judged() -> None:
    assert set(calibration.METHODS) == {calibration.NORMAL, *METHODS} - {ADASSP}
    for cell in (Cell(method, 2.0, False) for method in JUDGED):
        assert len(figures(cell).covered) == len(calibration.prior(cell.method == NORMAL).m) + 1


@pytest.mark.parametrize("method", JUDGED)
@pytest.mark.parametrize(
    ("planted", "failing"),
    [
        ({}, ()),
        ({"wrong": True}, ("coverage of {}, no conflict",)),
        ({"mixed": 0.8}, ("chains of {} have mixed, no conflict",)),
        ({"clipped": 0.01}, ("rows that the bounds change",)),
    ],
)
def test_each_check_bites(method: str, planted: dict[str, float], failing: tuple[str, ...]) -> None:
    other = NORMAL if method == NORMAL_X else NORMAL_X
    found = [figures(Cell(other, 2.0, False)), figures(Cell(method, 2.0, False), **planted)]
    found.append(figures(Cell(method, 2.0, True), wrong=True, mixed=0.1))  # in conflict nothing is sampled
    assert [one.name for one in Calibration().checks(found) if not one.holds] == [
        name.format(method) for name in failing
    ]


def test_data_sets_with_an_intercept_have_missing_rows_and_a_mean() -> None:
    """Noise of 46 in m: 2000 rows less 5 % on average over five nodes, by its prior's spread of 100 rows each."""
    truths = calibration.data_sets(8.0, False, False, True, 4, 1)
    rows = np.array([one.S[:, 0, 0] for one in truths.observed]) / calibration.CONSTANT**2
    assert 1700 < rows.mean() < 1990
    assert truths.values.shape == (4, 4)
    assert {float(one.constant) for one in truths.observed} == {calibration.CONSTANT}
    plain = calibration.data_sets(8.0, False, False, False, 1, 1)
    assert (plain.values.shape, float(plain.observed[0].constant)) == ((1, 3), 0.0)


def test_complete_rows_are_drawn_from_their_prior() -> None:
    """Of 20,000 draws: the share without a missing row within 5 standard errors of 1 - exp(-1/(100 · 0.2)), 4.9 %."""
    drawn = calibration.complete_rows(np.random.default_rng(1), 100, 3, 0.2, 20_000)
    assert 3 <= drawn.min() <= drawn.max() == 100
    expected = (1 - np.exp(-1 / 20)) / (1 - np.exp(-98 / 20))
    assert np.mean(drawn == 100) == pytest.approx(expected, abs=5 * (expected / 20_000) ** 0.5)


def test_chains_are_long_enough_for_the_claims_about_them() -> None:
    assert fits.enough_iterations("8") == 8
    with pytest.raises(ArgumentTypeError, match="7 is below 8, of which half are warm-up"):
        fits.enough_iterations("7")
    assert set(Figure4(iterations=8, bernstein_sheldon=8).lengths().values()) == {8, 0}
    assert Figure4().lengths()["MCMC-B&S"] == Figure4().iterations
    half = fits.ITERATIONS_LEAST // 2
    assert np.isfinite(fits.split_rhat(np.random.default_rng(2).standard_normal((1, 1, half, 2)))).all()
