"""A trainer's round: what is asked, what is stored, and the literal table of its phases (DESIGN §4, §8).

new ── all epoch keys ──> joining ── enough joins ──> starting ── M ready ──> running ── M partial sums ──> done
 └────────────────────────── any of them: too few, silence, an abort ──────────────────────────> failed
                                                                  failed, after a charge ── M aborts ──> returned
A local round (DESIGN §4.8, §4.9):
new ── call ──> gathering ── all have answered, or the close with a release ──> done
                    └── all declined, or the close without one ──> failed ── all were invited ──> returned
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dca_proto.core.codec import decode_body, encode, open_signed
from dca_proto.core.effects import Address, CancelTimer, Channel, Effect, Persist, Send, SetTimer
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.events import Timer
from dca_proto.core.facts import RoundFailed
from dca_proto.core.federation import Federation
from dca_proto.core.ledger import Charge, Cost
from dca_proto.core.machine import Table
from dca_proto.core.mechanism import LOCAL_MECHANISMS, Mechanism
from dca_proto.core.messages import Announcement, Join, PartialSum, Roster, Signed, Start, Terms
from dca_proto.core.params import PROTOCOL_VERSION, Limits, Timing
from dca_proto.core.plan import Question, ask, plan_round
from dca_proto.core.price import Price
from dca_proto.core.round import OpenedAnnouncement, open_announcement, roster_hash, session_hash
from dca_proto.core.sealing import ID_BYTES, KEY_BYTES, AgreementKey, Random, actor_id
from dca_proto.core.shares import LOCAL, SEED
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW

ROUNDS = "trainer-round"
JOIN, RESEND, END, CLOSE = "join", "resend", "end", "close"
RELEASES = "trainer-release"
NEW, JOINING, STARTING, RUNNING, GATHERING = "new", "joining", "starting", "running", "gathering"
DONE, FAILED, RETURNED, CLOSED = "done", "failed", "returned", "closed"
TABLE: Table = {
    (NEW, "announce"): JOINING,
    (NEW, "call"): GATHERING,
    (NEW, "fail"): FAILED,
    (GATHERING, "release"): GATHERING,
    (GATHERING, "decline"): GATHERING,
    (GATHERING, "last release"): DONE,
    (GATHERING, "fail"): FAILED,
    **{(phase, "repeated release"): phase for phase in (GATHERING, DONE, FAILED)},
    (JOINING, "join"): JOINING,
    (JOINING, "decline"): JOINING,
    (JOINING, "roster"): STARTING,
    (JOINING, "fail"): FAILED,
    (STARTING, "join"): STARTING,
    (STARTING, "decline"): STARTING,
    (STARTING, "ready"): STARTING,
    (STARTING, "all ready"): RUNNING,
    (STARTING, "fail"): FAILED,
    (RUNNING, "join"): RUNNING,
    (RUNNING, "decline"): RUNNING,
    (RUNNING, "ready"): RUNNING,
    (RUNNING, "partial"): RUNNING,
    (RUNNING, "last partial"): DONE,
    (RUNNING, "fail"): FAILED,
    **{(phase, "repeated partial"): phase for phase in (RUNNING, DONE)},
    (FAILED, "ready"): FAILED,
    (FAILED, "late partial"): FAILED,
    (FAILED, "abort"): FAILED,
    (FAILED, "last abort"): RETURNED,
    (FAILED, "all declined"): RETURNED,
    **{(phase, "late abort"): phase for phase in (DONE, FAILED, RETURNED)},
    **{(phase, "close"): CLOSED for phase in (DONE, FAILED, RETURNED)},
}

_EPOCH_KEY_BYTES_MAX = 128


class OpenRound(msgspec.Struct, frozen=True, kw_only=True):
    """Command: hold a round.

    Attributes:
        round_id: 16 fresh random bytes.
        statistic, parameters: a registered statistic and its public parameters.
        epsilon, delta: what the round costs each participant.
        tolerated: T. colluders: c, how many of the T are reserved for colluders.
        computes: ids of the M Compute nodes.
        rows_max: 0 for the mean of a client's rows, R for the sum of at most R. fraction_bits: f.
        encoding: `seed` or `vector`; `local` for a local round, which has no Compute nodes and T = c = 0.
        mechanism: of a report round, which is a local one, the local mechanism's name; empty for the trainer's own,
            with which a local round is one of data nodes and has `rows_max` >= 1.
        clients_expected: start as soon as so many have answered; 0 waits for the join deadline, or for all invited. A
            local round ends then; 0 waits for its close, or for all invited.
        join_window_ms, share_window_ms, commit_window_ms: how long the phases may last. After another commit window,
            in which lost answers are asked for again, the round is over. A local round is over after the first two.
        invited: ids of the clients that alone are told of the round, may join it and are charged for it; empty:
            everybody, by a broadcast.
    """

    round_id: bytes
    statistic: str
    parameters: dict[str, Any]
    epsilon: float
    delta: float
    tolerated: int
    computes: tuple[bytes, ...]
    colluders: int = 0
    rows_max: int = 0
    fraction_bits: int = 24
    encoding: str = SEED
    mechanism: str = ""
    clients_expected: int = 0
    join_window_ms: int = 60_000
    share_window_ms: int = 60_000
    commit_window_ms: int = 60_000
    invited: tuple[bytes, ...] = ()

    @property
    def local(self) -> bool:
        """Whether each client releases to the trainer, private by itself, without Compute nodes."""
        return self.encoding == LOCAL

    @property
    def answers_expected(self) -> int:
        """The roster is fixed as soon as so many clients have answered; 0: at the join deadline."""
        return self.clients_expected or len(self.invited)

    @property
    def cost(self) -> Cost:
        """What the round costs, and whom."""
        return Cost(self.price, frozenset(self.invited))

    @property
    def price(self) -> Price:
        """What (epsilon, delta) cost a client. Raises `UsageError` for values out of range."""
        return Price.of(self.epsilon, self.delta)

    def charge(self, trainer: bytes, number: int, now_ms: int) -> Charge:
        """The entry of this round in the trainer's account."""
        cost = (self.price.mu, float(self.epsilon), float(self.delta))
        relation = REPLACE_ONE_ROW if self.local and not self.mechanism else REPLACE_ONE_CLIENT
        asked = (self.round_id, self.statistic, trainer)
        return Charge(*asked, *cost, now_ms, number, clients=self.invited, relation=relation)

    def announcement(
        self, trainer: bytes, mechanism: str, epochs: tuple[Signed, ...], reply_key: bytes, now_ms: int
    ) -> Announcement:
        """What the trainer signs for this round when it is announced at `now_ms`.

        Args:
            mechanism: the trainer's own, for a round that names none.
        """
        join_by_ms = now_ms + self.join_window_ms
        settling_ms = 0 if self.local else 2 * self.commit_window_ms
        return Announcement(
            version=PROTOCOL_VERSION,
            round_id=self.round_id,
            trainer=trainer,
            statistic=self.statistic,
            parameters=self.parameters,
            rows_max=self.rows_max,
            fraction_bits=self.fraction_bits,
            mechanism=self.mechanism or mechanism,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            tolerated=self.tolerated,
            colluders=self.colluders,
            encoding=self.encoding,
            computes=epochs,
            reply_key=reply_key,
            join_by_ms=join_by_ms,
            close_by_ms=join_by_ms + self.share_window_ms + settling_ms,
        )

    def check(self, federation: Federation, mechanism: Mechanism, limits: Limits, timing: Timing) -> None:
        """What every participant will check, while it is the caller's mistake and not yet a peer's.

        Raises:
            UsageError: the round cannot be held.
        """
        if self.mechanism and self.mechanism not in LOCAL_MECHANISMS:
            names = ", ".join(LOCAL_MECHANISMS)
            raise UsageError(f"mechanism {self.mechanism!r} is none of reports; use one of {names}, or leave it out")
        known = {member.id for member in federation.computes}
        unknown = [compute.hex() for compute in self.computes if compute not in known]
        if unknown or len(set(self.computes)) < len(self.computes):
            raise UsageError(
                f"Compute nodes {', '.join(unknown)} are not in the federation file, or one is named twice"
            )
        epochs = tuple(Signed(bytes(_EPOCH_KEY_BYTES_MAX), bytes(64)) for _ in self.computes)
        draft = self.announcement(bytes(16), mechanism.name, epochs, bytes(KEY_BYTES), now_ms=0)
        question = ask(draft, mechanism, limits)
        if self.local:
            plan_round(draft, question, 1, mechanism)  # of any other, once N is known
        self._check_size(draft, limits)
        self._check_windows(timing)
        self._check_invited(limits)

    def _check_size(self, draft: Announcement, limits: Limits) -> None:
        try:
            encoded = encode(draft)
            decode_body(encoded)
        except (PeerError, TypeError) as error:
            raise UsageError(f"round {self.round_id.hex()} cannot be announced: {error}") from None
        if len(encoded) > limits.announcement_bytes_max:
            raise UsageError(
                f"the announcement would have {len(encoded)} bytes, expected at most {limits.announcement_bytes_max}; "
                "ask for fewer columns or bins"
            )

    def _check_windows(self, timing: Timing) -> None:
        if min(self.join_window_ms, self.share_window_ms, self.commit_window_ms) < 1:
            raise UsageError("a phase of the round has no time; give every window at least 1 ms")
        longest_ms = timing.epoch_ms + timing.epoch_grace_ms
        if self.join_window_ms >= longest_ms and not self.local:
            raise UsageError(
                f"the join window of {self.join_window_ms} ms is longer than Compute nodes keep a key "
                f"({longest_ms} ms); shorten it"
            )

    def _check_invited(self, limits: Limits) -> None:
        invited = set(self.invited)
        if len(invited) < len(self.invited) or any(len(client) != ID_BYTES for client in invited):
            raise UsageError(f"a client is invited twice, or its id has not {ID_BYTES} bytes; give each one's id once")
        if len(invited) > limits.invited_max:
            raise UsageError(
                f"{len(invited)} clients are invited, expected at most {limits.invited_max}; invite fewer, or none"
            )
        if invited and self.clients_expected > len(invited):
            raise UsageError(
                f"{self.clients_expected} clients are expected and {len(invited)} are invited; expect no more"
            )


