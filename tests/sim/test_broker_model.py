"""The model of the broker: sessions, retained messages, restarts, limits, and two machines with one id."""

from __future__ import annotations

import msgspec
import pytest
from puppet import PLAIN, ROUND, Puppet, Stage, numbered

from dca_proto.protocol.effects import Address, Channel, Send
from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.parts import split
from emulator.sim.broker import BrokerOptions, Memory
from emulator.sim.process import ProcessOptions

PARTS = BrokerOptions(part_bytes_max=1024)


def retained(payload: bytes) -> Send:
    """A Compute node's epoch key goes to all trainers, who hear of it whenever they come."""
    return Send(Address(Channel.EPOCH), b"", payload, retain=True)


def test_messages_go_to_whom_they_are_addressed_and_to_nobody_else() -> None:
    stage = Stage(3)
    stage.send(0, 1, b"one")
    stage.do(0, Send(Address(Channel.CLIENT, Stage.id(2)), ROUND, b"to a client of that id"))
    stage.do(0, Send(Address(Channel.COMPUTE, b"?" * 16), ROUND, b"to nobody"))
    stage.do(1, Send(Address(Channel.ABORT), ROUND, b"to all that listen, the sender too"))
    stage.do(2, Send(Address(Channel.ANNOUNCE), ROUND, b"to clients only"))
    stage.run(1000)
    everyone = b"to all that listen, the sender too"
    assert [stage.messages(index) for index in range(3)] == [[everyone], [b"one", everyone], [everyone]]


def test_large_messages_go_in_parts_and_arrive_whole() -> None:
    stage = Stage(2, broker=PARTS)
    payload = bytes(range(256)) * 40
    stage.send(0, 1, b"small", payload, b"exactly" + bytes(1023 - 7))
    stage.run(1000)
    assert stage.messages(1) == [b"small", payload, b"exactly" + bytes(1016)]
    assert stage.broker.packets == 1 + len(split(payload, 1024)) + 1
    assert stage.broker.packet_bytes == 6 + sum(map(len, split(payload, 1024))) + 1024


def test_half_a_message_in_parts_is_gone_with_the_receivers_memory() -> None:
    stage = Stage(2, broker=PARTS)
    stage.machines[0].link.options = msgspec.structs.replace(PLAIN, bandwidth_bytes_s=1024)
    stage.send(0, 1, bytes(3000))
    stage.run(1500)
    stage.machines[1].restart()
    stage.run(5000)
    assert stage.messages(1) == []
    stage.send(0, 1, bytes(3000))
    stage.run(5000)
    assert stage.messages(1) == [bytes(3000)]


def test_what_is_injected_comes_under_any_name_and_nonsense_to_nobody() -> None:
    stage = Stage(2)
    topic = topic_of("test", Address(Channel.COMPUTE, Stage.id(1)), b"someone else....")
    stage.broker.inject(topic, b"\x00spoofed")
    stage.broker.inject(topic, b"\x07neither whole nor part")
    for odd in ("dca/test/x", "", topic.replace("compute", "nobody"), topic.replace(Stage.id(1).hex(), "zz")):
        stage.broker.inject(odd, b"\x00nonsense")
    stage.run(1000)
    assert [event.sender for _, event in stage.heard[1][1:]] == [b"someone else...."]
    assert stage.messages(1) == [b"spoofed"]
    assert stage.broker.dropped["unknown topic"] == 4


# --- retained messages -----------------------------------------------------------------------------------------------


def listener(stage: Stage) -> list[bytes]:
    """What a trainer that comes now hears."""
    heard: list = []
    stage.simulator.add(Channel.TRAINER, lambda records: Puppet(b"T" * 16, heard, []))
    stage.run(1000)
    return [event.payload for _, event in heard[1:]]


def test_late_subscribers_get_the_last_retained_message_of_each_sender() -> None:
    stage = Stage(2)
    stage.do(0, retained(b"old"))
    stage.do(1, retained(b"other"))
    stage.run(1000)
    stage.do(0, retained(b"new"))
    stage.run(1000)
    assert sorted(listener(stage)) == [b"new", b"other"]
    assert stage.messages(0) == [], "a Compute node has not subscribed to them"


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_broker_without_its_state_forgets_retained_messages(keeps_state: bool) -> None:
    stage = Stage(1)
    stage.do(0, retained(b"key"))
    stage.run(1000)
    stage.broker.stop(None if keeps_state else Memory())
    stage.broker.start()
    assert listener(stage) == ([b"key"] if keeps_state else [])


# --- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_messages_wait_for_a_machine_that_is_away_in_a_persistent_session_only(persistent: bool) -> None:
    stage = Stage(2, broker=BrokerOptions(persistent_sessions=persistent))
    stage.send(0, 1, b"in flight")
    stage.run(15)
    stage.machines[1].kill("test")
    stage.send(0, 1, b"while away")
    stage.run(10_000)
    stage.machines[1].restart()
    stage.run(1000)
    assert stage.messages(1) == ([b"in flight", b"while away"] if persistent else [])
    stage.send(0, 1, b"back")
    stage.run(1000)
    assert stage.messages(1)[-1] == b"back"
    lost = {} if persistent else {"session ended": 1, "receiver away": 1}
    assert stage.broker.dropped == lost


