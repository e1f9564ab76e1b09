"""Draws a scenario from a seed: usually a small population and several faults, sometimes with adversaries."""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from dca_proto.privacy.mechanism import LOCAL_MECHANISMS, RANDOMISED_RESPONSE
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.kinds import LDP_REPORT, NODE_RELEASE
from emulator.sim.broker import BrokerLimits
from emulator.sim.link import LinkOptions
from emulator.sim.streams import Streams
from emulator.trials.adversary import AdversaryKind
from emulator.trials.fault import FaultKind
from emulator.trials.faults import EPOCHS, FAULTS, MOST
from emulator.trials.hostile import HOSTILE
from emulator.trials.meetings import Aimed, aimed, rare, reaching, together
from emulator.trials.scenario import (
    CATEGORICAL,
    EPOCH_MS_MIN,
    ActorLimits,
    Adversary,
    Fault,
    Population,
    Rounds,
    Scenario,
    to_plain,
)
from emulator.trials.scenario_file import from_plain

_DIMENSION_MAX = 8
_WIDE, _WIDE_CLIENTS = (4_200, 9_000), 5  # beyond the 4,096 candidates of which noise is drawn at once
_MANY_CLIENTS = (30, 60)
RARE_EVERY = 12
"""Every twelfth seed reaches in turn what chance misses (`meetings.rare`)."""
VERIFIED_EVERY = 14
"""Every fourteenth seed, unless it is a twelfth, too, has verified sums of a small population: proofs take time."""
_PROOF = 50  # times the bytes of a plain contribution
_BANDWIDTH = "bytes a second"
_SIZES = {
    "milliseconds": [50.0, 500.0, 3_000.0, 20_000.0, 120_000.0],
    "a probability": [0.1, 0.3, 0.6],
    MOST: [0.6, 0.9, 1.0],
    "how many messages": [1.0, 5.0, 25.0],
    _BANDWIDTH: [500.0, 5_000.0],
    EPOCHS: [EPOCH_MS_MIN * part for part in (1.3, 2.5, 4.0)],
}
"""Amounts to draw, by the unit of a fault's `amount`."""
_BACKUP = "from-backup"


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed. Each part has its own random stream: a new kind of fault changes only faults."""
    streams = Streams(seed)
    population = _wide(streams("draw/wide"), _population(streams("draw/population")))
    rounds = _rounds(streams("draw/rounds"), population)
    is_rare = seed % RARE_EVERY == RARE_EVERY - 1
    if seed % VERIFIED_EVERY == VERIFIED_EVERY - 1 and not is_rare:
        population, rounds = _verified(streams("draw/verified"), streams("draw/ball"), population, rounds)
    elif population.rows > 1 and streams("draw/local").random() < 0.2:
        rounds = msgspec.structs.replace(rounds, kind=NODE_RELEASE, rows_max=max(1, rounds.rows_max))
    is_open = rounds.is_summed and not rounds.verified
    if is_open and streams("draw/reports").random() < (0.6 if population.dimension > _DIMENSION_MAX else 0.2):
        population, rounds = _reports(streams("draw/reports"), population, rounds)
    rounds, combined = together(streams("draw/together"), population, rounds)
    rounds, limits = _trust(
        streams("draw/trust"), population, rounds, _limits(streams("draw/limits"), population, rounds)
    )
    if population.computes > 2 and streams("draw/colluding").random() < 0.6:  # else all nodes but one may be corrupt
        colluding = streams("draw/p").randint(1, population.computes - 2)
        population = msgspec.structs.replace(population, colluding=colluding)
    apart = _apart(streams("draw/apart"), population, rounds)
    met = {fault.kind for fault in combined if FAULTS[fault.kind].once}
    usual = [one for one in _faults(streams("draw/faults"), population, rounds) if one.kind not in met]
    faults = (*usual, *combined, *apart)
    has_policy = any(fault.kind == "policy" for fault in apart)
    if rounds.kind == NODE_RELEASE and not has_policy and streams("draw/owners").random() < 0.3:
        faults += (Fault(kind="policy", actor="clients", amount=streams("draw/owners of").choice([0.3, 1.0])),)
    adversaries = (
        *_adversaries(streams("draw/adversaries"), population, rounds),
        *_hostile_trainer(streams("draw/trainer")),
    )
    adversaries += _insider(streams("draw/insider"), population, rounds, adversaries)
    broker, network = _broker(streams("draw/broker")), _network(streams("draw/network"), population)
    heals, usual_ms = streams("draw/heal"), Timing().epoch_ms
    heal_ms = 0 if heals.random() < 0.6 else heals.randrange(1_000, rounds.end_ms)  # 0: when all rounds are over
    simple = _simple(streams("draw/alone").random(), streams, population, rounds)
    if is_rare:
        simple = _attacked(rare(streams("draw/rare"), population, rounds, seed // RARE_EVERY), rounds)
    if rounds.verified and streams("draw/false proofs").random() < 0.7:
        simple = _falsely_proven(streams("draw/proofs"), population, rounds)
    if simple is not None:
        rounds, faults, adversaries = simple.rounds, simple.faults, simple.adversaries
        limits, broker, network, heal_ms = simple.limits, BrokerLimits(), LinkOptions(), 0
    faults += _backups(streams("draw/backups"), population, rounds)
    leaps = any(FAULTS[fault.kind].amount == EPOCHS for fault in faults)
    broker, network = _for_messages(broker, network, population, rounds, faults)
    scenario = Scenario(
        seed=seed,
        heal_ms=heal_ms,
        epoch_ms=EPOCH_MS_MIN if leaps else streams("draw/epoch").choice([usual_ms, usual_ms, EPOCH_MS_MIN]),
        population=population,
        rounds=rounds,
        limits=limits,
        network=network,
        broker=broker,
        faults=faults,
        adversaries=adversaries,
    )
    from_plain(to_plain(scenario), f"the scenario of seed {seed}")  # refuses a scenario that cannot be
    return scenario


class _Simple(NamedTuple):
    """A trial in which little goes wrong at once, on a usual network, with wide limits."""

    rounds: Rounds
    faults: tuple[Fault, ...] = ()
    adversaries: tuple[Adversary, ...] = ()
    limits: ActorLimits = ActorLimits(epsilon_per_period_max=100.0)


def _simple(draw: float, streams: Streams, population: Population, rounds: Rounds) -> _Simple | None:
    """In every second trial, replace all that goes wrong: by misstatements, an attack on one check, or mild faults."""
    if draw < 0.12:
        return _misstated(streams("draw/misstated"), population, rounds)
    if draw < 0.34 or 0.42 <= draw < 0.5:
        return _attacked((aimed if draw < 0.34 else reaching)(streams("draw/aimed"), population, rounds), rounds)
    if draw < 0.42:
        return _mild(streams("draw/mild"), population, rounds)
    return None


def _attacked(attack: Aimed, rounds: Rounds) -> _Simple:
    """Return a trial in which nothing but this attack goes wrong."""
    changed = msgspec.structs.replace(rounds, **attack.rounds)
    limits = ActorLimits(epsilon_per_period_max=100.0, **attack.limits)
    return _Simple(changed, attack.faults, attack.adversaries, limits)


def _population(stream: random.Random) -> Population:
    return Population(
        clients=stream.randint(*stream.choices([(3, 8), (9, 20), (21, 60)], weights=[60, 30, 10])[0]),
        computes=stream.choices([2, 3, 4, 5, 6], weights=[30, 35, 15, 10, 10])[0],
        statistic=stream.choices(["sum", "mean", "second-moments", "histogram"], weights=[6, 2, 1, 1])[0],
        dimension=stream.randint(1, _DIMENSION_MAX),
        rows=stream.randint(1, 3),
    )


def _wide(stream: random.Random, population: Population) -> Population:
    """In one trial of fourteen, give a small population a histogram so wide that the far tails of noise are seen."""
    if stream.random() >= 0.07:
        return population
    clients, width = min(population.clients, _WIDE_CLIENTS), stream.randint(*_WIDE)
    return msgspec.structs.replace(population, clients=clients, statistic="histogram", dimension=width)


def _rounds(stream: random.Random, population: Population) -> Rounds:
    largest = population.clients - 2
    tolerate = min(largest, stream.choice([0, 1, 1, population.clients // 4, population.clients // 3, largest]))
    windows = [stream.randrange(8_000, 40_000, 500) for _ in range(2)]
    colluders = stream.choice([0, 0, 0, tolerate // 2, tolerate])
    batch = stream.randint(colluders + 3, population.clients - 1) if colluders + 3 < population.clients else 0
    return Rounds(
        count=stream.choices([1, 2, 3], weights=[5, 4, 2])[0],
        first_ms=stream.choice([0, 1_000, 3_000]),
        every_ms=stream.choice([0, 2_000, 15_000, 40_000]),
        tolerate=tolerate,
        colluders=colluders,
        batch=batch if stream.random() < 0.25 else 0,
        epsilon=stream.choice([0.5, 1.0, 2.0]),
        delta=stream.choice([1e-5, 1e-6]),
        counted=stream.random() < 0.7,
        fraction_bits=stream.choice([16, 20, 24]),
        rows_max=stream.choice([0, 1, 3]),
        collect_s=windows[0] / 1000,
        commit_s=windows[1] / 1000,
    )


def _reports(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Population, Rounds]:
    """Turn the rounds into LDP reports. A categorical mechanism gets a histogram and reports of one row."""
    mechanism, bins = stream.choice(LOCAL_MECHANISMS), stream.randint(2, _DIMENSION_MAX)
    rounds = msgspec.structs.replace(rounds, kind=LDP_REPORT, mechanism=mechanism)
    if mechanism not in CATEGORICAL:
        return population, rounds
    width = population.dimension if population.dimension > _DIMENSION_MAX else bins
    population = msgspec.structs.replace(population, statistic="histogram", dimension=width)
    rounds = msgspec.structs.replace(rounds, rows_max=1)
    if mechanism == RANDOMISED_RESPONSE:  # a report is one number: many are needed to judge their shape
        population = msgspec.structs.replace(population, clients=stream.randint(*_MANY_CLIENTS))
        tolerate = min(rounds.tolerate, population.clients - 2)
        colluders = min(rounds.colluders, tolerate)
        rounds = msgspec.structs.replace(rounds, count=4, batch=0, tolerate=tolerate, colluders=colluders)
    return population, rounds


def _verified(
    stream: random.Random, ball: random.Random, population: Population, rounds: Rounds
) -> tuple[Population, Rounds]:
    """Turn the rounds into verified sums, often of rows in a ball, and make the population small."""
    statistic, clients = stream.choice(["sum", "mean", "histogram", "histogram"]), min(population.clients, 12)
    rows_max = stream.choice([1, 3]) if statistic == "histogram" else rounds.rows_max
    small = msgspec.structs.replace(
        population,
        clients=clients,
        computes=min(population.computes, 4),
        statistic=statistic,
        dimension=stream.randint(2 if statistic == "histogram" else 1, 4),
    )
    if statistic != "histogram" and small.dimension > 1 and ball.random() < 0.8:
        small = msgspec.structs.replace(small, radius=1.0)
    tolerate = min(rounds.tolerate, clients - 2)
    colluders = min(rounds.colluders, tolerate)
    batch = rounds.batch if colluders + 3 <= rounds.batch < clients else 0
    terms = {"tolerate": tolerate, "colluders": colluders, "batch": batch, "rows_max": rows_max}
    return small, msgspec.structs.replace(rounds, verified=True, **terms)


def _limits(stream: random.Random, population: Population, rounds: Rounds) -> ActorLimits:
    """Usually wide limits; sometimes a budget for one or two rounds, or floors within 1 of n_min."""
    tight, floors = stream.random() < 0.15, stream.random() < 0.15
    n_min = population.clients - rounds.tolerate + rounds.colluders
    least = n_min + stream.choice([-1, 0, 0, 1]) if floors else 1
    return ActorLimits(
        epsilon_per_period_max=rounds.epsilon * stream.choice([1.2, 1.5, 2.0]) if tight else 100.0,
        account_epsilon=rounds.epsilon * stream.choice([1.2, 2.0, 40.0]) if stream.random() < 0.2 else 0.0,
        clients_min=max(1, least),
        floor_clients_min=max(1, least if stream.random() < 0.5 else 1),
    )


def _rate(bytes_s: float, population: Population) -> float:
    """Return a bandwidth at which wide messages take about as long as usual ones."""
    return bytes_s * (1 + population.dimension // 64)


def _network(stream: random.Random, population: Population) -> LinkOptions:
    return LinkOptions(
        delay_ms=stream.choice([1.0, 20.0, 20.0, 100.0, 500.0]),
        jitter_ms=stream.choice([0.0, 10.0, 50.0, 500.0]),
        bandwidth_bytes_s=_rate(stream.choice([0.0, 0.0, 0.0, 20_000.0]), population),
        loss=stream.choice([0.0, 0.0, 0.01, 0.1, 0.3]),
        duplicate=stream.choice([0.02, 0.02, 0.2]),
        reorder=stream.choice([0.05, 0.05, 0.4]),
        reorder_ms=stream.choice([200.0, 200.0, 3_000.0]),
    )


def _broker(stream: random.Random) -> BrokerLimits:
    return BrokerLimits(
        queue_messages_max=stream.choice([1_000, 1_000, 100]),
        part_bytes_max=stream.choice([1 << 16, 1 << 16, 1_024]),
        persistent_sessions=stream.random() < 0.8,
        inflight_max=stream.choice([20, 20, 1]),
    )


def _for_messages(
    broker: BrokerLimits, network: LinkOptions, population: Population, rounds: Rounds, faults: tuple[Fault, ...]
) -> tuple[BrokerLimits, LinkOptions]:
    """Let most messages have parts if these are mixed. Proofs have tens of kilobytes: they need a wider network.

    Parts of wide messages are larger: hundreds of parts of each would take longer than a round, with all resends.
    """
    if rounds.verified:
        usual = BrokerLimits()
        broker = msgspec.structs.replace(broker, part_bytes_max=usual.part_bytes_max, inflight_max=usual.inflight_max)
        return broker, msgspec.structs.replace(network, bandwidth_bytes_s=_PROOF * network.bandwidth_bytes_s)
    if any(fault.kind == "mix-parts" for fault in faults):
        has_files = any(FAULTS[fault.kind].at_all for fault in faults)  # a file is retained, so it fits one part
        part_bytes = (700 if has_files else 300) * (1 + population.dimension // 64)
        broker = msgspec.structs.replace(broker, part_bytes_max=min(part_bytes, BrokerLimits().part_bytes_max))
    return broker, network


def _faults(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Fault, ...]:
    drawn: list[Fault] = []
    for _ in range(stream.choices(range(7), weights=[5, 10, 20, 25, 20, 12, 8])[0]):
        relays = rounds.batch and stream.random() < 0.1  # only batches send invitations to relay
        usual = [name for name, kind in FAULTS.items() if not kind.weight]
        fault = _fault(stream, "relay" if relays else stream.choice(usual), population, rounds)
        if not (FAULTS[fault.kind].once and any(earlier.kind == fault.kind for earlier in drawn)):
            drawn.append(fault)
    return tuple(drawn)


def _apart(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Fault, ...]:
    """In every second trial, draw one or two of the faults of owners, files, neighbours and wrong clocks."""
    if stream.random() >= 0.5:
        return ()
    kinds = {name: kind.weight for name, kind in FAULTS.items() if kind.weight and name != _BACKUP}
    names = stream.choices(list(kinds), weights=list(kinds.values()), k=stream.choice([1, 1, 2]))
    drawn = [_fault(stream, name, population, rounds) for name in dict.fromkeys(names)]
    drawn = [msgspec.structs.replace(one, phase="") if stream.random() < 0.5 else one for one in drawn]
    return tuple(fault for one in drawn for fault in _for_groups(stream, one))


def _backups(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Fault, ...]:
    """In one trial of ten, a client's store is lost and made anew from a backup."""
    return (_fault(stream, _BACKUP, population, rounds),) if stream.random() < 0.1 else ()


