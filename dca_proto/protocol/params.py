"""Every limit and timeout of the protocol: `Limits` and `Timing` of an actor, and limits of a process's caches."""

from __future__ import annotations

import msgspec

from dca_proto.privacy.accounting import CLIENTS_MAX

PROTOCOL_VERSION = 4
"""Increases with every change of a message or of the signed bytes (DESIGN §3). Actors refuse every other version."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on everything that a peer can make grow (DESIGN §7)."""

    clients_max: int = CLIENTS_MAX
    dimension_max: int = 1 << 21
    announcement_bytes_max: int = 1 << 20
    announcements_bytes_max: int = 16 << 20
    rounds_open_max: int = 4096
    sessions_max: int = 1_000_000
    invited_max: int = 1 << 16


CERTIFICATES_KNOWN_MAX = 1 << 20
"""Size of the cache of verified certificates: as many as clients that may have a session; 500 MB."""
PACED_MAX = 1 << 16
"""Number of peers whose repeated answers `actor.RateLimit` limits; beyond it, all are forgotten."""
EPOCH_KEYS_KNOWN_MAX = 256
"""Size of the cache of verified lists of epoch keys (one list for each announcement that differs)."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long actors wait. Deadlines of a round are absolute and come from its announcement.

    Attributes:
        epoch_ms: length of an epoch.
        epoch_grace_ms: how long a key outlives its epoch, so that a round announced just before the end can finish.
        epoch_publish_ms: a Compute node publishes its epoch key again at least this often.
        hello_spread_ms: clients spread the Hellos of a new epoch over this time.
        again_ms: an actor repeats an answer to the same peer at most once in this time.
        kept_ms: a client remembers a round with a receipt for this long after its end.
        progress_ms: a Compute node reports new contributions to the trainer at most this often.
        quiet_ms, quiet_part: the trainer closes a round early after a silence of `quiet_ms`, and of at least
            `quiet_part` of the time from the announcement to the last arrival.
        resend_first_ms, resend_max_ms, resend_jitter: exponential back-off of messages without an answer.
        abort_grace_ms: after a round's end, clients ask for missing aborts, and a Compute node keeps its released sum,
            for this long.
        retention_ms: a trainer and a Compute node remember a round for at least this long after its end.
        settle_ms: a trainer waits this long for the other nodes' aborts before it reports a failed round.
        deadline_ahead_ms_max: a round may end at most this far in the future.
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
        """Return the wait before resend `attempt` (from 0): exponential back-off, spread by a random byte."""
        base = min(self.resend_first_ms << min(attempt, 16), self.resend_max_ms)
        return base + int(base * self.resend_jitter * entropy[0] / 255)
