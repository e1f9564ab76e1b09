"""JAX settings for tests of compiled samplers: hardly any optimisation by the compiler, and double precision.

These tests spend most of their time compiling, and small programs gain nothing from passes that take half of it.
Results are the same but for rounding; `test_joint_distribution` runs the samplers with the usual compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def quick() -> Iterator[None]:
    """Hardly optimise while it is open; without JAX there is nothing to compile."""
    if find_spec("jax") is None:
        yield
        return
    import jax

    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, before)


@contextmanager
def quick_and_double() -> Iterator[None]:
    """While it is open."""
    import jax

    with quick(), jax.enable_x64(True):
        yield
