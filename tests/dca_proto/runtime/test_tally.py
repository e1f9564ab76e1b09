"""What an actor counts from its facts: few names and little memory, whoever sends what."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from exact_rounds import aggregate

from dca_proto.aggregate import RoundRequest
from dca_proto.protocol import facts
from dca_proto.results.status import PHASE_S
from dca_proto.runtime import tally
from dca_proto.runtime.latest import read_results, results_path
from dca_proto.runtime.status import Watch
from dca_proto.runtime.tally import OTHER, Bins, Tally, why_failed

ONE, TWO, NODE, CLIENT = (bytes([number]) * 16 for number in range(1, 5))


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def counted(*steps: tuple[float, object]) -> Tally:
    """A tally of facts, each at its second."""
    clock = Clock()
    tally = Tally(lambda: "2026-11-29T00:00:00Z", clock)
    for at_s, fact in steps:
        clock.now_s = at_s
        tally.note(fact)
    return tally


def lasted(tally: Tally) -> dict[str, tuple[int, float]]:
    return {phase: (sum(one.counts), one.total_s) for phase, one in tally.phases.items()}


def failed(**known: object) -> facts.RoundFailed:
    return facts.RoundFailed(**{"round_id": ONE, "reason": "as it is", "contributors": None, "needed": None, **known})


def test_a_trainers_round_has_two_phases_and_an_end() -> None:
    tally = counted(
        (10.0, facts.Announced(ONE, "mean", 1, (NODE, TWO))),
        (11.0, facts.Declined(ONE, CLIENT, "epsilon", "3", "at most 1")),
        (12.5, facts.Closed(ONE, 9, "quiet")),
        (13.0, failed(contributors=2, needed=9)),
    )
    assert lasted(tally) == {"collect": (1, 2.5), "agree": (1, 0.5)}
    assert tally.ended == {"failed": {"too few": 1}}
    assert tally.declines == {"epsilon": 1}


def test_a_node_collects_agrees_and_releases_or_aborts() -> None:
    tally = counted(
        (0.0, facts.ContributionKept(ONE, CLIENT, 1)),
        (1.0, facts.ContributionKept(ONE, NODE, 2)),
        (3.0, facts.ListFrozen(ONE, 2)),
        (3.5, facts.Released(ONE, 2, bytes(32))),
        (4.0, facts.NodeAborted(TWO, NODE, "cancelled", "the trainer ended the round")),
    )
    assert lasted(tally) == {"collect": (1, 3.0), "agree": (1, 0.5)}
    assert tally.ended == {"released": {"": 1}, "aborted": {"cancelled": 1}}
    assert tally.contributions == 2


def test_proofs_that_failed_are_counted_where_a_round_ends() -> None:
    box = {"columns": ("x",), "centre": (0.0,), "scale": (1.0,), "bound": (1.0,)}
    result = replace(aggregate(np.zeros(1), 1.0, RoundRequest("mean", box), 9), unproven=(CLIENT,))
    tally = counted(
        (0.0, facts.Released(ONE, 2, bytes(32), (CLIENT, NODE))),
        (1.0, facts.NodeAborted(TWO, NODE, "too-few", "1 contributed", (CLIENT,))),
        (2.0, facts.RoundCompleted(ONE, result)),
        (3.0, failed(contributors=2, needed=9, unproven=5)),
    )
    assert tally.unproven == 2 + 1 + 1 + 5


def test_a_client_waits_for_its_receipt() -> None:
    tally = counted(
        (0.0, facts.Contributed(ONE, "mean", 0.1)),
        (0.5, facts.Acknowledged(ONE)),
        (1.0, facts.Contributed(TWO, "mean", 0.1)),
        (9.0, facts.Missed(TWO)),
    )
    assert lasted(tally) == {"receipt": (2, 8.5)}
    assert tally.ended == {"acknowledged": {"": 1}, "late": {"": 1}}
    assert tally.contributions == 2


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"implausible": True, "declined": True}, "implausible"),
        ({"declined": True}, "declined"),
        ({"refused": True, "lost": ("berlin (01020304)",)}, "refused"),
        ({"lost": ("berlin (01020304)",)}, "nodes silent"),
        ({"needed": 9, "contributors": 3}, "too few"),
        ({}, OTHER),
    ],
)
def test_a_failure_has_a_reason_of_a_word(known: dict[str, object], why: str) -> None:
    """Its sentence names members; a metric does not."""
    assert why_failed(failed(**known)) == why


def test_a_peer_fills_neither_memory_nor_metrics_with_names() -> None:
    many = [(0.0, facts.Declined(ONE, CLIENT, f"reason {number}", "", "")) for number in range(5000)]
    odd = [(0.0, facts.Declined(ONE, CLIENT, reason, "", "")) for reason in ("x" * 10_000, "a\nb", "\u202e")]
    tally = counted(*many, *odd)
    assert len(tally.declines) <= 33
    assert sum(tally.declines.values()) == 5003
    assert tally.declines[OTHER] >= 5003 - 32
    assert all(len(name) < 50 for name in tally.declines)


def test_rounds_that_never_end_are_forgotten() -> None:
    begun = [(0.0, facts.Announced(number.to_bytes(16, "big"), "mean", 1, ())) for number in range(3000)]
    tally = counted(*begun, *((1.0, facts.Closed(number.to_bytes(16, "big"), 1, "all")) for number in range(3000)))
    assert len(tally._since_s) == len(tally._closed) == 1000


@pytest.mark.parametrize(("seconds", "place"), [(-1.0, 0), (0.1, 0), (0.1001, 1), (3600, 13), (1e9, 14)])
def test_a_duration_is_in_the_first_bin_that_is_long_enough(seconds: float, place: int) -> None:
    bins = Bins()
    bins.add(seconds)
    assert [at for at, count in enumerate(bins.record.counts) if count] == [place]
    assert len(bins.record.counts) == len(PHASE_S) + 1
    assert bins.record.total_s == max(seconds, 0)


def completed(number: int) -> facts.RoundCompleted:
    box = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [10.0]}
    made = aggregate(np.array([6.0]), 0.25, RoundRequest("mean", box), 3)
    return facts.RoundCompleted(ONE, replace(made, round_id=number.to_bytes(16, "big")))


def test_a_trainers_results_are_kept_for_its_next_process(tmp_path: Path) -> None:
    store = tmp_path / "trainer.db"
    for number in (1, 2):  # two processes
        watch = Watch(lambda fact: None, bytes.hex, store=store)
        assert len(watch.tally.results) == number - 1
        watch(completed(number))
        watch(completed(number))  # as it is reported again when it resumes
    kept = read_results(store)
    assert [one.round_id for one in kept] == [f"{number:032x}" for number in (1, 2)]
    assert (kept[0].contributors, kept[0].outcomes[0].value) == (3, 2.0)
    assert stat.S_IMODE(results_path(store).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["trainer.db-results"]


ODD = b'[{"at":"%b","round_id":"","statistic":"mean","contributors":1}]'


def test_a_pipe_in_place_of_the_results_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(results_path(tmp_path / "trainer.db"))
    assert read_results(tmp_path / "trainer.db") == []


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"\xff", b"[" * 10_000, ODD % b"noon", ODD % b"2026-11-29"])
def test_a_damaged_file_of_results_stops_nobody(tmp_path: Path, text: bytes) -> None:
    store = tmp_path / "trainer.db"
    results_path(store).write_bytes(text)
    assert read_results(store) == []
    Watch(lambda fact: None, bytes.hex, store=store)(completed(1))
    assert len(read_results(store)) == 1


@pytest.mark.parametrize("value", [1e101, float("inf"), float("nan")])
def test_a_number_that_no_reader_takes_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setattr(tally, "estimates", lambda _: [SimpleNamespace(label="x", value=value, noise_std=1.0)])
    Watch(lambda fact: None, bytes.hex, store=tmp_path / "trainer.db")(completed(1))
    (kept,) = read_results(tmp_path / "trainer.db")
    assert (kept.outcomes, kept.more) == ([], 1)


def test_results_that_cannot_be_kept_stop_no_round(tmp_path: Path) -> None:
    watch = Watch(lambda fact: None, bytes.hex, store=tmp_path / "nowhere" / "trainer.db")
    watch(completed(1))
    assert len(watch.tally.results) == 1
