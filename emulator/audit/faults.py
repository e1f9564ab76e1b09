"""Programmes with one planted fault each: mistakes that published programs made, or nearly did.

Every fault knows an operating point at which it really is one and can be seen, and moves the audit there. The claim
that is audited is the one that the faulty program would make.
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
from emulator.audit.programme import Programme
from emulator.audit.worlds import Setting, World, default_coalition, of_release
from emulator.claim import VICTIM

RUNS_MIN = 20_000
"""So few runs still show every fault: the smallest lowers a variance by 8 %, which is 11 standard errors then."""
_HONEST_MAX = 12  # above this, one client's missing noise is too small a part to be seen
_REACH = 1000.0
_NODES = 10
_OVERSIZED = 7.5  # the bound of the published experiments


def _plain(setting: Setting, **changes: object) -> Setting:
    """The setting with these changes, nobody dropping, and the worst coalition that the claim covers."""
    if setting.is_release:
        return msgspec.structs.replace(setting, **changes)
    moved = msgspec.structs.replace(setting, **{"dropped": 0, **changes})
    coalition = default_coalition(moved.clients, moved.tolerated, moved.computes, 0)
    return msgspec.structs.replace(moved, coalition=coalition)


def _small(setting: Setting, **changes: object) -> Setting:
    """A swarm in which one client's noise is a part that can be seen."""
    if setting.is_release:
        setting = msgspec.structs.replace(setting, is_release=False, computes=3)
    size = {} if 2 <= setting.honest <= _HONEST_MAX else {"clients": 10, "tolerated": 3, "colluders": 0}
    return _plain(setting, **size, **changes)


class NoiseScaledByN(Programme):
    """n = N - T - 1; the standard deviation instead of the variance is divided by n."""

    name = "noise-scaled-by-n"
    meaning = "each client's noise has variance σ²/n² instead of σ²/n, n = N - T - 1"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting) if setting.honest > 1 else _small(setting)

    def noise_variance(self, world: World) -> int:
        return math.ceil(world.validated.noise_variance / world.validated.honest)


