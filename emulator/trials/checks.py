"""Checks of scenarios: impossible numbers, absent actors, and sizes that would never end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn, get_type_hints

from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.wording import nearest
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import (
    CATEGORICAL,
    KINDS,
    LDP_REPORT,
    NODE_RELEASE,
    STATISTICS,
    TIME_MS_MAX,
    Adversary,
    Between,
    Fault,
    Scenario,
)

LIST_MAX, MASKS_MAX = 1_000, 10_000_000
_BYTES_MAX, _MESSAGES_MAX, _HOUR_MS = 1 << 30, 1_000_000, 3_600_000
_LOSS_MAX = 0.95  # a link that always loses sends again for ever
_ACTOR = re.compile(r"(client|compute) (\d{1,9})")
_GROUPS = ("clients", "computes", "trainer", "broker")

# Of the simulator's options: what each may be at least and at most. Those of the scenario's own are with its fields.
_RANGES: dict[str, tuple[float, float]] = {
    "network.delay_ms": (0, _HOUR_MS),
    "network.jitter_ms": (0, _HOUR_MS),
    "network.bandwidth_bytes_s": (0, _BYTES_MAX),
    "network.loss": (0, _LOSS_MAX),
    "network.retry_ms": (1, _HOUR_MS),
    "network.duplicate": (0, 1),
    "network.reorder": (0, 1),
    "network.reorder_ms": (0, _HOUR_MS),
    "broker.queue_messages_max": (1, _MESSAGES_MAX),
    "broker.inflight_max": (1, _MESSAGES_MAX),
    "broker.packet_bytes_max": (128, _BYTES_MAX),
    "broker.part_bytes_max": (128, _BYTES_MAX),
    "broker.session_expiry_ms": (0, TIME_MS_MAX),
    "broker.connects_per_s_max": (0, _MESSAGES_MAX),
    "broker.reconnect_ms": (1, _HOUR_MS),
}


def check(scenario: Scenario, source: str = "scenario") -> None:
    """Raises `UsageError` for the first thing that cannot be."""
    parts = {"": scenario} | {f"{name}.": getattr(scenario, name) for name in ("population", "rounds", "limits")}
    ranges = [(prefix + name, low, high) for prefix, part in parts.items() for name, low, high in _ranges(type(part))]
    for place, low, high in (*ranges, *((place, *limits) for place, limits in _RANGES.items())):
        part, _, name = place.rpartition(".")
        value = getattr(getattr(scenario, part) if part else scenario, name)
        if not (math.isfinite(value) and low <= value <= high):
            _refuse(source, f"{place} is {value:g}", f"a number from {low:g} to {high:g}")
    for found, expected in _misfits(scenario):
        _refuse(source, found, expected)
    for number, fault in enumerate(scenario.faults, 1):
        _check_fault(scenario, fault, f"{source}: faults {number}")
    for number, adversary in enumerate(scenario.adversaries, 1):
        _check_adversary(scenario, adversary, f"{source}: adversaries {number}")
    _check_lists(scenario, source)


def _ranges(part: Any) -> list[tuple[str, float, float]]:
    """The fields of a part that have a range."""
    hints = get_type_hints(part, include_extras=True).items()
    ranges = [(name, one) for name, hint in hints for one in getattr(hint, "__metadata__", ())]
    return [(name, one.low, one.high) for name, one in ranges if isinstance(one, Between)]


def _misfits(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """What does not fit together: what was found, and what is expected."""
    population, rounds, broker = scenario.population, scenario.rounds, scenario.broker
    largest = population.clients - 2
    if rounds.tolerated > largest:
        found = f"rounds.tolerated is {rounds.tolerated} of {population.clients} clients"
        yield found, f"at most N - 2 = {largest}, so that somebody's noise is left"
    if rounds.colluders > rounds.tolerated:
        yield f"rounds.colluders is {rounds.colluders}", f"at most rounds.tolerated = {rounds.tolerated}"
    if rounds.kind not in KINDS:
        yield f"rounds.kind is {rounds.kind!r}{nearest(rounds.kind, KINDS)}", f"one of {', '.join(KINDS)}"
    if rounds.kind == NODE_RELEASE and not rounds.rows_max:
        yield "rounds.rows_max is 0 of node releases", "how many rows of a client count at most, 1 or more"
    if rounds.batch and not rounds.colluders + 3 <= rounds.batch <= population.clients:
        found = f"rounds.batch is {rounds.batch} of {population.clients} clients"
        yield found, f"0, or c + 3 = {rounds.colluders + 3} to {population.clients}"
    if population.statistic not in STATISTICS:
        near = nearest(population.statistic, STATISTICS)
        yield f"population.statistic is {population.statistic!r}{near}", f"one of {', '.join(STATISTICS)}"
    if population.clients * population.dimension * population.computes > MASKS_MAX:
        yield "population has more than 10 million masks a round", "fewer clients or coordinates"
    if broker.part_bytes_max > broker.packet_bytes_max:
        expected = f"at most broker.packet_bytes_max = {broker.packet_bytes_max}"
        yield f"broker.part_bytes_max is {broker.part_bytes_max}", expected
    yield from _misfits_of_reports(scenario)


def _misfits_of_reports(scenario: Scenario) -> Iterator[tuple[str, str]]:
    population, rounds, by = scenario.population, scenario.rounds, scenario.rounds.mechanism
    if rounds.kind != LDP_REPORT:
        if by:
            yield f"rounds.mechanism is {by!r} of kind {rounds.kind!r}", f"kind = {LDP_REPORT!r}, or none"
        return
    if by not in LOCAL_MECHANISMS:
        yield f"rounds.mechanism is {by!r}{nearest(by, LOCAL_MECHANISMS)}", f"one of {', '.join(LOCAL_MECHANISMS)}"
    if by in CATEGORICAL and (population.statistic != "histogram" or population.dimension < 2):
        found = f"population.statistic is {population.statistic!r} of dimension {population.dimension}"
        yield found, f"a histogram of 2 or more bins, of which a report by {by} names one"
    if by in CATEGORICAL and rounds.rows_max != 1:
        yield f"rounds.rows_max is {rounds.rows_max}", f"1: a report by {by} is of one row's bin"


def _check_fault(scenario: Scenario, fault: Fault, where: str) -> None:
    kind = FAULTS.get(fault.kind)
    if kind is None:
        _refuse(where, f"kind is {fault.kind!r}{nearest(fault.kind, FAULTS)}", f"one of {', '.join(FAULTS)}")
    role = _role(scenario, fault.actor, where)
    if role not in kind.roles:
        _refuse(where, f"{fault.kind} of {fault.actor!r}", f"an actor of these: {', '.join(kind.roles)}")
    for name, value in (("at_ms", fault.at_ms), ("for_ms", fault.for_ms)):
        if not 0 <= value <= TIME_MS_MAX:
            _refuse(where, f"{name} is {value}", f"0 to {TIME_MS_MAX} ms")
    if kind.is_of_one and fault.actor in _GROUPS:
        _refuse(where, f"{fault.kind} of {fault.actor!r}", f"{role} and a number, as {role} 0")
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
            _refuse(where, f"actor of {adversary.kind} is {adversary.actor!r}", "stranger and a number, as stranger 0")
    elif _role(scenario, adversary.actor, where) != kind.role or adversary.actor in ("clients", "computes"):
        expected = "trainer" if kind.role == "trainer" else f"{kind.role} and a number, as {kind.role} 0"
        _refuse(where, f"{adversary.kind} as {adversary.actor!r}", expected)
    if not 0 <= adversary.amount <= kind.amount_max:
        _refuse(where, f"amount of {adversary.kind} is {adversary.amount}", f"0 to {kind.amount_max}")


def _check_lists(scenario: Scenario, source: str) -> None:
    for name in ("faults", "adversaries"):
        count = len(getattr(scenario, name))
        if count > LIST_MAX:
            _refuse(source, f"{count} {name}", f"at most {LIST_MAX}")
    actors = [one.actor for one in scenario.adversaries]
    twice = [actor for actor in actors if actors.count(actor) > 1]
    if twice:
        _refuse(source, f"{twice[0]!r} is an adversary twice", "each actor at most once")
    clients = {actor for actor in actors if actor.startswith("client ")}
    if len(clients) == scenario.population.clients:
        _refuse(source, "all clients are adversaries", "at least one who keeps to the protocol")
    nodes = {actor for actor in actors if actor.startswith("compute ")}
    if len(nodes) == scenario.population.computes:
        _refuse(source, "all Compute nodes are adversaries", "at least one who keeps to the protocol")


def _role(scenario: Scenario, actor: str, where: str) -> str:
    """The role of an actor or group. Raises `UsageError` where it is not there."""
    if actor in _GROUPS:
        return actor.removesuffix("s")
    match = _ACTOR.fullmatch(actor)
    if match is None:
        hint = nearest(actor, [*_GROUPS, "client 0", "compute 0"])
        _refuse(where, f"actor is {actor!r}{hint}", f"client or compute and a number, or {', '.join(_GROUPS)}")
    role, number = match[1], int(match[2])
    there = scenario.population.clients if role == "client" else scenario.population.computes
    if number >= there:
        _refuse(where, f"actor is {actor!r}", f"{role} 0 to {role} {there - 1}")
    return role


def _refuse(source: str, found: str, expected: str) -> NoReturn:
    raise UsageError(f"{source}: {found}; give {expected}")
