"""`dca inspect`: what is in a message or a store, without its secrets."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dca_proto.cli.message_dump import describe_message, describe_store, is_store
from dca_proto.cli.output import STDOUT, require_json_target, write_json
from dca_proto.errors import InputError, UsageError

EXAMPLES = """Examples:

  dca inspect client.db                        a store, whose actor has stopped
  dca inspect client.db --json -               the same for programs
  dca inspect announcement.bin                 a message as it was sent or as the broker carries it
  dca inspect --hex 9301c4...                  the same in hexadecimal or base64

Secrets are never shown: keys, ciphertexts, shares and sums appear as their sizes.
"""

_HEAD_BYTES = 16
_FILE_BYTES_MAX = 1 << 28


def inspect(
    file: Annotated[Path | None, typer.Argument(help="A store, or a message: bytes, hexadecimal or base64.")] = None,
    hex_text: Annotated[str | None, typer.Option("--hex", help="A message in hexadecimal or base64.")] = None,
    json_to: Annotated[str | None, typer.Option("--json", help="Write it to a file, or - for stdout.")] = None,
) -> None:
    """Show what is in a message or an actor's store, without its secrets."""
    require_json_target(json_to)
    if (file is None) == (hex_text is None):
        raise UsageError("give a file, or --hex with a message; see `dca inspect --help`")
    if hex_text is not None:
        found: Any = describe_message(_decoded(hex_text))
    else:
        assert file is not None, "checked above"
        found = _described(file)
    write_json(found, json_to)
    if json_to == STDOUT:
        return
    for part in found if isinstance(found, list) else [found]:
        _print(part)


def _described(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
            data = b"" if is_store(head) else head + opened.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}; check the path and its rights") from None
    if is_store(head):
        return describe_store(file)
    if data.strip().startswith((b"role = ", b"# Identity")):
        raise UsageError(f"{file} is a key file, whose content is secret; `dca federation show` tells public keys")
    try:
        return describe_message(_decoded(data.decode("ascii")) if data.isascii() else data)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _decoded(text: str) -> bytes:
    """Bytes from hexadecimal or base64. Raises `UsageError` for anything else."""
    compact = "".join(text.split())
    try:
        return bytes.fromhex(compact)
    except ValueError:
        pass
    try:
        return base64.b64decode(compact, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("expected a message in hexadecimal or base64, found neither") from None


def _print(plain: dict[str, Any]) -> None:
    """One object as a table of two columns; what is nested gets dotted names."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in _flattened("", plain):
        table.add_row(name, Text(str(value)))
    console = Console()
    console.print(table)
    console.print()


def _flattened(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in _flattened(f"{prefix}.{key}".lstrip("."), inner)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [pair for index, item in enumerate(value) for pair in _flattened(f"{prefix}[{index}]", item)]
    if isinstance(value, list):
        return [(prefix, ", ".join(map(str, value)))]
    return [(prefix, value)]
