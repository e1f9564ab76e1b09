"""The number of iterations that share the budget, planned from the first round's noise.

    N  clients          E  epochs: the number of rounds in which each client takes part
    B  clients a round  L = ⌊E N/B⌋  iterations
    d  parameters       r  noise standard deviation, per unit of sensitivity, of one round with all the remaining budget
    C  clipping norm, so a round's sensitivity is 2C: one client's gradient is replaced by another

A client's budget is divided evenly among its E rounds, μ_round² = μ²/E, so a round's noise has a standard
deviation of 2C r√E.

**The noise does not limit E.** The mean gradient of B clients has noise 2C r√E/B; averaged over L rounds that is

    2C r √E / (B √L) = 2C r / √(B N),

whatever E is. More iterations cost rounds but no accuracy, so there should be enough to make the optimisation error no
larger than the noise. (This holds as long as steps average over many rounds. If noise dominates each step, short noisy
steps wander; hence the upper limit.)

**The optimisation error** of L steps with momentum falls about as 1/L (between 1/√L for gradients of bounded norm and
1/L² for smooth functions with momentum, at best), relative to the start, where the mean gradient's norm is at most C.
The noise's norm relative to C is √d · 2r/√(BN) = 1/ς. They are equal at

    L = ς = √(BN) / (2 r √d),      E = ⌈L B/N⌉,      kept within 10 <= L <= 60 (and E >= 1).

C cancels. If N/B is above 60, a single epoch has that many iterations.

**Batches save messages, not privacy.** By the formula above a batch of B has √(N/B) times the noise of all clients. The
broker and the Compute nodes see who takes part, so random choice of clients adds no privacy; it only means that fewer
clients hide in each sum. So by default B is all clients; a smaller one is for fewer messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

from dca_proto.aggregate import NoisyAggregate
from inference.errors import DataError
from inference.jobs.base import Conditions, Stage

ITERATIONS_MIN, ITERATIONS_MAX = 10, 60
BATCH = "Clients in a mini-batch, starting with those asked least often; 0 asks all."
PILOTED_MAX = 20  # after a pilot round, which leads near the solution: 40 and 60 gave intervals of the same coverage


@dataclass(frozen=True)
class Schedule:
    """The rounds after the first.

    Attributes:
        epochs: E. batch: B, or 0 for all clients. iterations: L. share: each round's share of the whole job's μ².
    """

    epochs: int
    batch: int
    iterations: int
    share: float


def schedule(
    clients: int,
    noise_per_sensitivity: float,
    dimension: int,
    left: float,
    *,
    epochs: int | None = None,
    batch: int = 0,
    iterations_max: int = ITERATIONS_MAX,
) -> Schedule:
    """Return the schedule derived at the head of this file.

    Args:
        clients: N. noise_per_sensitivity: r. dimension: d.
        left: the share of the job's μ² that remains for these rounds.
        epochs: E, or None to plan it. batch: B, or 0 for all clients.
        iterations_max: the largest L to plan.

    Raises:
        DataError: the batch is larger than N.
    """
    if batch > clients:
        raise _too_large(batch, clients)
    size = batch or clients
    if epochs is None:
        ratio = signal_to_noise(clients, size, noise_per_sensitivity, dimension)
        wanted = min(max(ratio, ITERATIONS_MIN), iterations_max)
        epochs = max(1, ceil(wanted * size / clients - 1e-9))
    return Schedule(epochs, batch, floor(epochs * clients / size), left / epochs)


def schedule_after(
    phases: NoisyAggregate,
    share: float,
    dimension: int,
    *,
    epochs: int | None,
    batch: int,
    iterations_max: int = ITERATIONS_MAX,
    left: float | None = None,
) -> Schedule:
    """Return the schedule after the first round.

    Args:
        phases: the first round's result, which gives r and N, the number of contributors. share: the first round's, of
            the job's μ². left: the iterations' share, by default the rest. Others as in `schedule`. If no more than B
            clients contributed, all are asked.

    Raises:
        DataError: the batch is larger than the federation.
    """
    if batch > phases.clients:
        raise _too_large(batch, phases.clients)
    left = 1 - share if left is None else left
    noise = sqrt(phases.noise_variance * share / left) / phases.sensitivity
    size = batch if batch < phases.contributors else 0
    n = phases.contributors
    return schedule(n, noise, dimension, left, epochs=epochs, batch=size, iterations_max=iterations_max)


def stages(
    dimension: int,
    first: float,
    epochs: int | None,
    batch: int,
    conditions: Conditions,
    iterations_max: int = ITERATIONS_MAX,
    pilot: Sequence[Stage] = (),
) -> list[Stage]:
    """Return a job's plan: a round for scales, a pilot's rounds, and about as many iterations as it will plan later.

    Args:
        dimension: d. first: the first round's share of the budget. epochs, batch, iterations_max: see `schedule`.
        pilot: rounds between the first and the iterations.
    """
    n, left = conditions.clients, 1 - first - sum(stage.total for stage in pilot)
    honest = max(1, n - conditions.tolerate - 1)
    noise = sqrt(n / honest / left) / conditions.mu
    planned = schedule(n, noise, dimension, left, epochs=epochs, batch=batch, iterations_max=iterations_max)
    words = f"on {'' if epochs else 'about '}{planned.iterations} iterations"
    iterations = Stage(planned.iterations, planned.share, words, planned.batch, uses=planned.epochs)
    return [Stage(1, first, "on scales"), *pilot, iterations]


def _too_large(batch: int, clients: int) -> DataError:
    return DataError(
        f"a batch of {batch} clients was requested and {clients} are available; request fewer, or 0 for all"
    )


def signal_to_noise(clients: int, size: int, noise_per_sensitivity: float, dimension: int) -> float:
    """Return ς: the clipping norm over the norm of the noise in the mean gradient averaged over all rounds."""
    noise = 2 * noise_per_sensitivity * sqrt(dimension)
    return sqrt(size * clients) / noise if noise > 0 else float("inf")
