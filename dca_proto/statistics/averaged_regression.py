"""Sufficient statistics of linear regression on averages of k rows, which are closer to normal than the rows are.

A data node's rows are taken k at a time, in their order; the rows of a group are averaged and multiplied by √k, which
leaves the coefficients and the residuals' variance as they are (Appendix B.1 of the distributed regression paper, ICML
2023). So n rows become floor(n/k) rows of the model, with less information about the coefficients; up to k - 1 rows at
the end do not count. Rows are clamped to their bounds and quantised first. What is added up are the integers (Σx)(Σx)ᵀ
and (Σx)(Σy), exact; `unpack` and `estimate` divide them by k, and the noise with them.

A missing row is a row of zeros in its place: were it left out, all rows after it would change groups. A row moves one
group only, and `averaged_sensitivity` proves by how much: by 4(k - 1)/k times what a row has by itself, where the paper
claims once. So averaging costs noise as well as information.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.averaged_sensitivity import group_sensitivity, row_in_group_sensitivity
from dca_proto.statistics.ball import ball_limit, check_radius, into_ball
from dca_proto.statistics.base import register
from dca_proto.statistics.regression_sensitivity import Limits
from dca_proto.statistics.scaled import ScaledColumns, half_bits
from dca_proto.statistics.sensitivity import Sensitivity

GROUP_MAX = 2**12


@register
class AveragedRegression(ScaledColumns, frozen=True, kw_only=True):
    """k times the (unique) terms of x̄x̄ᵀ, row by row, and of x̄ȳ, where x̄ and ȳ are √k times the means of k rows.

    Attributes:
        columns: the features, at least one, and the target last.
        group: k, rows that are averaged; 1 to 4096.
        radius: of an L2 ball that the features of a row are brought into, in units of ``scale``; None for the box
            alone. The target keeps its bound.
    """

    name = "averaged-regression"

    group: int = 10
    radius: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.group <= GROUP_MAX:
            raise UsageError(f"group is {self.group}; average 1 to {GROUP_MAX} rows")
        if len(self.columns) == 1:
            raise UsageError("no feature: name the features in columns, then the target")
        check_radius("radius", self.radius)
        super().__post_init__()

    @property
    def rows_per_value(self) -> int:
        return self.group

    @property
    def dimension(self) -> int:
        d = len(self.columns) - 1
        return d * (d + 3) // 2

    def labels(self) -> tuple[str, ...]:
        *features, target = self.columns
        products = [f"{left}·{right}" for i, left in enumerate(features) for right in features[i:]]
        return (*products, *(f"{feature}·{target}" for feature in features))

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        return row_in_group_sensitivity(self._limits(fraction_bits), self.group)

    def value_sensitivity(self, fraction_bits: int) -> Sensitivity:
        return group_sensitivity(self._limits(fraction_bits), self.group)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        bits = half_bits(fraction_bits)
        present = np.isfinite(rows).all(axis=1, keepdims=True)
        z = self.quantised(np.where(present, rows, self.centre), bits) * present
        if self.radius is not None:
            z[:, :-1] = into_ball(z[:, :-1].astype(np.float64), ball_limit("radius", self.radius, bits))
        sums = z.reshape(-1, self.group, z.shape[1]).sum(axis=1)
        u, t = sums[:, :-1], sums[:, -1:]
        products = [u[:, i : i + 1] * u[:, i:] for i in range(u.shape[1])]
        return np.concatenate([*products, u * t], axis=1)

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """The sums over groups of the averages' products: divided by k."""
        return value / self.group

    def unpack(self, value: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A (noisy) sum as S_av (d, d), symmetric, and z_av (d,). Noise of variance s² in ``value`` is s²/k² here."""
        if value.shape != (self.dimension,):
            raise UsageError(f"the vector has shape {value.shape}; expected ({self.dimension},)")
        terms, d = value / self.group, len(self.columns) - 1
        upper = np.triu_indices(d)
        S = np.zeros((d, d))
        S[upper] = terms[:-d]
        S.T[upper] = S[upper]
        return S, terms[-d:]

    def _limits(self, fraction_bits: int) -> Limits:
        bits = half_bits(fraction_bits)
        *features, target = self.limits(bits)
        radius = None if self.radius is None else ball_limit("radius", self.radius, bits)
        return Limits(0, tuple(features), radius, target, False)
