"""Topics: one shape for all, and who listens to what."""

from __future__ import annotations

import pytest

from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.topics import may_be_retained, sender_of, subscriptions, topic_of

ME, YOU = bytes(16), b"\xff" * 16
FEDERATION, OTHER = b"\x0f" * 16 + bytes(16), b"\xf0" * 32


ID = ME.hex()


def matches(pattern: str, topic: str) -> bool:
    """MQTT's rule for filters without `#`."""
    one, other = pattern.split("/"), topic.split("/")
    return len(one) == len(other) and all(want in ("+", have) for want, have in zip(one, other, strict=True))


@pytest.mark.parametrize("channel", list(Channel))
def test_hardening_5_a_topic_names_its_sender_last(channel: Channel) -> None:
    to = Address(channel) if channel.is_broadcast else Address(channel, YOU)
    topic = topic_of(FEDERATION, to, ME)
    assert topic.split("/")[-1] == ME.hex()
    assert sender_of(topic) == ME
    assert topic == f"dca/{'0f' * 16}/{channel.value}/{'all' if channel.is_broadcast else YOU.hex()}/{ME.hex()}"


@pytest.mark.parametrize("channel", list(Channel))
def test_hardening_5_only_keys_and_federation_files_may_have_been_retained(channel: Channel) -> None:
    to = Address(channel) if channel.is_broadcast else Address(channel, YOU)
    assert may_be_retained(topic_of(FEDERATION, to, ME)) == (
        channel in (Channel.EPOCH, Channel.HELLO, Channel.FEDERATION)
    )
    assert not may_be_retained(f"dca/{ID}/{channel.value}/{YOU.hex()}/{ME.hex()}")


@pytest.mark.parametrize(
    "topic", ["", "dca", f"dca/{ID}/client/x", f"dca/{ID}/client/x/{ID}/more", f"abc/{ID}/client/x/{ID}",
              f"dca/{ID}/nobody/x/{ID}", f"dca/{ID}/-/client/x/{ID}", f"dca/{ID}/client/x/{'z' * 32}",
              f"dca/{ID}/client/x/{ID}0", f"dca/demo/client/x/{ID}", f"dca/{ID}0/client/x/{ID}"],
)  # fmt: skip
def test_hardening_1_another_shape_is_a_peers_error(topic: str) -> None:
    with pytest.raises(PeerError, match="topic"):
        sender_of(topic)


@pytest.mark.parametrize(
    ("role", "broadcasts"),
    [
        (Channel.CLIENT, {Channel.FEDERATION, Channel.ANNOUNCE, Channel.ABORT}),
        (Channel.COMPUTE, {Channel.FEDERATION, Channel.ABORT, Channel.HELLO, Channel.GONE}),
        (Channel.TRAINER, {Channel.FEDERATION, Channel.ABORT, Channel.EPOCH, Channel.GONE}),
    ],
)
def test_an_actor_hears_its_inbox_and_its_broadcasts_and_nothing_else(role: Channel, broadcasts: set[Channel]) -> None:
    filters = subscriptions(FEDERATION, role, ME)
    for channel in Channel:
        for receiver in (ME, YOU):
            to = Address(channel) if channel.is_broadcast else Address(channel, receiver)
            topic = topic_of(FEDERATION, to, YOU)
            hears = channel in broadcasts or (channel is role and receiver == ME)
            assert any(matches(one, topic) for one in filters) == hears
    elsewhere = topic_of(OTHER, Address(role, ME), YOU)
    assert not any(matches(one, elsewhere) for one in filters)
