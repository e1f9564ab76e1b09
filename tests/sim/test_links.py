"""What a link does to packets, each feature where it bites."""

from __future__ import annotations

import msgspec
import pytest
from puppet import PLAIN, Stage, numbered

from emulator.sim.broker import BrokerOptions
from emulator.sim.link import IDEAL, LinkOptions

Came = tuple[list[bytes], list[bytes]]
"""What came to either of two machines."""


def options(**changes: float) -> LinkOptions:
    return msgspec.structs.replace(PLAIN, **changes)


def test_a_message_takes_the_delay_of_both_links() -> None:
    stage = Stage(2)
    stage.machines[1].link.options = options(delay_ms=25)
    stage.send(0, 1, b"a")
    stage.run(1000)
    assert stage.times(1) == [35]


def test_jitter_is_bounded_and_keeps_the_order() -> None:
    stage = Stage(2, link=options(jitter_ms=30))
    for number in numbered(50):
        stage.send(0, 1, number)
        stage.run(20)
    stage.run(1000)
    assert stage.messages(1) == numbered(50)
    delays = [at - 20 * number for number, at in enumerate(stage.times(1))]
    assert 20 <= min(delays) < 40 < max(delays) <= 80, "without jitter 20"


def test_reordering_lets_some_overtake_and_loses_none() -> None:
    stage = Stage(2, link=options(reorder=0.3, reorder_ms=200))
    stage.send(0, 1, *numbered(100))
    stage.run(1000)
    assert stage.messages(1) != numbered(100) == sorted(stage.messages(1))


def test_repeated_packets_come_twice_on_each_link_that_repeats() -> None:
    stage = Stage(2, link=options(duplicate=0.5))
    stage.send(0, 1, *numbered(200))
    stage.run(1000)
    assert set(stage.messages(1)) == set(numbered(200))
    assert 350 < len(stage.messages(1)) < 550, "450 expected, sd 15 at most: seeded"


def test_duplication_and_reordering_are_on_by_default() -> None:
    assert LinkOptions().duplicate > 0
    assert LinkOptions().reorder > 0


def test_loss_shows_as_delay() -> None:
    stage = Stage(2, link=options(loss=0.3, retry_ms=500, reorder_ms=0))
    for number in numbered(30):
        stage.send(0, 1, number)
        stage.run(10_000)
    delays = [at - 10_000 * number for number, at in enumerate(stage.times(1))]
    assert stage.messages(1) == numbered(30)
    assert set(delays) <= {20 + 500 * lost for lost in range(8)}
    assert 20 in delays
    assert 520 in delays


def test_bandwidth_sends_one_after_the_other() -> None:
    stage = Stage(2)
    stage.machines[0].link.options = options(bandwidth_bytes_s=1000)
    stage.send(0, 1, bytes(499), bytes(999), b"")  # and one byte each for the kind of packet
    stage.run(5000)
    assert stage.times(1) == [520, 1520, 1521]


def test_a_narrow_link_to_a_slow_subscriber_fills_its_queue_and_nobody_elses() -> None:
    """Attack 32: what cannot be delivered in time waits within bounds; beyond, it is lost, and counted."""
    stage = Stage(3, broker=BrokerOptions(queue_messages_max=5, inflight_max=5))
    stage.machines[1].link.options = options(bandwidth_bytes_s=100)
    for number in numbered(100):
        stage.send(0, 1, number)
        stage.send(0, 2, number)
        stage.run(5)
    stage.run(60_000)
    assert stage.messages(2) == numbered(100)
    assert stage.messages(1)[:10] == numbered(10)
    assert len(stage.messages(1)) + stage.broker.dropped["queue full"] == 100
    assert stage.broker.dropped["queue full"] > 70


def test_clogging_delays_both_ways_until_it_is_mended() -> None:
    stage = Stage(2)
    stage.machines[0].link.options = options(delay_ms=310)
    stage.send(0, 1, b"out")
    stage.send(1, 0, b"in")
    stage.run(1000)
    stage.machines[0].link.options = PLAIN
    stage.send(0, 1, b"again")
    stage.run(1000)
    assert stage.times(1) == [320, 1020]
    assert stage.times(0) == [320]


