"""A round at the trainer: its stored record, its state in memory, and the table of its phases (DESIGN §4, §5, §9).

A secure sum:
    new ── announce ──> collecting ── all, full, quiet or late ──> committing ── all partial sums ──> done
                             └──── an abort, silence ─────┴──> failed ── p + 1 aborts ──> returned
Without Compute nodes:
    new ── announce ──> collecting ── all have answered, or the end with a release ──> done
                             └── all declined, or the end without one ──> failed ── all declined ──> returned
"""

from __future__ import annotations

from collections import Counter, defaultdict

from dca_proto.crypto.sealing import ID_BYTES, AgreementKey
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.actor import NEW, RESEND, ActorRound, Stored, Table, stays
from dca_proto.protocol.announcement import OpenedAnnouncement, invitations, open_announcement
from dca_proto.protocol.effects import Channel, Effect, Forget, Report
from dca_proto.protocol.facts import Absent, RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.policy import LASTING
from dca_proto.protocol.records import Records, loaded
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.verified import failed_in
from dca_proto.protocol.wire.codec import body_of, encode
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import InvitedRound, PartialSum, Progress, Signed
from dca_proto.wording import duration

ROUNDS, RELEASES = "trainer-round", "trainer-release"
ALL, FULL, DEADLINE = "all", "full", "deadline"  # why a round closes; or `QUIET`
QUIET, CLOSE_BY, END, SETTLE, FORGET = "quiet", "close-by", "end", "settle", "forget"  # timers, as `RESEND` is
DECLINES, WATCH = "declines", "watch"  # timers, too
COLLECTING, COMMITTING = "collecting", "committing"
DONE, FAILED, RETURNED, CLOSED = "done", "failed", "returned", "closed"
OPEN, ENDED = (COLLECTING, COMMITTING), (DONE, FAILED, RETURNED)
_REASONS_SHOWN = 3  # of declines, with a failure
TABLE: Table = {
    (NEW, "announce"): COLLECTING,
    (COLLECTING, "close"): COMMITTING,
    (COLLECTING, "last release"): DONE,
    **{(phase, "last partial"): DONE for phase in OPEN},
    **{(phase, "fail"): FAILED for phase in OPEN},
    (FAILED, "last partial"): DONE,
    (FAILED, "last abort"): RETURNED,
    (FAILED, "all declined"): RETURNED,
    (RETURNED, "late release"): FAILED,
    **{(phase, FORGET): CLOSED for phase in ENDED},
    **stays((COLLECTING,), "release", QUIET, CLOSE_BY, DECLINES),
    **stays((COLLECTING, DONE, FAILED), "repeated release"),
    **stays((DONE, FAILED), "late release"),
    **stays((*OPEN, *ENDED), "progress", "decline"),
    **stays(OPEN, "partial", END, WATCH),
    **stays((*OPEN, *ENDED), "repeated partial"),
    **stays((*OPEN, FAILED), RESEND),
    **stays((FAILED, RETURNED), "late partial"),
    **stays((FAILED,), "abort", SETTLE),
    **stays(ENDED, "late abort"),
}


class StoredTrainerRound(Stored, frozen=True):
    """The trainer's record of a round.

    Attributes:
        request: the request that it answers.
        announcement: the signed announcement.
        reply_secret: secret of the reply key.
        announced_ms: time of the announcement.
        partials: (node, signed partial sum) pairs.
        aborted_by: ids of the Compute nodes whose signed aborts arrived.
        colluding: p when the round was charged.
        aborts: these aborts, for the announcement of a repeat.
        silent: ids of the Compute nodes because of which the round was cancelled.
        lost: (id, since when in Unix milliseconds) of each node that did not answer, before the announcement or since.
        cancelled: why the trainer ended the round (§4.8); empty if it did not.
        released: True if the round failed although a Compute node or a client has released.
        reason, contributors, needed, refused, implausible: of a failed round, as in `RoundFailed`.
    """

    request: OpenRound
    announcement: Signed
    reply_secret: bytes
    announced_ms: int
    partials: tuple[tuple[bytes, Signed], ...] = ()
    aborted_by: tuple[bytes, ...] = ()
    colluding: int = 0
    aborts: tuple[Signed, ...] = ()
    silent: tuple[bytes, ...] = ()
    lost: tuple[tuple[bytes, int], ...] = ()
    cancelled: str = ""
    released: bool = False
    reason: str = ""
    contributors: int | None = None
    needed: int | None = None
    implausible: bool = False
    refused: bool = False

    def __repr__(self) -> str:
        return f"StoredTrainerRound({self.phase}, {self.request.round_id.hex()})"


