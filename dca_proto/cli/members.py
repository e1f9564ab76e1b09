"""Lists the members of a federation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dca_proto.cli import options
from dca_proto.cli.output import result_console, table
from dca_proto.crypto.sealing import actor_id
from dca_proto.errors import InputError, PeerError, UsageError
from dca_proto.protocol.federation import Federation, Member, newest_file
from dca_proto.protocol.names import open_name, short_id
from dca_proto.protocol.policy import Floors
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.wire.fields import REGISTRAR_DAYS_MAX
from dca_proto.protocol.wire.messages import Registrar
from dca_proto.results.figure import about
from dca_proto.runtime.book import Book
from dca_proto.runtime.config import is_actor_file, read_config
from dca_proto.runtime.files import read_text, write_json
from dca_proto.runtime.keyfile import parse_certificate, read_federation, read_identity, replace_private
from dca_proto.runtime.registrar_file import is_registrar_file, read_registrar
from dca_proto.runtime.store_check import read_store
from dca_proto.wording import iso, moment, parse_toml, printable, toml_value

CERTIFICATE_DAYS = "Validity of a client's certificate, in days."
CertificateDays = Annotated[int, typer.Option(min=1, max=REGISTRAR_DAYS_MAX, help=CERTIFICATE_DAYS)]
RegistrarClients = Annotated[int, typer.Option(min=1, max=1_000_000, help="The most clients that a registrar enrols.")]
RegistrarPerDay = Annotated[int, typer.Option(min=1, help="The most certificates that a registrar issues in a day.")]
RegistrarDays = Annotated[
    int,
    typer.Option(
        min=1, max=REGISTRAR_DAYS_MAX, help="For how many days a registrar enrols; also TLS certificates of `deploy`."
    ),
]


CLIENTS_MIN = "The fewest contributions of a sum, N - T: in nodes' files, and as a policy for clients."
SMALLEST = Floors().clients_min
ClientsMin = Annotated[int, typer.Option(min=2, max=1_000_000, help=CLIENTS_MIN)]


class ListedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a federation, or its enrolment key (role ``authority``). Id and key are in hexadecimal."""

    role: Annotated[str, about("compute, trainer, registrar or authority.")]
    name: Annotated[str, about("In the file.")]
    id: Annotated[str, about("In hexadecimal.")]
    public_key: Annotated[str, about("In hexadecimal.")]


