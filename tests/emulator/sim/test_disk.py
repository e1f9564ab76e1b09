"""The model of a disk: whole transactions, fullness, old copies; and a process whose disk is slow or full."""

from __future__ import annotations

import pytest
from commanded_actor import ROUND, CommandedWorld

from dca_proto.protocol.effects import Address, Channel, Forget, Persist, Report, Send
from emulator.sim.disk import Disk, DiskFullError
from emulator.sim.events import Killed, Restarted
from emulator.sim.process import KillPoint, ProcessOptions, Where

TO_1 = Address(Channel.COMPUTE, CommandedWorld.id(1))
WRITES = (Persist("t", b"1", b"one"), Persist("t", b"2", b"two"), Send(TO_1, ROUND, b"a"), Send(TO_1, ROUND, b"b"))


def test_records_are_replaced_forgotten_and_loaded_in_order() -> None:
    disk = Disk()
    disk.commit([Persist("b", b"1", b"x"), Persist("a", b"2", b"y"), Persist("a", b"1", b"z")])
    disk.commit([Persist("b", b"1", b"new"), Forget("a", b"2"), Forget("a", b"never was")])
    assert disk.load() == [("a", b"1", b"z"), ("b", b"1", b"new")]
    assert disk.transactions == 2


def test_a_full_disk_takes_nothing_and_keeps_what_it_has() -> None:
    disk = Disk()
    disk.commit([Persist("a", b"1", b"x")])
    disk.is_full = True
    with pytest.raises(DiskFullError):
        disk.commit([Forget("a", b"1"), Persist("a", b"2", b"y")])
    disk.is_full = False
    assert disk.load() == [("a", b"1", b"x")]
    assert disk.transactions == 1


def test_an_old_copy_has_forgotten_what_came_since() -> None:
    disk = Disk()
    disk.commit([Persist("a", b"1", b"x")])
    old = disk.copy()
    disk.commit([Persist("a", b"1", b"spent"), Persist("a", b"2", b"said")])
    assert old.load() == [("a", b"1", b"x")]
    disk.restore(old)
    disk.commit([Persist("a", b"3", b"y")])
    assert disk.load() == [("a", b"1", b"x"), ("a", b"3", b"y")]
    assert old.load() == [("a", b"1", b"x")], "a copy is a copy"
    assert disk.transactions == 3, "kill points are counted over all starts"


@pytest.mark.parametrize(
    ("where", "durable", "sent"),
    [("before", 0, 0), ("torn", 0, 0), ("after", 2, 0)],
)
def test_power_fails_around_a_transaction(where: Where, durable: int, sent: int) -> None:
    world = CommandedWorld(2)
    machine = world.machines[0]
    machine.plan_kill(KillPoint(1, where))
    world.do(0, Persist("t", b"0", b"zero"))
    world.do(0, *WRITES)
    assert not machine.is_up
    world.run(1000)
    machine.restart()
    assert len(machine.disk.records) == 1 + durable
    assert len(world.messages(1)) == sent
    assert [entry.fact for entry in world.simulator.trace.entries if isinstance(entry.fact, Restarted)] == [
        Restarted(1 + durable)
    ]


def test_power_fails_between_two_messages_anywhere_among_them() -> None:
    came = set()
    for seed in range(20):
        world = CommandedWorld(2, seed=seed)
        world.machines[0].plan_kill(KillPoint(0, "between"))
        world.do(0, *WRITES, Report(Killed("a fact that stands last")))
        assert not world.machines[0].is_up
        world.run(1000)
        assert len(world.machines[0].disk.records) == 2
        came.add(tuple(world.messages(1)))
    assert came == {(), (b"a",), (b"a", b"b")}, "messages are in the order in which they were sent"


def test_a_kill_point_without_writes_waits_for_the_next_transaction() -> None:
    world = CommandedWorld(2)
    world.machines[0].plan_kill(KillPoint(0, "after"))
    world.send(0, 1, b"no transaction")
    assert world.machines[0].is_up
    world.do(0, *WRITES)
    assert not world.machines[0].is_up
    world.run(1000)
    assert world.messages(1) == [b"no transaction"]


def test_a_full_disk_ends_its_process_before_anything_leaves() -> None:
    world = CommandedWorld(2)
    machine = world.machines[0]
    machine.disk.is_full = True
    world.do(0, *WRITES)
    assert not machine.is_up
    machine.disk.is_full = False
    machine.restart()
    world.run(1000)
    assert world.messages(1) == []
    world.do(0, *WRITES)
    world.run(1000)
    assert world.messages(1) == [b"a", b"b"]


def test_a_slow_disk_holds_up_what_depends_on_it_and_nothing_is_durable_before() -> None:
    world = CommandedWorld(2)
    machine = world.machines[0]
    machine.options = ProcessOptions(commit_ms=300)
    world.do(0, *WRITES)
    world.send(0, 1, b"next batch")
    world.run(299)
    assert not machine.disk.records
    world.run(1000)
    assert world.times(1) == [320, 320, 320]
    world.do(0, *WRITES)
    world.run(299)
    machine.kill("while it writes")
    world.run(1000)
    assert machine.disk.transactions == 1
    assert len(world.messages(1)) == 3
