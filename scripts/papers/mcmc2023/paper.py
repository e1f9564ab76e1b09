"""The third paper's printed results: Tables 1 and 2, prediction errors over 50 runs at ε = 1, and non-private errors.

Table 2 prints MCMC-fixedS on air quality at J = 5 as [0.0089, 0.010], whose upper end lost its last digit. About Table
1's mean of 0.0100 it lies from 0.0109 to 0.0111; the adjacent cell has 0.0109.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from papers import picture
from papers.experiment import MeanInterval

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
"""The private methods' styles in all figures."""
FLOOR_STYLE: Mapping[str, Any] = {"color": picture.BLACK, "linestyle": "--", "linewidth": 1.5, "zorder": 1}
NODES = (1, 5, 10)
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
REPEATS, ITERATIONS = 50, 10_000
NON_PRIVATE = {2: (2.92e-5, 9.60e-5), 5: (1.54e-5, 4.19e-5)}
"""By d, in the caption of Figure 2: squared error of θ and of predictions, on data that were not published."""


TABLES = {
    (name, int(nodes), method): MeanInterval(*map(float, ends))
    for line in Path(__file__).with_name("tables.csv").read_text("utf-8").splitlines()[1:]
    for name, nodes, method, *ends in [line.split(",")]
}
"""By data set, J and method: the mean of Table 1 and the ends of the 90 % interval of Table 2."""
