"""MQTT topic filters with the single-level wildcard ``+``, found by walking a tree of levels.

A broker that asks every filter for every message spends its time on the hundreds that do not match; the tree visits
two branches a level at most: the level itself and ``+``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}  # a set that keeps its order


class FilterTree(Generic[T]):
    """Values filed under topic filters, or under topics."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, topic_filter: str, value: T) -> None:
        """File `value` under `topic_filter`; filing it twice changes nothing."""
        node = self._root
        for level in topic_filter.split("/"):
            node = node.children.setdefault(level, _Node())
        node.values[value] = None

    def matching(self, topic: str) -> Iterator[T]:
        """The values whose filters match `topic`, each filter's once."""
        nodes = [self._root]
        for level in topic.split("/"):
            nodes = [child for node in nodes for child in map(node.children.get, (level, "+")) if child is not None]
        for node in nodes:
            yield from node.values

    def has_topic(self, topic_filter: str) -> bool:
        """Whether a topic that something is filed under matches `topic_filter`."""
        nodes = [self._root]
        for level in topic_filter.split("/"):
            found = [node.children.values() if level == "+" else _only(node.children.get(level)) for node in nodes]
            nodes = [child for children in found for child in children]
        return any(node.values for node in nodes)


def _only(child: _Node[T] | None) -> tuple[_Node[T], ...]:
    return () if child is None else (child,)
