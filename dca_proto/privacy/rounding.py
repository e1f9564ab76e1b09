"""Privacy figures for people, rounded to the safe side.

An ε, δ or μ that is spent, claimed or allowed is never printed below its value (`at_least`). The rest of a budget, the
most that a request may ask for, and a bound proved by an attack are never printed above it (`at_most`).
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from math import isfinite

DIGITS = 4


def at_least(value: float, digits: int = DIGITS) -> str:
    """Format with at most `digits` significant digits, rounded up: 1e-05 · 0.5632 · 2; "inf" if there is no bound."""
    return _rounded(value, Context(digits, ROUND_CEILING))


def at_most(value: float, digits: int = DIGITS) -> str:
    """Format with at most `digits` significant digits, rounded down."""
    return _rounded(value, Context(digits, ROUND_FLOOR))


def claim_words(epsilon: float, delta: float) -> str:
    """Format a pair (ε, δ) for people: epsilon 2, delta 1e-05."""
    return f"epsilon {at_least(epsilon)}, delta {at_least(delta)}"


def _rounded(value: float, context: Context) -> str:
    if not isfinite(value):
        return str(value)
    return f"{float(context.create_decimal(repr(float(value)))):.15g}"
