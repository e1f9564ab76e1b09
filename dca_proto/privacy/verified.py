"""Cost of a verified sum: its noise is a sum of uniform numbers, which is Gaussian but for far tails (DESIGN §12).

In each coordinate, an adversary does not know the sum Z of at least n·m independent uniform numbers on 0..2^a - 1, of n
honest clients with m numbers each. With S(t) = P(Z >= t) and its normal quantile z(t) = Φ⁻¹(1 - S(t)), let D be the
largest z(t + 1) - z(t) over all thresholds from the centre to the first with S(t) < τ, τ = 2^-64. A release whose
integer coordinates two neighbours change by s, in all d of them, has the cost

    μ = D ‖s‖₂ = κ ‖s‖₂ / sd,  κ = sd D,        slack = d τ.

So the release differs, by d τ in total variation at most, from one that is μ-private. It is *not* μ-private: beyond the
largest sum that Z can reach, one neighbour's values have probability 0 under the other. "Noise that is a sum of uniform
numbers" in PRIVACY.md proves this, and the bounds of D that `largest_step` computes.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bounded import NOISE_BITS_MAX
from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import mills

TAU = 2.0**-64
"""τ: the slack of a coordinate of a release, fixed by the protocol."""
UNIFORMS_MIN = 300
"""The fewest uniform numbers of honest clients in a coordinate's noise; κ is 1.043 there, and less for more."""
_UNIFORMS_MAX = 2**31
_BLOCKS = 1000  # of thresholds
_REACH = 9.5  # standard deviations, from which S < τ on: Z is sub-Gaussian
_PERIOD = 24  # standard deviations: sums are computed modulo this
_BAND = 14  # over the standard deviation: the highest frequency that counts
_TILT_MIN = 3  # over the standard deviation: the least tilt for a survival function, which has a pole at 0
_RADIUS = 2.0**-36  # of the sum of all terms' sizes: above the rounding errors of a sum, and what it leaves out
_ROUNDING = 1e-9  # relative: above the errors of the normal quantile, Mills' ratio and the final product
Floats = NDArray[np.float64]
Bounds = NDArray[np.float64]  # (2, n): lower and upper


class ReleaseCost(NamedTuple):
    """The cost of a release: it differs from a μ-private one by `slack` in total variation, at most."""

    mu: float
    slack: float


def noise_sd(uniforms: int, noise_bits: int) -> float:
    """Return the standard deviation of a sum of so many uniform numbers on 0..2^noise_bits - 1."""
    return math.sqrt(uniforms * ((1 << 2 * noise_bits) - 1) / 12)


def kappa(uniforms: int, noise_bits: int) -> float:
    """Return κ >= 1, rounded up: how much more a sum of uniform numbers costs than Gaussian noise of the same variance.

    Raises `UsageError` for fewer than 300 uniform numbers, or bits outside 1..16.
    """
    return largest_step(uniforms, noise_bits) * noise_sd(uniforms, noise_bits)


def release_cost(
    sensitivity: float, dimension: int, honest: int, noises: int, noise_bits: int, *, structured: bool = False
) -> ReleaseCost:
    """Return the cost of a verified sum to each client, rounded up.

    Args:
        sensitivity: Δ, L2, in units of the sum's grid, before values are rounded to it.
        dimension: d, coordinates of the release.
        honest: n_min - 1 - c, the fewest clients in a sum whose noise the adversary does not know.
        noises: m, uniform numbers of a client for each coordinate.
        noise_bits: a, bits of each of them.
        structured: False if Δ bounds the values of a box after rounding, too. Any other statistic is rounded with one
            dither for all coordinates, which moves each by less than a unit: it pays Δ + √d.

    Raises:
        UsageError: an argument is out of range, or fewer than 300 uniform numbers are unknown.
    """
    if not 0 < sensitivity < math.inf or dimension < 1:
        raise UsageError(f"a sensitivity of {sensitivity} over {dimension} coordinates; expected both above 0")
    moved = sensitivity + math.sqrt(dimension) if structured else sensitivity
    return ReleaseCost(moved * largest_step(honest * noises, noise_bits) * (1 + _ROUNDING), dimension * TAU)


