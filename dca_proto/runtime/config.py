"""Reads an actor's TOML file: its identity, files, broker and limits.

    [client]                           [compute] or [trainer]
    identity = "client.key"            identity = "compute.key"
    federation = "federation.toml"     federation = "federation.toml"
    data = "readings.csv"              store = "compute.db"
    store = "client.db"                contributions_mib = 4096     # only of a Compute node

    [broker]                           see `dca_proto.runtime.settings`
    url = "mqtts://broker.example"

    [metrics]                          optional: what Prometheus may read; see `dca_proto.runtime.listen`
    listen = "127.0.0.1:9464"

    [data] of a client, in place of `data`               where its data come from; see `dca_proto.runtime.sources`
    [policy] of a client, [floors] of a Compute node     see `dca_proto.protocol.policy`; the defaults are safe
    [account] of a trainer                               the total cost of its rounds; see `BudgetLimit` there
    [round] of a trainer                                 the round that it runs; see `dca_proto.runtime.request`
    [job] of a trainer                                   the job that it learns; see `dca_proto.cli.job_settings`

Clients can share a policy file: ``policy = "policy.toml"`` in [client] replaces the section [policy]. That file has the
section's keys without its header.

The whole file is checked when it is read. The error for an unknown key names the nearest known one. Relative file names
are relative to the file that contains them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.federation import Federation, Member
from dca_proto.protocol.names import check_name
from dca_proto.protocol.params import DAY_MS, MIB, Limits, Timing
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.runtime.files import read_text
from dca_proto.runtime.keyfile import read_federation
from dca_proto.runtime.listen import MetricsSettings
from dca_proto.runtime.request import RoundSettings
from dca_proto.runtime.settings import BrokerSettings, anchored, check_keys, convert
from dca_proto.runtime.sources import CsvSource, Source, read_source
from dca_proto.statistics import registered
from dca_proto.wording import JsonObject, nearest, parse_toml, toml_text

_MIB_MAX = 1 << 24  # 16 TiB
_RETENTION_DAYS_MIN, _RETENTION_DAYS_MAX = 1 / 24, 3660
_PROCESSES_MAX = 1024
SLEEP_S_MAX = 366 * 24 * 3600


class NodeFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that the sections of all actors share.

    Attributes:
        identity: the key file. federation: the federation file. store: the database, created if missing.
        modules: Python modules to import first; they register the user's own statistics.
    """

    identity: Path
    federation: Path
    store: Path
    modules: tuple[str, ...] = ()


class ServerFiles(NodeFiles, frozen=True, kw_only=True):
    """The section `[trainer]`, and the keys that `[compute]` shares with it.

    Attributes:
        retention_days: how long the store keeps a round after its end, for late messages, aborts and a job that
            continues. The space of older ones is used again; `dca store compact` gives it back.
    """

    retention_days: float = Timing().retention_ms / DAY_MS

    def __post_init__(self) -> None:
        if not _RETENTION_DAYS_MIN <= self.retention_days <= _RETENTION_DAYS_MAX:
            expected = f"expected {_RETENTION_DAYS_MIN:.2g} (an hour) to {_RETENTION_DAYS_MAX} days"
            raise InputError(f"retention_days: found {self.retention_days:g}, {expected}")

    @property
    def timing(self) -> Timing:
        """How long the actor waits, and keeps rounds."""
        return Timing(retention_ms=int(self.retention_days * DAY_MS))


class ComputeFiles(ServerFiles, frozen=True, kw_only=True):
    """The section `[compute]`.

    Attributes:
        contributions_mib: the most that contributions, lists and released sums of all rounds take, in MiB, in memory
            and in the store; a quarter of it for one trainer.
        processes: how many processes share the work on many clients, once there are some thousands; 0 for as many as
            there are cores, 1 for the node's own only.
        engine: where they run: ``local``, or ``ray`` or ``ray://host:port`` for a cluster. Every machine of it gets
            keys of this node.
    """

    contributions_mib: int = Limits().node_contributions.most // MIB
    processes: int = 0
    engine: str = "local"

    def __post_init__(self) -> None:
        from dca_proto.engine import is_engine  # no other role needs it

        ServerFiles.__post_init__(self)
        if not 0 <= self.processes <= _PROCESSES_MAX:
            found = f"found {self.processes}, expected 0 (one for each core) to {_PROCESSES_MAX}"
            raise InputError(f"[compute] processes: {found}")
        if not is_engine(self.engine):
            raise InputError(f"[compute] engine: found {self.engine!r}, expected local, ray or ray://host:port")
        if not 1 <= self.contributions_mib <= _MIB_MAX:
            found = f"found {self.contributions_mib}, expected 1 to {_MIB_MAX} MiB"
            raise InputError(f"[compute] contributions_mib: {found}")

    @property
    def limits(self) -> Limits:
        """The node's limits."""
        usual = Limits()
        room = msgspec.structs.replace(usual.node_contributions, most=self.contributions_mib * MIB)
        return msgspec.structs.replace(usual, node_contributions=room)


