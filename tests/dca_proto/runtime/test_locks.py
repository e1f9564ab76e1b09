"""A locked file has one user at a time, whose process the error names. The lock ends with the process."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from dca_proto.cli import deployed
from dca_proto.errors import StorageError
from dca_proto.jobs.journal import Journal
from dca_proto.jobs.series import Series
from dca_proto.runtime import locks
from dca_proto.runtime.locks import locked, release
from dca_proto.runtime.store import SqliteStore

FLAGS = os.O_RDWR | os.O_CREAT
HOLDER = """
import os, sys, time
from pathlib import Path
from dca_proto.runtime.locks import locked
locked(Path(sys.argv[1]), os.O_RDWR | os.O_CREAT, "the file", "wait")
print("locked", flush=True)
time.sleep(1000)
"""


@contextmanager
def store(path: Path) -> Any:
    opened = SqliteStore(path, bytes(32))
    try:
        yield
    finally:
        asyncio.run(opened.close())


def deployment(path: Path) -> AbstractContextManager[None]:
    path.mkdir(exist_ok=True)
    return deployed._alone(path)


USERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "store": store,
    "the journal": lambda path: Journal(path, {}),
    "the file of results": Series,
    "the deployment": deployment,
}


@pytest.mark.parametrize("what", USERS)
def test_whatever_is_locked_names_itself_and_its_user(what: str, tmp_path: Path) -> None:
    path = tmp_path / "used"
    with USERS[what](path):
        with pytest.raises(StorageError) as refused, USERS[what](path):
            pass
        expected = rf"{what} {re.escape(str(path))} is in use by process {os.getpid()}, which began .* ago; \w.*"
        assert re.fullmatch(expected, str(refused.value))
        assert refused.value.exit_code == 8
    with USERS[what](path):
        pass


@pytest.mark.parametrize("what", USERS)
def test_a_forked_child_does_not_keep_a_lock(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has inherited the open file, as a copy of the descriptor has, and may live on."""
    inherited, flock = [], locks.fcntl.flock

    def noted(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if operation & locks.fcntl.LOCK_EX:
            inherited.append(os.dup(descriptor))

    monkeypatch.setattr(locks.fcntl, "flock", noted)
    for _ in range(2):
        with USERS[what](tmp_path / "used"):
            pass
    assert len(inherited) == 2
    for descriptor in inherited:
        os.close(descriptor)


def test_the_lock_of_a_process_that_is_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "file"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    with closing(holder.stdout) if holder.stdout else nullcontext() as output:
        assert output is not None
        assert output.readline() == b"locked\n"
        with pytest.raises(StorageError, match=rf"^the file is in use by process {holder.pid}, which began .*; wait$"):
            locked(path, FLAGS, "the file", "wait")
        holder.kill()
        holder.wait()
    release(locked(path, FLAGS, "the file", "wait"))


def test_who_may_wait_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(locks.fcntl, "flock", lambda descriptor, operation: asked.append(operation))
    os.close(locked(tmp_path, os.O_RDONLY, "the folder", "", wait=True))
    os.close(locked(tmp_path, os.O_RDONLY, "the folder", ""))
    assert asked == [locks.fcntl.LOCK_EX, locks.fcntl.LOCK_EX | locks.fcntl.LOCK_NB]


def test_another_system_does_not_name_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does Linux within a container if the holder is outside of it: the table leaves it out."""
    lock = locked(tmp_path, os.O_RDONLY, "the folder", "wait")
    for table in (tmp_path / "missing", tmp_path / "empty"):
        (tmp_path / "empty").touch()
        monkeypatch.setattr(locks, "_TABLE", table)
        with pytest.raises(StorageError, match="the folder is in use by another process; wait"):
            locked(tmp_path, os.O_RDONLY, "the folder", "wait")
    release(lock)


def test_a_file_system_without_locks_is_named_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(StorageError, match="cannot lock the folder: No locks available; put it on another file system"):
        locked(tmp_path, os.O_RDONLY, "the folder", "wait")
    assert len([*Path("/proc/self/fd").iterdir()]) <= before
