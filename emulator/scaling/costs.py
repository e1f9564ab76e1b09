"""Fits how rounds grow: exponents, and the cost of one client, one pair and one coordinate.

*Exponents* are a summary: log t = log a + α log N + β log d + γ log M + error, by least squares, with Student's
intervals. These cover at their nominal rate if errors in the logarithm are independent, normal and of equal variance.
Fixed costs lower the exponents of small sizes, so exponents are valid for the measured sizes only.

*Costs* predict other sizes. A figure of a round (core seconds of a role, its bytes, its memory) is a sum of few terms.
Each term is a count times the cost of one:

    1       a round                 N       a client                    M       a Compute node
    d       a coordinate, once      N M     a client and a node         M2      M², two nodes
    N d     a coordinate of a client's vector: noise, statistic, sealing, summing
    N M d   a coordinate of a mask, drawn by the client and again by the node
    M d     a coordinate of a partial sum
    N d/M   a coordinate of a masked vector, which one of M nodes keeps

Costs are not negative. They are fitted by least squares on relative errors, so that small rounds count as much as large
ones: minimise Σ (predicted/measured - 1)² (Lawson and Hanson's algorithm, scipy). Intervals come from a bootstrap of
the relative residuals. They reflect the uncertainty of the costs, not whether the sum has the right terms.

One fifth of the cells, those with the largest N·d (ties: the largest N·M), are first held out and predicted. Their
errors are reported with every prediction. The final fit uses all cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import t as student

from dca_proto.errors import UsageError
from dca_proto.results.figure import about
from emulator.scaling.cell import EMULATED, Size
from emulator.scaling.figures import COUNTED, Figures

SIZES = {"N": "clients", "d": "dimension", "M": "computes"}
FITTED = ("wall_s", "core_s")
CONFIDENCE = 0.95
CELLS_MIN = 6
HELD_OUT_SHARE = 0.2
ERROR_MAX = 0.25
"""The largest error on held-out cells that a prediction may have without a warning."""
_DRAWS, _SEED = 200, 1
_LEAST = 0.05  # lower bound of a resampled figure, relative to the fit: a measured figure is positive
Floats = NDArray[np.float64]


class Ranged(msgspec.Struct, frozen=True):
    """An exponent with its interval at `CONFIDENCE`, or a predicted figure with the range of 95 of 100 refits."""

    value: Annotated[float, about("The exponent, or the predicted figure.")]
    interval: Annotated[tuple[float, float], about("Its interval at `CONFIDENCE`, or the range of 95 of 100 refits.")]


class Growth(msgspec.Struct, frozen=True):
    """A fitted power law."""

    exponents: Annotated[dict[str, Ranged], about("By symbol, of the sizes that vary.")]
    cells: Annotated[int, about("How many cells were fitted.")]
    spread: Annotated[float, about("Standard deviation of the residuals of log t, about the relative error.")]


def growth(cells: Sequence[Figures], figure: str) -> Growth | None:
    """Fit how `figure` grows with the sizes that vary among the cells; None if there are too few cells."""

    def logarithms(key: str) -> Floats:
        return np.log(np.array([getattr(cell, key) for cell in cells], dtype=np.float64))

    varying = [symbol for symbol, key in SIZES.items() if len({getattr(cell, key) for cell in cells}) > 1]
    x = np.stack([np.ones(len(cells)), *(logarithms(SIZES[symbol]) for symbol in varying)], axis=1)
    y, free = logarithms(figure), len(cells) - x.shape[1]
    if not varying or free < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    slopes, *_ = np.linalg.lstsq(x, y, rcond=None)
    variance = float(np.sum((y - x @ slopes) ** 2)) / free
    errors = np.sqrt(variance * np.diag(np.linalg.inv(x.T @ x)))
    reach = float(student.ppf((1 + CONFIDENCE) / 2, free)) * errors
    exponents = {
        symbol: Ranged(float(slope), (float(slope - half), float(slope + half)))
        for symbol, slope, half in zip(varying, slopes[1:], reach[1:], strict=True)
    }
    return Growth(exponents, len(cells), math.sqrt(variance))


def growths(cells: Sequence[Figures]) -> dict[str, Growth]:
    """Return `growth` of each of `FITTED` over the cells without drop-outs; empty if there are too few."""
    plain = [cell for cell in cells if cell.is_plain]
    fits = {figure: growth(plain, figure) for figure in FITTED} if plain else {}
    return {figure: fit for figure, fit in fits.items() if fit is not None}


TERMS: dict[str, Callable[[Size], float]] = {
    "1": lambda _: 1.0,
    "N": lambda size: size.clients,
    "d": lambda size: size.dimension,
    "M": lambda size: size.computes,
    "M2": lambda size: float(size.computes**2),
    "N M": lambda size: size.clients * size.computes,
    "N d": lambda size: size.clients * size.dimension,
    "N d/M": lambda size: size.clients * size.dimension / size.computes,
    "M d": lambda size: size.computes * size.dimension,
    "N M d": lambda size: size.clients * size.computes * size.dimension,
}
_SENT: dict[str, tuple[str, ...]] = {
    "client": ("N", "N M", "N d"),
    "compute": ("M", "M2", "N", "N M", "M d"),
    "trainer": ("1", "M", "M2", "d", "M d"),
}
_TAKEN: dict[str, tuple[str, ...]] = {
    "client": ("N", "N M", "N d"),
    "compute": ("M", "M2", "N", "N M", "N d", "M d"),
    "trainer": ("M", "M2", "N", "M d"),
}
FIGURES: dict[tuple[str, str], tuple[str, ...]] = {
    ("core_s_by_role", "client"): ("N", "N M", "N d", "N M d"),
    ("core_s_by_role", "compute"): ("M", "M2", "N", "N M", "M d", "N d", "N M d"),
    ("core_s_by_role", "trainer"): ("1", "M", "N", "d", "M d"),
    ("core_s_by_role", "emulator"): ("1", "N", "N M", "N d"),
    **{
        (key, role): terms
        for key, by_role in zip(COUNTED, (_SENT, _SENT, _TAKEN, _TAKEN), strict=True)
        for role, terms in by_role.items()
    },
    ("memory_bytes", "client"): ("1", "M", "d"),
    ("memory_bytes", "compute"): ("1", "N", "d", "N d/M"),
    ("memory_bytes", "trainer"): ("1", "M", "N", "d", "M d"),
    ("agreement_s", ""): ("N M",),
    ("sessions_s", ""): ("N", "N M"),
}
"""By (key of a cell, role), the terms of the figure."""
CLAIMED: dict[str, tuple[tuple[str, str], ...]] = {
    "core seconds": tuple(("core_s_by_role", role) for role in _SENT),
    **{f"{role} core seconds": (("core_s_by_role", role),) for role in _SENT},
    **{f"{role} messages": (("messages", role), ("received", role)) for role in _SENT},
    **{f"{role} bytes": (("bytes", role), ("received_bytes", role)) for role in _SENT},
    **{f"{role} memory": (("memory_bytes", role),) for role in _SENT},
}
"""By predicted quantity, the figures that it sums. The emulator's own core seconds are excluded."""
_ROUGH = {
    "key agreement core seconds": (("agreement_s", ""),),
    "session core seconds": (("sessions_s", ""),),
}
"""Quantities that are compared but not claimed: small differences of two times, sensitive to a busy machine."""


