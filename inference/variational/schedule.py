"""How many iterations the budget is divided among, planned from the first round's noise.

    N  clients          E  epochs: in how many rounds each client takes part
    B  clients a round  L = ⌊E N/B⌋  iterations
    d  parameters       r  standard deviation of the noise per unit of sensitivity of one round with all budget left
    C  clipping norm, so the sensitivity of a round is 2C: a client's gradient is replaced by another one

A client's budget is divided evenly among its E rounds, μ_round² = μ²/E, so a round's noise has a standard
deviation of 2C r√E.

**The noise does not limit E.** The mean gradient of B clients has noise 2C r√E/B; averaged over L rounds that is

    2C r √E / (B √L) = 2C r / √(B N),

whatever E is. Iterations cost rounds and no accuracy, so there should be enough of them for the optimisation error to
be no larger than the noise. (This holds as long as steps average over many rounds: where each is drowned in noise,
short noisy steps wander; hence the upper end.)

**The optimisation error** of L steps with momentum falls about as 1/L (between 1/√L of a gradient of bounded norm and
1/L² of a smooth one, without momentum and with it at best), relative to where it starts, where the mean gradient's norm
is at most C. The noise's norm relative to C is √d · 2r/√(BN) = 1/ς. Equal at

    L = ς = √(BN) / (2 r √d),      E = ⌈L B/N⌉,      kept within 10 <= L <= 60 (and E >= 1).

C cancels. What upper ends of 30, 60 and 120 are worth is measured at the head of `mean_field_job`. Where N/B is
above 60 a single epoch is that many iterations.

**Batches save messages, not privacy.** The formula for the noise says that a batch of B costs √(N/B) times the noise of
everybody: who takes part is seen by the broker and the Compute nodes, so nothing can be claimed for the randomness of
the choice, and what is left is that fewer clients hide in each sum. So B is everybody unless the caller wants fewer
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

from dca_proto.aggregate import NoisyAggregate
from inference.errors import DataError
from inference.jobs.base import Conditions, Stage

ITERATIONS_MIN, ITERATIONS_MAX = 10, 60
BATCH = "Clients of a mini-batch, those first that were asked least often; 0 asks all."
PILOTED_MAX = 20  # where a pilot round leads near the solution: 40 and 60 gave intervals of the same coverage


@dataclass(frozen=True)
class Schedule:
    """Rounds after the first.

    Attributes:
        epochs: E. batch: B, or 0 for everybody. iterations: L. share: of the whole job's μ², of each of them.
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
    """The schedule above.

    Args:
        clients: N. noise_per_sensitivity: r. dimension: d.
        left: share of the job's μ² that is left for these rounds.
        epochs: E, if the caller wants to say it. batch: B, or 0 for everybody.
        iterations_max: the largest L that is planned.

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
    """The schedule, once the first round is there.

    Args:
        phases: its result, of which r and N are known; N are those that contributed. share: of the job's μ² that it
            had. left: for the iterations, by default all but that. Others as for `schedule`. Where no more than B
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
    """A job's plan: a round for scales, those of a pilot, and about as many iterations as it will plan after the first.

    Args:
        dimension: d. first: the first round's share of the budget. epochs, batch, iterations_max: as of `schedule`.
        pilot: rounds between the first and the iterations.
    """
    n, left = conditions.clients, 1 - first - sum(one.total for one in pilot)
    honest = max(1, n - conditions.tolerated - 1)
    noise = sqrt(n / honest / left) / conditions.mu
    found = schedule(n, noise, dimension, left, epochs=epochs, batch=batch, iterations_max=iterations_max)
    words = f"on {'' if epochs else 'about '}{found.iterations} iterations"
    iterations = Stage(found.iterations, found.share, words, found.batch, uses=found.epochs)
    return [Stage(1, first, "on scales"), *pilot, iterations]


def _too_large(batch: int, clients: int) -> DataError:
    return DataError(f"a batch of {batch} of {clients} clients; ask for at most all of them, which is 0")


def signal_to_noise(clients: int, size: int, noise_per_sensitivity: float, dimension: int) -> float:
    """ς: the clipping norm over the norm of the noise, in the mean gradient averaged over all rounds."""
    noise = 2 * noise_per_sensitivity * sqrt(dimension)
    return sqrt(size * clients) / noise if noise > 0 else float("inf")