class StoredRound(msgspec.Struct, frozen=True):
    """One round at the trainer, as it is stored.

    Attributes:
        aborted_by: ids of the Compute nodes whose signed aborts came.
        released: whether the round failed although a Compute node has released its part.
        reason, contributors, needed: of a failed one, as in `RoundFailed`.
    """

    phase: str
    request: OpenRound
    announcement: Signed
    reply_secret: bytes
    roster: Signed | None = None
    partials: tuple[tuple[bytes, Signed], ...] = ()
    aborted_by: tuple[bytes, ...] = ()
    released: bool = False
    reason: str = ""
    contributors: int | None = None
    needed: int | None = None

    def __repr__(self) -> str:
        return f"StoredRound({self.phase}, {self.request.round_id.hex()})"


class Round:
    """One round in memory."""

    def __init__(self, stored: StoredRound, opened: OpenedAnnouncement) -> None:
        self.stored = stored
        self.opened = opened
        self.reply_key = AgreementKey(stored.reply_secret)
        self.invited = frozenset(stored.request.invited)
        self.joins: dict[bytes, Signed] = {}
        self.declined: set[bytes] = set()
        self.answered: set[bytes] = set()  # joined, declined, or both: counted with each answer
        self.ready: set[bytes] = set()
        self.clients: tuple[bytes, ...] = ()
        self.positions: dict[bytes, int] = {}
        self.terms: Terms | None = None
        self.partials: dict[bytes, PartialSum] = {}
        self.releases: dict[bytes, Signed] = {}  # of a local round, by client
        self.question: Question | None = None  # worked out once per process
        self.attempt = 0
        self.told: RoundFailed | None = None  # of a failed round: to the owner, by this process

    @classmethod
    def restored(
        cls,
        stored: StoredRound,
        federation: Federation,
        limits: Limits,
        releases: Iterable[tuple[bytes, Signed]] = (),
    ) -> Round:
        """A stored round in memory again. Raises `PeerError` where it is of another federation file.

        Args:
            releases: of a local round, that were kept, each with its client's id.
        """
        current = cls(stored, open_announcement(stored.announcement, federation, limits))
        current.releases.update(releases)
        current.answered.update(current.releases)
        if stored.roster is not None:
            current.set_roster(stored.roster)
        for compute, frame in stored.partials:
            key = federation.compute(compute).key
            current.partials[compute] = open_signed(frame, key, federation.hash, PartialSum)
        return current

    def ask(self, mechanism: Mechanism, limits: Limits) -> Question:
        """What its announcement asks. Raises `UsageError` where that cannot be answered here."""
        if self.question is None:
            self.question = ask(self.opened.body, mechanism, limits)
        return self.question

    def store(self, **changes: object) -> Persist:
        """Change what is stored; the effect makes it durable."""
        self.stored = msgspec.structs.replace(self.stored, **changes)
        return Persist(ROUNDS, self.id, encode(self.stored))

    def set_roster(self, frame: Signed) -> None:
        """What follows from the trainer's own roster, whose joins were checked one by one as they came."""
        body = decode_body(frame.body)
        assert isinstance(body, Roster), "the trainer made it"
        joins = [decode_body(join.body) for join in body.joins]
        clients = [actor_id(join.certificate.client_key) for join in joins if isinstance(join, Join)]
        self.terms, self.clients = body.terms, tuple(clients)
        self.positions = {client: position for position, client in enumerate(clients)}
        self.joins = dict(zip(clients, body.joins, strict=True))

    def terms_for(self, members: Sequence[tuple[bytes, Signed]], now_ms: int) -> Terms:
        """The terms of a start at `now_ms`, given (client, join) pairs. Raises `UsageError` where it is too late."""
        request, body = self.stored.request, self.opened.body
        share_by_ms = min(now_ms + request.share_window_ms, body.close_by_ms - 2 * request.commit_window_ms)
        if share_by_ms <= now_ms:
            raise UsageError("no time is left to share: the trainer was away too long")
        return Terms(
            announcement_hash=self.opened.hash,
            clients=len(members),
            tolerated=request.tolerated,
            colluders=request.colluders,
            roster_hash=roster_hash(members),
            share_by_ms=share_by_ms,
            commit_by_ms=share_by_ms + request.commit_window_ms,
        )

    def announced(self) -> list[Effect]:
        """The announcement, once more: to everybody, or to each invited client that has not answered."""
        payload = encode(self.stored.announcement)
        if not self.invited:
            return [Send(Address(Channel.ANNOUNCE), self.id, payload)]
        silent = [client for client in self.stored.request.invited if client not in self.answered]
        return [Send(Address(Channel.CLIENT, client), self.id, payload) for client in silent]

    def rostered(self) -> list[Effect]:
        """The roster to every Compute node that has not said that it is ready."""
        assert self.stored.roster is not None
        payload = encode(self.stored.roster)
        waiting = [compute for compute in self.opened.computes if compute not in self.ready]
        return [Send(Address(Channel.COMPUTE, compute), self.id, payload) for compute in waiting]

    def again(self, timing: Timing, random: Random, now_ms: int) -> SetTimer:
        """When what waits for an answer is sent again."""
        wait_ms = timing.resend_after_ms(self.attempt, random(1))
        self.attempt += 1
        return SetTimer(Timer(RESEND, self.id), now_ms + wait_ms)

    def start_of(self, client: bytes) -> Start:
        """What tells a client of the roster its position."""
        assert self.terms is not None, "no start before the roster"
        return Start(PROTOCOL_VERSION, self.id, self.terms, client, self.positions[client])

    def end(self, timing: Timing, now_ms: int) -> list[Effect]:
        """Nothing more is waited for; the round is kept for the retention, without its N joins."""
        cancelled: list[Effect] = [CancelTimer(Timer(purpose, self.id)) for purpose in (JOIN, RESEND, END)]
        close_ms = self.opened.body.close_by_ms + timing.retention_ms
        self.answered.clear()
        self.joins.clear()
        return [*cancelled, SetTimer(Timer(CLOSE, self.id), max(now_ms, close_ms))]

    def has_all(self) -> bool:
        """Whether as many clients have answered as are expected."""
        return 0 < len(self.answered) == self.stored.request.answers_expected

    def all_invited_declined(self) -> bool:
        """Whether nobody was told of the round but clients that have signed that they decline it."""
        return bool(self.invited) and self.declined.issuperset(self.invited)

    @property
    def id(self) -> bytes:
        return self.stored.request.round_id

    @property
    def session(self) -> bytes:
        assert self.terms is not None, "no session before the roster"
        return session_hash(self.terms)
