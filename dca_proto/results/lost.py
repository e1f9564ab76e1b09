"""The record of a Compute node that did not answer: in a round's record, and in a trainer's status."""

from __future__ import annotations

from typing import Annotated

import msgspec

from dca_proto.results.figure import about


class Lost(msgspec.Struct, frozen=True):
    """A Compute node that did not answer."""

    node: Annotated[str, about("Its name.")]
    since: Annotated[str, about("When it was last heard, or first awaited: UTC, in ISO 8601.")]
