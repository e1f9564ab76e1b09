"""The inbox and the filters behind every transport."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dca_proto.errors import TransportError
from dca_proto.protocol.wire.topics import FilterTree
from dca_proto.runtime.parts import split
from dca_proto.runtime.transport import CLIENT_LIMITS, Inbox, InboxLimits, Message

LEVELS = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=4)
FILTERS = st.lists(st.sampled_from(["a", "b", "c", "", "+"]), min_size=1, max_size=4)


@given(st.lists(FILTERS, max_size=8), LEVELS)
def test_the_tree_matches_filters_level_by_level(filters: list[list[str]], levels: list[str]) -> None:
    tree: FilterTree[str] = FilterTree()
    for each in filters:
        tree.add("/".join(each), "/".join(each))
    expected = {
        "/".join(each)
        for each in filters
        if len(each) == len(levels) and all(f in ("+", level) for f, level in zip(each, levels, strict=True))
    }
    found = list(tree.matching("/".join(levels)))
    assert sorted(found) == sorted(expected)


def test_messages_without_a_subscription_are_dropped() -> None:
    async def scenario() -> None:
        inbox = Inbox(("mine/+",))
        inbox.offer("others/x", b"\x00no")
        inbox.offer("mine/x", b"\x00yes")
        assert await inbox.take() == Message("mine/x", b"yes")
        assert inbox.dropped == {"not subscribed": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize("limits", [InboxLimits(messages_max=3), InboxLimits(bytes_max=3 * (1000 + 512))])
def test_a_full_inbox_drops_the_newest_and_takes_again_when_read(limits: InboxLimits) -> None:
    async def scenario() -> None:
        inbox = Inbox(("x/+",), limits)
        for number in range(5):
            inbox.offer(f"x/{number}", bytes([0, number]) + bytes(999))
        assert inbox.dropped == {"inbox full": 2}
        assert [(await inbox.take()).payload[0] for _ in range(3)] == [0, 1, 2]
        inbox.offer("x/9", b"\x00\x09")
        assert (await inbox.take()).payload == b"\x09"

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 1000, 50_000])
def test_a_flood_of_parts_stays_within_what_a_client_has_and_lets_an_announcement_through(size: int) -> None:
    """Measured: unsigned parts from 10,000 made-up senders, and as many whole messages."""
    rng = random.Random(2)
    inbox = Inbox(("x/+",), CLIENT_LIMITS)
    tracemalloc.start()
    try:
        for number in range(10_000):
            head = b"\x01" + rng.randbytes(16) + rng.randrange(4096).to_bytes(2, "big") + b"\x10\x00"
            inbox.offer(f"x/{number}", head + bytes(size))
            inbox.offer(f"x/{number}", bytes(1 + number % 5000))
        allocated_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 4 << 20 < allocated_bytes < 12 << 20  # both are full, and what Python's own objects add is small
    asyncio.run(drained(inbox))
    announcement = rng.randbytes((1 << 20) + 200)
    for part in split(announcement, 4096):
        inbox.offer("x/honest", part)
    assert asyncio.run(inbox.take()).payload == announcement


async def drained(inbox: Inbox) -> None:
    while inbox._waiting:
        await inbox.take()


def test_a_failure_comes_after_what_waits_and_the_first_stands() -> None:
    async def scenario() -> None:
        inbox = Inbox(("x",))
        inbox.offer("x", b"\x00last")
        inbox.fail(TransportError("first"))
        inbox.fail(TransportError("second"))
        assert (await inbox.take()).payload == b"last"
        with pytest.raises(TransportError, match="first"):
            await inbox.take()

    asyncio.run(scenario())


def test_messages_do_not_show_their_payloads() -> None:
    assert "hidden" not in repr(Message("t", b"hidden"))
