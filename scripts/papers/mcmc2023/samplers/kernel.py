"""What a sampler of distributed regression is: a pure transition of one chain on one problem.

The shape is that of blackjax: a state, an init, a step, and here also a `draw` that reads the parameters off a state. A
kernel knows neither chains nor repeats; `sampler` maps it over both and runs it, compiled. All functions can be traced
by JAX and are called in float64.

Compiled code is kept by the functions of a kernel. So a constructor `kernel(...)` of an algorithm returns the same
functions for the same options (`functools.cache`): equal ones that are not the same object would be compiled twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

Array: TypeAlias = jax.Array
State: TypeAlias = Any
"""Whatever a kernel remembers between two steps: a JAX pytree of arrays, its own named tuple."""


class Info(NamedTuple):
    """What a step did.

    Attributes:
        acceptance: by name of the block ("S", "sigma_y2"), the mean of its Metropolis-Hastings acceptance
            probabilities in this step; scalars. Empty where every update is a full conditional.
        divergent: whether the step failed numerically and its proposal was dropped for that; a scalar truth value.
    """

    acceptance: dict[str, Array]
    divergent: Array


class Schedule(NamedTuple):
    """Where in its run a chain is. Proposals may adapt only while ``iteration < warmup``.

    Attributes:
        iteration: 0, 1, ...; a scalar integer.
        warmup: how many of the first iterations are warm-up; a scalar integer.
    """

    iteration: Array
    warmup: Array


class Kernel(NamedTuple):
    """A sampler's transition. `observed` and `prior` are `observed.NodeStatistics` and `observed.Prior` of one problem.

    Attributes:
        name: the method's name ("normal-x").
        init: ``(key, observed, prior) -> State``; overdispersed between keys unless asked otherwise.
        step: ``(key, state, observed, prior, schedule) -> (State, Info)``; leaves the posterior invariant.
        draw: ``(state) -> dict``: "theta" ``(d,)`` and "sigma_y2" ``()``, and where the state has them "Sigma_x"
            ``(d, d)`` and "S" ``(J, d, d)``.
    """

    name: str
    init: Callable[..., State]
    step: Callable[..., tuple[State, Info]]
    draw: Callable[[State], dict[str, Array]]