class TrainerRound(ActorRound[StoredTrainerRound]):
    """A trainer's round in memory."""

    table, records = TABLE, ROUNDS

    def __init__(self, stored: StoredTrainerRound, opened: OpenedAnnouncement) -> None:
        super().__init__(stored.request.round_id, stored, opened.hash, opened.computes)
        self.opened = opened
        self.reply_key = AgreementKey(stored.reply_secret)
        self.invited = frozenset(stored.request.invited)
        self.arrivals = Arrivals(stored.announced_ms)
        self.declined: set[bytes] = set()
        self.declined_of: defaultdict[bytes, set[bytes]] = defaultdict(set)  # the same, by the clients' holder
        self.is_telling = False  # a timer is set to tell the nodes who has declined
        self.decline_reasons: Counter[str] = Counter()
        self.declined_for_good = 0  # clients that would decline the same round again
        self.answered: set[bytes] = set()  # clients that declined or, without Compute nodes, released
        self.partials: dict[bytes, PartialSum] = {}
        self.releases: dict[bytes, Signed] = {}  # by client, in a round without Compute nodes
        self.contributors: tuple[bytes, ...] = ()  # ids of the clients in the result
        self.heard: dict[bytes, int] = {}  # when a Compute node was last heard
        self.asked: dict[bytes, int] = {}  # when a quiet Compute node was last asked
        self.reports: dict[bytes, Progress] = {}  # each node's last
        self.watched_ms = self.stuck_ms = 0  # since when nodes are watched; since when enough of them wait in vain
        self.watch_due_ms = 0  # when this process looks next
        self.cut_off_ms = 0  # when fewer than p + 1 nodes were last heard: this trainer may be cut off itself
        self.alone_ms = 0  # when no node was last heard
        self.told: tuple[bytes, ...] = ()  # the silent nodes that were last reported
        self.reported: RoundFailed | None = None  # the failure, once this process has reported it

    def with_lost(self, nodes: dict[bytes, int]) -> tuple[tuple[bytes, int], ...]:
        """Return the nodes that it lost, with these and since when; of each node, the first loss."""
        return tuple((nodes | dict(self.stored.lost)).items())

    def forget_future(self, now_ms: int) -> None:
        """After the clock was set back, forget when nodes were heard and what is late: these times are of another."""
        self.heard = {node: at_ms for node, at_ms in self.heard.items() if at_ms <= now_ms}
        self.asked = {node: at_ms for node, at_ms in self.asked.items() if at_ms <= now_ms}
        self.stuck_ms = 0 if self.stuck_ms > now_ms else self.stuck_ms
        self.cut_off_ms, self.alone_ms = (0 if at_ms > now_ms else at_ms for at_ms in (self.cut_off_ms, self.alone_ms))
        self.arrivals.forget_future(now_ms)

    @property
    def lost(self) -> dict[bytes, int]:
        """Since when each lost Compute node did not answer. One that was silent and then sent its sum is not lost."""
        return {node: since_ms for node, since_ms in self.stored.lost if node not in self.partials}

    @property
    def is_open(self) -> bool:
        """True if the round has neither a result nor failed."""
        return self.is_in(*OPEN)

    @property
    def is_done(self) -> bool:
        """True if the round has a result."""
        return self.is_in(DONE)

    @property
    def expected(self) -> int | None:
        """Number of expected contributions, without clients that declined; None if unknown.

        A decline counts once the client's holder has confirmed that it knows of it and has no contribution (§4.8). So a
        client that declines and contributes counts once.
        """
        expected, absent = self.stored.request.answers_expected, self.arrivals.absent
        known = sum(min(absent(holder), len(clients)) for holder, clients in self.declined_of.items())
        return max(expected - known, 0) if expected else None

    def check_invited(self, client: bytes) -> None:
        """Check that a client is invited, in a round with invitations. Raises `PeerError`."""
        if self.invited and client not in self.invited:
            raise PeerError("invited", found=client.hex(), expected="one of the clients that were invited")

    @property
    def no_release_words(self) -> str:
        """Why a round without Compute nodes has no result: who has released what, and the declines."""
        participant = self.opened.body.kind.participant
        if self.releases:
            return f"none of the {len(self.releases)} {participant}s that released has a row"
        reasons = "; ".join(reason for reason, _ in self.decline_reasons.most_common(_REASONS_SHOWN))
        return f"no {participant} released anything; {len(self.declined)} declined{f' ({reasons})' * bool(reasons)}"

    def note_decline(self, client: bytes, reason: str) -> None:
        """Record that a client declined."""
        self.declined_for_good += reason in LASTING
        self.declined.add(client)
        self.answered.add(client)
        self.declined_of[self.opened.holder(client).id].add(client)

    def announced(self) -> list[Effect]:
        """Send the announcement to clients and to Compute nodes, except to invited clients and nodes that answered.

        Clients refuse it from `close_by` on. It expires only at `commit_by`: their clocks may be behind this one.
        """
        frame, invited = self.stored.announcement, self.stored.request.invited
        expires_ms = self.opened.body.commit_by_ms
        to_nodes = self.announced_to_nodes()
        if not invited:
            return [*to_nodes, self.send(encode(frame), Channel.ANNOUNCE, expires_ms=expires_ms)]
        messages = invitations(frame, sorted(invited))
        waiting = sorted(self.invited - self.declined - self.answered)
        to_clients = (
            self.send(encode(messages[client]), Channel.CLIENT, client, expires_ms=expires_ms) for client in waiting
        )
        return [*to_nodes, *to_clients]

    def announced_to_nodes(self) -> list[Effect]:
        """Send the announcement to Compute nodes that have not answered it."""
        frame, invited = self.stored.announcement, self.stored.request.invited
        payload = encode(InvitedRound(frame, b"".join(sorted(invited))) if invited else frame)
        silent = [compute for compute in self.computes if compute not in self.arrivals.counts]
        return [self.send(payload, Channel.COMPUTE, compute) for compute in silent]

    def absent(self) -> list[Effect]:
        """Report the invited clients that are neither in the result nor declined."""
        absent = tuple(sorted(self.invited.difference(self.contributors, self.declined)))
        return [Report(Absent(self.id, absent))] if absent else []

    def forgotten_releases(self) -> list[Effect]:
        """Delete the stored releases."""
        return [Forget(RELEASES, self.id + client) for client in sorted(self.releases)]

    def lagging(self, silent_ms: int) -> tuple[bytes, ...]:
        """Return the nodes that were last heard so much earlier than another one, or than this process began."""
        latest_ms = max(self.heard.values(), default=self.watched_ms)
        return tuple(node for node in self.computes if self.last_heard_ms(node) < latest_ms - silent_ms)

    def blame(self, author: bytes, silent_ms: int) -> tuple[bytes, ...]:
        """Note and return the nodes for whose silence the author of an abort gave up, if they are silent here, too."""
        silent = tuple(one for one in self.lagging(silent_ms) if one != author)
        self.store(silent=silent, lost=self.with_lost({one: self.last_heard_ms(one) for one in silent}))
        return silent

    def last_heard_ms(self, node: bytes) -> int:
        """Return when a Compute node was last heard; what an earlier process stored holds until it is heard here."""
        known = self.heard.get(node)
        return dict(self.stored.lost).get(node, self.watched_ms) if known is None else known

    def late_words(self, validated: ValidatedRound, abort: str) -> str:
        """Return what clients of a verified sum had to send in time, if an abort for too few names no failed proofs."""
        work = validated.work
        if work is None or failed_in(abort):
            return ""
        window = duration(self.opened.body.close_by_ms - self.stored.announced_ms)
        return f"; clients had at most {window} for {work.in_words}, and a busy one may need more collect_s"

    @property
    def end_ms(self) -> int:
        """The end of the round: `commit_by`; in a secure sum a commit window later, to ask for lost messages."""
        window_ms = self.stored.request.commit_ms if self.is_summed else 0
        return self.opened.body.commit_by_ms + window_ms

    def end(self, timing: Timing, now_ms: int) -> list[Effect]:
        """Cancel the timers of an open round, and set the time to forget it, after the retention."""
        forget_ms = self.opened.body.commit_by_ms + timing.retention_ms
        return [*self.cancel(QUIET, CLOSE_BY, DECLINES, RESEND, END, WATCH), self.timer(FORGET, max(now_ms, forget_ms))]

    def has_all(self) -> bool:
        """Return True if all expected clients have answered, in a round without Compute nodes."""
        return 0 < len(self.answered) == self.stored.request.answers_expected

    def all_declined(self) -> bool:
        """Return True if all clients of a round without Compute nodes have declined and nobody has released.

        All means the invited clients or, in a round without invitations, as many clients as are expected.
        """
        expected = self.stored.request.answers_expected
        declined = self.invited <= self.declined if self.invited else 0 < expected <= len(self.declined)
        return declined and not self.releases and not self.is_summed

    def too_many_declined(self) -> bool:
        """Return True if a secure sum, open to all, lacked clients that would decline it again.

        The trainer may have stated fewer clients than there are. Once more have answered, there may be n_max.
        """
        kind, expected = self.opened.body.kind, self.stored.request.answers_expected
        if not isinstance(kind, SecureSum) or self.invited or self.stored.needed is None:
            return False
        answered = (self.stored.contributors or 0) + len(self.declined)
        most = kind.n_max if answered > expected else expected
        return expected > 0 and most < self.declined_for_good + kind.n_min

    def too_many_unproven(self, unproven: int) -> bool:
        """Return True if, without so many clients whose proofs failed, a sum open to all lacks clients.

        A round of a batch is different: its repeat asks other clients.
        """
        kind = self.opened.body.kind
        return unproven > 0 and not self.invited and kind.clients < unproven + kind.n_min


