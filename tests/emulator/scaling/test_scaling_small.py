"""A tiny real sweep: what is counted is what the protocol's messages come to, in closed form."""

from __future__ import annotations

import functools
import gc
import math
import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from nacl import bindings
from patience import PATIENCE_S
from schemas import parsed

from dca_proto import cli
from dca_proto.cli import main
from dca_proto.engine import WorkerDiedError, open_engine
from dca_proto.errors import UsageError
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Contribution, Receipt
from dca_proto.report.reading import read_page
from emulator.scaling import emulated, measure
from emulator.scaling.cell import Cell
from emulator.scaling.emulated import CellActors, measure_emulated
from emulator.scaling.figures import Figures
from emulator.scaling.measure import Measuring, measure_apart
from emulator.sim.team import Team, run_together

ID, TAG = bytes(16), 16
LOCALLY = open_engine()
CHARGE, ENTRY, WORD = 4, 36, 8


def cell(**changes: float | str) -> Cell:
    plain = {"clients": 12, "dimension": 5, "computes": 3, "tolerate": 2, "drop_rate": 0.0, "repeats": 2}
    return Cell(**{"backend": "emulated", **plain, **changes})  # type: ignore[arg-type]


def client_bytes(one: Cell) -> int:
    """Of all clients: one contribution each, with M tags and d ring elements."""
    sealed = CHARGE + WORD * one.computes + WORD * one.dimension + TAG
    return one.clients * len(encode(Contribution(ID, ID, bytes(sealed))))


def compute_bytes(one: Cell) -> tuple[int, int]:
    """Of all Compute nodes: receipts and entries with tags for each peer, and what the rest comes to at most."""
    n, m = one.clients, one.computes
    least = n * len(encode(Receipt(ID, ID, bytes(TAG)))) + n * (m - 1) * (ENTRY + WORD)
    others = m * (m - 1) * 2 + 3 * m  # headers of lists, answers, progress, partial sums
    return least, least + others * (500 + 16 * n + WORD * one.dimension)


@pytest.mark.parametrize("processes", [1, 2])
def test_messages_and_bytes_are_those_of_the_protocol(processes: int) -> None:
    one = cell(processes=processes)
    n, m = one.clients, one.computes
    began_s = time.perf_counter()
    figures = msgspec.to_builtins(measure_apart(one, LOCALLY))
    took_s = time.perf_counter() - began_s
    among_nodes = 2 * m * (m - 1)  # lists and answers
    assert figures["messages"] == {
        "client": n,
        "compute": n + among_nodes + 3 * m,  # receipts; the round is kept, so many came, partial sums
        "trainer": 1 + 2 * m,  # announcements, closes
    }
    assert figures["received"] == {
        "client": 2 * n,  # announcement, receipt
        "compute": n + among_nodes + 2 * m,
        "trainer": 3 * m,
    }
    assert figures["bytes"]["client"] == client_bytes(one)
    least, most = compute_bytes(one)
    assert least < figures["bytes"]["compute"] < most
    assert figures["received_bytes"]["compute"] + figures["received_bytes"]["trainer"] > figures["bytes"]["client"]
    phases = figures["phases"]
    assert min(phases.values()) > 0
    assert math.fsum(phases.values()) == pytest.approx(figures["wall_s"], rel=0.5)
    assert set(figures["core_s_by_role"]) == {"client", "compute", "trainer", "emulator"}
    assert (figures["success_rate"], figures["contributors"]) == (1.0, n)
    assert 20 * processes < figures["peak_rss_mb"] < 500
    assert figures["processes"] == processes
    assert (figures["waiting_s"] > 0) == (processes > 1)
    assert figures["waiting_s"] < processes * took_s, "also after the last phase, which ends a round's wall time"
    assert figures["compute_memory_bytes"] > figures["compute_memory_least_bytes"]
    for role in ("client", "compute"):
        assert figures["us_per_contribution"][role] > figures["floor_us"][role] > 0
    assert min(figures["sessions_s"], figures["sessions_wall_s"]) > 0


def test_a_verified_round_has_the_same_messages_with_longer_contributions() -> None:
    """Five votes of one bit each, and 38 noise bits or more beside each: 300 numbers of 8 honest clients."""
    plain, verified = (msgspec.to_builtins(measure_apart(cell(verified=each), LOCALLY)) for each in (False, True))
    assert verified["messages"] == plain["messages"]
    assert verified["bytes"]["client"] > plain["bytes"]["client"] + 12 * 4 * 5 * 38
    assert (verified["verified"], verified["compute_memory_least_bytes"]) == (True, None)
    assert verified["success_rate"] == 1.0