class OmittedNoise(Programme):
    """One client more than may: with the curious one, T + 2 noises are not there or known."""

    name = "omitted-noise"
    meaning = "T + 1 clients add no noise, and another one looks"

    def describe(self, setting: Setting) -> str:
        return f"T + 1 = {setting.tolerated + 1} clients add no noise, and another one looks"

    def operating_point(self, setting: Setting) -> Setting:
        small = _small(setting)
        return msgspec.structs.replace(small, coalition=msgspec.structs.replace(small.coalition, clients=1))

    def silent(self, setting: Setting) -> int:
        return setting.tolerated + 1

    def noise(self, world: World, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        first = world.coalition.stop
        if client in range(first, first + self.silent(world.setting)):
            return np.zeros((runs, world.size), dtype=np.int64)
        return super().noise(world, client, runs, random)


class ClipAfterNoise(Programme):
    """Values of any size are noised, and the noisy value is clamped."""

    name = "clip-after-noise"
    meaning = "values are clamped to their bounds after the noise is added, and not before"

    def operating_point(self, setting: Setting) -> Setting:
        return _small(setting, reach=_REACH)

    def encode(self, world: World, client: int, side: int) -> NDArray[np.int64]:
        bound = world.setting.bound * world.setting.reach
        wide = msgspec.structs.replace(world.validated.statistic, bound=(bound,) * world.setting.columns)
        return contribution(wide, world.row(client, side), world.request.rows_max, world.request.fraction_bits)

    def contribute(self, world: World, value: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
        bound = world.validated.sensitivity.bound
        clipped: NDArray[np.int64] = np.clip(value + noise, -bound, bound)
        return clipped


class ReusedNoise(Programme):
    """The same noise hides two different values; their difference is bare."""

    name = "reused-noise"
    meaning = "two rounds add the same noise; every client's second value is half of its first"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, rounds=2)

    def encode(self, world: World, client: int, side: int) -> NDArray[np.int64]:
        first = world.encode(world.row(client, side))
        return np.concatenate([first, first // 2])

    def noise(self, world: World, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        return np.tile(super().noise(world, client, runs, random)[:, : world.validated.dimension], 2)


class BareCoordinate(Programme):
    """A loop that ends one early: each coordinate but one is noised."""

    name = "bare-coordinate"
    meaning = "one coordinate of every sum, in which x and x' differ, carries no noise"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, columns=max(setting.columns, 2))

    def noise(self, world: World, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        noise = super().noise(world, client, runs, random)
        step = self.encode(world, VICTIM, 0) - self.encode(world, VICTIM, 1)
        noise[:, np.argmax(np.abs(step))] = 0
        return noise


class CorrelatedNoise(Programme):
    """One draw where there should be d; differences of coordinates are bare."""

    name = "correlated-noise"
    meaning = "a client adds the same noise to all coordinates"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, statistic="regression", columns=max(setting.columns, 3))

    def noise(self, world: World, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        noise = super().noise(world, client, runs, random)
        noise[:] = noise[:, :1]
        return noise


class PartOfNoise(Programme):
    """What is right for a sum, done where each data node's release is seen by itself."""

    name = "part-of-noise"
    meaning = f"each of {_NODES} data nodes adds 1/{_NODES} of the variance, and releases alone"

    def operating_point(self, setting: Setting) -> Setting:
        return of_release(setting)

    def noise_variance(self, world: World) -> int:
        return math.ceil(world.validated.noise_variance / _NODES)


class ClassicalSigma(Programme):
    """The classical rule, whose proof ends at ε = 1, used far above it."""

    name = "classical-sigma"
    meaning = "σ = Δ·√(2 ln(1.25/δ))/ε, the classical rule, which is proved for ε < 1 only"

    def operating_point(self, setting: Setting) -> Setting:
        short = self._variance(setting) < 0.92 / accounting.mu_of(setting.epsilon, setting.delta) ** 2
        return _plain(setting) if short else _plain(setting, epsilon=10.0, delta=1e-4)

    def noise_variance(self, world: World) -> int:
        sensitivity = world.validated.sensitivity.l2
        return math.ceil(self._variance(world.setting) * sensitivity**2 / world.validated.honest)

    def _variance(self, setting: Setting) -> float:
        """σ²/Δ²."""
        return 2 * math.log(1.25 / setting.delta) / setting.epsilon**2


class PublishedStdSensitivity(Programme):
    """The published program of DCA 2017 for its first round; the sensitivity of x² is of the order of c², not c."""

    name = "published-std-sensitivity"
    meaning = "second moments with Δ = √(Σ c_j²) instead of √(Σ c_j⁴), c_j the bounds"

    def operating_point(self, setting: Setting) -> Setting:
        return _plain(setting, statistic="second-moments", bound=max(setting.bound, _OVERSIZED))

    def noise_variance(self, world: World) -> int:
        published = math.ldexp(math.sqrt(world.setting.columns) * world.setting.bound, world.request.fraction_bits)
        asked = world.validated
        return accounting.share_variance(published, asked.mu, asked.honest, asked.dimension)


FAULTS: dict[str, Programme] = {
    fault.name: fault
    for fault in (
        NoiseScaledByN(),
        OmittedNoise(),
        ClipAfterNoise(),
        ReusedNoise(),
        BareCoordinate(),
        CorrelatedNoise(),
        PartOfNoise(),
        ClassicalSigma(),
        PublishedStdSensitivity(),
    )
}


def programme(name: str | None) -> Programme:
    """The correct programme, or that with the named fault. Raises `UsageError` for an unknown name."""
    if name is None:
        return Programme()
    if name not in FAULTS:
        raise UsageError(f"--plant {name!r} is unknown{nearest(name, FAULTS)}; known: {', '.join(FAULTS)}")
    return FAULTS[name]
