"""Sums with noise of a known variance, from any kind of round.

    value = Σ_i t(x_i) + noise,    noise ~ N(0, diag(noise_variance)) to any accuracy that matters

A secure sum, the sum of data nodes' releases and the sum of clients' additive reports differ only in the variance of
the noise. (The noise is discrete Gaussian on a fine grid, or Laplace noise of n reports. A sum of n Laplace variables
becomes normal as n grows, as Σ t(x_i) does.) Categories reported by randomised response or unary encoding carry noise
that depends on the category; `inference.models.fit` has their fits.

A row with a missing value counts as zero in a sum, but n includes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from inference.draws import attributes
from inference.errors import DataError
from inference.problem import Array
from inference.rounds import as_text

Aggregates: TypeAlias = NoisyAggregate | Sequence[NoisyAggregate]


@dataclass(frozen=True, eq=False)
class NoisySums:
    """A sum of n contributions, with noise of a known variance. A JAX pytree of `value`, `noise_variance` and `n`.

    Attributes:
        value: shape ``(D,)``. noise_variance: of each coordinate, shape ``(D,)``; 0 without noise.
        n: number of contributions in the sum: clients, or rows of data nodes.
        statistic: its name. parameters: its public parameters.
        attrs: provenance of the sum (mechanism, epsilon, delta, mu, private); empty inside a model.
    """

    value: Array
    noise_variance: Array
    n: Any
    statistic: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    attrs: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, aggregates: Aggregates) -> NoisySums:
        """Merge one or several rounds of the same statistic over different clients into one sum.

        Raises:
            DataError: there is no round, one is given twice, their statistics or parameters differ, they have reports
                of categories, or a number is not finite.
        """
        listed = as_list(aggregates)
        if not listed:
            raise DataError("no aggregate; give at least one")
        check_once(listed)
        first = listed[0]
        for place, aggregate in enumerate(listed, start=1):
            if (aggregate.statistic, as_text(aggregate.parameters)) != (first.statistic, as_text(first.parameters)):
                raise DataError(
                    f"aggregate {place} has another statistic or other parameters than the first; only sums of the "
                    "same statistic add up"
                )
            if aggregate.reports is not None and aggregate.reports.probabilities is not None:
                raise DataError(
                    f"aggregate {place} has categories reported by {aggregate.mechanism!r}, whose noise depends on the "
                    "category; fit them as a histogram of reports"
                )
        value = np.sum([aggregate.value for aggregate in listed], axis=0)
        variance = np.full(value.shape, float(sum(aggregate.noise_variance for aggregate in listed)))
        if not np.all(np.isfinite(value)) or not np.all(variance >= 0):
            raise DataError("a sum is not finite or a variance of noise is below 0; check how it was released")
        n = sum(aggregate.contributors for aggregate in listed)
        return cls(value, variance, n, first.statistic, first.parameters, {**attributes(*listed), "n": n})

    def scaled(self, factor: ArrayLike) -> NoisySums:
        """Return the sum in other units: each coordinate times its factor, broadcastable to ``(D,)``."""
        by = np.asarray(factor, float)
        return replace(self, value=self.value * by, noise_variance=self.noise_variance * by**2)

    def __getitem__(self, places: Any) -> NoisySums:
        """Return some coordinates of the sum: a slice, a mask or indices."""
        return replace(self, value=self.value[places], noise_variance=self.noise_variance[places])

    def without_noise(self) -> NoisySums:
        """Return the sum taken as exact: the noise-naive model, which is overconfident."""
        return replace(self, noise_variance=np.zeros_like(self.noise_variance))

    def flatten(self) -> tuple[tuple[Any, Any, Any], tuple[str, str]]:
        """Return leaves and static parts, for `jax.tree_util`."""
        return (self.value, self.noise_variance, self.n), (self.statistic, as_text(self.parameters))

    @classmethod
    def unflatten(cls, static: tuple[str, str], leaves: Sequence[Any]) -> NoisySums:
        """The inverse of `flatten`, without `attrs`."""
        value, variance, n = leaves
        return cls(value, variance, n, static[0], json.loads(static[1]))


def as_list(aggregates: Aggregates) -> list[NoisyAggregate]:
    """Return one or several aggregates as a list."""
    return [aggregates] if isinstance(aggregates, NoisyAggregate) else list(aggregates)


def check_once(listed: Sequence[NoisyAggregate]) -> None:
    """Raise `DataError` if a round is given twice. Several data nodes of one round may be given."""
    rounds: dict[bytes, dict[bytes, int]] = {}
    for place, aggregate in enumerate(listed, start=1):
        nodes = rounds.setdefault(aggregate.round_id, {})
        release = aggregate.value.tobytes() if aggregate.clients == 1 else b""
        again = nodes.get(release, nodes.get(b"") if release else next(iter(nodes.values()), None))
        if again is not None:
            raise DataError(f"aggregate {place} is aggregate {again} again; give each round once")
        nodes[release] = place