@pytest.mark.long
def test_peak_memory_is_in_mebibytes_like_a_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "peak_rss_bytes", lambda: 3 << 20)
    assert Measuring().measure(cell()).peak_rss_mb == 3.0


def test_the_noise_is_the_ideal_one_and_the_unused_tolerance() -> None:
    """All N noises of variance σ²/(N - T - 1) are in the sum; the discrete mechanism adds at most a little."""
    measured = CellActors(cell(clients=20, tolerate=4)).run_round()
    assert measured.noise_sd is not None
    assert measured.noise_sd_ideal is not None
    assert measured.noise_sd / measured.noise_sd_ideal == pytest.approx(math.sqrt(20 / (20 - 4 - 1)), rel=0.01)


def test_more_drop_outs_than_are_tolerated_end_a_round_and_the_next_one_begins_with_all() -> None:
    """With half of 20 clients dropping and T = 1 a round succeeds with probability 2e-5; the draws are seeded."""
    population = CellActors(cell(clients=20, tolerate=1, drop_rate=0.5))
    first = population.run_round()
    second = population.run_round()
    assert [first.completed, second.completed] == [False, False]
    assert (first.noise_sd, first.contributors) == (None, 0)
    assert first.messages["client"] > 0
    assert 0 < second.messages["client"] < 20 * 12, "who is back contributes, and asks what became of the round before"
    assert first.wall_s > 0


def test_keys_of_pairs_are_agreed_on_in_the_set_up_and_in_no_measured_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end of each pair multiplies once; all else that multiplies is the same in every round."""
    multiplied = 0
    multiply = bindings.crypto_scalarmult

    def counting(secret: bytes, public: bytes) -> bytes:
        nonlocal multiplied
        multiplied += 1
        return multiply(secret, public)

    monkeypatch.setattr(bindings, "crypto_scalarmult", counting)
    one = cell()
    population = CellActors(one)
    counts = []
    for hold in (population.run_round, population.run_round, population.run_round):
        multiplied = 0
        assert hold().completed
        counts.append(multiplied)
    plain = counts[-1]
    assert counts == [plain + 2 * one.clients * one.computes, plain, plain]


@pytest.mark.long
@pytest.mark.parametrize("drop_rate", [0.0, 0.5])
def test_processes_in_step_hold_the_same_rounds_as_one(drop_rate: float) -> None:
    """Who drops out, what is sent and what is stored do not depend on how the actors are dealt out."""
    one = cell(clients=20, tolerate=1, drop_rate=drop_rate)
    alone, two = (run_together(functools.partial(measure_emulated, one), processes) for processes in (1, 2))
    for mine, theirs in zip([alone.first, *alone.rounds], [two.first, *two.rounds], strict=True):
        assert mine.completed == theirs.completed == (drop_rate == 0)
        for figure in ("messages", "bytes", "received", "received_bytes", "contributors", "noise_sd"):
            assert getattr(mine, figure) == getattr(theirs, figure), figure


def test_processes_in_step_measure_the_same_memory_as_one() -> None:
    """In fresh processes: Python lays out the attributes of an object by what its process did before."""
    one = cell(clients=20, tolerate=1)
    alone, two = (measure_apart(msgspec.structs.replace(one, processes=count), LOCALLY) for count in (1, 2))
    assert alone.memory_bytes is not None
    assert two.memory_bytes == pytest.approx(alone.memory_bytes, abs=2_000)
    assert two.compute_memory_after_bytes == pytest.approx(alone.compute_memory_after_bytes, abs=2_000)


@pytest.mark.long
def test_a_round_leaves_no_garbage_while_the_collector_is_off() -> None:
    population = CellActors(cell(clients=30))
    population.run_round()
    gc.collect()
    gc.disable()
    try:
        population.run_round()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_measured_actors_pay_for_no_trace() -> None:
    population = CellActors(cell())
    assert population.run_round().completed
    assert population._simulator.trace.count == 0


@pytest.mark.long
def test_a_live_cell_counts_the_same_messages_and_has_null_for_what_is_not_measured(mosquitto_installed: None) -> None:
    live = cell(backend="mosquitto", repeats=1)
    figures, emulated_one = (msgspec.to_builtins(measure_apart(one, LOCALLY)) for one in (live, cell(repeats=1)))
    assert figures["success_rate"] == 1.0
    assert figures["messages"]["client"] == emulated_one["messages"]["client"]
    assert figures["bytes"]["client"] == emulated_one["bytes"]["client"]
    n, m = live.clients, live.computes
    assert figures["messages"]["trainer"] >= emulated_one["messages"]["trainer"] == 1 + 2 * m
    # A node reports how many came if one came: at least one node holds one. On a slow machine nodes report it again.
    assert figures["messages"]["compute"] >= n + 2 * m * (m - 1) + 2 * m + 1
    assert figures.keys() == emulated_one.keys()
    assert {key for key, value in figures.items() if value is None} >= {"waiting_s", "compute_memory_bytes", "received"}


def test_a_nodes_memory_grows_only_by_what_it_stores_for_each_client() -> None:
    """The bytes for each client do not grow with N: between two sizes they stay within a third."""
    each = []
    for clients in (20, 80):
        memory = CellActors(cell(clients=clients)).measure_memory()
        each.append((memory.compute - 20_000) / clients)  # a node has so much without clients, roughly
        assert memory.compute_after < memory.compute
    assert each[1] < 4 / 3 * max(each[0], 1_000)


class Faulty(Measuring):
    """Ends in the way that its cell's number of dimensions selects."""

    def measure(self, cell: Cell) -> Figures:
        if cell.dimension == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.dimension == 2:
            raise ValueError("what went wrong")
        raise UsageError("too many files")


