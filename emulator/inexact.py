"""A fast Gaussian for emulation: rounded normals from one of numpy's generators. No result with it is private.

It adds noise of the exact mechanism's variance S (plus 1/12 of a squared grid unit, from rounding) several times
faster. It replaces the exact mechanism where only the size of the noise matters: speed, scaling, accuracy over many
repeats. No privacy may be claimed for it: numpy's generator is not cryptographic, and the low bits of a floating-point
normal reveal the number that it was added to (Mironov 2012). So `private` is False, and a result
(`NoisyAggregate.private`) carries that instead of an epsilon.

One key gives the same unit normals for every variance. So methods that differ only in the size of their noise can be
compared on the same draws (`emulator.ideal`, with the same seeded `random` for each). Independent draws would hide a
difference of a few percent.

No configuration has a field for it. An actor refuses its name unless it was constructed with it.
"""

from __future__ import annotations

from hashlib import blake2b
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy import accounting


class RoundedGaussian:
    """Shares of rounded normal noise N(0, S): a `Mechanism` for emulation only."""

    name = "rounded-gaussian-not-private"
    private = False

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        """Return S, the same as that of the exact mechanism."""
        return accounting.share_variance(sensitivity, mu, honest, dimension)

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """Return noise of shape ``(dimension,)``, in grid units: the key's unit normals, scaled and rounded."""
        state = int.from_bytes(blake2b(key, digest_size=32).digest(), "little")
        normals = np.random.Generator(np.random.SFC64(state)).standard_normal(dimension)
        normals *= sqrt(variance)
        return np.rint(normals, out=normals).astype(np.int64)
