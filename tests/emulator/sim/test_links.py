"""What a link does to packets, each feature where it bites."""

from __future__ import annotations

import msgspec
import pytest
from commanded_actor import PLAIN, CommandedWorld, numbered

from emulator.sim.broker import BrokerLimits
from emulator.sim.link import IDEAL, LinkOptions

Came = tuple[list[bytes], list[bytes]]
"""What came to either of two machines."""


def options(**changes: float) -> LinkOptions:
    return msgspec.structs.replace(PLAIN, **changes)


def test_a_message_takes_the_delay_of_both_links() -> None:
    world = CommandedWorld(2)
    world.machines[1].link.options = options(delay_ms=25)
    world.send(0, 1, b"a")
    world.run(1000)
    assert world.times(1) == [35]


def test_jitter_is_bounded_and_keeps_the_order() -> None:
    world = CommandedWorld(2, link=options(jitter_ms=30))
    for number in numbered(50):
        world.send(0, 1, number)
        world.run(20)
    world.run(1000)
    assert world.messages(1) == numbered(50)
    delays = [at - 20 * number for number, at in enumerate(world.times(1))]
    assert 20 <= min(delays) < 40 < max(delays) <= 80, "without jitter 20"


def test_reordering_lets_some_overtake_and_loses_none() -> None:
    world = CommandedWorld(2, link=options(reorder=0.3, reorder_ms=200))
    world.send(0, 1, *numbered(100))
    world.run(1000)
    assert world.messages(1) != numbered(100) == sorted(world.messages(1))


def test_repeated_packets_come_twice_on_each_link_that_repeats() -> None:
    world = CommandedWorld(2, link=options(duplicate=0.5))
    world.send(0, 1, *numbered(200))
    world.run(1000)
    assert set(world.messages(1)) == set(numbered(200))
    assert 350 < len(world.messages(1)) < 550, "450 expected, sd 15 at most: seeded"


def test_duplication_and_reordering_are_on_by_default() -> None:
    assert LinkOptions().duplicate > 0
    assert LinkOptions().reorder > 0


def test_loss_shows_as_delay() -> None:
    world = CommandedWorld(2, link=options(loss=0.3, retry_ms=500, reorder_ms=0))
    for number in numbered(30):
        world.send(0, 1, number)
        world.run(10_000)
    delays = [at - 10_000 * number for number, at in enumerate(world.times(1))]
    assert world.messages(1) == numbered(30)
    assert set(delays) <= {20 + 500 * lost for lost in range(8)}
    assert 20 in delays
    assert 520 in delays


def test_bandwidth_sends_one_after_the_other() -> None:
    world = CommandedWorld(2)
    world.machines[0].link.options = options(bandwidth_bytes_s=1000)
    world.send(0, 1, bytes(499), bytes(999), b"")  # and one byte each for the kind of packet
    world.run(5000)
    assert world.times(1) == [520, 1520, 1521]


def test_a_narrow_link_to_a_slow_subscriber_fills_its_queue_and_nobody_elses() -> None:
    """Attack 32: what cannot be delivered in time waits within bounds; beyond, it is lost, and counted."""
    world = CommandedWorld(3, broker=BrokerLimits(queue_messages_max=5, inflight_max=5))
    world.machines[1].link.options = options(bandwidth_bytes_s=100)
    for number in numbered(100):
        world.send(0, 1, number)
        world.send(0, 2, number)
        world.run(5)
    world.run(60_000)
    assert world.messages(2) == numbered(100)
    assert world.messages(1)[:10] == numbered(10)
    assert len(world.messages(1)) + world.broker.dropped["queue full"] == 100
    assert world.broker.dropped["queue full"] > 70


def test_clogging_delays_both_ways_until_it_is_mended() -> None:
    world = CommandedWorld(2)
    world.machines[0].link.options = options(delay_ms=310)
    world.send(0, 1, b"out")
    world.send(1, 0, b"in")
    world.run(1000)
    world.machines[0].link.options = PLAIN
    world.send(0, 1, b"again")
    world.run(1000)
    assert world.times(1) == [320, 1020]
    assert world.times(0) == [320]