def restored_rounds(
    records: Records, federation: Federation, mechanism: Mechanism, limits: Limits
) -> tuple[dict[bytes, TrainerRound], set[bytes]]:
    """Return the rounds of a store by id, and the ids of rounds that cannot be read now.

    These are of another trainer key, or of a statistic that is unknown here. Their records stay, in case it is
    known again later. Raises `UsageError` if a record is damaged.
    """
    releases: defaultdict[bytes, dict[bytes, Signed]] = defaultdict(dict)
    for key, frame in loaded(records, RELEASES, Signed).items():
        releases[key[:ID_BYTES]][key[ID_BYTES:]] = frame
    rounds: dict[bytes, TrainerRound] = {}
    unreadable: set[bytes] = set()
    for round_id, stored in loaded(records, ROUNDS, StoredTrainerRound).items():
        try:
            current = TrainerRound(stored, open_announcement(stored.announcement, federation, limits, is_stored=True))
            current.opened.validated(mechanism, limits)
            for compute, frame in stored.partials:  # they were verified as they came; their nodes may have left since
                current.partials[compute] = body_of(frame, PartialSum)
        except (PeerError, UsageError):
            unreadable.add(round_id)
        else:
            current.releases = releases[round_id]
            current.answered.update(current.releases)
            rounds[round_id] = current
    return rounds, unreadable


