"""The Compute nodes of a round, in its result or its failure: over which it ran, and which it lost (DESIGN §4.8).

Results, failures, journals and the records of `dca_proto.results` hold it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LostNode:
    """A Compute node that did not answer.

    Attributes:
        node: its name. since_ms: when the trainer last heard it or began to wait for it, in Unix milliseconds.
    """

    node: str
    since_ms: int


@dataclass(frozen=True)
class Quorum:
    """Over which Compute nodes a round ran.

    Attributes:
        nodes: the names of K. p: how many of them may be corrupt.
        lost: the nodes without which this round or one that it repeats had to do. A node that answered late is not
            among them.
    """

    nodes: tuple[str, ...] = ()
    p: int = 0
    lost: tuple[LostNode, ...] = ()


NO_NODES = Quorum()
"""Of a round without Compute nodes, or whose nodes are not known."""
