"""`dca audit --verified`: the noise of a verified sum has its law, proofs hide what they are about, faults are found.

Everything is seeded. An audit refutes a correct program less than once in 10,000 times (`finding.FALSE_ALARM`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.crypto.sealing import Random
from dca_proto.privacy.noise import discrete_gaussian
from dca_proto.testing import seeded
from emulator.coalition import uniformity
from emulator.coalition.adversary import Attacker, experiment
from emulator.coalition.faults import FAULTS
from emulator.coalition.finding import REFUTED, STANDS, Finding, find
from emulator.coalition.programme import IdealRounds, Programme, uniform_sums
from emulator.coalition.rows import Rows, Uniforms
from emulator.coalition.uniformity import views
from emulator.coalition.worlds import Setting, Worlds, default_coalition


def claim(**changes: Any) -> Setting:
    setting = Setting(**{"delta": 1e-6, "verified": True, **changes})
    coalition = default_coalition(setting.clients, setting.tolerate, setting.computes, setting.dropped)
    return Setting(**{"delta": 1e-6, "verified": True, "coalition": coalition, **changes})


def judged(setting: Setting, programme: Programme, runs: int = 4_000) -> Finding:
    world = Worlds(setting)
    rounds = IdealRounds(world, programme, seeded(f"verified/{programme.name}"))
    seen = experiment(rounds, Attacker(world, programme), 400, runs)
    return find(world, programme, seen, views(world, programme, seeded("views")), 0.95)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"columns": 4, "rounds": 2},
        {"clients": 400, "tolerate": 40, "dropped": 7},
        {"statistic": "regression", "columns": 3, "clients": 30},
    ],
)
def test_the_claim_of_a_verified_sum_stands(changes: dict[str, Any]) -> None:
    """Its noise is a little more than the claim needs: by the steps of grids and numbers, by κ and by rounding."""
    found = judged(claim(**changes), Programme())
    assert (found.verdict, found.evidence) == (STANDS, ())
    assert found.attack is not None
    assert 0.9 < found.attack.variance_ratio < 1.5
    assert found.noise.epsilon is not None
    assert 0.8 < found.noise.epsilon <= 1
    assert found.shape.tests > 100
    assert len(found.uniformity) == 6


class FixedCoins(Programme):
    """The highest bit of each noise number is not flipped: half of the range, and a mean that nobody expects."""

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        statement = world.validated.statement
        assert statement is not None
        drawn = uniform_sums(statement.noises, statement.noise_bits - 1, runs * world.size, random)
        return drawn.reshape(runs, world.size)


@pytest.mark.long
@pytest.mark.parametrize(
    ("programme", "evidence"),
    [
        (FixedCoins(), "variance"),
        (FAULTS["noise-scaled-by-n"], "variance"),
        (FAULTS["clipped-noise"], "shape"),
        (FAULTS["positive-noise"], "shape"),
    ],
)
def test_wrong_noise_of_a_verified_sum_is_refuted(programme: Programme, evidence: str) -> None:
    found = judged(programme.operating_point(claim()), programme, 20_000)
    assert found.verdict == REFUTED
    assert evidence in found.evidence


def test_gaussian_noise_of_the_same_variance_has_another_shape() -> None:
    """That of a plain sum, where each client of a verified one adds one number of six bits, of a variance of 341.25."""
    rows = Rows("noise", Uniforms(1, 6, 31), 1, np.random.default_rng(1))
    rows.count(discrete_gaussian(341).sample(20_000, seeded("plain")(32))[:, None])
    assert rows.shape.verdict(1e-9).broken


@pytest.mark.parametrize("signs", [(1,), (1, 1, 1), (1, -1, 1)])
@pytest.mark.parametrize(("numbers", "bits"), [(1, 2), (3, 1), (2, 2)])
def test_the_law_of_sums_is_that_of_all_cases(numbers: int, bits: int, signs: tuple[int, ...]) -> None:
    """Places of a sum start at the probability of less, or end there; the other end is that of more."""
    less = numbers * ((1 << bits) - 1) // 2
    cases = itertools.product(range(1 << bits), repeat=numbers * len(signs))
    sums = Counter(sum(sign * (sum(case[at :: len(signs)]) - less) for at, sign in enumerate(signs)) for case in cases)
    total, law = sums.total(), Uniforms(numbers, bits, less)
    for value, count in sums.items():
        ends = [law.places(np.array([value]), len(signs), sum(signs), Fixed(part))[0] for part in (0.0, 1.0)]
        below = sum(times for other, times in sums.items() if other < value)
        assert sorted(ends) == pytest.approx([below / total, (below + count) / total], abs=1e-12)
    if len(signs) == 1:
        assert law.largest == pytest.approx(max(sums.values()) / total)


class Fixed(np.random.Generator):
    """A dither that is always the same."""

    def __init__(self, part: float) -> None:
        super().__init__(np.random.PCG64(1))
        self._part = part

    def random(self, size: Any) -> Any:  # type: ignore[override]
        return np.full(size, self._part)


@pytest.mark.parametrize(("drawn", "is_right"), [(70, True), (69, False)])
def test_draws_have_the_law(drawn: int, is_right: bool) -> None:
    """70 numbers need two words of random bits for each place. One fewer has a variance of 1.4 % less."""
    rows = Rows("noise", Uniforms(70, 3, 70 * 7 // 2), 1, np.random.default_rng(1))
    rows.count(uniform_sums(drawn, 3, 400_000, seeded("draws"))[:, None])
    assert (rows.shape.verdict(1e-9).broken == ()) == is_right


def zeros(key: bytes, count: int) -> NDArray[np.uint64]:
    return np.zeros(count, dtype=np.uint64)


@pytest.mark.long
@pytest.mark.parametrize(
    "faults",
    [
        {"uniform_elements": zeros, "random_bits": lambda key, count: zeros(key, count).astype(np.int64)},
        {"pads_of": lambda keys, entries, announcement, words: np.zeros((len(keys), words), dtype=np.uint32)},
    ],
)
def test_proofs_without_randomness_or_masks_show(faults: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of views can fail. (Without blinds alone, noise bits still hide what a proof is opened to.)"""
    for name, faulty in faults.items():
        monkeypatch.setattr(uniformity, name, faulty)
    assert min(view.p_value for view in views(Worlds(claim()), Programme(), seeded("views"))) < 1e-6
