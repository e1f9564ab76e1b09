"""The samplers of centred features, for experiments on many problems at once, and how well their chains mixed."""

from __future__ import annotations

import numpy as np

from papers.mcmc2023.data import Array
from papers.mcmc2023.samplers.methods import METHODS

SAMPLED = tuple(name for name, method in METHODS.items() if method.module)


def split_rhat(draws: Array) -> Array:
    """R̂ of the halves of all chains (Gelman et al. 2013, 11.4): near 1 where they agree.

    Args:
        draws: of R problems, shape ``(R, chains, draws, parameters)``.

    Returns:
        Shape ``(R, parameters)``.
    """
    half = draws.shape[2] // 2
    halves = np.concatenate([draws[:, :, :half], draws[:, :, half : 2 * half]], axis=1)
    within = halves.var(axis=2, ddof=1).mean(axis=1)
    between = halves.mean(axis=2).var(axis=1, ddof=1)
    found: Array = np.sqrt((half - 1) / half + between / np.maximum(within, 1e-300))
    return found
