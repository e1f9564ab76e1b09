"""Coalitions in rounds of real actors: the claim holds, documented breaks show, planted faults are found.

Everything is seeded. Each report says of a correct program that it depends on data, or lacks noise, once in a million
times (`dependence.ALARM`); other statistical assertions state their false alarm.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.cli import collude as command
from dca_proto.crypto import masks
from dca_proto.crypto.fixedpoint import from_ring
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol import contribution
from emulator.audit.uniformity import byte_counts
from emulator.claim import VICTIM
from emulator.collusion import finding
from emulator.collusion.coalition import Case, Coalition, Setting, worst_revealing
from emulator.collusion.dependence import ALARM, Test, joint_p_value, same_p_value, same_traffic
from emulator.collusion.finding import (
    BROKEN,
    HOLDS,
    REFUTED,
    Contributors,
    Finding,
    investigate,
    require_runs,
    residual,
    result,
    sentence,
)
from emulator.collusion.members import Party, Withholding
from emulator.collusion.rounds import Rounds
from emulator.sim.link import IDEAL

SETTING = Setting(clients=6, computes=3, tolerated=2, dimension=432)  # 3 noises of 6 must suffice
RESERVED = msgspec.structs.replace(SETTING, clients=8, tolerated=3, colluders=1)  # 4 of 8
RUNS = 8
ANOTHER = re.compile(r"depends on more than the private sum")


@functools.cache
def finding_of(coalition: Coalition, setting: Setting = SETTING) -> Finding:
    return investigate(Case(setting, coalition), RUNS, "tests")


def meant(case: Case) -> float:
    """The ε of so many noises, by the continuous Gaussian: 1e-9 relative away from what the report says."""
    mu = case.plan.sensitivity_l2 / (case.plan.noise_std * case.noises_left**0.5)
    return accounting.epsilon_of(mu, case.setting.delta)


def standard_errors(count: int, setting: Setting) -> float:
    """So many, of a variance over all rounds and coordinates, as a part of it."""
    return count * (2 / (2 * RUNS * setting.dimension)) ** 0.5


# what the claim covers


@pytest.mark.parametrize("trainer", [False, True])
def test_all_nodes_but_one_and_the_broker_see_nothing_that_depends_on_data(trainer: bool) -> None:
    """T + 1 clients that tell their noise are with them. With the trainer, shares are tested given the sum too."""
    seen = finding_of(Coalition(nodes=2, revealing=3, broker=True, trainer=trainer))
    assert seen.verdict == HOLDS
    assert not seen.broken
    assert seen.view.same_traffic
    assert seen.view.p_value is not None
    assert seen.view.p_value > ALARM
    assert ("its masked vectors, given the private sum" in {test.of for test in seen.view.tests}) == trainer
    assert len(seen.view.tests) == (17 if trainer else 10)


@pytest.mark.parametrize(
    ("setting", "coalition"),
    [
        (SETTING, Coalition(nodes=2, revealing=3)),
        (SETTING, Coalition(nodes=2, revealing=1, omitting=2)),
        (SETTING, Coalition(revealing=1, silent=2, trainer=True)),
        (RESERVED, Coalition(nodes=2, revealing=2, silent=2)),
        (RESERVED, Coalition(nodes=1, revealing=2, left_out=2)),
    ],
    ids=str,
)
def test_within_the_reserve_the_noise_left_is_that_of_n_honest_clients(setting: Setting, coalition: Coalition) -> None:
    """Exactly, and as measured: within 5 standard errors, which chance exceeds 6e-7 of the time."""
    seen, plan = finding_of(coalition, setting), Case(setting, coalition).plan
    assert seen.verdict == HOLDS
    assert seen.noise.noises_left == seen.noise.noises_needed == plan.honest
    assert seen.noise.left == seen.noise.needed >= seen.noise.floor
    assert seen.epsilon.meant is not None
    assert seen.epsilon.meant == pytest.approx(1.0, rel=1e-6)
    assert seen.epsilon.meant <= 1.0 + 1e-12
    assert seen.noise.measured is not None
    assert seen.noise.measured / seen.noise.left == pytest.approx(1, abs=standard_errors(5, setting))


def test_nobody_leaves_the_noise_of_all() -> None:
    seen = finding_of(Coalition(broker=True))
    assert (seen.noise.noises_left, seen.verdict) == (6, HOLDS)
    assert (seen.epsilon.meant or 0) < 0.8
    assert seen.view.p_value is None
    assert seen.view.tests == []


def test_what_is_seen_is_said_item_by_item() -> None:
    everything = "\n".join(finding_of(Coalition(nodes=2, revealing=3, broker=True, trainer=True)).sees)
    for item in (
        "3 clients: their own data and noise",
        "who takes part: ",
        "the nodes' own masks and tags of each contribution, 2 of 3",
        "charge numbers, how often each client was ever charged: ",
        "3 partial sums, and so the private sum over 6 clients",
        "client to compute: 6 messages of ",
    ):
        assert item in everything
    assert "hence its value" not in everything
    assert "partial" not in "\n".join(finding_of(Coalition(broker=True)).sees).replace("partial sums are sealed", "")


# documented breaks


def test_all_nodes_recover_each_value_with_its_own_noise() -> None:
    """The break is shown, and the tests that find nothing elsewhere see it: they can."""
    case = Case(SETTING, Coalition(nodes=3))
    seen = finding_of(case.coalition)
    assert (seen.verdict, seen.broken, seen.refuted) == (BROKEN, True, [])
    assert seen.view.depends_on_data
    assert seen.view.p_value is not None
    assert seen.view.p_value < 1e-100
    assert seen.noise.noises_left == 1
    assert seen.noise.left == pytest.approx(seen.noise.needed / 3)
    assert seen.epsilon.meant == pytest.approx(meant(case), rel=1e-6)
    assert (seen.epsilon.meant or 0) > 1.7
    assert seen.recovered is not None
    assert abs(seen.recovered.mean - seen.recovered.truth[0]) < 5 * seen.recovered.error
    assert seen.recovered.truth[0] == 1.0
    assert "The documented break: all M = 3" in sentence(case, seen)


def test_all_nodes_see_more_than_the_sum_also_where_one_noise_would_do() -> None:
    """N - T - 1 = 1: each contribution is as private as the sum was to be, and yet more than the sum is seen."""
    seen = finding_of(Coalition(nodes=3, silent=2), msgspec.structs.replace(SETTING, clients=4))
    assert seen.epsilon.meant == pytest.approx(1.0, rel=1e-6)
    assert (seen.verdict, seen.refuted) == (BROKEN, [])


def test_all_nodes_recover_values_from_rounds_that_are_aborted() -> None:
    case = Case(SETTING, Coalition(nodes=3, silent=3))
    seen = finding_of(case.coalition)
    assert (seen.released, seen.verdict) == (False, BROKEN)
    assert "although the round was aborted" in sentence(case, seen)


@pytest.mark.parametrize("dimension", [1, 4, 7])
def test_what_all_nodes_make_of_contributions_adds_up_to_the_sum_in_the_ring(dimension: int) -> None:
    """To the last bit: all masked vectors with all masks taken off are the sum that the trainer has."""
    setting = msgspec.structs.replace(SETTING, dimension=dimension)
    rounds = Rounds(Case(setting, Coalition(nodes=3, trainer=True)), 0, "ring", IDEAL)
    for _ in range(3):
        one = rounds.run_round()
        assert one.victim is not None
        assert len(one.others) == 5
        assert one.total is not None
        assert from_ring(np.sum([one.victim, *one.others], axis=0)).tolist() == one.total.tolist()
        assert from_ring(np.sum(one.partials, axis=0)).tolist() == one.total.tolist()


@pytest.mark.parametrize(
    "coalition", [Coalition(nodes=2, revealing=4), Coalition(nodes=1, omitting=3, left_out=2)], ids=str
)
def test_more_clients_than_are_reserved_leave_less_than_the_floor(coalition: Coalition) -> None:
    case = Case(SETTING, coalition)
    seen = finding_of(coalition)
    assert (seen.verdict, seen.refuted) == (BROKEN, [])
    assert seen.noise.left < seen.noise.floor
    assert seen.epsilon.meant == pytest.approx(meant(case), rel=1e-6)
    assert (seen.epsilon.meant or 0) > 1.2
    assert seen.noise.measured is not None
    assert seen.noise.measured / seen.noise.left == pytest.approx(1, abs=standard_errors(5, SETTING))
    assert "A documented break" in sentence(case, seen)
    assert "at most T + 1 = 3" in sentence(case, seen)


def test_more_silent_clients_than_t_minus_c_end_the_round() -> None:
    case = Case(RESERVED, Coalition(nodes=2, silent=3, trainer=True))
    seen = finding_of(case.coalition, RESERVED)
    assert not seen.released
    assert seen.contributors == Contributors(5, 6)
    assert (seen.verdict, seen.epsilon.meant, seen.noise.measured) == (HOLDS, 0.0, None)
    assert "aborted, as it must be: 5 contributions arrived and n_min = N - T + c = 6" in sentence(case, seen)
    assert any("no sum" in item for item in seen.sees)


def test_nodes_that_leave_out_too_many_end_the_round_and_the_break_is_reported() -> None:
    """T + 1 clients tell their noise, and the claim holds; if nodes left out T - c more, it would not: that is said."""
    aborted = finding_of(Coalition(nodes=1, left_out=3))
    assert (aborted.released, aborted.contributors) == (False, Contributors(3, 4))
    case = Case(SETTING, Coalition(nodes=2, revealing=3, broker=True, trainer=True))
    assert "could leave out 2 more honest clients (--left-out 2)" in sentence(case, finding_of(case.coalition))
    assert "leave out" not in sentence(Case(SETTING, Coalition(broker=True)), finding_of(Coalition(broker=True)))


# planted faults


def test_noise_that_everybody_omits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: object, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)

    monkeypatch.setattr(DistributedDiscreteGaussian, "sample", nothing)
    case = Case(SETTING, Coalition(nodes=2, revealing=3))
    seen = investigate(case, RUNS, "omitted")
    assert (seen.verdict, seen.broken) == (REFUTED, True)
    assert "the noise left has a variance of at most 0" in seen.refuted[0]
    assert result(case, seen, RUNS, 0, 0.0).epsilon.measured_interval == (None, None)


@pytest.mark.parametrize("fault", ["a quarter of the variance", "N noises suffice", "half the sensitivity"])
def test_a_plan_of_too_little_noise_does_not_judge_itself(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, most = accounting.share_variance, SETTING.clients
    faulty = {
        "a quarter of the variance": lambda sensitivity, mu, honest, d: planned(sensitivity, mu, honest, d) // 4,
        "N noises suffice": lambda sensitivity, mu, honest, d: planned(sensitivity, mu, most, d),
        "half the sensitivity": lambda sensitivity, mu, honest, d: planned(sensitivity / 2, mu, honest, d),
    }
    monkeypatch.setattr(accounting, "share_variance", faulty[fault])
    seen = investigate(Case(SETTING, Coalition(revealing=3, trainer=True)), RUNS, "short")
    assert seen.verdict == REFUTED
    assert "the plan leaves less noise than the claim needs" in seen.refuted


def test_one_honest_client_without_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 of 3 noises, where the interval's half-width is 6 %."""
    original = Party._mechanism_of
    honest = Case(SETTING, Coalition(nodes=2, revealing=3)).honest[-1]

    class Nothing(DistributedDiscreteGaussian):
        def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
            return np.zeros(dimension, dtype=np.int64)

    monkeypatch.setattr(
        Party, "_mechanism_of", lambda self, index: Nothing() if index == honest else original(self, index)
    )
    seen = investigate(Case(SETTING, Coalition(nodes=2, revealing=3)), RUNS, "one-short")
    assert seen.verdict == REFUTED
    assert "the noise left" in seen.refuted[0]


