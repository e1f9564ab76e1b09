"""A verified mean of live clients on mosquitto, some of which lie: all liars are named, and the result is right.

`scripts/check_verified.py` is the same with 1,000 clients, 30 of them liars.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

from check_verified import FAR, lying, run
from dca_proto.cli import main


class First(dict[bytes, str]):
    """The first so many clients that contribute lie, in every round."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def get(self, key: bytes, default: Any = None) -> Any:
        if len(self) < self._count:
            self[key] = "a bit is 2"
        return super().get(key, default)


@pytest.mark.long
def test_exactly_the_liars_are_named_and_the_mean_is_that_of_the_honest() -> None:
    """100 clients, 3 liars with different cheats; false alarms: 1.2e-6, that of two numbers beyond five deviations."""
    found = asyncio.run(run(clients=100, liars=3, broker="mosquitto", seed=7))
    assert found.broker.startswith("mosquitto ")
    assert (found.contributors, found.named, found.missed, found.accused) == (97, 3, 0, 0)
    assert abs(found.mean - found.honest_mean) < FAR * found.noise_sd
    assert abs(found.rows_from_truth_sds) < FAR
    assert found.is_right


@pytest.mark.long
def test_a_round_without_its_liars_counts_them_apart_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with lying(liars := First(3), 1):
        assert main(["fleet", "--clients", "40", "--processes", "0", "--verified", "--json", "fleet.json"]) == 0
    text = capsys.readouterr().out
    assert "round 1: 3 clients did not prove to be within the bounds, and were left out" in one_line(text)
    assert "neither declined nor contributed" not in one_line(text)
    (found,) = json.loads(Path("fleet.json").read_text())["rounds"]
    assert (found["contributors"], found["late"], found["dropped"], found["unproven_clients"]) == (37, 0, 0, 3)
    assert found["unproven"] == sorted(client.hex() for client in liars)


@pytest.mark.long
def test_a_round_that_must_fail_again_is_not_repeated_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """31 of the 40 rows become clients, T = 4: with 10 liars, 21 proven contributions are fewer than 27."""
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("y\n" + "".join(f"{place % 2}\n" for place in range(40)))
    with lying(First(10), 1):
        asked = ["--csv", "rows.csv", "--target", "y", "--job", "bernoulli", "--bounds", "y=0:1", "--verified"]
        assert main(["swarm", *asked, "--tolerate", "4", "--drop", "0", "--json", "swarm.json"]) == 3
    output, error = capsys.readouterr()
    assert "the proofs of 10 failed: " in one_line(output + error)
    assert "find out why the proofs failed, or raise --tolerate" in one_line(output + error)
    rounds = json.loads(Path("swarm.json").read_text())["rounds"]
    assert [(one["ok"], one["late"], one["unproven_clients"]) for one in rounds] == [(False, 0, 10)]
