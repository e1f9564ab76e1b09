"""A fast Gaussian for emulation: rounded normals from one of numpy's generators. Nothing made with it is private.

It adds noise of the exact mechanism's variance S (and 1/12 of a grid unit squared, from rounding) some times faster,
and so stands in for it where only the size of the noise matters: speed, scaling, accuracy over many repeats. No privacy
may be claimed for it: numpy's generator is no cryptographic one, and a normal in floating point betrays in its low bits
what it was added to (Mironov 2012). Hence `private` is False, a result carries that (`NoisyAggregate.private`) without
any epsilon, and none is told for it.

One key gives the same unit normals whatever the variance: so methods whose noise differs in size only can be compared
on the same draws (`emulator.ideal`, with the same seeded `random` for each), where independent ones would hide a
difference of a few percent.

No configuration has a field for it; an actor that was not constructed with it refuses its name.
"""

from __future__ import annotations

from hashlib import blake2b
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy import accounting


class RoundedGaussian:
    """Shares of rounded normal noise N(0, S): a `Mechanism` for emulation alone."""

    name = "rounded-gaussian-not-private"
    private = False

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        """S, the same as that of the exact mechanism."""
        return accounting.share_variance(sensitivity, mu, honest, dimension)

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """Noise of shape ``(dimension,)``, in grid units: the unit normals of the key, scaled and rounded."""
        state = int.from_bytes(blake2b(key, digest_size=32).digest(), "little")
        normals = np.random.Generator(np.random.SFC64(state)).standard_normal(dimension)
        normals *= sqrt(variance)
        return np.rint(normals, out=normals).astype(np.int64)
