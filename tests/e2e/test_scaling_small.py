"""A tiny real sweep: what is counted is what the protocol's messages come to, in closed form."""

from __future__ import annotations

import functools
import gc
import math
import signal
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from nacl import bindings

from dca_proto.core.codec import encode
from dca_proto.core.errors import UsageError
from dca_proto.core.messages import Certificate, Frozen, Join, PartialSum, Ready, Receipt, Sealed, Share, Signed
from dca_proto.core.params import PROTOCOL_VERSION
from emulator.scaling import emulated, measure
from emulator.scaling.cell import Cell
from emulator.scaling.emulated import Population, hold_emulated
from emulator.scaling.measure import measure_apart
from emulator.sim.team import WorkerError, run_together

ID, HASH, TAG, SIGNATURE = bytes(16), bytes(32), 16, bytes(64)
EPOCH = 19_700  # of the population's virtual clock
PLAINTEXT_BEFORE_SHARE = 4  # the charge's number


def cell(encoding: str = "seed", **changes: float | str) -> Cell:
    plain = {"clients": 12, "dimension": 5, "computes": 3, "tolerated": 2, "drop_rate": 0.0, "repeats": 2}
    return Cell(**{"encoding": encoding, "backend": "emulated", **plain, **changes})  # type: ignore[arg-type]


def signed(body: object) -> int:
    return len(encode(Signed(encode(body), SIGNATURE)))  # type: ignore[arg-type]


def sealed(body: object) -> int:
    return len(encode(Sealed(ID, HASH, bytes(24), bytes(signed(body) + TAG))))


def share(size: int) -> int:
    return len(encode(Share(ID, ID, bytes(24), bytes(PLAINTEXT_BEFORE_SHARE + size + TAG))))


def client_bytes(one: Cell) -> int:
    """Of all clients: a join each, and M shares."""
    join = Join(PROTOCOL_VERSION, ID, HASH, Certificate(HASH, 1 << 52, SIGNATURE), EPOCH, HASH)
    full, seed = share(8 * one.dimension), share(32)
    shares = one.computes * full if one.encoding == "vector" else full + (one.computes - 1) * seed
    return one.clients * (sealed(join) + shares)


def compute_bytes(one: Cell) -> int:
    """Of all Compute nodes: readiness, receipts, a view told to each peer and answered, a partial sum."""
    n, m = one.clients, one.computes
    told, answered = (Frozen(PROTOCOL_VERSION, ID, HASH, HASH, n, answer) for answer in (False, True))
    vector = bytes(8 * one.dimension)
    partial = PartialSum(PROTOCOL_VERSION, ID, HASH, HASH, bytes(math.ceil(n / 8)), (HASH,) * m, vector)
    views = m * (m - 1) * (signed(told) + signed(answered))
    receipts = n * m * len(encode(Receipt(ID, ID, bytes(TAG))))
    return m * signed(Ready(PROTOCOL_VERSION, ID, HASH)) + receipts + views + m * sealed(partial)


@pytest.mark.parametrize(("encoding", "processes"), [("seed", 1), ("vector", 1), ("seed", 2)])
def test_messages_and_bytes_are_those_of_the_protocol(encoding: str, processes: int) -> None:
    one = cell(encoding, processes=processes)
    n, m = one.clients, one.computes
    figures = measure_apart(one)
    views = 2 * m * (m - 1)
    assert figures["messages"] == {"client": n * (1 + m), "compute": n * m + 2 * m + views, "trainer": 1 + m + n}
    assert figures["received"] == {
        "client": n * (1 + 1 + m),  # announcement, start, receipts
        "compute": m * (1 + n) + views,  # roster, shares
        "trainer": n + 2 * m,  # joins, readiness, partial sums
    }
    assert figures["bytes"]["client"] == client_bytes(one)
    assert figures["bytes"]["compute"] == compute_bytes(one)
    assert figures["received_bytes"]["compute"] + figures["received_bytes"]["trainer"] > figures["bytes"]["client"]
    phases = figures["phases"]
    assert min(phases.values()) > 0
    assert math.fsum(phases.values()) == pytest.approx(figures["wall_s"], rel=0.5)
    assert set(figures["core_s_by_role"]) == {"client", "compute", "trainer", "emulator"}
    assert (figures["success_rate"], figures["contributors"]) == (1.0, n)
    assert 20 * processes < figures["peak_rss_mb"] < 500
    assert figures["processes"] == processes
    assert (figures["waiting_s"] > 0) == (processes > 1)
    assert figures["waiting_s"] < processes * max(figures["wall_s_spread"])
    assert figures["compute_memory_bytes"] > figures["compute_memory_least_bytes"]


def test_peak_memory_is_in_mebibytes_as_a_fleet_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "peak_rss_bytes", lambda: 3 << 20)
    assert measure.measure(cell())["peak_rss_mb"] == 3.0


def test_the_noise_is_the_ideal_one_and_the_unused_tolerance() -> None:
    """All N noises of variance σ²/(N - T - 1) are in the sum; the discrete mechanism adds at most a little."""
    held = Population(cell(clients=20, tolerated=4)).hold()
    assert held.noise_sd is not None
    assert held.noise_sd_ideal is not None
    assert held.noise_sd / held.noise_sd_ideal == pytest.approx(math.sqrt(20 / (20 - 4 - 1)), rel=0.01)


