"""Runs a job's rounds for callers without an event loop, such as estimators.

The trainer runs in a separate thread while the context is open. It stays connected between rounds.
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
    """Runs the rounds of one job on a trainer that runs while this context is open (`inference.rounds.Rounds`).

    with TrainerRounds(Path("trainer.toml"), terms) as rounds:
        result = run(job, rounds)

    Args:
        file: the trainer's TOML file.
        terms, journal, clients, retries: as for `learn`.
        on_report: called with every fact of the trainer, in the trainer's thread.
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
        finally:  # even if the journal cannot be written: a running thread would keep the process alive
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop = None

    async def _serve(self, started: Future[JobRounds]) -> None:
        """Run the trainer until the context ends. An error before the start goes to the caller's thread."""
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
        """The cost of all rounds so far to the client with the highest total (`JobRounds.spent`)."""
        return self._running.spent

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        """Run one round and return its result. Raises as `learn`."""
        rounds = self._running
        assert self._loop is not None, "`_running` checks it"
        waiting = asyncio.run_coroutine_threadsafe(rounds.run_round(request), self._loop)
        try:
            return waiting.result()
        except KeyboardInterrupt:
            waiting.cancel()
            raise

    @property
    def _running(self) -> JobRounds:
        if self._loop is None or self._rounds is None:
            raise UsageError("run rounds inside `with TrainerRounds(...)`")
        return self._rounds
