"""Runs the rounds of a learning job on a running trainer; retries aborted rounds and recalls earlier results.

A job is a generator of `RoundRequest`s. After a restart it runs from the beginning and gets the results in the journal,
so it must make the same requests again; this is checked. It continues with the first request that has no recorded
outcome.

A mini-batch is picked from the clients in the result of the last round open to all clients. The job begins with such a
round, or its caller names the clients. If a batch's round fails at no cost, the retry prefers other clients among those
used equally often. If it fails and keeps its charge, it counts as a use. Without Compute nodes, every failed round
keeps its charge unless all invited clients declined. No round starts that could bring some client's total cost above
the job's budget; the request ends without a result instead.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from dca_proto.aggregate import Job, NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import ImplausibleSum, NoAggregate, RoundAborted, UsageError
from dca_proto.jobs.job import Batches, JobTerms
from dca_proto.jobs.journal import Entry, Failed, GivenUp, Journal, Opened, Recalled, Summed
from dca_proto.plausibility import checked
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.ledger import CostToClients, max_client_cost
from dca_proto.protocol.policy import BudgetError
from dca_proto.protocol.terms import Windows
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.fields import REPEATS_MAX
from dca_proto.quorum import NO_NODES, Quorum

R = TypeVar("R")
E = TypeVar("E", bound=Entry)
End = Summed | Failed
RETRIES = 2
_ROOM = "when the account has room again, the same command continues from there"


class JobTrainer(Protocol):
    """The interface that a job needs from a trainer; `dca_proto.runtime.live.LiveTrainer` implements it."""

    async def check(self, request: OpenRound) -> None:
        """Check a round before it starts. Raises `UsageError`, `BudgetError`."""

    async def run_round(self, request: OpenRound) -> NoisyAggregate:
        """Run a new round. Raises `RoundAborted`, `BudgetError`."""

    async def resume_round(self, request: OpenRound) -> NoisyAggregate:
        """Finish a round of an earlier process, from its stored state. Raises as `run_round`."""

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        """Return the sorted ids of the clients in a round's result, from the trainer's store."""

    def is_charged(self, round_id: bytes) -> bool:
        """Return True if the account has a charge for the round that was not given back."""


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a job's request, as passed to `on_round`.

    Attributes:
        number: the request's number (1, 2, ...). request: the job's request.
        aggregate: the result; None if there is none, with the reason in `reason`.
        quorum: of a failure, the Compute nodes of its last round, and those that were lost.
        unproven: of a failure, how many proofs failed in its last round.
        attempts: how many rounds were tried. recalled: the request ended in an earlier process.
    """

    number: int
    request: RoundRequest
    aggregate: NoisyAggregate | None
    reason: str
    attempts: int
    recalled: bool
    quorum: Quorum = NO_NODES
    unproven: int = 0


async def learn(
    job: Job[R],
    trainer: JobTrainer,
    terms: JobTerms,
    journal: Journal | None = None,
    *,
    clients: Sequence[bytes] = (),
    retries: int = RETRIES,
    on_round: Callable[[FinishedRequest], None] | None = None,
) -> R:
    """Run a job and return its result.

    Args:
        job: not yet started.
        trainer: running.
        terms: the terms of all rounds.
        journal: records progress for a restarted process; without one, a restart begins anew.
        clients: ids to pick batches from before the first round open to all clients. Afterwards batches are picked
            from the clients in the result of the last such round.
        retries: how often an aborted round is retried before `NoAggregate` is thrown into the job. If the job does not
            catch it, the next process tries again. A round that everybody declined is not retried.
        on_round: called when a request has ended, including recalled ones.

    Raises:
        RoundAborted: a request ended without a result, because of aborts, of a spent account or of an impossible sum
            (`ImplausibleSum`), and the job did not catch it.
        UsageError: a request differs from the journal's, asks for a batch before any client is known, or is invalid.
        TransportError: the connection was closed.
    """
    rounds = JobRounds(trainer, terms, journal, clients=clients, retries=retries, on_round=on_round)
    with contextlib.closing(job):
        try:
            request = next(job)
            while True:
                try:
                    aggregate = await rounds.run_round(request)
                except NoAggregate as ended:
                    request = job.throw(ended)
                else:
                    request = job.send(aggregate)
        except StopIteration as end:
            rounds.go_on()
            result: R = end.value
            return result


