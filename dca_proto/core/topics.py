"""MQTT topics: one shape for all, so that broker access lists can be written per actor.

    dca/<federation>/<round or ->/<channel>/<receiver or all>/<sender>

The sender stands last: a broker that lets each user write only to topics that end in its own id stops spoofing before
our cryptography has to. Ids and round ids are lower-case hexadecimal.
"""

from __future__ import annotations

import re

from dca_proto.core.effects import Address, Channel
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.sealing import ID_BYTES

_ID = re.compile("[0-9a-f]{32}")


def topic_of(federation: str, to: Address, round_id: bytes, sender: bytes) -> str:
    """The topic on which `sender` reaches `to`. Raises `UsageError` for ids of another length."""
    receiver = "all" if to.channel.is_broadcast else _hexadecimal(to.id)
    place = _hexadecimal(round_id) if round_id else "-"
    return f"dca/{federation}/{place}/{to.channel.value}/{receiver}/{_hexadecimal(sender)}"


def _hexadecimal(identity: bytes) -> str:
    if len(identity) != ID_BYTES:
        raise UsageError(f"a topic holds ids: found {len(identity)} bytes, expected {ID_BYTES}")
    return identity.hex()


def sender_of(topic: str) -> bytes:
    """The id that the topic claims as sender. Raises `PeerError` where the topic has another shape."""
    parts = topic.split("/")
    try:
        if len(parts) != 6 or parts[0] != "dca":
            raise ValueError
        Channel(parts[3])
        if not _ID.fullmatch(parts[5]):
            raise ValueError
        return bytes.fromhex(parts[5])
    except ValueError:
        raise PeerError("topic", found=topic[:200], expected="dca/federation/round/channel/receiver/sender") from None


def subscriptions(federation: str, role: Channel, actor_id: bytes) -> tuple[str, ...]:
    """The topic filters of an actor: its own inbox, and the broadcasts that its role listens to."""
    broadcasts = {
        Channel.CLIENT: (Channel.ANNOUNCE, Channel.ABORT),
        Channel.COMPUTE: (Channel.ABORT, Channel.HELLO),
        Channel.TRAINER: (Channel.ABORT, Channel.EPOCH),
    }[role]
    inbox = f"dca/{federation}/+/{role.value}/{actor_id.hex()}/+"
    return inbox, *(f"dca/{federation}/+/{channel.value}/all/+" for channel in broadcasts)
