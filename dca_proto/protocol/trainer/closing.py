"""When a trainer closes a round: as soon as nothing more can be expected (DESIGN §4.8).

A round closes when all expected contributions are there, when it is full, or when enough have come and arrivals have
gone quiet. *Quiet* means that nothing has come for `Timing.quiet_ms`, and for `Timing.quiet_part` of the time from the
announcement to the last arrival: a swarm that answers over an hour is given half an hour more. The rest is up to
`close_by`. To close early costs stragglers their charge and nobody's privacy.
"""

from __future__ import annotations

from dca_proto.protocol.params import Timing

ALL, FULL, QUIET, DEADLINE = "all", "full", "quiet", "deadline"


class Arrivals:
    """How many contributions the holders keep, and when the last ones came.

    Args:
        announced_ms: when the round was announced.

    Attributes:
        counts: what each Compute node keeps, as it last said.
    """

    def __init__(self, announced_ms: int) -> None:
        self._announced_ms = announced_ms
        self._last_ms = announced_ms
        self.counts: dict[bytes, int] = {}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def note(self, compute: bytes, count: int, now_ms: int) -> bool:
        """A node's count; whether it is news. A count never shrinks."""
        if count <= self.counts.get(compute, -1):
            return False
        self.counts[compute] = count
        if count:
            self._last_ms = now_ms
        return True

    def reason(self, expected: int | None, fewest: int, most: int, timing: Timing, now_ms: int) -> str | None:
        """Why to close now, or None.

        Args:
            expected: how many contributions may still be hoped for in all; None where nobody knows.
            fewest, most: n_min and n_max.
        """
        quiet = now_ms >= self.quiet_ms(timing)
        if self.has_all(expected) and (self.total >= fewest or quiet or not expected):
            return ALL
        if self.total >= most:
            return FULL
        return QUIET if self.total >= fewest and quiet else None

    def has_all(self, expected: int | None) -> bool:
        """Whether as many have come as may be hoped for; perhaps too few, if many declined."""
        return expected is not None and self.total >= expected

    def quiet_ms(self, timing: Timing) -> int:
        """When arrivals are quiet, if nothing more comes."""
        taken_ms = self._last_ms - self._announced_ms
        return self._last_ms + max(timing.quiet_ms, int(timing.quiet_part * taken_ms))
