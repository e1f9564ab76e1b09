"""Make and change the federation file, enrol and revoke, show who belongs, and run a trial."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from dca_proto.cli import trial, verbatim
from dca_proto.cli.output import table
from dca_proto.crypto.sealing import Identity, actor_id
from dca_proto.errors import StorageError, UsageError
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.runtime.keyfile import (
    certificate_path,
    certified_id,
    new_identity,
    public_key,
    read_federation,
    read_identity,
    replace_file,
    write_certificate,
    write_identity,
    write_private,
)
from dca_proto.runtime.settings import check_url

_GROUP = """Examples:

  dca federation init demo --computes 3 --clients 20      all files of a trial on one machine

  dca federation show demo/federation.toml

  dca federation revoke client-3                          and add-node, replace-node, add-trainer: the next file

  dca federation enrol -h                                 more about one of these commands
"""

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help=__doc__, epilog=verbatim(_GROUP), no_args_is_help=True
)

_DAY_MS = 24 * 3600 * 1000

_INIT = """Examples:

  dca federation init demo --computes 3 --clients 20 --broker mqtt://127.0.0.1
      all identities for a trial on one machine, and a file for each actor

  dca federation init . --name hearts --compute hospital-a=3b6a... --compute hospital-b=91fe... --trainer lab=07c2...
      for real: each member made its key with `dca keygen` and sent the public part
