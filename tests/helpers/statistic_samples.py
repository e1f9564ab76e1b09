"""The examples of every built-in statistic, for tests that loop over the registry."""

from __future__ import annotations

from typing import Any

from dca_proto.statistics import Statistic
from dca_proto.statistics.base import built_in

BOX: dict[str, Any] = {"columns": ("a", "b"), "centre": (0.0, 0.0), "scale": (1.0, 1.0), "bound": (1.0, 3.0)}
THREE: dict[str, Any] = {
    "columns": ("a", "b", "y"),
    "centre": (0.0,) * 3,
    "scale": (1.0,) * 3,
    "bound": (1.0, 3.0, 2.0),
}
KINDS = built_in()
"""The built-in statistics; other tests register some of their own."""
STATISTICS: list[Statistic] = [example for kind in KINDS.values() for example in kind.examples()]
