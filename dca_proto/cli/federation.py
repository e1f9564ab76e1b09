"""Create and change a federation file, enrol and revoke members, list them, and run a trial."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dca_proto.cli import deploy, federation_changes, invite, members, trial, verbatim
from dca_proto.cli.federation_changes import new_members, read_public_key
from dca_proto.cli.output import tell
from dca_proto.crypto.sealing import Identity, actor_id
from dca_proto.deploy.plan import floors_of, limits_text
from dca_proto.errors import StorageError, UsageError
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.protocol.names import check_name, open_name
from dca_proto.protocol.params import DAY_MS
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.keyfile import (
    certificate_path,
    new_identity,
    parse_certificate,
    public_key,
    read_federation,
    read_identity,
    replace_file,
    write_certificate,
    write_identity,
    write_private,
)
from dca_proto.runtime.settings import check_url
from dca_proto.wording import counted, toml_text

_GROUP = """Examples:

  dca federation init demo --computes 3 --clients 20      all files of a trial on one machine

  dca federation deploy hearts --hosts berlin=10.0.0.1,paris=10.0.0.2      all files of real machines, with TLS

  dca federation invite ward-7            on the registrar's machine; the device types dca join ward-7.bundle

  dca federation show demo/federation.toml

  dca federation revoke client-3          write the next file, as do add-node, replace-node, add-trainer and set-p

  dca federation enrol -h                                 more about one of these commands
"""

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help=__doc__, epilog=verbatim(_GROUP), no_args_is_help=True
)

_INIT = """Examples:

  dca federation init demo --computes 3 --clients 20 --broker mqtt://127.0.0.1
      all identities for a trial on one machine, and a file for each actor

  dca federation init small --computes 3 --clients 5 --clients-min 4 --broker mqtt://127.0.0.1
      a trial with few clients: nodes and clients accept sums of four

  dca federation init . --name hearts --compute hospital-a=3b6a... --compute hospital-b=91fe... --trainer lab=07c2...
      in production: each member made its key with `dca keygen` and sent the public part
