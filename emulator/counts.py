"""Checks of a round's counts (N, M, T, c, K), before anything is started."""

from __future__ import annotations

from dca_proto.errors import UsageError
from dca_proto.protocol.params import Limits
from dca_proto.protocol.wire.fields import COMPUTES_MAX


def check_nodes(nodes: int, rows: int, dropped: int, least: int = 1) -> None:
    """Refuse numbers of data nodes, rows and drop-outs that no round of node releases can have.

    Args:
        least: the number of rows that the job needs at each data node.

    Raises:
        UsageError: a number is impossible; the message names the option to change.
    """
    if not 1 <= nodes <= rows:
        raise UsageError(f"--data-nodes {nodes}: expected 1 to {rows}, the number of training rows")
    if not 0 <= dropped < nodes:
        raise UsageError(
            f"--drop {dropped}: 0 to {nodes - 1} of {nodes} data nodes may drop, for at least one has to release"
        )
    if rows // nodes < least:
        most = rows // least
        remedy = f"lower --data-nodes to {most}" if most else "bring more rows"
        raise UsageError(
            f"--data-nodes {nodes}: each data node would get {rows // nodes} of the {rows} training rows, and the job "
            f"needs {least} with these settings; {remedy}, or choose others with --set"
        )


def check_reporters(clients: int, dropped: int) -> None:
    """Refuse to let all clients of a round of LDP reports drop. Raises `UsageError`."""
    if not 0 <= dropped < clients:
        raise UsageError(
            f"--drop {dropped}: 0 to {clients - 1} of {clients} clients may drop, for at least one has to report"
        )


def check_clients(clients: int, option: str = "--clients") -> None:
    """Refuse more clients than a round can have, before memory is allocated for them. Raises `UsageError`."""
    if clients > Limits().clients_max:
        raise UsageError(f"{option} {clients}: a round takes at most {Limits().clients_max}; lower it")


def check_counts(clients: int, computes: int, tolerated: int, colluders: int, dropped: int) -> None:
    """Refuse numbers that no secure sum can have. Raises `UsageError` that names the number to change."""
    check_clients(clients)
    if computes < 2:
        raise UsageError(f"M = {computes} Compute nodes; need at least 2, so that no one of them sees a sum")
    if computes > COMPUTES_MAX:
        raise UsageError(f"M = {computes} Compute nodes; at most {COMPUTES_MAX} may take part, lower --computes")
    if min(tolerated, colluders, dropped) < 0:
        raise UsageError("T, c and K cannot be below 0")
    if tolerated >= clients:
        raise UsageError(f"T = {tolerated} is not below N = {clients}; lower --tolerate")
    if dropped >= clients:
        raise UsageError(f"K = {dropped} dropping clients is not below N = {clients}; lower --drop")
    if colluders > tolerated:
        raise UsageError(f"c = {colluders} exceeds T = {tolerated}; lower --colluders or raise --tolerate")
    if clients - tolerated - 1 < 1:
        raise UsageError(
            f"N - T - 1 = {clients - tolerated - 1} is below 1: no honest noise would be left; lower --tolerate"
        )
