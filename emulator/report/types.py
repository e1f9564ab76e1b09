"""What numbers of a run's JSON may be, so that no page has to ask again: finite, and in a range that can be drawn."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e100)]
Real = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
MIB = 1 << 20
"""Bytes in what `peak_rss_mb` counts."""


class Traffic(msgspec.Struct, frozen=True):
    """What the actors of a role sent."""

    messages: Count
    bytes: Amount
