"""Sentences on Compute nodes that do not answer, for a trainer's terminal and its status."""

from __future__ import annotations

from collections.abc import Callable

from dca_proto.protocol.facts import NodesSilent
from dca_proto.wording import duration, listed, moment


def silent_words(fact: NodesSilent, name_of: Callable[[bytes], str]) -> str:
    """Return which Compute nodes are missing, since when, what the trainer does about it, and what it costs."""
    names, others = (listed([name_of(node) for node in nodes]) for nodes in (fact.computes, fact.others))
    if not fact.computes:
        return "all Compute nodes answer again"
    is_one = len(fact.computes) == 1
    has = f"{names} {'has' if is_one else 'have'} not answered for {duration(fact.waited_ms)}"
    pronoun = "it" if is_one else "them"
    paid = f"clients have paid, and charges stay at least until {'it is' if is_one else 'they are'} back"
    left = (
        f" until {moment(fact.until_ms)}; {paid if fact.is_charged else 'nothing is charged'}" if fact.until_ms else ""
    )
    if not fact.others:
        return f"no Compute node has answered for {duration(fact.waited_ms)}; is the connection up? waiting{left}"
    if fact.spare < 0:
        return f"{has}; the others are too few to go on without {pronoun}, so rounds wait for {pronoun}{left}"
    return f"{has}: going on with {others}; {spare_words(fact.spare)}"


def spare_words(spare: int) -> str:
    """Return how many more nodes may be lost."""
    return f"{spare} more may be lost" if spare > 0 else "one more may not be lost"