def _for_groups(stream: random.Random, fault: Fault) -> list[Fault]:
    """Sometimes let a fault of one actor strike groups: the policies of all clients, the clocks of several roles."""
    if stream.random() < 0.5:
        return [fault]
    if fault.kind == "policy":
        return [msgspec.structs.replace(fault, actor="clients")]
    if FAULTS[fault.kind].amount == EPOCHS:
        fault = msgspec.structs.replace(fault, at_ms=stream.choice([0, fault.at_ms]))
        groups = stream.choice(
            [("computes",), ("computes", "trainer"), ("computes", "clients", "trainer"), ("clients",)]
        )
        together = [msgspec.structs.replace(fault, actor=actor) for actor in groups]
        if groups == ("computes",):  # a trainer that forgets the newest epochs takes older keys
            return [*together, Fault(kind="crash", actor="trainer", at_ms=fault.at_ms + 1_000, for_ms=500)]
        return together
    return [fault]


def _trust(
    stream: random.Random, population: Population, rounds: Rounds, limits: ActorLimits
) -> tuple[Rounds, ActorLimits]:
    """Draw which Compute nodes rounds use and policies require, how many honest clients, and how long charges count."""
    if rounds.is_summed and population.computes > 2 and stream.random() < 0.15:
        rounds = msgspec.structs.replace(rounds, computes=population.computes - 1)
        limits = msgspec.structs.replace(limits, trusted=stream.choice([0, 1, 2, population.computes - 1]))
    if stream.random() < 0.1:
        honest = population.clients - rounds.tolerate - 1 + stream.choice([0, 1])
        limits = msgspec.structs.replace(limits, honest_min=max(1, honest))
    if stream.random() < 0.2:
        limits = msgspec.structs.replace(limits, period_days=0.01)
        if rounds.count > 1:
            limits = msgspec.structs.replace(limits, epsilon_per_period_max=rounds.epsilon * 1.3)
            if stream.random() < 0.5:  # the third of three comes after the first one's period, which is 864 s
                rounds = msgspec.structs.replace(rounds, every_ms=500_000)
    return rounds, limits


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
        for_ms=0 if name in ("relay", "floors", "policy") else stream.choice(kind.lasts_ms),
        phase=stream.choice(["", *phases]) if phases else "",
        amount=_amount(stream, kind, population),
    )


