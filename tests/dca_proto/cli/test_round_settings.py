"""Node releases and LDP reports in files and on the command line: the request, who opts in, what is printed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from exact_rounds import aggregate

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.cli import main
from dca_proto.cli import trainer as command
from dca_proto.cli.output import Terminal
from dca_proto.cli.trainer import result_lines
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.play import play_releases
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.results.round import round_of
from dca_proto.runtime import device
from dca_proto.runtime.keyfile import read_federation
from dca_proto.runtime.request import RoundSettings, open_round
from dca_proto.runtime.settings import convert
from dca_proto.statistics import Mean
from dca_proto.testing import TestFederation

ALONE = TestFederation(2, 0, policy=Policy(rows_of_many=True))
PLAIN = {"statistic": "mean", "columns": ["x"], "bounds": {"x": [-1, 1]}, "epsilon": 1.0, "delta": 1e-6,
         "kind": "node-release", "rows_max": 100}  # fmt: skip


def settings(**changes: Any) -> RoundSettings:
    return convert("[round]", {**PLAIN, **changes}, RoundSettings)


def result() -> NoisyAggregate:
    request = open_round(settings(clients=2), ALONE.federation)
    return play_releases(ALONE.trainer(), [ALONE.client(0), ALONE.client(1)], request, 1_700_000_000_000)


@pytest.mark.parametrize("federation", [ALONE.federation, TestFederation(2, 3).federation])
def test_two_options_request_a_node_release(federation: Federation) -> None:
    request = open_round(settings(), federation)
    assert (request.kind, request.rows_max) == (NodeRelease(), 100)


def test_the_default_request_is_a_secure_sum() -> None:
    actors = TestFederation(2, 3)
    plain = {"statistic": "mean", "columns": ["x"], "bounds": {"x": [-1, 1]}, "epsilon": 1.0, "delta": 1e-6}
    request = open_round(convert("[round]", {**plain, "tolerate": 3, "colluders": 1}, RoundSettings), actors.federation)
    assert (request.kind, request.computes) == (SecureSum(tolerate=3, colluders=1), actors.computes)
    assert (request.collect_ms, request.commit_ms) == (120_000, 120_000)


@pytest.mark.parametrize("colluding", [0, 1])
def test_a_request_that_names_fewer_nodes_than_the_federation_file_asks_for_is_refused(colluding: int) -> None:
    """Before, it was announced, all refused it, and the account kept its charge."""
    actors = TestFederation(2, 3, colluding=colluding)
    plain = {"statistic": "mean", "columns": ["x"], "bounds": {"x": [-1, 1]}, "epsilon": 1.0, "delta": 1e-6}
    named = convert("[round]", {**plain, "computes": ["compute-0", "compute-1"]}, RoundSettings)
    if colluding:
        assert open_round(named, actors.federation).computes == actors.computes[:2]
        return
    with pytest.raises(UsageError, match="found 2 Compute nodes, expected at least 3, as p = 2 in the federation file"):
        open_round(named, actors.federation)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows_max": 0}, "a node release sums rows: give the most rows that count, at least 1"),
        ({"tolerate": 1}, "each client adds all the noise: leave out tolerate, colluders and computes"),
        ({"computes": ["compute-0"]}, "leave out tolerate, colluders and computes"),
        ({"kind": "node-relase"}, "is unknown (did you mean 'node-release'?); use one of secure-sum, node-release"),
        ({"mechanism": "grid-laplace"}, "mechanism 'grid-laplace' needs kind = "),
        (
            {"kind": "secure-sum"},
            "found 0 Compute nodes, expected at least 2, each named once; the federation has none",
        ),
        ({"rows_max": 2**30}, "below 2^53"),
    ],
)
def test_an_impossible_request_is_a_one_line_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_round(settings(**changes), ALONE.federation)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_policy_may_declare_rows_of_many_and_by_default_does_not() -> None:
    assert convert("[policy]", {"rows_of_many": True}, Policy).rows_of_many
    assert not Policy().rows_of_many


def test_the_result_shows_the_warnings_of_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    mean = Mean(columns=("x",), centre=(5.0,), scale=(5.0,), bound=(1.0,), count_weight=1.0)
    request = RoundRequest(mean.name, msgspec.to_builtins(mean))
    found = dataclasses.replace(aggregate(np.array([20.0, 50.0]), 1.0, request, 100), doubts=("the sum is odd",))
    odd, missing = round_of(found, alone=True).doubts
    command._show(Terminal(), found)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"warning {odd} warning {missing}" in printed
    assert missing.startswith("about 50 % of the clients")


def test_the_result_shows_rows_and_data_nodes() -> None:
    found = result()
    plain = json.loads(msgspec.json.encode(round_of(found, alone=True)))
    assert [node["rows"] for node in plain["nodes"]] == [1, 1]
    assert [node["value"] for node in plain["nodes"]] == [node.value.tolist() for node in found.nodes]
    assert plain["noise_variance"] == 2 * plain["nodes"][0]["noise_variance"]
    assert plain["relation"] == "replace-one-row"
    assert plain["reports"] is None
    first, second, _ = result_lines(found)
    assert first == "from       2 rows of 2 data nodes (1, 1); each node added all the noise"
    assert second == "spent      epsilon 1, delta 1e-06 of every row's budget"


REPORTS = {"statistic": "histogram", "columns": ["x"], "parameters": {"edges": [0, 1, 2, 3]}, "epsilon": 1.0,
           "kind": "ldp-report", "mechanism": "unary-encoding", "rows_max": 1}  # fmt: skip


def reports(**changes: Any) -> RoundSettings:
    return convert("[round]", {**REPORTS, **changes}, RoundSettings)


@pytest.mark.parametrize("federation", [ALONE.federation, TestFederation(2, 3).federation])
def test_a_mechanisms_name_requests_reports(federation: Federation) -> None:
    request = open_round(reports(), federation)
    assert request.kind == LdpReport("unary-encoding")
    assert (request.epsilon, request.delta) == (1.0, 0.0)
    gaussian = open_round(reports(mechanism="analytic-gaussian", delta=1e-6, rows_max=0, clients=1), federation)
    assert (gaussian.delta, gaussian.rows_max, gaussian.kind.clients) == (1e-6, 0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanism": "unary"}, "mechanism 'unary' makes no reports"),
        ({"mechanism": "grid-laplce"}, "(did you mean 'grid-laplace'?); use one of analytic-gaussian, grid-laplace,"),
        ({"mechanism": "distributed-discrete-gaussian"}, "makes no reports"),
        ({"kind": "node-release"}, "mechanism 'unary-encoding' needs kind = "),
        ({"tolerate": 1}, "each client adds all the noise: leave out tolerate, colluders and computes"),
        ({"computes": ["compute-0"]}, "leave out tolerate, colluders and computes"),
        (
            {"delta": 1e-6},
            "mechanism 'unary-encoding' is private by epsilon alone: found delta 1e-06",
        ),
        ({"mechanism": "analytic-gaussian"}, "delta is 0.0, expected a number in (0, 1), such as 1e-6"),
        ({"rows_max": 0}, "rows_max is 0, expected 1: a report by unary-encoding is of one row's category"),
        ({"rows_max": 3}, "rows_max is 3, expected 1"),
        ({"parameters": {"edges": [0, 1]}}, "categories is 1, expected 2"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"epsilon": 101}, "expected a number above 0 and at most 100"),
        (
            {"statistic": "mean", "parameters": {}, "bounds": {"x": [0, 1]}},
            "statistic 'mean' has no categories, but a report by unary-encoding names a category; ask",
        ),
        ({"mechanism": "", "kind": "secure-sum", "delta": 1e-6}, 'take kind = "node-release" or "ldp-report"'),
        ({"mechanism": ""}, "mechanism '' makes no reports; use one of analytic-gaussian"),
        ({"mechanism": 3}, "mechanism"),
    ],
)
def test_an_impossible_round_of_reports_is_a_one_line_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_round(reports(**changes), ALONE.federation)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_resumed_round_says_in_both_outputs_that_a_client_lied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def resume(actor: device.Device, on_report: Any) -> list[RoundFailed]:
        few, false = RoundFailed(bytes(16), "too-few", 2, 3, unproven=1), RoundFailed(bytes(16), "false", None, None)
        return [few, msgspec.structs.replace(false, implausible=True)]

    monkeypatch.setattr(device.Device, "resume", resume)
    assert main(["federation", "init", str(tmp_path / "a"), "--without-computes", "--broker", "mqtt://127.0.0.1"]) == 0
    found = tmp_path / "found.json"
    assert main(["trainer", str(tmp_path / "a" / "trainer.toml"), "--resume", "--json", str(found)]) == 3
    assert [(one["implausible"], one["unproven_clients"]) for one in json.loads(found.read_text())] == [
        (False, 1), (True, 0),
    ]  # fmt: skip
    assert "find the client that lied and revoke it" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("ending", "remedy"),
    [
        ({"declined": True}, "once the clients accept these terms ([policy] of their files), ask for the round"),
        ({"refused": True}, "once the Compute node accepts these terms ([floors] of its file), ask for the round"),
        ({"hopeless": True}, "those clients will fail again: find out why"),
        ({"lost": ("compute-2",)}, "start compute-2 again, then ask for the round"),
    ],
)
def test_a_resumed_round_that_failed_says_what_to_do(
    ending: dict[str, Any],
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command that resumes it asks for no round, so nobody is told to run it again, or to name a journal."""

    async def resume(actor: device.Device, on_report: Any) -> list[RoundFailed]:
        return [RoundFailed(bytes(16), "too-few", None, None, **ending)]

    monkeypatch.setattr(device.Device, "resume", resume)
    assert main(["federation", "init", str(tmp_path / "a"), "--without-computes", "--broker", "mqtt://127.0.0.1"]) == 0
    assert main(["trainer", str(tmp_path / "a" / "trainer.toml"), "--resume"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert f"advice {remedy}" in said
    assert "command" not in said
    assert "journal" not in said


def test_a_file_and_options_ask_for_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[round] kind` and `mechanism`, and `dca trainer --mechanism` on top of it."""
    requests: list[OpenRound] = []

    async def run_round(actor: device.Device, request: OpenRound, on_report: Any) -> NoisyAggregate:
        requests.append(request)
        raise RoundAborted("nobody came")

    monkeypatch.setattr(device.Device, "run_round", run_round)
    given = ("--without-computes", "--clients", "2", "--broker", "mqtt://127.0.0.1")
    assert main(["federation", "init", str(tmp_path / "a"), *given]) == 0
    trainer = tmp_path / "a" / "trainer.toml"
    with trainer.open("a") as file:
        file.write(
            '[round]\nstatistic = "histogram"\ncolumns = ["x"]\nparameters = { edges = [0, 1, 2] }\nepsilon = 1\n'
            'kind = "ldp-report"\nmechanism = "unary-encoding"\nrows_max = 1\n'
        )
    assert main(["trainer", str(trainer)]) == 3
    assert main(["trainer", str(trainer), "--mechanism", "randomised-response", "--epsilon", "0.5"]) == 3
    assert [(one.kind, one.epsilon, one.delta) for one in requests] == [
        (LdpReport("unary-encoding"), 1.0, 0.0), (LdpReport("randomised-response"), 0.5, 0.0),
    ]  # fmt: skip


def test_the_result_shows_the_number_of_reports_and_their_mechanism() -> None:
    policy = Policy()
    actors = TestFederation(3, 0, rows=[np.array([[0.5]]), np.array([[2.5]]), np.zeros((0, 1))], policy=policy)
    request = open_round(reports(clients=3), actors.federation)
    found = play_releases(actors.trainer(), [actors.client(index) for index in range(3)], request, 1_700_000_000_000)
    plain = json.loads(msgspec.json.encode(round_of(found, alone=True)))
    assert found.reports is not None
    assert plain["reports"]["values"] == found.reports.values.astype(int).tolist()
    assert (plain["contributors"], plain["delta"], plain["relation"]) == (3, 0.0, "replace-one-client")
    first, second, _ = result_lines(found)
    assert first == "from       3 reports by unary-encoding, each private by itself"
    assert second == "spent      epsilon 1, delta 0 of every participant's budget"


def test_a_federation_without_compute_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only by an explicit option: who forgot the nodes sees both options in the error."""
    assert main(["federation", "init", str(tmp_path / "a"), "--trainers", "1"]) == 2
    assert "give --compute NAME=PUBLICKEY for each" in (errors := capsys.readouterr().err)
    assert "or --without-computes for node releases and LDP reports only" in errors
    assert main(["federation", "init", str(tmp_path / "a"), "--without-computes", "--computes", "2"]) == 2
    assert "expected none with --without-computes" in capsys.readouterr().err
    assert main(["federation", "init", str(tmp_path / "a"), "--without-computes", "--clients", "2"]) == 0
    assert "Compute nodes: none: for node releases and LDP reports only" in capsys.readouterr().out
    federation = read_federation(tmp_path / "a" / "federation.toml")
    assert (federation.computes, len(federation.trainers)) == ((), 1)
    assert main(["federation", "show", str(tmp_path / "a" / "federation.toml")]) == 0
