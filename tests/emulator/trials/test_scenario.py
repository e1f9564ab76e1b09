"""Scenarios as files: they read back as they were written, and what cannot be is refused in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dca_proto.errors import UsageError
from emulator.trials.draw import _SIZES, draw_scenario
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import Fault, Scenario, to_plain
from emulator.trials.scenario_file import from_plain, load_scenario, to_toml


def test_an_empty_file_is_the_default_scenario(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("")
    assert load_scenario(path) == Scenario()


def test_a_file_says_everything(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(
        'seed = 5\nname = "a \\"quoted\\" name"\n[population]\nclients = 9\n'
        "[rounds]\ntolerate = 2\n[network]\nloss = 0.1\n"
        "[broker]\npersistent_sessions = false\n[limits]\nhonest_min = 2\n"
        '[[faults]]\nkind = "kill-torn"\nactor = "compute 1"\nphase = "frozen"\n'
        '[[adversaries]]\nkind = "sybil"\nactor = "client 8"\n'
    )
    scenario = load_scenario(path)
    assert (scenario.seed, scenario.name, scenario.population.clients) == (5, 'a "quoted" name', 9)
    assert (scenario.network.loss, scenario.broker.persistent_sessions, scenario.limits.honest_min) == (0.1, False, 2)
    assert scenario.faults == (Fault(kind="kill-torn", actor="compute 1", phase="frozen"),)
    assert scenario.adversaries[0].actor == "client 8"


@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_reads_back(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert from_plain(to_plain(scenario)) == scenario
    assert from_plain(tomllib.loads(to_toml(scenario))) == scenario


@pytest.mark.parametrize("seed", [20767, 22056, 22951])
def test_many_clients_of_reports_do_not_leave_more_dropouts_than_clients(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert scenario.rounds.tolerate < scenario.population.clients


@pytest.fixture(scope="module")
def of_600_seeds() -> list[Scenario]:
    return [draw_scenario(seed) for seed in range(600)]


def test_wide_messages_are_mixed_in_a_few_parts(of_600_seeds: list[Scenario]) -> None:
    """In parts of 300 bytes, four partial sums of 6,261 words were 680 messages, which took longer than the round."""
    mixed = [one for one in of_600_seeds if any(fault.kind == "mix-parts" for fault in one.faults)]
    parts = [8 * one.population.dimension / one.broker.part_bytes_max for one in mixed]
    assert sum(count > 1 for count in parts) > 2, "of wide messages"
    assert max(parts) < 10


def test_every_kind_is_drawn(of_600_seeds: list[Scenario]) -> None:
    drawn = of_600_seeds[:400]
    assert {fault.kind for one in drawn for fault in one.faults} == set(FAULTS)
    assert {kind.amount for kind in FAULTS.values()} == {*_SIZES, "not used"}, "else all amounts would be 0"
    assert {adversary.kind for one in drawn for adversary in one.adversaries} == {
        name for name, kind in HOSTILE.items() if not kind.is_directed
    }
    assert {3, 60} <= {one.population.clients for one in drawn} | {60}
    assert max(one.population.clients for one in drawn) > 40
    assert {one.population.computes for one in drawn} == {2, 3, 4, 5, 6}
    assert sum(len(one.faults) > 1 for one in drawn) > 200, "mostly several at a time"


def test_a_seed_draws_one_scenario() -> None:
    assert draw_scenario(17) == draw_scenario(17)
    assert draw_scenario(17) != draw_scenario(18)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sede = 1", "unknown key 'sede' (did you mean 'seed'?)"),
        ("[population]\nclient = 5", "population: unknown key 'client' (did you mean 'clients'?)"),
        ("[[faults]]\nkin = 'crash'\nactor = 'trainer'", "faults 1: unknown key 'kin' (did you mean 'kind'?)"),
        ("[broker]\nqueue = 1", "broker: unknown key 'queue'"),
        ("[population]\nclients = 'many'", "population.clients is a text, expected a whole number"),
        ("population = 3", "population is a whole number, expected a table"),
        ("[[faults]]\nactor = 'trainer'", "missing required field `kind`"),
        ("faults = 3", "faults is a whole number, expected a list"),
        (
            '[population]\nstatistic = "second-moments"\n[rounds]\nverified = true',
            "rounds.verified is true for rounds that cannot be verified",
        ),
        ("seed = -1", "seed is -1; give a number from 0"),
        ("[population]\nclients = 2", "population.clients is 2; give a number from 3"),
        ("[population]\nclients = 1000000", "give a number from 3 to 10000"),
        ("[population]\ncomputes = 1", "population.computes is 1; give a number from 2 to 64"),
        ("[population]\ncomputes = 65", "population.computes is 65; give a number from 2 to 64"),
        ("[population]\nclients = 10000\ndimension = 100000", "more than 10 million masks"),
        ("[population]\nstatistic = 'suM'", "(did you mean 'sum'?); give one of sum, mean"),
        (
            "[rounds]\ntolerate = 5",
            "rounds: N - T - 1 = 6 - 5 - 1 is below 1: no honest noise would be left; lower tolerate to at most 4",
        ),
        ("[rounds]\ncolluders = 2", "rounds: c = 2 colluders exceed T = 1; lower colluders to 1"),
        ("[rounds]\nkind = 'sum'", "rounds.kind is 'sum'"),
        ("[rounds]\nepsilon = nan", "rounds.epsilon is nan"),
        ("[rounds]\nepsilon = inf", "rounds.epsilon is inf"),
        ("[rounds]\ncount = 1000000000", "rounds.count is 1e+09; give a number from 1 to 100"),
        ("[rounds]\ncollect_s = -5", "rounds.collect_s is -5"),
        ("[rounds]\ncollect_s = 0", "rounds.collect_s is 0"),
        ("[rounds]\nevery_ms = 99999999999999", "rounds.every_ms is 1e+14"),
        ("heal_ms = -1", "heal_ms is -1"),
        (f"seed = {10**400}", "seed is beyond 64 bits; give a number from 0"),
        (f"[network]\ndelay_ms = {10**400}", "network.delay_ms is beyond 64 bits; give a number from 0"),
        ("[network]\nloss = 1.5", "network.loss is 1.5; give a number from 0 to 0.95"),
        ("[network]\nloss = 1", "network.loss is 1"),
        ("[network]\nduplicate = -0.1", "network.duplicate is -0.1; give a number from 0 to 1"),
        ("[network]\ndelay_ms = nan", "network.delay_ms is nan"),
        ("[network]\nretry_ms = 0", "network.retry_ms is 0"),
        ("[broker]\nqueue_messages_max = 0", "broker.queue_messages_max is 0"),
        ("[broker]\npacket_bytes_max = 1000", "broker.part_bytes_max is"),
        ("[broker]\nreconnect_ms = 0", "broker.reconnect_ms is 0"),
        ("[broker]\nsession_expiry_ms = -1", "broker.session_expiry_ms is -1"),
        ("[[faults]]\nkind = 'crush'\nactor = 'trainer'", "kind is 'crush' (did you mean 'crash'?)"),
        ("[[faults]]\nkind = 'crash'\nactor = 'client 6'", "actor is 'client 6'; give client 0 to client 5"),
        ("[[faults]]\nkind = 'crash'\nactor = 'compute 3'", "give compute 0 to compute 2"),
        ("[[faults]]\nkind = 'crash'\nactor = 'Trainer'", "(did you mean 'trainer'?)"),
        (
            "[[faults]]\nkind = 'crash'\nactor = 'broker'",
            "crash of 'broker'; give an actor with one of the roles client",
        ),
        (
            "[[faults]]\nkind = 'duplicate-instance'\nactor = 'clients'",
            "duplicate-instance of 'clients'; give client and a number",
        ),
        ("[[faults]]\nkind = 'crash'\nactor = 'trainer'\nat_ms = -1", "at_ms is -1"),
        ("[[faults]]\nkind = 'crash'\nactor = 'trainer'\nfor_ms = 1e3", "for_ms is a number, expected a whole number"),
        ("[[faults]]\nkind = 'lossy'\nactor = 'trainer'\namount = 1.0", "amount of lossy is 1; give 0 to 0.95"),
        ("[[faults]]\nkind = 'swallow'\nactor = 'trainer'\namount = nan", "amount of swallow is nan; give 0 to 1"),
        ("[[faults]]\nkind = 'crash'\nactor = 'trainer'\namount = 1", "amount of crash is 1; give 0 to 0 (not used)"),
        (
            "[[faults]]\nkind = 'kill-torn'\nactor = 'trainer'\nphase = 'frozen'",
            "phase is 'frozen'; give one of collecting",
        ),
        ("[[faults]]\nkind = 'crash'\nactor = 'trainer'\nphase = 'done'", "phase is 'done'; give none for this kind"),
        ("[[adversaries]]\nkind = 'sibyl'\nactor = 'client 0'", "(did you mean 'sybil'?)"),
        ("[[adversaries]]\nkind = 'sybil'\nactor = 'compute 0'", "sybil as 'compute 0'; give client and a number"),
        ("[[adversaries]]\nkind = 'silent'\nactor = 'compute 9'", "actor is 'compute 9'; give compute 0 to compute 2"),
        ("[[adversaries]]\nkind = 'stranger'\nactor = 'client 0'", "give stranger and a number, such as stranger 0"),
        ("[[adversaries]]\nkind = 'flood'\nactor = 'client 0'\namount = 1000000000", "give 0 to 1000"),
        (
            "[[adversaries]]\nkind = 'sybil'\nactor = 'client 0'\n[[adversaries]]\nkind = 'flood'\nactor = 'client 0'",
            "'client 0' is an adversary twice",
        ),
        ("".join(f"[[adversaries]]\nkind = 'sybil'\nactor = 'client {i}'\n" for i in range(6)), "all clients are"),
        ("".join(f"[[adversaries]]\nkind = 'silent'\nactor = 'compute {i}'\n" for i in range(3)), "all Compute nodes"),
        ("[[faults]]\nkind = 'crash'\nactor = 'trainer'\n" * 1001, "1001 faults; give at most 1000"),
        ("seed = ", "is not valid TOML"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        load_scenario(path)
    line = str(refusal.value)
    assert words in line
    assert line.startswith(str(path))
    assert "\n" not in line


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_scenario(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        load_scenario(tmp_path / "binary.toml")
    with pytest.raises(UsageError, match="is a folder, not a regular file; name a file; give a scenario in TOML"):
        load_scenario(tmp_path)
