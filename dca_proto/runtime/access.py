"""Writes passwords and access lists for mosquitto, derived from the actors' roles.

Every user's name and client id is the actor's id in hexadecimal. A user may write only to topics that end in that id,
and only to the receivers that its role writes to. It may read only its own inbox and its role's broadcasts. So an
honest broker carries no spoofed or flooding messages. The protocol's own cryptography does not depend on this.

A client's write topics are listed one by one. A broker retains one message per topic, so a client can leave at most
its Hello and one message for each Compute node and trainer. Compute nodes and trainers are few and may write to any
client.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.wire.topics import root_of, subscriptions
from dca_proto.runtime.keyfile import write_private

OPERATOR = "operator"
"""The name of the broker's operator, who clears a federation's messages; members' names are hexadecimal."""
NEW_MEMBERS = "new-members"
"""A registrar's folder with what the machines of new Compute nodes and trainers need, but for their keys."""
_INBOXES = (Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER)
_WRITES = {
    Channel.CLIENT: (Channel.TRAINER, Channel.COMPUTE, Channel.HELLO),
    Channel.COMPUTE: (*_INBOXES, Channel.ABORT, Channel.EPOCH, Channel.FEDERATION, Channel.GONE),
    Channel.TRAINER: (Channel.CLIENT, Channel.COMPUTE, Channel.ANNOUNCE, Channel.FEDERATION, Channel.GONE),
}
_MIB = 1 << 20
_ITERATIONS = 101  # mosquitto's default; more would slow a swarm's login, and the passwords are random
_SALT_BYTES = 12


class BrokerUser(msgspec.Struct, frozen=True):
    """An actor that the broker lets in; its id in hexadecimal is its user name and client id.

    The role is `Channel.CLIENT`, `COMPUTE` or `TRAINER`. The password is printable and has at least 8 characters.
    """

    role: Channel
    id: bytes
    password: str

    def __post_init__(self) -> None:
        if self.role not in _WRITES or len(self.id) != 16:
            raise UsageError(f"a broker's member has a role and a 16-byte id: found {self.role.value}, {self.id.hex()}")
        if len(self.password) < 8 or not self.password.isprintable():
            raise UsageError(f"the password of {self.id.hex()} must be printable and have at least 8 characters")

    def __repr__(self) -> str:
        return f"Member({self.role.value}, {self.id.hex()}, password=<hidden>)"


class Access(msgspec.Struct, frozen=True):
    """The members of the federation with this id (`Federation.id`), all of whom use one broker.

    With an `operator` password there is one more user, `OPERATOR`, who may read and write all topics of the federation.
    Limits have room for `clients` at least, who may join later.
    """

    federation: bytes
    members: tuple[BrokerUser, ...]
    operator: str = ""
    clients: int = 0

    def __repr__(self) -> str:
        return f"Access({self.federation.hex()}, {len(self.members)} members)"

    def ids(self, role: Channel) -> list[str]:
        """Return the ids of a role's members, in hexadecimal."""
        return [member.id.hex() for member in self.members if member.role is role]


def limit_lines(access: Access) -> list[str]:
    """Return mosquitto's limits for a federation of this size, so that no member can make the broker exceed them.

    A receiver's queue has room for every client's Hello and a contribution of 64 KiB from each. The broker drops what
    does not fit, and senders without a receipt send it again. The memory limit covers the queues of all Compute nodes
    and trainers, and 256 KiB for each client. mosquitto disconnects a client that would exceed it.
    """
    present = len(access.ids(Channel.CLIENT))
    clients = max(present, access.clients)
    queue_bytes = 4 * _MIB + 64 * 1024 * clients
    memory_bytes = 16 * _MIB + 256 * 1024 * clients + queue_bytes * (len(access.members) - present)
    return [
        f"max_queued_messages {1000 + 4 * clients}",
        f"max_queued_bytes {queue_bytes}",
        "max_inflight_messages 1000",
        f"max_inflight_bytes {_MIB}",
        f"memory_limit {memory_bytes}",
    ]


def member_lines(passwords: str, lists: str) -> list[str]:
    """Return the lines that let in members only, with the password file and the access list of these names."""
    return [
        "allow_anonymous false",
        "use_username_as_clientid true",  # otherwise a member could take over another member's session
        f"password_file {passwords}",
        f"acl_file {lists}",
    ]


def write_access(access: Access, directory: Path) -> tuple[Path, Path]:
    """Write mosquitto's password file and access list, readable by the owner only. Return their paths."""
    passwords, lists = directory / "passwords", directory / "access"
    users = [(member.id.hex(), member.password) for member in access.members]
    servers = {role: access.ids(role) for role in (Channel.COMPUTE, Channel.TRAINER)}
    list_lines = [
        line for member in access.members for line in access_lines(access.federation, servers, member.role, member.id)
    ]
    if access.operator:
        users.append((OPERATOR, access.operator))
        list_lines += operator_lines(access.federation)
    for path, lines in ((passwords, [password_line(*user) for user in users]), (lists, list_lines)):
        path.unlink(missing_ok=True)
        write_private(path, "".join(f"{line}\n" for line in lines))
    return passwords, lists


def operator_lines(federation: bytes) -> list[str]:
    """Return the lines of the operator's section of the access list."""
    return [f"user {OPERATOR}", f"topic readwrite {root_of(federation)}/#"]


def access_lines(
    federation: bytes, servers: Mapping[Channel, Sequence[str]], role: Channel, member: bytes
) -> Iterator[str]:
    """Yield the lines of a member's section of the access list.

    `servers`: the ids of the federation's Compute nodes and trainers, in hexadecimal.
    """
    name = member.hex()
    yield f"user {name}"
    for channel in _WRITES[role]:
        # mosquitto compares a topic with the list line by line, so any number of clients takes one line.
        anyone = ["all"] if channel.is_broadcast else ["+"]
        for receiver in servers.get(channel, anyone):
            yield f"topic write {root_of(federation)}/{channel.value}/{receiver}/{name}"
    for topic_filter in subscriptions(federation, role, member):
        yield f"topic read {topic_filter}"


def password_line(name: str, password: str) -> str:
    """Return a line of mosquitto's password file, ``user:$7$iterations$salt$hash`` with PBKDF2-HMAC-SHA512."""
    salt = os.urandom(_SALT_BYTES)
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    encoded = (base64.b64encode(value).decode() for value in (salt, derived))
    return f"{name}:$7${_ITERATIONS}${'$'.join(encoded)}"


def is_mosquitto(pid: int) -> bool:
    """Return False for another process, which SIGHUP would end: the file of a broker that was killed stays behind."""
    if pid < 1:
        return False  # a process group, or all processes
    name = Path(f"/proc/{pid}/comm")
    return not name.exists() or "mosquitto" in name.read_text(encoding="utf-8", errors="replace")