def _amount(stream: random.Random, kind: FaultKind, population: Population) -> float:
    if kind.amount not in _SIZES:
        return 0.0
    amount = stream.choice(_SIZES[kind.amount])
    return min(kind.amounts[1], _rate(amount, population) if kind.amount == _BANDWIDTH else amount)


def _actor(stream: random.Random, role: str, population: Population) -> str:
    count = {"client": population.clients, "compute": population.computes}.get(role)
    return role if count is None else f"{role} {stream.randrange(count)}"


def _adversaries(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Adversary, ...]:
    """Draw one or two adversaries in half of the trials; at most one is a Compute node, and only in secure sums."""
    if stream.random() < 0.5:
        return ()
    drawn: dict[str, Adversary] = {}
    for _ in range(stream.randint(1, 2)):
        role = "compute" if rounds.is_summed and stream.random() < 0.6 else "client"
        kind = stream.choice([name for name, kind in HOSTILE.items() if kind.role == role and _is_usual(kind)])
        actor = f"stranger {len(drawn)}" if HOSTILE[kind].is_stranger else _actor(stream, role, population)
        is_second_node = role == "compute" and any(earlier.startswith(role) for earlier in drawn)
        if actor in drawn or is_second_node:
            continue
        dropped = max(1, rounds.tolerate - rounds.colluders) + stream.choice([0, 0, 1])
        drawn[actor] = Adversary(kind=kind, actor=actor, amount=dropped if kind == "drop-clients" else 0)
    return tuple(drawn.values())


