"""What Compute nodes hold of a contribution: uniform words, and the faults of masks that an audit sees."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.crypto import masks
from dca_proto.crypto.fixedpoint import to_ring
from dca_proto.crypto.sealing import expand
from dca_proto.testing import seeded
from emulator.coalition.actors import Actors
from emulator.coalition.adversary import Attacker, Experiment, experiment
from emulator.coalition.dependence import Test, same_p_value
from emulator.coalition.dependence import joint_p_value as joint_p_of_tests
from emulator.coalition.finding import NOT_COVERED, REFUTED, Finding, Watched, find
from emulator.coalition.programme import IdealRounds, Programme
from emulator.coalition.uniformity import byte_counts, byte_p_value, joint_p_value, views
from emulator.coalition.view import SeenRound
from emulator.coalition.words import sentence
from emulator.coalition.worlds import Coalition, Setting, Worlds
from emulator.sim.link import IDEAL


def ideal(world: Worlds, name: str, runs: int) -> Experiment:
    rounds = IdealRounds(world, Programme(), seeded(f"ideal/{name}"))
    return experiment(rounds, Attacker(world, Programme()), max(runs // 10, 200), runs)


def test_masked_contributions_look_uniform_to_a_coalition() -> None:
    """6 views of 3 tests each; the smallest p-value below 1e-4 after correction has probability 1e-4."""
    found = views(Worlds(Setting()), Programme(), seeded("views"))
    assert {(view.side, view.outside) for view in found} == {
        (side, outside) for side in (0, 1) for outside in (0, 1, 2)
    }
    joint = joint_p_value(found)
    assert joint is not None
    assert joint > 1e-4


def test_a_coalition_without_compute_nodes_sees_no_masked_contribution() -> None:
    assert views(Worlds(Setting(coalition=Coalition(clients=4, computes=0))), Programme(), seeded("none")) == []
    assert joint_p_value([]) is None


@pytest.mark.parametrize("fault", ["bounded", "used again"])
def test_masks_that_hide_badly_are_seen(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    right = masks._pads

    def bounded(absorbed: Sequence[bytes], dimension: int) -> NDArray[np.uint64]:
        """Of a bounded size in place of the whole ring, as a published program made them."""
        return right(absorbed, dimension) >> np.uint64(16)

    def used_again(absorbed: Sequence[bytes], dimension: int) -> NDArray[np.uint64]:
        """The same in every round: of the pair key alone."""
        pads = b"".join([expand(one[:32], 8 + 8 * dimension) for one in absorbed])
        return np.frombuffer(pads, dtype=np.uint64).reshape(-1, 1 + dimension)

    monkeypatch.setattr(masks, "_pads", {"bounded": bounded, "used again": used_again}[fault])
    world = Worlds(Setting())
    found = views(world, Programme(), seeded("bad"))
    assert (joint_p_value(found) or 0) < 1e-12
    finding = find(world, Programme(), ideal(world, "bad", 1000), found, 0.95)
    assert (finding.verdict, finding.evidence) == (REFUTED, ("uniformity",))


def test_a_claim_against_any_number_of_clients_is_refuted_for_every_coalition() -> None:
    """Masked values that are not uniform, and real rounds of another law, beside a coalition beyond the claim."""
    world = Worlds(Setting(coalition=Coalition(clients=7, computes=2)))
    seen, once = (
        ideal(world, "beyond", 1000),
        SeenRound(None, None, [], [], None, *[np.zeros(1, dtype=np.int64)] * 3, {}),
    )
    uneven = msgspec.structs.replace(views(world, Programme(), seeded("uneven"))[0], p_value=1e-30)
    assert find(world, Programme(), seen, [uneven], 0.95).verdict == REFUTED

    def of_actors(leaked: Sequence[str] = (), same_law_p: float = 0.5, same_traffic: bool = True) -> Finding:
        watched = Watched([], same_traffic, once, list(leaked), same_law_p)
        return find(world, Programme(), seen, [], 0.95, watched)

    assert of_actors(same_law_p=1e-20).evidence == ("same-law",)
    assert of_actors(same_traffic=False).evidence == ("traffic",)
    assert of_actors().verdict == NOT_COVERED
    found = of_actors(leaked=["everybody can redraw the noise"])
    assert (found.verdict, found.evidence) == (REFUTED, ("secrecy",))
    assert "everybody can redraw the noise" in sentence(found)


def test_masks_that_are_derived_otherwise_are_not_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round goes on, and its secrets are judged, instead of an error."""
    right = masks._pads
    monkeypatch.setattr(masks, "_pads", lambda absorbed, d: right([one[:32] + one[-36:] for one in absorbed], d))
    setting = Setting(clients=3, tolerate=1, coalition=Coalition(clients=1, computes=2))
    seen = Actors(Worlds(setting), 0, "otherwise", IDEAL).run_round()
    assert (seen.victim, seen.others, seen.noises) == (None, [], {})
    assert seen.total is not None


def test_the_uniformity_tests_p_value_is_one() -> None:
    """p-values of 200 seeded uniform samples: mean 0.5 within 4.9 standard errors of 0.0204, false alarm 1e-6."""
    generator = np.random.default_rng(7)
    samples = [generator.integers(0, 2**64, 20_000, dtype=np.uint64) for _ in range(200)]
    assert abs(np.mean([byte_p_value(byte_counts(words)) for words in samples]) - 0.5) < 0.1
    assert byte_p_value(byte_counts(to_ring(np.arange(20_000, dtype=np.int64)))) < 1e-12


def test_two_tables_of_one_law_are_alike_and_of_two_are_not() -> None:
    """100 pairs from one law: a p-value below 1e-6 among them has probability 1e-4 at most."""
    generator = np.random.default_rng(4)
    pairs = [byte_counts(generator.integers(0, 2**64, 1280, dtype=np.uint64)) for _ in range(200)]
    p_values = [same_p_value(first, second) for first, second in zip(pairs[::2], pairs[1::2], strict=True)]
    assert min(p_values) > 1e-6
    assert np.mean(p_values) > 0.5  # of a minimum of 8, times 8
    biased = byte_counts(generator.integers(0, 2**63, 1280, dtype=np.uint64))
    assert same_p_value(pairs[0], biased) < 1e-20
    assert same_p_value(biased * 0, biased * 0) == 1.0
    assert joint_p_of_tests(()) is None


def test_all_tests_together_count_each_of_them_and_the_heavier_tail_of_few_words() -> None:
    single = Test("shares", "uniform", 1e-3)
    assert joint_p_of_tests((single, Test("sums", "uniform", 0.5))) == pytest.approx(2 * 2 * 1e-3)
    assert joint_p_of_tests(()) is None
