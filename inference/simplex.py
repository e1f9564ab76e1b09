"""Projects noisy counts to the nearest possible ones: none is negative, and they add up to the known total."""

from __future__ import annotations

import numpy as np

from inference.problem import Array


def nearest_on_simplex(counts: Array, n: float) -> Array:
    """The nearest counts that are not negative and add up to n, not rounded.

    Nearest in Euclidean distance: the likeliest ones, where the noise of all is alike. One number is taken from all
    counts, and those that it makes negative become 0 (Held, Wolfe and Crowder 1974, "Validation of subgradient
    optimization", section 4).

    Args:
        counts: shape ``(..., K)``, as the result's; each row by itself. n: above 0.
    """
    falling = np.sort(counts, axis=-1)[..., ::-1]
    excess = (np.cumsum(falling, axis=-1) - n) / np.arange(1, counts.shape[-1] + 1)
    kept = np.count_nonzero(falling > excess, axis=-1, keepdims=True)
    return np.asarray(np.maximum(counts - np.take_along_axis(excess, kept - 1, axis=-1), 0.0))
