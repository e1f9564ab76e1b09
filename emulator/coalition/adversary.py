"""The adversary: subtracts all it knows, projects the rest on one line, and guesses which world it is in.

It knows the contributions of its own clients (data and noise) and, as differential privacy assumes, the data of all
other clients. It knows that the victim's row is x or x'. The rest of the sum is half of x - x', with one sign or the
other, plus the noises of the honest clients. For Gaussian noise of covariance Σ, the position along Σ⁻¹(x - x') is a
sufficient statistic (Neyman and Pearson). So the adversary uses that one number, and guesses world 0 above a threshold.

Σ depends on the audited program, so it is estimated on separate survey runs. For a correct program it is a multiple of
the identity, and the line is x - x'. The adversary uses another line only if the survey runs show with near certainty
that Σ differs. The same runs give the line of least noise. The noise is judged there too, along each coordinate, along
the sum and the alternating sum of all, along differences of neighbours, and along sums with random signs.

The variance along a line shows neither another law nor noise that runs share. So `emulator.shape` judges the noise of
the main runs against the law of the honest clients' noises, and the noise of single clients against theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from emulator.claim import VICTIM
from emulator.coalition.bounds import Samples, Scatter
from emulator.coalition.dependence import WORDS_MIN, SeenCounts
from emulator.coalition.programme import AuditedRounds, Programme, SeenSums
from emulator.coalition.rows import GaussianLaw, Law, Rows, Uniforms
from emulator.coalition.worlds import Setting, Worlds
from emulator.shape import Shape

Progress = Callable[[int], None]

RUNS, RUNS_PROTOCOL = (1000, 20_000_000), (100, 100_000)
"""Least and largest number of runs of each world, with the ideal functionality and with real actors."""
_HOURS_MAX = 6
_SPARE = 1.4  # allows for chance: honest nodes may hold the victim's contribution more often than on average
_DRAWS_PER_S, _ACTOR_S, _CLIENT_S = 1e7, 3e-3, 1.5e-4
"""Measured on one core: 10 to 20 million exact noise draws a second, one for each client, run and coordinate; real
actors take about 3 ms for each client of a round."""
_SURVEY = 20_000
_CERTAIN = math.sqrt(2 * math.log(2 / 1e-6))
_RANDOM_LINES = 4
_JUDGED = 1 << 18  # values of each world's noise of which the shape is judged
_DITHER = 0  # seeds the signs of lines, and what makes the places of noise continuous; independent of all noise
_RIDGE = 1e-9  # part of the largest eigenvalue, added so that Σ⁻¹ stays finite; a line without noise still dominates


class Attacker:
    """Subtracts what a coalition knows from what it sees.

    Args:
        world: the two worlds and the coalition. programme: the program of all clients, which is public.

    Attributes:
        step: x - x' as released, shape ``(world.size,)``, in the statistic's units.
    """

    def __init__(self, world: Worlds, programme: Programme) -> None:
        zero, one = (programme.encode(world, VICTIM, side) for side in (0, 1))
        others = [] if world.setting.has_all_computes else [one for one in world.honest if one != VICTIM]
        self._others = sum((programme.encode(world, client, 0) for client in others), np.zeros_like(zero))
        self._world = world
        self._middle = (zero + one) / 2
        self._mean = world.setting.unknown_noises * world.mean_noise
        self._unit = world.validated.unit
        self.step = np.asarray((zero - one) * self._unit, dtype=np.float64)

    def residual(self, seen: SeenSums) -> NDArray[np.float64]:
        """Return the rest of each run, ±step/2 plus noise: shape ``(runs, world.size)``, in the statistic's units."""
        rest: NDArray[np.float64] = ((seen.rest - self._others) - self._middle - self._mean) * self._unit
        return rest

    def judges(self) -> tuple[Rows, Rows]:
        """Return the judges of the shape of the noise left, and of single clients' noise, by the correct plan."""
        unknown, size, dither = self._world.setting.unknown_noises, self.step.size, np.random.default_rng(_DITHER)
        return (
            Rows("noise that the coalition cannot remove", self._law(unknown), size, dither),
            Rows("noise of single clients", self._law(1), size, dither),
        )

    def _law(self, clients: int) -> Law:
        """Return the law of the noise of so many clients."""
        statement = self._world.validated.statement
        if statement is None:
            return GaussianLaw(clients * self._world.validated.noise_variance)
        numbers, bits = statement.noises, statement.noise_bits
        return Uniforms(clients * numbers, bits, clients * (numbers * ((1 << bits) - 1) // 2))

    def judge(self, judges: tuple[Rows, Rows], noise: NDArray[np.float64], seen: SeenSums) -> None:
        """Judge the noise of some runs, in the statistic's units, and the noises of single clients.

        The few rounds of real actors wait to be compared with those of other federations, until the judges are flushed.
        """
        left, single = judges
        rows = np.rint(noise / self._unit + self._mean).astype(np.int64)
        if seen.tally is None:
            left.count(rows)
            single.count(seen.drawn)
            return
        for row in rows:
            left.add(row)
        for row, client, round_id in zip(seen.drawn, seen.clients, seen.rounds, strict=True):
            single.add(row, client, round_id)


class Observations(NamedTuple):
    """Some runs of each world: their positions on a line, the second moments of their noise, and what messages show.

    Both worlds have the same number of positions, also if some rounds of one were aborted.
    """

    samples: Samples
    noise: Scatter
    tally: SeenCounts


class Experiment(NamedTuple):
    """What an adversary saw: `pilot` runs, to choose thresholds, and `main` runs, to count errors.

    Attributes:
        noise: of the main runs. shape: its counts, and those of single clients' noise. tally: of their messages.
        lines: unit vectors, shape ``(k, world.size)``, chosen before the main runs: first
            the line of the attack, then (if there are two coordinates or more) others on which the noise is judged.
    """

    pilot: Samples
    main: Samples
    noise: Scatter
    shape: Shape
    lines: NDArray[np.float64]
    tally: SeenCounts

    @property
    def has_sums(self) -> bool:
        """True unless so many rounds were aborted that there is nothing to guess from."""
        return all(len(side) > 1 for side in (*self.pilot, *self.main))


def experiment(
    rounds: AuditedRounds, adversary: Attacker, pilot: int, runs: int, progress: Progress = lambda done: None
) -> Experiment:
    """Run the survey, `pilot` and `runs` runs in each world. `progress` is called with the number of runs just done."""
    step, survey = adversary.step, survey_runs(adversary.step.size, pilot)
    lines = lines_of(step, observe(rounds, adversary, step, survey, progress).noise)
    pilot_runs = observe(rounds, adversary, lines[0], pilot, progress)
    judges = adversary.judges()
    main = observe(rounds, adversary, lines[0], runs, progress, judges)
    for judge in judges:
        judge.flush()
    left, single = (judge.shape for judge in judges)
    single.prints.clear()  # if only one noise is left, it is a client's
    left.add(single)
    return Experiment(pilot_runs.samples, main.samples, main.noise, left, lines, main.tally)


def observe(
    rounds: AuditedRounds,
    adversary: Attacker,
    line: NDArray[np.float64],
    runs: int,
    progress: Progress = lambda done: None,
    judges: tuple[Rows, Rows] | None = None,
) -> Observations:
    """Run `runs` runs in each world and project them on `line`; their coordinates are not kept.

    `judges`: of the shape of the noise left, and of single clients' noise; they get the first runs of each world.
    """
    noise, tally = Scatter(adversary.step.size), SeenCounts()
    samples: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    for side, signal in ((0, adversary.step / 2), (1, -adversary.step / 2)):
        first = 0
        for seen in rounds.run_rounds(side, runs):
            rest = adversary.residual(seen)
            samples[side].append(rest @ line)
            noise.add(side, rest - signal)
            if judges is not None and first * adversary.step.size < _JUDGED:
                adversary.judge(judges, rest - signal, seen)
            if seen.tally is not None:
                tally.merge(seen.tally)
            done = len(rest) if seen.tally is None else seen.tally.rounds
            progress(done)
            first += done
    zero, one = (np.concatenate([np.empty(0), *parts]) for parts in samples)
    released = min(len(zero), len(one))
    return Observations((zero[:released], one[:released]), noise, tally)


def calls_of(size: int, pilot: int, runs: int) -> list[tuple[int, int]]:
    """Return side and runs of each call of `run_rounds` by `experiment`, in order; `size` is as for `survey_runs`."""
    return [(side, count) for count in (survey_runs(size, pilot), pilot, runs) for side in (0, 1)]


def survey_runs(size: int, pilot: int) -> int:
    """Return the number of runs of each world that estimate the noise's covariance; 0 for a single coordinate."""
    return min(pilot, _SURVEY) if size > 1 else 0


def lines_of(step: NDArray[np.float64], noise: Scatter) -> NDArray[np.float64]:
    """Return the line of the attack, the line of least noise, and those across the coordinates; see `Experiment`."""
    attack, size = _attack(step, noise), step.size
    if size == 1:
        return attack[None]
    _, vectors = np.linalg.eigh(noise.covariance)
    neighbours = (np.eye(size) - np.eye(size, k=1))[:-1]
    signs = 2 * np.random.default_rng(_DITHER).integers(0, 2, (_RANDOM_LINES, size)) - 1
    across = np.vstack([np.ones(size), np.resize([1, -1], size), neighbours, signs])
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    return np.vstack([attack, vectors[:, 0], np.eye(size), across])


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


def least_runs(setting: Setting, protocol: bool) -> int:
    """Return the least number of runs of each world: with real actors, enough to test what Compute nodes hold.

    In about K of M rounds, one of K colluding Compute nodes holds the victim's contribution.
    """
    least = (RUNS_PROTOCOL if protocol else RUNS)[0]
    if not protocol or not setting.coalition.computes:
        return least
    part = min(1.0, setting.coalition.computes / (_SPARE * setting.computes))
    return max(least, math.ceil(WORDS_MIN / (part * Worlds(setting).validated.dimension)))


def require_runs(setting: Setting, runs: int, least: int, protocol: bool) -> None:
    """Raise `UsageError` if there are fewer runs than `least_runs`, or too many."""
    most = (RUNS_PROTOCOL if protocol else RUNS)[1]
    if runs < least and least > RUNS_PROTOCOL[0] and protocol:
        raise UsageError(
            f"--rounds {runs}: expected {least} to {most} at --dimension {setting.columns}; fewer words than "
            f"{WORDS_MIN} in each world cannot be tested for uniformity"
        )
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
