"""The durable journal of a learning job: its requests, their round ids and their results.

Each request is written before its round is announced, and each outcome as soon as it is known; every entry is flushed
to disk. So a new process can continue after a crash at any point: it passes the recorded results to the job. At most
one round is open; the trainer's store has it under the same id, and the new process finishes it.

Each entry is one line: a checksum, a space, and the entry (MessagePack in base64). The checksum also covers the line
before, which detects missing and misplaced lines. An incomplete last line is dropped, since nothing relied on it; any
other damage is an error. A journal contains no secrets: only requests, clients' ids, noisy sums, releases and reports,
all of which a trainer knows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto import labels
from dca_proto.errors import StorageError, UsageError
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.quorum import NO_NODES, Quorum
from dca_proto.runtime.locks import locked, unlock
from dca_proto.wording import JsonObject

_FORMAT = 3
_CHECKSUM_BYTES = 16
_START = bytes(_CHECKSUM_BYTES)
_LISTED_MAX = 8  # rounds in an error
_ID_DIGITS = 8


class Begun(msgspec.Struct, frozen=True, tag="job"):
    """The first entry, which identifies the job."""

    format: int
    settings: JsonObject


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A round is about to start: the number of the job's request (1, 2, ...) and the trainer's command."""

    number: int
    round: OpenRound


