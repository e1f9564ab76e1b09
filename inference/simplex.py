"""Projection of noisy counts to the nearest possible ones: not negative, and adding up to the known total."""

from __future__ import annotations

import numpy as np

from inference.problem import Array


def nearest_on_simplex(counts: Array, n: float) -> Array:
    """Return the nearest counts that are not negative and add up to n, not rounded.

    They are nearest in Euclidean distance: the most likely ones if all have the same noise. One number is subtracted
    from all counts, and those that become negative are set to 0 (Held, Wolfe and Crowder 1974, "Validation of
    subgradient optimization", section 4).

    Args:
        counts: shape ``(..., K)``, like the result; each row is projected by itself. n: above 0.
    """
    falling = np.sort(counts, axis=-1)[..., ::-1]
    excess = (np.cumsum(falling, axis=-1) - n) / np.arange(1, counts.shape[-1] + 1)
    kept = np.count_nonzero(falling > excess, axis=-1, keepdims=True)
    return np.asarray(np.maximum(counts - np.take_along_axis(excess, kept - 1, axis=-1), 0.0))