def test_a_session_expires() -> None:
    stage = Stage(2, broker=BrokerOptions(session_expiry_ms=5000))
    for away_ms in (4000, 6000):
        stage.machines[1].kill("test")
        stage.send(0, 1, str(away_ms).encode())
        stage.run(away_ms)
        stage.send(0, 1, b"after " + str(away_ms).encode())
        stage.run(500)
        stage.machines[1].restart()
        stage.run(1000)
    assert stage.messages(1) == [b"4000", b"after 4000"]
    assert stage.broker.dropped == {"session expired": 1, "receiver away": 1}


def test_a_queue_has_an_end() -> None:
    """Attack 40: acknowledged by the broker and then lost; the protocol's receipts are the answer."""
    stage = Stage(2, broker=BrokerOptions(queue_messages_max=5))
    stage.machines[1].kill("test")
    stage.send(0, 1, *numbered(8))
    stage.run(1000)
    assert stage.broker.pending() == ["5 packets wait for compute 02020202"]
    stage.machines[1].restart()
    stage.run(1000)
    assert stage.messages(1) == numbered(5)
    assert stage.broker.dropped == {"queue full": 3}


def test_what_waits_in_a_machine_dies_with_it() -> None:
    stage = Stage(2)
    stage.broker.stop()
    stage.send(0, 1, b"waits")
    stage.run(1000)
    assert stage.broker.pending() == ["the broker is down", "1 packets wait at compute 01010101"]
    stage.machines[0].restart()
    stage.send(0, 1, b"of the next life")
    stage.broker.start()
    stage.run(5000)
    assert stage.messages(1) == [b"of the next life"]


# --- restarts of the broker ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_restart_loses_what_was_queued_only_without_kept_state(keeps_state: bool) -> None:
    """Attacks 9 and 40. Machines hand over later what they could not; without state nobody may have subscribed yet."""
    stage = Stage(3)
    stage.machines[1].kill("test")
    stage.send(0, 1, b"queued")
    stage.run(1000)
    stage.broker.stop(None if keeps_state else Memory())
    stage.send(0, 2, b"not handed over")
    stage.run(1000)
    stage.broker.start()
    stage.run(2000)
    stage.machines[1].restart()
    stage.run(1000)
    assert stage.messages(1) == ([b"queued"] if keeps_state else [])
    assert stage.messages(2) == ([b"not handed over"] if keeps_state else [])
    assert stage.broker.dropped == ({} if keeps_state else {"broker restarted": 1, "receiver away": 1})


def test_a_broker_that_is_killed_comes_back_with_its_last_snapshot() -> None:
    """The same on mosquitto: `tests/contract/test_broker_kill.py`."""
    stage = Stage(3)
    stage.do(0, retained(b"before"))
    stage.machines[1].kill("away")
    stage.send(0, 1, b"delivered before the kill")
    stage.run(1000)
    snapshot = stage.broker.memory
    stage.do(0, retained(b"after"))
    stage.machines[1].restart()
    stage.run(1000)
    stage.machines[1].kill("away")
    stage.send(0, 1, b"acknowledged and lost")
    stage.run(1000)
    assert stage.simulator.pending() == ["compute 02020202 is down", "1 packets wait for compute 02020202"]
    stage.broker.stop(snapshot)
    stage.broker.start()
    stage.machines[1].restart()
    stage.run(2000)
    assert stage.messages(1) == 2 * [b"delivered before the kill"]
    assert listener(stage) == [b"before"]
    assert stage.broker.dropped == {"broker restarted": 1}


@pytest.mark.parametrize("after_ms", range(0, 45, 5))
def test_a_restart_in_mid_flight_loses_nothing_of_kept_state(after_ms: int) -> None:
    stage = Stage(2)
    stage.send(0, 1, *numbered(3))
    stage.run(after_ms)
    stage.broker.stop()
    stage.run(200)
    stage.broker.start()
    stage.run(5000)
    assert stage.messages(1) in (numbered(3), 2 * numbered(3))


def test_all_connect_again_each_after_a_moment_of_its_own() -> None:
    stage = Stage(20)
    stage.broker.stop()
    stage.broker.start()
    stage.run(499)
    assert not any(map(stage.broker.is_connected, stage.machines))
    stage.run(250)
    assert 2 < sum(map(stage.broker.is_connected, stage.machines)) < 18
    stage.run(251)
    assert all(map(stage.broker.is_connected, stage.machines))


