"""The two worlds of an audit: the worst pair of inputs, what a coalition may be, and what a planted fault changes."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.protocol import validation
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.testing import seeded
from emulator.coalition.actors import judged_clients
from emulator.coalition.adversary import Attacker, least_runs
from emulator.coalition.faults import FAULTS, programme
from emulator.coalition.finding import is_short, plan_of
from emulator.coalition.programme import IdealRounds, Programme
from emulator.coalition.worlds import ROWS, STATISTICS, Coalition, Setting, Worlds, default_coalition, of_release


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("columns", [2, 3])
def test_the_pair_is_as_far_apart_as_the_sensitivity_says(statistic: str, columns: int) -> None:
    """Nearly: a client's mean may round by half a unit, and with regression's odd number of bounds the search attains
    less than the corner of the proof."""
    world = Worlds(Setting(statistic=statistic, columns=columns, bound=3.0))
    step = (Programme().encode(world, 0, 0) - Programme().encode(world, 0, 1)).astype(float)
    attained = float(np.linalg.norm(step)) / world.validated.sensitivity.l2
    assert 0.94 <= attained <= 1 + 1e-12
    assert attained > 1 - 1e-5 or statistic == "regression"


def test_the_plan_is_that_of_the_protocol() -> None:
    """Theorem 1: N - T - 1 shares carry the floor, which is (Δ/μ)²."""
    world = Worlds(Setting())
    carried = world.validated.honest * world.validated.noise_variance * world.validated.unit**2
    assert carried == pytest.approx(world.floor, rel=1e-6)
    assert world.floor == pytest.approx((2 / accounting.mu_of(1.0, world.setting.delta)) ** 2, rel=1e-6)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_correct_plan_is_never_short(statistic: str) -> None:
    """Also where the bound is none that clients can reach: they clamp to the next value on their grid."""
    for bound, epsilon, release in itertools.product((0.0173, 0.37, 1.0, 7.77), (0.1, 3.7), (False, True)):
        asked = Setting(statistic=statistic, columns=2, bound=bound, epsilon=epsilon)
        world = Worlds(of_release(asked) if release else asked)
        noise = plan_of(world, Programme())
        assert not is_short(noise, epsilon), (bound, noise)


def test_a_plan_of_enough_variance_is_short_if_its_epsilon_is_larger_than_claimed() -> None:
    """Discrete noises need a little more variance than a Gaussian; so does a sensitivity that is too small."""
    noise = plan_of(Worlds(Setting()), Programme())
    assert not is_short(noise, 1.0)
    assert is_short(msgspec.structs.replace(noise, epsilon=1.0001), 1.0)
    assert is_short(msgspec.structs.replace(noise, epsilon=None), 1.0)
    assert is_short(msgspec.structs.replace(noise, planned=0.999 * noise.floor), 1.0)


def test_half_the_sensitivity_of_a_regression_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference does not know it; two rows that are farther apart do."""
    right = validation.sensitivity_of

    def half(*arguments: Any) -> Sensitivity:
        whole = right(*arguments)
        return msgspec.structs.replace(whole, l2_squared=whole.l2_squared // 4)

    world = Worlds(Setting(statistic="regression", columns=3))
    assert not is_short(plan_of(world, Programme()), world.setting.epsilon)
    monkeypatch.setattr(validation, "sensitivity_of", half)
    world = Worlds(Setting(statistic="regression", columns=3))
    assert is_short(plan_of(world, Programme()), world.setting.epsilon)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_data_node_that_releases_alone_adds_all_the_noise_that_its_claim_needs(statistic: str) -> None:
    """For one of its rows, whatever the others are: both worlds differ by the victim's row and nothing else."""
    world, one = (
        Worlds(of_release(Setting(statistic=statistic, columns=2))),
        Worlds(Setting(statistic=statistic, columns=2)),
    )
    assert world.validated.noise_variance * world.validated.unit**2 == pytest.approx(world.floor, rel=1e-6)
    assert world.floor == pytest.approx(one.floor, rel=1e-4)
    rows = [world.row(0, side) for side in (0, 1)]
    assert rows[0].shape == (ROWS, 2)
    assert (rows[0][1:] == rows[1][1:]).all()
    step, alike = (Attacker(each, Programme()).step for each in (world, one))
    np.testing.assert_allclose(step, alike, rtol=1e-6)


def test_several_rounds_share_the_claim() -> None:
    one, two = Worlds(Setting()), Worlds(Setting(rounds=2))
    assert two.floor == pytest.approx(2 * one.floor, rel=1e-5)
    assert two.mu == one.mu


def test_the_coalition_by_default_leaves_just_the_noises_that_the_claim_needs() -> None:
    for dropped in (0, 2, 3):
        coalition = default_coalition(10, 3, 3, dropped)
        setting = Setting(dropped=dropped, coalition=coalition)
        assert (setting.unknown_noises, setting.honest, setting.covered) == (6, 6, True)
        assert coalition.computes == 2


def test_one_client_more_is_outside_the_claim() -> None:
    assert Setting(coalition=Coalition(clients=4, computes=2)).covered
    assert not Setting(coalition=Coalition(clients=5, computes=2)).covered
    assert not Setting(coalition=Coalition(clients=4, computes=2), dropped=1).covered
    assert not Setting(coalition=Coalition(clients=4, left_out=1, computes=2)).covered
    assert not Setting(coalition=Coalition(clients=4, omitting=1)).covered
    assert not Setting(coalition=Coalition(computes=3)).covered


def test_an_aborted_round_is_covered_unless_all_compute_nodes_collude() -> None:
    assert Setting(coalition=Coalition(clients=5, computes=2), dropped=4).covered
    assert not Setting(coalition=Coalition(clients=5, computes=3), dropped=4).covered


@pytest.mark.parametrize(
    "one",
    [
        Coalition(clients=4, computes=2, broker=True),
        Coalition(),
        Coalition(clients=3, omitting=2, left_out=1, computes=1, trainer=True),
    ],
    ids=str,
)
def test_a_coalition_is_read_as_it_is_written(one: Coalition) -> None:
    assert Coalition.parse(str(one)) == one


def test_members_that_are_not_named_are_absent() -> None:
    assert Coalition.parse("computes=1") == Coalition(computes=1)
    assert Coalition.parse(" broker , clients=2 ") == Coalition(clients=2, broker=True)
    assert Coalition.parse("left-out=2,computes=1").left_out == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clients", "clients needs a number, as in clients=2"),
        ("clients=", "'' is not a number"),
        ("clients=-1", "'-1' is not a number"),
        ("clients=two", "'two' is not a number"),
        ("clients=²", "'²' is not a number"),
        ("clients=1,clients=2", "clients is named twice"),
        ("broker,computes=1,broker", "broker is named twice"),
        ("nodes=2", "'nodes' is unknown"),
        ("left_out=2", "'left_out' is unknown (did you mean 'left-out'?)"),
        ("compute=2", "'compute' is unknown (did you mean 'computes'?)"),
        ("broker=1", "name it without a number"),
        ("trainer=1", "name it without a number"),
        ("", "names nobody"),
        (" , ", "names nobody"),
    ],
)
def test_a_coalition_that_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        Coalition.parse(text)
    assert "expected clients=A,omitting=B,left-out=D,computes=K,broker,trainer" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"coalition": Coalition(clients=4, computes=4)}, "there are M = 3 Compute nodes"),
        ({"coalition": Coalition(clients=10, computes=2)}, "take at most 9"),
        ({"coalition": Coalition(clients=5, omitting=3, left_out=2, computes=2)}, "take at most 9"),
        ({"coalition": Coalition(clients=9, computes=2), "dropped": 1}, "take at most 8"),
        ({"coalition": Coalition(left_out=1)}, "only colluding Compute nodes can leave clients out"),
        ({"dropped": 10}, "10"),
        ({"colluders": 4}, "c = 4"),
        ({"clients": 10_000_001}, "from 0 to 10000000"),
        ({"tolerate": 9}, "lower"),
        ({"computes": 1}, "M = 1"),
        ({"statistic": "median"}, "known: sum"),
        ({"statistic": "regression", "columns": 1}, "expected 2 to 6"),
        ({"statistic": "second-moments", "columns": 7}, "expected 1 to 6"),
        ({"columns": 4097}, "expected 1 to 4096"),
        ({"bound": math.nan}, "expected a finite number above 0"),
        ({"bound": 0.0}, "expected a finite number above 0"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1e6}, "more than can be planned with"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_a_setting_that_cannot_be_audited_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Worlds(Setting(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"coalition": Coalition(clients=4, computes=3)}, "take at most M - 1 = 2"),
        ({"dropped": 4}, "loses more than T - c = 3 clients"),
        ({"dropped": 2, "colluders": 2}, "loses more than T - c = 1 clients"),
    ],
)
def test_sums_that_do_not_exist_are_attacked_with_real_actors_only(changes: dict[str, Any], said: str) -> None:
    setting = Setting(**changes)
    setting.check()
    with pytest.raises(UsageError, match=said):
        setting.check_sum()


