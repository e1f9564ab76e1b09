"""Runs a trainer in the background: a caller asks for rounds and awaits their results.

async with LiveTrainer(actor, transport, store, federation=federation.id) as trainer:
    aggregate = await trainer.run_round(request)

`resume_round` finishes a round that an earlier process began, under the same id, from its state in the trainer's store.

When a trainer starts, it asks again for the aborts of earlier failed rounds, which may give charges back. If the
account refuses a new round, the round waits for these answers, for some seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import ImplausibleSum, RoundAborted, UsageError
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.protocol.policy import BudgetError
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.fields import REPEATS_MAX
from dca_proto.runtime.clock import Clock, SystemClock
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.store import Store
from dca_proto.runtime.transport import Transport
from dca_proto.wording import listed

_FAREWELL_S = 5.0
Ended = RoundCompleted | RoundFailed


class LiveTrainer:
    """Runs a trainer's actor in the background and waits for its rounds.

    Args:
        actor, transport, store, federation: as for `Runner`.
        on_report: called with every fact of the trainer, including results.
        clock: the machine's by default.
    """

    def __init__(
        self,
        actor: Trainer,
        transport: Transport,
        store: Store,
        *,
        federation: bytes,
        on_report: Callable[[object], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._actor = actor
        self._on_report = on_report
        self._requested: dict[bytes, OpenRound] = {}
        self._results: dict[bytes, asyncio.Future[Ended]] = {}
        self._running: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()
        self._clock = clock or SystemClock()
        # a start reports them again: to those who await them, not to the log
        self._ended_before = actor.ended_rounds(self._clock.now_ms())
        self.runner = Runner(actor, transport, store, federation=federation, on_report=self._report, clock=self._clock)

    async def __aenter__(self) -> LiveTrainer:
        self._running = asyncio.create_task(self.runner.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        if error is None:  # send the last receipts first: a client without one resends until the round closes
            self.runner.stop()
            await asyncio.wait([self._running], timeout=_FAREWELL_S)
        self._running.cancel()
        await asyncio.wait([self._running])

    async def check(self, request: OpenRound) -> None:
        """Check a request before it runs, since an error inside the runner would end all rounds.

        If the account has no room for it, waits until the costs of earlier rounds are settled. Raises `UsageError` if
        the request is invalid, `BudgetError` if it exceeds the account even then.
        """
        while True:
            try:
                self._actor.check_request(request, self._clock.now_ms(), self._requested.values())
                return
            except BudgetError:
                if not self._actor.is_settling(self._clock.now_ms()):
                    raise
            self._failed.clear()
            await self._wait_while_running(asyncio.ensure_future(self._failed.wait()))

    def check_job(self, cost: PrivacyCost) -> None:
        """Raise `BudgetError` if the account has no room now for a job with this total cost."""
        self._actor.check_job([cost], self._clock.now_ms())

    async def run_round(self, request: OpenRound) -> NoisyAggregate:
        """Run one round and return its result.

        Raises:
            RoundAborted: the round ended without a result. The message also states what happened to its charge. An
                `ImplausibleSum` if no honest clients can have made the sum.
            UsageError: the request is invalid, or exceeds the trainer's account.
            TransportError: the connection was closed.
        """
        with self._awaited(request.round_id) as result:
            await self.check(request)
            self._requested[request.round_id] = request
            self.runner.command(request)
            return await self._outcome(result)

    async def run_repeated(self, request: OpenRound) -> NoisyAggregate:
        """Run a round; repeat it without Compute nodes that are silent. Raises as `run_round`."""
        while True:
            try:
                return await self.run_round(request)
            except RoundAborted as aborted:
                if not aborted.repeatable or len(request.repeats) == REPEATS_MAX:
                    raise
            repeats = (*request.repeats, request.round_id)
            request = msgspec.structs.replace(request, round_id=secrets.token_bytes(ID_BYTES), repeats=repeats)

    async def resume_round(self, request: OpenRound) -> NoisyAggregate:
        """Finish a round of an earlier process, from its stored state; run it from the start if it never began.

        Raises as `run_round`, and `RoundAborted` if the round ended so long ago that the store no longer has its
        result.
        """
        round_id = request.round_id
        if self._actor.knows(round_id):
            with self._awaited(round_id) as result:
                if (ended := self._actor.ended(round_id)) is not None:  # before anyone awaited it
                    self._settle(ended)
                return await self._outcome(result)
        if round_id in self._actor.ledger:
            raise RoundAborted(f"round {round_id.hex()} is over, and the trainer's store no longer has its result")
        return await self.run_round(request)

    async def finish(self) -> list[Ended]:
        """Run until all rounds in the trainer's store have ended; return how each did, by id. Raises as `run_round`."""
        round_ids = self._actor.unfinished(self._clock.now_ms())
        results = {round_id: asyncio.get_running_loop().create_future() for round_id in round_ids}
        self._results |= results
        if results:
            async with self:
                for result in results.values():
                    await self._wait_while_running(result)
        return [results[round_id].result() for round_id in sorted(results)]

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        """Return the sorted ids of the clients in a round's result, while the trainer's store has the round."""
        return self._actor.contributors(round_id)

    def is_charged(self, round_id: bytes) -> bool:
        """Return True if the account has a charge for the round that was not given back."""
        return self._actor.ledger.is_charged(round_id)

    @contextlib.contextmanager
    def _awaited(self, round_id: bytes) -> Iterator[asyncio.Future[Ended]]:
        """Yield the future of a round's end."""
        if self._running is None or round_id in self._results:
            raise UsageError("run rounds inside `async with`, and give each a fresh round id")
        self._results[round_id] = asyncio.get_running_loop().create_future()
        try:
            yield self._results[round_id]
        finally:
            del self._results[round_id]

    async def _outcome(self, result: asyncio.Future[Ended]) -> NoisyAggregate:
        """Return the aggregate of a round once it has ended. Raises `RoundAborted` if it has none."""
        await self._wait_while_running(result)
        ended = result.result()
        if isinstance(ended, RoundCompleted):
            return ended.aggregate
        raise abort_of(ended)

    async def _wait_while_running(self, awaited: asyncio.Future[Any]) -> None:
        """Wait for a future. If the runner ends first, raise its error."""
        assert self._running is not None
        try:
            await asyncio.wait([awaited, self._running], return_when=asyncio.FIRST_COMPLETED)
            if not awaited.done():
                self._running.result()
                raise RoundAborted("the trainer was stopped before the round was over")
        finally:
            awaited.cancel()

    def _report(self, fact: object) -> None:
        is_old = isinstance(fact, Ended) and fact.round_id in self._ended_before
        if self._on_report is not None and not is_old:
            self._on_report(fact)
        if not isinstance(fact, Ended):
            return
        self._requested.pop(fact.round_id, None)
        if isinstance(fact, RoundFailed):
            self._failed.set()
        self._settle(fact)

    def _settle(self, fact: Ended) -> None:
        result = self._results.get(fact.round_id)
        if result is not None and not result.done():  # otherwise nobody awaits it: a round of an earlier run
            result.set_result(fact)


def abort_of(ended: RoundFailed, *, resumed: bool = False) -> RoundAborted:
    """Return the error of a failed round, with what to do about it.

    By default the same command asks for the round again. A round that was `resumed` has no such command.
    """
    if ended.implausible:
        return ImplausibleSum(ended.reason, quorum=ended.quorum)
    again = "ask for the round again" if resumed else "run the same command again"
    other = "" if resumed else "; a job that asks for other terms needs another journal"
    remedy = ""
    if ended.declined:
        remedy = f"once the clients accept these terms ([policy] of their files), {again}{other}"
    elif ended.refused:
        remedy = f"once the Compute node accepts these terms ([floors] of its file), {again}{other}"
    elif ended.hopeless:
        remedy = (
            "those clients will fail again: find out why, and ask again without them, or with a larger tolerate; "
            "before you revoke one that lied, look whether a Compute node did, which can fail any client"
        )
    elif ended.lost and not ended.repeatable:
        remedy = f"start {listed(ended.lost)} again, then {again.removesuffix(' again')}"
    return RoundAborted.of(ended, remedy=remedy, repeatable=ended.repeatable)
