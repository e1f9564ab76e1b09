"""What the third paper prints: Tables 1 and 2, prediction errors over 50 runs at ε = 1, and its non-private errors.

In Table 2, air quality, J = 5, MCMC-fixedS is printed as [0.0089, 0.010], which lost its last digit: about Table 1's
mean of 0.0100 it is 0.0109 to 0.0111; the cell beside it has 0.0109.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from papers import picture
from papers.mcmc2023.data import AIR_QUALITY, BIKE, POWER_PLANT, ROAD

NORMAL_X, FIXED_S, FAST = "MCMC-normalX", "MCMC-fixedS", "Bayes-fixedS-fast"
BERNSTEIN_SHELDON, ADASSP = "MCMC-B&S", "adaSSP"
METHODS = (NORMAL_X, FIXED_S, FAST, BERNSTEIN_SHELDON, ADASSP)
"""In the order of the tables' columns."""
STYLES: Mapping[str, Mapping[str, Any]] = {
    NORMAL_X: {"color": picture.BLUE, "marker": "o"},
    FIXED_S: {"color": picture.GREEN, "marker": "s"},
    FAST: {"color": picture.ORANGE, "marker": "^"},
    BERNSTEIN_SHELDON: {"color": picture.PURPLE, "marker": "X"},
    ADASSP: {"color": picture.VERMILION, "marker": "D"},
}
"""Of the private methods, in all pictures of these experiments."""
FLOOR_STYLE: Mapping[str, Any] = {"color": picture.BLACK, "linestyle": "--", "linewidth": 1.5, "zorder": 1}
NODES = (1, 5, 10)
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
REPEATS, ITERATIONS = 50, 10_000
NON_PRIVATE = {2: (2.92e-5, 9.60e-5), 5: (1.54e-5, 4.19e-5)}
"""By d, in the caption of Figure 2: squared error of θ and of predictions, on data that were not published."""


class Printed(NamedTuple):
    """A cell: the mean of Table 1 and the ends of the 90 % interval of Table 2."""

    mean: float
    low: float
    high: float


_TABLES: dict[tuple[int, str], tuple[tuple[float, float, float], ...]] = {
    (1, POWER_PLANT): (
        (0.0129, 0.0128, 0.0129), (0.0129, 0.0128, 0.0129), (0.0129, 0.0128, 0.0129), (0.0128, 0.0128, 0.0129),
        (0.0139, 0.0137, 0.0140),
    ),
    (1, BIKE): (
        (0.0024, 0.0021, 0.0027), (0.0021, 0.0018, 0.0024), (0.0021, 0.0018, 0.0024), (0.0020, 0.0017, 0.0022),
        (0.0107, 0.0106, 0.0108),
    ),
    (1, AIR_QUALITY): (
        (0.0060, 0.0051, 0.0069), (0.0057, 0.0048, 0.0066), (0.0057, 0.0048, 0.0066), (0.0062, 0.0053, 0.0071),
        (0.0066, 0.0065, 0.0067),
    ),
    (1, ROAD): ((0.0229, 0.0229, 0.0229),) * 5,
    (5, POWER_PLANT): (
        (0.0133, 0.0132, 0.0135), (0.0134, 0.0132, 0.0136), (0.0134, 0.0132, 0.0136), (0.0136, 0.0135, 0.0138),
        (0.0235, 0.0234, 0.0236),
    ),
    (5, BIKE): (
        (0.0174, 0.0137, 0.0210), (0.0045, 0.0041, 0.0049), (0.0045, 0.0040, 0.0049), (0.0086, 0.0076, 0.0095),
        (0.0382, 0.0380, 0.0383),
    ),
    (5, AIR_QUALITY): (
        (0.0142, 0.0109, 0.0175), (0.0100, 0.0089, 0.0109), (0.0099, 0.0089, 0.0109), (0.0130, 0.0109, 0.0151),
        (0.0227, 0.0226, 0.0229),
    ),
    (5, ROAD): ((0.0229, 0.0229, 0.0229),) * 5,
    (10, POWER_PLANT): (
        (0.0142, 0.0139, 0.0145), (0.0143, 0.0140, 0.0146), (0.0143, 0.0140, 0.0146), (0.0143, 0.0141, 0.0146),
        (0.0351, 0.0349, 0.0353),
    ),
    (10, BIKE): (
        (0.0812, 0.0671, 0.0954), (0.0082, 0.0072, 0.0092), (0.0082, 0.0072, 0.0092), (0.0137, 0.0116, 0.0158),
        (0.0526, 0.0524, 0.0527),
    ),
    (10, AIR_QUALITY): (
        (0.0985, 0.0733, 0.1236), (0.0117, 0.0099, 0.0135), (0.0117, 0.0099, 0.0135), (0.0216, 0.0175, 0.0257),
        (0.0314, 0.0313, 0.0315),
    ),
    (10, ROAD): ((0.0229, 0.0229, 0.0229),) * 5,
}  # fmt: skip

TABLES = {
    (name, nodes, method): Printed(*figures)
    for (nodes, name), row in _TABLES.items()
    for method, figures in zip(METHODS, row, strict=True)
}
"""By data set, J and method."""
