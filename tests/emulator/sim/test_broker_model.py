"""The model of the broker: sessions, retained messages, restarts, limits, and two machines with one id."""

from __future__ import annotations

import msgspec
import pytest
from commanded_actor import PLAIN, ROUND, CommandedActor, CommandedWorld, numbered

from dca_proto.protocol.effects import Address, Channel, Send
from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.parts import split
from emulator.sim.broker import BrokerLimits, BrokerMemory
from emulator.sim.process import ProcessOptions

PARTS = BrokerLimits(part_bytes_max=1024)


def retained(payload: bytes) -> Send:
    """A Compute node's epoch key goes to all trainers, who hear of it whenever they come."""
    return Send(Address(Channel.EPOCH), b"", payload, retain=True)


def test_messages_go_to_whom_they_are_addressed_and_to_nobody_else() -> None:
    world = CommandedWorld(3)
    world.send(0, 1, b"one")
    world.do(0, Send(Address(Channel.CLIENT, CommandedWorld.id(2)), ROUND, b"to a client of that id"))
    world.do(0, Send(Address(Channel.COMPUTE, b"?" * 16), ROUND, b"to nobody"))
    world.do(1, Send(Address(Channel.ABORT), ROUND, b"to all that listen, the sender too"))
    world.do(2, Send(Address(Channel.ANNOUNCE), ROUND, b"to clients only"))
    world.run(1000)
    everyone = b"to all that listen, the sender too"
    assert [world.messages(index) for index in range(3)] == [[everyone], [b"one", everyone], [everyone]]


def test_large_messages_go_in_parts_and_arrive_whole() -> None:
    world = CommandedWorld(2, broker=PARTS)
    payload = bytes(range(256)) * 40
    world.send(0, 1, b"small", payload, b"exactly" + bytes(1023 - 7))
    world.run(1000)
    assert world.messages(1) == [b"small", payload, b"exactly" + bytes(1016)]
    assert world.broker.packets == 1 + len(split(payload, 1024)) + 1
    assert world.broker.packet_bytes == 6 + sum(map(len, split(payload, 1024))) + 1024


def test_half_a_message_in_parts_is_gone_with_the_receivers_memory() -> None:
    world = CommandedWorld(2, broker=PARTS)
    world.machines[0].link.options = msgspec.structs.replace(PLAIN, bandwidth_bytes_s=1024)
    world.send(0, 1, bytes(3000))
    world.run(1500)
    world.machines[1].restart()
    world.run(5000)
    assert world.messages(1) == []
    world.send(0, 1, bytes(3000))
    world.run(5000)
    assert world.messages(1) == [bytes(3000)]


def test_what_is_injected_comes_under_any_name_and_nonsense_to_nobody() -> None:
    world = CommandedWorld(2)
    topic = topic_of(bytes(32), Address(Channel.COMPUTE, CommandedWorld.id(1)), b"someone else....")
    world.broker.inject(topic, b"\x00spoofed")
    world.broker.inject(topic, b"\x07neither whole nor part")
    for odd in (
        f"dca/{bytes(16).hex()}/x",
        "",
        topic.replace("compute", "nobody"),
        topic.replace(CommandedWorld.id(1).hex(), "zz"),
    ):
        world.broker.inject(odd, b"\x00nonsense")
    world.run(1000)
    assert [event.sender for _, event in world.heard[1][1:]] == [b"someone else...."]
    assert world.messages(1) == [b"spoofed"]
    assert world.broker.dropped["unknown topic"] == 4


# --- retained messages -----------------------------------------------------------------------------------------------


def listener(world: CommandedWorld) -> list[bytes]:
    """What a trainer that comes now hears."""
    heard: list = []
    world.simulator.add(Channel.TRAINER, lambda records: CommandedActor(b"T" * 16, heard, []))
    world.run(1000)
    return [event.payload for _, event in heard[1:]]


def test_late_subscribers_get_the_last_retained_message_of_each_sender() -> None:
    world = CommandedWorld(2)
    world.do(0, retained(b"old"))
    world.do(1, retained(b"other"))
    world.run(1000)
    world.do(0, retained(b"new"))
    world.run(1000)
    assert sorted(listener(world)) == [b"new", b"other"]
    assert world.messages(0) == [], "a Compute node has not subscribed to them"


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_broker_without_its_state_forgets_retained_messages(keeps_state: bool) -> None:
    world = CommandedWorld(1)
    world.do(0, retained(b"key"))
    world.run(1000)
    world.broker.stop(None if keeps_state else BrokerMemory())
    world.broker.start()
    assert listener(world) == ([b"key"] if keeps_state else [])


