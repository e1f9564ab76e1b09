"""The pool of a Compute node: processes of this machine, or of a Ray cluster, that do its work on many clients.

All of them belong to the node's trust domain: they get pair keys and the secret of an epoch. On this machine these
travel over pipes. On a cluster every message is sealed with a key that the first call hands over, since Ray may write
large ones to disk; that call is a small message, which Ray keeps in memory.

Processes start once the node has done `START_US` of such work, so a small federation's node never has any. Work that
takes less than `PAYS_US` stays in the node's process. If a process dies, its part is done here, and the next work
starts another: the work is pure, so results do not depend on where it was done.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
import pickle
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from dca_proto.crypto.sealing import KEY_BYTES, NONCE_BYTES, decrypt, encrypt
from dca_proto.engine import Engine, Worker, WorkerDiedError
from dca_proto.errors import PeerError
from dca_proto.protocol.pool import PART_MAX, Pool

log = structlog.get_logger("dca.pool")
START_US = 2e6
"""Work after which processes start: 12,000 Hellos, or the first round of 50,000 clients."""
PAYS_US = 4e3
"""Work that is worth other processes: 27 Hellos, or the tags of 2,000 clients. To hand over a part takes 0.1 ms."""
_PART_S = 1.0
_DEATHS_MAX = 5  # after that, the machine is probably at fault
A = TypeVar("A")
B = TypeVar("B")


class ProcessPool(Pool):
    """Processes of an engine; a context manager that ends them.

    Args:
        engine: where they run. processes: how many; 0 for as many as the engine has cores.
        start_us, pays_us: see `START_US` and `PAYS_US`. on_part: see `Pool`.
    """

    def __init__(
        self,
        engine: Engine,
        processes: int = 0,
        *,
        start_us: float = START_US,
        pays_us: float = PAYS_US,
        on_part: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(on_part)
        self._engine = engine
        self._count = processes or engine.cores
        self._start_us, self._pays_us = start_us, pays_us
        self._asked_us = 0.0
        self._deaths = 0
        self._threads: ThreadPoolExecutor | None = None
        self._starting: dict[Future[None], _Process] = {}
        self._ready: list[_Process] = []

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *failure: object) -> None:
        for process in (*self._ready, *self._starting.values()):  # on a cluster, some may never start
            process.worker.end()
        if self._threads is not None:
            self._threads.shutdown()
        self._engine.end()

    def pays(self, count: int, us: float) -> bool:
        """See `Pool`. Also starts processes once there has been enough work."""
        if self._count < 2 or count * us < self._pays_us:
            return False
        self._asked_us += count * us
        if self._asked_us >= self._start_us:
            self._start()
        return bool(self._ready)

    def size(self, count: int, us: float) -> int:
        """Some parts for each process, so that none waits for long at the end."""
        return min(PART_MAX, max(-(-count // (2 * self._count)), max(1, math.ceil(self._pays_us / 2 / us))))

    def map(self, work: Callable[[A], B], parts: Iterable[A]) -> list[B]:
        """See `Pool`."""
        assert self._threads is not None, "`pays` has started the processes"
        numbered, lock = enumerate(parts), threading.Lock()
        results: dict[int, B] = {}
        lost: list[tuple[int, A]] = []

        def run(process: _Process) -> None:
            while True:
                with lock:
                    pair = next(numbered, None)
                if pair is None:
                    return
                try:
                    results[pair[0]] = process.call(work, pair[1])
                except WorkerDiedError:
                    lost.append(pair)
                    raise

        running = {process: self._threads.submit(run, process) for process in self._ready}
        while concurrent.futures.wait(running.values(), _PART_S).not_done:  # before an error of one is raised, for
            self._on_part()  # the others' pipes are in use
        for process, done in running.items():
            try:
                done.result()
            except WorkerDiedError as error:
                self._ready.remove(process)
                process.worker.end()
                self._note_death(error)
        for number, part in (*lost, *numbered):
            results[number] = work(part)
        return [results[number] for number in range(len(results))]

    def wait(self) -> None:
        """Start the processes if none are starting, and wait until they are ready."""
        self._start()
        concurrent.futures.wait(self._starting)
        self._start()

    def _start(self) -> None:
        """Take in the processes that are ready, and start those that are missing."""
        for future in [future for future in self._starting if future.done()]:
            process = self._starting.pop(future)
            try:
                future.result()
            except WorkerDiedError as error:
                process.worker.end()
                self._note_death(error)
            else:
                self._ready.append(process)
        missing = self._count - len(self._ready) - len(self._starting)
        is_main = threading.current_thread() is threading.main_thread()  # others may not set a process's signals
        if missing <= 0 or self._deaths >= _DEATHS_MAX or not is_main:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="dca-pool")
            log.info("processes start", count=self._count, cluster=not self._engine.is_local)
        for _ in range(missing):
            try:
                process = _Process(self._engine)
            except WorkerDiedError as error:
                self._note_death(error)
                return
            self._starting[self._threads.submit(process.prepare)] = process

    def _note_death(self, error: WorkerDiedError) -> None:
        self._deaths += 1
        then = "no more are started" if self._deaths >= _DEATHS_MAX else "its work is done here"
        log.error("process died", reason=str(error), then=then)


class _Process:
    """A worker of the engine, with the key that seals its messages unless it is on this machine."""

    def __init__(self, engine: Engine) -> None:
        self.worker: Worker = engine.worker(_Hands, "a Compute node's pool")
        self._key = b"" if engine.is_local else os.urandom(KEY_BYTES)

    def prepare(self) -> None:
        self.worker.call("prepare", self._key)

    def call(self, work: Callable[[A], B], part: A) -> B:
        if not self._key:
            result: B = self.worker.call("run", work, part)
            return result
        sealed = _seal(self._key, pickle.dumps((work, part)), b"")
        try:
            answered = _unseal(self._key, self.worker.call("run_sealed", sealed), sealed[:NONCE_BYTES])
        except PeerError as error:
            raise WorkerDiedError(f"a Compute node's pool sent no answer to its question ({error})") from None
        answer: B = pickle.loads(answered)  # noqa: S301 - authentic
        return answer


class _Hands:
    """What a process of the pool does."""

    def prepare(self, key: bytes) -> None:
        self._key = key

    def run(self, work: Callable[[Any], Any], part: Any) -> Any:
        return work(part)

    def run_sealed(self, sealed: bytes) -> bytes:
        work, part = pickle.loads(_unseal(self._key, sealed, b""))  # noqa: S301 - authentic
        return _seal(self._key, pickle.dumps(work(part)), sealed[:NONCE_BYTES])


def _seal(key: bytes, message: bytes, question: bytes) -> bytes:
    """Encrypt a message: a question, or the answer to the one whose nonce is given."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + encrypt(key, nonce, message, question)


def _unseal(key: bytes, sealed: bytes, question: bytes) -> bytes:
    """Decrypt what `_seal` returned for the same question. Raises `PeerError`."""
    return decrypt(key, sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], question)