def unmasked(value: NDArray[np.uint64], keys: Sequence[bytes], ah: bytes, entry: bytes) -> tuple[bytes, bytes]:
    """The vector bare: the sum is wrong too."""
    return masks.masked(value, keys, ah, entry)[0], value.tobytes()


def only_ours(value: NDArray[np.uint64], keys: Sequence[bytes], ah: bytes, entry: bytes) -> tuple[bytes, bytes]:
    """The masks of the coalition's two nodes alone."""
    return masks.masked(value, keys, ah, entry)[0], masks.masked(value, keys[:2], ah, entry)[1]


@pytest.mark.parametrize("fault", [unmasked, only_ours])
def test_masks_that_do_not_hide_are_found(monkeypatch: pytest.MonkeyPatch, fault: object) -> None:
    monkeypatch.setattr(contribution, "masked", fault)
    seen = investigate(Case(SETTING, Coalition(nodes=2)), RUNS, "masks")
    assert seen.verdict == REFUTED
    assert any(ANOTHER.search(said) for said in seen.refuted)


def test_a_client_whose_data_decide_whether_it_sends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Party.client

    def picky(self: Party, index: int, records: Sequence[tuple[str, bytes, bytes]] = ()) -> object:
        actor = original(self, index, records)
        if index == VICTIM and self.rows[index][0, 0] < 0:
            actor.__class__ = Withholding
        return actor

    monkeypatch.setattr(Party, "client", picky)
    assert not same_traffic(Case(SETTING, Coalition(broker=True)), "picky")[0]


