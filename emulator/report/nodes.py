"""What data nodes released by themselves in a local round, and what the draws of a posterior are worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from emulator.report.figures import UNKNOWN, count, number, seconds
from emulator.report.markup import Child, table
from emulator.report.page import note
from emulator.report.types import Amount, Count

_NODES_MAX = 200


class Node(msgspec.Struct, frozen=True):
    """A data node's release: how many rows it is of, and the standard deviation of its noise."""

    number: Count
    rows: Count
    noise_sd: Amount


class Sampling(msgspec.Struct, frozen=True):
    """Draws of a posterior, and how well their chains agree; what closed forms have not is None."""

    method: str
    chains: Count
    draws: Count
    seconds: Amount | None = None
    r_hat_max: Amount | None = None
    ess_bulk_min: Amount | None = None
    ess_tail_min: Amount | None = None
    acceptance: dict[str, Amount] = {}
    divergences: Count | None = None


def released(nodes: Sequence[Node]) -> Iterator[Child]:
    """One line for each data node."""
    if not nodes:
        return
    yield note(
        "Each data node added the whole noise for one row by itself, before anything left it; how many rows it has is "
        "public."
    )
    rows = [(str(one.number), count(one.rows), number(one.noise_sd)) for one in nodes[:_NODES_MAX]]
    yield table(("data node", "rows", "noise in each value (sd)"), rows)


def worth(sampling: Sampling | None) -> Iterator[Child]:
    """What the draws are worth, figure by figure."""
    if sampling is None:
        return
    rows = [
        ("method", sampling.method),
        ("chains × draws", f"{count(sampling.chains)} × {count(sampling.draws)}"),
        ("R-hat, at most", UNKNOWN if sampling.r_hat_max is None else f"{sampling.r_hat_max:.4f}"),
        ("effective draws for the middle, at least", _whole(sampling.ess_bulk_min)),
        ("effective draws for the tails, at least", _whole(sampling.ess_tail_min)),
        *((f"accepted moves of {block}", f"{100 * rate:.0f} %") for block, rate in sampling.acceptance.items()),
        ("iterations that failed", count(sampling.divergences)),
        ("time", seconds(sampling.seconds)),
    ]
    if sampling.r_hat_max is None and not sampling.acceptance:
        yield note(f"Method {sampling.method} has the posterior in closed form; its draws are independent.")
        return
    yield table(("", "of the draws"), rows, text_columns=(0,))


def _whole(value: float | None) -> str:
    return UNKNOWN if value is None else count(round(value))
