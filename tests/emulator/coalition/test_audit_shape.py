"""`dca audit` judges the shape of noise: along lines across the coordinates, and the law of each noise.

Everything is seeded. An audit refutes a correct program less than once in 10,000 times (`finding.FALSE_ALARM`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.crypto.sealing import Random
from dca_proto.testing import seeded
from emulator.coalition.actors import ActorRounds
from emulator.coalition.adversary import Attacker, Experiment, experiment
from emulator.coalition.finding import REFUTED, Finding, find
from emulator.coalition.programme import IdealRounds, Programme
from emulator.coalition.worlds import Coalition, Setting, Worlds

FOUR = Setting(delta=1e-6, columns=4)


def ideal(setting: Setting, name: str, runs: int) -> Experiment:
    world, program = Worlds(setting), Programme()
    return experiment(IdealRounds(world, program, seeded(f"shape/{name}")), Attacker(world, program), 200, runs)


def judged(setting: Setting, name: str, runs: int) -> Finding:
    return find(Worlds(setting), Programme(), ideal(setting, name, runs), [], 0.95)


SHAPES: dict[str, Callable[[NDArray[np.int64], int], NDArray[np.int64]]] = {
    "positive": lambda noise, most: np.abs(noise),
    "clipped at 3 sd": lambda noise, most: noise.clip(-most, most),
    "one draw for all coordinates": lambda noise, most: noise[:, :1].repeat(noise.shape[1], axis=1),
    "neighbours in pairs": lambda noise, most: noise[:, [0, 0, 2, 2]],
    "only even": lambda noise, most: noise // 2 * 2,
    "of two variances": lambda noise, most: noise * np.where(noise[:, 3:] > 0, 0.2**0.5, 1.8**0.5),
    "a period of 100 runs": lambda noise, most: np.resize(noise[:100], noise.shape),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_of_another_shape_is_refuted(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four columns, 4,000 runs of each world."""
    original = Programme.noise

    def faulty(self: Programme, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        most = 3 * int(world.validated.noise_variance**0.5)
        return SHAPES[shape](original(self, world, client, runs, random), most).astype(np.int64)

    monkeypatch.setattr(Programme, "noise", faulty)
    found = judged(FOUR, shape, 4_000)
    assert found.verdict == REFUTED
    assert "shape" in found.evidence
    assert found.shape.wrong


def test_lines_run_across_the_coordinates() -> None:
    """Attack, least, each coordinate, the sum, the alternating sum, differences of neighbours, four with signs."""
    seen = ideal(FOUR, "lines", 1000)
    assert seen.lines.shape == (2 + 4 + 2 + 3 + 4, 4)
    np.testing.assert_allclose(np.linalg.norm(seen.lines, axis=1), 1)
    np.testing.assert_allclose(seen.lines[6], np.full(4, 0.5))
    np.testing.assert_allclose(seen.lines[8], np.array([1, -1, 0, 0]) / 2**0.5)


def test_the_shape_of_real_actors_noise_is_judged() -> None:
    setting = Setting(clients=3, tolerate=1, computes=2, coalition=Coalition(clients=1, computes=1))
    seen = next(ActorRounds(setting, seeded("shape")).run_rounds(0, 16))
    assert seen.drawn.shape == (32, 1)
    assert (seen.clients, len(set(seen.rounds))) == ((0, 2) * 16, 16)
    assert len(np.unique(seen.drawn)) == 32


def test_correct_noise_is_accused_no_more_often_than_stated() -> None:
    """The bound on p is below 5 % in at most 5 % of audits: in 9 or more of 24 but once in a million times."""
    found = 0
    for number in range(24):
        setting = Setting(
            clients=6 + number % 5, tolerate=2, columns=1 + number % 5, coalition=Coalition(clients=3, computes=1)
        )
        finding = judged(setting, f"clean {number}", 1000)
        assert finding.evidence == ()
        assert finding.shape.wrong == ()
        found += finding.shape.p_value < 0.05
    assert found < 9
