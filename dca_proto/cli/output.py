"""Writes the output of commands: tables, labelled texts and files.

As far as possible, a command checks before its work that it can write its files. A file is never left incomplete.
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
    """Print a label and a text, wrapped to the console's width."""
    width = max(console.width - _LABEL_WIDTH, 20)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    joined = f"\n{'':{_LABEL_WIDTH}}".join(lines)
    console.print(f"{label:<{_LABEL_WIDTH}}{joined}", highlight=False, markup=False, soft_wrap=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None, align: str = ""
) -> Table:
    """Return a table in the style of all commands; its cells are not parsed as markup.

    Args:
        align: a letter for each column: ``<`` left and ``>`` right, both without wrapping; ``w`` left, wrapped. By
            default ``w`` for the first column and ``>`` for all others.
    """
    styled = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    styled.show_edge = styled.pad_edge = False
    for name, side in zip(columns, align or "w" + ">" * (len(columns) - 1), strict=True):
        styled.add_column(name, justify="right" if side == ">" else "left", no_wrap=side != "w", overflow="fold")
    for row in rows:
        styled.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return styled


def require_writable(path: Path, *, make_folders: bool = False) -> None:
    """Raise `UsageError` if no file can be written to a path; with `make_folders`, folders may be missing."""
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
        except OSError as error:  # for example in /proc
            raise StorageError(f"cannot write {path}: {error.strerror}; name another place") from None


def require_matplotlib() -> None:
    """Raise `ModuleNotFoundError`, which the command line explains, if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("for the picture", name="matplotlib")


def require_plot_target(plot: Path | None) -> None:
    """Check that ``--plot`` can be drawn and written. Raises `UsageError`, or as `require_matplotlib`."""
    if plot is None:
        return
    require_matplotlib()
    if plot.suffix not in PICTURE_SUFFIXES:
        raise UsageError(f"--plot {plot}: expected a name that ends in {', '.join(PICTURE_SUFFIXES)}")
    require_writable(plot)


def require_json_target(target: str | None) -> None:
    """Raise `UsageError` if `write_json` cannot write to this target."""
    if target not in (None, STDOUT):
        require_writable(Path(str(target)))


def result_console(json_to: str | None) -> Console:
    """Return the console for tables: stderr if JSON goes to stdout. Checks the target as `require_json_target`."""
    require_json_target(json_to)
    return Console(stderr=json_to == STDOUT)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Replace the file at `path` when the block ends; leave it unchanged if the block fails.

    Yields the path of a new file beside it, with the same suffix. Yields `path` itself if it must not be replaced: a
    link (such as /dev/stdout), a device, a pipe, or a file in a folder that is not writable. Raises `UsageError` if the
    file cannot be written, for example because the disk is full.
    """
    in_place = path.is_symlink() or (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK)
    place = path if in_place else path.with_name(f".dca-{secrets.token_hex(8)}{path.suffix}")
    try:
        if not in_place and path.exists():
            place.touch()
            shutil.copymode(path, place)  # while it is still empty
        yield place
        if not in_place:
            place.replace(path)
    except BrokenPipeError:
        raise  # not an error: the reader closed the pipe
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free space or name another place"
        ) from None
    finally:
        if not in_place:
            place.unlink(missing_ok=True)


def write_json(value: object, target: str | None) -> None:
    """Write a record or plain values as JSON to a file, or to stdout for ``-``; None writes nothing."""
    if target is None:
        return
    text = json.dumps(msgspec.to_builtins(value), indent=2, allow_nan=False) + "\n"
    if target == STDOUT:
        sys.stdout.write(text)
        return
    with whole_file(Path(target)) as place:
        place.write_text(text, encoding="utf-8")


def schema_of(output: Any) -> dict[str, Any]:
    """Return the JSON schema of a command's output: of a type, or of a tuple of types whose fields share one object."""
    parts = output if isinstance(output, tuple) else (output,)
    schemas, definitions = msgspec.json.schema_components(parts, ref_template="#/$defs/{name}")
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**draft, **(schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)}), "$defs": definitions}
