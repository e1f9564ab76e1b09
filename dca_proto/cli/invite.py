"""`dca federation invite` writes invitations for devices, lists and cancels them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dca_proto.cli.join import tell_lines
from dca_proto.cli.members import CertificateDays
from dca_proto.cli.output import tell
from dca_proto.crypto.sealing import actor_id
from dca_proto.errors import StorageError, UsageError
from dca_proto.protocol.enrolment import CODE_BYTES, BookedInvitation, Bundle, Entrance, code_hash
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.names import check_name
from dca_proto.protocol.params import DAY_MS
from dca_proto.runtime.book import Book
from dca_proto.runtime.bundle import SUFFIX, link_of, read_bundle, write_bundle
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.files import require_input
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.registrar_file import RegistrarFile, read_registrar
from dca_proto.runtime.suggestion import lines_of

EXAMPLES = """Examples:

  dca federation invite ward-7 ward-8              ward-7.bundle and ward-8.bundle: one secret file for each device
  dca federation invite ward-7 --qr                also as a QR code on this terminal, for dca join
  dca federation invite ward-7 --qr --png .        the QR code as ward-7.png
  dca federation invite ward-7 --suggest-policy policy.toml       limits that the device's owner accepts or refuses
  dca federation invite ward-7 --cancel            the bundle was lost; if it was used, revoke the client, too

Where registrar.toml is, on the registrar's machine. A device then runs `dca join ward-7.bundle --data readings.csv`.
"""


def invite(
    names: Annotated[list[str], typer.Argument(help="The devices' names; nodes and trainers can read them.")],
    registrar: Annotated[Path, typer.Option(help="The registrar's TOML file.")] = Path("registrar.toml"),
    output: Annotated[Path, typer.Option(help="Folder for the bundles.")] = Path(),
    valid_days: Annotated[float, typer.Option(help="How long the codes can be used, in days.")] = 7.0,
    days: CertificateDays = 90,
    qr: Annotated[bool, typer.Option("--qr", help="Also show each as a QR code on the terminal.")] = False,
    png: Annotated[Path | None, typer.Option(help="Folder for QR codes as PNG, NAME.png.")] = None,
    suggest_policy: Annotated[
        Path | None, typer.Option(help="A policy file to suggest to the devices; by default that of the registrar.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the invitations of these names.")] = False,
) -> None:
    """Write an invitation with a one-time code for each device."""
    if suggest_policy is not None:
        require_input(suggest_policy, "expected a policy file")
    file = read_registrar(registrar)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"found the name {twice[0]!r} twice, expected a name for each device")
    if not 0 < valid_days <= 366:
        raise UsageError(f"--valid-days {valid_days:g}: expected a number above 0, at most 366")
    book = Book(file.book)
    try:
        if cancel:
            _cancel(book, names)
        else:
            terms = BookedInvitation("", now_ms() + int(valid_days * DAY_MS), days)
            named = [(name, output / f"{name}{SUFFIX}") for name in names]
            _invite(book, file, file.entrance(suggest_policy), named, terms, _maker(qr, png))
    finally:
        book.close()


def _cancel(book: Book, names: list[str]) -> None:
    cancelled = {one.name: one for one in book.cancel(set(names))}
    missing = [name for name in names if name not in cancelled]
    if missing:
        raise UsageError(f"found no open invitation of {missing[0]!r}")
    for name, one in cancelled.items():
        used = "; it was used: revoke the client, too (dca federation revoke)" * bool(one.client_key)
        tell(f"cancelled   {name}{used}")


def _invite(
    book: Book,
    file: RegistrarFile,
    entrance: Entrance,
    named: list[tuple[str, Path]],
    terms: BookedInvitation,
    show: _Qr | None,
) -> None:
    """Write the bundles of names; each invitation has the `terms`."""
    federation = Federation.from_toml(entrance.federation)
    limits = federation.registrar(read_identity(file.identity, "registrar").public_key)
    if limits is None:
        raise UsageError(f"{file.federation} does not name this registrar: dca federation add-registrar")
    over = _check_names(book, federation, limits.clients, [name for name, _ in named])
    bundles = [Bundle(name, secrets.token_bytes(CODE_BYTES), entrance) for name, _ in named]
    for _, path in named:
        if path.exists() and code_hash(federation.id, read_bundle(path).code) not in over:
            raise StorageError(f"{path} exists already and is not replaced; name another folder")
    for _, path in named:
        path.unlink(missing_ok=True)
    named[0][1].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    invited = {code_hash(federation.id, one.code): msgspec.structs.replace(terms, name=one.name) for one in bundles}
    book.invite(invited, entrance)  # first: a bundle that nobody knows would be worse than a code that nobody has
    for (_, path), bundle in zip(named, bundles, strict=True):
        write_bundle(path, bundle)
        tell(f"invited     {bundle.name}: {path}, secret until it is used")
        if show is not None:
            show.show(bundle)
    if entrance.policy:
        tell("policy      each suggests these limits; the device's owner accepts or refuses them:")
        tell_lines(lines_of(entrance.policy, federation))
    tell(f"next        on each device: dca join NAME{SUFFIX} --data readings.csv")


def _check_names(book: Book, federation: Federation, most: int, names: list[str]) -> set[bytes]:
    """Check the names of new invitations. Return the hashes of codes that are over. Raises `UsageError`."""
    over = {one.code for one in book.all() if _is_over(one.invitation, federation)}
    known = [one.invitation for one in book.all() if not one.invitation.is_cancelled]  # the limit counts revoked ones
    taken = {one.invitation.name for one in book.all() if one.code not in over}
    for name in names:
        check_name(name)
        if name in taken:
            raise UsageError(
                f"{name!r} has an invitation already; if it was used, revoke the client first (dca federation revoke), "
                "or else cancel the invitation (--cancel)"
            )
    if len(known) + len(names) > most:
        raise UsageError(f"found {len(known)} invitations and {len(names)} more, expected {most} at most")
    return over


def _is_over(invitation: BookedInvitation, federation: Federation) -> bool:
    """Return True if an invitation was cancelled, or its client revoked: then its name is free again."""
    key = invitation.client_key
    return invitation.is_cancelled or (bool(key) and federation.is_revoked(actor_id(key)))


class _Qr:
    """Shows links as QR codes."""

    def __init__(self, on_terminal: bool, folder: Path | None) -> None:
        import segno  # of an extra

        self._make: Any = segno.make
        self._on_terminal = on_terminal
        self._folder = folder

    def show(self, bundle: Bundle) -> None:
        code = self._make(link_of(bundle), error="m", micro=False)
        if self._on_terminal:
            code.terminal(compact=True)
        if self._folder is not None:
            path = self._folder / f"{bundle.name}.png"
            code.save(str(path), scale=6)
            path.chmod(0o600)
            tell(f"            {path}")


def _maker(on_terminal: bool, folder: Path | None) -> _Qr | None:
    if folder is not None and not folder.is_dir():
        raise StorageError(f"folder {folder} does not exist; make it first")
    return _Qr(on_terminal, folder) if on_terminal or folder is not None else None
