#!/usr/bin/env python
"""Writes the session diagrams of DESIGN §9 from the actors' literal tables.

    scripts/make_diagrams.py                  writes them into dca_proto/DESIGN.md
    scripts/make_diagrams.py --check          compares only; exit code 1 if they differ

`tests/test_tidy.py` runs the comparison.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from dca_proto.protocol.actor import Table
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.trainer import round as trainer_round

DESIGN = Path(__file__).parent.parent / "dca_proto" / "DESIGN.md"
BEGIN, END = "<!-- diagrams -->", "<!-- /diagrams -->"


def diagram(title: str, table: Table) -> str:
    """Return a Mermaid state diagram; events that keep the phase get one line each."""
    moves, stays = defaultdict(list), defaultdict(list)
    for (phase, event), after in table.items():
        (stays[phase] if after == phase else moves[phase, after]).append(event)
    lines = [f"**{title}**", "", "```mermaid", "stateDiagram-v2"]
    lines += [f"    {phase} --> {after}: {', '.join(events)}" for (phase, after), events in moves.items()]
    lines += [f"    {phase} --> {phase}: {', '.join(events)}" for phase, events in stays.items()]
    return "\n".join([*lines, "```"])


def generated() -> str:
    """Return all diagrams, as they stand between the markers."""
    named = (("Client", client_round.TABLE), ("Compute node", compute_round.TABLE), ("Trainer", trainer_round.TABLE))
    return "\n\n".join(diagram(title, table) for title, table in named)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    text = DESIGN.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    wanted = f"{head}{BEGIN}\n{generated()}\n{END}{tail}"
    if options.check:
        return int(text != wanted)
    DESIGN.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
