"""How many Python functions a contribution calls at each actor: what a host or a node does once must stay once.

Calls are counted and not seconds, so a busy machine changes nothing. A limit is a little above what Python 3.11 counts;
later versions count fewer, because a comprehension is no call there.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import numpy as np
import pytest
from round_helpers import begin, results

from dca_proto.protocol.actor import BaseActor
from dca_proto.protocol.effects import Effect
from dca_proto.protocol.events import Event
from dca_proto.testing import TestFederation

FEW, MANY = 10, 30
CALLS_MAX = {"Client": 150, "ComputeNode": 57}


class Counted:
    """Counts the calls of Python functions within `handle`, by the class of the actor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        handle = BaseActor.handle

        def counted(actor: BaseActor[object], event: Event, now_ms: int) -> list[Effect]:
            role, before = type(actor).__name__, sys.getprofile()

            def note(frame: FrameType, event: str, argument: object) -> None:
                self.calls[role] += event == "call"

            sys.setprofile(note)
            try:
                return handle(actor, event, now_ms)
            finally:
                sys.setprofile(before)

        monkeypatch.setattr(BaseActor, "handle", counted)


def calls_of_a_round(clients: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the calls of the second round of a federation: in the first, each pair agrees on a key."""
    actors = TestFederation(clients, 3, rows=np.full((clients, 1, 1), 0.5))
    network = actors.network()
    network.deliver()
    begin(actors, network, statistic="histogram", parameters={"columns": ["x"], "edges": list(range(11))})
    with monkeypatch.context() as patched:
        counted = Counted(patched)
        begin(actors, network, statistic="histogram", parameters={"columns": ["x"], "edges": list(range(11))})
    assert len(results(network)) == 2
    return counted.calls


def test_a_contribution_calls_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (calls_of_a_round(clients, monkeypatch) for clients in (FEW, MANY))
    of_each = {role: (many[role] - few[role]) / (MANY - FEW) for role in CALLS_MAX}
    assert {role: calls for role, calls in of_each.items() if calls > CALLS_MAX[role]} == {}