class ListedFederation(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a federation file."""

    name: Annotated[str, about("Of the federation.")]
    number: Annotated[int, about("Of the file; each change raises it.")]
    hash: Annotated[str, about("Of its signed contents, in hexadecimal.")]
    p: Annotated[int | None, about("The most Compute nodes that may be corrupt; null without Compute nodes.")]
    members: Annotated[list[ListedMember], about("With the enrolment key.")]
    revoked: Annotated[list[str], about("Ids of revoked members and clients, in hexadecimal.")]


def check_size(federation: Federation, without_computes: bool) -> None:
    """Refuse a federation of too few members. Raises `UsageError`."""
    found = len(federation.computes)
    if without_computes and found:
        raise UsageError(f"found {found} Compute nodes, expected none with --without-computes; leave out that option")
    if found < 2 and not without_computes:
        raise UsageError(
            f"found {found} Compute nodes, expected at least 2, so that none of them alone sees a sum; "
            "give --compute NAME=PUBLICKEY for each, or --computes 3 for a trial"
            + ("" if found else ", or --without-computes for node releases and LDP reports only")
        )
    if not federation.trainers:
        raise UsageError("no trainer; give --trainer NAME=PUBLICKEY, or --trainers 1 for a trial")


def check_colluding(option: str, colluding: int, computes: int) -> None:
    """Refuse a p that no federation of so many Compute nodes can have. Raises `UsageError`."""
    if not 0 <= colluding <= max(computes - 1, 0):
        most = f"1 to {computes - 1} of {computes} Compute nodes, or 0 for all but one"
        raise UsageError(f"{option}{colluding}: expected {most if computes else 'none without Compute nodes'}")


def colluding_in_words(federation: Federation) -> str:
    """Return p in a line for people."""
    p, computes = federation.p, len(federation.computes)
    spare = computes - p - 1
    rounds = f"{p + 1}, so {spare} may be down" if spare else f"all {computes}, so none may be down"
    return f"p = {p}: at most {p} of the {computes} Compute nodes may be corrupt; a round needs {rounds}"


def limits_in_words(registrar: Registrar) -> str:
    """Return a registrar's limits in a line for people."""
    return (
        f"{registrar.name}, {registrar.clients} clients, {registrar.per_day} a day, certificates of {registrar.days} "
        f"days, until {moment(registrar.until_ms)[:10]}"
    )


def show(
    file: Annotated[Path, typer.Argument(help="The federation file.")] = Path("federation.toml"),
    json_to: options.Json = None,
) -> None:
    """List a federation's members."""
    console, federation = result_console(json_to), read_federation(file)
    named = [("compute", node) for node in federation.computes] + [("trainer", each) for each in federation.trainers]
    named += [("registrar", Member(each.name, each.key)) for each in federation.registrars]
    named.append(("authority", Member("enrolment key", federation.enrolment_key)))
    listed = ListedFederation(
        name=federation.name,
        number=federation.number,
        hash=federation.hash.hex(),
        p=federation.p if federation.computes else None,
        members=[
            ListedMember(role=role, name=member.name, id=member.id.hex(), public_key=member.key.hex())
            for role, member in named
        ],
        revoked=[member_id.hex() for member_id in federation.revoked],
    )
    write_json(listed, json_to)
    rows = [(member.role, member.name, member.id) for member in listed.members]
    known = read_revoked(file)
    rows += [("revoked", known[one].name if one in known else "", one) for one in listed.revoked]
    title = f"federation {listed.name}, file number {listed.number}"
    console.print(table(("role", "name", "id"), rows, title=title, align="<<<"))
    if federation.computes:
        console.print(colluding_in_words(federation))
    for registrar in federation.registrars:
        console.print(f"registrar {limits_in_words(registrar)}")
    console.print("public keys")  # each on one line, to be copied
    for member in listed.members:
        console.print(f"  {member.public_key}  {member.name}", soft_wrap=True)
    console.print(f"hash {listed.hash}", soft_wrap=True)


# --- everybody, as a member or the owner knows them -------------------------------------------------------------------

EXAMPLES = """Examples:

  dca federation members                         beside the federation file: members, and all certificates (*.cert)
  dca federation members compute-1.toml          as a Compute node knows them: clients that had a session, and when
  dca federation members registrar.toml          as the registrar knows them: all clients that it has enrolled

Names of clients are sealed: a Compute node's or trainer's file opens them, and so does the enrolment key. A federation
file has only the ids of those whom it revokes. The command that revoked them keeps their names beside it, in
federation.revoked.toml.
"""


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A Compute node, a trainer or a client. Times are UTC, in ISO 8601."""

    role: Annotated[str, about("compute, trainer, client or registrar; empty if only the id is known.")]
    name: Annotated[str, about("Empty if the certificate has none, or if it cannot be read here.")]
    id: Annotated[str, about("In hexadecimal.")]
    certificate_ends: Annotated[str | None, about("Of a client; null if it is not known here.")] = None
    last_session: Annotated[str | None, about("When a client last made a key, as a node knows it.")] = None
    revoked: Annotated[bool, about("Whether the federation file revokes it.")] = False


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dca federation members --json`."""

    federation: Annotated[str, about("Its name.")]
    number: Annotated[int, about("Of its file.")]
    members: Annotated[list[Person], about("Compute nodes, trainers, clients, then revoked ids without a certificate.")]


def members(
    file: Annotated[
        Path, typer.Argument(help="The federation file, or the TOML file of a Compute node, trainer or registrar.")
    ] = Path("federation.toml"),
    authority: Annotated[Path | None, typer.Option(help="The enrolment key's file.")] = None,
    json_to: options.Json = None,
) -> None:
    """List names, ids, roles, ends of certificates, last sessions, and who is revoked. Actors may run meanwhile."""
    console = result_console(json_to)
    found = members_of(file, authority)
    write_json(found, json_to)
    rows = [
        (one.role, one.name, short_id(bytes.fromhex(one.id)), _day(one.certificate_ends), _day(one.last_session),
         "revoked" if one.revoked else "")
        for one in found.members
    ]  # fmt: skip
    head = ("role", "name", "id", "certificate ends", "last session", "")
    console.print(table(head, rows, title=f"federation {found.federation}, file number {found.number}", align="<<<<<<"))


def members_of(file: Path, authority: Path | None = None) -> Members:
    """Return all members and clients that a file's folder or an actor's store has. Raises `UsageError`."""
    federation, clients = _sources(file, authority)
    people = [Person(role="compute", name=one.name, id=one.id.hex()) for one in federation.computes]
    people += [Person(role="trainer", name=one.name, id=one.id.hex()) for one in federation.trainers]
    for client, known in sorted(clients.items(), key=lambda item: (item[1].name, item[0])):
        people.append(msgspec.structs.replace(known, revoked=federation.is_revoked(client)))
    listed = {one.id for one in people}
    others = [one.hex() for one in federation.revoked if one.hex() not in listed]
    former = read_revoked(_federation_path(file)) if others else {}
    people += [former.get(one, Person(role="", name="", id=one, revoked=True)) for one in others]
    return Members(federation=federation.name, number=federation.number, members=people)


def _sources(file: Path, authority: Path | None) -> tuple[Federation, dict[bytes, Person]]:
    """Return the federation, and the clients of the folder's certificates or of a Compute node's store."""
    clients: dict[bytes, Person] = {}
    if is_registrar_file(file):
        return _of_registrar(file)
    if not is_actor_file(file):
        federation, folder = read_federation(file), file.absolute().parent
        path = authority or folder / "authority.key"
        key = read_identity(path, "authority").name_key if authority is not None or path.exists() else None
    else:
        config = read_config(file, ("compute", "trainer"))
        federation, folder = config.federation, config.files.federation.parent
        identity = read_identity(config.files.identity, config.role)
        key = federation.name_key(identity)
        records = [row[1:] for row in read_store(config.files.store, identity.store_key)]
        federation = newest_file(federation, records)  # the file on disk is replaced when the actor stops
        for kind, client, value in records:
            if kind == SESSIONS:
                clients[client] = _seen(client, decoded(SESSIONS, value, StoredSession))
    for path in sorted(folder.glob("*.cert")):
        try:
            certificate = parse_certificate(path)
            client = federation.certified_client(certificate)
        except (UsageError, PeerError):
            continue  # another federation's, or damaged: `dca broker` names it
        known = clients.get(client, Person(role="client", name="", id=client.hex()))
        name = known.name or (open_name(key, certificate) if key is not None else "")
        ends = known.certificate_ends or iso(certificate.expires_ms)
        clients[client] = msgspec.structs.replace(known, name=name, certificate_ends=ends)
    return federation, clients


def _of_registrar(file: Path) -> tuple[Federation, dict[bytes, Person]]:
    """Return the federation, and the clients that a registrar has enrolled."""
    registrar = read_registrar(file)
    federation = read_federation(registrar.federation)
    if not registrar.book.exists():
        return federation, {}
    book = Book(registrar.book)
    try:
        enrolled = [one.invitation for one in book.all() if one.invitation.certificate is not None]
    finally:
        book.close()
    clients = {}
    for one in enrolled:
        client, ends_ms = actor_id(one.client_key), one.certificate.expires_ms if one.certificate is not None else 0
        clients[client] = Person(role="client", name=one.name, id=client.hex(), certificate_ends=iso(ends_ms))
    return federation, clients


def _federation_path(file: Path) -> Path:
    """Return the federation file that a file is, or names."""
    if is_registrar_file(file):
        return read_registrar(file).federation
    return read_config(file).files.federation if is_actor_file(file) else file


class _Revoked(msgspec.Struct, frozen=True):
    role: str
    name: str


def _revoked_path(federation: Path) -> Path:
    return federation.with_suffix(".revoked.toml")


def read_revoked(federation: Path) -> dict[str, Person]:
    """Return revoked members and clients by id, as the command that revoked them knew them; for people only."""
    path = _revoked_path(federation)
    if not path.exists():
        return {}
    try:
        known = msgspec.convert(parse_toml(read_text(path)), dict[str, _Revoked])
    except ValueError:
        raise InputError(f"{path} is damaged; move it away: nothing but names is lost") from None
    return {one: Person(role=of.role, name=printable(of.name), id=one, revoked=True) for one, of in known.items()}


def note_revoked(federation: Path, revoked: Iterable[Person]) -> None:
    """Keep the names of members and clients that a federation file revokes from now on, beside it."""
    known = read_revoked(federation) | {one.id: one for one in revoked if one.name}
    lines = [f"{one.id} = {toml_value({'role': one.role, 'name': one.name})}\n" for one in known.values()]
    if lines:
        head = "# whom the federation file revokes, by id, for people\n"
        replace_private(_revoked_path(federation), head + "".join(lines))


def _seen(client: bytes, stored: StoredSession) -> Person:
    newest = stored.current
    return Person(
        role="client",
        name=stored.name,
        id=client.hex(),
        certificate_ends=None if newest is None else iso(newest.certificate_ms),
        last_session=None if newest is None else iso(newest.serial),
    )


def _day(time: str | None) -> str:
    return "" if time is None else time[:16].replace("T", " ")