def test_the_adversary_is_left_with_the_victims_value_and_the_honest_noises() -> None:
    """With everybody else in the coalition, what is left is the victim's value and one noise, exactly."""

    class Counting(Programme):
        def noise(self, world: Worlds, client: int, runs: int, random: Any) -> Any:
            return np.full((runs, world.size), 1000 + client)

    world, counting = Worlds(Setting(coalition=Coalition(clients=9, computes=2))), Counting()
    rounds, adversary = IdealRounds(world, counting, seeded("left")), Attacker(world, counting)
    sides = [adversary.residual(next(rounds.run_rounds(side, 3))) for side in (0, 1)]
    assert sides[0].tolist() == [[1 + 1000 * world.validated.unit]] * 3
    assert sides[1].tolist() == [[-1 + 1000 * world.validated.unit]] * 3
    assert adversary.step.tolist() == [2]


def test_who_drops_out_is_not_in_the_sum() -> None:
    world = Worlds(Setting(dropped=2, coalition=Coalition(clients=2, computes=2)))
    assert list(world.present) == list(range(8))
    assert (list(world.revealing), list(world.dropped)) == ([1, 2], [8, 9])
    assert world.honest == (0, 3, 4, 5, 6, 7)


def test_clients_have_their_places_in_order() -> None:
    world = Worlds(Setting(dropped=1, coalition=Coalition(clients=1, omitting=2, left_out=2, computes=1)))
    assert (list(world.revealing), list(world.omitting)) == ([1], [2, 3])
    assert (world.honest, list(world.left_out), list(world.dropped)) == ((0, 4, 5, 6), [7, 8], [9])
    assert (world.setting.contributors, world.setting.unknown_noises) == (7, 4)


