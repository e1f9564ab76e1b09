"""Makes the next federation file: with members added, replaced or revoked, or with another p."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from dca_proto.cli import members, verbatim
from dca_proto.cli.output import tell
from dca_proto.crypto.sealing import actor_id
from dca_proto.errors import UsageError
from dca_proto.protocol.federation import Federation, Member, sign_federation
from dca_proto.protocol.params import DAY_MS
from dca_proto.protocol.wire.messages import Registrar
from dca_proto.runtime.access import NEW_MEMBERS
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.keyfile import (
    certificate_path,
    certified_id,
    public_key,
    read_federation,
    read_identity,
    replace_file,
)

app = typer.Typer()
_Changed = Annotated[Path, typer.Option(help="The federation file; the next one replaces it.")]
_Authority = Annotated[Path, typer.Option(help="The enrolment key's file.")]
_REVOKE = """Examples:

  dca federation revoke client-3            client-3.cert is beside the federation file
  dca federation revoke ward-5 9f7db0a9 --members compute.toml
      clients as `dca federation members compute.toml` lists them, by name or first digits of the id
  dca federation revoke 0dcbcd9715d08fe4342bf1b440c550db hospital-b
      a client by its id, and a Compute node by its name; at least two Compute nodes must remain

This writes the next federation file. Give it to one trainer or Compute node and restart that one: the others receive
it over the broker, and nobody has to enrol again. A revocation is final.
"""
_ADD_NODE = """Example:

  dca federation add-node hospital-c=3b6a27bcceb6a42d62a3a8d0...

This writes the next federation file. The new node needs that file. All others receive it over the broker.
"""
_REPLACE_NODE = """Example:

  dca federation replace-node hospital-b hospital-d=3b6a27bcceb6a42d62a3a8d0...

The old node's key is revoked for good. Open rounds end without a result.
"""
_SET_P = """Examples:

  dca federation set-p 1           at most one Compute node may be corrupt; rounds need two
  dca federation set-p 0           all but one may be, as in a new federation; rounds need all of them

This writes the next federation file, and all members follow it. A client keeps to the largest p that it has seen, until
its owner accepts a smaller one.
"""
_ADD_REGISTRAR = """Examples:

  dca federation add-registrar door=3b6a27bcceb6a42d62a3a8d0...
      its key may enrol 100 clients, at most 20 a day, each for 90 days, until a year from now
  dca federation add-registrar door=registrar.key --clients 400 --per-day 50 --days 30 --for-days 180

The key is made by `dca keygen registrar.key --role registrar` where the registrar runs (dca registrar -h). To change
the limits, name the same key again. If the key is stolen: dca federation revoke door. All its clients then enrol anew.
"""
_ADD_TRAINER = """Example:

  dca federation add-trainer second-lab=3b6a27bcceb6a42d62a3a8d0...
