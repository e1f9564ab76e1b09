"""`dca trainer` and `dca learn` beside one client that lies: an error and its remedy, and no crash for good."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line
from live_actors import WIDE, Actors, federation

from dca_proto.cli import main
from dca_proto.protocol.client.answer import Composer
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.spending import read_ledger_view

CLIENTS = 6
JOB = """
[account]
epsilon = 40
[job]
name = "gaussian"
target = "x"
bounds = { x = [0, 1] }
epsilon = 8
delta = 1e-5
clients = 6
tolerate = 0
"""
TERMS = ("--clients", "6", "--tolerate", "1", "--epsilon", "1", "--delta", "1e-5")
MEAN = ("--statistic", "mean", "--columns", "x", "--bounds", "x=0:1", *TERMS)


def test_a_lie_ends_a_round_with_code_3_and_a_discarded_round_runs_again_at_its_cost(
    embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [f"x\n0.{index}\n" for index in range(1, CLIENTS + 1)]
    federation(tmp_path, embedded_broker.url, data, policy=WIDE, trainer=JOB)
    monkeypatch.chdir(tmp_path)
    liar, honest = read_identity(tmp_path / "client-3.key", "client").id, Composer._value

    def lies(self: Composer, validated: Any, *others: Any) -> Any:
        far = np.full(validated.dimension, 1 << 55)
        return (far, 1, []) if self.identity.id == liar else honest(self, validated, *others)

    assert main(["learn", "trainer.toml", "--discard-round", "last"]) == 2
    assert "there is no journal" in one_line(capsys.readouterr().err)
    for option in (["--discard-round", "last"], ["--journal", "mine.journal"]):
        assert main(["learn", "trainer.toml", "--again", *option]) == 2
        assert "--again begins a new journal" in one_line(capsys.readouterr().err)
    with Actors(tmp_path):
        with monkeypatch.context() as lying:
            lying.setattr(Composer, "_value", lies)
            assert main(["trainer", "trainer.toml", *MEAN, "--json", "mean.json"]) == 3
            error = one_line(capsys.readouterr().err)
            assert re.search(r"one of the 6 contributions was outside its bounds: (x|complete rows) is ", error)
            assert "find the client that lied and revoke it" in error
            assert not json.loads((tmp_path / "mean.json").read_text())["ok"]
            assert main(["learn", "trainer.toml", "--json", "refused.json"]) == 3
            assert "with --discard-round 1" in one_line(capsys.readouterr().err)
        for _ in range(2):
            assert main(["learn", "trainer.toml"]) == 3, "the refused round stays refused, and nothing more is spent"
        assert len(read_ledger_view(tmp_path / "trainer.toml").ledger.charges) == 2
        capsys.readouterr()
        assert main(["learn", "trainer.toml", "--discard-round", "1", "--json", "done.json"]) == 0
    assert "the result of round 1; its cost stays spent" in one_line(capsys.readouterr().out)
    done = json.loads((tmp_path / "done.json").read_text())
    assert done["epsilon"] > 11, "of two rounds of epsilon 8 each, at the same delta"
    assert done["rounds"][0]["doubts"] == []
    assert len(read_ledger_view(tmp_path / "trainer.toml").ledger.charges) == 3