@pytest.mark.parametrize(
    ("dimension", "error", "message"),
    [
        (
            1,
            WorkerDiedError,
            r"^the process of N = 12, d = 1, M = 3 was killed \(.*: leave this size out\)$",
        ),
        (2, RuntimeError, r"^N = 12, d = 2, M = 3: (.|\n)*ValueError: what went wrong"),
        (3, UsageError, r"^N = 12, d = 3, M = 3: too many files$"),
    ],
)
def test_killed_failed_and_impossible_processes_raise_different_errors(
    dimension: int, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "Measuring", Faulty)
    with pytest.raises(error, match=message):
        measure_apart(cell(dimension=dimension), LOCALLY)


TINY = ("scaling", "--clients", "12", "--dimension", "1", "--computes", "3", "--rounds", "1", "--processes", "1")


def test_the_command_ends_with_9_where_the_process_of_a_cell_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "Measuring", Faulty)
    assert main(TINY) == WorkerDiedError.exit_code == 9
    assert "dca: the process of N = 12, d = 1, M = 3 was killed" in " ".join(capsys.readouterr().err.split())
    assert "| 9 |" in (cli.__doc__ or "")


def test_a_real_sweep_fits_its_schema_and_has_a_page(tmp_path: Path) -> None:
    target = tmp_path / "scaling.json"
    assert main([*TINY, "--json", str(target)]) == 0
    (one,) = parsed(target.read_text(), "scaling")["cells"]
    assert one["wall_s"] > 0
    kind, page = read_page(target)
    assert (kind, page.badge) == ("scaling", "measured")


def test_an_interrupted_measurement_leaves_no_process() -> None:
    """Ctrl-C while a large cell is being measured by two processes: they are gone when the error arrives."""
    large = msgspec.structs.replace(cell(), clients=50_000, processes=2)
    main_thread, before, started = threading.get_ident(), set(family()), set[psutil.Process]()

    def interrupt() -> None:
        while not any("spawn_main" in argument for one in started for argument in one.cmdline()):
            threading.Event().wait(0.01)
            started.update(set(family()) - before)
        signal.pthread_kill(main_thread, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        measure_apart(large, LOCALLY)
    _, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert alive == []


def family() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_a_killed_worker_is_reported_as_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_emulated", killed)
    with pytest.raises(WorkerDiedError, match=r"^process 1 of 2 was killed \(.* is full: leave this size out\)$"):
        Measuring().measure(cell(processes=2))


def killed(cell: Cell, team: Team) -> None:
    """What a process does that the system kills."""
    if team.number:
        os.kill(os.getpid(), signal.SIGKILL)
    team.gather(b"")
