"""What the workers of a test's sweep do: functions that a fresh process imports by their names."""

from __future__ import annotations

import os

import msgspec

from emulator.trials.outcome import Ended, InvariantOutcome, Outcome, RoundOutcome


def nothing(seed: int) -> Outcome:
    """A trial in which all holds."""
    rounds = (RoundOutcome(round_id="00", result="completed"),)
    ended = Ended(result="ok", rounds=rounds, live=True, further="completed")
    held = InvariantOutcome(number=1, name="one", checked=2, ok=True)
    return Outcome(ok=True, digest="", ended=ended, invariants=(held,), seed=seed)


def dies_at_three(seed: int) -> Outcome:
    """Takes its process with it."""
    if seed == 3:
        os._exit(7)
    return nothing(seed)


def always_dies(seed: int) -> Outcome:
    """Takes its process with it, always."""
    os._exit(9)


def raises_at_two(seed: int) -> Outcome:
    """Has a bug."""
    if seed == 2:
        raise ValueError("a bug of the emulator")
    return nothing(seed)


def breaks_the_third(seed: int) -> Outcome:
    """A trial in which an invariant is broken."""
    facts = ("the last one",)
    broken = InvariantOutcome(number=3, name="three", checked=5, ok=False, detail="two sums", facts=facts)
    return msgspec.structs.replace(nothing(seed), ok=False, invariants=(broken,))