class JobRounds:
    """Runs the rounds of one job, one after another. Arguments are as for `learn`."""

    def __init__(
        self,
        trainer: JobTrainer,
        terms: JobTerms,
        journal: Journal | None,
        *,
        clients: Sequence[bytes] = (),
        retries: int = RETRIES,
        on_round: Callable[[FinishedRequest], None] | None = None,
    ) -> None:
        self._trainer = trainer
        self._terms = terms
        self._journal = journal
        self._clients = tuple(clients)
        self._retries = retries
        self._on_round = on_round
        self._batches = Batches()
        self._costs: dict[bytes, CostToClients] = {}  # of all rounds, by id
        discarded = [] if journal is None else journal.discarded
        self._discarded = [opened.cost_to_clients for opened in discarded]
        self._summed: set[bytes] = set()  # ids of rounds with a result; they count even if not charged
        self._number = 0
        self._last_invited: tuple[bytes, ...] = ()  # of the current request's last round
        self._attempts, self._is_recalled = 0, True  # of the current request
        self._failed_request: GivenUp | None = None  # the last request, if it has no result

    @property
    def spent(self) -> PrivacyCost:
        """The cost of all rounds so far to the client with the highest total.

        A failed round counts while the account charges it, which is until p + 1 Compute nodes have signed its abort. So
        do the rounds that the user discarded from the journal, which the job's own budget does not count.
        """
        return max_client_cost([*self._charged, *self._discarded])

    @property
    def _charged(self) -> list[CostToClients]:
        rounds = self._costs.items()
        return [cost for round_id, cost in rounds if round_id in self._summed or self._trainer.is_charged(round_id)]

    async def run_round(self, request: RoundRequest) -> NoisyAggregate:
        """Return the result of the job's next request, run now or recalled. Raises as `learn`."""
        self.go_on()
        self._number += 1
        known = self._recall(request)
        self._attempts, self._is_recalled = 0, True
        try:
            aggregate = await self._sum(request, known)
        except RoundAborted as ended:
            if known.given_up is None:
                about = (ended.contributors, ended.needed, ended.quorum, ended.unproven)
                self._failed_request = GivenUp(self._number, ended.reason, *about)
            self._notify(request, None, ended.reason, ended)
            raise
        self._notify(request, aggregate, "")
        return aggregate

    def go_on(self) -> None:
        """If the last request has no result, record that the job continued without it; a restart then does the same."""
        if self._failed_request is not None:
            self._record(self._failed_request)
            self._failed_request = None

    # --- one request ----------------------------------------------------------------------------------------------

    async def _sum(self, request: RoundRequest, recalled: Recalled) -> NoisyAggregate:
        """Return the result of a recorded round, after finishing an open one; otherwise run new rounds."""
        end: End | None = None
        repeats: tuple[bytes, ...] = ()
        for opened, recorded in recalled.attempts:
            end = recorded or await self._end_of(opened.round, self._trainer.resume_round(opened.round))
            repeats = _with(repeats, end)
            self._is_recalled = recorded is not None
            self._last_invited = opened.round.invited
            self._note(opened.round, end)
            if isinstance(end, Summed):
                return checked(end.aggregate)
        if recalled.given_up is not None:
            raise _aborted(recalled.given_up)
        # a rejoined round counts as an attempt of this process, unless it is to be repeated
        attempts = self._retries + (self._is_recalled or bool(repeats))
        while attempts:
            try:
                end = await self._fresh(request, repeats)
            except RoundAborted as aborted:  # no room for a retry: the reason names the failed attempt first
                if not isinstance(end, Failed):
                    raise aborted from None
                if end.implausible:
                    raise _aborted(end) from None
                reason = f"{end.reason}; {aborted.reason}"
                raise RoundAborted.of(end, reason=reason, remedy=aborted.remedy) from None
            if isinstance(end, Summed):
                return end.aggregate
            if end.remedy:
                break
            repeats = _with(repeats, end)
            attempts -= not repeats
        assert isinstance(end, Failed), "there was an attempt"
        raise _aborted(end)

    async def _fresh(self, request: RoundRequest, repeats: tuple[bytes, ...]) -> End:
        """Run a round under a fresh id. Raises `RoundAborted` if no round can start now.

        It asks the same clients as the cancelled rounds that it `repeats`.
        """
        self._is_recalled = False
        invited = self._last_invited if repeats else self._invited(request)
        opened = self._terms.open(request, secrets.token_bytes(ID_BYTES), invited)
        opened = msgspec.structs.replace(opened, repeats=repeats)
        self._last_invited = invited
        cost = opened.cost_to_clients
        if not self._terms.budget.covers(max_client_cost([*self._charged, cost], cost.clients)):
            raise RoundAborted(
                "the job's budget has no room for the round: failed rounds have kept their charges",
                remedy="start the job again, at a new cost, with another journal, or drop the failed round from this "
                "one with --discard-round",
            )
        try:
            await self._trainer.check(opened)
        except BudgetError as refusal:
            raise RoundAborted(str(refusal), remedy=_ROOM) from None
        self._record(Opened(self._number, opened))
        end = await self._end_of(opened, self._trainer.run_round(opened))
        self._note(opened, end)
        return end

    def _invited(self, request: RoundRequest) -> tuple[bytes, ...]:
        if not request.batch:
            return ()
        if not self._clients:
            raise UsageError(
                f"the job's request {self._number} asks for a batch of {request.batch} clients, and no client is known "
                "yet; begin with a round open to all clients, or name the clients"
            )
        try:
            return self._batches.pick(self._clients, request.batch, secrets.token_bytes)
        except UsageError as error:  # too few clients contributed before: let the job decide what to do
            raise RoundAborted(str(error)) from None

    async def _end_of(self, opened: OpenRound, result: Awaitable[NoisyAggregate]) -> End:
        """Wait for a round and record its outcome."""
        self._costs[opened.round_id] = opened.cost_to_clients  # counts even if the wait fails
        try:
            aggregate = await result
        except RoundAborted as aborted:
            charged = self._trainer.is_charged(opened.round_id)
            counts, implausible = (aborted.contributors, aborted.needed), isinstance(aborted, ImplausibleSum)
            failed = Failed(opened.round_id, aborted.reason, *counts, charged, aborted.remedy, implausible)
            more = {name: getattr(aborted, name) for name in ("repeatable", "quorum", "unproven")}
            return self._record(msgspec.structs.replace(failed, **more))
        except BudgetError as refusal:  # another round was charged since the check
            return self._record(Failed(opened.round_id, str(refusal), None, None, False, _ROOM))
        contributors = () if opened.invited else self._trainer.contributors(opened.round_id)
        return self._record(Summed(opened.round_id, aggregate, contributors))

    def _record(self, entry: E) -> E:
        if self._journal is not None:
            self._journal.append(entry)
        return entry

    def _note(self, opened: OpenRound, end: End) -> None:
        """Count a round's clients as used, unless it failed at no cost, and note who is available."""
        self._attempts += 1
        self._costs[opened.round_id] = opened.cost_to_clients
        self._batches.note(opened.invited)
        if isinstance(end, Summed):
            self._summed.add(opened.round_id)
            self._clients = end.contributors or self._clients
        elif not end.charged:
            self._batches.give_back(opened.invited)

    def _notify(
        self, request: RoundRequest, aggregate: NoisyAggregate | None, reason: str, aborted: RoundAborted | None = None
    ) -> None:
        if self._on_round is not None:
            ended = FinishedRequest(
                number=self._number,
                request=request,
                aggregate=aggregate,
                reason=reason,
                attempts=self._attempts,
                recalled=self._is_recalled,
                quorum=NO_NODES if aborted is None else aborted.quorum,
                unproven=0 if aborted is None else aborted.unproven,
            )
            self._on_round(ended)

    # --- the journal ----------------------------------------------------------------------------------------------

    def _recall(self, request: RoundRequest) -> Recalled:
        """Return the journal's entries for this request. Raises `UsageError` if the request has changed."""
        if self._journal is None:
            return Recalled()
        known = self._journal.recall(self._number)
        for opened, _ in known.attempts:
            expected = self._terms.open(request, opened.round.round_id, opened.round.invited)
            names = _differing_fields(opened.round, expected)
            if len(opened.round.invited) != request.batch:
                names.append("batch")
            if names:
                raise UsageError(
                    f"request {self._number} of the job has another {', '.join(names)} than in the journal "
                    f"{self._journal.path}; continue with the program, settings and terms that began it, or give the "
                    "new job another journal"
                )
        return known


def _aborted(end: Failed | GivenUp) -> RoundAborted:
    if isinstance(end, Failed) and end.implausible:
        return ImplausibleSum(end.reason, quorum=end.quorum)
    remedy = end.remedy if isinstance(end, Failed) else ""
    return RoundAborted.of(end, remedy=remedy)


def _differing_fields(one: OpenRound, other: OpenRound) -> list[str]:
    """Return the fields in which two rounds differ when encoded, except their time windows, nodes and repeats.

    A federation may have other Compute nodes when a job is resumed.
    """
    first, second = (
        {name: msgspec.msgpack.encode(value, order="sorted") for name, value in msgspec.to_builtins(round_).items()}
        for round_ in (one, other)
    )
    free = {*Windows.__struct_fields__, "computes", "repeats"}
    return [name for name in first if name not in free and first[name] != second[name]]


def _with(repeats: tuple[bytes, ...], end: End) -> tuple[bytes, ...]:
    """Return the ids of the cancelled rounds that the next one repeats: those before one, and that one."""
    may_repeat = isinstance(end, Failed) and end.repeatable and len(repeats) < REPEATS_MAX
    return (*repeats, end.round_id) if may_repeat else ()
