"""Each registered adversary does what its entry says: it is caught by the honest, or it spoils no more than stated."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from trial_helpers import check_trial, results, small

from dca_proto.protocol.facts import RoundCompleted
from emulator.trials.hostile import HOSTILE
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import Adversary, Fault

ABORTS, LEAVES_OUT, DROPPED, ACTS = "a round is aborted", "a client is left out", "messages are dropped", "it acts"
LATE = "a round completes after commit_by, once the trial has healed"
EFFECTS = {
    "out-of-range": ABORTS,
    "two-faced": DROPPED,
    "two-answers": ACTS,
    "wrong-tags": LEAVES_OUT,
    "reuse-charge": LEAVES_OUT,
    "wrong-holder": LEAVES_OUT,
    "sybil": LEAVES_OUT,
    "flood": DROPPED,
    "stranger": DROPPED,
    "copier": DROPPED,
    "misstate-client": DROPPED,
    "false-proof": LEAVES_OUT,
    "overstay": LEAVES_OUT,
    "misstate-node": ABORTS,
    "equivocate": ABORTS,
    "drop-clients": LEAVES_OUT,
    "make-up": LEAVES_OUT,
    "list-others": ABORTS,
    "list-twice": ABORTS,
    "alter-tags": LEAVES_OUT,
    "object": LEAVES_OUT,
    "withhold-answer": LATE,
    "alter-sum": ABORTS,
    "withhold-sum": LATE,
    "silent": ABORTS,
    "abort-late": ABORTS,
    "lie-waiting": LATE,
    "call-old": ACTS,
    "two-announcements": ABORTS,
    "announce-twice": ABORTS,
    "two-halves": LEAVES_OUT,
    "ask-too-much": ABORTS,
    "choose-nodes": ABORTS,
    "many-rounds": ABORTS,
    "ask-often": ACTS,
    "announce-wrongly": DROPPED,
    "old-keys": ACTS,
    "close-early": ACTS,
    "cancel-late": ACTS,
    "usurp": DROPPED,
}
HELPERS = {"make-up": Adversary(kind="sybil", actor="client 2")}
"""Without a silent client there is nobody to make a contribution up for."""
BESIDE = {"old-keys": (Fault(kind="epoch-turn", actor="broker", at_ms=5_000),)}
"""Without a new epoch there are no old keys."""


@cache
def trial(
    *adversaries: Adversary, faults: tuple[Fault, ...] = (), verified: bool = False
) -> tuple[Outcome, Counter[str], int]:
    """Return the outcome, the dropped messages, and the number of rounds that completed after `commit_by`."""
    terms = {"clients": 6, "computes": 3, "tolerate": 2, "count": 2, "every_ms": 9_000, "seed": 3}
    world, outcome = check_trial(small(*faults, adversaries=adversaries, verified=verified, **terms))
    dropped: Counter[str] = Counter()
    for machine in world.simulator.machines:
        if machine.actor is not None:
            dropped.update(machine.actor.dropped)
    window_ms = world.scenario.rounds.collect_ms + world.scenario.rounds.commit_ms
    completed = [log for log in world.rounds if isinstance(log.ended, RoundCompleted)]
    return outcome, dropped, sum(log.ended_ms > log.announced_ms + window_ms for log in completed)


def test_the_table_is_whole() -> None:
    assert EFFECTS.keys() == HOSTILE.keys()


@pytest.mark.parametrize("name", HOSTILE)
def test_each_adversary_takes_effect_and_breaks_no_invariant(name: str) -> None:
    kind = HOSTILE[name]
    actor = "stranger 0" if kind.is_stranger else {"trainer": "trainer"}.get(kind.role, f"{kind.role} 1")
    others = (HELPERS[name],) if name in HELPERS else ()
    faults = BESIDE.get(name, ())
    beside = {"faults": faults, "verified": kind.needs_proofs}
    honest, honest_drops, honest_late = trial(*others, **beside)
    found, drops, late = trial(*others, Adversary(kind=name, actor=actor), **beside)
    assert found.digest != honest.digest, "it changes nothing"
    if EFFECTS[name] == ABORTS:
        assert "aborted" in results(found)
        assert "aborted" not in results(honest)
    if EFFECTS[name] == LATE:
        assert results(found) == results(honest) == ["completed", "completed"]
        assert late > honest_late == 0
    if EFFECTS[name] == LEAVES_OUT:
        counts = [one.contributors for one in found.ended.rounds if one.contributors is not None]
        assert min(counts) < 6
    if EFFECTS[name] == DROPPED:
        assert (drops - honest_drops).total() > 0
    assert found.ended.further == "completed", "once it keeps to the protocol, a round completes"