def _is_usual(kind: AdversaryKind) -> bool:
    return not (kind.is_insider or kind.needs_proofs or kind.is_directed)


def _hostile_trainer(stream: random.Random) -> tuple[Adversary, ...]:
    """Draw a hostile trainer in one trial of five."""
    if stream.random() >= 0.2:
        return ()
    kind = stream.choice([name for name, kind in HOSTILE.items() if kind.role == "trainer" and _is_usual(kind)])
    after_ms = stream.choice([50, 500, 3_000]) if HOSTILE[kind].amounts[1] else 0
    return (Adversary(kind=kind, actor="trainer", amount=after_ms),)


def _misstated(stream: random.Random, population: Population, rounds: Rounds) -> _Simple:
    """Draw more rounds with nothing wrong but one member that misstates another field in each."""
    kind, role = ("misstate-node", "compute") if rounds.is_summed else ("misstate-client", "client")
    more = msgspec.structs.replace(rounds, count=6, every_ms=5_000, computes=0)
    return _Simple(more, adversaries=(Adversary(kind=kind, actor=_actor(stream, role, population)),))


def _falsely_proven(stream: random.Random, population: Population, rounds: Rounds) -> _Simple:
    """Draw more verified sums with nothing wrong but a client that proves what is not true, and often a lying node.

    A vote in every bin of a histogram is judged where no node lies.
    """
    terms = {"tolerate": max(1, rounds.tolerate), "colluders": 0, "batch": 0, "computes": 0, "counted": True}
    more = msgspec.structs.replace(rounds, count=8, every_ms=5_000, **terms)
    liars = [Adversary(kind="false-proof", actor=_actor(stream, "client", population))]
    if stream.random() < (0.3 if population.statistic == "histogram" else 0.9):
        liars.append(Adversary(kind="misstate-node", actor=_actor(stream, "compute", population)))
    return _Simple(more, adversaries=tuple(liars))


