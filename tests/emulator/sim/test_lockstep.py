"""A simulation in several processes is that in one, and ends with whichever of them ends."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path

import lockstep_programs as programs
import psutil
import pytest

from dca_proto.engine import WorkerDiedError
from dca_proto.protocol.effects import Address, Channel
from emulator.sim.broker import BrokerLimits
from emulator.sim.lane import Packet
from emulator.sim.lockstep import PartitionLink
from emulator.sim.simulator import Simulator
from emulator.sim.team import Team, run_together

GONE_S = 10.0


@pytest.mark.long
def test_any_number_of_processes_gives_the_same_results_messages_and_bytes_and_the_same_number_the_same_facts() -> None:
    """Values are compared bit by bit: each is a sum of what actors drew from streams of their own."""
    alone, two, again, three = (
        run_together(functools.partial(programs.hold_rounds, "lockstep"), count) for count in (1, 2, 2, 3)
    )
    assert len(alone["values"]) == 2
    for other in (two, three):
        assert {key: other[key] for key in ("values", "traffic", "now")} == {
            key: alone[key] for key in ("values", "traffic", "now")
        }
    assert two == again
    assert [alone["held"], two["held"], three["held"]] == [[28], [14, 14], [9, 10, 9]]
    assert alone["traffic"]["client messages_sent"] == programs.CLIENTS * (1 + 2), "a Hello, and two contributions"


def test_the_seed_is_in_the_facts() -> None:
    one, other = (programs.hold_rounds(name, Team()) for name in ("lockstep", "another"))
    assert one["digest"] != other["digest"]
    assert one["values"] != other["values"]


def test_one_process_in_step_with_nobody_is_the_simulator() -> None:
    world = programs.world_of("lockstep", Team(), always_regional=True)
    world.open_round()
    world.simulator.run(world.simulator.now_ms + 3_600_000)
    plain = programs.world_of("lockstep", Team())
    plain.open_round()
    plain.simulator.run(plain.simulator.now_ms + 3_600_000)
    assert programs.state_of(world) == programs.state_of(plain)


def test_where_nothing_travels_the_clock_goes_from_timer_to_timer_and_to_the_end_for_all() -> None:
    """They meet at 0, 7, 10 and, to find that nothing is left, 20: nobody more often than something happens."""
    first, second = run_together(programs.only_timers, 2)
    assert first == [7, 7, 10, 100, 4]
    assert second == [7, 7, 20, 100, 4]


def test_one_process_that_wants_no_more_stops_all_at_the_same_instant() -> None:
    assert run_together(programs.ended_by_one, 2) == [20, 20]


def test_full_pipes_do_not_stop_anybody() -> None:
    assert run_together(programs.swap_large, 3)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raise", RuntimeError, r"process 1 of 2 failed: ValueError: no more paper \(lockstep_programs.py:\d+\)"),
        ("end of file", RuntimeError, r"process 1 of 2 failed: EOFError: half a file \(lockstep_programs.py:\d+\)"),
        ("kill", WorkerDiedError, r"process 1 of 2 was killed \(the system does so when memory is full: do less\)"),
        ("return", WorkerDiedError, "process 1 of 2 ended with exit code 0"),
    ],
)
def test_a_worker_that_ends_raises_one_line_with_its_cause_and_no_process_remains(
    how: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$") as caught:
        run_together(functools.partial(programs.fail, how), 2, "do less")
    assert ("no more paper" in str(caught.value.__cause__)) == (how == "raise")  # with all of its traceback
    assert workers_of(psutil.Process()) == []


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(blow: signal.Signals) -> None:
    """Asleep or at work; however it ends, with or without a word."""
    program = [sys.executable, programs.__file__]
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as first:
        assert first.stdout is not None
        pids = [int(pid) for pid in first.stdout.readline().strip(b"[]\n").split(b",")]
        assert pids[0] == first.pid
        workers = [psutil.Process(pid) for pid in pids[1:]]
        first.send_signal(blow)
        _, alive = psutil.wait_procs(workers, timeout=GONE_S)
        for one in alive:
            one.kill()
        assert alive == []
        trouble = first.communicate()[1]
    assert (b"KeyboardInterrupt" in trouble) == (blow == signal.SIGINT)


def test_a_packet_travels_once_to_its_process_and_a_broadcast_once_to_each() -> None:
    simulator = Simulator("link")
    homes = {bytes([number]) * 16: number for number in range(3)}
    link = simulator.broker = PartitionLink(simulator, BrokerLimits(), 1, 3, homes)
    for to in (
        Address(Channel.CLIENT, bytes(16)),
        Address(Channel.CLIENT, bytes([1]) * 16),  # here
        Address(Channel.COMPUTE, bytes([9]) * 16),  # nobody
        Address(Channel.EPOCH),
    ):
        link._route(Packet(bytes(16), to, b"", b"payload", retain=to.channel is Channel.EPOCH))
    channels = [[packet.to.channel for packet in packets] for packets in link.leaving]
    assert channels == [[Channel.CLIENT, Channel.EPOCH], [], [Channel.EPOCH]]
    assert [channel for channel, packets in link._retained.items() if packets] == [Channel.EPOCH]


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return its living workers; a child of another test that nobody waited for has no command line."""
    living = [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if any("spawn_main" in word for word in child.cmdline())]
