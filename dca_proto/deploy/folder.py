"""Writes the folder of a deployment: one folder for each machine, and one that stays with the owner.

    owner/                 the enrolment key and the CA's key: offline, and backed up
    berlin/                copied to /var/lib/dca on that machine, by whatever means
        compute.toml, compute.key, compute.password, dca-compute.service
        broker.pem, broker.key, mosquitto.conf, passwords, access, dca-broker.service     the broker's machine
        registrar.toml, registrar.key, registrar.pem, tls.key, dca-registrar.service      the same
        policy.toml            there, if sums may be small: the limits that invitations suggest to devices
        trainer.toml, trainer.key, trainer.password                                       the trainer's machine
        ca.pem, federation.toml                                                           every machine
    compose.yaml           all of it in containers; clients.yaml: devices, too, for a trial
    inventory.ini, playbook.yaml     Ansible

All keys are made in one place here, so whoever has the whole folder has all nodes. Nodes of several owners make their
own keys (`dca keygen`). Secret files have mode 0600, folders 0700. The folder is written as a whole or not at all.
"""

from __future__ import annotations

import datetime
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import msgspec

from dca_proto.crypto.sealing import Identity
from dca_proto.deploy.plan import OWNER, Plan, limits_text
from dca_proto.deploy.tls import Pair, new_ca, new_server
from dca_proto.errors import StorageError
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation, Member, sign_federation
from dca_proto.protocol.params import DAY_MS
from dca_proto.protocol.policy import Floors
from dca_proto.protocol.wire.messages import Registrar
from dca_proto.runtime import access as lists
from dca_proto.runtime.broker import TLS_LINE, mosquitto_lines
from dca_proto.runtime.config import actor_text
from dca_proto.runtime.keyfile import new_identity, write_identity, write_private
from dca_proto.wording import toml_text

_PASSWORD_BYTES = 24


class Made(NamedTuple):
    """What `write_deployment` has made: the federation, and each machine with the units that it runs."""

    federation: Federation
    units: dict[str, list[str]]


def write_deployment(folder: Path, plan: Plan, now: datetime.datetime) -> Made:
    """Write all files, or none. Raises `StorageError` if the folder exists or cannot be written."""
    if folder.exists() or folder.is_symlink():
        raise StorageError(f"folder {folder} exists and is not replaced; name another, or move it away")
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as place:
            made = _Writer(Path(place) / "all", plan).write(now)
            shutil.move(Path(place) / "all", folder)
    except OSError as error:
        raise StorageError(f"folder {folder} cannot be written: {error.strerror or error}") from None
    return made


class _Writer:
    """Writes the files of one deployment into a new folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self._plan = plan
        self._units: dict[str, list[str]] = {host.name: [] for host in plan.hosts}

    def write(self, now: datetime.datetime) -> Made:
        plan = self._plan
        for name in ("", OWNER, *self._units):
            (self._folder / name).mkdir(mode=0o700)
        authority, trainer, registrar = new_identity(), new_identity(), new_identity()
        limits = (plan.clients, plan.days, plan.per_day)
        until_ms = int(now.timestamp() * 1000) + plan.for_days * DAY_MS
        nodes = {name: new_identity() for name in plan.nodes}
        federation = sign_federation(
            authority,
            Federation(
                plan.federation,
                authority.public_key,
                tuple(Member(name, identity.public_key) for name, identity in nodes.items()),
                (Member("trainer", trainer.public_key),),
                colluding=plan.colluding,
                registrars=(Registrar("registrar", registrar.public_key, b"", until_ms, *limits),),
            ),
        )
        ca = new_ca(f"CA of federation {plan.federation}", now, 10 * plan.for_days)
        for name in (OWNER, *self._units):
            self._public(f"{name}/ca.pem", ca.certificate)
            self._public(f"{name}/federation.toml", federation.to_toml())
        write_identity(self._folder / OWNER / "authority.key", "authority", authority)
        write_private(self._folder / OWNER / "ca.key", ca.key)
        members = [self._actor(name, "compute", Channel.COMPUTE, identity) for name, identity in nodes.items()]
        members.append(self._actor(plan.trainer, "trainer", Channel.TRAINER, trainer))
        self._broker(ca, federation, tuple(members), now)
        self._registrar(ca, registrar, now)
        for name in plan.nodes:
            self._unit(name, "dca-compute")
        self._public("compose.yaml", compose_text(plan))
        if plan.containers:
            self._public("clients.yaml", clients_text(plan.containers, accepts=bool(plan.suggestion)))
        self._public("inventory.ini", inventory_text(plan, self._units))
        self._public("playbook.yaml", _template("playbook.yaml"))
        return Made(federation, self._units)

    def _public(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, encoding="utf-8")

    def _actor(self, host: str, role: str, channel: Channel, identity: Identity) -> lists.BrokerUser:
        folder, password = self._folder / host, secrets.token_urlsafe(_PASSWORD_BYTES)
        write_identity(folder / f"{role}.key", role, identity)
        write_private(folder / f"{role}.password", password + "\n")
        floors = self._plan.floors if role == "compute" else Floors()
        self._public(f"{host}/{role}.toml", actor_text(role, self._plan.url) + floors_text(floors))
        return lists.BrokerUser(channel, identity.id, password)

    def _broker(
        self, ca: Pair, federation: Federation, members: tuple[lists.BrokerUser, ...], now: datetime.datetime
    ) -> None:
        plan = self._plan
        host, folder = plan.host(plan.broker), self._folder / plan.broker
        server = new_server(ca, tuple(dict.fromkeys((host.address, host.name))), now, plan.for_days)
        self._public(f"{plan.broker}/broker.pem", server.certificate)
        write_private(folder / "broker.key", server.key)
        operator = secrets.token_urlsafe(_PASSWORD_BYTES)
        write_private(folder / f"{lists.OPERATOR}.password", operator + "\n")
        access = lists.Access(federation.id, members, operator, plan.clients)
        lists.write_access(access, folder)
        self._public(f"{plan.broker}/mosquitto.conf", mosquitto_text(plan, access))
        self._unit(plan.broker, "dca-broker")

    def _registrar(self, ca: Pair, registrar: Identity, now: datetime.datetime) -> None:
        """Write the registrar's files, beside mosquitto's. The passwords of servers are kept apart from clients'."""
        plan = self._plan
        host, folder = plan.host(plan.broker), self._folder / plan.broker
        server = new_server(ca, tuple(dict.fromkeys((host.address, host.name))), now, plan.for_days)
        write_identity(folder / "registrar.key", "registrar", registrar)
        self._public(f"{host.name}/registrar.pem", server.certificate)
        write_private(folder / "tls.key", server.key)
        write_private(folder / "members.passwords", (folder / "passwords").read_text(encoding="utf-8"))
        self._public(f"{host.name}/registrar.toml", registrar_text(plan))
        if plan.suggestion:
            self._public(f"{host.name}/policy.toml", plan.suggestion)
        self._unit(plan.broker, "dca-registrar")

    def _unit(self, host: str, unit: str) -> None:
        self._units[host].append(unit)
        self._public(f"{host}/{unit}.service", unit_text(unit, self._plan.federation))


