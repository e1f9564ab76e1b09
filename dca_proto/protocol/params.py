"""Every limit and timeout of the protocol: two frozen classes for an actor, one for a process; units last."""

from __future__ import annotations

import msgspec

from dca_proto.privacy.accounting import CLIENTS_MAX

PROTOCOL_VERSION = 4
"""Raised with every change of a message or of what is signed since the first release (DESIGN §3).

Actors refuse any other.
"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on everything that a peer can make grow (DESIGN §7)."""

    clients_max: int = CLIENTS_MAX
    dimension_max: int = 1 << 21
    announcement_bytes_max: int = 1 << 20
    announcements_bytes_max: int = 16 << 20
    rounds_open_max: int = 4096
    sessions_max: int = 1_000_000
    invited_max: int = 1 << 16


CERTIFICATES_KNOWN_MAX = 1 << 20
"""How many certificates a process remembers to be signed, the latest used: as many as have a session, 500 MB."""
PACED_MAX = 1 << 16
"""How many peers an actor remembers to have answered again; beyond, it forgets all of them."""
EPOCH_KEYS_KNOWN_MAX = 256
"""How many announcements' lists of signed epoch keys a process remembers to be signed, the latest used."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long actors wait. Deadlines of a round are absolute and come from its announcement.

    A key outlives its epoch by `epoch_grace_ms`, so that a round announced just before the turn can still end. Clients
    spread their Hellos of a new epoch over `hello_spread_ms`. Whoever is asked again for what it has said repeats it
    once in `again_ms`. A Compute node reports new contributions to the trainer at most every `progress_ms`. The trainer
    closes a round early when nothing has come for `quiet_ms`, and for `quiet_part` of the time that arrivals have taken
    so far.
    A client remembers a round with a receipt for `kept_ms` after its end, and for `abort_grace_ms` after some abort.
    A trainer waits `settle_ms` for the other nodes' aborts before it reports that a round has failed.
    """

    epoch_ms: int = 24 * 3600 * 1000
    epoch_grace_ms: int = 2 * 3600 * 1000
    epoch_publish_ms: int = 5 * 60 * 1000
    hello_spread_ms: int = 30 * 60 * 1000
    again_ms: int = 1_000
    kept_ms: int = 5 * 60 * 1000
    progress_ms: int = 50
    quiet_ms: int = 500
    quiet_part: float = 0.5
    resend_first_ms: int = 2_000
    resend_max_ms: int = 60_000
    resend_jitter: float = 0.5
    abort_grace_ms: int = 3600 * 1000
    retention_ms: int = 7 * 24 * 3600 * 1000
    settle_ms: int = 5_000
    deadline_ahead_ms_max: int = 30 * 24 * 3600 * 1000

    def resend_after_ms(self, attempt: int, entropy: bytes) -> int:
        """Exponential back-off: the wait before resend `attempt` (from 0), spread by one random byte."""
        base = min(self.resend_first_ms << min(attempt, 16), self.resend_max_ms)
        return base + int(base * self.resend_jitter * entropy[0] / 255)