def test_single_noises_of_all_honest_clients_are_judged() -> None:
    """One client's part of the noise of 46 is too small to be missed, so each federation shows those of eight others.

    Of 46 clients, one is not among them in 50 federations with probability 3e-3; this is seeded.
    """
    world = Worlds(Setting(clients=50))
    federations = [judged_clients(world, str(number)) for number in range(50)]
    assert {len(judged) for judged in federations} == {8}
    assert {client for judged in federations for client in judged} == set(world.honest)
    assert len(judged_clients(Worlds(Setting()), "few")) == len(Worlds(Setting()).honest) == 6


def test_default_clients_are_as_many_as_the_claim_covers() -> None:
    assert [default_coalition(6, 2, 3, dropped).clients for dropped in (0, 2, 5)] == [3, 1, 0]


def test_enough_rounds_are_run_to_test_what_compute_nodes_hold() -> None:
    assert least_runs(Setting(columns=1, coalition=Coalition(computes=3)), protocol=True) == 1792
    assert least_runs(Setting(columns=432, coalition=Coalition(computes=2)), protocol=True) == 100
    assert least_runs(Setting(columns=1, coalition=Coalition()), protocol=True) == 100
    regression = Setting(statistic="regression", columns=3, coalition=Coalition(computes=3))  # of 6 words
    assert least_runs(regression, protocol=True) == 299