"""


def new_members(role: str, texts: Iterable[str]) -> Iterator[Member]:
    """Yield members from ``NAME=KEY``, where KEY is in hexadecimal or a key file."""
    for text in texts:
        name, _, key = text.partition("=")
        if not name or not key:
            raise UsageError(f"--{role} {text!r}: expected NAME=PUBLICKEY, 64 hexadecimal digits or a key file")
        yield Member(name, read_public_key(key, role))


def read_public_key(text: str, role: str) -> bytes:
    key = public_key(text)
    if key is not None:
        return key
    if not Path(text).is_file():
        raise UsageError(f"{text!r} is neither a public key (64 hexadecimal digits) nor a key file of a {role}")
    return read_identity(Path(text), role).public_key


@app.command(epilog=verbatim(_REVOKE))
def revoke(
    names: Annotated[
        list[str], typer.Argument(help="Names, or ids or their first digits; clients' public keys, certificates.")
    ],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
    node_file: Annotated[
        Path | None,
        typer.Option("--members", help="A Compute node's or registrar's TOML file: names its clients."),
    ] = None,
) -> None:
    """Revoke members for good. The other members need not enrol again."""
    old = read_federation(federation)
    listed = members.members_of(federation, authority).members
    if node_file is not None:
        listed += members.members_of(node_file).members
    revoked = {_id_of(name, old, federation.parent, listed): name for name in names}
    _change(old, federation, authority, revoked=revoked, listed=listed)


@app.command("add-node", epilog=verbatim(_ADD_NODE))
def add_node(
    nodes: Annotated[list[str], typer.Argument(help="NAME=PUBLICKEY of each new Compute node.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """Add Compute nodes."""
    _change(read_federation(federation), federation, authority, computes=new_members("compute", nodes))


@app.command("replace-node", epilog=verbatim(_REPLACE_NODE))
def replace_node(
    old: Annotated[str, typer.Argument(help="Name or id of the Compute node to revoke.")],
    new: Annotated[str, typer.Argument(help="NAME=PUBLICKEY of the new node; the name may be the old node's.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """Revoke a Compute node, and put another one in its place."""
    file = read_federation(federation)
    revoked = {member.id: member.name for member in file.computes if old in (member.name, member.id.hex())}
    if not revoked:
        names = ", ".join(member.name for member in file.computes)
        raise UsageError(f"{old!r} is no Compute node of {federation}; known: {names or 'none'}")
    _change(file, federation, authority, computes=new_members("compute", [new]), revoked=revoked)


@app.command("set-p", epilog=verbatim(_SET_P))
def set_p(
    colluding: Annotated[
        int, typer.Argument(help="The most Compute nodes that may be corrupt; 0: all but one.", metavar="P")
    ],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """State how many Compute nodes may be corrupt: rounds go on without the others."""
    file = read_federation(federation)
    members.check_colluding("p = ", colluding, len(file.computes))
    if colluding == file.colluding:
        raise UsageError(f"{file.title} states p = {colluding} already; nothing is to be changed")
    _change(file, federation, authority, colluding=colluding)
    if (p := colluding or len(file.computes) - 1) < file.p:
        tell(
            f"clients     keep to p = {file.p}, and decline rounds of fewer than {file.p + 1} Compute nodes, until the"
        )
        tell(f"            owner of each runs `dca client FILE --accept-p {p}`, or sets accept_p in its [policy]")


@app.command("add-trainer", epilog=verbatim(_ADD_TRAINER))
def add_trainer(
    trainers: Annotated[list[str], typer.Argument(help="NAME=PUBLICKEY of each new trainer.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
) -> None:
    """Add trainers, who may announce rounds."""
    _change(read_federation(federation), federation, authority, trainers=new_members("trainer", trainers))


@app.command("add-registrar", epilog=verbatim(_ADD_REGISTRAR))
def add_registrar(
    registrar: Annotated[str, typer.Argument(help="NAME=PUBLICKEY, or its key file; one that is named already, anew.")],
    federation: _Changed = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
    clients: members.RegistrarClients = 100,
    per_day: members.RegistrarPerDay = 20,
    days: members.CertificateDays = 90,
    for_days: members.RegistrarDays = 365,
) -> None:
    """Let a registrar enrol clients, within limits, so that the enrolment key stays offline."""
    old = read_federation(federation)
    (member,) = new_members("registrar", [registrar])
    until_ms = now_ms() + for_days * DAY_MS
    new = Registrar(member.name, member.key, b"", until_ms, clients, days, per_day)
    others = tuple(one for one in old.registrars if one.key != new.key)
    _change(old, federation, authority, registrars=(*others, new))


def _id_of(name: str, federation: Federation, folder: Path, listed: Iterable[members.Person]) -> bytes:
    """Return the id of a member or client given by name, id, public key or certificate. Raises `UsageError`.

    `listed`: those who are known by name, or by four or more of their id's first digits.
    """
    registrars = (Member(one.name, one.key) for one in federation.registrars)
    named = [member for member in (*federation.computes, *federation.trainers, *registrars) if member.name == name]
    if named:  # a client may have this name, too
        return _id_among((*listed, *(members.Person(role="", name=name, id=one.id.hex()) for one in named)), name)
    key = public_key(name)
    if key is not None:
        return actor_id(key)
    if re.fullmatch("[0-9a-f]{32}", name):
        return bytes.fromhex(name)
    for path in (Path(name), certificate_path(Path(name)), folder / f"{name}.cert"):
        if path.suffix == ".cert" and path.is_file():
            return certified_id(path)
    return _id_among(listed, name)


def _id_among(listed: Iterable[members.Person], name: str) -> bytes:
    """Return the id of the only one of these with this name, or whose id begins so. Raises `UsageError`."""
    is_short = re.fullmatch("[0-9a-f]{4,31}", name) is not None
    found = {one.id for one in listed if one.name == name or (is_short and one.id.startswith(name))}
    if len(found) == 1:
        return bytes.fromhex(found.pop())
    if found:
        raise UsageError(f"{name!r} stands for {', '.join(sorted(found))}: give one of these ids in full")
    raise UsageError(
        f"{name!r} is not known: expected a member's name, a client's id (32 hexadecimal digits) or public key (64), "
        "or a certificate (*.cert), here or beside the federation file. A Compute node knows clients' names and ids: "
        f"dca federation revoke {name} --members compute.toml, or list them: dca federation members compute.toml"
    )


def _people(federation: Federation, listed: Iterable[members.Person]) -> Iterator[members.Person]:
    """Yield all who are known by name: clients, then Compute nodes, trainers and registrars."""
    yield from listed
    registrars = tuple(Member(one.name, one.key) for one in federation.registrars)
    named = {"compute": federation.computes, "trainer": federation.trainers, "registrar": registrars}
    for role, servers in named.items():
        yield from (members.Person(role=role, name=one.name, id=one.id.hex()) for one in servers)


def _change(
    old: Federation,
    path: Path,
    authority: Path,
    *,
    computes: Iterable[Member] = (),
    trainers: Iterable[Member] = (),
    revoked: Mapping[bytes, str] = MappingProxyType({}),
    colluding: int | None = None,
    registrars: tuple[Registrar, ...] | None = None,
    listed: Iterable[members.Person] = (),
) -> None:
    """Write the next federation file, without the revoked members (names by id) and with the new ones.

    `listed`: clients that are known by name.
    """
    already = [name for member_id, name in revoked.items() if old.is_revoked(member_id)]
    if already:
        raise UsageError(f"{already[0]} is already revoked, by {old.title}; leave it out")
    unsigned = Federation(
        old.name,
        old.enrolment_key,
        (*(member for member in old.computes if member.id not in revoked), *computes),
        (*(member for member in old.trainers if member.id not in revoked), *trainers),
        old.number + 1,
        tuple(sorted({*old.revoked, *revoked})),
        colluding=old.colluding if colluding is None else colluding,
        registrars=tuple(
            one for one in (old.registrars if registrars is None else registrars) if actor_id(one.key) not in revoked
        ),
    )
    found = len(unsigned.computes)
    if found < 2 and (found or old.computes):
        raise UsageError(f"{found} Compute nodes would be left, expected at least 2; add others, or use replace-node")
    if not unsigned.trainers:
        raise UsageError("no trainer would be left; add another one first: dca federation add-trainer")
    new = sign_federation(read_identity(authority, "authority"), unsigned)
    replace_file(path, new.to_toml())
    known = {one.id: one for one in _people(old, listed) if one.name and bytes.fromhex(one.id) in revoked}
    members.note_revoked(path, known.values())
    tell(f"federation  {new.name}: {path} is now {new.title}")
    for member_id, given in revoked.items():
        name = known[member_id.hex()].name if member_id.hex() in known else given
        tell(f"            revoked: {name}" + (f", {member_id.hex()}" if name != member_id.hex() else ""))
    for role, named in (("Compute nodes", new.computes), ("trainers", new.trainers)):
        tell(f"            {role}: {', '.join(member.name for member in named) or 'none'}")
    for one in new.registrars:
        tell(f"            registrar: {members.limits_in_words(one)}")
    if new.computes:
        tell(f"            {members.colluding_in_words(new)}")
    tell("next        copy it to the registrar first, if there is one: it tells the broker, and makes the files of")
    tell(
        f"            new members in {NEW_MEMBERS}. Without one, restart a broker with passwords with it. Then give it"
    )
    tell("            to a new member, or to any trainer or Compute node, and restart that one; all others receive it")