class Costs(msgspec.Struct, frozen=True):
    """A fitted sum of costs.

    Attributes:
        terms: their names. each: the unit cost of each term.
        design: the terms of every fitted cell, shape (cells, terms). fitted: the fitted figure of every cell.
        residuals: relative residuals, scaled up for the degrees of freedom that the fit used.
    """

    terms: tuple[str, ...]
    each: Floats
    design: Floats
    fitted: Floats
    residuals: Floats

    def at(self, size: Size) -> float:
        """Return the predicted figure of a round of this size."""
        return float(_row(self.terms, size) @ self.each)

    def interval(self, size: Size) -> tuple[float, float]:
        """Return the range of the figure in 95 of 100 refits, each with residuals resampled over the cells."""
        rng, row = np.random.default_rng(_SEED), _row(self.terms, size)
        draws = rng.choice(self.residuals, (_DRAWS, len(self.residuals)))
        figures = [row @ _solve(self.design, self.fitted * np.maximum(_LEAST, 1 + draw)) for draw in draws]
        low, high = np.quantile(figures, (0.025, 0.975))
        return float(low), float(high)


Calibration = dict[tuple[str, str], Costs]
"""The costs of the figures in `FIGURES` that all cells have."""


class HeldOut(Size, frozen=True):
    """A figure of a cell that was measured but not fitted."""

    quantity: Annotated[str, about("The figure.")]
    measured: Annotated[float, about("Its value.")]
    predicted: Annotated[float, about("From the other cells.")]
    error: Annotated[float, about("predicted / measured - 1.")]


