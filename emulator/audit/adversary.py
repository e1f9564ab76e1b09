"""The adversary: subtracts all it knows, projects the rest on one line, and guesses which world it is in.

It knows the contributions of its own clients (data and noise) and, as differential privacy assumes, the data of all
other clients. It knows that the victim's row is x or x'. The rest of the sum is half of x - x', with one sign or the
other, plus the noises of the honest clients. For Gaussian noise of covariance Σ, the position along Σ⁻¹(x - x') is a
sufficient statistic (Neyman and Pearson). So the adversary uses that one number, and guesses world 0 above a threshold.

Σ depends on the audited program, so it is estimated on separate survey runs. For a correct program it is a multiple of
the identity, and the line is x - x'. The adversary uses another line only if the survey runs show with near certainty
that Σ differs. The same runs give the line of least noise. The noise is judged there too, and along each coordinate.
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
"""Least and largest number of runs of each world, with the ideal functionality and with real actors."""
_HOURS_MAX = 6
_DRAWS_PER_S, _ACTOR_S, _CLIENT_S = 1e7, 3e-3, 1.5e-4
"""Measured on one core: 10 to 20 million exact noise draws a second, one for each client, run and coordinate; real
actors take about 3 ms for each client of a round."""
_SURVEY = 20_000
_CERTAIN = math.sqrt(2 * math.log(2 / 1e-6))
_RIDGE = 1e-9  # part of the largest eigenvalue, added so that Σ⁻¹ stays finite; a line without noise still dominates


class Adversary:
    """Subtracts what a coalition knows from what it sees.

    Args:
        world: the two worlds and the coalition. programme: the program of all clients, which is public.

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
        """Return the rest of each run, ±step/2 plus noise: shape ``(runs, world.size)``, in the statistic's units."""
        rest: NDArray[np.float64] = ((seen.total - seen.own - self._others) - self._middle) * self._unit
        return rest


class Observations(NamedTuple):
    """Some runs of each world: their positions on a line, and the second moments of their noise."""

    samples: Samples
    noise: Scatter


class Experiment(NamedTuple):
    """What an adversary saw: `pilot` runs, to choose thresholds, and `main` runs, to count errors.

    Attributes:
        noise: of the main runs. lines: unit vectors, shape ``(k, world.size)``, chosen before the main runs: first
            the line of the attack, then (if there are two coordinates or more) others on which the noise is judged.
    """

    pilot: Samples
    main: Samples
    noise: Scatter
    lines: NDArray[np.float64]


def experiment(
    rounds: Rounds, adversary: Adversary, pilot: int, runs: int, progress: Progress = lambda done: None
) -> Experiment:
    """Run the survey, `pilot` and `runs` runs in each world. `progress` is called with the number of runs just done."""
    step, survey = adversary.step, survey_runs(adversary.step.size, pilot)
    lines = lines_of(step, observe(rounds, adversary, step, survey, progress).noise)
    pilot_runs = observe(rounds, adversary, lines[0], pilot, progress)
    main = observe(rounds, adversary, lines[0], runs, progress)
    return Experiment(pilot_runs.samples, main.samples, main.noise, lines)


def observe(
    rounds: Rounds,
    adversary: Adversary,
    line: NDArray[np.float64],
    runs: int,
    progress: Progress = lambda done: None,
) -> Observations:
    """Run `runs` runs in each world and project them on `line`; their coordinates are not kept."""
    noise = Scatter(adversary.step.size)
    samples = (np.empty(runs), np.empty(runs))
    for side, signal in ((0, adversary.step / 2), (1, -adversary.step / 2)):
        first = 0
        for seen in rounds.run_rounds(side, runs):
            rest = adversary.residual(seen)
            samples[side][first : first + len(rest)] = rest @ line
            noise.add(side, rest - signal)
            progress(len(rest))
            first += len(rest)
    return Observations(samples, noise)


def survey_runs(size: int, pilot: int) -> int:
    """Return the number of runs of each world that estimate the noise's covariance; 0 for a single coordinate."""
    return min(pilot, _SURVEY) if size > 1 else 0


def lines_of(step: NDArray[np.float64], noise: Scatter) -> NDArray[np.float64]:
    """Return the line of the attack, the line of least noise, and each coordinate; see `Experiment.lines`."""
    attack = _attack(step, noise)
    if step.size == 1:
        return attack[None]
    _, vectors = np.linalg.eigh(noise.covariance)
    return np.vstack([attack, vectors[:, 0], np.eye(step.size)])


def _attack(step: NDArray[np.float64], noise: Scatter) -> NDArray[np.float64]:
    """Return Σ⁻¹(x - x') if Σ is, with near certainty, no multiple of the identity; else x - x'. The length is 1.

    The eigenvalues of a sample covariance of σ²I lie within σ²(1 ± doubt)², except once in a million times (Davidson
    and Szarek 2001, theorem 2.13).
    """
    values, vectors = np.linalg.eigh(noise.covariance)
    doubt = (math.sqrt(step.size) + _CERTAIN) / math.sqrt(max(noise.degrees, 1))
    least, most = max(float(values[0]), 0.0), float(values[-1])
    if doubt >= 1 or most * (1 - doubt) ** 2 <= least * (1 + doubt) ** 2:
        return step / np.linalg.norm(step)
    bent: NDArray[np.float64] = vectors @ ((vectors.T @ step) / (np.maximum(values, 0.0) + _RIDGE * most))
    return bent / np.linalg.norm(bent)


def require_runs(runs: int, protocol: bool) -> None:
    """Raise `UsageError` if there are too few or too many runs."""
    least, most = RUNS_PROTOCOL if protocol else RUNS
    if not least <= runs <= most:
        raise UsageError(f"--rounds {runs}: expected {least} to {most}; fewer prove nothing, more do not fit in memory")


def pilot_runs(runs: int, protocol: bool) -> int:
    """Return the number of additional runs of each world that choose the thresholds."""
    return max(runs // 10, (RUNS_PROTOCOL if protocol else RUNS)[0] // 2)


def require_time(clients: int, size: int, runs: int, protocol: bool) -> None:
    """Refuse an audit of `clients` clients and `size` coordinates that would take more than six hours.

    Raises:
        UsageError: the audit would take too long; the message states how many runs, or clients, are possible.
    """

    def rounded(number: int) -> int:
        """Round down to two digits."""
        scale = int(10.0 ** max(0, len(str(number)) - 2))
        return number // scale * scale

    pilot, run_s = pilot_runs(runs, protocol), _ACTOR_S if protocol else size / _DRAWS_PER_S
    total = runs + pilot + survey_runs(size, pilot)
    client_s, limit_s = _CLIENT_S + 2 * total * run_s, _HOURS_MAX * 3600
    hours = clients * client_s / 3600
    if hours <= _HOURS_MAX:
        return
    fewer = int((limit_s / clients - _CLIENT_S) / (2 * run_s) * runs / total)
    least = (RUNS_PROTOCOL if protocol else RUNS)[0]
    advice = f"--rounds {rounded(fewer)} or " if fewer >= least else ""
    raise UsageError(
        f"--rounds {runs} of {clients} clients would take about {hours:,.0f} hours; take at most {advice}"
        f"--clients {rounded(int(limit_s / client_s))} (six hours)"
    )
