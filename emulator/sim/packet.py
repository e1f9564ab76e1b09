"""An MQTT packet with an application message, or a part of one; addressed as its topic says, which is not spelled out.

A message that fits one packet is not copied on its way; a larger one is split as `runtime.parts` does it in earnest.
"""

from __future__ import annotations

import msgspec

from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.topics import sender_of


class Packet(msgspec.Struct, frozen=True, gc=False):
    """A packet on its way.

    Attributes:
        sender: the id at the end of its topic, which nobody has checked. to: of the topic.
        round_id: as its sender says for observers; no packet carries it.
        payload: a whole message, or None. wire: what is sent instead, such as a part of a message.
    """

    sender: bytes
    to: Address
    round_id: bytes
    payload: bytes | None = None
    wire: bytes = b""
    retain: bool = False

    @property
    def size(self) -> int:
        """Bytes of MQTT payload."""
        return len(self.wire) if self.payload is None else len(self.payload) + 1

    def __repr__(self) -> str:
        return f"Packet({self.sender.hex()[:8]} to {self.to.channel.value} {self.to.id.hex()[:8]}, <{self.size} bytes>)"


def packet_on(topic: str, wire: bytes) -> Packet:
    """A packet as it appears on a topic. Raises `PeerError` for a topic that is none of ours."""
    sender = sender_of(topic)
    _, _, channel, receiver, _ = topic.split("/")
    try:
        to = Address(Channel(channel), b"" if receiver == "all" else bytes.fromhex(receiver))
        return Packet(sender, to, b"", wire=wire)
    except ValueError:
        raise PeerError("topic", found=topic[:200], expected="ids in hexadecimal") from None