class ClientFiles(NodeFiles, frozen=True, kw_only=True):
    """The section `[client]`.

    Attributes:
        name: the client's own, as status, warnings and logs show it; by default that of its key file.
        data: a CSV, short for `file` in [data]; None if that section names another source, or a program passes the
            data. categories, delimiter: of the CSV.
        certificate: by default beside the key file, with the suffix ``.cert``.
        policy: a policy file, in place of the section [policy].
        sleep_max_s: how long the client sleeps between two connections, at most; `dca status --check` fails beyond
            that. 0: it runs all the time.
    """

    name: str = ""
    data: Path | None = None
    categories: dict[str, tuple[str, ...]] = {}
    delimiter: str = ""
    certificate: Path | None = None
    policy: Path | None = None
    sleep_max_s: float = 0

    def __post_init__(self) -> None:
        if self.name:
            check_name(self.name)
        if not 0 <= self.sleep_max_s <= SLEEP_S_MAX:
            raise InputError(f"[client] sleep_max_s: found {self.sleep_max_s:g}, expected 0 to {SLEEP_S_MAX} seconds")

    @property
    def own_name(self) -> str:
        """The client's name for people."""
        return self.name or self.identity.stem


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A checked configuration file.

    Attributes:
        role: ``client``, ``compute`` or ``trainer``. files: the role's section, with absolute paths.
        federation: the contents of the federation file. broker: how to reach the broker.
        policy: a client's. floors: a Compute node's. account: the total that a trainer's rounds may cost.
        metrics: where Prometheus may read the actor's figures; None if nowhere.
        source: a client's, or None.
        round: a trainer's [round], if the file has one. job: a trainer's [job], unparsed.
    """

    role: str
    files: NodeFiles
    federation: Federation
    broker: BrokerSettings
    policy: Policy = Policy()
    floors: Floors = Floors()
    account: BudgetLimit = BudgetLimit()
    metrics: MetricsSettings | None = None
    source: Source | None = None
    round: RoundSettings | None = None
    job: JsonObject | None = None


_EXPECTED = "expected an actor's configuration file"
_SECTIONS = {"client": ("policy", "data"), "compute": ("floors",), "trainer": ("account", "round", "job")}
_FILES: dict[str, type[NodeFiles]] = {"client": ClientFiles, "compute": ComputeFiles, "trainer": ServerFiles}
ROLES = tuple(_SECTIONS)
"""The roles that have a configuration file."""


def read_config(path: Path, roles: Iterable[str] = ROLES) -> Config:
    """Read and check the TOML file of an actor with one of the `roles`.

    Raises `UsageError` that names the file, the section and the key.
    """
    tables = _read_tables(path)
    role = _role(tables, tuple(roles), path)
    try:
        return _config(role, tables, path.absolute().parent)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None


def actor_text(
    role: str, url: str, data: Path | None = None, name: str = "", policy: Path | None = None, sleep_max_s: float = 0
) -> str:
    """Return the text of an actor's file, whose other files are beside it and have its role's name.

    Args:
        url: the broker's. data: a client's CSV; None if it has none. name: a client's. policy: a client's policy file.
        sleep_max_s: of a client that sleeps between connections.
    """
    line = f"name = {toml_text(name)}\n" if name else ""
    line += f"data = {toml_text(str(data.absolute()))}\n" if data is not None else ""
    line += f"policy = {toml_text(str(policy))}\n" if policy is not None else ""
    line += f"sleep_max_s = {sleep_max_s:.12g}\n" if sleep_max_s else ""
    return (
        f'[{role}]\nidentity = "{role}.key"\nfederation = "federation.toml"\n{line}store = "{role}.db"\n\n'
        f'[broker]\nurl = {toml_text(url)}\nca = "ca.pem"\npassword_file = "{role}.password"\n\n'
        f"# limits: see `dca {role} --help`\n"
    )


def is_actor_file(path: Path) -> bool:
    """Return True if a file has the section of a role, even if the rest is wrong. Raises `UsageError`."""
    text = read_text(path, _EXPECTED)
    return re.search(rf"^[ \t]*\[[ \t]*({'|'.join(ROLES)})[ \t]*\]", text, re.MULTILINE) is not None


def _read_tables(path: Path) -> JsonObject:
    try:
        return parse_toml(read_text(path, _EXPECTED))
    except UsageError:
        raise
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}; {_EXPECTED}") from None


def _role(tables: Mapping[str, Any], roles: tuple[str, ...], path: Path) -> str:
    """Return the role whose section the file has."""
    found = [role for role in _SECTIONS if role in tables]
    if len(found) != 1 or found[0] not in roles:
        names = " and ".join(f"[{role}]" for role in found) or "none"
        expected = " or ".join(f"[{role}]" for role in roles)
        raise InputError(f"{path}: found {names} of the actors' sections, expected one: {expected}")
    return found[0]


def _config(role: str, tables: Mapping[str, Any], directory: Path) -> Config:
    known = (role, "broker", *_SECTIONS[role], "metrics")
    check_keys("sections", tables, known)
    for name in known:
        if not isinstance(tables.get(name, {}), dict):
            raise InputError(f"{name} is a value, expected the section [{name}]")
    if "broker" not in tables:
        raise InputError('[broker] is missing; give at least: url = "mqtt://host"')
    files = _files(role, tables[role], directory)
    federation = read_federation(files.federation)
    broker = anchored(convert("[broker]", tables["broker"], BrokerSettings), directory)
    return Config(
        role=role,
        files=files,
        federation=federation,
        broker=broker,
        policy=_own_policy(files, tables, federation),
        floors=_floors(tables.get("floors", {}), federation),
        account=convert("[account]", tables.get("account", {}), BudgetLimit),
        metrics=convert("[metrics]", tables["metrics"], MetricsSettings) if "metrics" in tables else None,
        source=_source(files, tables.get("data"), directory, broker),
        round=convert("[round]", tables["round"], RoundSettings) if "round" in tables else None,
        job=tables.get("job"),
    )


def _files(role: str, table: Mapping[str, Any], directory: Path) -> NodeFiles:
    files = convert(f"[{role}]", table, _FILES[role])
    for module in files.modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise InputError(f"modules: {module!r} cannot be imported: {error}; is it installed here?") from None
    return anchored(files, directory)


def _source(
    files: NodeFiles, table: Mapping[str, Any] | None, directory: Path, broker: BrokerSettings
) -> Source | None:
    """Return a client's source, from the section [data] or from the keys of [client] that are short for it."""
    if not isinstance(files, ClientFiles):
        return None
    short = {"data": files.data, "categories": files.categories, "delimiter": files.delimiter}
    given = [name for name, value in short.items() if value]
    if table is not None:
        if given:
            raise InputError(f"found both [client] {given[0]} and the section [data]; keep one of them")
        return read_source(table, directory, broker)
    source = CsvSource(file=files.data or Path(), categories=files.categories, delimiter=files.delimiter)
    return None if files.data is None else source