def test_an_ideal_link_takes_no_time_and_can_be_congested_and_cut() -> None:
    world = CommandedWorld(2, link=IDEAL)
    world.send(0, 1, b"a")
    world.run(5)
    world.machines[1].link.options = options(delay_ms=7)
    world.send(0, 1, b"b")
    world.broker.cut(world.machines[0], up=True, down=True)
    world.send(0, 1, b"c")
    world.run(2000)
    world.broker.mend(world.machines[0])
    world.run(2000)
    assert world.messages(1) == [b"a", b"b", b"c"]
    assert world.times(1)[:2] == [0, 12]


@pytest.mark.parametrize(("way", "cut", "mended"), [
    ("up", ([b"in"], []), ([b"in", b"in"], [b"out"])),
    ("down", ([], [b"out"]), ([b"in"], [b"out", b"out"])),
])  # fmt: skip
def test_what_passes_a_link_that_is_cut_one_way_comes_again(way: str, cut: Came, mended: Came) -> None:
    """No acknowledgement comes the other way, so QoS 1 delivers once more on the next connection."""
    world = CommandedWorld(2)
    world.broker.cut(world.machines[0], up=way == "up", down=way == "down")
    world.send(0, 1, b"out")
    world.send(1, 0, b"in")
    world.run(5000)
    assert (world.messages(0), world.messages(1)) == cut
    world.broker.mend(world.machines[0])
    world.run(5000)
    assert (world.messages(0), world.messages(1)) == mended


def test_a_partition_may_be_mended_one_way_first() -> None:
    world = CommandedWorld(2)
    world.broker.cut(world.machines[0], up=True, down=True)
    world.send(0, 1, *numbered(5))
    world.send(1, 0, b"in")
    world.run(1000)
    world.broker.cut(world.machines[0], up=True, down=False)
    world.run(1000)
    assert (world.messages(0), world.messages(1)) == ([b"in"], [])
    world.broker.cut(world.machines[0], up=False, down=False)
    world.run(1000)
    assert world.messages(1) == numbered(5)


@pytest.mark.parametrize("cut_after_ms", range(0, 45, 5))
def test_a_partition_in_mid_flight_loses_nothing_of_a_kept_session(cut_after_ms: int) -> None:
    """Whether it is on the sender's link, on the receiver's, or arrived unacknowledged; in order each time."""
    for victim in (0, 1):
        world = CommandedWorld(2)
        world.send(0, 1, *numbered(3))
        world.run(cut_after_ms)
        world.broker.cut(world.machines[victim], up=True, down=True)
        world.run(3000)
        world.broker.mend(world.machines[victim])
        world.run(3000)
        came = world.messages(1)
        assert came in (numbered(3), 2 * numbered(3)), "once, or once more in the same order"


def test_what_had_arrived_unacknowledged_comes_twice() -> None:
    world = CommandedWorld(2)
    world.send(0, 1, b"a")
    world.run(25)  # it came after 20, its acknowledgement would be there after 30
    world.machines[1].restart()
    world.run(1000)
    assert world.times(1) == [20, 35]


def test_what_had_not_left_a_dead_machine_is_lost_and_what_had_left_arrives() -> None:
    """1,000 bytes a second: the second of two messages is still in the machine's buffer when its power fails."""
    world = CommandedWorld(2)
    world.machines[0].link.options = options(bandwidth_bytes_s=1000, delay_ms=100)
    world.send(0, 1, bytes(499), bytes(499))
    world.run(550)
    world.machines[0].kill("test")
    world.machines[0].restart()
    world.run(5000)
    assert world.times(1) == [610]


def test_another_link_with_another_lot_changes_nothing_for_this_one() -> None:
    """Every link and purpose has a stream of its own."""

    def times(others: LinkOptions) -> list[int]:
        world = CommandedWorld(4, link=LinkOptions())
        for machine in world.machines[2:]:
            machine.link.options = others
        for number in numbered(40):
            world.send(0, 1, number)
            world.send(2, 3, number)
            world.run(15)
        world.run(2000)
        return world.times(1)

    assert times(LinkOptions()) == times(LinkOptions(loss=0.5, jitter_ms=100, duplicate=0.5)) != []