def test_an_ideal_link_takes_no_time_and_can_be_congested_and_cut() -> None:
    stage = Stage(2, link=IDEAL)
    stage.send(0, 1, b"a")
    stage.run(5)
    stage.machines[1].link.options = options(delay_ms=7)
    stage.send(0, 1, b"b")
    stage.broker.cut(stage.machines[0], up=True, down=True)
    stage.send(0, 1, b"c")
    stage.run(2000)
    stage.broker.mend(stage.machines[0])
    stage.run(2000)
    assert stage.messages(1) == [b"a", b"b", b"c"]
    assert stage.times(1)[:2] == [0, 12]


@pytest.mark.parametrize(("way", "cut", "mended"), [
    ("up", ([b"in"], []), ([b"in", b"in"], [b"out"])),
    ("down", ([], [b"out"]), ([b"in"], [b"out", b"out"])),
])  # fmt: skip
def test_what_passes_a_link_that_is_cut_one_way_comes_again(way: str, cut: Came, mended: Came) -> None:
    """No acknowledgement comes the other way, so QoS 1 delivers once more on the next connection."""
    stage = Stage(2)
    stage.broker.cut(stage.machines[0], up=way == "up", down=way == "down")
    stage.send(0, 1, b"out")
    stage.send(1, 0, b"in")
    stage.run(5000)
    assert (stage.messages(0), stage.messages(1)) == cut
    stage.broker.mend(stage.machines[0])
    stage.run(5000)
    assert (stage.messages(0), stage.messages(1)) == mended


def test_a_partition_may_be_mended_one_way_first() -> None:
    stage = Stage(2)
    stage.broker.cut(stage.machines[0], up=True, down=True)
    stage.send(0, 1, *numbered(5))
    stage.send(1, 0, b"in")
    stage.run(1000)
    stage.broker.cut(stage.machines[0], up=True, down=False)
    stage.run(1000)
    assert (stage.messages(0), stage.messages(1)) == ([b"in"], [])
    stage.broker.cut(stage.machines[0], up=False, down=False)
    stage.run(1000)
    assert stage.messages(1) == numbered(5)


@pytest.mark.parametrize("cut_after_ms", range(0, 45, 5))
def test_a_partition_in_mid_flight_loses_nothing_of_a_kept_session(cut_after_ms: int) -> None:
    """Whether it is on the sender's link, on the receiver's, or arrived unacknowledged; in order each time."""
    for victim in (0, 1):
        stage = Stage(2)
        stage.send(0, 1, *numbered(3))
        stage.run(cut_after_ms)
        stage.broker.cut(stage.machines[victim], up=True, down=True)
        stage.run(3000)
        stage.broker.mend(stage.machines[victim])
        stage.run(3000)
        came = stage.messages(1)
        assert came in (numbered(3), 2 * numbered(3)), "once, or once more in the same order"


def test_what_had_arrived_unacknowledged_comes_twice() -> None:
    stage = Stage(2)
    stage.send(0, 1, b"a")
    stage.run(25)  # it came after 20, its acknowledgement would be there after 30
    stage.machines[1].restart()
    stage.run(1000)
    assert stage.times(1) == [20, 35]


def test_what_had_not_left_a_dead_machine_is_lost_and_what_had_left_arrives() -> None:
    """1,000 bytes a second: the second of two messages is still in the machine's buffer when its power fails."""
    stage = Stage(2)
    stage.machines[0].link.options = options(bandwidth_bytes_s=1000, delay_ms=100)
    stage.send(0, 1, bytes(499), bytes(499))
    stage.run(550)
    stage.machines[0].kill("test")
    stage.machines[0].restart()
    stage.run(5000)
    assert stage.times(1) == [610]


def test_another_link_with_another_lot_changes_nothing_for_this_one() -> None:
    """Every link and purpose has a stream of its own."""

    def times(others: LinkOptions) -> list[int]:
        stage = Stage(4, link=LinkOptions())
        for machine in stage.machines[2:]:
            machine.link.options = others
        for number in numbered(40):
            stage.send(0, 1, number)
            stage.send(2, 3, number)
            stage.run(15)
        stage.run(2000)
        return stage.times(1)

    assert times(LinkOptions()) == times(LinkOptions(loss=0.5, jitter_ms=100, duplicate=0.5)) != []
