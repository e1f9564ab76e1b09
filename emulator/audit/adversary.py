"""The adversary: subtracts all it knows, looks along one line, and guesses which world it is in.

It knows what its own clients put in (data and noise) and, as differential privacy has it in the worst case, the data of
all other clients; of the victim it knows that the row is x or x'. What is left is half of x - x', with one sign or the
other, and the noises of the honest clients. For Gaussian noise of covariance Σ the position along Σ⁻¹(x - x') holds all
that can be learned (Neyman and Pearson), so the adversary looks at that one number, and guesses world 0 above a
threshold.

Σ is what the program makes it, so it is measured, on runs of their own. A correct program's is a multiple of the
identity, and then the line is x - x'; it is bent only where those runs show with near certainty that Σ is another. The
same runs say along which line the noise is least; the noise is judged there too, and along each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from emulator.audit.bounds import Samples, Scatter
from emulator.audit.programme import Programme, Rounds, Seen
from emulator.audit.worlds import World
from emulator.claim import VICTIM

Progress = Callable[[int], None]

RUNS, RUNS_PROTOCOL = (1000, 20_000_000), (100, 100_000)
"""How many runs of each world may be asked for: the ideal functionality's, and the real actors'."""
_HOURS_MAX = 6
_DRAWS_PER_S, _ACTOR_S, _CLIENT_S = 1e7, 3e-3, 1.5e-4
"""Measured on one core: 10 to 20 million exact noise draws a second, one for each client, run and coordinate; about
3 ms for each client of a round that real actors hold."""
_SURVEY = 20_000
_CERTAIN = math.sqrt(2 * math.log(2 / 1e-6))
_RIDGE = 1e-9  # of the largest eigenvalue: a line without noise has the say, and Σ⁻¹ stays finite


class Adversary:
    """What a coalition makes of what it sees.

    Args:
        world: the two worlds and the coalition. programme: what all clients run, which is public.

    Attributes:
        step: x - x' as released, shape ``(world.size,)``, in the statistic's units.
    """

    def __init__(self, world: World, programme: Programme) -> None:
        outside = [client for client in world.present if client not in (VICTIM, *world.coalition)]
        self._others = np.zeros(world.size, dtype=np.int64)
        for client in outside:
            self._others += programme.encode(world, client, 0)
        zero, one = (programme.encode(world, VICTIM, side) for side in (0, 1))
        self._middle = (zero + one) / 2
        self._unit = world.validated.unit
        self.step = np.asarray((zero - one) * self._unit, dtype=np.float64)

    def residual(self, seen: Seen) -> NDArray[np.float64]:
        """What is left of each run, shape ``(runs, world.size)``, in the statistic's units: ±step/2 and noise."""
        left: NDArray[np.float64] = ((seen.total - seen.own - self._others) - self._middle) * self._unit
        return left


class Watched(NamedTuple):
    """Some runs of each world: where each lies on a line, and the second moments of their noise."""

    samples: Samples
    noise: Scatter


class Experiment(NamedTuple):
    """What an adversary saw: `pilot` runs to choose thresholds on, and other runs to count errors on.

    Attributes:
        noise: of the main runs. lines: vectors of length 1, shape ``(k, world.size)``, chosen before the main runs:
            first the one on which the adversary looks, then (of two coordinates or more) others to judge the noise on.
    """

    pilot: Samples
    main: Samples
    noise: Scatter
    lines: NDArray[np.float64]


def experiment(
    rounds: Rounds, adversary: Adversary, pilot: int, runs: int, progress: Progress = lambda done: None
) -> Experiment:
    """Hold `survey_runs`, `pilot` and `runs` runs in each world. `progress` is called with how many more are done."""
    step, surveyed = adversary.step, survey_runs(adversary.step.size, pilot)
    lines = lines_of(step, watch(rounds, adversary, step, surveyed, progress).noise)
    chosen = watch(rounds, adversary, lines[0], pilot, progress)
    main = watch(rounds, adversary, lines[0], runs, progress)
    return Experiment(chosen.samples, main.samples, main.noise, lines)


