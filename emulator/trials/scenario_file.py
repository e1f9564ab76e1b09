"""Reads scenarios from TOML files, checks and writes them.

The check refuses unknown keys and actors, numbers out of the range that their field declares, and sizes at which a
trial would never end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import inspect

from dca_proto.errors import InputError, UsageError
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.protocol.terms import check_sum
from dca_proto.protocol.wire.kinds import KINDS, LDP_REPORT, NODE_RELEASE
from dca_proto.runtime.files import read_text
from dca_proto.wording import JsonObject, in_words, nearest, parse_toml, toml_text
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import (
    CATEGORICAL,
    PROVEN_MAX,
    STATISTICS,
    Adversary,
    Fault,
    Scenario,
    is_verifiable,
    to_plain,
)

LIST_MAX, MASKS_MAX = 1_000, 10_000_000
_ACTOR = re.compile(r"(client|compute) (\d{1,9})")
_GROUPS = ("clients", "computes", "trainer", "broker")


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML file and check it. Raises `UsageError`."""
    try:
        table = parse_toml(read_text(path, "give a scenario in TOML"))
    except UsageError:
        raise
    except ValueError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    return from_plain(table, str(path))


def from_plain(plain: JsonObject, source: str = "scenario") -> Scenario:
    """Return the scenario in plain data, checked. Raises `UsageError`, naming `source`."""
    _check_table(plain, inspect.type_info(Scenario), source)
    try:
        scenario = msgspec.convert(plain, Scenario)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {in_words(error)}") from None
    _check(scenario, source)
    return scenario


def to_toml(scenario: Scenario, *, short: bool = False) -> str:
    """Return the scenario as TOML. `short` omits default values, which reading restores."""
    defaults = Scenario(faults=(Fault(kind="", actor=""),), adversaries=(Adversary(kind="", actor=""),))
    plain, usual = to_plain(scenario), to_plain(defaults) if short else {}
    tables: list[tuple[str, JsonObject, JsonObject]] = [("", plain, usual)]
    for key, value in plain.items():
        if isinstance(value, dict):
            tables.append((f"[{key}]", value, usual.get(key, {})))
        elif isinstance(value, list):
            tables += [(f"[[{key}]]", table, usual[key][0] if short else {}) for table in value]
    parts = []
    for head, table, known in tables:
        scalars = [(key, value) for key, value in table.items() if not isinstance(value, dict | list)]
        lines = [f"{key} = {_toml(value)}" for key, value in scalars if not short or known[key] != value]
        parts += ["\n".join([head] * bool(head) + lines)] if lines else []
    return ("\n" if short else "\n\n").join(parts) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return toml_text(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def example_toml() -> str:
    """Return a scenario to start from, with a comment for each line, and all kinds of faults and adversaries."""
    faults = [
        f"#   {name:<22}{kind.does}{f' (amount: {kind.amount})' if kind.amount else ''}"
        for name, kind in FAULTS.items()
    ]
    adversaries = [f"#   {name:<22}{kind.role}: {kind.does}" for name, kind in HOSTILE.items()]
    lines = ["# Faults:", *faults, "#", "# Adversaries:", *adversaries]
    return Path(__file__).with_name("example.toml").read_text(encoding="utf-8") + "\n".join(lines) + "\n"


def _check_table(plain: object, table: inspect.Type, where: str, place: str = "") -> None:
    """Refuse unknown keys, with the closest known one, and numbers out of the range that their field declares."""
    if not isinstance(plain, dict) or not isinstance(table, inspect.StructType):
        return  # msgspec.convert reports it
    known = {field.name: field.type for field in table.fields}
    for key, value in plain.items():
        match known.get(key):
            case None:
                within = f"{where}: {place[:-1]}" if place else where
                raise InputError(f"{within}: unknown key {key!r}{nearest(key, known)}; known: {', '.join(known)}")
            case inspect.StructType() as part:
                _check_table(value, part, where, f"{key}.")
            case inspect.VarTupleType(item_type=part) if isinstance(value, list):
                for number, item in enumerate(value, 1):
                    _check_table(item, part, f"{where}: {key} {number}")
            case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high) if low is not None:
                if isinstance(value, int | float) and not low <= value <= (math.inf if high is None else high):
                    found = f"{value:g}" if isinstance(value, float) or abs(value) < 1 << 64 else "beyond 64 bits"
                    _refuse(where, f"{place}{key} is {found}", f"a number from {low:g} to {high:g}")


