"""Back up, restore and compact the stores of actors."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli import verbatim
from dca_proto.cli.output import tell
from dca_proto.crypto.sealing import ID_BYTES, Identity
from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.restore import spent_since
from dca_proto.runtime.backup import Backup, make_backup, make_store, read_backup, write_backup
from dca_proto.runtime.book import Book, restore_book
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.config import read_config
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.registrar_file import RegistrarFile, is_registrar_file, read_registrar
from dca_proto.runtime.status import store_bytes
from dca_proto.runtime.store import SqliteStore
from dca_proto.wording import counted, moment

app = typer.Typer(add_completion=False, rich_markup_mode=None, help=__doc__, no_args_is_help=True)
_GROUP = """Examples:

  dca store backup client.toml --to client.backup            while it runs
  dca store restore client.toml --from client.backup         after its store is lost
  dca store compact trainer.toml compute.toml                before: stop these actors
"""
_COMPACT = """Example:

  dca store compact trainer.toml compute.toml        before: stop these actors

An actor forgets a round some days after its end: retention_days in its file. Its store then uses the space again, but
the file stays as large as it ever was. This command makes it as small as its content.
"""
_BACKUP = """Example, for a timer of every night:

  dca store backup /var/lib/dca/client.toml --to /backup/client.backup

The actor may run. The file is encrypted under the actor's key, so keep a copy of the key elsewhere. It replaces an
earlier backup as a whole, and no other file.

A client's backup is of use only if the store of every Compute node was ten minutes old when it was made.
"""
_RESTORE = """Examples:

  dca store restore client.toml --from client.backup
  dca store restore trainer.toml --from trainer.backup --spent 0.4       what its rounds have cost since

Never copy the files of a store back instead. What the actor did since the backup is forgotten, so:
- a client declines until each Compute node has told it its highest charge number. Then it counts a charge for each
  number that it lacks, at the most that its policy allows a round, and goes on. It declines for good if the store of a
  node was less than ten minutes old at the backup;
- a Compute node takes part in rounds that are announced from now on;
- a registrar's unused codes are cancelled, since they may have been used. The broker refuses devices that joined since
  until they join again, each in its own folder: dca federation invite;
- a trainer's account counts what --spent states, or all that it allows. Its open rounds are lost. Leave --spent out if
  there were reports of delta 0 since: they cost more beside Gaussian rounds than their epsilon states.
"""
_File = Annotated[Path, typer.Argument(help="The TOML file of an actor or a registrar.", metavar="FILE")]


@app.callback(epilog=verbatim(_GROUP))
def store() -> None:
    """Back up, restore and compact the stores of actors."""


@app.command(epilog=verbatim(_BACKUP))
def backup(
    file: _File,
    to: Annotated[Path, typer.Option("--to", help="The backup; it replaces an earlier one, and no other file.")],
) -> None:
    """Write a backup of an actor's store while the actor runs."""
    if is_registrar_file(file):
        _backup_book(read_registrar(file), to)
        return
    config = read_config(file)
    identity = read_identity(config.files.identity, config.role)
    made = make_backup(config.files.store, config.role, identity, config.federation, now_ms(), config.policy)
    write_backup(to, made, identity)
    tell(f"backup     {to}: {counted(len(made.records), 'record')} of {config.files.store}")


def _backup_book(file: RegistrarFile, to: Path) -> None:
    if not file.book.exists():
        raise InputError(f"there is no book {file.book} yet: `dca federation invite` makes it")
    book = Book(file.book)
    try:
        made = Backup(role="registrar", at_ms=now_ms(), records=book.records())
    finally:
        book.close()
    write_backup(to, made, read_identity(file.identity, "registrar"))
    tell(f"backup     {to}: {counted(len(made.records), 'record')} of {file.book}")


@app.command(epilog=verbatim(_RESTORE))
def restore(
    file: _File,
    source: Annotated[Path, typer.Option("--from", help="A backup of this actor.")],
    spent: Annotated[
        float | None,
        typer.Option(
            help="Of a trainer: epsilon of its Gaussian rounds since the backup; by default all that is allowed."
        ),
    ] = None,
) -> None:
    """Make a new store from a backup, in place of one that is lost."""
    if is_registrar_file(file):
        _restore_book(read_registrar(file), source, spent)
        return
    config = read_config(file)
    if spent is not None and config.role != "trainer":
        raise UsageError(_SPENT.format(config.role))
    identity = read_identity(config.files.identity, config.role)
    found = _found(source, config.role, identity)
    records = [*found.records]
    if config.role == "trainer":
        round_id = secrets.token_bytes(ID_BYTES)
        records.append(spent_since(records, config.account, spent, round_id, identity.id, now_ms()))
    make_store(config.files.store, identity, records)
    tell(f"restored   {config.files.store}, as it was on {moment(found.at_ms)}")
    tell(f"next       {_NEXT[config.role]}")


def _restore_book(file: RegistrarFile, source: Path, spent: float | None) -> None:
    if spent is not None:
        raise UsageError(_SPENT.format("registrar"))
    found = _found(source, "registrar", read_identity(file.identity, "registrar"))
    cancelled = restore_book(file.book, found.records)
    tell(f"restored   {file.book}, as it was on {moment(found.at_ms)}; {counted(cancelled, 'unused code')} cancelled")
    tell(f"next       {_NEXT['registrar']}")


def _found(source: Path, role: str, identity: Identity) -> Backup:
    found = read_backup(source, role, identity)
    if found.at_ms > now_ms():
        raise InputError(f"{source} is of {moment(found.at_ms)}, which is not yet: correct this machine's clock")
    return found


_SPENT = "--spent is of a trainer's account, and this is the file of a {}; leave it out"
_NEXT = {
    "client": "start it: it declines until all Compute nodes have told it its highest charge number",
    "compute": "start it: it takes part in rounds that are announced from now on",
    "trainer": "dca ledger shows what its account counts; jobs continue with their journals",
    "registrar": "start it; invite devices again that joined since, and those that have not joined yet",
}


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
