"""A federation that changes while it runs: the commands, files of every member's own, and a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from patience import PATIENCE_S

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import main
from dca_proto.errors import RoundAborted
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Declined, Dropped, FederationChanged, SessionKept
from dca_proto.runtime import device
from dca_proto.runtime.access import Access, BrokerUser
from dca_proto.runtime.broker import BrokerKind, BrokerOptions, launch_broker
from dca_proto.runtime.keyfile import read_federation, read_identity
from dca_proto.runtime.request import RoundSettings, open_round

CLIENTS = 6
ROUND = RoundSettings(
    statistic="mean", columns=("x",), bounds={"x": (0, 10)}, epsilon=0.1, delta=1e-6, tolerate=0, collect_s=PATIENCE_S
)
SMALL = "clients_min = 1\nhonest_min = 1\n"
LIMITS = {"client": f"[policy]\n{SMALL}", "compute": f"[floors]\n{SMALL}"}


NEWCOMERS = ("compute-4", "compute-5", "trainer-2")


def role_of(name: str) -> str:
    return next(role for role in ("client", "compute", "trainer") if role in name)


def run(*arguments: object) -> None:
    assert main([*map(str, arguments)]) == 0


class Members:
    """Every member's files, in a folder of its own: nobody gets a newer file by sharing one.

    Args:
        folder: where the owner's files are, and the members' folders. url: the broker's.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self._url = folder, url
        self.facts: list[tuple[str, object]] = []
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def owned(self) -> Path:
        """The owner's federation file."""
        return self.folder / "federation.toml"

    def federation(self, command: str, *arguments: object) -> None:
        """The owner changes the federation."""
        run("federation", command, *arguments, "--federation", self.owned, "--authority", self.folder / "authority.key")

    def make(self, name: str) -> None:
        """A member's folder, with what the owner has for it."""
        role, own = role_of(name), self.folder / name
        own.mkdir()
        for source in (f"{name}.key", f"{name}.cert", f"{name}.password"):
            if (self.folder / source).exists():
                shutil.copy(self.folder / source, own / source)
        data = ""
        if role == "client":
            (own / "data.csv").write_text("x\n5\n")
            data = 'data = "data.csv"\n'
        (own / "actor.toml").write_text(
            f'[{role}]\nidentity = "{name}.key"\nfederation = "federation.toml"\nstore = "actor.db"\n{data}'
            f'[broker]\nurl = "{self._url}"\n{self._password(name)}{LIMITS.get(role, "")}'
        )
        self.give(name)

    def _password(self, name: str) -> str:
        if not (self.folder / f"{name}.password").exists():
            return ""
        (self.folder / name / f"{name}.password").chmod(0o600)
        identity = read_identity(self.folder / f"{name}.key", role_of(name))
        return f'username = "{identity.id.hex()}"\npassword_file = "{name}.password"\n'

    def give(self, name: str) -> None:
        """The owner's present file, to one member."""
        shutil.copy(self.owned, self.folder / name / "federation.toml")

    def number(self, name: str) -> int:
        return read_federation(self.folder / name / "federation.toml").number

    def start(self, name: str) -> None:
        loaded = device.load(self.folder / name / "actor.toml")
        self._running[name] = asyncio.create_task(loaded.run(lambda fact: self.facts.append((name, fact))))

    async def stop(self, name: str) -> None:
        task = self._running.pop(name)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                for task in self._running.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)

    def facts_of(self, kind: type, name: str) -> list[object]:
        return [fact for who, fact in self.facts if who == name and isinstance(fact, kind)]

    async def run_round(self, trainer: str = "trainer") -> NoisyAggregate:
        loaded = device.load(self.folder / trainer / "actor.toml")
        return await loaded.run_round(open_round(ROUND, loaded.config.federation))

    @contextlib.asynccontextmanager
    async def all(self) -> AsyncIterator[Members]:
        """All Compute nodes and clients of the first file, running, with sessions."""
        names = [f"compute-{i}" for i in (1, 2, 3)] + [f"client-{i}" for i in range(1, CLIENTS + 1)]
        for name in (*names, "trainer"):
            self.make(name)
        try:
            for name in names:
                self.start(name)
            await self.until(lambda: all(len(self.facts_of(SessionKept, name)) >= CLIENTS for name in names[:3]))
            yield self
        finally:
            for name in list(self._running):
                await self.stop(name)


