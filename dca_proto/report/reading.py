"""Reads a file that anyone may have written, and makes its page. Errors are one line each, and name what is wrong.

The module of each kind is imported only when a file of that kind is read.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dca_proto.errors import InputError
from dca_proto.report.blocks import Page
from dca_proto.report.formats import plain
from dca_proto.runtime.files import decode_text, read_input
from dca_proto.wording import JsonObject, in_words, nearest

FILE_BYTES_MAX = 64 * 1024 * 1024
_EXPECTED = "expected the JSON file of a run"
_OLD = {"rounds": "swarm", "epsilon_claimed": "audit"}
"""Keys that identify files from versions that did not write `kind`."""
_SHOWN_MAX = 60
_LARGEST = 1e100
_RANGE = re.compile(r"Expected `(?:int|float)` (?P<limit>[<>]=? \S+) - at `\$\.?(?P<place>[^`]*)`")


class PageKind(NamedTuple):
    """A kind of run: the module of its page, the reader or record type in it, and the command that writes its files."""

    module: str
    reads: str
    command: str

    def page(self, found: JsonObject) -> Page:
        """Return the page. Raises `msgspec.ValidationError` if the command would not have written the file."""
        module = import_module(self.module)
        reads = getattr(module, self.reads)
        is_record = isinstance(reads, type) and issubclass(reads, msgspec.Struct)
        page: Page = module.page(msgspec.convert(found, reads) if is_record else reads(found))
        return page


KINDS = {
    "swarm": PageKind("dca_proto.report.run", "read", "dca swarm"),
    "emulation": PageKind("emulator.report.emulation", "Outcome", "dca emulate run SCENARIO"),
    "sweep": PageKind("emulator.report.sweep", "Sweep", "dca emulate sweep"),
    "scaling": PageKind("emulator.report.scaling", "Scaling", "dca scaling"),
    "learn": PageKind("dca_proto.report.run", "read", "dca learn trainer.toml"),
    "audit": PageKind("emulator.report.audit", "Result", "dca audit"),
}


def read_page(path: Path, *, reference: bool = True) -> tuple[str, Page]:
    """Return the kind of a run and its page, from its JSON file.

    Args:
        reference: whether to show the results that epsilon does not cover.

    Raises:
        InputError: the file cannot be read, or is no file of a run.
    """
    found = _decode(path, _bytes_of(path))
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no JSON object; {_EXPECTED}, as dca swarm --json {path.name} writes it")
    name = _kind_of(path, found)
    if not reference:
        found.pop("not_covered_by_epsilon", None)
    try:
        _check_numbers(found, "")
        return name, KINDS[name].page(found)
    except msgspec.ValidationError as error:
        fault = plain(_RANGE.sub(r"\g<place> is out of range, expected a number \g<limit>", in_words(error)), 300)
        raise InputError(
            f"{path} is of kind {name}, but {fault}; make a new one with `{KINDS[name].command} --json {path.name}`"
        ) from None


def read_summary(path: Path) -> tuple[Any, int]:
    """Return what a job learned and the most contributors of a round, from its JSON file, after `read_page` took it.

    A run of another kind has an empty summary.
    """
    from dca_proto.report import learned

    found = _decode(path, _bytes_of(path))
    if found.get("kind") not in ("swarm", "learn"):
        return {}, 0
    return learned.read(found), max((one.get("contributors") or 0 for one in found["rounds"]), default=0)


def _check_numbers(value: Any, place: str) -> None:
    """Refuse numbers that no page can show. Raises `msgspec.ValidationError`."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(part, f"{place}.{key}" if place else str(key))
    elif isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
        raise msgspec.ValidationError(f"{place} is out of range, expected a number of at most {_LARGEST:g}")


def _bytes_of(path: Path) -> bytes:
    if path.is_dir():
        raise InputError(f"{path} is a folder; {_EXPECTED}, such as {path / 'result.json'}")
    return read_input(path, _EXPECTED, bytes_max=FILE_BYTES_MAX)


def _decode(path: Path, content: bytes) -> Any:
    if not content.strip():
        raise InputError(f"{path} is empty; {_EXPECTED}")
    try:
        return msgspec.json.decode(decode_text(content, path, _EXPECTED))
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not JSON: {error}; {_EXPECTED}") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply; {_EXPECTED}") from None


def _kind_of(path: Path, found: JsonObject) -> str:
    """Return the file's kind. Raises `InputError` if it has none or an unknown one."""
    known, kind = ", ".join(KINDS), found.get("kind")
    if kind is None:
        likely = [name for key, name in _OLD.items() if key in found]
        commands = [KINDS[name].command for name in likely or KINDS]
        made = " or ".join(f"`{command} --json {path.name}`" for command in commands)
        raise InputError(
            f'{path} has no "kind", like files of older versions; expected {known}: make a new one with {made}'
        )
    if not isinstance(kind, str) or kind not in KINDS:
        shown, hint = plain(repr(kind), _SHOWN_MAX), nearest(kind, KINDS) if isinstance(kind, str) else ""
        raise InputError(f"{path} is of kind {shown}{hint}, which has no page; expected {known}")
    return kind
