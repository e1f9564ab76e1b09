"""Messages and bytes that the actors of each role sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emulator.report.bars import Bar, bars
from emulator.report.figures import count, size
from emulator.report.markup import Child, element
from emulator.report.types import Traffic


def traffic(roles: Mapping[str, Traffic]) -> Iterator[Child]:
    """Two charts of bars."""
    yield element("h3", "Messages sent")
    rows = [Bar(role, one.messages, count(one.messages), 0) for role, one in roles.items()]
    yield bars(rows, caption=f"{count(sum(one.messages for one in roles.values()))} messages in all, by role.")
    yield element("h3", "Bytes sent")
    rows = [Bar(role, one.bytes, size(one.bytes), 2) for role, one in roles.items()]
    yield bars(rows, caption=f"{size(sum(one.bytes for one in roles.values()))} of payload in all, by role.")