def fit_costs(sizes: Sequence[Size], values: Sequence[float], terms: tuple[str, ...]) -> Costs:
    """Return the non-negative costs of `terms` that fit `values` > 0 best, in relative error."""
    design = np.array([_row(terms, size) for size in sizes])
    measured = np.array(values, dtype=np.float64)
    each = _solve(design, measured)
    fitted = design @ each
    free = max(1, len(values) - int(np.count_nonzero(each)))
    residuals = (measured / fitted - 1) * math.sqrt(len(values) / free)
    return Costs(terms, each, design, fitted, residuals)


def _solve(design: Floats, values: Floats) -> Floats:
    """Minimise |Σ cost·term / value - 1|² over costs >= 0. Columns are scaled, as terms differ by powers of ten."""
    relative = design / values[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scaled, _ = nnls(relative / scale, np.ones(len(values)))
    each: Floats = scaled / scale
    return each


def _row(terms: Sequence[str], size: Size) -> Floats:
    return np.array([TERMS[term](size) for term in terms], dtype=np.float64)


def fit_all(cells: Sequence[Figures]) -> Calibration:
    """Fit the costs of every figure that all cells have; zeros, from a difference of two times, are left out."""
    fitted: Calibration = {}
    for figure, terms in FIGURES.items():
        values = [_figure_of(cell, figure) for cell in cells]
        positive = [(cell, value) for cell, value in zip(cells, values, strict=True) if value]
        if None not in values and len(positive) >= CELLS_MIN:
            fitted[figure] = fit_costs([cell for cell, _ in positive], [value for _, value in positive], terms)
    return fitted


def usable(cells: Sequence[Figures]) -> list[Figures]:
    """Return the cells that a fit can use: emulated, unverified, without drop-outs.

    Raises `UsageError` if there are too few.
    """
    chosen = [cell for cell in cells if cell.is_plain and cell.backend == EMULATED and not cell.verified]
    require_cells(len(chosen))
    return chosen


def require_cells(count: int) -> None:
    """Raise `UsageError` if there are too few cells to hold some out."""
    if count - _held_out_count(count) < CELLS_MIN:
        raise UsageError(
            f"{count} emulated cells without drop-outs; a calibration needs {CELLS_MIN + 1} or "
            "more, so that some can be held out: measure further sizes"
        )


def hold_out(cells: Sequence[Figures]) -> list[HeldOut]:
    """Predict the largest cells from the others."""
    ordered = sorted(cells, key=lambda cell: cell.largeness)
    kept = len(ordered) - _held_out_count(len(ordered))
    costs = fit_all(ordered[:kept])
    return [comparison for cell in ordered[kept:] for comparison in _compare(cell, costs)]


def _compare(cell: Figures, costs: Calibration) -> list[HeldOut]:
    compared = []
    for quantity, figures in {**CLAIMED, **_ROUGH}.items():
        measured = math.fsum(_figure_of(cell, figure) or 0.0 for figure in figures)
        if not measured or any(figure not in costs for figure in figures):
            continue
        predicted = math.fsum(costs[figure].at(cell) for figure in figures)
        error = predicted / measured - 1
        compared.append(HeldOut(cell.clients, cell.dimension, cell.computes, quantity, measured, predicted, error))
    return compared


def worst(held_out: Sequence[HeldOut]) -> HeldOut:
    """Return the claimed quantity with the largest absolute error."""
    claimed = (prediction for prediction in held_out if prediction.quantity in CLAIMED)
    return max(claimed, key=lambda prediction: abs(prediction.error))


def is_far_off(held_out: Sequence[HeldOut]) -> bool:
    """Return True if a prediction of a held-out cell errs by more than `ERROR_MAX`."""
    return abs(worst(held_out).error) > ERROR_MAX


def verdict(held_out: Sequence[HeldOut]) -> str:
    """Return the largest error of predictions, and whether it is acceptable, as a sentence."""
    largest, beyond = worst(held_out), "MORE than" if is_far_off(held_out) else "within"
    return (
        f"predictions of held-out cells err by at most {100 * abs(largest.error):.0f} % ({largest.quantity}): "
        f"{beyond} {100 * ERROR_MAX:.0f} %; sessions and key agreement are rough figures"
    )


def _figure_of(cell: Figures, figure: tuple[str, str]) -> float | None:
    key, role = figure
    value = getattr(cell, key)
    if role and value is not None:
        value = value.get(role)
    return None if value is None else float(value)


def _held_out_count(cells: int) -> int:
    return max(1, round(HELD_OUT_SHARE * cells))
