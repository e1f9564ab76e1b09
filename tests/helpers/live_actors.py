"""A federation's folder, with policies that let rounds through; its clients and Compute nodes in a thread."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from patience import PATIENCE_S

from dca_proto.cli import main
from dca_proto.runtime import device
from dca_proto.runtime.transport import Connected

LET_THROUGH = """clients_min = 1
honest_min = 1
"""
WIDE = """epsilon_per_round_max = 100
epsilon_per_period_max = 100
delta_max = 1e-5
"""


def federation(
    folder: Path,
    url: str,
    data: Sequence[str],
    *,
    computes: int = 2,
    colluding: int = 0,
    limits: str = LET_THROUGH,
    policy: str = "",
    trainer: str = "",
) -> None:
    """Make everybody's files, for a client with each of some data.

    Args:
        limits: of the policies of clients and the floors of Compute nodes. policy: more of the policies.
        trainer: sections of the trainer's file. colluding: p, of the federation file.
    """
    name = f"e2e-{hashlib.sha256(bytes(folder)).hexdigest()[:12]}"
    given = ["--name", name, "--clients", str(len(data)), "--broker", url]
    given += ["--computes", str(computes)] if computes else ["--without-computes"]
    given += ["--colluding", str(colluding)] if colluding else []
    assert main(["federation", "init", str(folder), *given]) == 0
    for index, text in enumerate(data, 1):
        (folder / f"client-{index}.csv").write_text(text)
    sections = {"client": f"[policy]\n{limits}{policy}", "compute": f"[floors]\n{limits}", "trainer": trainer}
    for role, section in sections.items():
        for path in folder.glob(f"{role}*.toml"):
            path.write_text(f"{path.read_text()}\n{section}")


class Actors:
    """Clients and Compute nodes of a folder's files, in a thread with an event loop of its own.

    Args:
        folder: of a federation.
        names: of those files that matter; by default all clients and Compute nodes.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self._paths = [
            path for name in names or ("client-*", "compute-*") for path in sorted(folder.glob(f"{name}.toml"))
        ]
        self._facts: list[object] = []
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Actors:
        self._thread.start()
        self.wait_for(Connected, len(self._paths))
        return self

    def __exit__(self, *failure: object) -> None:
        self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        self._all = asyncio.gather(*(device.load(path).run(self._note) for path in self._paths))
        with pytest.raises(asyncio.CancelledError):
            await self._all

    def _note(self, fact: object) -> None:
        with self._changed:
            self._facts.append(fact)
            self._changed.notify()

    def wait_for(self, kind: type, count: int) -> None:
        """Wait until the actors have reported so many facts of a kind."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(isinstance(one, kind) for one in self._facts) >= count, PATIENCE_S
            )
