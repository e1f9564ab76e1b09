"""Topics: one shape for all, and who listens to what."""

from __future__ import annotations

import pytest

from dca_proto.core.effects import Address, Channel
from dca_proto.core.errors import PeerError
from dca_proto.core.topics import sender_of, subscriptions, topic_of

ME, YOU, ROUND = bytes(16), b"\xff" * 16, b"\xab" * 16


def matches(pattern: str, topic: str) -> bool:
    """MQTT's rule for filters without `#`."""
    one, other = pattern.split("/"), topic.split("/")
    return len(one) == len(other) and all(want in ("+", have) for want, have in zip(one, other, strict=True))


@pytest.mark.parametrize("channel", list(Channel))
def test_a_topic_names_its_sender_last(channel: Channel) -> None:
    to = Address(channel) if channel.is_broadcast else Address(channel, YOU)
    topic = topic_of("fed", to, ROUND, ME)
    assert topic.split("/")[-1] == ME.hex()
    assert sender_of(topic) == ME
    assert topic == f"dca/fed/{'ab' * 16}/{channel.value}/{'all' if channel.is_broadcast else YOU.hex()}/{ME.hex()}"


def test_what_belongs_to_no_round_says_so() -> None:
    assert topic_of("fed", Address(Channel.EPOCH), b"", ME).split("/")[2] == "-"


@pytest.mark.parametrize(
    "topic", ["", "dca", "dca/f/r/client/x", "dca/f/r/client/x/00/more", "abc/f/r/client/x/00", "dca/f/r/nobody/x/00",
              "dca/f/r/client/x/zz", "dca/f/r/client/x/000"],
)  # fmt: skip
def test_another_shape_is_a_peers_error(topic: str) -> None:
    with pytest.raises(PeerError, match="topic"):
        sender_of(topic)


@pytest.mark.parametrize(
    ("role", "broadcasts"),
    [
        (Channel.CLIENT, {Channel.ANNOUNCE, Channel.ABORT}),
        (Channel.COMPUTE, {Channel.ABORT, Channel.HELLO}),
        (Channel.TRAINER, {Channel.ABORT, Channel.EPOCH}),
    ],
)
def test_an_actor_hears_its_inbox_and_its_broadcasts_and_nothing_else(role: Channel, broadcasts: set[Channel]) -> None:
    filters = subscriptions("fed", role, ME)
    for channel in Channel:
        for receiver in (ME, YOU):
            to = Address(channel) if channel.is_broadcast else Address(channel, receiver)
            topic = topic_of("fed", to, ROUND, YOU)
            hears = channel in broadcasts or (channel is role and receiver == ME)
            assert any(matches(one, topic) for one in filters) == hears
    elsewhere = topic_of("other", Address(role, ME), ROUND, YOU)
    assert not any(matches(one, elsewhere) for one in filters)
