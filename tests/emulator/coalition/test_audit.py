"""`dca audit` end to end: a correct program stands, every planted fault is refuted, real actors have the same law.

Everything is seeded. An audit refutes a correct program less than once in 10,000 times (`finding.FALSE_ALARM`), and the
seeds as they stand give none.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from long_cases import mostly_long
from numpy.typing import NDArray
from scipy.stats import f

from dca_proto.cli import audit as command
from dca_proto.cli import main
from dca_proto.cli.output import schema_of
from dca_proto.crypto.sealing import Random
from dca_proto.errors import UsageError
from dca_proto.protocol.policy import Policy
from dca_proto.testing import seeded
from emulator.coalition import members
from emulator.coalition.actors import ActorRounds
from emulator.coalition.adversary import Attacker, Experiment, experiment, require_time
from emulator.coalition.faults import FAULTS
from emulator.coalition.finding import REFUTED, STANDS, Finding, find, same_law
from emulator.coalition.programme import IdealRounds, Programme
from emulator.coalition.worlds import Coalition, Setting, Worlds, default_coalition

FULL = 400_000
Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Calls `dca audit --json -`: exit code, what a program reads from stdout, what a person reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, dict[str, Any], str]:
        code = main(("audit", "--json", "-", *arguments))
        output, shown = capsys.readouterr()
        return code, json.loads(output) if output else {}, shown

    return call


def claim(**changes: object) -> Setting:
    """The setting at the δ for which the figures in these tests were measured."""
    return Setting(**{"delta": 1e-6, **changes})  # type: ignore[arg-type]


def ideal(world: Worlds, name: str, runs: int, programme: Programme | None = None) -> Experiment:
    chosen = programme or Programme()
    rounds = IdealRounds(world, chosen, seeded(f"ideal/{name}"))
    return experiment(rounds, Attacker(world, chosen), max(runs // 10, 200), runs)


def judged(name: str, runs: int, setting: Setting | None = None, programme: Programme | None = None) -> Finding:
    world = Worlds(setting or claim())
    return find(world, programme or Programme(), ideal(world, name, runs, programme), [], 0.95)


# The claim


def test_the_protocols_claim_stands_and_is_nearly_reached(run: Run) -> None:
    """ε = 1, δ = 1e-6, N = 10, T = 3, 4·10⁵ runs per side. Over seeds the Gaussian DP bound is 0.963 ± 0.014: outside
    of [0.9, 1] with probability 0.003."""
    code, found, shown = run("--rounds", str(FULL), "--seed", "1")
    assert code == 0
    assert found["verdict"] == STANDS
    assert found["setting"]["epsilon"] == 1
    assert 0.9 <= found["attack"]["epsilon_lower_gdp"] <= 1
    assert 0.3 < found["attack"]["epsilon_lower_cp"] < 1
    low, high = found["attack"]["variance_interval"]
    assert low < found["noise"]["floor"] < high
    assert high / low < 1.01
    assert "seeded with 1, for reproduction" in shown
    assert "There is no evidence against the claim" in shown


@pytest.mark.long
@pytest.mark.parametrize("setting", [claim(), claim(columns=3)])
def test_a_correct_program_is_not_accused(setting: Setting) -> None:
    """100 audits of 1,000 runs, of one line and of five: 0.01 false alarms are allowed on average, so one in all would
    have probability 1 %. Doubts are allowed once in 100 audits: more than 8 of 100 would have probability 1e-6."""
    found = [judged(f"accused/{number}", 1000, setting) for number in range(100)]
    assert {one.verdict for one in found} == {STANDS}
    assert sum(bool(one.doubts) for one in found) <= 8


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"statistic": "second-moments", "columns": 2, "bound": 7.5},
        {"statistic": "regression", "columns": 3},
        {"statistic": "mean", "epsilon": 10.0, "delta": 1e-4},
        {"clients": 40, "tolerate": 10, "colluders": 3, "dropped": 7, "epsilon": 0.1},
        {"reach": 1000.0},
        {"rounds": 2},
    ],
)
def test_the_claim_stands_for_other_settings(changes: dict[str, Any]) -> None:
    setting = claim(**changes)
    coalition = default_coalition(setting.clients, setting.tolerate, setting.computes, setting.dropped)
    found = judged(str(changes), 40_000, claim(**changes, coalition=coalition))
    assert found.verdict == STANDS
    assert found.attack.variance_ratio == pytest.approx(1, abs=0.03)
    assert found.attack.least_variance == pytest.approx(found.noise.floor, rel=0.03)


def test_the_claim_of_a_node_release_stands_for_each_row(run: Run) -> None:
    """And is nearly reached, by one who knows all its rows but one. 20,000 runs a side: accused once in 10,000."""
    code, found, shown = run("--node-release", "--statistic", "regression", "--rounds", "20000", "--seed", "1")
    assert (code, found["verdict"]) == (0, STANDS)
    assert found["attack"]["variance_ratio"] == pytest.approx(1, abs=0.04)  # 4 standard errors
    assert (found["noise"]["unknown"], found["noise"]["needed"], found["uniformity"]) == (1, 1, [])
    assert "for each row of a data node that releases alone" in shown


def test_fewer_colluders_are_left_with_more_noise() -> None:
    """The curious client alone: N - 1 = 9 noises where the claim needs 6. χ²: within 3 % of 1.5, 4 standard errors."""
    found = judged("alone", 40_000, claim(coalition=Coalition(clients=1, computes=2)))
    assert found.attack.variance_ratio == pytest.approx(1.5, rel=0.03)


def test_a_coalition_beyond_the_claim_is_attacked_but_accuses_nobody(run: Run) -> None:
    code, found, shown = run("--coalition", "clients=7,computes=2", "--rounds", "20000", "--seed", "2")
    assert (code, found["verdict"], found["covered"]) == (0, "not covered", False)
    assert (found["noise"]["unknown"], found["noise"]["needed"]) == (3, 6)
    assert found["attack"]["variance_ratio"] == pytest.approx(0.5, rel=0.1)
    assert "The claim does not cover this coalition" in shown


# Planted faults: noise that is not independent and equal in all coordinates


class Bare(Programme):
    """No noise in the first coordinate."""

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        noise = super().noise(world, client, runs, random)
        noise[:, 0] = 0
        return noise


class Correlated(Programme):
    """The same noise in all coordinates."""

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        return np.repeat(super().noise(world, client, runs, random)[:, :1], world.size, axis=1)


class Short(Programme):
    """The third coordinate's noise has 0.9 times the variance, to the rounding of a unit."""

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        noise = super().noise(world, client, runs, random)
        noise[:, 2] = np.rint(noise[:, 2] * 0.9**0.5)
        return noise


