"""What a trainer's command prints on lost Compute nodes, and when a signal ends it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli.reporter import ProgressReporter, Reporter
from dca_proto.protocol import facts
from inference.jobs.base import Stage

ROUND, NODES = bytes([0xAB]) * 16, tuple(bytes([number]) * 16 for number in (1, 2, 3))
UNTIL_MS = 1_700_000_000_000
AGAIN = "the same command continues from there"


def name_of(node: bytes) -> str:
    return f"compute-{node[0]}"


def said(*given: object, reporter: type[Reporter] = Reporter, again: str = AGAIN) -> list[str]:
    console = Console(file=io.StringIO(), width=400, color_system=None)
    stages = [[Stage(9, 1.0, "gradients")]] if reporter is ProgressReporter else []
    with reporter(console, name_of, 0, *stages, again=again) as shown:  # type: ignore[arg-type]
        for fact in given:
            shown(fact)
        console.print(f"00:00:00  {shown.open_words()}")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [line[len("00:00:00  ") :].removeprefix("round abababab: ") for line in lines]


def silent(lost: int, spare: int, **more: object) -> facts.NodesSilent:
    until_ms = UNTIL_MS if spare < 0 or more else 0
    return facts.NodesSilent(ROUND, NODES[-lost:], 9_000, NODES[:-lost], spare, until_ms, **more)  # type: ignore[arg-type]


ONE, TWO = "compute-3 has not answered for 9 s", "compute-2, compute-3 have not answered for 9 s"
NEEDS = "a round needs {} Compute nodes, and {}, so it waits until 2023-11-14 22:13:20 UTC"
SENT = "others have sent their parts of the sum, and a result needs its part, too, so the round waits until"
STAY = "clients have paid, and charges stay at least until"
LINES = [
    (silent(1, 0), f"{ONE}: going on with compute-1, compute-2; one more may not be lost"),
    (silent(1, -1), f"{ONE}; {NEEDS.format(3, '2 answer')}; {STAY} it is back"),
    (silent(2, -1), f"{TWO}; {NEEDS.format(2, '1 answers')}; {STAY} one of them is back"),
    (silent(2, -2), f"{TWO}; {NEEDS.format(3, '1 answers')}; {STAY} they are back"),
    (silent(1, 0, is_released=True), f"{ONE}; {SENT} 2023-11-14 22:13:20 UTC; clients have paid"),
    (silent(1, -1, is_charged=False), f"{ONE}; {NEEDS.format(3, '2 answer')}; nothing is charged"),
]


@pytest.mark.parametrize(("fact", "expected"), LINES)
def test_a_line_names_the_nodes_the_wait_and_the_cost(fact: facts.NodesSilent, expected: str) -> None:
    first, *advice, _ = said(fact)
    assert first == expected
    cost = "further cost; once they answer again, " + AGAIN if fact.is_charged else "cost"
    assert advice == ([f"Ctrl-C ends this command now, at no {cost}"] if fact.until_ms else [])


def test_how_to_end_the_wait_is_said_once_and_only_by_commands_that_can_go_on() -> None:
    assert sum("Ctrl-C" in line for line in said(silent(1, -1), silent(2, -2), silent(1, -1))) == 1
    assert not any("Ctrl-C" in line for line in said(silent(1, -1), again=""))


@pytest.mark.parametrize(
    ("lost", "p", "expected"),
    [
        ((), 2, "announced mean (1 number)"),
        ((), 1, "announced mean (1 number) over compute-1, compute-2, compute-3; p = 1, so 1 more may be lost"),
        (NODES[2:], 1, "announced mean (1 number) over compute-1, compute-2, without compute-3; p = 1, so one more may "
                       "not be lost"),
    ],
)  # fmt: skip
def test_an_announcement_names_the_nodes_that_it_has_to_do_without(
    lost: tuple[bytes, ...], p: int, expected: str
) -> None:
    """Before, a round without a node that was down looked like one of a federation without spare nodes."""
    computes = tuple(node for node in NODES if node not in lost)
    assert said(facts.Announced(ROUND, "mean", 1, computes, p, lost))[0] == expected


@pytest.mark.parametrize("reporter", [Reporter, ProgressReporter])
def test_a_command_that_ends_names_the_round_that_it_leaves_open(reporter: type[Reporter]) -> None:
    announced = facts.Announced(ROUND, "mean", 1, NODES, 2)
    *_, left = said(announced, reporter=reporter)
    assert left == f"round abababab is open, and clients may have paid for it; {AGAIN}".removeprefix("round abababab: ")
    for ended in (facts.RoundFailed(ROUND, "", None, None), facts.RoundCompleted(ROUND, NoisyAggregate)):  # type: ignore[arg-type]
        *_, left = said(announced, ended, reporter=reporter)
        assert left == ""