def test_half_a_swarm_that_comes_back_at_once_is_let_in_at_the_brokers_pace() -> None:
    """Attack 33."""
    stage = Stage(40, broker=BrokerOptions(connects_per_s_max=10))
    stage.run(4000)
    assert all(map(stage.broker.is_connected, stage.machines))
    for machine in stage.machines[:20]:
        machine.kill("half of them")
    for machine in stage.machines[:20]:
        machine.restart()
    stage.send(39, 19, b"waits in its session")
    stage.run(1000)
    assert sum(map(stage.broker.is_connected, stage.machines[:20])) == 10 + 1
    stage.run(1000)
    assert sum(map(stage.broker.is_connected, stage.machines[:20])) == 20
    assert stage.messages(19) == [b"waits in its session"]


# --- windows ---------------------------------------------------------------------------------------------------------


def test_few_packets_are_under_way_at_once_and_all_arrive_in_order() -> None:
    """A round trip is 20 ms, and 3 packets go with each: up with the machine's window, down with the broker's."""
    for broker, machine in ((BrokerOptions(inflight_max=3), None), (None, ProcessOptions(unacknowledged_max=3))):
        stage = Stage(2, broker=broker)
        stage.machines[0].options = machine or ProcessOptions()
        stage.send(0, 1, *numbered(10))
        stage.run(1000)
        assert stage.messages(1) == numbered(10)
        assert stage.times(1) == [20 + 20 * (number // 3) for number in range(10)]


def test_a_machine_whose_outbox_is_full_handles_nothing_until_there_is_room() -> None:
    stage = Stage(2)
    stage.machines[0].options = ProcessOptions(publishing_max=2)
    stage.broker.stop()
    stage.send(0, 1, *numbered(5))
    stage.send(1, 0, b"for the machine that waits")
    stage.run(1000)
    assert stage.simulator.pending()[1:] == ["2 packets wait at compute 01010101", "1 packets wait at compute 02020202"]
    stage.broker.start()
    stage.run(5000)
    assert stage.messages(1) == numbered(5)
    assert stage.messages(0) == [b"for the machine that waits"]
    stage.broker.stop()
    stage.send(0, 1, *numbered(5))
    stage.machines[0].restart()
    stage.broker.start()
    stage.run(5000)
    assert stage.messages(1) == numbered(5), "what it had not handed over died with it"


# --- limits and fights -----------------------------------------------------------------------------------------------


def test_whoever_sends_too_large_a_packet_is_thrown_out_and_nobody_else_suffers() -> None:
    """Attack 32. Its transport tries again, as ours does, and harms itself alone; later messages wait behind it."""
    stage = Stage(3, broker=BrokerOptions(packet_bytes_max=2000, part_bytes_max=4000))
    stage.send(0, 1, b"before")
    stage.run(100)
    stage.send(0, 1, bytes(3000), b"behind")
    stage.send(2, 1, *numbered(3))
    stage.run(10_000)
    assert stage.messages(1) == [b"before", *numbered(3)]
    assert 10 <= stage.broker.dropped["packet too large"] <= 21, "once with each connection"
    assert 0 <= 3 + stage.broker.dropped["packet too large"] - stage.broker.connections <= 1
    assert stage.simulator.pending() == ["2 packets wait at compute 01010101"]
    stage.machines[0].restart()
    stage.send(0, 1, b"afresh")
    stage.run(1000)
    assert stage.messages(1)[-1] == b"afresh"


def test_two_machines_with_one_id_throw_each_other_out() -> None:
    """Attack 32: the broker closes the older connection; no message is lost, each goes to whoever is connected."""
    stage = Stage(2)
    twin = stage.add(1)
    assert stage.simulator.processes[twin.id] is stage.machines[1]
    assert not stage.broker.is_connected(stage.machines[1])
    owners = set()
    for number in numbered(50):
        stage.send(0, 1, number)
        stage.run(200)
        assert stage.broker.is_connected(twin) + stage.broker.is_connected(stage.machines[1]) <= 1
        owners |= {machine.link_name for machine in (twin, stage.machines[1]) if stage.broker.is_connected(machine)}
    stage.run(1000)
    assert len(owners) == 2
    assert set(stage.messages(1)) == set(numbered(50))
    assert stage.broker.connections > 3 + 10
    assert twin.traffic.messages_received > 5 < stage.machines[1].traffic.messages_received
    twin.kill("the fight is over")
    before = stage.broker.connections
    stage.run(5000)
    assert stage.broker.connections <= before + 1
    assert stage.broker.is_connected(stage.machines[1])


def test_what_the_machine_that_was_thrown_out_sends_waits_until_it_is_back() -> None:
    stage = Stage(2)
    twin = stage.add(1)
    to = Address(Channel.COMPUTE, Stage.id(0))
    stage.do(1, Send(to, ROUND, b"of the first"))
    stage.do(twin, Send(to, ROUND, b"of the second"))
    stage.run(100)
    assert stage.messages(0) == [b"of the second"]
    stage.run(1000)
    assert stage.messages(0) == [b"of the second", b"of the first"]
