"""Checks of how many data nodes, rows and clients take part and drop out; `Terms.check` has those of N, M, T and c."""

from __future__ import annotations

from dca_proto.errors import UsageError


def check_nodes(nodes: int, rows: int, dropped: int, least: int = 1) -> None:
    """Refuse numbers of data nodes, rows and drop-outs that no round of node releases can have.

    Args:
        least: the number of rows that the job needs at each data node.

    Raises:
        UsageError: a number is impossible; the message names the option to change.
    """
    if not 1 <= nodes <= rows:
        raise UsageError(f"--data-nodes {nodes}: expected 1 to {rows}, the number of training rows")
    check_dropped(dropped, nodes, "data node", "release")
    if rows // nodes < least:
        most = rows // least
        remedy = f"lower --data-nodes to {most}" if most else "bring more rows"
        raise UsageError(
            f"--data-nodes {nodes}: each data node would get {rows // nodes} of the {rows} training rows, and the job "
            f"needs {least} with these settings; {remedy}, or choose others with --set"
        )


def check_dropped(dropped: int, clients: int, who: str = "client", answer: str = "contribute") -> None:
    """Refuse to let all participants of a round drop. Raises `UsageError`.

    Args:
        who: a participant. answer: what at least one has to do.
    """
    if not 0 <= dropped < clients:
        raise UsageError(
            f"--drop {dropped}: 0 to {clients - 1} of {clients} {who}s may drop, for at least one has to {answer}"
        )
