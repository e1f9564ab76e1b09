"""Draws a scenario from a seed: usually a small population and several faults, sometimes with adversaries."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.protocol.params import Timing
from emulator.sim.broker import BrokerOptions
from emulator.sim.link import LinkOptions
from emulator.sim.streams import Streams
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import (
    CATEGORICAL,
    EPOCH_MS_MIN,
    LDP_REPORT,
    NODE_RELEASE,
    Adversary,
    Fault,
    Limits,
    Population,
    Rounds,
    Scenario,
    to_plain,
)
from emulator.trials.scenario_file import from_plain

_DIMENSION_MAX = 8
_SIZES = {
    "milliseconds": [50.0, 500.0, 3_000.0, 20_000.0, 120_000.0],
    "a probability": [0.1, 0.3, 0.6],
    "how many messages": [1.0, 5.0, 25.0],
    "bytes a second": [500.0, 5_000.0],
}
"""Amounts to draw, by the unit of a fault's `amount`."""


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed. Each part has its own random stream: a new kind of fault changes only faults."""
    streams = Streams(seed)
    population = _population(streams("draw/population"))
    rounds = _rounds(streams("draw/rounds"), population)
    if population.rows > 1 and streams("draw/local").random() < 0.2:
        rounds = msgspec.structs.replace(rounds, kind=NODE_RELEASE, rows_max=max(1, rounds.rows_max))
    if rounds.is_summed and streams("draw/reports").random() < 0.2:
        population, rounds = _reports(streams("draw/reports"), population, rounds)
    rounds, combined = _combination(streams("draw/together"), population, rounds)
    faults = (*_faults(streams("draw/faults"), population, rounds), *combined)
    broker = _broker(streams("draw/broker"))
    if any(fault.kind == "mix-parts" for fault in faults):
        broker = msgspec.structs.replace(broker, part_bytes_max=300)  # most messages have parts
    heals, usual_ms = streams("draw/heal"), Timing().epoch_ms
    scenario = Scenario(
        seed=seed,
        heal_ms=0 if heals.random() < 0.6 else heals.randrange(1_000, rounds.end_ms),  # 0: when all rounds are over
        epoch_ms=streams("draw/epoch").choice([usual_ms, usual_ms, EPOCH_MS_MIN]),
        population=population,
        rounds=rounds,
        limits=_limits(streams("draw/limits"), population, rounds),
        network=_network(streams("draw/network")),
        broker=broker,
        faults=faults,
        adversaries=(
            *_adversaries(streams("draw/adversaries"), population, rounds),
            *_hostile_trainer(streams("draw/trainer")),
        ),
    )
    from_plain(to_plain(scenario), f"the scenario of seed {seed}")  # refuses a scenario that cannot be
    return scenario


def _population(stream: random.Random) -> Population:
    return Population(
        clients=stream.randint(*stream.choices([(3, 8), (9, 20), (21, 60)], weights=[60, 30, 10])[0]),
        computes=stream.choices([2, 3, 4, 5, 6], weights=[30, 35, 15, 10, 10])[0],
        statistic=stream.choices(["sum", "mean", "second-moments", "histogram"], weights=[6, 2, 1, 1])[0],
        dimension=stream.randint(1, _DIMENSION_MAX),
        rows=stream.randint(1, 3),
    )


def _rounds(stream: random.Random, population: Population) -> Rounds:
    largest = population.clients - 2
    tolerated = min(largest, stream.choice([0, 1, 1, population.clients // 4, population.clients // 3, largest]))
    windows = [stream.randrange(8_000, 40_000, 500) for _ in range(2)]
    colluders = stream.choice([0, 0, 0, tolerated // 2, tolerated])
    batch = stream.randint(colluders + 3, population.clients - 1) if colluders + 3 < population.clients else 0
    return Rounds(
        count=stream.choices([1, 2, 3], weights=[5, 4, 2])[0],
        first_ms=stream.choice([0, 1_000, 3_000]),
        every_ms=stream.choice([0, 2_000, 15_000, 40_000]),
        tolerated=tolerated,
        colluders=colluders,
        batch=batch if stream.random() < 0.25 else 0,
        epsilon=stream.choice([0.5, 1.0, 2.0]),
        delta=stream.choice([1e-5, 1e-6]),
        counted=stream.random() < 0.7,
        fraction_bits=stream.choice([16, 20, 24]),
        rows_max=stream.choice([0, 1, 3]),
        collect_window_ms=windows[0],
        commit_window_ms=windows[1],
    )


def _reports(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Population, Rounds]:
    """Turn the rounds into LDP reports. A categorical mechanism gets a histogram and reports of one row."""
    mechanism, bins = stream.choice(LOCAL_MECHANISMS), stream.randint(2, _DIMENSION_MAX)
    rounds = msgspec.structs.replace(rounds, kind=LDP_REPORT, mechanism=mechanism)
    if mechanism not in CATEGORICAL:
        return population, rounds
    population = msgspec.structs.replace(population, statistic="histogram", dimension=bins)
    return population, msgspec.structs.replace(rounds, rows_max=1)


def _limits(stream: random.Random, population: Population, rounds: Rounds) -> Limits:
    """Usually wide limits; sometimes a budget for one or two rounds, or floors within 1 of n_min."""
    tight, floors = stream.random() < 0.15, stream.random() < 0.15
    fewest = population.clients - rounds.tolerated + rounds.colluders
    least = fewest + stream.choice([-1, 0, 0, 1]) if floors else 1
    return Limits(
        epsilon_per_period_max=rounds.epsilon * stream.choice([1.2, 1.5, 2.0]) if tight else 100.0,
        account_epsilon=rounds.epsilon * stream.choice([1.2, 2.0, 40.0]) if stream.random() < 0.2 else 0.0,
        clients_min=max(1, least),
        floor_clients_min=max(1, least if stream.random() < 0.5 else 1),
    )


def _network(stream: random.Random) -> LinkOptions:
    return LinkOptions(
        delay_ms=stream.choice([1.0, 20.0, 20.0, 100.0, 500.0]),
        jitter_ms=stream.choice([0.0, 10.0, 50.0, 500.0]),
        bandwidth_bytes_s=stream.choice([0.0, 0.0, 0.0, 20_000.0]),
        loss=stream.choice([0.0, 0.0, 0.01, 0.1, 0.3]),
        duplicate=stream.choice([0.02, 0.02, 0.2]),
        reorder=stream.choice([0.05, 0.05, 0.4]),
        reorder_ms=stream.choice([200.0, 200.0, 3_000.0]),
    )


def _broker(stream: random.Random) -> BrokerOptions:
    return BrokerOptions(
        queue_messages_max=stream.choice([1_000, 1_000, 100]),
        part_bytes_max=stream.choice([1 << 16, 1 << 16, 1_024]),
        persistent_sessions=stream.random() < 0.8,
        inflight_max=stream.choice([20, 20, 1]),
    )


def _faults(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Fault, ...]:
    drawn: list[Fault] = []
    for _ in range(stream.choices(range(7), weights=[5, 10, 20, 25, 20, 12, 8])[0]):
        relays = rounds.batch and stream.random() < 0.1  # only batches send invitations to relay
        fault = _fault(stream, "relay" if relays else stream.choice(list(FAULTS)), population, rounds)
        if not (FAULTS[fault.kind].once and any(earlier.kind == fault.kind for earlier in drawn)):
            drawn.append(fault)
    return tuple(drawn)


def _fault(stream: random.Random, name: str, population: Population, rounds: Rounds) -> Fault:
    kind = FAULTS[name]
    role = stream.choice(kind.roles)
    phases = kind.phases_of(role)
    if kind.early:
        at_ms = stream.choice([0, 0, rounds.end_ms // 3])
    else:  # usually within the first 4 s of a round, which is over by then if nothing is slow; else at any time in it
        at_ms, late = rounds.asked_ms(stream.randrange(rounds.count)), stream.random() < 0.2
        at_ms += stream.randrange(rounds.longest_ms) if late else int(4_000 * stream.random() ** 2)
    return Fault(
        kind=name,
        actor="clients" if name == "reconnect-storm" else _actor(stream, role, population),
        at_ms=min(at_ms, EPOCH_MS_MIN // 2),
        for_ms=0 if name == "relay" else stream.choice([0, 500, 3_000, 10_000, 30_000]),
        phase=stream.choice(["", *phases]) if phases else "",
        amount=min(kind.amounts[1], stream.choice(_SIZES[kind.amount])) if kind.amount in _SIZES else 0.0,
    )


def _actor(stream: random.Random, role: str, population: Population) -> str:
    count = {"client": population.clients, "compute": population.computes}.get(role)
    return role if count is None else f"{role} {stream.randrange(count)}"


def _combination(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Rounds, tuple[Fault, ...]]:
    """In one trial of three, draw faults that rarely meet by chance but reach further states together."""
    if stream.random() >= 0.35:
        return rounds, ()
    at_ms, client = rounds.first_ms, f"client {stream.randrange(population.clients)}"
    meetings: dict[str, tuple[dict[str, Any], tuple[Fault, ...]]] = {
        # A restored client pays again with used numbers, too late. Replayed warnings reach it a second time.
        "restored": (
            {"count": 3, "every_ms": 15_000},
            (
                Fault(kind="restore", actor=client, at_ms=at_ms, for_ms=10_000),
                Fault(kind="replay", actor="computes", at_ms=at_ms + 23_000, amount=60),
            ),
        ),
        # Contributions still arrive when the nodes close the round, before the trainer, whose clock is behind.
        "late": (
            {},
            (
                Fault(kind="congested", actor="clients", amount=rounds.collect_window_ms // 3),
                Fault(kind="clock-behind", actor="trainer", amount=3_000),
                Fault(kind="lossy", actor="trainer", amount=0.1),
                Fault(kind="vanish-before-sending", actor=client),
            ),
        ),
        # No client's message arrives until the round is over.
        "unheard": ({}, (Fault(kind="partition-up", actor="clients", at_ms=at_ms, for_ms=rounds.longest_ms + 1_000),)),
        # Nobody has data.
        "empty": ({}, (Fault(kind="data-fail", actor="clients"), Fault(kind="lossy", actor="clients", amount=0.2))),
        # All running clients decline, which is the number expected; another comes later with a new certificate.
        "uncertified": (
            {"counted": True, "expected": 1, "batch": 0},
            (
                Fault(kind="crash", actor=client),
                Fault(kind="certificate-ends", actor="clients", at_ms=at_ms + 5_000, for_ms=1_000),
            ),
        ),
    }
    names = ("late", "restored") if rounds.is_summed else ("unheard", "empty", "uncertified")
    changes, faults = meetings[stream.choice(names)]
    return msgspec.structs.replace(rounds, **changes), faults


def _adversaries(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Adversary, ...]:
    """Draw one or two adversaries in half of the trials; at most one is a Compute node, and only in secure sums."""
    if stream.random() < 0.5:
        return ()
    drawn: dict[str, Adversary] = {}
    for _ in range(stream.randint(1, 2)):
        role = "compute" if rounds.is_summed and stream.random() < 0.6 else "client"
        kind = stream.choice([name for name, kind in HOSTILE.items() if kind.role == role])
        actor = f"stranger {len(drawn)}" if HOSTILE[kind].is_stranger else _actor(stream, role, population)
        is_second_node = role == "compute" and any(earlier.startswith(role) for earlier in drawn)
        if actor in drawn or is_second_node:
            continue
        dropped = max(1, rounds.tolerated - rounds.colluders) + stream.choice([0, 0, 1])
        drawn[actor] = Adversary(kind=kind, actor=actor, amount=dropped if kind == "drop-clients" else 0)
    return tuple(drawn.values())


def _hostile_trainer(stream: random.Random) -> tuple[Adversary, ...]:
    """Draw a hostile trainer in one trial of eight."""
    if stream.random() >= 0.125:
        return ()
    kind = stream.choice([name for name, kind in HOSTILE.items() if kind.role == "trainer"])
    after_ms = stream.choice([50, 500, 3_000]) if HOSTILE[kind].amounts[1] else 0
    return (Adversary(kind=kind, actor="trainer", amount=after_ms),)
