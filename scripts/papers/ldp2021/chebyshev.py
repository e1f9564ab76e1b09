"""The sigmoid as a polynomial, by its Chebyshev series on [-R, R], and the polynomial's mean under a normal law.

    σ(u) ≈ Σ_k a_k T_k(u/R) = Σ_m b_m uᵐ,  k, m = 0 ... M                       (LDP paper 2021, section 7, eq. 12)

The a_k belong to Chebyshev's polynomials T_k and not to powers: each T_k is expanded, and then u/R. (To use the a_k as
coefficients of powers, as has been published, is another function.)

**What order 2 is.** σ - ½ is odd, so all even b_m but b_0 = ½ vanish: order 2 is order 1, a straight line, and order 4
is order 3. On the paper's [-3, 3] they are off by up to 0.067 and 0.011. Beyond R a polynomial soon leaves [0, 1], so
that its mean under a wide normal law need not be a probability any more, and the likelihood could be negative. So
`clipped` brings it into [CLIP, 1 - CLIP]; the two labels' probabilities still add up to 1, and the row says nothing
more of θ through its label. From order 4 on a polynomial turns around (order 4 at ±2.9, for R = 3): θ may have several
modes, and chains may not mix.
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
ORDER_MAX = 20  # powers of an expanded T_k nearly cancel: at 20 they cost 8 of 16 digits
CLIP = 1e-6
"""How near to 0 and 1 a polynomial's mean may come."""
_NODES = 512


@cache
def sigmoid(order: int, radius: float = RADIUS) -> NDArray[np.float64]:
    """b_0 ... b_order, the coefficients of the powers of u, for an M of 0 to 20 and an R above 0, else `DataError`."""
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
    """E[Σ b_k uᵏ] of u ~ N(m, v), exact, by E[uᵏ⁺¹] = m E[uᵏ] + k v E[uᵏ⁻¹]; b is the constant first."""
    before, moment = jnp.zeros_like(m), jnp.ones_like(m)
    total = coefficients[0] * moment
    for k, coefficient in enumerate(coefficients[1:].tolist()):
        before, moment = moment, m * moment + k * v * before
        total += coefficient * moment
    return total


@cache
def clipped(order: int, radius: float = RADIUS) -> Mean:
    """The polynomial's mean as `perturbed` takes it: one object for the same options, compiled once."""
    return lambda m, v: jnp.clip(mean(sigmoid(order, radius), m, v), CLIP, 1 - CLIP)