"""
_ENROL = """Examples:

  dca federation enrol --federation federation.toml --authority authority.key 3b6a27bcceb6a42d62a3a8d0...
      writes <id>.cert, which goes back to the client

  dca federation enrol --federation federation.toml --authority authority.key clients/*.key --days 90
      where the key files are at hand: writes each certificate beside its key
"""
_Changed = Annotated[Path, typer.Option(help="The federation file; the next one takes its place.")]
_Authority = Annotated[Path, typer.Option(help="The enrolment key's file.")]
_REVOKE = """Examples:

  dca federation revoke client-3            client-3.cert stands beside the federation file
  dca federation revoke 0dcbcd9715d08fe4342bf1b440c550db hospital-b
      a client by its id, and a Compute node by its name; of Compute nodes two at least must stay

It makes the next federation file. Give that to one trainer or Compute node and start it again: the others learn of it
over the broker, and nobody is enrolled anew. A revocation is final.
"""
_ADD_NODE = """Example:

  dca federation add-node hospital-c=3b6a27bcceb6a42d62a3a8d0...

It makes the next federation file. The new node needs that file. All others learn of it over the broker.
"""
_REPLACE_NODE = """Example:

  dca federation replace-node hospital-b hospital-d=3b6a27bcceb6a42d62a3a8d0...

The old node's key is revoked for good. Rounds that are open end without a result.
"""
_ADD_TRAINER = """Example:

  dca federation add-trainer second-lab=3b6a27bcceb6a42d62a3a8d0...
"""


class _Made(msgspec.Struct, frozen=True):
    """An identity that `init` makes itself."""

    role: str
    name: str
    identity: Identity


@app.command(epilog=verbatim(_INIT))
def init(
    directory: Annotated[Path, typer.Argument(help="Where the files go; made if missing.")],
    name: Annotated[str, typer.Option(help="Lower-case letters, digits and dashes; part of every topic.")] = "demo",
    compute: Annotated[list[str] | None, typer.Option(help="NAME=PUBLICKEY of a Compute node; repeat.")] = None,
    trainer: Annotated[list[str] | None, typer.Option(help="NAME=PUBLICKEY of a trainer; repeat.")] = None,
    authority: Annotated[Path | None, typer.Option(help="The enrolment key's file; by default a new one.")] = None,
    computes: Annotated[int, typer.Option(help="Trial: make so many Compute nodes here.")] = 0,
    trainers: Annotated[int, typer.Option(help="Trial: make so many trainers here, by default 1.")] = 0,
    clients: Annotated[int, typer.Option(help="Trial: make and enrol so many clients here.")] = 0,
    days: Annotated[float, typer.Option(help="How long the clients' certificates hold.")] = 365.0,
    broker: Annotated[str | None, typer.Option(help="Trial: also write each actor's file, with this URL.")] = None,
    without_computes: Annotated[
        bool, typer.Option("--without-computes", help="For node releases and LDP reports only, which need none.")
    ] = False,
) -> None:
    """Make a federation file, and for a trial all identities that belong to it."""
    until_ms = _expiry_ms(days)
    if broker is not None:
        check_url("--broker", broker)
    for option, count, most in (("computes", computes, 100), ("trainers", trainers, 100), ("clients", clients, 10_000)):
        if not 0 <= count <= most:
            raise UsageError(f"--{option} {count}: expected 0 to {most}; a trial is made on one machine")
    if (computes or without_computes) and not trainer:
        trainers = trainers or 1
    made = [*_make("compute", computes), *_make("trainer", trainers), *_make("client", clients)]
    signer = new_identity() if authority is None else read_identity(authority, "authority")
    unsigned = Federation(
        name,
        signer.public_key,
        (*_members("compute", compute or []), *_named(made, "compute")),
        (*_members("trainer", trainer or []), *_named(made, "trainer")),
    )
    _check_size(unsigned, without_computes)
    federation = sign_federation(signer, unsigned)
    if authority is None:
        made.append(_Made("authority", "authority", signer))
    files = {"federation.toml": partial(replace_file, text=federation.to_toml())}
    for one in made:
        files[f"{one.name}.key"] = partial(write_identity, role=one.role, identity=one.identity)
        if one.role == "client":
            certificate = enrol(signer, federation, one.identity.public_key, until_ms)
            files[f"{one.name}.cert"] = partial(write_certificate, federation=federation, certificate=certificate)
        if broker is not None and one.role != "authority":
            files[f"{one.name}.toml"] = partial(write_private, text=_actor_text(one, broker))
    _write_all(directory, files)
    _tell(directory, federation, made)


def _tell(directory: Path, federation: Federation, made: Iterable[_Made]) -> None:
    roles = [one.role for one in made]
    print(f"federation  {federation.name}: {directory / 'federation.toml'}")
    none = "none, so for node releases and LDP reports only"
    nodes = ", ".join(member.name for member in federation.computes) or none
    print(f"            Compute nodes: {nodes}")
    print(f"            trainers: {', '.join(member.name for member in federation.trainers)}")
    if "client" in roles:
        print(f"            {roles.count('client')} clients enrolled")
    if "authority" in roles:
        print(f"authority   {directory / 'authority.key'}: whoever holds it can make clients; keep it off the network")


def _make(role: str, count: int) -> list[_Made]:
    names = [role] if role == "trainer" and count == 1 else [f"{role}-{i}" for i in range(1, count + 1)]
    return [_Made(role, name, new_identity()) for name in names]


def _members(role: str, given: Iterable[str]) -> Iterator[Member]:
    """Members from ``NAME=KEY``, where KEY is in hexadecimal or a key file."""
    for text in given:
        name, _, key = text.partition("=")
        if not name or not key:
            raise UsageError(f"--{role} {text!r}: expected NAME=PUBLICKEY, 64 hexadecimal digits or a key file")
        yield Member(name, _public_key(key, role))


def _public_key(text: str, role: str) -> bytes:
    key = public_key(text)
    if key is not None:
        return key
    if not Path(text).is_file():
        raise UsageError(f"{text!r} is neither a public key (64 hexadecimal digits) nor a key file of a {role}")
    return read_identity(Path(text), role).public_key


def _named(made: Iterable[_Made], role: str) -> Iterator[Member]:
    return (Member(one.name, one.identity.public_key) for one in made if one.role == role)


def _check_size(federation: Federation, without_computes: bool) -> None:
    found = len(federation.computes)
    if without_computes and found:
        raise UsageError(f"found {found} Compute nodes, expected none with --without-computes; leave out one of them")
    if found < 2 and not without_computes:
        raise UsageError(
            f"found {found} Compute nodes, expected at least 2, so that no one of them sees a sum; "
            "give --compute NAME=PUBLICKEY for each, or --computes 3 for a trial"
            + ("" if found else ", or --without-computes for node releases and LDP reports only")
        )
    if not federation.trainers:
        raise UsageError("no trainer; give --trainer NAME=PUBLICKEY, or --trainers 1 for a trial")


def _write_all(directory: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    """Write new files, each by its function; all of them, or none."""
    taken = [name for name in files if (directory / name).exists()]
    if taken:  # seen before anything is written
        raise UsageError(f"{directory / taken[0]} exists already and is not replaced; name another folder")
    with contextlib.ExitStack() as undoing:
        if not directory.exists():
            try:
                directory.mkdir(mode=0o700, parents=True)
            except OSError as error:
                raise StorageError(f"cannot make folder {directory}: {error.strerror}") from None
            undoing.callback(directory.rmdir)
        for name, write in files.items():
            write(directory / name)
            undoing.callback((directory / name).unlink)
        undoing.pop_all()  # all is well: nothing to undo


def _actor_text(one: _Made, url: str) -> str:
    """An actor's file, with a comment on the limits that hold where the file sets none."""
    policy, floors, account = Policy(), Floors(), BudgetLimit()
    section, limits = {
        "client": (
            "policy",
            f"at most epsilon {at_least(policy.epsilon_per_round_max)} in a round and "
            f"{at_least(policy.epsilon_per_period_max)} in {policy.period_days:g} days, "
            f"at delta {at_least(policy.delta_max)}; n_min >= {policy.clients_min}; "
            f"n_min - 1 - c >= {policy.honest_min}",
        ),
        "compute": ("floors", f"n_min >= {floors.clients_min}; n_min - 1 - c >= {floors.honest_min}"),
        "trainer": (
            "account",
            f"all rounds together at most epsilon {at_least(account.epsilon)} in {account.period_days:g} days, "
            f"at delta {at_least(account.delta)}",
        ),
    }[one.role]
    data = f'data = "{one.name}.csv"\n' if one.role == "client" else ""
    return (
        f'[{one.role}]\nidentity = "{one.name}.key"\nfederation = "federation.toml"\n{data}store = "{one.name}.db"\n\n'
        f"[broker]\nurl = {msgspec.json.encode(url).decode()}\n\n"
        f"# without [{section}]: {limits}\n# to change that, see `dca {one.role} --help`\n"
    )


@app.command("enrol", epilog=verbatim(_ENROL))
def enrol_clients(
    clients: Annotated[list[str], typer.Argument(help="Clients' public keys (64 hexadecimal digits) or key files.")],
    federation: Annotated[Path, typer.Option(help="The federation file.")] = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
    days: Annotated[float, typer.Option(help="How long the certificates hold.")] = 365.0,
    directory: Annotated[
        Path, typer.Option("--output", help="Folder where certificates of public keys go, as <id>.cert.")
    ] = Path(),
) -> None:
    """Sign certificates of clients: the federation's word that they belong to it."""
    members = read_federation(federation)
    signer = read_identity(authority, "authority")
    until_ms = _expiry_ms(days)
    certificates = [(text, enrol(signer, members, _public_key(text, "client"), until_ms)) for text in clients]
    for text, certificate in certificates:
        is_file = public_key(text) is None
        path = certificate_path(Path(text)) if is_file else directory / f"{actor_id(certificate.client_key).hex()}.cert"
        write_certificate(path, members, certificate)
        print(f"enrolled  {actor_id(certificate.client_key).hex()} for {days:g} days: {path}")


def _expiry_ms(days: float) -> int:
    if not 0 < days < 100 * 366:
        raise UsageError(f"--days {days:g}: expected a number above 0 and below {100 * 366}")
    return time.time_ns() // 1_000_000 + int(days * _DAY_MS)


@app.command(epilog=verbatim(_REVOKE))
def revoke(
    names: Annotated[list[str], typer.Argument(help="Members' names; clients' ids, public keys, certificates.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """Revoke clients, Compute nodes or trainers for good, within a round and without enrolling the others anew."""
    old = read_federation(federation)
    _change(old, federation, authority, revoked={_id_of(name, old, federation.parent): name for name in names})


@app.command("add-node", epilog=verbatim(_ADD_NODE))
def add_node(
    nodes: Annotated[list[str], typer.Argument(help="NAME=PUBLICKEY of each new Compute node.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """Take in Compute nodes."""
    _change(read_federation(federation), federation, authority, computes=_members("compute", nodes))


@app.command("replace-node", epilog=verbatim(_REPLACE_NODE))
def replace_node(
    old: Annotated[str, typer.Argument(help="Name or id of the Compute node that goes.")],
    new: Annotated[str, typer.Argument(help="NAME=PUBLICKEY of the one that comes; the name may be the old one's.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """Put a Compute node in the place of another one, which is revoked."""
    file = read_federation(federation)
    gone = {member.id: member.name for member in file.computes if old in (member.name, member.id.hex())}
    if not gone:
        names = ", ".join(member.name for member in file.computes)
        raise UsageError(f"{old!r} is no Compute node of {federation}; known: {names or 'none'}")
    _change(file, federation, authority, computes=_members("compute", [new]), revoked=gone)


@app.command("add-trainer", epilog=verbatim(_ADD_TRAINER))
def add_trainer(
    trainers: Annotated[list[str], typer.Argument(help="NAME=PUBLICKEY of each new trainer.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """Take in trainers, who may announce rounds."""
    _change(read_federation(federation), federation, authority, trainers=_members("trainer", trainers))


def _id_of(name: str, federation: Federation, folder: Path) -> bytes:
    """The id of a member or a client, which may be given in several ways. Raises `UsageError`."""
    for member in (*federation.computes, *federation.trainers):
        if name in (member.name, member.id.hex(), member.key.hex()):
            return member.id
    key = public_key(name)
    if key is not None:
        return actor_id(key)
    if re.fullmatch("[0-9a-f]{32}", name):
        return bytes.fromhex(name)
    for path in (Path(name), certificate_path(Path(name)), folder / f"{name}.cert"):
        if path.suffix == ".cert" and path.is_file():
            return certified_id(path)
    raise UsageError(
        f"{name!r} is no member's name, no client's id (32 hexadecimal digits) or public key (64), and no certificate "
        "(*.cert) there or beside the federation file; a client's key file has its id"
    )


def _change(
    old: Federation,
    path: Path,
    authority: Path,
    *,
    computes: Iterable[Member] = (),
    trainers: Iterable[Member] = (),
    revoked: Mapping[bytes, str] = MappingProxyType({}),
) -> None:
    """Write the next federation file: without those that are revoked, by id, and with those that come."""
    known = [name for one, name in revoked.items() if old.is_revoked(one)]
    if known:
        raise UsageError(f"{known[0]} is revoked already, by {old.title}; name only those that are not")
    unsigned = Federation(
        old.name,
        old.enrolment_key,
        (*(member for member in old.computes if member.id not in revoked), *computes),
        (*(member for member in old.trainers if member.id not in revoked), *trainers),
        old.number + 1,
        tuple(sorted({*old.revoked, *revoked})),
    )
    found = len(unsigned.computes)
    if found < 2 and (found or old.computes):
        raise UsageError(f"{found} Compute nodes would be left, expected at least 2; take in others, or replace-node")
    if not unsigned.trainers:
        raise UsageError("no trainer would be left; take in another one first: dca federation add-trainer")
    new = sign_federation(read_identity(authority, "authority"), unsigned)
    replace_file(path, new.to_toml())
    print(f"federation  {new.name}: {path} holds {new.title} now")
    for one, name in revoked.items():
        print(f"            revoked: {name}" + (f", {one.hex()}" if name != one.hex() else ""))
    for what, members in (("Compute nodes", new.computes), ("trainers", new.trainers)):
        print(f"            {what}: {', '.join(member.name for member in members) or 'none'}")
    print("next        give the file to a new member, or to any trainer or Compute node, and start that one again;")
    print("            all others learn of it over the broker. A broker with passwords reads it when it starts")


@app.command(epilog=verbatim("Example:\n\n  dca federation show federation.toml"))
def show(file: Annotated[Path, typer.Argument(help="The federation file.")] = Path("federation.toml")) -> None:
    """Show who belongs to a federation."""
    federation = read_federation(file)
    title = f"federation {federation.name}, file number {federation.number}"
    named = [("compute", one) for one in federation.computes] + [("trainer", one) for one in federation.trainers]
    enrolment = Member("enrolment key", federation.enrolment_key)
    rows = [(role, one.name, one.id.hex(), one.key.hex()) for role, one in (*named, ("authority", enrolment))]
    rows += [("revoked", "", one.hex(), "") for one in federation.revoked]
    console = Console()
    console.print(table(("role", "name", "id", "public key"), rows, title=title, align="<<<w"))
    console.print(f"hash {federation.hash.hex()}", highlight=False, soft_wrap=True)


app.command("run", epilog=verbatim("Example:\n\n  dca federation run demo"))(trial.run)
