"""How time grows: log-log regression of a figure on N, d and M over the cells of a sweep.

    log t = log a + α log N + β log d + γ log M + error

by least squares, with Student's intervals for the exponents. They cover at their nominal rate if errors in the
logarithm are independent, normal and alike. A power is a summary and no law: fixed costs flatten it where sizes are
small, so exponents are those of the sizes measured. What predicts other sizes is the additive model (`calibration`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from emulator.scaling.held import Figures

SIZES = {"N": "clients", "d": "dimension", "M": "computes"}
FITTED = ("wall_s", "core_s")
CONFIDENCE = 0.95


class Exponent(msgspec.Struct, frozen=True):
    """An exponent and its interval at `CONFIDENCE`."""

    value: float
    interval: tuple[float, float]


class Growth(msgspec.Struct, frozen=True):
    """A fitted power law.

    Attributes:
        exponents: by symbol, of the sizes that vary. cells: how many were fitted.
        spread: standard deviation of the residuals of log t, so about the relative error.
    """

    exponents: dict[str, Exponent]
    cells: int
    spread: float


def growth(cells: Sequence[Figures], figure: str) -> Growth | None:
    """How `figure` of the cells grows with what varies among them; None where there are too few to tell."""
    varying = [symbol for symbol, key in SIZES.items() if len({getattr(cell, key) for cell in cells}) > 1]
    design = [np.ones(len(cells)), *(_logarithms(cells, SIZES[symbol]) for symbol in varying)]
    x, y = np.stack(design, axis=1), _logarithms(cells, figure)
    free = len(cells) - x.shape[1]
    if not varying or free < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    slopes, *_ = np.linalg.lstsq(x, y, rcond=None)
    variance = float(np.sum((y - x @ slopes) ** 2)) / free
    errors = np.sqrt(variance * np.diag(np.linalg.inv(x.T @ x)))
    reach = float(student.ppf((1 + CONFIDENCE) / 2, free)) * errors
    exponents = {
        symbol: Exponent(float(slope), (float(slope - half), float(slope + half)))
        for symbol, slope, half in zip(varying, slopes[1:], reach[1:], strict=True)
    }
    return Growth(exponents, len(cells), math.sqrt(variance))


def growths(cells: Sequence[Figures]) -> dict[str, Growth]:
    """`growth` of each of `FITTED`, over the cells without drop-outs; empty where there are too few."""
    plain = [cell for cell in cells if cell.drop_rate == 0]
    fits = {figure: growth(plain, figure) for figure in FITTED} if plain else {}
    return {figure: fit for figure, fit in fits.items() if fit is not None}


def _logarithms(cells: Sequence[Figures], key: str) -> NDArray[np.float64]:
    return np.log(np.array([getattr(cell, key) for cell in cells], dtype=np.float64))
