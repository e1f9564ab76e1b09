"""What a scenario may not say: numbers that cannot be, actors that are not there, and sizes that would never end."""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.wording import nearest
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.questions import CATEGORICAL, STATISTICS
from emulator.trials.scenario import KINDS, LDP_REPORT, NODE_RELEASE, Adversary, Fault, Scenario

CLIENTS_MAX, COMPUTES_MAX, DIMENSION_MAX, ROWS_MAX = 10_000, 64, 100_000, 10_000
ROUNDS_MAX, LIST_MAX = 100, 1_000
TIME_MS_MAX = 30 * 24 * 3600 * 1000
EPOCH_MS_MIN = 1_800_000  # the round after healing has long windows
BYTES_MAX, MESSAGES_MAX = 1 << 30, 1_000_000
LOSS_MAX = 0.95  # a link that always loses sends again for ever
_ACTOR = re.compile(r"(client|compute) (\d{1,9})")
_GROUPS = ("clients", "computes", "trainer", "broker")

# Each place in a scenario: what it may hold at least and at most.
RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, (1 << 63) - 1),
    "heal_ms": (0, TIME_MS_MAX),
    "epoch_ms": (EPOCH_MS_MIN, TIME_MS_MAX),
    "population.clients": (3, CLIENTS_MAX),
    "population.computes": (2, COMPUTES_MAX),
    "population.dimension": (1, DIMENSION_MAX),
    "population.rows": (1, ROWS_MAX),
    "rounds.count": (1, ROUNDS_MAX),
    "rounds.first_ms": (0, TIME_MS_MAX),
    "rounds.every_ms": (0, TIME_MS_MAX),
    "rounds.expected": (0, CLIENTS_MAX),
    "rounds.tolerated": (0, CLIENTS_MAX),
    "rounds.colluders": (0, CLIENTS_MAX),
    "rounds.epsilon": (1e-6, 20),
    "rounds.delta": (1e-12, 0.5),
    "rounds.fraction_bits": (0, 40),
    "rounds.rows_max": (0, ROWS_MAX),
    "rounds.batch": (0, CLIENTS_MAX),
    "rounds.collect_window_ms": (1, TIME_MS_MAX // 10),
    "rounds.commit_window_ms": (1, TIME_MS_MAX // 10),
    "limits.epsilon_per_period_max": (1e-6, 1000),
    "limits.account_epsilon": (0, 1000),
    "limits.clients_min": (1, CLIENTS_MAX),
    "limits.honest_min": (1, CLIENTS_MAX),
    "limits.colluders_min": (0, CLIENTS_MAX),
    "limits.floor_clients_min": (1, CLIENTS_MAX),
    "limits.floor_honest_min": (1, CLIENTS_MAX),
    "network.delay_ms": (0, 3_600_000),
    "network.jitter_ms": (0, 3_600_000),
    "network.bandwidth_bytes_s": (0, BYTES_MAX),
    "network.loss": (0, LOSS_MAX),
    "network.retry_ms": (1, 3_600_000),
    "network.duplicate": (0, 1),
    "network.reorder": (0, 1),
    "network.reorder_ms": (0, 3_600_000),
    "broker.queue_messages_max": (1, MESSAGES_MAX),
    "broker.inflight_max": (1, MESSAGES_MAX),
    "broker.packet_bytes_max": (128, BYTES_MAX),
    "broker.part_bytes_max": (128, BYTES_MAX),
    "broker.session_expiry_ms": (0, TIME_MS_MAX),
    "broker.connects_per_s_max": (0, MESSAGES_MAX),
    "broker.reconnect_ms": (1, 3_600_000),
}


def check(scenario: Scenario, source: str = "scenario") -> None:
    """Raises `UsageError` for the first thing that cannot be."""
    for place, value in _numbers(scenario):
        low, high = RANGES[place]
        if not (math.isfinite(value) and low <= value <= high):
            _refuse(source, f"{place} is {value:g}", f"a number from {low:g} to {high:g}")
    _check_rounds(scenario, source)
    _check_reports(scenario, source)
    for number, fault in enumerate(scenario.faults, 1):
        _check_fault(scenario, fault, f"{source}: faults {number}")
    for number, adversary in enumerate(scenario.adversaries, 1):
        _check_adversary(scenario, adversary, f"{source}: adversaries {number}")
    _check_lists(scenario, source)


def _numbers(scenario: Scenario) -> list[tuple[str, float]]:
    places = [(name, float(getattr(scenario, name))) for name in ("seed", "heal_ms", "epoch_ms")]
    for part in ("population", "rounds", "limits", "network", "broker"):
        values: dict[str, Any] = msgspec.structs.asdict(getattr(scenario, part))
        places += [(f"{part}.{name}", value) for name, value in values.items() if f"{part}.{name}" in RANGES]
    return places


def _check_rounds(scenario: Scenario, source: str) -> None:
    population, rounds = scenario.population, scenario.rounds
    if rounds.tolerated > population.clients - 2:
        found = f"rounds.tolerated is {rounds.tolerated} of {population.clients} clients"
        _refuse(source, found, f"at most N - 2 = {population.clients - 2}, so that somebody's noise is left")
    if rounds.colluders > rounds.tolerated:
        _refuse(source, f"rounds.colluders is {rounds.colluders}", f"at most rounds.tolerated = {rounds.tolerated}")
    if rounds.kind not in KINDS:
        _refuse(source, f"rounds.kind is {rounds.kind!r}{nearest(rounds.kind, KINDS)}", f"one of {', '.join(KINDS)}")
    if rounds.kind == NODE_RELEASE and not rounds.rows_max:
        _refuse(source, "rounds.rows_max is 0 of node releases", "how many rows of a client count at most, 1 or more")
    if rounds.batch and (rounds.batch > population.clients or not rounds.colluders + 3 <= rounds.batch):
        found = f"rounds.batch is {rounds.batch} of {population.clients} clients"
        _refuse(source, found, f"0, or c + 3 = {rounds.colluders + 3} to {population.clients}")
    if population.statistic not in STATISTICS:
        near = nearest(population.statistic, STATISTICS)
        _refuse(source, f"population.statistic is {population.statistic!r}{near}", f"one of {', '.join(STATISTICS)}")
    if population.clients * population.dimension * population.computes > MESSAGES_MAX * 10:
        _refuse(source, "population has more than 10 million masks a round", "fewer clients or coordinates")
    if scenario.broker.part_bytes_max > scenario.broker.packet_bytes_max:
        found = f"broker.part_bytes_max is {scenario.broker.part_bytes_max}"
        _refuse(source, found, f"at most broker.packet_bytes_max = {scenario.broker.packet_bytes_max}")


def _check_reports(scenario: Scenario, source: str) -> None:
    population, rounds, by = scenario.population, scenario.rounds, scenario.rounds.mechanism
    if rounds.kind != LDP_REPORT:
        if by:
            _refuse(source, f"rounds.mechanism is {by!r} of kind {rounds.kind!r}", f"kind = {LDP_REPORT!r}, or none")
        return
    if by not in LOCAL_MECHANISMS:
        found = f"rounds.mechanism is {by!r}{nearest(by, LOCAL_MECHANISMS)}"
        _refuse(source, found, f"one of {', '.join(LOCAL_MECHANISMS)}")
    if by in CATEGORICAL:
        if population.statistic != "histogram" or population.dimension < 2:
            found = f"population.statistic is {population.statistic!r} of dimension {population.dimension}"
            _refuse(source, found, f"a histogram of 2 or more bins, of which a report by {by} names one")
        if rounds.rows_max != 1:
            _refuse(source, f"rounds.rows_max is {rounds.rows_max}", f"1: a report by {by} is of one row's bin")


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
