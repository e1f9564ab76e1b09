"""Where work runs: on this machine's cores, or on a cluster. The emulator takes all its worker processes from here.

    map      pure work on many items, in the order in which it is done or in that of the items
    worker   an object that lives in a process of its own, whose methods are called

`local` maps by joblib's loky. Its workers are processes of multiprocessing, because loky ends a process that has grown
by 300 MB. `ray` maps by Ray's tasks, and its workers are Ray's actors.

    base      what engines have in common
    local     processes of this machine
    cluster   Ray

Mapped work must be pure: a result depends on its item alone. So it is the same on every engine, and work whose process
died is tried a second time, alone. Work that dies twice is named, and the other items go on, until five have died:
then `map` raises `WorkerDiedError`. A worker has a state, so
nothing of it is tried again: its next call raises `WorkerDiedError`, which names it.

A process ends with the one that started it, however that ends. Ctrl-C is for that one to answer: the others do not
receive it, and get SIGTERM, which unwinds what they do.
"""

from __future__ import annotations

from dca_proto.errors import UsageError
from emulator.engine.base import HELP, LOCAL, RAY, Done, Engine, Worker, WorkerDiedError, cores
from emulator.engine.local import LocalEngine, one_thread_each

__all__ = [
    "HELP",
    "LOCAL",
    "RAY",
    "Done",
    "Engine",
    "Worker",
    "WorkerDiedError",
    "cores",
    "one_thread_each",
    "open_engine",
]


def open_engine(name: str = LOCAL) -> Engine:
    """The engine of that name, to be used as a context.

    Args:
        name: as `--engine` has it; see `HELP`.

    Raises:
        UsageError: there is none of that name, Ray is not installed, or no cluster answers.
    """
    if name == LOCAL:
        return LocalEngine()
    if name == RAY or name.startswith(f"{RAY}://"):
        from emulator.engine.cluster import RayEngine  # which needs what a cluster needs

        return RayEngine(name)
    raise UsageError(f"--engine {name}: expected local, ray or ray://host:port")
