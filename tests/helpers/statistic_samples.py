"""The examples of every built-in statistic, for tests that loop over the registry."""

from __future__ import annotations

from typing import Any

from dca_proto.statistics import Statistic, base, registered

BOX: dict[str, Any] = {"columns": ("a", "b"), "centre": (0.0, 0.0), "scale": (1.0, 1.0), "bound": (1.0, 3.0)}
THREE: dict[str, Any] = {
    "columns": ("a", "b", "y"),
    "centre": (0.0,) * 3,
    "scale": (1.0,) * 3,
    "bound": (1.0, 3.0, 2.0),
}
KINDS: dict[str, type[Statistic]] = {
    name: base._REGISTRY[name] for name in registered() if base._REGISTRY[name].__module__.startswith("dca_proto.")
}
"""The built-in statistics; other tests register some of their own."""
STATISTICS: list[Statistic] = [example for kind in KINDS.values() for example in kind.examples()]
