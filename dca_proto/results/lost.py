"""The Compute nodes in the records of a round and of a status: those it had, and those that did not answer."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

from dca_proto.quorum import Quorum
from dca_proto.results.figure import about
from dca_proto.wording import iso


class Lost(msgspec.Struct, frozen=True):
    """A Compute node that did not answer."""

    node: Annotated[str, about("Its name.")]
    since: Annotated[str, about("When it was last heard, or first awaited: UTC, in ISO 8601.")]


class OfQuorum(TypedDict):
    """The fields of a round that name its Compute nodes."""

    computes: list[str]
    p: int | None
    lost: list[Lost]


def fields_of(quorum: Quorum) -> OfQuorum:
    """Return the fields of a round that name its Compute nodes, and those that were lost."""
    lost = [Lost(one.node, iso(one.since_ms)) for one in quorum.lost]
    return {"computes": [*quorum.nodes], "p": quorum.p if quorum.nodes else None, "lost": lost}