class Summed(msgspec.Struct, frozen=True, tag="summed"):
    """A round ended with a result.

    Attributes:
        contributors: the ids of the clients in the result of a round open to all clients; empty for a mini-batch.
    """

    round_id: bytes
    aggregate: NoisyAggregate
    contributors: tuple[bytes, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A round ended without a result.

    Attributes:
        reason, contributors, needed: as in `RoundAborted`.
        charged: whether the account keeps its charge. remedy: if not empty, what the user must do before a retry.
        implausible: whether no honest clients can have made the sum.
        repeatable, quorum, unproven: as in `RoundAborted`.
    """

    round_id: bytes
    reason: str
    contributors: int | None
    needed: int | None
    charged: bool
    remedy: str = ""
    implausible: bool = False
    repeatable: bool = False
    quorum: Quorum = NO_NODES
    unproven: int = 0


class GivenUp(msgspec.Struct, frozen=True, tag="given up"):
    """The job continued without a result for this request, which is not tried again. `reason`, ...: the failure's."""

    number: int
    reason: str
    contributors: int | None
    needed: int | None
    quorum: Quorum = NO_NODES
    unproven: int = 0


class Discarded(msgspec.Struct, frozen=True, tag="discarded"):
    """The user dropped all entries for this request and later ones; the job runs these rounds anew."""

    number: int


Entry = Begun | Opened | Summed | Failed | GivenUp | Discarded
Attempt = tuple[Opened, Summed | Failed | None]
"""A round and its outcome; None if unknown."""


class Recalled(msgspec.Struct):
    """A journal's entries for one request: its rounds in order, and whether the job continued without a result.

    Only the last round's outcome may be unknown.
    """

    attempts: list[Attempt] = []
    given_up: GivenUp | None = None


def journal_path(store: Path, job: str) -> Path:
    """Return a job's default journal path, beside the trainer's store: ``trainer.db`` -> ``trainer.JOB.journal``."""
    return store.with_name(f"{store.stem}.{job}.journal")


def newest_journal(store: Path, job: str, *, again: bool = False) -> Path:
    """Return the path of a job's newest journal, or `again` of the one after it.

    The first is that of `journal_path`, the next ones have numbers: ``trainer.JOB.2.journal``. The highest number is
    the newest, also where others were deleted.
    """
    first, number = journal_path(store, job), re.compile(rf"{re.escape(f'{store.stem}.{job}.')}([1-9]\d*)\.journal")
    names = [path.name for path in store.parent.iterdir()] if store.parent.is_dir() else []
    newest = max([int(first.name in names), *(int(found[1]) for name in names if (found := number.fullmatch(name)))])
    newest += again
    return store.with_name(f"{store.stem}.{job}.{newest}.journal") if newest > 1 else first


class Journal:
    """The journal of one job; its file is created if missing, readable by the owner only.

    Args:
        path: the file, one for each job.
        settings: plain JSON values that identify the job; they must be the same whenever it is opened.
        free: names of settings that may differ.

    Attributes:
        discarded: the rounds that the user dropped, except those that ended at no cost. Their costs stay spent.

    Raises:
        UsageError: the file is another job's, damaged, in use by another process, or cannot be read or written.
    """

    def __init__(self, path: Path, settings: Mapping[str, object], *, free: Collection[str] = ()) -> None:
        self.path = path
        self._free = frozenset(free)
        self._requests: dict[int, Recalled] = {}
        self.discarded: list[OpenRound] = []
        self._checksum, self._end = _START, 0
        self._file = _open(path)
        try:
            self._load(msgspec.to_builtins(dict(settings)))
            self._is_new = not self._requests
        except BaseException:
            self.close()
            raise

    @property
    def is_new(self) -> bool:
        """True if the file had no request when it was opened."""
        return self._is_new

    def recall(self, number: int) -> Recalled:
        """Return and forget the entries for request `number` that the file had when it was opened."""
        return self._requests.pop(number, Recalled())

    def discard(self, which: str) -> list[int]:
        """Drop a round and all later ones, whose requests may depend on it; return the numbers of their requests.

        The entry is durable on return. Call it before `recall`.

        Args:
            which: the number of its request (1, 2, ...), at least 8 hexadecimal digits of its id, or "last".

        Raises:
            UsageError: the journal has no such round.
        """
        rounds = [
            (number, opened.round.round_id.hex())
            for number, known in self._requests.items()
            for opened, _ in known.attempts
        ]
        named = which.lower() if len(which) >= _ID_DIGITS else "no id"
        found = {number for number, round_id in rounds if which == str(number) or round_id.startswith(named)}
        if which == "last":
            found = {number for number, _ in rounds[-1:]}
        if len(found) != 1:
            listed = (
                ", ".join(f"{number} ({round_id[:_ID_DIGITS]})" for number, round_id in rounds[-_LISTED_MAX:]) or "none"
            )
            raise UsageError(f"round {which[:40]!r} is not in the journal {self.path}, or not alone; it has: {listed}")
        (number,) = found
        dropped = sorted(other for other in self._requests if other >= number)
        self.append(Discarded(number))
        self._drop(number)
        return dropped

    def append(self, entry: Entry) -> None:
        """Write an entry; it is durable on return. Raises `UsageError`."""
        checksum, line = _line(self._checksum, entry)
        try:
            self._file.truncate(self._end)  # remove an incomplete last line
            self._file.seek(self._end)
            _write(self._file.fileno(), line)
        except OSError as error:
            raise StorageError(f"cannot write the journal {self.path}: {error.strerror}") from None
        self._checksum, self._end = checksum, self._end + len(line)

    def close(self) -> None:
        """Close the file, so that another process may open it."""
        if not self._file.closed:
            unlock(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- reading --------------------------------------------------------------------------------------------------

    def _load(self, settings: JsonObject) -> None:
        begun = Begun(_FORMAT, settings)
        entries = self._entries(begun)
        if len(entries) < 2 and entries != [begun]:  # new, or without any request: take over the new settings
            self._checksum, self._end = _START, 0
            self.append(begun)
            _sync_directory(self.path)
            return
        first, *others = entries
        assert isinstance(first, Begun), "`_entries` checks the first entry"
        compared = {*first.settings, *settings} - self._free
        names = sorted(name for name in compared if first.settings.get(name) != settings.get(name))
        if names and _costs_nothing(others):  # a job with a mistake, which all clients declined: take over
            self._checksum, self._end = _START, 0
            self.append(begun)
            return
        if names:
            raise StorageError(
                f"{self.path} is the journal of a job with another {', '.join(names)}; use the settings that the job "
                "began with, or give the new job another journal"
            )
        for entry in others:
            self._keep(entry)

    def _entries(self, begun: Begun) -> list[Entry]:
        """Read all complete lines, and set the position where the next one is appended."""
        *lines, torn = self._file.read().split(b"\n")
        entries = []
        for number, line in enumerate(lines, 1):
            read = _read(self._checksum, line)
            if read is None:
                if torn or number < len(lines) or b"\0" not in line:  # zeros: blocks that never reached the disk
                    raise self._damaged(f"line {number} cannot be read")
                torn = line
                break
            self._checksum, entry = read
            if number == 1:
                self._check_format(entry)
            self._end += len(line) + 1
            entries.append(entry)
        if torn and not entries and not _line(_START, begun)[1].startswith(torn):
            raise self._damaged("its first line is not this job's")
        return entries

    def _check_format(self, first: Entry) -> None:
        if not isinstance(first, Begun):
            raise self._damaged("its first line does not begin a job")
        if first.format != _FORMAT:
            raise StorageError(
                f"the journal {self.path} has format {first.format}, expected {_FORMAT}: continue with the version of "
                "the program that wrote it, or start the job again with another journal (its rounds' costs stay spent)"
            )

    def _keep(self, entry: Entry) -> None:
        """File an entry for `recall`."""
        match entry:
            case Opened():
                self._requests.setdefault(entry.number, Recalled()).attempts.append((entry, None))
                return
            case Discarded():
                self._drop(entry.number)
                return
            case GivenUp():
                self._requests.setdefault(entry.number, Recalled()).given_up = entry
                return
            case Summed() | Failed():
                attempts = next(reversed(self._requests.values()), Recalled()).attempts
                if attempts and attempts[-1][0].round.round_id == entry.round_id and attempts[-1][1] is None:
                    attempts[-1] = (attempts[-1][0], entry)
                    return
        raise self._damaged(f"an entry {type(entry).__name__} is out of place")

    def _drop(self, number: int) -> None:
        """Forget the entries for a request and later ones, but for the cost of their rounds."""
        for other in sorted(other for other in self._requests if other >= number):
            for opened, end in self._requests.pop(other).attempts:
                if not isinstance(end, Failed) or end.charged:
                    self.discarded.append(opened.round)

    def _damaged(self, what: str) -> UsageError:
        return StorageError(
            f"the journal {self.path} is damaged: {what}; restore the file, or start the job again with another "
            "journal (its rounds' costs stay spent)"
        )


# --- lines ------------------------------------------------------------------------------------------------------------


def _from_array(value: object) -> object:
    """Encode a vector of floats as its bytes; any other array as its type, shape and bytes."""
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"an entry cannot contain {type(value).__name__}")
    if value.ndim == 1 and value.dtype == np.float64:
        return value.astype("<f8").tobytes()
    wire = value.astype(value.dtype.newbyteorder("<"))
    return wire.dtype.str, wire.shape, wire.tobytes()


def _to_array(kind: type, value: object) -> object:
    """Invert `_from_array`. Raises `ValueError` or `TypeError` for other input."""
    if isinstance(value, bytes):
        return np.frombuffer(value, dtype="<f8").astype(np.float64)
    dtype, shape, data = msgspec.convert(value, tuple[str, tuple[int, ...], bytes])
    if dtype not in _DTYPES:
        raise ValueError(f"an array of type {dtype}")
    return np.frombuffer(data, dtype=dtype).astype(_DTYPES[dtype]).reshape(shape)


_DTYPES: dict[str, type] = {"<f8": np.float64, "<i8": np.int64, "|b1": np.bool_}
_encoder = msgspec.msgpack.Encoder(enc_hook=_from_array)
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry, dec_hook=_to_array)