def _own_policy(files: NodeFiles, tables: Mapping[str, Any], federation: Federation) -> Policy:
    """Return the policy from the section [policy], or from the file that replaces it."""
    path = files.policy if isinstance(files, ClientFiles) else None
    if path is None:
        return _read_policy("[policy]", tables.get("policy", {}), federation)
    if "policy" in tables:
        raise InputError(f"found both [client] policy = {path.name!r} and the section [policy]; keep one of them")
    table = _read_tables(path)
    try:
        return read_policy_keys(table, federation)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None


def read_policy_keys(table: Mapping[str, Any], federation: Federation) -> Policy:
    """Check the keys of a policy that stand by themselves, as in a policy file. Raises `UsageError`."""
    if "policy" in table:
        raise InputError("found the section [policy]; expected its keys by themselves, without that line")
    return _read_policy("policy", table, federation)


def _read_policy(where: str, table: Mapping[str, Any], federation: Federation) -> Policy:
    """Check the keys of a policy. Raises `UsageError` that names `where` they stand."""
    policy = convert(where, table, Policy)
    known = [text for member in federation.computes for text in (member.name, member.id.hex())]
    check_known(f"{where} trusted_computes", policy.trusted_computes, known)
    if policy.statistics:
        check_known(f"{where} statistics", policy.statistics, registered())
    return msgspec.structs.replace(policy, trainers=_ids(f"{where} trainers", policy.trainers, federation.trainers))


def _floors(table: Mapping[str, Any], federation: Federation) -> Floors:
    floors = convert("[floors]", table, Floors)
    return msgspec.structs.replace(floors, trainers=_ids("[floors] trainers", floors.trainers, federation.trainers))


def _ids(where: str, texts: Iterable[str], members: Iterable[Member]) -> tuple[str, ...]:
    """Return the hexadecimal ids of members given by name or by id."""
    ids = {text: member.id.hex() for member in members for text in (member.name, member.id.hex())}
    check_known(where, texts, ids)
    return tuple(ids[text] for text in texts)


def check_known(where: str, texts: Iterable[str], choices: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown name; it names the nearest known one."""
    names = tuple(choices)
    for text in texts:
        if text not in names:
            raise InputError(f"{where}: {text!r} is unknown{nearest(text, names)}; known: {', '.join(names)}")