def _check(scenario: Scenario, source: str) -> None:
    """Raise `UsageError` for the first inconsistency."""
    rounds, nodes = scenario.rounds, scenario.population.computes
    everybody = msgspec.structs.replace(rounds, clients=scenario.population.clients)
    check_sum(everybody.secure_sum, rounds.computes or nodes, f"{source}: rounds: ")
    for found, expected in _misfits(scenario):
        _refuse(source, found, expected)
    for number, fault in enumerate(scenario.faults, 1):
        _check_fault(scenario, fault, f"{source}: faults {number}")
    for number, adversary in enumerate(scenario.adversaries, 1):
        _check_adversary(scenario, adversary, f"{source}: adversaries {number}")
    for name, count in (("faults", len(scenario.faults)), ("adversaries", len(scenario.adversaries))):
        if count > LIST_MAX:
            _refuse(source, f"{count} {name}", f"at most {LIST_MAX}")
    actors = [adversary.actor for adversary in scenario.adversaries]
    twice = [actor for actor in actors if actors.count(actor) > 1]
    if twice:
        _refuse(source, f"{twice[0]!r} is an adversary twice", "each actor at most once")
    counts = {"client": scenario.population.clients, "compute": scenario.population.computes}
    for role, members in (("client", "clients"), ("compute", "Compute nodes")):
        if sum(actor.startswith(f"{role} ") for actor in actors) == counts[role]:
            _refuse(source, f"all {members} are adversaries", "at least one that keeps to the protocol")