@pytest.mark.long
@pytest.mark.parametrize("programme", [Bare(), Correlated(), Short()])
@pytest.mark.parametrize(
    ("statistic", "columns"), [("second-moments", 4), ("regression", 3), ("regression", 6), ("sum", 4)]
)
def test_noise_is_judged_on_every_line(programme: Programme, statistic: str, columns: int) -> None:
    """Whether x - x' has a part where noise is missing (a sum's first coordinate) or none (the square of a regression's
    first column). A variance of 0.9 is 15 standard errors short."""
    runs = 20_000 if isinstance(programme, Short) else 2_000
    found = judged("lines", runs, claim(statistic=statistic, columns=columns), programme)
    assert (found.verdict, "variance" in found.evidence) == (REFUTED, True)
    assert found.attack.least_variance_interval[1] < found.noise.floor
    if not isinstance(programme, Short):
        assert found.attack.least_variance == 0
    else:
        assert found.attack.least_variance / found.noise.floor == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(("programme", "statistic"), [(Bare(), "sum"), (Correlated(), "regression")])
def test_the_adversary_looks_where_the_noise_is_missing(programme: Programme, statistic: str) -> None:
    found = judged("bent", 20_000, claim(statistic=statistic, columns=3), programme)
    assert found.attack.variance == 0
    assert {"epsilon-gdp", "epsilon-cp"} <= set(found.evidence)


def test_the_adversary_keeps_to_the_straight_line_where_the_noise_is_equal() -> None:
    world = Worlds(claim(statistic="regression", columns=3))
    step = Attacker(world, Programme()).step
    assert ideal(world, "straight", 5000).lines[0] == pytest.approx(step / np.linalg.norm(step))


