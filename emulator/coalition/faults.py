"""Client programs with one planted fault each: mistakes that published programs made, or nearly made.

Each fault moves the audit to an operating point at which it breaks the claim and can be detected. The audited claim is
the one that the faulty program would make.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import Random
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.statistics.contribution import contribution
from dca_proto.wording import nearest
from emulator.claim import VICTIM
from emulator.coalition.programme import Programme
from emulator.coalition.worlds import Setting, Worlds, default_coalition, of_release

RUNS_MIN = 20_000
"""The least number of runs that detects every fault: the smallest lowers a variance by 8 %, 11 standard errors."""
_HONEST_MAX = 12  # with more, one client's missing noise is too small a part to be detected
_REACH = 1000.0
_NODES = 10
_CLIPPED_AT = 3
_OVERSIZED = 7.5  # the bound of the published experiments


def _plain(setting: Setting, **changes: object) -> Setting:
    """Return the setting with these changes, no drop-outs, and the largest coalition that the claim covers."""
    if setting.is_release:
        return msgspec.structs.replace(setting, **changes)
    moved = msgspec.structs.replace(setting, **{"dropped": 0, **changes})
    coalition = default_coalition(moved.clients, moved.tolerate, moved.computes, 0)
    return msgspec.structs.replace(moved, coalition=coalition)


def _small(setting: Setting, **changes: object) -> Setting:
    """Return a setting with so few clients that one client's missing noise is detectable."""
    if setting.is_release:
        setting = msgspec.structs.replace(setting, is_release=False, computes=3)
    size = {} if 2 <= setting.honest <= _HONEST_MAX else {"clients": 10, "tolerate": 3, "colluders": 0}
    return _plain(setting, **size, **changes)


class NoiseScaledByN(Programme):
    """Divides the standard deviation, not the variance, by n = N - T - 1."""

    name = "noise-scaled-by-n"
    meaning = "each client's noise has variance σ²/n² instead of σ²/n, n = N - T - 1"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting) if setting.honest > 1 else _small(setting)

    def noise_variance(self, world: Worlds) -> int:
        return math.ceil(world.validated.noise_variance / world.validated.honest)


class OmittedNoise(Programme):
    """T + 1 clients omit their noise. With the curious client's, T + 2 noises are missing or known, one too many."""

    name = "omitted-noise"
    meaning = "T + 1 clients add no noise, and another one looks"

    def describe(self, setting: Setting) -> str:
        return f"T + 1 = {setting.tolerate + 1} clients add no noise, and another one looks"

    def operating_point(self, setting: Setting) -> Setting:
        small = _small(setting)
        return msgspec.structs.replace(small, coalition=msgspec.structs.replace(small.coalition, clients=1))

    def silent(self, setting: Setting) -> int:
        return setting.tolerate + 1

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        if client in world.honest[1 : 1 + self.silent(world.setting)]:
            return np.zeros((runs, world.size), dtype=np.int64)
        return super().noise(world, client, runs, random)


class ClipAfterNoise(Programme):
    """Adds noise to values of any size, and clamps the noisy value."""

    name = "clip-after-noise"
    meaning = "values are clamped to their bounds after the noise is added, and not before"

    def operating_point(self, setting: Setting) -> Setting:
        return _small(setting, reach=_REACH)

    def encode(self, world: Worlds, client: int, side: int) -> NDArray[np.int64]:
        bound = world.setting.bound * world.setting.reach
        wide = msgspec.structs.replace(world.validated.statistic, bound=(bound,) * world.setting.columns)
        return contribution(wide, world.row(client, side), world.request.rows_max, world.request.fraction_bits)

    def contribute(self, world: Worlds, value: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
        bound = world.validated.sensitivity.bound
        clipped: NDArray[np.int64] = np.clip(value + noise, -bound, bound)
        return clipped


class ReusedNoise(Programme):
    """Adds the same noise to two different values; their difference has none."""

    name = "reused-noise"
    meaning = "two rounds add the same noise; every client's second value is half of its first"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, rounds=2)

    def encode(self, world: Worlds, client: int, side: int) -> NDArray[np.int64]:
        first = world.encode(world.row(client, side))
        return np.concatenate([first, first // 2])

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        return np.tile(super().noise(world, client, runs, random)[:, : world.validated.dimension], 2)


class BareCoordinate(Programme):
    """Adds noise to all coordinates except one, like a loop that ends too early."""

    name = "bare-coordinate"
    meaning = "one coordinate of every sum, in which x and x' differ, carries no noise"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, columns=max(setting.columns, 2))

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        noise = super().noise(world, client, runs, random)
        step = self.encode(world, VICTIM, 0) - self.encode(world, VICTIM, 1)
        noise[:, np.argmax(np.abs(step))] = 0
        return noise


class CorrelatedNoise(Programme):
    """Draws once and not d times; differences of coordinates have no noise."""

    name = "correlated-noise"
    meaning = "a client adds the same noise to all coordinates"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, statistic="regression", columns=max(setting.columns, 3))

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        noise = super().noise(world, client, runs, random)
        noise[:] = noise[:, :1]
        return noise


