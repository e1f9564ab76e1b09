"""Work for the processes of a test's sweep: functions that a new process imports by name."""

from __future__ import annotations

import os

import msgspec
import numpy as np

from emulator.shape import ALARM, NoiseTable, Shape, largest_of_gaussian, of_gaussian
from emulator.trials.outcome import Ended, InvariantOutcome, Outcome, RoundOutcome


def nothing(seed: int) -> Outcome:
    """Return a trial in which all invariants hold."""
    rounds = (RoundOutcome(round_id="00", result="completed"),)
    ended = Ended(result="ok", rounds=rounds, live=True, further="completed")
    held = InvariantOutcome(number=1, name="one", checked=2, ok=True)
    return Outcome(ok=True, digest="", ended=ended, invariants=(held,), seed=seed)


def dies_at_three(seed: int) -> Outcome:
    """Kill its process at 3."""
    if seed == 3:
        os._exit(7)
    return nothing(seed)


def always_dies(seed: int) -> Outcome:
    """Kill its process, always."""
    os._exit(9)


def raises_at_two(seed: int) -> Outcome:
    """Raise at 2."""
    if seed == 2:
        raise ValueError("a bug of the emulator")
    return nothing(seed)


def breaks_the_third(seed: int) -> Outcome:
    """A trial in which an invariant is broken."""
    facts = ("the last one",)
    broken = InvariantOutcome(number=3, name="three", checked=5, ok=False, detail="two sums", facts=facts)
    return msgspec.structs.replace(nothing(seed), ok=False, invariants=(broken,))


def clips_noise(seed: int) -> Outcome:
    """A trial whose noise is clipped at three standard deviations; its draws alone are too few to show that."""
    dither, variance, made = np.random.default_rng(seed), 2**40, Shape()
    noise = np.rint(dither.normal(0, 2**20, (2, 4_000))).astype(np.int64).clip(-3 * 2**20, 3 * 2**20)
    table = NoiseTable("Gaussian noise", of_gaussian(noise, variance, dither), noise, largest_of_gaussian(variance))
    made.count(table, dither)
    return msgspec.structs.replace(nothing(seed), ok=not made.verdict(ALARM).broken, shape=made)