def test_a_round_that_ends_otherwise_than_it_must_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SETTING, Coalition(nodes=2))
    monkeypatch.setattr(Case, "is_released", False)
    seen = investigate(case, RUNS, "released")
    assert any("rounds released with" in said for said in seen.refuted)


# the parts


def test_the_same_seed_gives_the_same_finding() -> None:
    case = Case(SETTING, Coalition(nodes=2, revealing=3, broker=True, trainer=True))
    again, other = (investigate(case, RUNS, seed) for seed in ("tests", "other"))
    assert finding_of(case.coalition) == again
    assert again.noise.measured != other.noise.measured


def test_a_residual_is_the_honest_clients_noise_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[NDArray[np.int64]] = []
    original = DistributedDiscreteGaussian.sample

    def noted(self: DistributedDiscreteGaussian, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        noise = original(self, variance, dimension, key)
        drawn.append(noise)
        return noise

    monkeypatch.setattr(DistributedDiscreteGaussian, "sample", noted)
    case = Case(SETTING, Coalition(revealing=1, omitting=1))
    rounds = Rounds(case, 1, "bits", IDEAL)
    one = rounds.run_round()
    left = residual(case, one)
    assert left is not None
    assert len(drawn) == 5  # the spy's among them, whose noise is subtracted again
    spied = rounds._party.spy.drawn[0]
    assert left.tolist() == (sum(drawn) - spied).tolist()


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
    assert joint_p_value(()) is None


def test_all_tests_together_count_each_of_them_and_the_heavier_tail_of_few_words() -> None:
    single = Test("shares", "uniform", 1e-3)
    assert joint_p_value((single, Test("sums", "uniform", 0.5))) == pytest.approx(2 * 2 * 1e-3)
    assert joint_p_value(()) is None


def test_default_clients_are_as_many_as_the_claim_covers() -> None:
    assert [worst_revealing(SETTING, others) for others in (0, 2, 5)] == [3, 1, 0]
    assert Case(SETTING, Coalition(nodes=2, revealing=3)).is_covered
    assert not Case(SETTING, Coalition(nodes=2, revealing=4)).is_covered
    assert not Case(SETTING, Coalition(nodes=3)).is_covered


# the command


def test_the_command_prints_and_writes_the_whole_finding(capsys: pytest.CaptureFixture[str]) -> None:
    small = {"clients": 6, "tolerate": 2, "dimension": 432, "rounds": RUNS, "seed": 1, "json_to": "-"}
    assert command.collude(**small, broker=True, trainer=True) == 0
    printed, shown = capsys.readouterr()
    page = json.loads(printed)
    assert (page["kind"], page["verdict"], page["broken"]) == ("collusion", "holds", False)
    assert page["coalition"] == {
        "nodes": 2,
        "revealing": 3,
        "omitting": 0,
        "silent": 0,
        "left_out": 0,
        "broker": True,
        "trainer": True,
    }
    assert page["setting"]["seed"] == 1
    assert page["noise"]["left"] >= page["noise"]["floor"]
    assert page["epsilon"]["claimed"] == 1.0
    assert page["view"]["depends_on_data"] is False
    assert page["why"].startswith("The claim holds: 3 unknown noises hide the client, and 3 are needed")
    assert "broker: client to compute" in shown
    assert command.collude(**small, nodes=3) == 0  # a documented break
    assert json.loads(capsys.readouterr().out)["broken"] is True


def test_the_command_fails_where_what_is_documented_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contribution, "masked", unmasked)
    assert command.collude(clients=6, tolerate=2, dimension=432, rounds=RUNS, seed=1, json_to="-") == 4
    printed, shown = capsys.readouterr()
    assert json.loads(printed)["verdict"] == "refuted"
    assert "Documented properties do not hold" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"nodes": 4}, "--colluding-computes 4: there are M = 3"),
        ({"nodes": -1}, "--colluding-computes -1"),
        ({"silent": -1}, "--silent -1"),
        ({"left_out": -1}, "--left-out -1"),
        ({"left_out": 1, "nodes": 0}, "--left-out 1: only colluding Compute nodes"),
        ({"revealing": 5, "silent": 5}, "there are 9 clients besides the victim"),
        ({"tolerate": 10}, "T = 10 is not below N = 10"),
        ({"tolerate": 9}, "N - T - 1 = 0 is below 1"),
        ({"colluders": 4}, "c = 4 exceeds T = 3"),
        ({"computes": 1}, "M = 1 Compute nodes"),
        ({"dimension": 0}, "--dimension 0"),
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"epsilon": 1e6}, "more than can be planned with"),
        ({"delta": 1.0}, "delta is 1"),
        ({"rounds": 1}, "--rounds 1: expected 84 to"),
        ({"json_to": "/nowhere/at/all.json"}, "/nowhere"),
    ],
    ids=str,
)
def test_impossible_requests_are_refused_in_one_line(asked: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as raised:
        command.collude(**asked)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_rounds_that_would_not_end_are_refused() -> None:
    with pytest.raises(UsageError, match="hours"):
        require_runs(Setting(clients=100_000), 2, 1000)
    assert finding.least_runs(Setting(dimension=1), 3) == 1792
