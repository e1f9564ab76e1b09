"""The samplers of centred features by the name of their method, for experiments on many problems at once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from emulator.experiments.distributed.data import Array
from inference.distributed_regression.kernel import Kernel
from inference.distributed_regression.methods import METHODS, REQUIRED
from inference.distributed_regression.observed import Observed

SAMPLED = tuple(name for name, method in METHODS.items() if method.module and method.constant != REQUIRED)


def kernel_of(name: str, observed: Observed | Sequence[Observed], **options: Any) -> Kernel:
    """The kernel of one of `SAMPLED`, with its defaults but for the options, for problems of one shape."""
    method = METHODS[name]
    assert method.module is not None
    module = import_module(method.module)
    made = module.kernel_for(observed, **options) if hasattr(module, "kernel_for") else module.kernel(**options)
    kernel: Kernel = made
    return kernel


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
