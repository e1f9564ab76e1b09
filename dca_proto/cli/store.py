"""Look after the stores of actors that have stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli import verbatim
from dca_proto.cli.output import tell
from dca_proto.errors import InputError
from dca_proto.runtime.config import read_config
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.status import store_bytes
from dca_proto.runtime.store import SqliteStore

app = typer.Typer(add_completion=False, rich_markup_mode=None, help=__doc__, no_args_is_help=True)
_COMPACT = """Example:

  dca store compact trainer.toml compute.toml        before: stop these actors

An actor forgets a round some days after its end: retention_days in its file. Its store then uses the space again, but
the file stays as large as it ever was. This command makes it as small as its content.
"""


@app.callback(epilog=verbatim(_COMPACT))
def store() -> None:
    """Look after the stores of actors that have stopped."""


@app.command(epilog=verbatim(_COMPACT))
def compact(files: Annotated[list[Path], typer.Argument(help="TOML files of actors that have stopped.")]) -> None:
    """Give the unused space of stores back to the file system; the records stay as they are."""
    for file in files:
        config = read_config(file)
        path = config.files.store
        if not path.exists():
            raise InputError(f"{file}: its actor has no store {path} yet; start it once")
        before = store_bytes(path)
        opened = SqliteStore(path, read_identity(config.files.identity, config.role).store_key)
        try:
            opened.compact()
        finally:
            asyncio.run(opened.close())
        tell(f"compacted  {path}: {before / 1e3:,.1f} kB before, {store_bytes(path) / 1e3:,.1f} kB now")
