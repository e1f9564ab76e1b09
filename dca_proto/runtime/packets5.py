"""Packets of MQTT 5, by the compiled codec `mqtt5`."""

from __future__ import annotations

from collections.abc import Sequence

import mqtt5

from dca_proto.errors import TransportError
from dca_proto.runtime.connection import PACKET_BYTES_MAX, UNACKNOWLEDGED_MAX, Connect, Published
from dca_proto.runtime.packets import PUBLISH, ConnAck, Disconnect, Packet, PubAck, SubAck, puback

_QOS = mqtt5.QoS.AT_LEAST_ONCE


class Codec5:
    """The packets of MQTT 5."""

    def connect(self, hello: Connect) -> bytes:
        settings = hello.settings
        if hello.is_probe:
            return mqtt5.ConnectPacket(hello.client_id, clean_start=True, keep_alive=settings.keepalive_s).write()
        return mqtt5.ConnectPacket(
            hello.client_id,
            username=hello.username,
            password=None if hello.password is None else hello.password.encode(),
            clean_start=settings.session_expiry_s == 0,
            will=None if hello.will is None else mqtt5.Will(hello.will, payload=b"", qos=mqtt5.QoS.AT_MOST_ONCE),
            keep_alive=settings.keepalive_s,
            session_expiry_interval=settings.session_expiry_s,
            receive_max=UNACKNOWLEDGED_MAX,
            max_packet_size=PACKET_BYTES_MAX,
        ).write()

    def subscribe(self, number: int, topic_filters: Sequence[str]) -> bytes:
        filters = [mqtt5.TopicFilter(each, max_qos=_QOS, retain_as_published=False) for each in topic_filters]
        return mqtt5.SubscribePacket(number, filters).write()

    def publish(self, number: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> bytes:
        return mqtt5.PublishPacket(
            topic, payload, qos=_QOS, retain=retain, packet_id=number, message_expiry_interval=expiry_s
        ).write()

    def puback(self, number: int) -> bytes:
        return puback(number)  # that of 3.1.1 has the same bytes

    def read(self, packet: bytes, body: int) -> Packet:
        match _decoded(packet, body):
            case Published() as undecodable:
                return undecodable
            case mqtt5.PublishPacket() as found:
                if found.qos == mqtt5.QoS.EXACTLY_ONCE:  # no subscription asks for it
                    raise TransportError("the broker sent a malformed packet: a PUBLISH of QoS 2")
                return Published(found.topic, found.payload, found.retain, found.packet_id)
            case mqtt5.PubAckPacket() as found:
                return PubAck(found.packet_id, int(found.reason_code), _name(found.reason_code.name))
            case mqtt5.SubAckPacket() as found:
                return SubAck(tuple(map(int, found.reason_codes)))
            case mqtt5.ConnAckPacket() as found:
                name = _name(found.reason_code.name)
                return ConnAck(int(found.reason_code), name, found.receive_max, found.server_keep_alive)
            case mqtt5.DisconnectPacket() as found:
                return Disconnect(f"it ended: {_name(found.reason_code.name)} ({int(found.reason_code)})")
        return None


def _decoded(packet: bytes, body: int) -> mqtt5.Packet | Published:
    """Decode a packet. Raises `TransportError` if it is malformed."""
    if packet[0] >> 4 == PUBLISH and (undecodable := _undecodable(packet, body)) is not None:
        return undecodable
    try:
        return mqtt5.read(memoryview(packet))[0]
    except (ValueError, IndexError) as error:
        raise TransportError(f"the broker sent a malformed packet of {len(packet):,} bytes: {error}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of its Rust code, at a property that is not UTF-8
            raise
        raise TransportError(f"the broker sent a malformed packet of {len(packet):,} bytes") from None


def _undecodable(packet: bytes, body: int) -> Published | None:
    """Return a message without its topic if that is not UTF-8, at which the codec panics; None otherwise."""
    ends = body + 2 + int.from_bytes(packet[body : body + 2], "big")
    try:
        packet[body + 2 : ends].decode()
    except UnicodeDecodeError:
        number = int.from_bytes(packet[ends : ends + 2], "big") if packet[0] & 0b0110 else None
        return Published(None, b"", bool(packet[0] & 1), number)
    return None


def _name(code: str) -> str:
    return code.lower().replace("_", " ")
