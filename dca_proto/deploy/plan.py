"""Which machine of a federation runs what: the record from which all files of a deployment follow.

`read_hosts` and `Plan` check what a person gives. `dca_proto.deploy.folder` writes the files.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

import msgspec

from dca_proto.errors import UsageError
from dca_proto.protocol.policy import Floors, Policy
from dca_proto.runtime.settings import is_host
from dca_proto.wording import nearest

_HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
OWNER = "owner"
"""The folder of what stays with the federation's owner, offline."""
DAYS_MAX = 825
"""The longest validity of a server's certificate; some TLS libraries refuse a longer one."""


class Host(msgspec.Struct, frozen=True):
    """A machine: a name, which its folder and its Compute node get, and the address at which others reach it."""

    name: str
    address: str

    @property
    def url_host(self) -> str:
        """The address as it stands in a URL."""
        return f"[{self.address}]" if ":" in self.address else self.address


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment.

    Attributes:
        federation: its name. hosts: all machines.
        nodes: the names of those with a Compute node. broker, trainer: the machine that runs it.
        port: of the broker; the registrar's is one higher. clients: the most that may join.
        per_day: the most certificates that the registrar issues in a day. days: their validity, at most.
        for_days: how long the registrar enrols, and the servers' TLS certificates are valid; the CA's is ten times as
            long.
        colluding: p, the most Compute nodes that may be corrupt; 0 for all but one.
        containers: for how many devices a Compose file is written.
        floors: of each Compute node.
    """

    federation: str
    hosts: tuple[Host, ...]
    nodes: tuple[str, ...]
    broker: str
    trainer: str
    port: int = 8883
    clients: int = 100
    per_day: int = 100
    days: int = 90
    for_days: int = 365
    colluding: int = 0
    containers: int = 0
    floors: Floors = Floors()

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        for option, given in (("nodes", self.nodes), ("broker", (self.broker,)), ("trainer", (self.trainer,))):
            for name in given:
                if name not in names:
                    known = ", ".join(names)
                    raise UsageError(f"--{option} {name!r}: is no host{nearest(name, names)}; known: {known}")
        if len(set(self.nodes)) != len(self.nodes):
            raise UsageError("--nodes: found a host twice, expected each once")
        if not 1 <= self.for_days <= DAYS_MAX:
            raise UsageError(f"--for-days {self.for_days}: expected 1 to {DAYS_MAX}")

    def host(self, name: str) -> Host:
        """Return the machine of this name, which exists."""
        return next(host for host in self.hosts if host.name == name)

    @property
    def suggestion(self) -> str:
        """The policy that invitations suggest: the nodes' floors, if a device's default limits are above them."""
        if self.floors.clients_min >= Policy().clients_min:
            return ""
        return limits_text(self.floors)

    @property
    def registrar_port(self) -> int:
        """The registrar's, on the broker's machine."""
        return self.port + 1

    @property
    def url(self) -> str:
        """The broker's."""
        return f"mqtts://{self.host(self.broker).url_host}:{self.port}"


def limits_text(floors: Floors) -> str:
    """Return the sizes of sums as keys of a policy or of floors."""
    return f"clients_min = {floors.clients_min}\nhonest_min = {floors.honest_min}\n"


def floors_of(clients_min: int) -> Floors:
    """Return the floors with this least n_min; its other floor is at most what a round without colluders then has."""
    return Floors(clients_min=clients_min, honest_min=min(Floors().honest_min, clients_min - 1))


def read_hosts(texts: Iterable[str]) -> tuple[Host, ...]:
    """Parse ``NAME=ADDRESS`` texts. Raises `UsageError`."""
    hosts: dict[str, Host] = {}
    for text in texts:
        name, _, address = text.partition("=")
        if not _HOST.fullmatch(name) or name == OWNER or not _is_address(address):
            raise UsageError(
                f"--hosts {text!r}: expected NAME=ADDRESS, as in berlin=10.0.0.1: a name of a-z, 0-9 and dashes (not "
                f"{OWNER}), and a host name or an IP address"
            )
        if name in hosts:
            raise UsageError(f"--hosts: found {name} twice, expected each name once")
        hosts[name] = Host(name, address)
    return tuple(hosts.values())


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return is_host(text) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", text) is not None
    return "%" not in text  # the zone of a link-local address means something on one machine only, and may be any text
