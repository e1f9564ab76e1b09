"""Public scales and weights that make a release's total error smallest for given bounds.

All coordinates of a round get noise of the same σ = Δ/μ. A coordinate that is multiplied by w before, and divided by it
after, has noise of σ/w in its own units, while Δ grows with the weights. The total error is

    Δ(w)²·Σ i_g·n_g/w_g²,

over groups g of n_g coordinates each, of importance i_g. It does not change when all weights are multiplied by the same
factor. Weights follow from public bounds alone, never from data.

For sums in a box Δ² = 4·Σ w_j²·c_j², and by Cauchy and Schwarz the least is at w_j² = √i_j/c_j. Columns are weighted by
their scale: w_j = 1/scale_j. For second moments Δ² = Σ w_j²·c_j⁴ and w_j = 1/scale_j², so w_j² = √i_j/c_j²: with equal
importance, scale_j = √c_j in both, and the noise's variance is proportional to c_j and to c_j² respectively.

For regression (LDP paper 2021, Lemma 3.1: σ1, σ2, σ3) the weights are small integers, found by search: the figures are
exact, and smooth enough in the logarithms of the ratios for a pattern search from two starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dca_proto.errors import UsageError
from dca_proto.statistics.regression import WEIGHT_MAX, Regression
from dca_proto.statistics.regression_sensitivity import Weights

_UNIT = 2**16  # of the search's weights, before they are rounded to small integers
_STEP_MIN = 1 / 32  # of the search, in powers of two: an error of 2 % in a ratio, 1e-3 or less in the total
_MULTIPLE_MAX = 24
_NEAR = 1.004  # small integers as good as this are good enough: each bit of weight costs a bit of the ring
_Ratios = tuple[float, float, float]


def best_scales(
    bounds: Iterable[float], importance: Iterable[float] | None = None, *, second_moments: bool = False
) -> tuple[float, ...]:
    """The ``scale`` of each column that minimises the total error of a sum, a mean or second moments.

    Args:
        bounds: c_j, the largest |x - centre| of each column, in units of the data, above 0.
        importance: i_j, of each column's squared error (in units of the data, or of their squares); by default 1.
            Where columns have different units, 1/c_j² (second moments: 1/c_j⁴) compares errors relative to the bounds.
        second_moments: whether x² is summed, and not x.

    Returns:
        Scales such that the largest bound_j = c_j/scale_j is 1; that is the ``bound`` to go with it.

    Raises:
        UsageError: a figure is not finite and above 0, or there are not as many of the one as of the other.
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
    """The ``weights`` that minimise a regression's total error, for its bounds, radius and dimension.

    Args:
        statistic: all of its parameters but ``weights``, which make no difference.
        fraction_bits: f, even, from 0 to 40.
        importance: of the squared error of each coordinate of xxᵀ, of xy, of y² (idle where y² is left out).

    Returns:
        Small integers, within 1 % of the least total error (as a standard deviation) that any weights up to 4096 were
        found to have, and never worse than unit weights. Deterministic.

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
    found = (_descend(error, start, moves) for start in _starts(statistic))
    ratios = min(found, key=lambda ratios: _error_at(error, ratios))
    multiples = [_integers(ratios, multiple, statistic.target_square) for multiple in range(1, _MULTIPLE_MAX + 1)]
    candidates = {weights: error(weights) for weights in (unit, *multiples)}
    least = min(candidates.values())
    return next(weights for weights, value in candidates.items() if value <= least * _NEAR**2)


def _starts(statistic: Regression) -> tuple[_Ratios, _Ratios]:
    """Equal weights, and each block's inverse to the size of its terms; as powers of two."""
    feature, target = math.fsum(statistic.bound[:-1]) or statistic.intercept_bound, statistic.bound[-1]
    ratio = math.log2(feature) - math.log2(target)
    square = 2 * ratio if statistic.target_square else 0.0
    return (0.0, 0.0, 0.0), (0.0, ratio, square)


def _descend(error: Callable[[Weights], float], start: _Ratios, moves: list[tuple[int, int]]) -> _Ratios:
    """Pattern search in the logarithms of w2/w1 and w3/w1: steps are halved where no move improves."""
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
    """The integers nearest to a multiple of the ratios, of which the smallest is 1; the third is 1 where it is idle."""
    first, second, third = (min(WEIGHT_MAX, round(multiple * 2.0**ratio)) for ratio in _above_least(ratios))
    return first, second, third if target_square else 1


def _above_least(ratios: _Ratios) -> Iterable[float]:
    """Logarithms of the ratios to the smallest, which is raised to what the largest weight allows."""
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