def _line(before: bytes, entry: Entry) -> tuple[bytes, bytes]:
    """Return an entry's checksum, which covers that of the line before, and its line."""
    body = _encoder.encode(entry)
    checksum = _checksum(before, body)
    return checksum, checksum.hex().encode() + b" " + base64.b64encode(body) + b"\n"


def _read(before: bytes, line: bytes) -> tuple[bytes, Entry] | None:
    """Invert `_line`. Return None for a damaged line."""
    found, _, encoded = line.partition(b" ")
    try:
        body = base64.b64decode(encoded, validate=True)
        checksum = _checksum(before, body)
        is_whole = checksum.hex().encode() == found and base64.b64encode(body) == encoded
        return (checksum, _decoder.decode(body)) if is_whole else None
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _checksum(before: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(before + body, digest_size=_CHECKSUM_BYTES, person=labels.JOURNAL).digest()


def _costs_nothing(entries: Sequence[Entry]) -> bool:
    """Return True if every round of a journal is known to have failed without a charge."""
    opened = {entry.round.round_id for entry in entries if isinstance(entry, Opened)}
    free = {entry.round_id for entry in entries if isinstance(entry, Failed) and not entry.charged}
    return opened <= free and not any(isinstance(entry, Summed | Discarded) for entry in entries)


# --- files ------------------------------------------------------------------------------------------------------------


def _open(path: Path) -> FileIO:
    """Open the file and lock it for this process."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
    try:
        file = FileIO(locked(path, flags, f"the journal {path}", "wait for it, or stop it"), "r+")
    except OSError as error:
        raise StorageError(f"cannot open the journal {path}: {error.strerror}; check the path and its rights") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise StorageError(f"the journal {path} is not a regular file; name a file")
    return file


def _write(descriptor: int, data: bytes) -> None:
    """Write all data and flush it to disk."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _sync_directory(path: Path) -> None:
    """Flush the directory, so that a new file's name is durable. Raises `UsageError`."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot make the journal {path} durable: {path.parent}: {error.strerror}") from None