# Planted faults


OF_SUMS = {"noise-scaled-by-n", "omitted-noise", "clip-after-noise"}
"""Faults that are none in a release, or are not seen there."""


def test_every_fault_of_the_list_can_be_planted() -> None:
    assert {name: programme(name).name for name in FAULTS} == {name: name for name in FAULTS}
    with pytest.raises(UsageError, match="known: noise-scaled-by-n"):
        programme("typo")
    assert programme(None).name == ""


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize(
    "asked",
    [
        Setting(),
        Setting(clients=1000, tolerate=100),
        Setting(clients=5, tolerate=3),
        Setting(coalition=Coalition(clients=8, computes=1), dropped=1),
        Setting(epsilon=0.1, delta=1e-9, statistic="regression", columns=3),
        of_release(Setting()),
    ],
)
def test_a_fault_moves_to_a_point_that_the_claim_covers(name: str, asked: Setting) -> None:
    moved = FAULTS[name].operating_point(asked)
    moved.check()
    assert moved.covered
    assert moved.coalition.computes == max(0, moved.computes - 1)
    assert moved.is_release == (name == "part-of-noise" or (asked.is_release and name not in OF_SUMS))


def test_the_operating_points_of_the_faults() -> None:
    at = {name: fault.operating_point(Setting()) for name, fault in FAULTS.items()}
    assert (at["classical-sigma"].epsilon, at["classical-sigma"].delta) == (10, 1e-4)
    assert at["published-std-sensitivity"].bound == 7.5
    assert at["published-std-sensitivity"].statistic == "second-moments"
    assert at["reused-noise"].rounds == 2
    assert at["clip-after-noise"].reach > 1
    assert at["bare-coordinate"].columns == 2
    assert (at["correlated-noise"].statistic, at["correlated-noise"].columns) == ("regression", 3)
    assert "T + 1 = 4 clients" in FAULTS["omitted-noise"].describe(at["omitted-noise"])


def test_the_classical_rule_stays_where_it_is_a_fault_already() -> None:
    far = Setting(epsilon=31.6, delta=1e-4)
    assert FAULTS["classical-sigma"].operating_point(far).epsilon == 31.6


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("noise-scaled-by-n", 1 / 6),  # n = 6
        ("classical-sigma", (0.434 / 0.455) ** 2),  # 0.434 and 0.455 per unit sensitivity at ε = 10, δ = 1e-4
        ("published-std-sensitivity", 1 / 7.5**2),
        ("part-of-noise", 1 / 10),
    ],
)
def test_the_faulty_noise_is_short_by_the_part_that_is_known(name: str, ratio: float) -> None:
    fault = FAULTS[name]
    world = Worlds(fault.operating_point(Setting()))
    assert fault.noise_variance(world) / world.validated.noise_variance == pytest.approx(ratio, rel=0.005)


def test_a_correct_programme_is_right_for_values_of_any_size() -> None:
    """The operating point of clip-after-noise is no excuse: clamped first, a value of any size is within its bounds."""
    far = Worlds(msgspec.structs.replace(Setting(), reach=1000.0))
    assert Programme().encode(far, 0, 0).tolist() == Programme().encode(Worlds(Setting()), 0, 0).tolist()
    assert FAULTS["clip-after-noise"].encode(far, 0, 0)[0] == 1000 * 2**24