def test_the_adversary_weighs_coordinates_by_their_noise() -> None:
    """With 0.01 times the variance in one of two coordinates the best line is 100 to 1."""

    class Unequal(Programme):
        def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
            noise = super().noise(world, client, runs, random)
            noise[:, 1] //= 10
            return noise

    line = ideal(Worlds(claim(columns=2)), "unequal", 20_000, Unequal()).lines[0]
    assert line[1] / line[0] == pytest.approx(100, rel=0.2)


# Planted faults


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refuted(run: Run, name: str) -> None:
    code, found, shown = run("--plant", name, "--rounds", "20000", "--seed", "3")
    assert (code, found["verdict"], found["fault"]) == (4, REFUTED, name)
    assert "shape" in found["evidence"]
    assert "noise does not have the shape of its law" in found["sentence"]
    assert ("variance" in found["evidence"]) == (name != "clipped-noise")
    assert (found["attack"]["variance_interval"][1] < found["noise"]["floor"]) == (name != "clipped-noise")
    assert (found["noise"]["unknown"] == 5) == (name == "omitted-noise")
    assert name in shown
    assert "does not hold" in shown


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("classical-sigma", {"epsilon": 10.0, "delta": 1e-4}),
        ("published-std-sensitivity", {"statistic": "second-moments", "bound": 7.5}),
        ("omitted-noise", {"tolerate": 3, "epsilon": 1.0}),
    ],
)
def test_the_bound_on_epsilon_sees_the_faults_too(run: Run, name: str, point: dict[str, Any]) -> None:
    """With all runs even the smallest of the faults shows in ε itself, at the verdict's level of 1 in 10,000."""
    code, found, shown = run("--plant", name, "--seed", "4")
    assert code == 4
    assert "epsilon-gdp" in found["evidence"]
    assert found["attack"]["epsilon_lower_gdp"] > found["setting"]["epsilon"]
    assert {key: found["setting"][key] for key in point} == point
    assert all(move in shown for move in found["moved"])


def test_too_few_runs_for_a_fault_are_raised_and_reported(run: Run) -> None:
    code, found, shown = run("--plant", "classical-sigma", "--rounds", "1000", "--seed", "5")
    assert (code, found["runs"]) == (4, 20_000)
    assert "runs = 20000 (asked for: 1000)" in shown


# The real actors


class Real(NamedTuple):
    """An audit of real rounds, as the command made it: its answers, and what the adversary saw."""

    code: int
    found: dict[str, Any]
    shown: str
    world: Worlds
    seen: Experiment


@pytest.fixture(scope="module")
def real_rounds(tmp_path_factory: pytest.TempPathFactory) -> Real:
    """4 clients, of which one drops out of each round: 240 rounds of real actors in each world."""
    kept: list[tuple[Worlds, Experiment]] = []

    def keep(world: Worlds, programme: Programme, seen: Experiment, *others: Any) -> Finding:
        kept.append((world, seen))
        return find(world, programme, seen, *others)

    file, shown = tmp_path_factory.mktemp("real") / "audit.json", io.StringIO()
    swarm = ("--clients", "4", "--tolerate", "2", "--drop", "1", "--computes", "2", "--dimension", "16")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.setenv("COLUMNS", "200")
        patch.setattr(command, "find", keep)
        code = main(("audit", *swarm, "--protocol", "--rounds", "240", "--seed", "6", "--json", str(file)))
    return Real(code, json.loads(file.read_text()), shown.getvalue(), *kept[0])


@pytest.mark.long
def test_real_rounds_have_the_law_of_the_ideal_functionality(real_rounds: Real) -> None:
    """240 rounds of real actors in each world against 20,000 of the ideal functionality, by Kolmogorov and Smirnov, and
    the variances of all coordinates by F: 18 seeded tests, each with a false alarm of 1e-4."""
    world, protocol = real_rounds.world, real_rounds.seen
    reference = ideal(world, "reference", 20_000)
    assert reference.lines[0] == pytest.approx(protocol.lines[0])
    assert same_law(protocol.main, reference.main) > 1e-4
    axes = np.eye(world.size)
    for real, drawn in zip(protocol.noise.along(axes), reference.noise.along(axes), strict=True):
        tail = float(f.sf(real.variance / drawn.variance, real.degrees, drawn.degrees))
        assert 5e-5 < tail < 1 - 5e-5


