"""The rounds of a learning job at a running trainer: retried after an abort, recalled if they were held before.

A job is a generator of `RoundRequest`s. After a restart it is run from its beginning: what the journal knows is handed
to it as it was, so it must ask the same again, which is checked. The first request whose end the journal does not know
is where it goes on.

A mini-batch is picked of the clients that are in the result of the last round of everybody. A job begins with such a
round, or its caller names the clients. A batch's round that fails and costs nothing is tried again with others where
these were used as little. One that fails and keeps its charge counts as a use; without Compute nodes every round does
that, unless all whom it invited declined. No round is held that would cost some client more than
the job's budget in all: the job ends there with what it has.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from dca_proto.aggregate import Job, NoAggregate, NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.jobs.job import Batches, JobTerms
from dca_proto.jobs.journal import Entry, Failed, GivenUp, Journal, Opened, Recalled, Summed
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.ledger import Cost, max_client_cost
from dca_proto.protocol.policy import BudgetError
from dca_proto.protocol.trainer.request import OpenRound

R = TypeVar("R")
E = TypeVar("E", bound=Entry)
End = Summed | Failed
RETRIES = 2
_ROOM = "once the account has room, the same command goes on from there"


class JobTrainer(Protocol):
    """What a job needs of a trainer; `dca_proto.runtime.live.LiveTrainer` is one."""

    async def check(self, request: OpenRound) -> None:
        """Raise what is wrong with a round that is to be held: `UsageError`, `BudgetError`."""

    async def hold(self, request: OpenRound) -> NoisyAggregate:
        """Hold a fresh round. Raises `RoundAborted`, `BudgetError`."""

    async def rejoin(self, request: OpenRound) -> NoisyAggregate:
        """Finish a round that an earlier process was to hold, from wherever that left it; raises as `hold`."""

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        """The ids of the clients in a round's result, sorted, by the trainer's store."""

    def is_charged(self, round_id: bytes) -> bool:
        """Whether the account charges a round now; not before its start, and not once its charge came back."""


class HeldRound(msgspec.Struct, frozen=True, kw_only=True):
    """What `on_round` gets when a request has ended.

    Attributes:
        number: 1, 2, ... of the job's requests. request: what the job asked.
        aggregate: its sum; None where there is none, and then `reason` says why.
        attempts: how many rounds were asked for it. recalled: it ended in an earlier process; the journal knew it.
    """

    number: int
    request: RoundRequest
    aggregate: NoisyAggregate | None
    reason: str
    attempts: int
    recalled: bool


async def learn(
    job: Job[R],
    trainer: JobTrainer,
    terms: JobTerms,
    journal: Journal | None = None,
    *,
    clients: Sequence[bytes] = (),
    retries: int = RETRIES,
    on_round: Callable[[HeldRound], None] | None = None,
) -> R:
    """Run a job to its result.

    Args:
        job: not yet started.
        trainer: running.
        terms: of all rounds.
        journal: where a restarted process finds what is done; without one, everything begins anew.
        clients: ids that batches are picked of before the first round of everybody. Afterwards they are picked of the
            clients in the result of the last one.
        retries: how often an aborted round is held anew, before `NoAggregate` is thrown into the job. Where the job
            does not catch that, the next process tries again. A round that all have declined is not held anew.
        on_round: called when a request has ended, also with those that the journal knows.

    Raises:
        RoundAborted: a request ended without a sum, for aborts or because the account is spent, and the job could not
            do without.
        UsageError: the job asks differently than the journal says it did; it asks for a batch before anybody is known;
            a round that cannot be held.
        TransportError: the connection was closed.
    """
    rounds = JobRounds(trainer, terms, journal, clients=clients, retries=retries, on_round=on_round)
    with contextlib.closing(job):
        try:
            request = next(job)
            while True:
                try:
                    aggregate = await rounds.hold(request)
                except NoAggregate as ended:
                    request = job.throw(ended)
                else:
                    request = job.send(aggregate)
        except StopIteration as end:
            rounds.go_on()
            result: R = end.value
            return result


class JobRounds:
    """The rounds of one job, one after the other. Arguments are as for `learn`."""

    def __init__(
        self,
        trainer: JobTrainer,
        terms: JobTerms,
        journal: Journal | None,
        *,
        clients: Sequence[bytes] = (),
        retries: int = RETRIES,
        on_round: Callable[[HeldRound], None] | None = None,
    ) -> None:
        self._trainer = trainer
        self._terms = terms
        self._journal = journal
        self._clients = tuple(clients)
        self._retries = retries
        self._on_round = on_round
        self._batches = Batches()
        self._costs: dict[bytes, Cost] = {}  # of all rounds, by id
        self._summed: set[bytes] = set()  # rounds that gave a sum, which costs whatever an account says
        self._number = 0
        self._attempts, self._is_recalled = 0, True  # of the current request
        self._unheard: GivenUp | None = None  # the last request, if it has no sum

    @property
    def spent(self) -> PrivacyCost:
        """What the rounds so far cost the client that they cost most; also those that failed at that price.

        A round without a sum counts as long as the account charges it, until all Compute nodes have signed its abort.
        """
        return max_client_cost(self._charged)

    @property
    def _charged(self) -> list[Cost]:
        rounds = self._costs.items()
        return [cost for one, cost in rounds if one in self._summed or self._trainer.is_charged(one)]

    async def hold(self, request: RoundRequest) -> NoisyAggregate:
        """The sum of the job's next request, held now or recalled. Raises as `learn`."""
        self.go_on()
        self._number += 1
        known = self._recall(request)
        self._attempts, self._is_recalled = 0, True
        try:
            aggregate = await self._sum(request, known)
        except RoundAborted as ended:
            if known.given_up is None:
                self._unheard = GivenUp(self._number, ended.reason, ended.contributors, ended.needed)
            self._notify(request, None, ended.reason)
            raise
        self._notify(request, aggregate, "")
        return aggregate

    def go_on(self) -> None:
        """Record that the job goes on, or ends well, although its last request has no sum. So it is when recalled."""
        if self._unheard is not None:
            self._record(self._unheard)
            self._unheard = None

    # --- one request ----------------------------------------------------------------------------------------------

    async def _sum(self, request: RoundRequest, known: Recalled) -> NoisyAggregate:
        """What the recorded rounds gave, the last of them finished if it was left open; or fresh ones."""
        end: End | None = None
        for opened, recorded in known.attempts:
            end = recorded or await self._end_of(opened.round, self._trainer.rejoin(opened.round))
            self._is_recalled = recorded is not None
            self._note(opened.round, end)
            if isinstance(end, Summed):
                return end.aggregate
        if known.given_up is not None:
            raise _aborted(known.given_up)
        for _ in range(self._retries + self._is_recalled):  # one was held by this process if it was rejoined
            try:
                end = await self._fresh(request)
            except RoundAborted as aborted:  # there is no room to ask again: the reason is why it was asked in vain
                if not isinstance(end, Failed):
                    raise aborted from None
                reason = f"{end.reason}; {aborted.reason}"
                raise RoundAborted(
                    reason, contributors=end.contributors, needed=end.needed, remedy=aborted.remedy
                ) from None
            if isinstance(end, Summed):
                return end.aggregate
            if end.remedy:
                break
        assert isinstance(end, Failed), "there was an attempt"
        raise _aborted(end)

    async def _fresh(self, request: RoundRequest) -> End:
        """Hold a round under a fresh id. Raises `RoundAborted` where there cannot be any now."""
        self._is_recalled = False
        opened = self._terms.open(request, secrets.token_bytes(ID_BYTES), self._invited(request))
        if not self._terms.budget.covers(max_client_cost([*self._charged, opened.cost], opened.cost.clients)):
            raise RoundAborted(
                "the job's budget has no room for the round beside those that failed and have kept their charges",
                remedy="begin the job anew, at a new price, with another journal",
            )
        try:
            await self._trainer.check(opened)
        except BudgetError as refusal:
            raise RoundAborted(str(refusal), remedy=_ROOM) from None
        self._record(Opened(self._number, opened))
        end = await self._end_of(opened, self._trainer.hold(opened))
        self._note(opened, end)
        return end

    def _invited(self, request: RoundRequest) -> tuple[bytes, ...]:
        if not request.batch:
            return ()
        if not self._clients:
            raise UsageError(
                f"the job's request {self._number} is of a batch of {request.batch} clients, and none is known yet; "
                "begin with a round of everybody, or name the clients"
            )
        try:
            return self._batches.pick(self._clients, request.batch, secrets.token_bytes)
        except UsageError as error:  # fewer contributed than the job counted on: how it ends is up to it
            raise RoundAborted(str(error)) from None

    async def _end_of(self, opened: OpenRound, held: Awaitable[NoisyAggregate]) -> End:
        """Wait for a round and record how it ends."""
        self._costs[opened.round_id] = opened.cost  # whatever ends the wait
        try:
            aggregate = await held
        except RoundAborted as aborted:
            charged = self._trainer.is_charged(opened.round_id)
            figures = (aborted.contributors, aborted.needed, charged, aborted.remedy)
            return self._record(Failed(opened.round_id, aborted.reason, *figures))
        except BudgetError as refusal:  # another round was charged since it was checked
            return self._record(Failed(opened.round_id, str(refusal), None, None, False, _ROOM))
        contributors = () if opened.invited else self._trainer.contributors(opened.round_id)
        return self._record(Summed(opened.round_id, aggregate, contributors))

    def _record(self, entry: E) -> E:
        if self._journal is not None:
            self._journal.append(entry)
        return entry

    def _note(self, opened: OpenRound, end: End) -> None:
        """What a round says of who is there and who was used."""
        self._attempts += 1
        self._costs[opened.round_id] = opened.cost
        self._batches.note(opened.invited)
        if isinstance(end, Summed):
            self._summed.add(opened.round_id)
            self._clients = end.contributors or self._clients
        elif not end.charged:
            self._batches.give_back(opened.invited)

    def _notify(self, request: RoundRequest, aggregate: NoisyAggregate | None, reason: str) -> None:
        if self._on_round is not None:
            ended = HeldRound(
                number=self._number,
                request=request,
                aggregate=aggregate,
                reason=reason,
                attempts=self._attempts,
                recalled=self._is_recalled,
            )
            self._on_round(ended)

    # --- the journal ----------------------------------------------------------------------------------------------

    def _recall(self, request: RoundRequest) -> Recalled:
        """What is known of this request, if it is the same as then. Raises `UsageError`."""
        if self._journal is None:
            return Recalled()
        known = self._journal.recall(self._number)
        for opened, _ in known.attempts:
            expected = self._terms.open(request, opened.round.round_id, opened.round.invited)
            names = _differing(opened.round, expected)
            if len(opened.round.invited) != request.batch:
                names.append("batch")
            if names:
                raise UsageError(
                    f"request {self._number} of the job has another {', '.join(names)} than the journal "
                    f"{self._journal.path} says; go on with the program, settings and terms that began it, or give "
                    "the new job a journal of its own"
                )
        return known


def _aborted(end: Failed | GivenUp) -> RoundAborted:
    remedy = end.remedy if isinstance(end, Failed) else ""
    return RoundAborted(end.reason, contributors=end.contributors, needed=end.needed, remedy=remedy)


def _differing(one: OpenRound, other: OpenRound) -> list[str]:
    """The fields in which two rounds differ, as they are encoded; for how long is waited may differ."""
    first, second = msgspec.to_builtins(one), msgspec.to_builtins(other)
    names = [name for name in first if not name.endswith("_window_ms")]
    return [name for name in names if _plain(first[name]) != _plain(second[name])]


def _plain(value: object) -> bytes:
    return msgspec.msgpack.encode(value, order="sorted")
