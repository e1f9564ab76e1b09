"""Exponents of growth, and that their intervals cover as often as they say."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from emulator.scaling.costs import growth, growths
from emulator.scaling.figures import Figures

SIZES = list(itertools.product((100, 1000, 10_000), (10, 100, 1000), (10,)))


def power(n: float = 1.0, d: float = 0.5, m: float = 0.0, *, noise: Any = None) -> list[Figures]:
    factors = np.ones(len(SIZES)) if noise is None else np.exp(noise)
    return [
        Figures(
            clients=size[0],
            dimension=size[1],
            computes=size[2],
            wall_s=3e-4 * size[0] ** n * size[1] ** d * size[2] ** m * factor,
            core_s=1.0 + size[0],
        )
        for size, factor in zip(SIZES, factors, strict=True)
    ]


def test_exponents_of_a_power_are_found_exactly() -> None:
    fit = growth(power(0.9, 0.4), "wall_s")
    assert fit is not None
    assert {symbol: one.value for symbol, one in fit.exponents.items()} == pytest.approx({"N": 0.9, "d": 0.4})
    assert fit.spread < 1e-9
    assert fit.cells == 9


def test_what_does_not_vary_has_no_exponent_and_too_few_cells_have_no_fit() -> None:
    cells = power()
    assert growth(cells[:3], "wall_s") is not None  # N and M are fixed: two parameters, three cells
    assert growth(cells[:2], "wall_s") is None
    assert growth(cells[:1], "wall_s") is None
    along = [cells[0], cells[4], cells[8]]  # N and d grow together: nothing tells them apart
    assert growth(along, "wall_s") is None


def test_cells_with_drop_outs_are_not_fitted() -> None:
    cells = power()
    dropped = [msgspec.structs.replace(one, drop_rate=0.1, wall_s=100.0) for one in cells]
    assert growths([*cells, *dropped])["wall_s"].exponents["N"].value == pytest.approx(1.0)
    assert growths(dropped) == {}


def test_intervals_cover_the_truth_at_their_nominal_rate() -> None:
    """Of 400 seeded sweeps with 20 % normal errors the 95 % interval of N's exponent covers it 361 to 396 times.

    The count is binomial with mean 380; outside that range it lies with probability 6e-5 if intervals are exact.
    """
    rng = np.random.default_rng(20261121)
    covered = 0
    for _ in range(400):
        fit = growth(power(noise=rng.normal(0, 0.2, len(SIZES))), "wall_s")
        assert fit is not None
        low, high = fit.exponents["N"].interval
        covered += low <= 1.0 <= high
    assert 361 <= covered <= 396