"""
_ENROL = """Examples:

  dca federation enrol --federation federation.toml --authority authority.key ward-7=3b6a27bcceb6a42d62a3a8d0...
      writes <id>.cert; send it to the client

  dca federation enrol --federation federation.toml --authority authority.key clients/*.key --days 90
      with the key files on this machine: writes each certificate beside its key
"""
_WithoutNames = Annotated[
    bool, typer.Option("--without-names", help="Leave the clients' names out of their certificates.")
]
_Authority = Annotated[Path, typer.Option(help="The enrolment key's file.")]


class _NewActor(msgspec.Struct, frozen=True):
    """An actor for which `init` creates an identity."""

    role: str
    name: str
    identity: Identity


@app.command(epilog=verbatim(_INIT))
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; created if missing.")],
    name: Annotated[
        str, typer.Option(help="Lower-case letters, digits and dashes. The federation's id depends on it.")
    ] = "demo",
    compute: Annotated[list[str] | None, typer.Option(help="NAME=PUBLICKEY of a Compute node; repeatable.")] = None,
    trainer: Annotated[list[str] | None, typer.Option(help="NAME=PUBLICKEY of a trainer; repeatable.")] = None,
    authority: Annotated[Path | None, typer.Option(help="The enrolment key's file; by default a new one.")] = None,
    computes: Annotated[int, typer.Option(help="Trial: number of Compute nodes to create here.")] = 0,
    trainers: Annotated[int, typer.Option(help="Trial: number of trainers to create here, by default 1.")] = 0,
    clients: Annotated[int, typer.Option(help="Trial: number of clients to create and enrol here.")] = 0,
    days: Annotated[float, typer.Option(help=members.CERTIFICATE_DAYS)] = 365.0,
    broker: Annotated[str | None, typer.Option(help="Trial: also write each actor's file, with this URL.")] = None,
    without_computes: Annotated[
        bool, typer.Option("--without-computes", help="No Compute nodes: only node releases and LDP reports.")
    ] = False,
    without_names: _WithoutNames = False,
    colluding: Annotated[
        int, typer.Option(help="p, the most Compute nodes that may be corrupt; 0 for all but one.", metavar="P")
    ] = 0,
    clients_min: members.ClientsMin = members.SMALLEST,
) -> None:
    """Create a federation file. For a trial, also create all identities that belong to it."""
    until_ms = _expiry_ms(days)
    limits = limits_text(floors_of(clients_min)) if clients_min != members.SMALLEST else ""
    _check_trial(broker, {"computes": computes, "trainers": trainers, "clients": clients}, limits)
    if (computes or without_computes) and not trainer:
        trainers = trainers or 1
    actors = [*_make("compute", computes), *_make("trainer", trainers), *_make("client", clients)]
    signer = new_identity() if authority is None else read_identity(authority, "authority")
    unsigned = Federation(
        name,
        signer.public_key,
        (*new_members("compute", compute or []), *_named(actors, "compute")),
        (*new_members("trainer", trainer or []), *_named(actors, "trainer")),
        colluding=colluding,
    )
    members.check_size(unsigned, without_computes)
    members.check_colluding("--colluding ", colluding, len(unsigned.computes))
    federation = sign_federation(signer, unsigned)
    if authority is None:
        actors.append(_NewActor("authority", "authority", signer))
    files = {"federation.toml": partial(replace_file, text=federation.to_toml())}
    if limits:
        files["policy.toml"] = partial(replace_file, text=limits)
    for actor in actors:
        files[f"{actor.name}.key"] = partial(write_identity, role=actor.role, identity=actor.identity)
        if actor.role == "client":
            own = "" if without_names else actor.name
            certificate = enrol(signer, federation, actor.identity.public_key, until_ms, own)
            files[f"{actor.name}.cert"] = partial(write_certificate, federation=federation, certificate=certificate)
        if broker is not None and actor.role != "authority":
            files[f"{actor.name}.toml"] = partial(write_private, text=_actor_text(actor, broker, limits))
    _write_all(folder, files)
    _print_created(folder, federation, actors, limits)


def _check_trial(broker: str | None, counts: dict[str, int], limits: str) -> None:
    """Check the options of a trial. Raises `UsageError`."""
    if broker is not None:
        check_url("--broker", broker)
    elif limits:
        raise UsageError("--clients-min: without --broker, no actor's file is written that could state it")
    for option, count in counts.items():
        most = 10_000 if option == "clients" else 100
        if not 0 <= count <= most:
            raise UsageError(f"--{option} {count}: expected 0 to {most}; a trial runs on one machine")


def _print_created(folder: Path, federation: Federation, actors: Iterable[_NewActor], limits: str) -> None:
    roles = [actor.role for actor in actors]
    tell(f"federation  {federation.name}: {folder / 'federation.toml'}")
    none = "none: for node releases and LDP reports only"
    nodes = ", ".join(member.name for member in federation.computes) or none
    tell(f"            Compute nodes: {nodes}")
    if federation.computes:
        tell(f"            {members.colluding_in_words(federation)}")
    tell(f"            trainers: {', '.join(member.name for member in federation.trainers)}")
    if "client" in roles:
        tell(f"            {counted(roles.count('client'), 'client')} enrolled")
    if "authority" in roles:
        tell(f"authority   {folder / 'authority.key'}: it can enrol clients; keep it secret and offline")
    if limits:
        tell("limits      in place of the default ones: [floors] of each node, and of all clients")
        tell(f"            {folder / 'policy.toml'}")


def _make(role: str, count: int) -> list[_NewActor]:
    names = [role] if role == "trainer" and count == 1 else [f"{role}-{i}" for i in range(1, count + 1)]
    return [_NewActor(role, name, new_identity()) for name in names]


def _named(actors: Iterable[_NewActor], role: str) -> Iterator[Member]:
    return (Member(actor.name, actor.identity.public_key) for actor in actors if actor.role == role)


def _write_all(folder: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    """Write new files, each with its function. If one fails, remove the others."""
    taken = [name for name in files if (folder / name).exists()]
    if taken:
        raise UsageError(f"{folder / taken[0]} exists already and is not replaced; name another folder")
    with contextlib.ExitStack() as undoing:
        if not folder.exists():
            try:
                folder.mkdir(mode=0o700, parents=True)
            except OSError as error:
                raise StorageError(f"cannot make folder {folder}: {error.strerror}") from None
            undoing.callback(folder.rmdir)
        for name, write in files.items():
            write(folder / name)
            undoing.callback((folder / name).unlink)
        undoing.pop_all()  # success: undo nothing


def _actor_text(actor: _NewActor, url: str, limits: str) -> str:
    """Return the text of an actor's file, with its `limits`, or a comment on the default ones if they are ""."""
    policy, floors, account = Policy(), Floors(), BudgetLimit()
    section, usual = {
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
    }[actor.role]
    data = f'data = "{actor.name}.csv"\n' if actor.role == "client" else ""
    end = f"# without [{section}]: {usual}\n# to change that, see `dca {actor.role} --help`\n"
    if limits and actor.role == "client":
        data, end = data + 'policy = "policy.toml"\n', "# its limits, which it shares with others, are in policy.toml\n"
    elif limits and actor.role == "compute":
        end = f"[floors]\n{limits}"
    return (
        f'[{actor.role}]\nidentity = "{actor.name}.key"\n'
        f'federation = "federation.toml"\n{data}store = "{actor.name}.db"\n\n'
        f"[broker]\nurl = {toml_text(url)}\n\n"
        f"{end}"
    )


@app.command("enrol", epilog=verbatim(_ENROL))
def enrol_clients(
    clients: Annotated[list[str], typer.Argument(help="Of each client: NAME=PUBLICKEY, or its key file.")],
    federation: Annotated[Path, typer.Option(help="The federation file.")] = Path("federation.toml"),
    authority: _Authority = Path("authority.key"),
    days: Annotated[float, typer.Option(help=members.CERTIFICATE_DAYS)] = 365.0,
    output: Annotated[Path, typer.Option(help="Folder for the certificates of public keys, as <id>.cert.")] = Path(),
    without_names: _WithoutNames = False,
) -> None:
    """Enrol clients: sign their certificates, each with the client's name.

    Only Compute nodes and trainers can read the names. A key file NAME.key has a name of its own.
    """
    file = read_federation(federation)
    signer = read_identity(authority, "authority")
    until_ms = _expiry_ms(days)
    enrolled = []
    for text in clients:
        name, key = _named_client(text, without_names, signer)
        enrolled.append((name, key, enrol(signer, file, read_public_key(key, "client"), until_ms, name)))
    for name, key, certificate in enrolled:
        client = actor_id(certificate.client_key).hex()
        path = output / f"{client}.cert" if public_key(key) is not None else certificate_path(Path(key))
        write_certificate(path, file, certificate)
        tell(f"enrolled  {f'{name}, ' * bool(name)}{client} for {days:g} days: {path}")


def _named_client(text: str, without_names: bool, signer: Identity) -> tuple[str, str]:
    """Return a client's name, empty without one, and its public key or key file. Raises `UsageError`."""
    name, separator, key = text.partition("=")
    if not separator or Path(text).is_file():
        name, key = "" if public_key(text) is not None else _known_name(Path(text), signer), text
    if without_names or not (name or separator):
        return "", key
    try:
        return check_name(name), key
    except UsageError as error:
        raise UsageError(f"{error}. Give NAME={key}, or --without-names") from None


def _known_name(key: Path, signer: Identity) -> str:
    """Return the name in the certificate beside a key file, which a later one keeps; otherwise the key file's."""
    with contextlib.suppress(UsageError):
        return open_name(signer.name_key, parse_certificate(certificate_path(key))) or key.stem
    return key.stem


def _expiry_ms(days: float) -> int:
    if not 0 < days < 100 * 366:
        raise UsageError(f"--days {days:g}: expected a number above 0 and below {100 * 366}")
    return now_ms() + int(days * DAY_MS)


OUTPUT = {"show": members.ListedFederation, "members": members.Members}
app.registered_commands += federation_changes.app.registered_commands
app.command("deploy", epilog=verbatim(deploy.EXAMPLES))(deploy.deploy)
app.command("invite", epilog=verbatim(invite.EXAMPLES))(invite.invite)
app.command("members", epilog=verbatim(members.EXAMPLES))(members.members)
app.command("show", epilog=verbatim("Example:\n\n  dca federation show federation.toml"))(members.show)
app.command("run", epilog=verbatim("Example:\n\n  dca federation run demo"))(trial.run)
