"""A client that sleeps by plan between two connections: what `dca status` knows of it meanwhile.

Its file states `sleep_max_s` under [client]. When the client is stopped, it leaves its last status beside its store, in
``client.db-asleep``, and removes it at the next start. A process that was killed, or that ended by an error, leaves
none: it does not sleep, it is down.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path

import msgspec

from dca_proto.errors import DcaError, UsageError
from dca_proto.results.status import Status
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.files import read_input
from dca_proto.runtime.keyfile import replace_private
from dca_proto.wording import duration

_BYTES_MAX = 4 << 20


def asleep_path(store: Path) -> Path:
    """Return the path of what a sleeping client leaves: beside its store."""
    return Path(f"{store}-asleep")


def fall_asleep(store: Path, status: Status) -> None:
    """Leave a client's last status. A disk that is full is no reason to fail: the client then counts as down."""
    with contextlib.suppress(DcaError, OSError):
        replace_private(asleep_path(store), msgspec.json.encode(status).decode())


def wake(store: Path) -> None:
    """Remove what was left."""
    with contextlib.suppress(OSError):
        asleep_path(store).unlink(missing_ok=True)


def sleeping(store: Path, sleep_max_s: float) -> Status | None:
    """Return the status of a client that sleeps, with a warning if it overslept; None if it is down."""
    path = asleep_path(store)
    try:
        left = msgspec.json.decode(read_input(path, bytes_max=_BYTES_MAX), type=Status)
        asleep_s = max(now_ms() / 1000 - datetime.fromisoformat(left.at).timestamp(), 0.0)
    except (UsageError, ValueError):
        return None
    warnings = list(left.warnings)
    overslept = asleep_s > sleep_max_s
    if overslept:
        longest = duration(1000 * sleep_max_s)
        warnings.append(f"it overslept: it is asleep for {duration(1000 * asleep_s)}, expected at most {longest}")
    return msgspec.structs.replace(
        left,
        connected=False,
        since_s=asleep_s,
        asleep_s=asleep_s,
        overslept=overslept,
        away_because="it overslept" if overslept else "asleep by plan",
        warnings=warnings,
    )
