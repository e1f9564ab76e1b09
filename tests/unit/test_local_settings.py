"""Local rounds in files and on the command line: who opts in, what is asked, what a federation without nodes is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import main
from dca_proto.cli.actors import _result_lines
from dca_proto.config import convert
from dca_proto.core.errors import UsageError
from dca_proto.core.play import play_local
from dca_proto.core.policy import Policy
from dca_proto.core.shares import LOCAL
from dca_proto.keyfile import read_federation
from dca_proto.outcome import outcome
from dca_proto.request import RoundSettings, open_round
from dca_proto.testing import Cast

ALONE = Cast(2, 0, policy=Policy(rows_of_many=True))
PLAIN = {"statistic": "mean", "columns": ["x"], "bounds": {"x": [-1, 1]}, "epsilon": 1.0, "delta": 1e-6,
         "local": True, "rows_max": 100}  # fmt: skip


def settings(**changes: Any) -> RoundSettings:
    return convert("[round]", {**PLAIN, **changes}, RoundSettings)


def result() -> NoisyAggregate:
    request = msgspec.structs.replace(open_round(settings(), ALONE.federation), clients_expected=2)
    return play_local(ALONE.trainer(), [ALONE.client(0), ALONE.client(1)], request, 1_700_000_000_000)


def test_a_local_round_is_asked_for_by_two_words() -> None:
    request = open_round(settings(), ALONE.federation)
    assert (request.encoding, request.computes, request.tolerated, request.rows_max) == (LOCAL, (), 0, 100)
    assert open_round(settings(), Cast(2, 3).federation).computes == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows_max": 0}, "a local round sums rows: give the largest number that count, from 1"),
        ({"tolerate": 1}, "leave out computes, encoding, tolerate and colluders"),
        ({"computes": ["compute-0"]}, "leave out computes"),
        ({"encoding": "vector"}, "leave out computes, encoding"),
        (
            {"local": False},
            "found 0 Compute nodes, expected at least 2, each named once; the federation has none",
        ),
        ({"rows_max": 2**30}, "below 2^53"),
    ],
)
def test_what_cannot_be_held_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_round(settings(**changes), ALONE.federation)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_policy_says_that_rows_are_many_peoples_and_by_default_that_they_are_not() -> None:
    assert convert("[policy]", {"rows_of_many": True}, Policy).rows_of_many
    assert not Policy().rows_of_many


def test_the_result_tells_rows_and_data_nodes() -> None:
    found = result()
    plain = json.loads(json.dumps(outcome(found)))
    assert [node["rows"] for node in plain["nodes"]] == [1, 1]
    assert [node["sum"] for node in plain["nodes"]] == [node.value.tolist() for node in found.nodes]
    assert plain["noise_variance"] == 2 * plain["nodes"][0]["noise_variance"]
    assert plain["relation"] == "replace-one-row"
    first, second, _ = _result_lines(found)
    assert first == "from       2 rows of 2 data nodes (1, 1), each with its whole noise"
    assert second == "spent      epsilon 1, delta 1e-06 of every row's budget"


def test_a_federation_without_compute_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only where it is said: who forgot the nodes is told of both."""
    assert main(["federation", "init", str(tmp_path / "a"), "--trainers", "1"]) == 2
    assert "give --compute NAME=PUBLICKEY for each" in (said := capsys.readouterr().err)
    assert "or --local for local rounds only" in said
    assert main(["federation", "init", str(tmp_path / "a"), "--local", "--computes", "2"]) == 2
    assert "expected none with --local" in capsys.readouterr().err
    assert main(["federation", "init", str(tmp_path / "a"), "--local", "--clients", "2"]) == 0
    assert "Compute nodes: none, so for local rounds only" in capsys.readouterr().out
    federation = read_federation(tmp_path / "a" / "federation.toml")
    assert (federation.computes, len(federation.trainers)) == ((), 1)
    assert main(["federation", "show", str(tmp_path / "a" / "federation.toml")]) == 0
