"""Draws and factors that the compiled samplers share, by Cholesky factors and triangular solves.

    W(Σ, ν)     Wishart, mean νΣ: with Σ = LLᵀ and Bartlett's A, (LA)(LA)ᵀ ~ W(Σ, ν), and LA is its Cholesky factor
    IW(Λ, ν)    inverse-Wishart: the inverse of W(Λ⁻¹, ν); with Λ = UUᵀ and G = U⁻ᵀA, GGᵀ ~ W(Λ⁻¹, ν)

(Bartlett 1933; Smith and Hocking 1972, algorithm AS 53.) Matrices have any leading axes, the last two are theirs. A
factorisation that fails numerically gives nan, here as everywhere in JAX; the kernels look for it and reject.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from papers.mcmc2023.samplers.kernel import Array


class Noise:
    """All standard normals of one step, drawn at once and handed out in order.

    A generator costs a second of compilation at each place that calls it, and is fast for long vectors: so a step has
    one. A uniform number is Φ of a normal.
    """

    def __init__(self, key: Array, count: int) -> None:
        self._left = jax.random.normal(key, (count,))

    def normals(self, *shape: int) -> Array:
        """The next standard normals."""
        count = math.prod(shape)
        taken, self._left = self._left[:count], self._left[count:]
        assert taken.size == count, "a step counts its random numbers beforehand"
        return taken.reshape(shape)

    def log_uniforms(self, *shape: int) -> Array:
        """ln U of the next uniform numbers."""
        return jnp.log(jax.lax.erfc(-self.normals(*shape) / math.sqrt(2)) / 2)


def bartlett_count(d: int) -> int:
    """How many normals `bartlett` takes for one matrix."""
    return d * (d - 1) // 2 + 2 * d


def bartlett(noise: Noise, degrees: Array, d: int) -> tuple[Array, Array]:
    """Lower triangular A with AAᵀ ~ W(I, ν), and whether it is one, for each ν >= d + 1.

    Its terms are independent: A_ii² ~ χ²(ν - i) for i = 0, 1, ..., and N(0, 1) below the diagonal. χ² is drawn by one
    candidate of Marsaglia and Tsang's method (2000), of which at most one in twenty is refused, and next to none where
    ν is large. They try again until one is accepted; here the caller stays where it is. That leaves its target
    invariant just as well, for how often it happens depends on ν alone and not on the state.

    Returns:
        A, shape ``degrees.shape + (d, d)``, and whether its candidates were accepted, shape ``degrees.shape``.
    """
    shape = (*jnp.shape(degrees), d)
    third = (jnp.asarray(degrees)[..., None] - jnp.arange(d)) / 2 - 1 / 3
    normal = noise.normals(*shape)
    cube = (1 + normal / jnp.sqrt(9 * third)) ** 3
    valid = jnp.where(cube > 0, cube, 1.0)
    bound = normal**2 / 2 + third * (1 - valid + jnp.log(valid))
    accepted = (cube > 0) & (noise.log_uniforms(*shape) < bound)
    rest = _triangle(noise.normals(*shape[:-1], d * (d - 1) // 2), d)
    return rest + jnp.sqrt(2 * third * valid)[..., None] * jnp.eye(d), jnp.all(accepted, axis=-1)


def _triangle(values: Array, d: int) -> Array:
    """Values in order of rows below the diagonal of a d-by-d matrix that is zero elsewhere."""
    place = np.full((d, d), values.shape[-1])
    place[np.tril_indices(d, -1)] = np.arange(values.shape[-1])
    return jnp.concatenate([values, jnp.zeros_like(values, shape=(*values.shape[:-1], 1))], axis=-1)[..., place]


def precision_of(factors: tuple[Array, Array]) -> Array:
    """Σ⁻¹ = GGᵀ of Σ ~ IW(UUᵀ, ν), G = U⁻ᵀA with Bartlett's A."""
    U, A = factors
    G = solved(U, A, transpose=True)
    return G @ transposed(G)


def covariance_of(factors: tuple[Array, Array]) -> Array:
    """Σ = HᵀH of the same factors, H = A⁻¹Uᵀ: no inverse of an inverse."""
    U, A = factors
    H = solved(A, transposed(U))
    return transposed(H) @ H


def gaussian(noise: Noise, precision: Array, shift: Array) -> Array:
    """A draw from N(P⁻¹h, P⁻¹): with P = RRᵀ, R⁻ᵀ(R⁻¹h + ε), ε ~ N(0, I).

    Args:
        precision: P, shape ``(d, d)``. shift: h, shape ``(d,)``.
    """
    R = jnp.linalg.cholesky(precision)
    whitened = solved(R, shift[:, None]) + noise.normals(shift.size, 1)
    return solved(R, whitened, transpose=True)[:, 0]


def log_determinant(root: Array) -> Array:
    """ln |LLᵀ| of a Cholesky factor L."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)


def solved(root: Array, right: Array, *, transpose: bool = False) -> Array:
    """L⁻¹B, or L⁻ᵀB, of lower triangular L and matrices B with the same leading axes."""
    return jax.lax.linalg.triangular_solve(root, right, left_side=True, lower=True, transpose_a=transpose)


def inverse(matrix: Array) -> Array:
    """Of a positive definite matrix."""
    root = jnp.linalg.cholesky(matrix)
    half = solved(root, jnp.broadcast_to(jnp.eye(matrix.shape[-1]), matrix.shape))
    return transposed(half) @ half


def transposed(matrix: Array) -> Array:
    """The last two axes swapped."""
    return jnp.swapaxes(matrix, -1, -2)


def nearest_psd(S: Array, floor: Array | float = 0.0) -> Array:
    """The symmetric matrices with eigenvalues of at least `floor` that are nearest to S (Higham 1988; section 4.2)."""
    values, vectors = jnp.linalg.eigh(S)
    raised = jnp.maximum(values, jnp.asarray(floor)[..., None])
    nearest: Array = (vectors * raised[..., None, :]) @ transposed(vectors)
    return nearest
