"""What commands write: tables, labelled texts, and files that are complete or absent.

That a file can be written is seen before the work, as far as it can be.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dca_proto.errors import StorageError, UsageError

STDOUT = "-"
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
_LABEL_WIDTH = 12


def say(console: Console, label: str, text: str) -> None:
    """A text beside its label, in as many lines as the console's width asks for."""
    width = max(console.width - _LABEL_WIDTH, 20)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    joined = f"\n{'':{_LABEL_WIDTH}}".join(lines)
    console.print(f"{label:<{_LABEL_WIDTH}}{joined}", highlight=False, markup=False, soft_wrap=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None, align: str = ""
) -> Table:
    """A table in the one look of all commands; nothing in it is taken for markup.

    Args:
        align: a letter for each column: ``<`` left and ``>`` right, both whole, ``w`` words that may be wrapped. By
            default the first column has words, and all others numbers.
    """
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.show_edge = made.pad_edge = False
    for name, side in zip(columns, align or "w" + ">" * (len(columns) - 1), strict=True):
        made.add_column(name, justify="right" if side == ">" else "left", no_wrap=side != "w", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def require_writable(path: Path, *, make_folders: bool = False) -> None:
    """Refuse a path that no file can be written to; writes nothing.

    Args:
        make_folders: whether missing folders above it will be made.

    Raises:
        UsageError: what stands in the way.
    """
    folder = path.parent
    while make_folders and not folder.exists():
        folder = folder.parent
    if path.is_dir():
        raise StorageError(f"cannot write {path}: it is a folder; name a file")
    if not folder.exists():
        raise StorageError(f"cannot write {path}: folder {folder} does not exist; make it, or name another")
    if not folder.is_dir():
        raise StorageError(f"cannot write {path}: {folder} is not a folder; name another")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise StorageError(f"cannot write {path}: permission denied; name another place")
    if not path.exists():
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:  # as of /proc, where nobody makes files
            raise StorageError(f"cannot write {path}: {error.strerror}; name another place") from None


def require_matplotlib() -> None:
    """Refuse a picture that nothing here can draw. Raises `ModuleNotFoundError`, which the command line explains."""
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("for the picture", name="matplotlib")


def require_plot_target(plot: Path | None) -> None:
    """Refuse a ``--plot`` that cannot be drawn or written. Raises `UsageError` and as `require_matplotlib`."""
    if plot is None:
        return
    require_matplotlib()
    if plot.suffix not in PICTURE_SUFFIXES:
        raise UsageError(f"--plot {plot}: expected a name that ends in {', '.join(PICTURE_SUFFIXES)}")
    require_writable(plot)


def require_json_target(target: str | None) -> None:
    """Refuse a target of `write_json` that cannot be written. Raises `UsageError`."""
    if target not in (None, STDOUT):
        require_writable(Path(str(target)))


def result_console(json_to: str | None) -> Console:
    """Where people read the result: stderr where stdout is taken by JSON. Refuses a target as `require_json_target`."""
    require_json_target(json_to)
    return Console(stderr=json_to == STDOUT)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what becomes the file at `path` when the block ends, and leaves it as it was if the block fails.

    It is a new file beside it, with the same suffix, that takes its place. What cannot be replaced without harm is
    written itself: a link (as /dev/stdout is), a device, a pipe, or a file in a folder that takes no new ones.

    Raises:
        UsageError: the system cannot write there, the disk being full for example.
    """
    in_place = path.is_symlink() or (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK)
    place = path if in_place else path.with_name(f".dca-{secrets.token_hex(8)}{path.suffix}")
    try:
        if not in_place and path.exists():
            place.touch()
            shutil.copymode(path, place)  # before anything stands in it
        yield place
        if not in_place:
            place.replace(path)
    except BrokenPipeError:
        raise  # the reader has gone: that is no error
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free space or name another place"
        ) from None
    finally:
        if not in_place:
            place.unlink(missing_ok=True)


def write_json(value: object, target: str | None) -> None:
    """Write a record, or plain values, to a file, or to stdout for ``-``; to nowhere for None.

    Raises:
        UsageError: it cannot be written there.
    """
    if target is None:
        return
    text = json.dumps(msgspec.to_builtins(value), indent=2, allow_nan=False) + "\n"
    if target == STDOUT:
        sys.stdout.write(text)
        return
    with whole_file(Path(target)) as place:
        place.write_text(text, encoding="utf-8")


def schema_of(output: Any) -> dict[str, Any]:
    """The JSON schema of what a command writes.

    Args:
        output: its type; or several, all of whose fields stand in the one object.
    """
    parts = output if isinstance(output, tuple) else (output,)
    schemas, definitions = msgspec.json.schema_components(parts, ref_template="#/$defs/{name}")
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**draft, **(schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)}), "$defs": definitions}
