"""A trainer that holds rounds: commands in, results out, over a running actor.

async with LiveTrainer(actor, transport, store, federation="demo") as trainer:
    aggregate = await trainer.hold(request)

A round of an earlier process is finished by `rejoin`, under its own id: the trainer's store knows how far it is.

The start of a trainer also asks again for the aborts of earlier rounds that failed. A round that the account refuses
waits until that is settled, some seconds at most, for it may bring charges back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from dca_proto.aggregate import NoisyAggregate
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.protocol.actor import NEW
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.protocol.policy import BudgetError
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.runtime.runner import Runner, SystemClock
from dca_proto.runtime.store import Store
from dca_proto.runtime.transport import Transport

_FAREWELL_S = 5.0
POLICIES = "once the clients' [policy] allows it, the same command asks again; to ask for less, name another journal"


class LiveTrainer:
    """Runs a trainer's actor in the background and waits for its rounds.

    Args:
        actor, transport, store, federation: as for `Runner`.
        on_report: called with every fact of the trainer, results included.
    """

    def __init__(
        self,
        actor: Trainer,
        transport: Transport,
        store: Store,
        *,
        federation: str,
        on_report: Callable[[object], None] | None = None,
    ) -> None:
        self._actor = actor
        self._on_report = on_report
        self._asked: dict[bytes, OpenRound] = {}
        self._results: dict[bytes, asyncio.Future[RoundCompleted | RoundFailed]] = {}
        self._running: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()
        self._clock = SystemClock()
        self.runner = Runner(actor, transport, store, federation=federation, on_report=self._report, clock=self._clock)

    async def __aenter__(self) -> LiveTrainer:
        self._running = asyncio.create_task(self.runner.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        if error is None:  # the last receipts leave first: whoever has none sends its report until the round's close
            self.runner.stop()
            await asyncio.wait([self._running], timeout=_FAREWELL_S)
        self._running.cancel()
        await asyncio.wait([self._running])

    async def check(self, request: OpenRound) -> None:
        """Raise what is wrong with a round that is to be held, once it is settled what earlier ones cost.

        In the runner the caller's mistake would end all rounds. Raises `UsageError` if the request cannot be held,
        `BudgetError` if it exceeds the trainer's account now.
        """
        while True:
            try:
                self._actor.check_request(request, self._clock.now_ms(), self._asked.values())
                return
            except BudgetError:
                if not self._actor.is_settling(self._clock.now_ms()):
                    raise
            self._failed.clear()
            await self._unless_it_ends(asyncio.ensure_future(self._failed.wait()))

    async def hold(self, request: OpenRound) -> NoisyAggregate:
        """Hold one round and wait for its result.

        Raises:
            RoundAborted: the round ended without one, by its own rules. What became of its charge is said, too.
            UsageError: the request cannot be held, or exceeds the trainer's account.
            TransportError: the connection was closed.
        """
        return await self._result(request.round_id, self._ask(request))

    async def rejoin(self, request: OpenRound) -> NoisyAggregate:
        """Finish a round that an earlier process was to hold: from wherever that left it, or from its beginning.

        Raises as `hold`, and `RoundAborted` where the round is over, and so long ago that its result is forgotten.
        """
        round_id = request.round_id
        if self._actor.phase(round_id) != NEW:
            return await self._result(round_id, self._recall(round_id))
        if round_id in self._actor.ledger:
            raise RoundAborted(f"round {round_id.hex()} is over, and the trainer's store no longer has its result")
        return await self.hold(request)

    async def finish(self) -> list[RoundCompleted | RoundFailed]:
        """Run until all rounds of the trainer's store have ended; how each did, by their ids. Raises as `hold`."""
        ends = {one: asyncio.get_running_loop().create_future() for one in self._actor.unfinished(self._clock.now_ms())}
        self._results |= ends
        if ends:
            async with self:
                for end in ends.values():
                    await self._unless_it_ends(end)
        return [ends[one].result() for one in sorted(ends)]

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        """The ids of the clients in a round's result, sorted, for as long as the trainer's store knows the round."""
        return self._actor.contributors(round_id)

    def is_charged(self, round_id: bytes) -> bool:
        """Whether the account has a charge of the round that has not come back."""
        return self._actor.ledger.is_charged(round_id)

    async def _result(self, round_id: bytes, begin: Coroutine[Any, Any, None]) -> NoisyAggregate:
        """What a round comes to, after `begin`."""
        if self._running is None or round_id in self._results:
            begin.close()
            raise UsageError("hold rounds inside `async with`, and give each a fresh round id")
        result = self._results[round_id] = asyncio.get_running_loop().create_future()
        try:
            await begin
            await self._unless_it_ends(result)
            ended = result.result()
        finally:
            del self._results[round_id]
        if isinstance(ended, RoundCompleted):
            return ended.aggregate
        remedy = POLICIES if ended.declined else ""
        raise RoundAborted(ended.reason, contributors=ended.contributors, needed=ended.needed, remedy=remedy)

    async def _ask(self, request: OpenRound) -> None:
        await self.check(request)
        self._asked[request.round_id] = request
        self.runner.command(request)

    async def _recall(self, round_id: bytes) -> None:
        """Take the end of a round that was reported before anybody waited for it; any other is reported in time."""
        ended = self._actor.ended(round_id)
        if ended is not None:
            self._settle(ended)

    async def _unless_it_ends(self, awaited: asyncio.Future[Any]) -> None:
        """Wait, and raise what ended the runner if that comes first."""
        assert self._running is not None
        try:
            await asyncio.wait([awaited, self._running], return_when=asyncio.FIRST_COMPLETED)
            if not awaited.done():
                self._running.result()
                raise RoundAborted("the trainer was stopped before the round was over")
        finally:
            awaited.cancel()

    def _report(self, fact: object) -> None:
        if self._on_report is not None:
            self._on_report(fact)
        if not isinstance(fact, RoundCompleted | RoundFailed):
            return
        self._asked.pop(fact.round_id, None)
        if isinstance(fact, RoundFailed):
            self._failed.set()
        self._settle(fact)

    def _settle(self, fact: RoundCompleted | RoundFailed) -> None:
        result = self._results.get(fact.round_id)
        if result is not None and not result.done():  # else a round of an earlier run that nobody here waits for
            result.set_result(fact)