def watch(
    rounds: Rounds,
    adversary: Adversary,
    line: NDArray[np.float64],
    runs: int,
    progress: Progress = lambda done: None,
) -> Watched:
    """Hold `runs` runs in each world and look along `line`. No run's coordinates are kept."""
    noise = Scatter(adversary.step.size)
    samples = (np.empty(runs), np.empty(runs))
    for side, signal in ((0, adversary.step / 2), (1, -adversary.step / 2)):
        first = 0
        for seen in rounds.hold(side, runs):
            left = adversary.residual(seen)
            samples[side][first : first + len(left)] = left @ line
            noise.add(side, left - signal)
            progress(len(left))
            first += len(left)
    return Watched(samples, noise)


def survey_runs(size: int, pilot: int) -> int:
    """How many runs of each world show the noise's covariance; along a single coordinate there is nothing to choose."""
    return min(pilot, _SURVEY) if size > 1 else 0


def lines_of(step: NDArray[np.float64], noise: Scatter) -> NDArray[np.float64]:
    """Where to look: for the guess, where the noise is least, and along each coordinate; see `Experiment.lines`."""
    attack = _attack(step, noise)
    if step.size == 1:
        return attack[None]
    _, vectors = np.linalg.eigh(noise.covariance)
    return np.vstack([attack, vectors[:, 0], np.eye(step.size)])


def _attack(step: NDArray[np.float64], noise: Scatter) -> NDArray[np.float64]:
    """Along Σ⁻¹(x - x'), where Σ is no multiple of the identity with near certainty; else along x - x'.

    The eigenvalues of a sample covariance of σ²I lie within σ²(1 ± doubt)² but once in a million times (Davidson and
    Szarek 2001, theorem 2.13).
    """
    values, vectors = np.linalg.eigh(noise.covariance)
    doubt = (math.sqrt(step.size) + _CERTAIN) / math.sqrt(max(noise.degrees, 1))
    least, most = max(float(values[0]), 0.0), float(values[-1])
    if doubt >= 1 or most * (1 - doubt) ** 2 <= least * (1 + doubt) ** 2:
        return step / np.linalg.norm(step)
    bent: NDArray[np.float64] = vectors @ ((vectors.T @ step) / (np.maximum(values, 0.0) + _RIDGE * most))
    return bent / np.linalg.norm(bent)


def require_runs(runs: int, protocol: bool) -> None:
    """Refuse a number of runs by itself. Raises `UsageError`."""
    least, most = RUNS_PROTOCOL if protocol else RUNS
    if not least <= runs <= most:
        raise UsageError(f"--runs {runs}: expected {least} to {most}; fewer prove nothing, more do not fit in memory")


def pilot_runs(runs: int, protocol: bool) -> int:
    """How many further runs of each world choose the thresholds."""
    return max(runs // 10, (RUNS_PROTOCOL if protocol else RUNS)[0] // 2)


def require_time(clients: int, size: int, runs: int, protocol: bool) -> None:
    """Refuse an audit of `clients` clients and `size` coordinates that would take more than six hours.

    Raises:
        UsageError: how many runs, or clients, there may be.
    """

    def rounded(number: int) -> int:
        """Down to two digits."""
        scale = int(10.0 ** max(0, len(str(number)) - 2))
        return number // scale * scale

    pilot, run_s = pilot_runs(runs, protocol), _ACTOR_S if protocol else size / _DRAWS_PER_S
    held = runs + pilot + survey_runs(size, pilot)
    client_s, limit_s = _CLIENT_S + 2 * held * run_s, _HOURS_MAX * 3600
    hours = clients * client_s / 3600
    if hours <= _HOURS_MAX:
        return
    fewer = int((limit_s / clients - _CLIENT_S) / (2 * run_s) * runs / held)
    least = (RUNS_PROTOCOL if protocol else RUNS)[0]
    advice = f"--runs {rounded(fewer)} or " if fewer >= least else ""
    raise UsageError(
        f"--runs {runs} of {clients} clients would take about {hours:,.0f} hours; take at most {advice}"
        f"--clients {rounded(int(limit_s / client_s))} (six hours)"
    )
