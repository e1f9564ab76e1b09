"""JAX settings for tests of compiled samplers: double precision, and hardly any optimisation by the compiler.

These tests spend most of their time compiling, and small programs gain nothing from passes that take half of it.
Results are the same but for rounding; `test_joint_distribution` runs the samplers with the usual compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_and_double() -> Iterator[None]:
    """While it is open."""
    import jax

    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, True)
    try:
        with jax.enable_x64(True):
            yield
    finally:
        jax.config.update(name, before)
