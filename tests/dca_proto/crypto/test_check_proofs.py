"""The script that attacks proofs counts each opening once, and sees a cheat that passes."""

from __future__ import annotations

import pytest

import check_proofs
from check_proofs import CHEATS, VOTES, Cell, Task, honest, tasks, tried


def test_all_openings_are_counted_and_no_cheat_passes() -> None:
    found = tried(Task(2, (2, 3), 3, 7, (1, 2)))
    cheats = {Cell(name, 2, nodes) for name in (*CHEATS, VOTES) for nodes in (2, 3)}
    assert {cell: found.trials[cell] for cell in cheats} == dict.fromkeys(cheats, 30)
    assert sum(found.passed[cell] for cell in cheats) == 0
    honest_cells = [cell for cell in found.trials if cell.cheat == "honest"]
    assert sum(found.trials[cell] for cell in honest_cells) == 7
    assert all(found.passed[cell] == found.trials[cell] for cell in honest_cells)


def test_a_cheat_that_passes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check_proofs.CHEATS, "a bit is 2", honest)
    found = tried(Task(2, (3,), 3, 0, (1, 2)))
    assert found.passed[Cell("a bit is 2", 2, 3)] == found.trials[Cell("a bit is 2", 2, 3)] == 30


def test_parts_have_all_the_work() -> None:
    work = tasks([1, 10], [2], 120, 1_100, 1)
    for d, contributions in ((1, 1_000), (10, 100)):
        parts = [task for task in work if task.dimension == d]
        assert (sum(task.points for task in parts), sum(task.honest for task in parts)) == (120, contributions)
        assert len({task.seed for task in parts}) == len(parts) == 3