@pytest.mark.long
def test_the_command_runs_real_actors_with_dropping_clients(real_rounds: Real) -> None:
    code, found, shown, *_ = real_rounds
    assert (code, found["verdict"], found["audited"]) == (0, STANDS, "protocol")
    assert found["messages"]["same_law_p"] > 1e-4
    assert "real actors run the rounds" in shown


@pytest.mark.long
def test_a_data_nodes_real_releases_have_the_law_that_is_audited(run: Run) -> None:
    """100 releases in each world; less than once in 10,000 times a right one is accused."""
    code, found, _ = run("--node-release", "--protocol", "--dimension", "2", "--rounds", "100", "--seed", "8")
    assert (code, found["verdict"], found["audited"]) == (0, STANDS, "protocol")
    assert found["messages"]["same_law_p"] > 1e-4


def test_two_different_distributions_are_distinguished() -> None:
    world, fault = Worlds(claim()), FAULTS["noise-scaled-by-n"]
    assert same_law(ideal(world, "one", 300).main, ideal(world, "two", 300).main) > 1e-4
    assert same_law(ideal(world, "one", 300).main, ideal(world, "short", 300, fault).main) < 1e-4


def test_clients_that_decline_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = functools.partial(Policy, computes_min=9)
    monkeypatch.setattr(members, "Policy", strict)
    monkeypatch.setattr(command, "ActorRounds", lambda setting, random, *_: ActorRounds(setting, random))  # here
    code, _, shown = run("--protocol", "--rounds", "100")
    assert code == 2
    assert "the clients decline (computes" in shown or "the clients decline: computes" in shown


# What goes in and comes out


