"""Prints a command's tables and labelled texts, and checks before its work that its files can be written."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from dca_proto.errors import StorageError, UsageError
from dca_proto.report.formats import UNKNOWN
from dca_proto.runtime.files import STDOUT, keep, require_writable, whole_file
from dca_proto.wording import JsonObject, shown

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
_LABEL_WIDTH = 12
_STYLES = {"warning": "bold red", "FAILED": "bold red"}
"""How labels look on a terminal with colours; rich leaves colours out elsewhere, and if NO_COLOR is set."""


class Terminal(Console):
    """A console on which text is text, whoever wrote it: no markup, no codes of emoji, no control characters.

    Args:
        stderr: write to stderr instead of stdout. quiet: write nothing.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(shown(text), **how)


def say(console: Console, label: str, text: str) -> None:
    """Print a label and a text, wrapped to the console's width."""
    width = max(console.width - _LABEL_WIDTH, 20)
    lines = textwrap.wrap(shown(text), width, break_long_words=False, break_on_hyphens=False)
    joined = f"\n{'':{_LABEL_WIDTH}}".join(lines)
    styled = Text.assemble((f"{label:<{_LABEL_WIDTH}}", _STYLES.get(label, "")), joined)
    console.print(styled, soft_wrap=True)


def tell(text: str, *, stderr: bool = False) -> None:
    """Print a text at once, as it is: for what a program may read line by line."""
    print(shown(text), file=sys.stderr if stderr else sys.stdout, flush=True)


class FittingTable(Table):
    """A table that becomes a list where the console is too narrow for it.

    Otherwise words would break, or a number would lose its end. The list has a block for each row: its first cell, then
    a line for each other cell, with the column's name. Empty cells are left out.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[_as_text(console, cell) for cell in (column.header, *column.cells)] for column in self.columns]
        widths = [_least_width(column, texts) for column, texts in zip(self.columns, cells, strict=True)]
        if sum(widths) + _INDENT * (len(widths) - 1) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text(str(self.title), "bold")
        (_, *firsts), others = cells[0], cells[1:]
        room = _INDENT + max((cell_len(texts[0].plain) for texts in others), default=0)
        beside = room <= options.max_width // 2  # else values are below the names
        indent = _INDENT + room if beside else 2 * _INDENT
        for place, first in enumerate(firsts, 1):
            yield first
            for texts in others:
                name, value = texts[0].plain, texts[place]
                if value.plain.strip() in ("", UNKNOWN):
                    continue
                if not beside:
                    yield Text(" " * _INDENT + name)
                for number, line in enumerate(value.wrap(console, max(options.max_width - indent, 1))):
                    line.rstrip()
                    before = f"{'':{_INDENT}}{name:<{room}}" if beside and not number else " " * indent
                    yield Text.assemble(before, line)


_INDENT = 2  # spaces before the cells below a row's first one, and between columns


def _as_text(console: Console, cell: object) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(str(cell))


def _least_width(column: Column, texts: Sequence[Text]) -> int:
    """Return the width below which a column would break a word, or a line if it does not wrap."""
    lines = [line for text in texts for line in text.plain.split("\n")]
    pieces = lines if column.no_wrap else [word for line in lines for word in line.split()]
    return max(map(cell_len, pieces), default=0)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None, align: str = ""
) -> Table:
    """Return a table in the style of all commands, which becomes a list where it does not fit.

    Args:
        align: a letter for each column: ``<`` left and ``>`` right, both without wrapping; ``w`` left, wrapped. By
            default ``w`` for the first column and ``>`` for all others.
    """
    styled = FittingTable(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    styled.show_edge = styled.pad_edge = False
    for name, side in zip(columns, align or "w" + ">" * (len(columns) - 1), strict=True):
        styled.add_column(name, justify="right" if side == ">" else "left", no_wrap=side != "w", overflow="fold")
    for row in rows:
        styled.add_row(*row)
    return styled


def keep_earlier(console: Console, *targets: Path | str | None) -> None:
    """Before results are written: keep the earlier ones under numbered names, and say so; a failure is a warning.

    Every command does this whose results cost a round, or time to measure. Others compute their files from other files
    or ask for the present state, and replace them. So is the record of a failure that holds nothing else: repeated
    attempts do not fill the folder.

    Args:
        targets: files that are about to be written; None, and - for stdout, are not.
    """
    paths = [Path(target) for target in targets if target is not None and str(target) != STDOUT]
    paths = [path for path in paths if not _only_failed(path)]
    try:
        kept = keep(paths)
    except OSError as error:
        say(console, "warning", f"an earlier result could not be kept and is replaced: {error.strerror}")
        return
    if kept:
        say(console, "kept", "; ".join(f"the earlier {path} as {copy.name}" for path, copy in kept.items()))


_FAILURE_BYTES_MAX = 1 << 20


def _only_failed(path: Path) -> bool:
    """Return True for the record of a failed run that holds no sums, or only those of a journal."""
    try:
        if not path.is_file() or path.stat().st_size > _FAILURE_BYTES_MAX:
            return False
        record = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return False
    if not isinstance(record, dict) or record.get("ok") is not False:
        return False
    rounds = record.get("rounds") or []
    return record.get("kind") == "learn" or not any(isinstance(one, dict) and one.get("value") for one in rounds)


def draw(console: Console, path: Path, drawing: Callable[[Path], object]) -> bool:
    """Draw a picture into a file, and say so; after the results are written, since no picture is worth losing them.

    A failure to draw is a warning. Raises `StorageError` if the file cannot be written.

    Args:
        drawing: draws into the file that it gets. Returns whether there is a picture.
    """
    try:
        with whole_file(path) as place:
            drawing(place)
    except StorageError:
        raise
    except Exception as error:  # whatever matplotlib cannot draw
        why = f"{type(error).__name__}: {error}"
        old = "; the file shows an earlier result" * (path.is_file() and path.stat().st_size > 0)
        say(console, "warning", f"{path} could not be drawn ({why}); the result is complete without it{old}")
        return False
    return True


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


def result_console(json_to: str | None, *, json_logs: bool = False) -> Console:
    """Return the console for tables: stderr if JSON goes to stdout. Checks the target as `require_json_target`.

    Args:
        json_logs: whether stderr is for JSON lines alone.
    """
    require_json_target(json_to)
    stderr = json_to == STDOUT
    return Terminal(stderr=stderr, quiet=stderr and json_logs)


def schema_of(output: Any) -> JsonObject:
    """Return the JSON schema of a command's output: of a type, or of a tuple of types whose fields share one object."""
    parts = output if isinstance(output, tuple) else (output,)
    schemas, definitions = msgspec.json.schema_components(parts, ref_template="#/$defs/{name}")
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**draft, **(schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)}), "$defs": definitions}
