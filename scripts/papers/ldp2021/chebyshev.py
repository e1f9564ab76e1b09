"""The sigmoid as a polynomial, by its Chebyshev series on [-R, R], and the polynomial's mean under a normal law.

    σ(u) ≈ Σ_k a_k T_k(u/R) = Σ_m b_m uᵐ,  k, m = 0 ... M                       (LDP paper 2021, section 7, eq. 12)

The a_k are coefficients of Chebyshev's polynomials T_k, not of powers: the code expands each T_k, then u/R. (Taking the
a_k for coefficients of powers, as has been published, gives another function.)

**Even orders.** σ - ½ is odd, so all even b_m but b_0 = ½ vanish: order 2 is order 1, a straight line, and order 4 is
order 3. On the paper's [-3, 3] their errors reach 0.067 and 0.011. Beyond R a polynomial soon leaves [0, 1]: its mean
under a wide normal law need not be a probability, and the likelihood could be negative. So `clipped` limits the mean to
[CLIP, 1 - CLIP]. The two labels' probabilities still add up to 1, and a clipped row's label has no information on θ.
From order 4 on a polynomial turns around (order 4 at ±2.9, for R = 3): θ may have several modes, and chains may not
mix.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.special import expit

from inference.errors import DataError
from inference.models.glm.perturbed import Mean

Array: TypeAlias = Any
"""A float64 array, JAX's or NumPy's."""
RADIUS = 3.0  # the paper's (figure 6)
ORDER_MAX = 20  # powers of an expanded T_k nearly cancel: order 20 loses 8 of 16 digits
CLIP = 1e-6
"""The least distance of a polynomial's mean from 0 and 1."""
_NODES = 512


@cache
def sigmoid(order: int, radius: float = RADIUS) -> NDArray[np.float64]:
    """Return b_0 ... b_order, the coefficients of the powers of u; raise `DataError` for M not in 0...20 or R <= 0."""
    if not 0 <= order <= ORDER_MAX:
        raise DataError(f"a Chebyshev order of {order}; give one from 0 to {ORDER_MAX}, or None for the exact sigmoid")
    if not 0 < radius < np.inf:
        raise DataError(f"a Chebyshev radius of {radius:g}; give a finite number above 0")
    series = chebyshev.chebinterpolate(lambda x: expit(radius * x), _NODES)[: order + 1]
    series[2::2] = 0  # but for rounding
    powers = chebyshev.cheb2poly(series)
    coefficients: NDArray[np.float64] = np.pad(powers, (0, order + 1 - powers.size)) / radius ** np.arange(order + 1)
    coefficients.flags.writeable = False
    return coefficients


def mean(coefficients: NDArray[np.float64], m: Array, v: Array) -> Array:
    """Return E[Σ b_k uᵏ] for u ~ N(m, v), exactly, by E[uᵏ⁺¹] = m E[uᵏ] + k v E[uᵏ⁻¹]; b has the constant first."""
    before, moment = jnp.zeros_like(m), jnp.ones_like(m)
    total = coefficients[0] * moment
    for k, coefficient in enumerate(coefficients[1:].tolist()):
        before, moment = moment, m * moment + k * v * before
        total += coefficient * moment
    return total


@cache
def clipped(order: int, radius: float = RADIUS) -> Mean:
    """Return the polynomial's mean as a function for `perturbed`; the same object for the same options."""
    return lambda m, v: jnp.clip(mean(sigmoid(order, radius), m, v), CLIP, 1 - CLIP)
