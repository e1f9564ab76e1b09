"""Warnings about a job's sums are in its JSON whether it has a result or not."""

from types import SimpleNamespace
from typing import Any

from dca_proto.cli.job_run import doubted


def test_doubts_about_sums_are_warnings_even_without_a_result() -> None:
    """Before, the JSON of a failed job had no warnings; each doubt stands there once, before the result's own."""
    rounds = [SimpleNamespace(doubts=["half is missing"]), SimpleNamespace(doubts=["half is missing", "far out"])]
    run: Any = SimpleNamespace(rounds=rounds)
    assert doubted(run, {"test": None})["warnings"] == ["half is missing", "far out"]
    assert doubted(run, {"warnings": ["own"]})["warnings"] == ["half is missing", "far out", "own"]
    sound: Any = SimpleNamespace(rounds=[SimpleNamespace(doubts=[])])
    assert doubted(sound, {"test": None}) == {"test": None}