class PositiveNoise(Programme):
    """Adds the magnitude of the noise, as after a slip with unsigned integers."""

    name = "positive-noise"
    meaning = "a client adds the noise's magnitude, which never lowers a value"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting)

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        return np.abs(super().noise(world, client, runs, random))


class ClippedNoise(Programme):
    """Clamps the noise; a value that shows through the ends proves that the client's is on that side.

    The sum of several noises hardly shows it, so it is found in single ones.
    """

    name = "clipped-noise"
    meaning = f"a client clamps its noise at {_CLIPPED_AT} standard deviations"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting)

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        most = _CLIPPED_AT * math.isqrt(self.noise_variance(world))
        return np.clip(super().noise(world, client, runs, random), -most, most)


class PartOfNoise(Programme):
    """Splits the noise over data nodes, as for a secure sum, although each release is seen alone."""

    name = "part-of-noise"
    meaning = f"each of {_NODES} data nodes adds 1/{_NODES} of the variance, and releases alone"

    def operating_point(self, setting: Setting) -> Setting:
        return of_release(setting)

    def noise_variance(self, world: Worlds) -> int:
        return math.ceil(world.validated.noise_variance / _NODES)


class ClassicalSigma(Programme):
    """Uses the classical rule, proved for ε < 1, far above that."""

    name = "classical-sigma"
    meaning = "σ = Δ·√(2 ln(1.25/δ))/ε, the classical rule, which is proved for ε < 1 only"

    def operating_point(self, setting: Setting) -> Setting:
        short = self._variance(setting) < 0.92 / accounting.mu_of(setting.epsilon, setting.delta) ** 2
        return _plain(setting) if short else _plain(setting, epsilon=10.0, delta=1e-4)

    def noise_variance(self, world: Worlds) -> int:
        sensitivity = world.validated.sensitivity.l2
        return math.ceil(self._variance(world.setting) * sensitivity**2 / world.validated.honest)

    def _variance(self, setting: Setting) -> float:
        """σ²/Δ²."""
        return 2 * math.log(1.25 / setting.delta) / setting.epsilon**2


class PublishedStdSensitivity(Programme):
    """Repeats an error of the published program of DCA 2017: the sensitivity of x² is of order c², not c."""

    name = "published-std-sensitivity"
    meaning = "second moments with Δ = √(Σ c_j²) instead of √(Σ c_j⁴), c_j the bounds"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, statistic="second-moments", bound=max(setting.bound, _OVERSIZED))

    def noise_variance(self, world: Worlds) -> int:
        published = math.ldexp(math.sqrt(world.setting.columns) * world.setting.bound, world.request.fraction_bits)
        validated = world.validated
        return accounting.share_variance(published, validated.mu, validated.honest, validated.dimension)


FAULTS: dict[str, Programme] = {
    fault.name: fault
    for fault in (
        NoiseScaledByN(),
        OmittedNoise(),
        ClipAfterNoise(),
        ReusedNoise(),
        BareCoordinate(),
        CorrelatedNoise(),
        PositiveNoise(),
        ClippedNoise(),
        PartOfNoise(),
        ClassicalSigma(),
        PublishedStdSensitivity(),
    )
}


def programme(name: str | None) -> Programme:
    """Return the correct programme, or the one with the named fault. Raises `UsageError` for an unknown name."""
    if name is None:
        return Programme()
    if name not in FAULTS:
        raise UsageError(f"--plant {name!r} is unknown{nearest(name, FAULTS)}; known: {', '.join(FAULTS)}")
    return FAULTS[name]
