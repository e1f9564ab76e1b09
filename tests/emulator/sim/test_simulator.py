"""Virtual time: the same seed gives the same run, and a round survives a power failure at every transaction."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commanded_actor import ROUND, CommandedWorld
from patience import PATIENCE_S

from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Address, CancelTimer, Channel, Persist, Report, Send, SetTimer
from dca_proto.protocol.events import Event, Timer, TimerFired
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.testing import NoNoise, TestFederation
from emulator.sim.disk import Disk
from emulator.sim.events import Crashed, Happened, Killed, Observer, Refused
from emulator.sim.link import LinkOptions
from emulator.sim.process import KillPoint, Process, ProcessOptions, Where
from emulator.sim.simulator import START_MS, Simulator
from emulator.sim.streams import Streams
from emulator.sim.trace import Trace
from emulator.sim.world import World

ROOT = Path(__file__).parents[3]
CLIENTS, COMPUTES = 3, 2
HOUR_MS = 3600 * 1000
PLACES = {"columns": ["x", "y", "z"], "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [1.0] * 3}


def world(seed: int = 1, **options: object) -> World:
    """Client i holds one in column i and zero elsewhere; without noise the sum counts each contribution."""
    actors = TestFederation(
        CLIENTS, COMPUTES, columns=("x", "y", "z"), rows=list(np.eye(3)[:, None]), mechanism=NoNoise()
    )
    return World(actors, Simulator(seed, **options))  # type: ignore[arg-type]


def play(one: World, ms: int = 2 * HOUR_MS) -> list[object]:
    """What the trainer says of the rounds' ends."""
    simulator = one.simulator
    simulator.run(simulator.now_ms + 2000)
    one.open_round(parameters=PLACES)
    simulator.run(simulator.now_ms + ms)
    return ends(one)


def ends(one: World) -> list[object]:
    return [entry.fact for entry in one.simulator.trace.entries if isinstance(entry.fact, RoundCompleted | RoundFailed)]


# --- the same seed, the same run -------------------------------------------------------------------------------------

DIGEST = """
from dca_proto.testing import TestFederation
from emulator.sim.link import LinkOptions
from emulator.sim.process import KillPoint
from emulator.sim.simulator import Simulator
from emulator.sim.world import World
import sys
world = World(TestFederation(4, 3), Simulator(int(sys.argv[1]), link=LinkOptions(loss=0.1)))
simulator = world.simulator
world.computes[1].plan_kill(KillPoint(3, "between"))
simulator.after(7000, world.computes[1].restart)
simulator.run(simulator.now_ms + 2000)
world.open_round()
simulator.run(simulator.now_ms + 200_000)
print(simulator.trace.digest(), simulator.trace.count)
"""


def digests(*runs: tuple[int, str]) -> list[str]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DIGEST, str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, hash_seed in runs
    ]
    return [process.communicate(timeout=PATIENCE_S)[0] for process in processes]


def test_the_same_seed_gives_the_same_run_in_any_process() -> None:
    """Invariant 9, under two hash seeds; with loss, a kill between two messages, noise."""
    first, again, other = digests((5, "1"), (5, "2"), (6, "1"))
    assert first == again != other
    assert int(first.split()[1]) > 30


def test_streams_are_apart_and_the_same_again() -> None:
    one, two = Streams(1), Streams(1)
    for _ in range(10):
        one("a").random()
    assert one("b").random() == two("b").random() != Streams(2)("b").random()
    assert one("a") is one("a")


def test_a_restart_of_one_actor_changes_no_other_actors_randomness() -> None:
    def random_of_client_2(restarts: int) -> bytes:
        actors = TestFederation(3, 2)
        for _ in range(restarts):
            actors.client(1)
        return actors.client(2)._random(8)

    assert random_of_client_2(0) == random_of_client_2(3)
    actors = TestFederation(3, 2)
    assert actors.client(0)._random(8) != actors.client(0)._random(8), "a start has no randomness of an earlier one"


def test_the_digest_covers_each_message_to_the_last_byte() -> None:
    message = (1, b"a", "compute", b"b", b"payload")
    others = [(2, *message[1:]), (1, b"c", *message[2:]), (*message[:2], "trainer", *message[3:]),
              (*message[:3], b"d", message[4]), (*message[:4], b"payloae"), (*message[:4], b"payload1")]  # fmt: skip
    digests = set()
    for one in (message, *others):
        trace = Trace()
        trace.passed(*one)
        digests.add(trace.digest())
    assert len(digests) == len(others) + 1
    assert Trace(0).is_on is False


def test_the_digest_covers_time_actor_kind_and_fact_also_of_what_is_not_kept() -> None:
    notes = [(1, b"a", Happened("x")), (2, b"a", Happened("x")), (1, b"b", Happened("x")), (1, b"a", Killed("x"))]
    seen = set()
    for note in notes:
        trace = Trace(keep_max=1)
        trace.note(*note)
        seen.add(trace.digest())
        trace.note(*note)
        seen.add(trace.digest())
        assert (trace.count, len(trace.entries)) == (2, 1)
    assert len(seen) == 8


