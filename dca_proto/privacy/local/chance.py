"""Probabilities 1/(e^s + r), to any number of bits, and events of exactly that probability.

All local mechanisms are built from them: e^-s (r = 0), the logistic 1/(e^s + 1), and the k-ary 1/(e^s + k - 1). For a
rational s > 0 the number e^s is transcendental (Lindemann 1882), so none of these is a dyadic rational. Its bits are
computed in decimal arithmetic with a bound on the error, at growing precision until they are certain.

An event happens if a uniform U < p. The stream gives U's first `HEAD_BITS` bits; if they equal p's, further bits
decide. No binary floating-point number takes part.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import count as naturals

import msgspec

from dca_proto.privacy.noise import decimal_context

HEAD_BITS = 32
_WORD_BITS = 64
_ERROR = 10  # see first_bits


class Chance(msgspec.Struct, frozen=True):
    """The probability 1/(e^s + r).

    Attributes:
        exponent: s > 0. rest: r >= 0.
    """

    exponent: Fraction
    rest: int

    def first_bits(self, count: int) -> int:
        """⌊p 2^count⌋, exactly.

        At n digits the quotient s is off by 10^(1-n)/2 of itself, so e^s by a factor within 1 ± s 10^(1-n); rounding
        exp, the sum, the quotient and the product with 2^count adds less than 4 · 10^(1-n). (p lies strictly between
        two integers as soon as both ends of the interval do.)
        """
        for digits in naturals(start=count // 3 + 30, step=20):
            with localcontext(decimal_context(digits)):
                s = Decimal(self.exponent.numerator) / self.exponent.denominator
                scaled = (1 / (s.exp() + self.rest)) * (1 << count)
                error = scaled * (s + _ERROR).scaleb(1 - digits)
                low, high = int(scaled - error), int(scaled + error)
            if low == high:
                return low
        raise AssertionError("the digits have no end")

    def decides(self, further: Iterator[int], head: int = 0, size: int = 0) -> bool:
        """Return True if U < p, where the first `size` bits of U are `head` and words of 64 bits follow."""
        while head == (bits := self.first_bits(size)):
            head, size = head << _WORD_BITS | next(further), size + _WORD_BITS
        return head < bits

    def run(self, further: Iterator[int]) -> int:
        """Return how often the event happens before it first fails: geometric, P(n) = (1 - p) p^n."""
        length = 0
        while self.decides(further):
            length += 1
        return length