def test_more_drop_outs_than_are_tolerated_end_a_round_and_the_next_one_begins_with_all() -> None:
    """With half of 20 clients dropping and T = 1 a round succeeds with probability 2e-5; the draws are seeded."""
    population = Population(cell(clients=20, tolerated=1, drop_rate=0.5))
    first = population.hold()
    second = population.hold()
    assert [first.completed, second.completed] == [False, False]
    assert (first.noise_sd, first.contributors) == (None, 0)
    assert second.messages["client"] >= 20  # everybody has joined again
    assert second.messages["client"] < 20 * 4
    assert first.wall_s > 0


def test_keys_of_pairs_are_agreed_on_in_the_first_round_of_an_epoch_and_in_no_measured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each end of each pair multiplies once; all else that multiplies is the same in every round."""
    multiplied = 0
    multiply = bindings.crypto_scalarmult

    def counting(secret: bytes, public: bytes) -> bytes:
        nonlocal multiplied
        multiplied += 1
        return multiply(secret, public)

    monkeypatch.setattr(bindings, "crypto_scalarmult", counting)
    one = cell()
    population = Population(one)
    population.hold_first()
    counts = []
    for hold in (population.hold, population.hold, population.hold_anew, population.hold):
        multiplied = 0
        assert hold().completed
        counts.append(multiplied)
    plain = counts[0]
    assert counts == [plain, plain, plain + 2 * one.clients * one.computes, plain]


@pytest.mark.parametrize("drop_rate", [0.0, 0.5])
def test_processes_in_step_hold_the_same_rounds_as_one(drop_rate: float) -> None:
    """Who drops out, what is sent and what is held do not depend on how the actors are dealt out."""
    one = cell(clients=20, tolerated=1, drop_rate=drop_rate)
    (alone, alone_first, alone_memory), (two, two_first, two_memory) = (
        (rounds, first, memory)
        for first, rounds, memory, _ in (
            run_together(functools.partial(hold_emulated, one), processes) for processes in (1, 2)
        )
    )
    for mine, theirs in zip([alone_first, *alone], [two_first, *two], strict=True):
        assert mine.completed == theirs.completed == (drop_rate == 0)
        for figure in ("messages", "bytes", "received", "received_bytes", "contributors", "noise_sd"):
            assert getattr(mine, figure) == getattr(theirs, figure), figure
    for role in ("client", "compute", "trainer", "compute_after"):
        assert getattr(two_memory, role) == pytest.approx(getattr(alone_memory, role), abs=2_000), role


def test_a_round_leaves_nothing_for_the_garbage_collector_that_is_off_while_it_is_measured() -> None:
    population = Population(cell(clients=30))
    population.hold_first()
    gc.collect()
    gc.disable()
    try:
        population.hold()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_measured_actors_pay_for_no_trace() -> None:
    population = Population(cell())
    assert population.hold().completed
    assert population._simulator.trace.count == 0


def test_a_live_cell_counts_the_same_messages_and_says_null_of_what_nobody_weighed(mosquitto_installed: None) -> None:
    live = cell(backend="mosquitto", repeats=1)
    figures, emulated_one = measure_apart(live), measure_apart(cell(repeats=1))
    assert figures["success_rate"] == 1.0
    assert figures["messages"] == emulated_one["messages"]
    for role in ("client", "compute"):  # the trainer's announcement holds other texts and times
        assert figures["bytes"][role] == emulated_one["bytes"][role]
    assert figures.keys() == emulated_one.keys()
    assert {key for key, value in figures.items() if value is None} >= {"waiting_s", "compute_memory_bytes", "received"}


def test_what_a_node_holds_grows_by_what_it_must_keep_of_a_client() -> None:
    """The bytes for each client do not grow with N: between two sizes they stay within a third."""
    each = []
    for clients in (20, 80):
        memory = Population(cell(clients=clients)).hold_first()
        each.append((memory.compute - 20_000) / clients)  # a node has so much without clients, roughly
        assert memory.compute_after < memory.compute
    assert each[1] < 4 / 3 * max(each[0], 1_000)


def test_a_process_that_is_killed_or_fails_or_cannot_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(measure.sys, "executable", str(program))
        measure_apart(cell())

    with pytest.raises(UsageError, match=r"N = 12, d = 5, M = 3: its process was killed, most likely for want of mem"):
        run("kill -9 $$")
    with pytest.raises(RuntimeError, match=r"its process ended with 7: what went wrong"):
        run("echo once >&2; echo what went wrong >&2; exit 7")
    with pytest.raises(UsageError, match=r"N = 12, d = 5, M = 3: too many files"):
        run("""echo '{"error": "too many files"}'""")


def test_an_interrupted_measurement_leaves_no_process() -> None:
    """Ctrl-C while a large cell is being measured by two processes: they are gone when the error arrives."""
    large = msgspec.structs.replace(cell(), clients=50_000, processes=2)
    main_thread, before, started = threading.get_ident(), set(family()), set[psutil.Process]()

    def interrupt() -> None:
        while not any("spawn_main" in word for one in started for word in one.cmdline()):
            threading.Event().wait(0.01)
            started.update(set(family()) - before)
        signal.pthread_kill(main_thread, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        measure_apart(large)
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []


def family() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_a_worker_that_is_killed_is_told_as_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise WorkerError(1, 2, "was killed by signal 9", was_killed=True)

    monkeypatch.setattr(measure, "run_together", killed)
    with pytest.raises(UsageError, match="process 1 of 2 was killed by signal 9, most likely for want of memory"):
        measure.measure(cell(processes=2))