class Arrivals:
    """The number of contributions that the holders have, and the time of the last arrival (DESIGN §4.8).

    A round closes when all expected contributions are there, when it is full, or when enough have arrived and arrivals
    are quiet. *Quiet* means that nothing has arrived for `Timing.quiet_ms`, and for `Timing.quiet_part` of the time
    from the announcement to the last arrival: a swarm that answers for an hour gets half an hour more. Otherwise the
    round closes at `close_by`. An early close costs stragglers their charge, but nobody any privacy.

    Attributes:
        counts: number of contributions that each Compute node last reported.
        declined: how many clients have declined as far as each Compute node knows, and how many of these contributed.
    """

    def __init__(self, announced_ms: int) -> None:
        self._announced_ms = announced_ms
        self._last_ms = announced_ms
        self.counts: dict[bytes, int] = {}
        self.declined: dict[bytes, tuple[int, int]] = {}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def absent(self, compute: bytes) -> int:
        """Return how many clients have declined, and not contributed, as far as a Compute node knows."""
        declined, twice = self.declined.get(compute, (0, 0))
        return max(declined - twice, 0)

    def note(self, compute: bytes, count: int, now_ms: int, declined: tuple[int, int] = (0, 0)) -> bool:
        """Record a node's report. Return False if it is not newer.

        A node's count never shrinks. One that started again has forgotten who declined, so with a higher count, fewer
        declines replace more.
        """
        known = self.counts.get(compute, -1)
        if (count, declined) <= (known, self.declined.get(compute, (0, 0))):
            return False
        if count > known:
            self.counts[compute] = count
            self._last_ms = now_ms if count else self._last_ms
        self.declined[compute] = declined
        return True

    def forget_future(self, now_ms: int) -> None:
        """Count from now on, if the clock was set back."""
        self._announced_ms, self._last_ms = min(self._announced_ms, now_ms), min(self._last_ms, now_ms)

    def reason(self, expected: int | None, n_min: int, n_max: int, timing: Timing, now_ms: int) -> str | None:
        """Return the reason to close the round now, or None.

        `expected` is the number of contributions to expect in all, None if unknown.
        """
        quiet = now_ms >= self.quiet_ms(timing)
        if self.has_all(expected) and (self.total >= n_min or quiet or not expected):
            return ALL
        if self.total >= n_max:
            return FULL
        return QUIET if self.total >= n_min and quiet else None

    def has_all(self, expected: int | None) -> bool:
        """Return True if all expected contributions have arrived; after many declines, they may be fewer than n_min."""
        return expected is not None and self.total >= expected

    def quiet_ms(self, timing: Timing) -> int:
        """Return when arrivals count as quiet, if nothing more arrives."""
        taken_ms = self._last_ms - self._announced_ms
        return self._last_ms + max(timing.quiet_ms, int(timing.quiet_part * taken_ms))
