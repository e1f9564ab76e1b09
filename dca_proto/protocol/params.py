"""Every limit and timeout of the protocol: `Limits` and `Timing` of an actor, and limits of a process's caches."""

from __future__ import annotations

import math
from functools import cached_property

import msgspec

from dca_proto.privacy.accounting import CLIENTS_MAX

PROTOCOL_VERSION = 5
"""Increases with every change of a message or of the signed bytes (DESIGN §3). Actors refuse every other version."""


TRAINER_PART = 4
"""One trainer's rounds take at most a quarter of each `Room`: a hostile trainer leaves the rest to the others."""
MIB = 1 << 20
DAY_MS = 24 * 3600 * 1000


class Room(msgspec.Struct, frozen=True, dict=True):
    """How much of one kind of state of rounds an actor keeps (DESIGN §7): `most` in all, a part of it of one trainer.

    `kind` names the state in refusals. It is counted in `unit`: 1, or `MIB` for bytes.
    """

    kind: str
    most: int
    unit: int = 1

    @cached_property
    def most_of_trainer(self) -> int:
        return -(-self.most // TRAINER_PART)

    def words(self, amount: int) -> str:
        """Return an amount for people, rounded up: 1,025 or 16.3 MiB."""
        return f"{math.ceil(10 * amount / MIB) / 10:,.1f} MiB" if self.unit == MIB else f"{amount:,}"


MU_MIN = 1e-4
"""Smallest μ of a round. Its noise in a sum is 1/μ = 10,000 times the sensitivity: six times the sampling error of a
value from each of 10⁷ clients, the largest federation. So no result is lost, and no round is nearly free."""
MESSAGE_BYTES_MAX = 24 * MIB
"""Largest message: three million numbers, or a Compute node's list of 570,000 clients (44 bytes each)."""
ROUNDS_MAX = 16_384
"""Most rounds of a budget's period, whatever they cost. If they use up the budget, each may cost 1/128 of its μ; a job
with mini-batches charges a client once an epoch. The charges take 6 MB on disk, 16 MB in memory."""
RETURNED_PART = 4
"""With rounds whose charge came back, a client takes part in at most so many times the rounds of a period: each may be
repeated three times."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on everything that a peer can make grow (DESIGN §7).

    Attributes:
        node_open, node_announcements: rounds that a Compute node has begun and not ended, and the bytes of their
            announcements with the invited ids.
        node_contributions: bytes of contributions, lists and released sums at a Compute node; `contributions_mib` in
            its file sets them.
        node_rounds, node_records: rounds that a Compute node remembers, ended and refused ones included, and the bytes
            of the records of those that have ended.
        client_open, client_announcements, client_messages: rounds that a client has answered and whose answer has no
            receipt (declined ones until `close_by`), and the bytes of their announcements and answers.
        client_kept: rounds with a receipt; the oldest give way.
    """

    clients_max: int = CLIENTS_MAX
    dimension_max: int = 1 << 21
    announcement_bytes_max: int = 1 << 20
    sessions_max: int = CLIENTS_MAX
    invited_max: int = 1 << 16
    node_open: Room = Room("open rounds", 4096)
    node_announcements: Room = Room("announcements of open rounds", 32 * MIB, MIB)
    node_contributions: Room = Room("contributions, lists and sums", 4096 * MIB, MIB)
    node_rounds: Room = Room("rounds", 65_536)
    node_records: Room = Room("records of ended rounds", 128 * MIB, MIB)
    client_open: Room = Room("rounds without a receipt", 4096)
    client_announcements: Room = Room("announcements", 16 * MIB, MIB)
    client_messages: Room = Room("messages without a receipt", 96 * MIB, MIB)
    client_kept: Room = Room("rounds with a receipt", 4096)


CERTIFICATES_KNOWN_MAX = 1 << 16
"""Size of the cache of verified certificates: 32 MB. A Compute node also remembers the last one of each client."""
QUESTIONS_BURST = 8
"""Questions of one trainer for sessions that a Compute node answers at once."""
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
        kept_ms: a client remembers a round for this long after `abort_grace_ms`, for aborts that come then.
        progress_ms: a Compute node reports new contributions to the trainer at most this often.
        quiet_ms, quiet_part: the trainer closes a round early after a silence of `quiet_ms`, and of at least
            `quiet_part` of the time from the announcement to the last arrival.
        resend_first_ms, resend_max_ms, resend_jitter: exponential back-off of messages without an answer.
        resend_free_bytes, resend_rate: a message of more bytes than these is given a millisecond more for so many.
        abort_grace_ms: after a round's end, clients ask for missing aborts, and a Compute node keeps its released sum,
            for this long.
        late_ms: a Compute node that has answered may release for this long after a round's end. It is half of
            `abort_grace_ms`, so that clients still ask for aborts then.
        retention_ms: a trainer and a Compute node remember a round for at least this long after its end.
        watch_ms, silent_ms: a trainer asks a Compute node that it has not heard for `watch_ms`, and calls it silent
            after `silent_ms` (DESIGN §4.8).
        hopeless_ms: it ends a round whose other nodes are too few to repeat it after this long. Where every round
            needs all nodes, it waits for them until `commit_by` instead.
        leave_ms: a trainer waits this long for a node's key and answer, or half of a shorter time to collect; then it
            announces without it if it can.
        lately_ms: before a round, a trainer that asks first asks each node that it has not heard for this long.
        settle_ms: a trainer waits this long for the other nodes' aborts before it reports a failed round.
        clocks_ms: by how much two members' clocks may differ where no deadline shows it (DESIGN §8.1).
        deadline_ahead_ms_max: a round may end at most this far in the future.
    """

    epoch_ms: int = DAY_MS
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
    resend_free_bytes: int = 64 * 1024
    resend_rate: int = 256
    abort_grace_ms: int = 3600 * 1000
    late_ms: int = 1800 * 1000
    retention_ms: int = 7 * DAY_MS
    watch_ms: int = 2_000
    silent_ms: int = 8_000
    hopeless_ms: int = 45_000
    leave_ms: int = 10_000
    lately_ms: int = 120_000
    settle_ms: int = 5_000
    clocks_ms: int = 600_000
    deadline_ahead_ms_max: int = 30 * DAY_MS

    def resend_after_ms(self, attempt: int, entropy: bytes, size: int = 0) -> int:
        """Return the wait before resend `attempt` (from 0): exponential back-off, spread by a random byte.

        A message of `size` bytes has time to arrive: copies of what is still on its way would delay it.
        """
        first_ms = self.resend_first_ms + max(0, size - self.resend_free_bytes) // self.resend_rate
        base = min(first_ms << min(attempt, 16), max(self.resend_max_ms, 4 * first_ms))
        return base + int(base * self.resend_jitter * entropy[0] / 255)
