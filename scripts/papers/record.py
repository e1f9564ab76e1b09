"""Finished cells of an experiment in a file of JSON lines, so that an interrupted one goes on where it was.

The first line says which experiment it is: its settings and the versions of what computes it. Results of other settings
would be no part of this one, so such a file is refused, with what differs. A line that a kill has torn is dropped. One
file may hold several sweeps of one script, as a cell's key begins with the label of its sweep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dca_proto.cli.output import require_writable
from dca_proto.errors import UsageError
from emulator import provenance

_KIND = "experiment-record"
_PACKAGES = ("dca-proto", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Of what the results depend on."""
    return provenance.versions(_PACKAGES)


class Record:
    """The finished cells of one experiment, by their keys.

    Args:
        path: of the file, which need not exist yet; None keeps them in memory only.
        settings: what makes the experiment what it is, as plain data.

    Raises:
        UsageError: the file is of another experiment, is none of ours, or cannot be written.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[str, dict[str, Any]] = {}
        if path is not None:
            require_writable(path)
            head = {"kind": _KIND, "settings": _plain(settings), "versions": versions()}
            self._load(path, head) if path.exists() and path.stat().st_size else _append(path, head)

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._results[key]

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        """A cell is finished: on the disk before this returns, where there is a file."""
        self._results[key] = _plain(result)
        if self._path is not None:
            _append(self._path, {"key": key, "result": self._results[key]})

    def _load(self, path: Path, head: Mapping[str, Any]) -> None:
        lines, own = _whole_lines(path), {part: head[part] for part in ("settings", "versions")}
        stored = next(lines, None)
        if not isinstance(stored, dict) or stored.get("kind") != _KIND:
            raise UsageError(f"--resume {path}: this is no file that an experiment left; name a new one")
        differences = "; ".join(provenance.differences(stored, own))
        if differences:
            raise UsageError(f"--resume {path} is of another experiment: {differences}; name a new file")
        for line in lines:
            if not (isinstance(line, dict) and isinstance(line.get("result"), dict) and "key" in line):
                raise UsageError(f"--resume {path}: a line is damaged; name a new file")
            self._results[line["key"]] = line["result"]


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from a file: lists for tuples, texts for keys. A result is the same, resumed or not."""
    plain: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return plain


def _append(path: Path, value: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _whole_lines(path: Path) -> Iterator[Any]:
    """The values of all lines; what stands after the last line's end is cut off the file."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    for line in whole.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            yield None
