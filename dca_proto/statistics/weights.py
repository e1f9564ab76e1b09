"""Public scales and weights that minimise a release's total error for given bounds.

All coordinates of a round get noise of the same σ = Δ/μ. A coordinate that is multiplied by w before the noise, and
divided by w after it, has noise of σ/w in its own units, while Δ grows with the weights. The total error is

    Δ(w)²·Σ i_g·n_g/w_g²,

over groups g of n_g coordinates each, of importance i_g. It does not change if all weights are multiplied by the same
factor. Weights follow from public bounds alone, never from data.

For sums in a box Δ² = 4·Σ w_j²·c_j²; by Cauchy and Schwarz the error is least at w_j² = √i_j/c_j. A column's weight is
its inverse scale: w_j = 1/scale_j. For second moments Δ² = Σ w_j²·c_j⁴ and w_j = 1/scale_j², so w_j² = √i_j/c_j². With
equal importance, scale_j = √c_j in both, and the noise's variance is proportional to c_j and to c_j² respectively.

For regression (LDP paper 2021, Lemma 3.1: σ1, σ2, σ3) a search finds weights that are small integers. The error is
exact, and smooth enough in the logarithms of the ratios for a pattern search from two starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dca_proto.errors import UsageError
from dca_proto.statistics.regression import WEIGHT_MAX, Regression
from dca_proto.statistics.regression_sensitivity import Weights

_UNIT = 2**16  # the search's unit weight; the result is rounded to small integers
_STEP_MIN = 1 / 32  # in powers of two: an error of 2 % in a ratio, 1e-3 or less in the total
_MULTIPLE_MAX = 24
_NEAR = 1.004  # accept an error within this factor of the least: each bit of weight costs a bit of the ring
_Ratios = tuple[float, float, float]


def best_scales(
    bounds: Iterable[float], importance: Iterable[float] | None = None, *, second_moments: bool = False
) -> tuple[float, ...]:
    """Return the ``scale`` of each column that minimises the total error of a sum, a mean or second moments.

    Args:
        bounds: c_j, the largest |x - centre| of each column, in units of the data, above 0.
        importance: i_j, the weight of each column's squared error (in units of the data, or of their squares); by
            default 1. For columns with different units, 1/c_j² (second moments: 1/c_j⁴) compares errors relative to the
            bounds.
        second_moments: scales for sums of x² instead of x.

    Returns:
        Scales such that the largest bound_j = c_j/scale_j is 1; use that as the ``bound``.

    Raises:
        UsageError: a figure is not finite and above 0, or there are not as many importances as bounds.
    """
    c = _positive("bounds", bounds)
    i = _positive("importance", importance) if importance is not None else (1.0,) * len(c)
    if len(i) != len(c):
        raise UsageError(f"importance has {len(i)} values for {len(c)} bounds; give one for each")
    root = 8 if second_moments else 4  # √i = (√c/scale)^4 or, with w = 1/scale², its eighth root
    scales = [math.sqrt(bound) / weight ** (1 / root) for bound, weight in zip(c, i, strict=True)]
    largest = max(bound / scale for bound, scale in zip(c, scales, strict=True))
    return tuple(scale * largest for scale in scales)


def best_regression_weights(
    statistic: Regression, fraction_bits: int, importance: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> Weights:
    """Return the ``weights`` that minimise a regression's total error, for its bounds, radius and dimension.

    Args:
        statistic: its ``weights`` are ignored.
        fraction_bits: f, even, from 0 to 40.
        importance: the weights of the squared errors of each coordinate of xxᵀ, of xy, and of y² (ignored without y²).

    Returns:
        Small integers. In checks, their total error (as a standard deviation) was within 1 % of the least of any
        weights up to 4096. It is never worse than that of unit weights. Deterministic.

    Raises:
        UsageError: an importance is not finite and above 0, or the bounds do not fit the grid.
    """
    i = _positive("importance", importance)
    if len(i) != 3:
        raise UsageError(f"importance has {len(i)} values; give one each for xxᵀ, xy and y²")

    def error(weights: Weights) -> float:
        square = statistic.weighted_sensitivity(fraction_bits, weights).l2_squared
        groups = zip(i, statistic.block_sizes, weights, strict=True)
        return square * math.fsum(share * size / weight**2 for share, size, weight in groups)

    unit: Weights = (1, 1, 1)
    moves = [(u, v) for u in (-1, 0, 1) for v in (-1, 0, 1) if (u or v) and (statistic.target_square or not v)]
    ends = (_descend(error, start, moves) for start in _starts(statistic))
    ratios = min(ends, key=lambda ratios: _error_at(error, ratios))
    multiples = [_integers(ratios, multiple, statistic.target_square) for multiple in range(1, _MULTIPLE_MAX + 1)]
    candidates = {weights: error(weights) for weights in (unit, *multiples)}
    least = min(candidates.values())
    return next(weights for weights, value in candidates.items() if value <= least * _NEAR**2)


def _starts(statistic: Regression) -> tuple[_Ratios, _Ratios]:
    """Return two starts, as powers of two: equal weights, and weights inverse to the size of each block's terms."""
    feature, target = math.fsum(statistic.bound[:-1]) or statistic.intercept_bound, statistic.bound[-1]
    ratio = math.log2(feature) - math.log2(target)
    square = 2 * ratio if statistic.target_square else 0.0
    return (0.0, 0.0, 0.0), (0.0, ratio, square)


def _descend(error: Callable[[Weights], float], start: _Ratios, moves: list[tuple[int, int]]) -> _Ratios:
    """Pattern search in the logarithms of w2/w1 and w3/w1; the step is halved if no move improves."""
    best, least, step = start, _error_at(error, start), 2.0
    while step >= _STEP_MIN:
        around = [(0.0, best[1] + step * u, best[2] + step * v) for u, v in moves]
        value, point = min((_error_at(error, point), point) for point in around)
        if value < least * (1 - 1e-9):
            best, least = point, value
        else:
            step /= 2
    return best


def _error_at(error: Callable[[Weights], float], ratios: _Ratios) -> float:
    first, second, third = (round(_UNIT * 2.0**ratio) for ratio in _above_least(ratios))
    return error((first, second, third))


def _integers(ratios: _Ratios, multiple: int, target_square: bool) -> Weights:
    """Round a multiple of the ratios (the smallest becomes 1) to integers; an unused third weight is 1."""
    first, second, third = (min(WEIGHT_MAX, round(multiple * 2.0**ratio)) for ratio in _above_least(ratios))
    return first, second, third if target_square else 1


def _above_least(ratios: _Ratios) -> Iterable[float]:
    """Subtract the smallest logarithm, raised if the largest ratio would exceed the largest weight."""
    least = max(min(ratios), max(ratios) - math.log2(WEIGHT_MAX))
    return (max(ratio - least, 0.0) for ratio in ratios)


def _positive(name: str, values: Iterable[float]) -> tuple[float, ...]:
    numbers = tuple(values)
    for value in numbers:
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} has a value of {value:g}; give finite numbers above 0")
    if not numbers:
        raise UsageError(f"{name} is empty; give at least one number")
    return numbers
