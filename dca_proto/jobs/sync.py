"""A running trainer for callers without an event loop, such as estimators.

The trainer runs in a thread of its own for as long as the context is open, also between rounds: its connection stays.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.journal import Journal
from dca_proto.jobs.runner import RETRIES, JobRounds
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.runtime import device


class TrainerRounds:
    """The rounds of one job, by a trainer that runs as long as this context (`inference.rounds.Rounds`).

    with TrainerRounds(Path("trainer.toml"), terms) as rounds:
        result = run(job, rounds)

    Args:
        file: the trainer's TOML file.
        terms, journal, clients, retries: as for `learn`.
        on_report: called with every fact of the trainer, in its thread.
    """

    def __init__(
        self,
        file: Path,
        terms: JobTerms,
        journal: Journal | None = None,
        *,
        clients: Sequence[bytes] = (),
        retries: int = RETRIES,
        on_report: Callable[[object], None] | None = None,
    ) -> None:
        self._device = device.load(file, roles=("trainer",))
        self._terms = terms
        self._journal = journal
        self._clients = tuple(clients)
        self._retries = retries
        self._on_report = on_report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rounds: JobRounds | None = None

    def __enter__(self) -> TrainerRounds:
        started: Future[JobRounds] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="dca-trainer")
        self._thread.start()
        try:
            self._rounds = started.result()
        except BaseException:
            self._thread.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        try:
            if error is None:
                self._running.go_on()
        finally:  # also where the journal cannot be written: a thread that nobody ends would keep the process alive
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop = None

    async def _serve(self, started: Future[JobRounds]) -> None:
        """Run the trainer until the context ends; what prevents the start is raised in the caller's thread."""
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._device.live(self._on_report) as trainer:
                rounds = JobRounds(trainer, self._terms, self._journal, clients=self._clients, retries=self._retries)
                started.set_result(rounds)
                await self._over.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    @property
    def spent(self) -> PrivacyCost:
        """What the rounds so far cost the client that they cost most (`JobRounds.spent`)."""
        return self._running.spent

    def hold(self, request: RoundRequest) -> NoisyAggregate:
        """Hold one round and wait for it. Raises as `learn`."""
        rounds = self._running
        assert self._loop is not None, "it runs"
        waiting = asyncio.run_coroutine_threadsafe(rounds.hold(request), self._loop)
        try:
            return waiting.result()
        except KeyboardInterrupt:
            waiting.cancel()
            raise

    @property
    def _running(self) -> JobRounds:
        if self._loop is None or self._rounds is None:
            raise UsageError("hold rounds inside `with TrainerRounds(...)`")
        return self._rounds
