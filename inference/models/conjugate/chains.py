"""What tells whether chains have converged, of draws of shape (chain, draw, ...).

R̂    split, √((between + within) / within) of half chains   Gelman et al., Bayesian Data Analysis (2013), section 11.4
n̂    effective size, draws over the integrated autocorrelation   the same, section 11.5, with Geyer's (1992) cut
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def split_rhat(draws: Array) -> Array:
    """R̂ over half chains, shape ``draws.shape[2:]``; 1 where nothing varies, infinite where only chains differ."""
    halves = _halves(draws)
    length = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    ratio = np.where(between > 0, np.inf, 1 / length)
    np.divide(between, within, out=ratio, where=within > 0)
    return np.asarray(np.sqrt((length - 1) / length + ratio))


def effective_size(draws: Array) -> Array:
    """n̂ over half chains, shape ``draws.shape[2:]``; at most the number of draws."""
    halves = _halves(draws)
    flat = halves.reshape(*halves.shape[:2], -1)
    sizes = [_effective_size(flat[..., j]) for j in range(flat.shape[-1])]
    return np.array(sizes).reshape(draws.shape[2:])


def _effective_size(halves: Array) -> float:
    """Of one parameter, shape ``(chain, draw)``."""
    chains, length = halves.shape
    centred = halves - halves.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(centred, 2 * length, axis=1)) ** 2
    covariance = np.fft.irfft(spectrum, axis=1)[:, :length].mean(axis=0) / length
    between = halves.mean(axis=1).var(ddof=1) if chains > 1 else 0.0
    total = covariance[0] + between
    if total == 0:
        return float(halves.size)
    rho = (covariance + between) / total
    pairs = rho[: length // 2 * 2].reshape(-1, 2).sum(axis=1)  # positive for a reversible chain, until noise takes over
    until = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    monotone = np.minimum.accumulate(pairs[:until])
    return float(halves.size / max(2 * monotone.sum() - 1, 1.0))


def _halves(draws: Array) -> Array:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, half : 2 * half]])
