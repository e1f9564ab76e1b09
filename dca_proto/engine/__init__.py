"""Runs work in processes, on this machine's cores or on a cluster. All processes of the project start here.

    map      applies a pure function to many items, and yields results as they finish or in the items' order
    worker   keeps an object in a process of its own, and calls its methods

`local` maps with joblib's loky. Its workers are multiprocessing processes, because loky restarts a process that has
grown by 300 MB. `ray` maps with Ray tasks, and its workers are Ray actors.

    base      the interface, and the retry of lost items
    local     processes of this machine
    cluster   Ray

Mapped work must be pure: a result depends on its item alone. So every engine gives the same results. If a process
dies, `map` retries each item that it may have been working on, alone. An item that kills its process twice gets an
error, and the others continue. After five such deaths `map` raises `WorkerDiedError`. A worker has state, so it is
never retried: its call raises `WorkerDiedError` with its name.

Every process ends when the one that started it ends, for whatever reason. Only the parent receives Ctrl-C; it sends
the others SIGTERM, which unwinds their work.
"""

from __future__ import annotations

from dca_proto.engine.base import HELP, LOCAL, RAY, Done, Engine, Worker, WorkerDiedError, cores
from dca_proto.engine.local import LocalEngine, one_thread_each
from dca_proto.errors import UsageError

__all__ = [
    "HELP",
    "LOCAL",
    "RAY",
    "Done",
    "Engine",
    "Worker",
    "WorkerDiedError",
    "cores",
    "is_engine",
    "one_thread_each",
    "open_engine",
]


def is_engine(name: str) -> bool:
    """Return True if `open_engine` knows an engine of that name."""
    return name in {LOCAL, RAY} or name.startswith(f"{RAY}://")


def open_engine(name: str = LOCAL) -> Engine:
    """Return the engine of that name, a context manager.

    Args:
        name: a value of `--engine`; see `HELP`.

    Raises:
        UsageError: the name is unknown, Ray is not installed, or no cluster answers.
    """
    if name == LOCAL:
        return LocalEngine()
    if is_engine(name):
        from dca_proto.engine.cluster import RayEngine  # imports Ray, an optional dependency

        return RayEngine(name)
    raise UsageError(f"--engine {name}: expected local, ray or ray://host:port")