def _misfits(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield each inconsistency: what was found, and what is expected."""
    population, rounds, broker = scenario.population, scenario.rounds, scenario.broker
    if rounds.kind not in KINDS:
        yield f"rounds.kind is {rounds.kind!r}{nearest(rounds.kind, KINDS)}", f"one of {', '.join(KINDS)}"
    if rounds.kind == NODE_RELEASE and not rounds.rows_max:
        yield "rounds.rows_max is 0 for node releases", "the largest number of rows of a client, 1 or more"
    if rounds.batch and not rounds.colluders + 3 <= rounds.batch <= population.clients:
        found = f"rounds.batch is {rounds.batch} of {population.clients} clients"
        yield found, f"0, or c + 3 = {rounds.colluders + 3} to {population.clients}"
    if population.statistic not in STATISTICS:
        near = nearest(population.statistic, STATISTICS)
        yield f"population.statistic is {population.statistic!r}{near}", f"one of {', '.join(STATISTICS)}"
    if population.radius and population.statistic not in ("sum", "mean"):
        yield f"population.radius is {population.radius:g} for {population.statistic!r}", "0, or a sum or mean"
    if population.clients * population.dimension * population.computes > MASKS_MAX:
        yield "population has more than 10 million masks a round", "fewer clients or coordinates"
    if broker.part_bytes_max > broker.packet_bytes_max:
        expected = f"at most broker.packet_bytes_max = {broker.packet_bytes_max}"
        yield f"broker.part_bytes_max is {broker.part_bytes_max}", expected
    if rounds.verified and not is_verifiable(population, rounds):
        yield (
            "rounds.verified is true for rounds that cannot be verified",
            f"secure sums of up to {PROVEN_MAX} coordinates, of sum, mean, or histogram with rows_max, or verified = "
            "false",
        )
    yield from _misfits_of_nodes(scenario)
    yield from _misfits_of_reports(scenario)


def _misfits_of_nodes(scenario: Scenario) -> Iterator[tuple[str, str]]:
    nodes = scenario.population.computes
    for name, count in (("rounds.computes", scenario.rounds.computes), ("limits.trusted", scenario.limits.trusted)):
        if count > nodes:
            yield f"{name} is {count}", f"at most population.computes = {nodes}"


def _misfits_of_reports(scenario: Scenario) -> Iterator[tuple[str, str]]:
    population, rounds, by = scenario.population, scenario.rounds, scenario.rounds.mechanism
    if rounds.kind != LDP_REPORT:
        if by:
            yield f"rounds.mechanism is {by!r} for kind {rounds.kind!r}", f"kind = {LDP_REPORT!r}, or no mechanism"
        return
    if by not in LOCAL_MECHANISMS:
        yield f"rounds.mechanism is {by!r}{nearest(by, LOCAL_MECHANISMS)}", f"one of {', '.join(LOCAL_MECHANISMS)}"
    if by in CATEGORICAL and (population.statistic != "histogram" or population.dimension < 2):
        found = f"population.statistic is {population.statistic!r} of dimension {population.dimension}"
        yield found, f"a histogram of 2 or more bins, as {by} needs"
    if by in CATEGORICAL and rounds.rows_max != 1:
        yield f"rounds.rows_max is {rounds.rows_max}", f"1, as {by} needs"


def _check_fault(scenario: Scenario, fault: Fault, where: str) -> None:
    kind = FAULTS.get(fault.kind)
    if kind is None:
        _refuse(where, f"kind is {fault.kind!r}{nearest(fault.kind, FAULTS)}", f"one of {', '.join(FAULTS)}")
    role = _role(scenario, fault.actor, where)
    if role not in kind.roles:
        _refuse(where, f"{fault.kind} of {fault.actor!r}", f"an actor with one of the roles {', '.join(kind.roles)}")
    if kind.is_of_one and fault.actor in ("clients", "computes"):
        _refuse(where, f"{fault.kind} of {fault.actor!r}", f"{role} and a number, such as {role} 0")
    low, high = kind.amounts
    if not (math.isfinite(fault.amount) and low <= fault.amount <= high):
        _refuse(where, f"amount of {fault.kind} is {fault.amount:g}", f"{low:g} to {high:g} ({kind.amount})")
    phases = kind.phases_of(role)
    if fault.phase and fault.phase not in phases:
        expected = f"one of {', '.join(phases)}" if phases else "none for this kind"
        _refuse(where, f"phase is {fault.phase!r}{nearest(fault.phase, phases)}", expected)


def _check_adversary(scenario: Scenario, adversary: Adversary, where: str) -> None:
    kind = HOSTILE.get(adversary.kind)
    if kind is None:
        _refuse(where, f"kind is {adversary.kind!r}{nearest(adversary.kind, HOSTILE)}", f"one of {', '.join(HOSTILE)}")
    if kind.is_stranger:
        if not re.fullmatch(r"stranger \d{1,6}", adversary.actor):
            found = f"actor of {adversary.kind} is {adversary.actor!r}"
            _refuse(where, found, "stranger and a number, such as stranger 0")
    elif _role(scenario, adversary.actor, where) != kind.role or adversary.actor in ("clients", "computes"):
        expected = "trainer" if kind.role == "trainer" else f"{kind.role} and a number, such as {kind.role} 0"
        _refuse(where, f"{adversary.kind} as {adversary.actor!r}", expected)
    if not 0 <= adversary.amount <= kind.amounts[1]:
        _refuse(where, f"amount of {adversary.kind} is {adversary.amount}", f"0 to {kind.amounts[1]}")


def _role(scenario: Scenario, actor: str, where: str) -> str:
    """Return the role of an actor or group. Raises `UsageError` if the scenario has no such actor."""
    if actor in _GROUPS:
        return actor.removesuffix("s")
    match = _ACTOR.fullmatch(actor)
    if match is None:
        hint = nearest(actor, [*_GROUPS, "client 0", "compute 0"])
        _refuse(where, f"actor is {actor!r}{hint}", f"client or compute and a number, or {', '.join(_GROUPS)}")
    role, number = match[1], int(match[2])
    count = scenario.population.clients if role == "client" else scenario.population.computes
    if number >= count:
        _refuse(where, f"actor is {actor!r}", f"{role} 0 to {role} {count - 1}")
    return role


def _refuse(source: str, found: str, expected: str) -> NoReturn:
    raise UsageError(f"{source}: {found}; give {expected}")