def new_member(members: Members, name: str) -> str:
    """NAME=FILE of a newcomer, who has a key."""
    path = members.folder / f"{name}.key"
    if not path.exists():
        run("keygen", path, "--role", role_of(name))
    return f"{name}={path}"


async def a_client_is_revoked(members: Members) -> None:
    """The owner gives the next file to the trainer alone; nobody is enrolled anew."""
    assert (await members.run_round()).contributors == CLIENTS
    certificates = {path: path.read_bytes() for path in members.folder.rglob("*.cert")}
    members.federation("revoke", "client-3")
    members.give("trainer")
    assert (await members.run_round()).contributors == CLIENTS - 1
    assert [fact.reason for fact in members.facts_of(Declined, "client-3")] == ["revoked"]
    assert {path: path.read_bytes() for path in members.folder.rglob("*.cert")} == certificates
    await members.until(lambda: all(members.facts_of(FederationChanged, f"client-{i}") for i in range(1, CLIENTS + 1)))


async def nodes_and_a_trainer_come(members: Members, *, number: int) -> None:
    """A new node is given the file, and all others learn of it; then one takes another's place; then a trainer comes.

    Args:
        number: of the file before.
    """
    expected = CLIENTS - (number > 1)
    members.federation("add-node", new_member(members, "compute-4"))
    members.make("compute-4")
    members.start("compute-4")
    await members.until(lambda: len(members.facts_of(SessionKept, "compute-4")) >= expected)
    with pytest.raises(RoundAborted, match="request the round again"):  # the trainer's file is older
        await members.run_round()
    assert members.number("trainer") == number + 1
    assert (await members.run_round()).contributors == expected

    members.federation("replace-node", "compute-1", new_member(members, "compute-5"))
    members.make("compute-5")
    members.start("compute-5")
    await members.until(lambda: len(members.facts_of(SessionKept, "compute-5")) >= expected)
    members.give("trainer")
    assert (await members.run_round()).contributors == expected
    assert not members.facts_of(Dropped, "client-1")

    members.federation("add-trainer", new_member(members, "trainer-2"))
    members.make("trainer-2")
    assert (await members.run_round("trainer-2")).contributors == expected
    for name in ("compute-2", "client-1"):
        await members.stop(name)
        assert members.number(name) == number + 3, "the newest file stands where the first one stood"
        members.start(name)


def secured(folder: Path) -> Access:
    """A password for everybody who is there, or comes."""
    for name in NEWCOMERS:
        run("keygen", folder / f"{name}.key", "--role", role_of(name))
    members = []
    for path in sorted(folder.glob("c*-*.key")) + sorted(folder.glob("trainer*.key")):
        path.with_suffix(".password").write_text(f"password of {path.stem}")
        path.with_suffix(".password").chmod(0o600)
        role = role_of(path.stem)
        members.append(BrokerUser(Channel(role), read_identity(path, role).id, f"password of {path.stem}"))
    return Access(read_federation(folder / "federation.toml").id, tuple(members))


async def scenario(folder: Path, kind: BrokerKind, *parts: str) -> None:
    owner = folder / "owner"
    run("federation", "init", owner, "--computes", 3, "--clients", CLIENTS, "--name", "changing")
    options = BrokerOptions(kind=kind, access=secured(owner) if kind == "mosquitto" else None)
    async with launch_broker(folder / "broker", options) as broker, Members(owner, broker.url).all() as members:
        if "revoke" in parts:
            await a_client_is_revoked(members)
        if "nodes" in parts:
            await nodes_and_a_trainer_come(members, number=1 + ("revoke" in parts))


def test_a_client_is_revoked_between_two_rounds(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path, "embedded", "revoke"))


@pytest.mark.long
def test_nodes_and_a_trainer_join_and_leave(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path, "embedded", "nodes"))


@pytest.mark.long
def test_a_federation_changes_on_mosquitto_with_passwords_and_an_access_list(
    mosquitto_installed: None, tmp_path: Path
) -> None:
    asyncio.run(scenario(tmp_path, "mosquitto", "revoke", "nodes"))