def test_a_doubt_does_not_change_the_verdict(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors and plans above the variance found: by 1.6 %, 2.3 standard errors, where a 95 % interval ends after 2.0
    and a doubt begins at 2.9; and by 2.5 %, 3.5 standard errors, where a verdict begins at 4.1."""
    found = run("--rounds", "20000", "--seed", "8")[1]
    assert found["doubts"] == []

    def claimed(variance: float) -> None:
        monkeypatch.setattr(Worlds, "floor", variance)
        monkeypatch.setattr(Worlds, "planned", variance)

    right = found["attack"]["variance"]
    claimed(1.016 * right)
    _, found, shown = run("--rounds", "20000", "--seed", "8")
    assert (found["verdict"], found["doubts"]) == (STANDS, [])
    assert "a bound at 95 % lies beyond it, which happens by chance in about 2.5 % of audits" in shown
    claimed(1.025 * right)
    code, found, shown = run("--rounds", "20000", "--seed", "8")
    assert (code, found["verdict"], found["evidence"], found["doubts"]) == (0, STANDS, [], ["variance"])
    assert (
        "Not refuted, but the noise that the coalition cannot remove has 0.976 times the variance planned: a correct"
        in shown
    )
    assert "program shows this in at most 1 % of audits" in shown


@pytest.mark.long
def test_an_unwritable_picture_is_a_one_line_error_after_the_figures(run: Run) -> None:
    Path("full.png").symlink_to("/dev/full")
    code, found, shown = run("--rounds", "2000", "--seed", "8", "--plot", "full.png")
    assert (code, found["verdict"]) == (8, STANDS)
    assert "cannot write full.png: No space left on device" in shown.splitlines()[-1]


def test_an_audit_that_would_take_too_long_is_refused_by_its_noises() -> None:
    require_time(1000, 1, 400_000, protocol=False)
    require_time(1_000_000, 1, 90_000, protocol=False)
    require_time(7900, 1, 400, protocol=True)
    with pytest.raises(UsageError, match=r"--rounds 20000000 of 1000 clients would take about .* hours; take at most"):
        require_time(1000, 28, 20_000_000, protocol=False)


def test_the_same_seed_gives_the_same_figures_and_fresh_keys_others(run: Run) -> None:
    seed, again, fresh, other = (
        run("--rounds", "2000", *seed)[1] for seed in (("--seed", "8"), ("--seed", "8"), (), ("--seed", "9"))
    )
    assert {**seed, "seconds": 0} == {**again, "seconds": 0}
    assert len({found["attack"]["variance"] for found in (seed, fresh, other)}) == 3
    assert fresh["seed"] is None


def test_the_figures_for_programs(run: Run) -> None:
    _, found, shown = run("--rounds", "2000", "--seed", "8", "--confidence", "0.9")
    assert {"epsilon_lower_gdp", "epsilon_lower_cp", "variance", "variance_interval"} <= found["attack"].keys()
    assert (found["attack"]["confidence"], found["verdict_confidence"]) == (0.9, 0.9999)
    members = {"clients": 4, "omitting": 0, "left_out": 0, "computes": 2, "broker": True, "trainer": False}
    assert found["setting"]["coalition"] == members
    assert len(found["uniformity"]) == 6
    schema_fields = set(re.findall(r"\w+", json.dumps(schema_of(command.OUTPUT))))
    named = {*found, *members, *found["attack"], *found["uniformity"][0]}
    assert named <= schema_fields, "the schema names every field"
    assert "dca schema audit" in (command.audit.__doc__ or "")
    assert "variance of the noise left" in shown, "what a person reads is on stderr"


@pytest.mark.parametrize("fault", mostly_long([(), ("--plant", "reused-noise")], [()]))
def test_the_picture(run: Run, fault: tuple[str, ...]) -> None:
    _, _, shown = run("--rounds", "2000", "--seed", "8", "--plot", "audit.png", *fault)
    assert Path("audit.png").read_bytes().startswith(b"\x89PNG")
    assert "audit.png" in shown


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("--rounds", "999"), "expected 1000 to 20000000", 2),
        (("--rounds", "50", "--protocol"), "expected 100 to 100000", 2),
        (
            ("--rounds", "100", "--protocol", "--dimension", "1"),
            "--rounds 100: expected 2688 to 100000 at --dimension 1",
            2,
        ),
        (("--clients", "100000000", "--rounds", "1000"), "clients is 100000000; give a number from 0 to 10000000", 2),
        (("--clients", "1000000"), "about 24 hours; take at most --rounds 97000 or --clients 240000", 2),
        (("--clients", "1000000", "--protocol"), "take at most --clients 7100 (six hours)", 2),
        (("--coalition", ""), "names nobody", 2),
        (("--coalition", "clients=1,computes=3"), "take at most M - 1 = 2", 2),
        (("--coalition", "clients=10"), "take at most 9", 2),
        (("--plant", "omited-noise"), "did you mean 'omitted-noise'?", 2),
        (("--plant", "typo"), "known: noise-scaled-by-n", 2),
        (("--statistic", "meen"), "did you mean 'mean'?", 2),
        (("--seed", "-1"), "'--seed': Input should be greater than or equal to 0", 2),
        (("--plant", "reused-noise", "--protocol"), "exclude each other", 2),
        (("--confidence", "1"), "expected 0.5 to below 1", 2),
        (("--epsilon", "0"), "epsilon", 2),
        (("--delta", "1"), "delta", 2),
        (("--plot", "audit.gif"), "expected a name that ends in .png", 2),
        (("--plot", "nowhere/audit.png"), "does not exist", 8),
        (("--dimension", "0"), "expected 1 to 4096", 2),
        (("--statistic", "regression", "--dimension", "7"), "expected 2 to 6", 2),
        (("--verified", "--protocol"), "--verified and --protocol exclude each other", 2),
        (("--verified", "--node-release"), "leave out --clients", 2),
        (
            ("--node-release", "--clients", "5"),
            "--node-release audits one data node, which relies on no one else: leave out --clients",
            2,
        ),
    ],
)
def test_a_wrong_call_is_one_line(run: Run, arguments: tuple[str, ...], message: str, code: int) -> None:
    given, found, shown = run(*arguments)
    assert (given, found) == (code, {})
    assert message in shown
    assert shown.count("\n") == 1