def _mild(stream: random.Random, population: Population, rounds: Rounds) -> _Simple:
    """Draw rounds with time for resends, and at most two faults in spite of which they must complete."""
    windows = {"collect_s": 40.0, "commit_s": 40.0}
    tolerate = max(rounds.tolerate, min(2, population.clients - 2))
    calm = msgspec.structs.replace(rounds, first_ms=3_000, every_ms=15_000, tolerate=tolerate, computes=0, **windows)
    kinds = [name for name, kind in FAULTS.items() if kind.promise != "beyond" and kind.amount != EPOCHS]
    drawn = [_fault(stream, stream.choice(kinds), population, calm) for _ in range(stream.choice([0, 1, 1, 2]))]
    brief = [msgspec.structs.replace(one, for_ms=min(one.for_ms or 3_000, 3_000)) for one in drawn]
    return _Simple(calm, tuple({one.kind: one for one in brief}.values()))


def _insider(
    stream: random.Random, population: Population, rounds: Rounds, others: tuple[Adversary, ...]
) -> tuple[Adversary, ...]:
    """Add an insider to three in five trials with adversaries; at most one Compute node and one trainer is hostile."""
    if not others or stream.random() >= 0.6:
        return ()
    roles = {HOSTILE[one.kind].role for one in others}
    taken = {role for role in roles if role != "client"} | ({"compute"} if not rounds.is_summed else set())
    kinds = [name for name, kind in HOSTILE.items() if kind.is_insider and kind.role not in taken]
    kind = stream.choice(kinds)
    actor = _actor(stream, HOSTILE[kind].role, population)
    crowded = len(others) >= population.clients - 1  # somebody keeps to the protocol
    taken_actor = any(one.actor == actor for one in others)
    return () if crowded or taken_actor else (Adversary(kind=kind, actor=actor),)
