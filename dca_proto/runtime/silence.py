"""Sentences on Compute nodes that do not answer, for a trainer's terminal and its status."""

from __future__ import annotations

from collections.abc import Callable

from dca_proto.protocol.facts import NodesSilent
from dca_proto.wording import duration, listed, moment, unanswered


def silent_words(fact: NodesSilent, name_of: Callable[[bytes], str]) -> str:
    """Return which Compute nodes are missing, since when, what the trainer does about it, and what it costs."""
    if not fact.computes:
        return "all Compute nodes answer again"
    is_one, others = len(fact.computes) == 1, listed([name_of(node) for node in fact.others])
    has = unanswered([name_of(node) for node in fact.computes], fact.waited_ms)
    left = f" until {moment(fact.until_ms)}; {_cost_words(fact)}" if fact.until_ms else ""
    if not fact.others:
        return f"no Compute node has answered for {duration(fact.waited_ms)}; is the connection up? waiting{left}"
    if fact.is_released:
        sent = f"others have sent their parts of the sum, and a result needs {'its' if is_one else 'their'} part, too"
        return f"{has}; {sent}, so the round waits{left}"
    if fact.spare < 0:
        answer = f"{len(fact.others)} {'answers' if len(fact.others) == 1 else 'answer'}"
        needed = f"a round needs {len(fact.others) - fact.spare} Compute nodes, and {answer}"
        return f"{has}; {needed}, so it waits{left}"
    return f"{has}: going on with {others}; {spare_words(fact.spare)}"


def _cost_words(fact: NodesSilent) -> str:
    """Return who has paid, and how many of the silent nodes have to be back before charges can return."""
    if not fact.is_charged:
        return "nothing is charged"
    if fact.is_released:
        return "clients have paid"
    number, lost = -fact.spare, len(fact.computes)
    back = "it is" if lost == 1 else "they are"
    if 0 < number < lost:
        back = "one of them is" if number == 1 else f"{number} of them are"
    return f"clients have paid, and charges stay at least until {back} back"


def spare_words(spare: int) -> str:
    """Return how many more nodes may be lost."""
    return f"{spare} more may be lost" if spare > 0 else "one more may not be lost"