def test_where_nothing_is_kept_nothing_is_hashed() -> None:
    """Measurements ask for no trace, and must not pay for one."""
    trace = Trace(keep_max=0)
    empty = trace.digest()
    trace.note(1, b"a", Happened("x"))
    assert (trace.digest(), trace.count) == (empty, 0)


# --- power failures --------------------------------------------------------------------------------------------------


def machine_of(one: World, role: str) -> Process:
    return {"compute": one.computes[0], "client": one.clients[0], "trainer": one.trainer}[role]


def all_points() -> list[tuple[str, int]]:
    """Every transaction of one machine of each role in a round without faults, those of its start included."""
    one = world()
    assert [type(end) for end in play(one, 20_000)] == [RoundCompleted]
    roles = ("compute", "client", "trainer")
    return [(role, number) for role in roles for number in range(machine_of(one, role).disk.transactions)]


class Restarting(Observer):
    """Starts one machine again, some seconds after each end of its."""

    def __init__(self, simulator: Simulator, machine: Process) -> None:
        self.simulator = simulator
        self.machine = machine

    def on_kill(self, process: Process) -> None:
        if process is self.machine:
            self.simulator.after(3000, process.restart)


def struck(role: str, point: KillPoint) -> World:
    """A federation in which the power of one machine will fail at that point, and come back."""
    one = world()
    machine = machine_of(one, role)
    one.simulator.observers.append(Restarting(one.simulator, machine))
    machine.plan_kill(point)
    if machine.disk.transactions > point.transaction:  # it is one of its first start: let it start once more
        machine.disk = Disk()
        machine.kill("to start from nothing")
    return one


@pytest.mark.parametrize("where", ["before", "torn", "after", "between"])
def test_a_round_survives_a_power_failure_at_every_transaction(where: Where) -> None:
    """Attack 28: the round ends, and if with a result, then with each contribution once. The owner asks again for a
    round that the trainer had not noted when it died."""
    points = all_points()
    completed = 0
    assert {role for role, _ in points} == {"compute", "client", "trainer"}
    for role, number in points:
        one = struck(role, KillPoint(number, where))
        ended = play(one)
        if not ended:
            assert role == "trainer", one.simulator.pending()
            one.open_round(parameters=PLACES)
            one.simulator.run(one.simulator.now_ms + HOUR_MS)
            ended = ends(one)
        assert ended, (role, number, one.simulator.pending())
        assert not machine_of(one, role).kill_points, "it was reached"
        for end in ended:
            if isinstance(end, RoundCompleted):
                completed += 1
                missing = CLIENTS - end.aggregate.contributors
                assert sorted(end.aggregate.value) == [0.0] * missing + [1.0] * (CLIENTS - missing), (role, number)
    assert completed > len(points) // 2


# --- clocks, timers, slow machines -----------------------------------------------------------------------------------


def test_timers_fire_once_at_their_time_and_not_if_cancelled_or_set_anew() -> None:
    world = CommandedWorld(1)
    now = world.start_ms
    world.do(0, *(SetTimer(Timer(name), now + at) for name, at in [("a", 50), ("b", 60), ("c", 70), ("past", -5)]))
    world.do(0, CancelTimer(Timer("a")), SetTimer(Timer("b"), now + 90), CancelTimer(Timer("never set")))
    world.run(1000)
    assert world.fired(0) == [(0, "past"), (70, "c"), (90, "b")]
    assert world.simulator.is_idle


def test_timers_of_an_earlier_life_are_gone() -> None:
    world = CommandedWorld(1)
    world.do(0, SetTimer(Timer("old"), world.start_ms + 50))
    world.machines[0].restart()
    world.do(0, SetTimer(Timer("new"), world.start_ms + 50))
    world.run(1000)
    assert world.fired(0) == [(50, "new")]
    assert world.starts(0) == 2


def test_a_wrong_clock_tells_wrong_times_and_its_timers_follow_it_when_it_is_set() -> None:
    world = CommandedWorld(1)
    ahead = world.add(0, ProcessOptions(skew_ms=5000))
    world.do(ahead, SetTimer(Timer("a"), world.start_ms + 5100), SetTimer(Timer("b"), world.start_ms + 6000))
    world.run(500)
    assert world.fired(0) == [(5100, "a")]
    ahead.options = ProcessOptions(skew_ms=-10_000)
    world.run(2000)
    assert len(world.fired(0)) == 1
    ahead.options = ProcessOptions(skew_ms=3600)
    world.run(2000)
    assert world.fired(0) == [(5100, "a"), (6100, "b")], "set past it at 2,500 ms"


def test_a_round_with_wrong_clocks_and_slow_machines_ends_well() -> None:
    """Attack 25, mildly; whatever is slow handles in batches what came meanwhile."""
    one = world()
    for number, machine in enumerate(one.simulator.machines):
        machine.options = ProcessOptions(skew_ms=(-1) ** number * 700, work_ms=20 * number, commit_ms=10)
    (end,) = play(one)
    assert isinstance(end, RoundCompleted)
    np.testing.assert_array_equal(end.aggregate.value, [1.0, 1.0, 1.0])