@functools.lru_cache(maxsize=256)
def largest_step(uniforms: int, noise_bits: int) -> float:
    """Return D, the μ of one grid unit in one coordinate, rounded up, by 2e-4 of itself at most.

    Raises `UsageError` as `kappa`.
    """
    if not UNIFORMS_MIN <= uniforms <= _UNIFORMS_MAX or not 1 <= noise_bits <= NOISE_BITS_MAX:
        raise UsageError(
            f"{uniforms} uniform numbers of {noise_bits} bits of noise; expected at least {UNIFORMS_MIN} of honest "
            f"clients, of 1 to {NOISE_BITS_MAX} bits: take more clients, or more numbers of each"
        )
    sd = noise_sd(uniforms, noise_bits)
    top = uniforms * ((1 << noise_bits) - 1)
    center = (top + 1) // 2  # by symmetry, the thresholds below it have the same steps
    reach = math.ceil(_REACH * sd)
    width = max(1, reach // _BLOCKS)
    starts = center + width * np.arange(reach // width + 2)
    x = np.asarray(starts - top / 2, dtype=np.float64)
    noise = functools.partial(_enclosed, uniforms, noise_bits, sd)
    return _largest_in_blocks(width, noise(x, False), noise(x + 1, False), noise(x, True))


def _largest_in_blocks(width: int, value: Bounds, value_after: Bounds, tail: Bounds) -> float:
    """Bound z(t + 1) - z(t) over blocks of `width` thresholds, given bounds of P(Z = t) and P(Z >= t) where they start.

    `value_after` bounds P(Z = t + 1); the last start only ends the block before it. Each step of z is at most
    h·(M(z(t)) + M(z(t + 1)))/2, with h = ln S(t) - ln S(t + 1) and M = Mills' ratio. In a block, log-concavity bounds
    how fast h grows, and how slowly M falls.
    """
    part, whole = value[1] / tail[0], tail[1] - value[0]  # upper bounds of P(Z = t | Z >= t) and of S(t + 1)
    last = part[:-1] if width == 1 else part[1:]
    hazard_low, hazard = -np.log1p(-value[0] / tail[1])[:-1], part[:-1] * (-np.log1p(-last) / last)
    slope = np.array([mills(_quantile(p))[1] for p in tail[0, 1:]])
    growth = np.log(value_after[1] / value[0])[:-1] - np.log1p(-last) - hazard_low * slope
    ratios = np.array([mills(_quantile(p))[0] + mills(_quantile(q))[0] for p, q in zip(tail[1], whole, strict=True)])
    steps = hazard * ratios[:-1] / 2 * np.exp(np.maximum(0, (width - 1) * growth))
    return float(steps[tail[1, :-1] >= TAU].max()) * (1 + _ROUNDING)


def _quantile(probability: float) -> float:
    """Return z with P(N(0, 1) >= z) = `probability`."""
    return -NormalDist().inv_cdf(probability)


def _enclosed(uniforms: int, noise_bits: int, sd: float, x: Floats, survival: bool) -> Bounds:
    """Return bounds of P(Z - EZ = x) or P(Z - EZ >= x): Fourier sums along lines on which terms hardly cancel.

    With s = θ + iω and the law of Z tilted by e^θx, both are means over ω of exp(K Λ(s) - s x), K uniform numbers; the
    second with the factor 1/(1 - e^-s), θ > 0. A uniform number on 0..2^a - 1 is a sum of independent bits of weights
    2^i, so Λ(s) = Σ ln cosh(2^i s/2).
    """
    tilt = np.maximum(x / sd**2, _TILT_MIN / sd) if survival else x / sd**2
    period = math.ceil(_PERIOD * sd)
    frequency = 2 * math.pi / period * np.arange(math.ceil(_BAND * period / (2 * math.pi * sd)) + 1)
    size, angle = np.zeros((2, len(x), len(frequency)))
    for bit in range(noise_bits):
        a, b = tilt[:, np.newaxis] * 2.0 ** (bit - 1), frequency * 2.0 ** (bit - 1)
        size += np.log1p(np.sinh(a) ** 2 - np.sin(b) ** 2) / 2
        angle += np.arctan(np.tanh(a) * np.tan(b))
    size = np.exp(uniforms * size - (tilt * x)[:, np.newaxis])
    angle = uniforms * angle - x[:, np.newaxis] * frequency
    size[:, 1:] *= 2  # ω and -ω
    if survival:
        theta = tilt[:, np.newaxis]
        distance = 2 * (np.sinh(theta / 2) ** 2 + np.sin(frequency / 2) ** 2)
        real, imaginary = (1 + np.sinh(theta) / distance) / 2, -np.sin(frequency) / distance / 2
        terms, sizes = size * (real * np.cos(angle) - imaginary * np.sin(angle)), size * (real + abs(imaginary))
    else:
        terms, sizes = size * np.cos(angle), size
    middle, radius = terms.sum(axis=1) / period, sizes.sum(axis=1) / period * _RADIUS
    return np.stack([middle - radius, middle + radius])
