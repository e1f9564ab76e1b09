"""MQTT topics. All have one shape, so that a broker's access list can be written per actor.

    dca/<federation>/<channel>/<receiver or all>/<sender>

The federation is the first half of its id, not its name: two federations of one name may share a broker.

The sender comes last. So a broker can let each user write only to topics that end in its own id, which stops spoofing
before our cryptography has to. No level is free text. So a client has a bounded number of topics, and a broker retains
a bounded number of its messages. Ids are lower-case hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic, TypeVar

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol.effects import Address, Channel

RETAINED = (Channel.EPOCH, Channel.HELLO, Channel.FEDERATION)
"""The only channels on which actors ask the broker to retain a message."""

_ID = re.compile("[0-9a-f]{32}")
_CHANNELS = frozenset(channel.value for channel in Channel)


def topic_of(federation: bytes, to: Address, sender: bytes) -> str:
    """Return the topic for messages from `sender` to `to`. Raises `UsageError` for ids of another length.

    Args:
        federation: its id (`Federation.id`), as in all functions here.
    """
    receiver = "all" if to.channel.is_broadcast else _hexadecimal(to.id)
    return f"{root_of(federation)}/{to.channel.value}/{receiver}/{_hexadecimal(sender)}"


def root_of(federation: bytes) -> str:
    """Return the levels with which all topics of a federation begin."""
    return f"dca/{_hexadecimal(federation[:ID_BYTES])}"


def _hexadecimal(identity: bytes) -> str:
    if len(identity) != ID_BYTES:
        raise UsageError(f"a topic holds ids: found {len(identity)} bytes, expected {ID_BYTES}")
    return identity.hex()


def sender_of(topic: str) -> bytes:
    """Return the sender's id that a topic claims. Raises `PeerError` if the topic has another shape."""
    parts = topic.split("/")
    known = len(parts) == 5 and parts[0] == "dca" and parts[2] in _CHANNELS
    if not known or not _ID.fullmatch(parts[1]) or not _ID.fullmatch(parts[4]):
        raise PeerError("topic", found=topic[:200], expected="dca/federation/channel/receiver/sender")
    return bytes.fromhex(parts[4])


def may_be_retained(topic: str) -> bool:
    """Return True if actors retain messages on this topic. A retained message elsewhere comes from an attacker."""
    return topic.split("/")[2:4] in [[channel.value, "all"] for channel in RETAINED]


def is_will(topic: str) -> bool:
    """Return True if a message on this topic says that its sender is gone. Anybody may have written that."""
    return topic.split("/")[2:4] == [Channel.GONE.value, "all"]


def subscriptions(federation: bytes, role: Channel, actor_id: bytes) -> tuple[str, ...]:
    """Return an actor's topic filters: its own inbox, and the broadcasts to its role."""
    broadcasts = {
        Channel.CLIENT: (Channel.FEDERATION, Channel.ANNOUNCE, Channel.ABORT),
        Channel.COMPUTE: (Channel.FEDERATION, Channel.ABORT, Channel.HELLO, Channel.GONE),
        Channel.TRAINER: (Channel.FEDERATION, Channel.ABORT, Channel.EPOCH, Channel.GONE),
    }[role]
    root = root_of(federation)
    return f"{root}/{role.value}/{actor_id.hex()}/+", *(f"{root}/{channel.value}/all/+" for channel in broadcasts)


T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}  # an ordered set


class FilterTree(Generic[T]):
    """A map from topics, or topic filters with the single-level wildcard ``+``, to values: a tree of topic levels.

    A broker that tests every filter for every message spends its time on filters that do not match. At each node, the
    tree follows at most two branches: the level's name and ``+``.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, topic_filter: str, value: T) -> None:
        """Add `value` under `topic_filter`, unless it is there."""
        node = self._root
        for level in topic_filter.split("/"):
            node = node.children.setdefault(level, _Node())
        node.values[value] = None

    def matching(self, topic: str) -> Iterator[T]:
        """Yield the values of each filter that matches `topic`."""
        nodes = [self._root]
        for level in topic.split("/"):
            nodes = [child for node in nodes for child in map(node.children.get, (level, "+")) if child is not None]
        for node in nodes:
            yield from node.values