# --- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_messages_wait_for_a_machine_that_is_away_in_a_persistent_session_only(persistent: bool) -> None:
    world = CommandedWorld(2, broker=BrokerLimits(persistent_sessions=persistent))
    world.send(0, 1, b"in flight")
    world.run(15)
    world.machines[1].kill("test")
    world.send(0, 1, b"while away")
    world.run(10_000)
    world.machines[1].restart()
    world.run(1000)
    assert world.messages(1) == ([b"in flight", b"while away"] if persistent else [])
    world.send(0, 1, b"back")
    world.run(1000)
    assert world.messages(1)[-1] == b"back"
    lost = {} if persistent else {"session ended": 1, "receiver away": 1}
    assert world.broker.dropped == lost


def test_a_session_expires() -> None:
    world = CommandedWorld(2, broker=BrokerLimits(session_expiry_ms=5000))
    for away_ms in (4000, 6000):
        world.machines[1].kill("test")
        world.send(0, 1, str(away_ms).encode())
        world.run(away_ms)
        world.send(0, 1, b"after " + str(away_ms).encode())
        world.run(500)
        world.machines[1].restart()
        world.run(1000)
    assert world.messages(1) == [b"4000", b"after 4000"]
    assert world.broker.dropped == {"session expired": 1, "receiver away": 1}


def test_a_queue_has_an_end() -> None:
    """Attack 40: acknowledged by the broker and then lost; the protocol's receipts are the answer."""
    world = CommandedWorld(2, broker=BrokerLimits(queue_messages_max=5))
    world.machines[1].kill("test")
    world.send(0, 1, *numbered(8))
    world.run(1000)
    assert world.broker.pending() == ["5 packets wait for compute 02020202"]
    world.machines[1].restart()
    world.run(1000)
    assert world.messages(1) == numbered(5)
    assert world.broker.dropped == {"queue full": 3}


def test_what_waits_in_a_machine_dies_with_it() -> None:
    world = CommandedWorld(2)
    world.broker.stop()
    world.send(0, 1, b"waits")
    world.run(1000)
    assert world.broker.pending() == ["the broker is down", "1 packets wait at compute 01010101"]
    world.machines[0].restart()
    world.send(0, 1, b"of the next life")
    world.broker.start()
    world.run(5000)
    assert world.messages(1) == [b"of the next life"]


# --- restarts of the broker ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_restart_loses_what_was_queued_only_without_kept_state(keeps_state: bool) -> None:
    """Attacks 9 and 40. Machines hand over later what they could not; without state nobody may have subscribed yet."""
    world = CommandedWorld(3)
    world.machines[1].kill("test")
    world.send(0, 1, b"queued")
    world.run(1000)
    world.broker.stop(None if keeps_state else BrokerMemory())
    world.send(0, 2, b"not handed over")
    world.run(1000)
    world.broker.start()
    world.run(2000)
    world.machines[1].restart()
    world.run(1000)
    assert world.messages(1) == ([b"queued"] if keeps_state else [])
    assert world.messages(2) == ([b"not handed over"] if keeps_state else [])
    assert world.broker.dropped == ({} if keeps_state else {"broker restarted": 1, "receiver away": 1})


def test_a_broker_that_is_killed_comes_back_with_its_last_snapshot() -> None:
    """The same on mosquitto: `tests/dca_proto/runtime/test_broker_kill.py`."""
    world = CommandedWorld(3)
    world.do(0, retained(b"before"))
    world.machines[1].kill("away")
    world.send(0, 1, b"delivered before the kill")
    world.run(1000)
    snapshot = world.broker.memory
    world.do(0, retained(b"after"))
    world.machines[1].restart()
    world.run(1000)
    world.machines[1].kill("away")
    world.send(0, 1, b"acknowledged and lost")
    world.run(1000)
    assert world.simulator.pending() == ["compute 02020202 is down", "1 packets wait for compute 02020202"]
    world.broker.stop(snapshot)
    world.broker.start()
    world.machines[1].restart()
    world.run(2000)
    assert world.messages(1) == 2 * [b"delivered before the kill"]
    assert listener(world) == [b"before"]
    assert world.broker.dropped == {"broker restarted": 1}


@pytest.mark.parametrize("after_ms", range(0, 45, 5))
def test_a_restart_in_mid_flight_loses_nothing_of_kept_state(after_ms: int) -> None:
    world = CommandedWorld(2)
    world.send(0, 1, *numbered(3))
    world.run(after_ms)
    world.broker.stop()
    world.run(200)
    world.broker.start()
    world.run(5000)
    assert world.messages(1) in (numbered(3), 2 * numbered(3))


def test_all_connect_again_each_after_a_moment_of_its_own() -> None:
    world = CommandedWorld(20)
    world.broker.stop()
    world.broker.start()
    world.run(499)
    assert not any(map(world.broker.is_connected, world.machines))
    world.run(250)
    assert 2 < sum(map(world.broker.is_connected, world.machines)) < 18
    world.run(251)
    assert all(map(world.broker.is_connected, world.machines))