def test_a_slow_machine_handles_what_came_meanwhile_as_batches_and_drops_what_is_too_much() -> None:
    world = CommandedWorld(2)
    slow = world.machines[1]
    slow.options = ProcessOptions(work_ms=1000, batch_events_max=3, inbox_events_max=5)
    world.send(0, 1, *(bytes([number]) for number in range(10)))
    world.run(500)
    assert "5 events wait in compute 02020202" in world.simulator.pending()
    world.run(5000)
    assert world.times(1) == [20] + [1020] * 3 + [2020] * 2
    assert slow.traffic.dropped == 4


def test_a_machine_that_is_no_longer_slow_leaves_nothing_waiting() -> None:
    """More than a batch has come meanwhile."""
    world = CommandedWorld(2)
    slow = world.machines[1]
    slow.options = ProcessOptions(work_ms=1000, batch_events_max=3)
    world.send(0, 1, *(bytes([number]) for number in range(10)))
    world.run(500)
    slow.options = ProcessOptions(batch_events_max=3)
    world.run(5000)
    assert world.times(1) == [20] + [1020] * 9


def test_a_timer_that_a_batch_cancels_does_not_fire_stale_after_it() -> None:
    world = CommandedWorld(1)
    slow = world.machines[0]
    world.do(0, SetTimer(Timer("cancelled"), world.start_ms + 500), SetTimer(Timer("stands"), world.start_ms + 600))
    slow.options = ProcessOptions(work_ms=1000)
    world.do(0)
    world.do(0, CancelTimer(Timer("cancelled")))
    world.run(5000)
    assert world.fired(0) == [(1000, "stands")]


def test_a_wrong_command_raises_at_once_or_when_its_actor_handles_it() -> None:
    one = world()
    with pytest.raises(UsageError, match="takes no command"):
        one.simulator.command(one.clients[0].id, "nonsense")
    one.clients[0].options = ProcessOptions(work_ms=100)
    one.simulator.run(one.simulator.now_ms + 1)
    one.clients[0].receive(b"?" * 16, b"keeps it at work")
    one.simulator.command(one.clients[0].id, "nonsense")
    one.simulator.run(one.simulator.now_ms + 1000)
    (refused,) = [entry.fact for entry in one.simulator.trace.entries if isinstance(entry.fact, Refused)]
    assert "takes no command" in refused.text


# --- observers and crashes -------------------------------------------------------------------------------------------


class Killer(Observer):
    """Kills at one method of its process; a killed process tells nothing more."""

    def __init__(self, method: str) -> None:
        def kill(process: Process, *_: object) -> None:
            process.kill("by an observer")

        setattr(self, method, kill)


@pytest.mark.parametrize("method", ["on_handled", "on_commit", "on_send", "on_fact"])
def test_an_observer_may_kill_at_any_step(method: str) -> None:
    world = CommandedWorld(2)
    to = Address(Channel.COMPUTE, CommandedWorld.id(1))
    world.simulator.observers.append(Killer(method))
    world.do(0, Persist("t", b"k", b"v"), Report(Happened("x")), Send(to, ROUND, b"never"))
    world.run(1000)
    assert not world.machines[0].is_up
    assert world.messages(1) == []
    assert bool(world.machines[0].disk.records) == (method != "on_handled")


def test_an_actor_that_raises_stops_the_run_or_is_reported_and_ends() -> None:
    class Broken:
        id = b"b" * 16

        def handle(self, event: Event, now_ms: int) -> list[object]:
            if isinstance(event, TimerFired):
                raise ZeroDivisionError("a bug")
            return [SetTimer(Timer("x"), now_ms + 5)]

    for raises in (True, False):
        simulator = Simulator(1, raise_crashes=raises)
        process = simulator.add(Channel.CLIENT, lambda records: Broken())  # type: ignore[arg-type, return-value]
        if raises:
            with pytest.raises(ZeroDivisionError):
                simulator.run(START_MS + 10)
        simulator.run(START_MS + 10)
        assert simulator.trace.entries[0].fact == Crashed("ZeroDivisionError", "a bug")
        assert process.is_up == raises


def test_things_of_one_moment_happen_in_the_order_in_which_they_were_asked_for() -> None:
    simulator = Simulator(1, link=LinkOptions())
    happened: list[str] = []
    simulator.after(5, happened.append, "first")
    simulator.after(5, lambda: simulator.after(0, happened.append, "last"))
    simulator.at(START_MS + 5, happened.append, "second")
    simulator.at(START_MS - 5, happened.append, "past, so at once")
    assert simulator.run_while(lambda: len(happened) < 3, START_MS + 5)
    assert happened == ["past, so at once", "first", "second"]
    assert not simulator.run_while(lambda: True, START_MS + 9)
    assert happened[-1] == "last"
    assert (simulator.now_ms, simulator.is_idle) == (START_MS + 9, True)
