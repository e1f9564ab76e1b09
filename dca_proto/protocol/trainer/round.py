"""A trainer's round: what is asked, what is stored, and the literal table of its phases (DESIGN §4, §5, §9).

A secure sum:
    new ── announce ──> collecting ── all, full, quiet or late ──> committing ── M partial sums ──> done
                             └──── an abort, silence ─────┴──> failed ── M aborts ──> returned
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
from dca_proto.protocol.effects import Address, CancelTimer, Channel, Effect, Send, SetTimer
from dca_proto.protocol.events import Timer
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.records import Records, loaded
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import encode, open_signed
from dca_proto.protocol.wire.messages import InvitedRound, PartialSum, Signed

ROUNDS, RELEASES = "trainer-round", "trainer-release"
ALL, FULL, DEADLINE = "all", "full", "deadline"  # why a round closes; or `QUIET`
QUIET, CLOSE_BY, END, SETTLE, FORGET = "quiet", "close-by", "end", "settle", "forget"  # timers, as `RESEND` is
COLLECTING, COMMITTING = "collecting", "committing"
DONE, FAILED, RETURNED, CLOSED = "done", "failed", "returned", "closed"
OPEN, ENDED = (COLLECTING, COMMITTING), (DONE, FAILED, RETURNED)
TABLE: Table = {
    (NEW, "announce"): COLLECTING,
    (COLLECTING, "close"): COMMITTING,
    (COLLECTING, "last release"): DONE,
    **{(phase, "last partial"): DONE for phase in OPEN},
    **{(phase, "fail"): FAILED for phase in OPEN},
    (FAILED, "last abort"): RETURNED,
    (FAILED, "all declined"): RETURNED,
    (RETURNED, "late release"): FAILED,
    **{(phase, FORGET): CLOSED for phase in ENDED},
    **stays((COLLECTING,), "release", QUIET, CLOSE_BY),
    **stays((COLLECTING, DONE, FAILED), "repeated release"),
    **stays((DONE, FAILED), "late release"),
    **stays((*OPEN, *ENDED), "progress", "decline"),
    **stays(OPEN, "partial", END),
    **stays((*OPEN, DONE), "repeated partial"),
    **stays((*OPEN, FAILED), RESEND),
    **stays((DONE,), "result"),
    **stays((FAILED,), "late partial", "abort", SETTLE),
    **stays(ENDED, "late abort"),
}


class StoredRound(Stored, frozen=True):
    """One round at the trainer, as it is stored.

    Attributes:
        announced_ms: when it was announced.
        aborted_by: ids of the Compute nodes whose signed aborts came.
        released: whether the round failed although a Compute node has released its part, or a client has released.
        reason, contributors, needed: of a failed one, as in `RoundFailed`.
    """

    request: OpenRound
    announcement: Signed
    reply_secret: bytes
    announced_ms: int
    partials: tuple[tuple[bytes, Signed], ...] = ()
    aborted_by: tuple[bytes, ...] = ()
    released: bool = False
    reason: str = ""
    contributors: int | None = None
    needed: int | None = None

    def __repr__(self) -> str:
        return f"StoredRound({self.phase}, {self.request.round_id.hex()})"


class Round(ActorRound[StoredRound]):
    """One round in memory."""

    table, records = TABLE, ROUNDS

    def __init__(self, stored: StoredRound, opened: OpenedAnnouncement) -> None:
        super().__init__(stored.request.round_id, stored)
        self.opened = opened
        self.reply_key = AgreementKey(stored.reply_secret)
        self.invited = frozenset(stored.request.invited)
        self.arrivals = Arrivals(stored.announced_ms)
        self.declined: set[bytes] = set()
        self.why: Counter[str] = Counter()  # the declines' reasons
        self.answered: set[bytes] = set()  # of a round without Compute nodes: released, declined, or both
        self.partials: dict[bytes, PartialSum] = {}
        self.releases: dict[bytes, Signed] = {}  # of a round without Compute nodes, by client
        self.contributors: tuple[bytes, ...] = ()  # ids of the clients in the result
        self.reported: RoundFailed | None = None  # how it failed, once this process has told its owner

    @property
    def is_open(self) -> bool:
        """Whether it has neither a result nor failed."""
        return self.takes("fail")

    @property
    def expected(self) -> int | None:
        """How many contributions are expected from clients that have not declined; None if unknown."""
        expected = self.stored.request.answers_expected
        return max(expected - len(self.declined), 0) if expected else None

    def announced(self) -> list[Effect]:
        """The announcement, once more: to Compute nodes that have not answered, and to all clients that are asked."""
        frame, invited = self.stored.announcement, self.stored.request.invited
        nodes = self.announced_to_nodes()
        if not invited:
            return [*nodes, Send(Address(Channel.ANNOUNCE), self.id, encode(frame))]
        asked = invitations(frame, sorted(invited))
        waiting = sorted(self.invited - self.declined - self.answered)
        return [*nodes, *(Send(Address(Channel.CLIENT, one), self.id, encode(asked[one])) for one in waiting)]

    def announced_to_nodes(self) -> list[Effect]:
        """The announcement, once more, to Compute nodes that have not answered it."""
        frame, invited = self.stored.announcement, self.stored.request.invited
        payload = encode(InvitedRound(frame, b"".join(sorted(invited))) if invited else frame)
        silent = [compute for compute in self.opened.computes if compute not in self.arrivals.counts]
        return [Send(Address(Channel.COMPUTE, compute), self.id, payload) for compute in silent]

    @property
    def end_ms(self) -> int:
        """When nothing more is waited for: lost messages are asked for, one commit window beyond `commit_by`."""
        window_ms = self.stored.request.commit_window_ms if self.opened.computes else 0
        return self.opened.body.commit_by_ms + window_ms

    def end(self, timing: Timing, now_ms: int) -> list[Effect]:
        """Nothing more is waited for; the round is kept for the retention."""
        cancelled: list[Effect] = [CancelTimer(Timer(purpose, self.id)) for purpose in (QUIET, CLOSE_BY, RESEND, END)]
        forget_ms = self.opened.body.commit_by_ms + timing.retention_ms
        return [*cancelled, SetTimer(Timer(FORGET, self.id), max(now_ms, forget_ms))]

    def has_all(self) -> bool:
        """Whether all expected clients have answered, in a round without Compute nodes."""
        return 0 < len(self.answered) == self.stored.request.answers_expected

    def all_declined(self) -> bool:
        """Of a round without Compute nodes: whether all have signed that they decline it, and nobody has released.

        All are the invited clients; of a round of everybody, as many as are expected.
        """
        expected = self.stored.request.answers_expected
        declined = self.invited <= self.declined if self.invited else 0 < expected <= len(self.declined)
        return declined and not self.releases and not self.opened.computes


def restored_rounds(
    records: Records, federation: Federation, mechanism: Mechanism, limits: Limits
) -> tuple[dict[bytes, Round], set[bytes]]:
    """The rounds of a store, by id; and the ids of those that cannot be read now.

    Those are of a replaced federation file, or of a statistic that is not known here. Their records stay, should that
    come back. Raises `UsageError` where a record is damaged.
    """
    releases: defaultdict[bytes, dict[bytes, Signed]] = defaultdict(dict)
    for key, frame in loaded(records, RELEASES, Signed).items():
        releases[key[:ID_BYTES]][key[ID_BYTES:]] = frame
    rounds: dict[bytes, Round] = {}
    unreadable: set[bytes] = set()
    for round_id, stored in loaded(records, ROUNDS, StoredRound).items():
        try:
            current = Round(stored, open_announcement(stored.announcement, federation, limits))
            current.opened.validated(mechanism, limits)
            for compute, frame in stored.partials:
                public = federation.compute(compute).key
                current.partials[compute] = open_signed(frame, public, federation.id, PartialSum)
        except (PeerError, UsageError):
            unreadable.add(round_id)
        else:
            current.releases = releases[round_id]
            current.answered.update(current.releases)
            rounds[round_id] = current
    return rounds, unreadable


class Arrivals:
    """How many contributions the holders keep, and when the last ones came (DESIGN §4.8).

    A round closes when all expected contributions are there, when it is full, or when enough have come and arrivals
    have gone quiet. *Quiet* means that nothing has come for `Timing.quiet_ms`, and for `Timing.quiet_part` of the time
    from the announcement to the last arrival: a swarm that answers over an hour is given half an hour more. The rest is
    up to `close_by`. To close early costs stragglers their charge and nobody's privacy.

    Attributes:
        counts: what each Compute node keeps, by its latest report.
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
        """Why to close now, or None; between n_min and n_max contributions.

        `expected` is how many contributions may still be hoped for in all; None where nobody knows.
        """
        quiet = now_ms >= self.quiet_ms(timing)
        if self.has_all(expected) and (self.total >= fewest or quiet or not expected):
            return ALL
        if self.total >= most:
            return FULL
        return QUIET if self.total >= fewest and quiet else None

    def has_all(self, expected: int | None) -> bool:
        """Whether all contributions have come that are still expected; too few, perhaps, if many declined."""
        return expected is not None and self.total >= expected

    def quiet_ms(self, timing: Timing) -> int:
        """When arrivals are quiet, if nothing more comes."""
        taken_ms = self._last_ms - self._announced_ms
        return self._last_ms + max(timing.quiet_ms, int(timing.quiet_part * taken_ms))