def test_half_a_swarm_that_comes_back_at_once_is_let_in_at_the_brokers_pace() -> None:
    """Attack 33."""
    world = CommandedWorld(40, broker=BrokerLimits(connects_per_s_max=10))
    world.run(4000)
    assert all(map(world.broker.is_connected, world.machines))
    for machine in world.machines[:20]:
        machine.kill("half of them")
    for machine in world.machines[:20]:
        machine.restart()
    world.send(39, 19, b"waits in its session")
    world.run(1000)
    assert sum(map(world.broker.is_connected, world.machines[:20])) == 10 + 1
    world.run(1000)
    assert sum(map(world.broker.is_connected, world.machines[:20])) == 20
    assert world.messages(19) == [b"waits in its session"]


# --- windows ---------------------------------------------------------------------------------------------------------


def test_few_packets_are_under_way_at_once_and_all_arrive_in_order() -> None:
    """A round trip is 20 ms, and 3 packets go with each: up with the machine's window, down with the broker's."""
    for broker, machine in ((BrokerLimits(inflight_max=3), None), (None, ProcessOptions(unacknowledged_max=3))):
        world = CommandedWorld(2, broker=broker)
        world.machines[0].options = machine or ProcessOptions()
        world.send(0, 1, *numbered(10))
        world.run(1000)
        assert world.messages(1) == numbered(10)
        assert world.times(1) == [20 + 20 * (number // 3) for number in range(10)]


def test_a_machine_whose_outbox_is_full_handles_nothing_until_there_is_room() -> None:
    world = CommandedWorld(2)
    world.machines[0].options = ProcessOptions(publishing_max=2)
    world.broker.stop()
    world.send(0, 1, *numbered(5))
    world.send(1, 0, b"for the machine that waits")
    world.run(1000)
    assert world.simulator.pending()[1:] == ["2 packets wait at compute 01010101", "1 packets wait at compute 02020202"]
    world.broker.start()
    world.run(5000)
    assert world.messages(1) == numbered(5)
    assert world.messages(0) == [b"for the machine that waits"]
    world.broker.stop()
    world.send(0, 1, *numbered(5))
    world.machines[0].restart()
    world.broker.start()
    world.run(5000)
    assert world.messages(1) == numbered(5), "what it had not handed over died with it"


# --- limits and fights -----------------------------------------------------------------------------------------------


def test_whoever_sends_too_large_a_packet_is_thrown_out_and_nobody_else_suffers() -> None:
    """Attack 32. Its transport tries again, as ours does, and harms itself alone; later messages wait behind it."""
    world = CommandedWorld(3, broker=BrokerLimits(packet_bytes_max=2000, part_bytes_max=4000))
    world.send(0, 1, b"before")
    world.run(100)
    world.send(0, 1, bytes(3000), b"behind")
    world.send(2, 1, *numbered(3))
    world.run(10_000)
    assert world.messages(1) == [b"before", *numbered(3)]
    assert 10 <= world.broker.dropped["packet too large"] <= 21, "once with each connection"
    assert 0 <= 3 + world.broker.dropped["packet too large"] - world.broker.connections <= 1
    assert world.simulator.pending() == ["2 packets wait at compute 01010101"]
    world.machines[0].restart()
    world.send(0, 1, b"afresh")
    world.run(1000)
    assert world.messages(1)[-1] == b"afresh"


def test_two_machines_with_one_id_throw_each_other_out() -> None:
    """Attack 32: the broker closes the older connection; no message is lost, each goes to whoever is connected."""
    world = CommandedWorld(2)
    duplicate = world.add(1)
    assert world.simulator.processes[duplicate.id] is world.machines[1]
    assert not world.broker.is_connected(world.machines[1])
    owners = set()
    for number in numbered(50):
        world.send(0, 1, number)
        world.run(200)
        assert world.broker.is_connected(duplicate) + world.broker.is_connected(world.machines[1]) <= 1
        owners |= {
            machine.link_name for machine in (duplicate, world.machines[1]) if world.broker.is_connected(machine)
        }
    world.run(1000)
    assert len(owners) == 2
    assert set(world.messages(1)) == set(numbered(50))
    assert world.broker.connections > 3 + 10
    assert duplicate.traffic.messages_received > 5 < world.machines[1].traffic.messages_received
    duplicate.kill("the fight is over")
    before = world.broker.connections
    world.run(5000)
    assert world.broker.connections <= before + 1
    assert world.broker.is_connected(world.machines[1])


def test_what_the_machine_that_was_thrown_out_sends_waits_until_it_is_back() -> None:
    world = CommandedWorld(2)
    duplicate = world.add(1)
    to = Address(Channel.COMPUTE, CommandedWorld.id(0))
    world.do(1, Send(to, ROUND, b"of the first"))
    world.do(duplicate, Send(to, ROUND, b"of the second"))
    world.run(100)
    assert world.messages(0) == [b"of the second"]
    world.run(1000)
    assert world.messages(0) == [b"of the second", b"of the first"]