def floors_text(floors: Floors) -> str:
    """Return a Compute node's section of floors; "" for the default ones."""
    if floors == Floors():
        return ""
    return f"[floors]\n{limits_text(floors)}"


def registrar_text(plan: Plan) -> str:
    """Return the text of the registrar's file."""
    policy = 'policy = "policy.toml"\n' if plan.suggestion else ""
    return (
        '[registrar]\nidentity = "registrar.key"\nfederation = "federation.toml"\nbook = "registrar.db"\n'
        f"address = {toml_text(plan.host(plan.broker).address)}\nport = {plan.registrar_port}\n"
        'certificate = "registrar.pem"\nkey = "tls.key"\nca = "ca.pem"\n'
        f'broker = {toml_text(plan.url)}\n{policy}broker_certificate = "broker.pem"\n'
        'members = "members.passwords"\npasswords = "passwords"\naccess = "access"\npid_file = "mosquitto.pid"\n'
    )


def mosquitto_text(plan: Plan, access: lists.Access) -> str:
    """Return mosquitto's configuration; its paths are relative to the folder in which mosquitto starts."""
    lines = [
        f"# Start it in its folder: mosquitto -c mosquitto.conf. Limits are for {plan.clients} clients.",
        f"listener {plan.port} {plan.host(plan.broker).address}",
        "pid_file mosquitto.pid",
        *mosquitto_lines("./"),
        *lists.limit_lines(access),
        "cafile ca.pem",
        "certfile broker.pem",
        "keyfile broker.key",
        TLS_LINE,
        *lists.member_lines("passwords", "access"),
    ]
    return "\n".join(lines) + "\n"


def unit_text(unit: str, federation: str) -> str:
    """Return a systemd unit's text."""
    return Template(_template(f"{unit}.service")).substitute(federation=federation, hardening=_template("hardening"))


def compose_text(plan: Plan) -> str:
    """Return a Compose file with a service for each actor; those of one machine start by name."""
    services = [
        ("broker", plan.broker, "mosquitto -c mosquitto.conf", ""),
        ("registrar", plan.broker, "dca registrar registrar.toml --log-json", "    pid: service:broker\n"),
    ]
    services += [(f"compute-{name}", name, "dca compute compute.toml --log-json", "") for name in plan.nodes]
    services.append(("trainer", plan.trainer, "dca trainer --help", "    profiles: [trainer]\n"))
    blocks = [f"  {name}:\n{_service(host, command)}{more}" for name, host, command, more in services]
    return _template("compose.yaml") + "services:\n" + "".join(blocks)


def clients_text(count: int, *, accepts: bool) -> str:
    """Return a Compose file with a service for each device: it joins by its invitation, once, and runs the client.

    `accepts`: whoever makes the trial owns its devices, and accepts for them what invitations suggest.
    """
    names = [f"client-{number}" for number in range(1, count + 1)]
    command = "dca join {}.bundle --data readings.csv --folder device --log-json" + " --accept-policy" * accepts
    blocks = [f"  {name}:\n{_service(f'clients/{name}', command.format(name))}" for name in names]
    return _template("compose.yaml") + "services:\n" + "".join(blocks)


def _service(host: str, command: str) -> str:
    words = ", ".join(f'"{word}"' for word in command.split())
    return f"    <<: *hardened\n    command: [{words}]\n    volumes: [./{host}:/var/lib/dca]\n"


def inventory_text(plan: Plan, units: dict[str, list[str]]) -> str:
    """Return Ansible's inventory: each machine, its address, and its units."""
    return "".join(
        f"{host.name} ansible_host={host.address} units='{_json(units[host.name])}'\n" for host in plan.hosts
    )


def _json(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()


def _template(name: str) -> str:
    return (resources.files("dca_proto") / "deploy" / "templates" / name).read_text(encoding="utf-8")
