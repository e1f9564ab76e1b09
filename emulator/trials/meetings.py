"""Faults and adversaries that rarely meet by chance, but reach further states together: random scenarios add some.

`together` draws faults that meet others. `aimed` draws attacks on one check each, which no other fault should disturb.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from dca_proto.protocol.wire.kinds import LDP_REPORT, NODE_RELEASE, SECURE_SUM
from emulator.trials.fault import PHASES
from emulator.trials.scenario import EPOCH_MS_MIN, Adversary, Changes, Fault, Population, Rounds

_LEAP_MS = 2.5 * EPOCH_MS_MIN


def together(stream: random.Random, population: Population, rounds: Rounds) -> tuple[Rounds, tuple[Fault, ...]]:
    """In one trial of three, draw faults that meet."""
    if stream.random() >= 0.35:
        return rounds, ()
    at_ms, client = rounds.first_ms, _client(stream, population)
    meetings: dict[str, tuple[Changes, tuple[Fault, ...]]] = {
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
                Fault(kind="congested", actor="clients", amount=rounds.collect_ms // 3),
                Fault(kind="clock-behind", actor="trainer", amount=3_000),
                Fault(kind="lossy", actor="trainer", amount=0.1),
                Fault(kind="vanish-before-sending", actor=client),
                Fault(kind="replay", actor="computes", at_ms=at_ms + rounds.collect_ms + 1_500, amount=60),
            ),
        ),
        # An epoch ends between the announcement and the lists, since contributions arrive only after it.
        "turning": (
            {},
            (
                Fault(kind="epoch-turn", actor="broker", at_ms=at_ms + 2_500),
                Fault(kind="partition-up", actor="clients", at_ms=at_ms + 200, for_ms=5_000),
            ),
        ),
        # No client's message arrives until the round is over.
        "unheard": ({}, (Fault(kind="partition-up", actor="clients", at_ms=at_ms, for_ms=rounds.longest_ms + 1_000),)),
        # Policies forbid the rounds, each in another limit.
        "unwilling": ({}, (Fault(kind="policy", actor="clients", amount=0.8),)),
        # Nobody has data.
        "empty": ({}, (Fault(kind="data-fail", actor="clients"), Fault(kind="lossy", actor="clients", amount=0.2))),
        # All running clients decline, which is the number expected; another comes later with a new certificate.
        "uncertified": (
            {"counted": True, "clients": 1, "batch": 0},
            (
                Fault(kind="crash", actor=client),
                Fault(kind="certificate-ends", actor="clients", at_ms=at_ms + 5_000, for_ms=1_000),
            ),
        ),
    }
    names = {
        SECURE_SUM: ("late", "restored", "turning", "late", "restored", "turning", "unwilling"),
        NODE_RELEASE: ("unheard", "empty", "uncertified", "empty", "unwilling", "unwilling"),
        LDP_REPORT: ("unheard", "empty", "uncertified", "unwilling"),
    }[rounds.kind]
    changes, faults = meetings[stream.choice(names)]
    return msgspec.structs.replace(rounds, **changes), faults


class Aimed(msgspec.Struct, frozen=True):
    """An attack on one check: changes of the rounds and of the limits, and all that goes wrong in the trial."""

    rounds: Changes = {}
    faults: tuple[Fault, ...] = ()
    adversaries: tuple[Adversary, ...] = ()
    limits: Changes = {}


Aim = Callable[[random.Random, Population, Rounds], Aimed]


def aimed(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Draw an attack that fits the kind of rounds."""
    return stream.choice(_ON_SUMS if rounds.is_summed else _ON_RELEASES)(stream, population, rounds)


def reaching(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Draw what reaches states and refusals of actors that are rare otherwise."""
    return stream.choice(_REACHING if rounds.is_summed else (_announced_wrongly,))(stream, population, rounds)


def rare(stream: random.Random, population: Population, rounds: Rounds, number: int) -> Aimed:
    """Return what reaches one of the states and refusals that chance misses: `number` says which, in turn."""
    aim = _RARE[number % len(_RARE)] if rounds.is_summed else _repeated
    return aim(stream, population, rounds)


def _client(stream: random.Random, population: Population) -> str:
    return f"client {stream.randrange(population.clients)}"


def _false_receipts(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """The broker answers contributions instead of the nodes, which never get them."""
    return Aimed({}, (Fault(kind="false-receipts", actor="clients", for_ms=rounds.first_ms + 12_000),))


def _forged(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Many forged messages come, also for clients that have not answered yet, and before keys are known."""
    at_ms = rounds.first_ms
    slow = Fault(kind="congested", actor="clients", at_ms=at_ms, for_ms=5_000, amount=2_000)
    forgeries = [Fault(kind="forge", actor="broker", at_ms=ms, amount=60) for ms in (100, at_ms + 300, at_ms + 1_500)]
    return Aimed({}, (slow, *forgeries))


def _withheld(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A newer federation file reaches one server, and nobody else."""
    withheld = Fault(kind="withhold-files", actor="broker", at_ms=rounds.first_ms, for_ms=20_000)
    return Aimed({"count": 2, "every_ms": 15_000}, (withheld,))


def _called_old(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A holder calls charges old, again after its clients have heard that they are too late."""
    node = f"compute {stream.randrange(population.computes)}"
    over_ms = rounds.first_ms + 9_000
    again = [Fault(kind="replay", actor=node, at_ms=over_ms + ms, amount=60) for ms in (0, 4_000, 8_000)]
    changes = {"count": 1, "batch": 0, "tolerate": max(1, population.clients // 2), "colluders": 0}
    return Aimed(
        {**changes, "collect_s": 8.0, "commit_s": 30.0},
        tuple(again),
        (Adversary(kind="call-old", actor=node, amount=population.clients),),
    )


def _killed(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A Compute node is killed before it stores a phase."""
    node = f"compute {stream.randrange(population.computes)}"
    phase = stream.choice(PHASES["compute"][:4])
    return Aimed({"count": 2, "every_ms": 10_000}, (Fault(kind="kill-before", actor=node, phase=phase, for_ms=3_000),))


def _unheard_sums(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """The trainer hears no sum until it has failed the round, and then all. A Compute node is killed meanwhile."""
    at_ms, window_s = rounds.first_ms, 8.0
    killed = _killed(stream, population, rounds).faults
    cut = Fault(kind="partition-down", actor="trainer", at_ms=at_ms + 1_000, for_ms=int(3_000 * window_s) + 15_000)
    changes = {"count": 2, "every_ms": 50_000, "batch": 0, "collect_s": window_s, "commit_s": window_s}
    return Aimed({**changes, "counted": True}, (*killed, cut))


def _announced(kind: str) -> Aim:
    """Many rounds of a trainer that announces, closes or cancels wrongly."""

    def aim(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
        return Aimed({"count": 8, "every_ms": 3_000}, (), (Adversary(kind=kind, actor="trainer"),))

    return aim


def _repeated(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Nobody has data, so the round fails with all releases in; some come again."""
    at_ms = rounds.first_ms
    again = [Fault(kind="replay", actor="clients", at_ms=at_ms + ms, amount=60) for ms in (1_000, 3_000)]
    changes = {"kind": NODE_RELEASE, "rows_max": max(1, rounds.rows_max), "computes": 0, "batch": 0, "counted": True}
    mechanism = {} if rounds.kind == NODE_RELEASE else {"mechanism": Rounds().mechanism}
    empty = (Fault(kind="data-fail", actor="clients"), Fault(kind="lossy", actor="clients", amount=0.2))
    return Aimed({**changes, **mechanism}, (*empty, *again))


def _displaced(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Clients start again with keys of a new epoch, and join a round of the old one, in which a round came before."""
    again_ms = rounds.first_ms + 15_000
    return Aimed(
        {"count": 2, "every_ms": 15_000, "collect_s": 30.0, "commit_s": 20.0},
        (
            Fault(kind="crash", actor="clients", at_ms=again_ms - 500, for_ms=4_000),
            Fault(kind="epoch-turn", actor="broker", at_ms=again_ms + 2_000),
        ),
    )


def _leaping(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """All clocks of a round are epochs ahead, and are set back later."""
    actors = ("computes", "clients", "trainer")
    return Aimed({}, tuple(Fault(kind="clock-leap", actor=actor, amount=_LEAP_MS) for actor in actors))


def _set_back(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Nodes' clocks are set back while the same clients and peers go on asking."""
    at_ms = rounds.first_ms
    return Aimed(
        {"collect_s": 40.0, "commit_s": 40.0},
        (
            Fault(kind="clock-ahead", actor="computes", at_ms=at_ms, for_ms=3_500, amount=20_000),
            Fault(kind="replay", actor="clients", at_ms=at_ms + 1_000, amount=40),
            Fault(kind="replay", actor="clients", at_ms=at_ms + 4_000, amount=40),
        ),
    )


def _overstaying(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A client's certificate ends before the lists, which others hold up."""
    hostile, *absent = stream.sample(range(population.clients), k=3)
    away = tuple(Fault(kind="crash", actor=f"client {one}", for_ms=rounds.first_ms + 6_000) for one in absent)
    return Aimed(
        {"tolerate": 1, "colluders": 0, "batch": 0, "collect_s": 24.0},
        away,
        (Adversary(kind="overstay", actor=f"client {hostile}"),),
    )


def _old_keys(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A trainer goes back to the keys of the epoch before, after rounds with newer ones."""
    turn_ms = rounds.first_ms + 6_000
    return Aimed(
        {"count": 4, "every_ms": 12_000, "collect_s": 8.0, "commit_s": 8.0},
        (Fault(kind="epoch-turn", actor="broker", at_ms=turn_ms),),
        (Adversary(kind="old-keys", actor="trainer"),),
    )


def _greedy(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A trainer announces more than policies and floors allow, which are at what was asked for."""
    fewest = population.clients - rounds.tolerate + rounds.colluders if rounds.is_summed else 1
    return Aimed(
        {"count": 5, "every_ms": 4_000, "batch": 0, "counted": True},
        (),
        (Adversary(kind="ask-too-much", actor="trainer"),),
        {"clients_min": fewest, "floor_clients_min": fewest if stream.random() < 0.5 else 1},
    )


def _announced_wrongly(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A trainer announces rounds that nobody may join, two rounds under one id, or too many."""
    kinds = ["announce-wrongly", "announce-wrongly", "announce-twice", "two-announcements"]
    kind = stream.choice([*kinds, *(["two-halves", "many-rounds", "close-early"] if rounds.is_summed else [])])
    return Aimed({"count": 8, "every_ms": 3_000}, (), (Adversary(kind=kind, actor="trainer"),))


def _uninvited(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Somebody takes part who is not enrolled, or at the wrong node."""
    kind, actor = stream.choice([("stranger", "stranger 0"), ("wrong-holder", _client(stream, population))])
    return Aimed({"count": 2, "every_ms": 5_000}, (), (Adversary(kind=kind, actor=actor),))


def _lying(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A Compute node lies about its clients, its answer or its sum."""
    lies = ["call-old", "list-others", "equivocate", "withhold-answer", "alter-sum", "withhold-sum", "abort-late"]
    liar = Adversary(kind=stream.choice(lies), actor=f"compute {stream.randrange(population.computes)}")
    return Aimed({"count": 3, "every_ms": 5_000}, (), (liar,))


def _mixed(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Parts of some messages carry pieces of others."""
    actor = stream.choice(["trainer", "clients"])
    return Aimed({"count": 2, "every_ms": 5_000}, (Fault(kind="mix-parts", actor=actor, for_ms=8_000, amount=0.3),))


def _late_abort(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A Compute node signs an abort after its release, of a sum without a client to which one node objects."""
    liar = Adversary(kind="abort-late", actor=f"compute {stream.randrange(population.computes)}")
    excluded = Adversary(kind="wrong-tags", actor=_client(stream, population))
    changes = {"count": 2, "every_ms": 5_000, "tolerate": max(1, rounds.tolerate), "colluders": 0, "batch": 0}
    return Aimed(changes, (), (liar, excluded))


def _unclosed(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """The trainer, whose clock is behind, hears of no contribution; it gets sums before it closes, some twice.

    All Compute nodes start again while they collect, so only what they keep of the round can close it in time.
    """
    cut = Fault(kind="overflow", actor="trainer", at_ms=rounds.first_ms + 100, for_ms=11_000, amount=1)
    behind, twice = Fault(kind="clock-behind", actor="trainer", amount=10_000), Fault(kind="lossy", actor="computes")
    again = Fault(kind="crash", actor="computes", at_ms=rounds.first_ms + 5_000, for_ms=1_500)
    return Aimed({"count": 1, "counted": True, "batch": 0, "collect_s": 20.0}, (cut, behind, twice, again))


def _odd_client(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A client sends what no client may in a secure sum."""
    odd = Adversary(kind="misstate-client", actor=_client(stream, population))
    return Aimed({"count": 3, "every_ms": 5_000}, (), (odd,))


def _unwilling(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """Each client's policy forbids the rounds in another limit."""
    return Aimed({}, (Fault(kind="policy", actor="clients", amount=1.0),))


def _restored(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A client with an old copy of its store pays again with used numbers, and takes part in rounds of its ledger."""
    back = Fault(kind="restore", actor=_client(stream, population), at_ms=rounds.first_ms, for_ms=7_000)
    return Aimed({"count": 4, "every_ms": 5_000, "batch": 0}, (back,))


def _keyless(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A Compute node is away from the start, and has no key and no count of sessions for the trainer."""
    node = f"compute {stream.randrange(population.computes)}"
    return Aimed({"counted": False}, (Fault(kind="crash", actor=node, for_ms=rounds.end_ms),))


def _revoked(stream: random.Random, population: Population, rounds: Rounds) -> Aimed:
    """A client is revoked. It knows that in the next round; or it does not, and comes back with a new key."""
    client, at_ms = _client(stream, population), rounds.first_ms + 4_000
    gone = Fault(kind="revoke", actor=client, at_ms=at_ms)
    unknowing = (
        Fault(kind="partition-down", actor=client, at_ms=at_ms - 500, for_ms=60_000),
        Fault(kind="epoch-turn", actor="broker", at_ms=at_ms + 6_000),
    )
    more = unknowing if stream.random() < 0.5 else ()
    return Aimed({"count": 3, "every_ms": 12_000, "batch": 0}, (gone, *more))


_ON_SUMS: tuple[Aim, ...] = (
    *(_false_receipts, _displaced, _leaping, _set_back, _overstaying, _old_keys) * 2,  # nothing else reaches these
    *(_forged, _greedy, _announced_wrongly, _uninvited, _lying, _unwilling, _restored, _keyless, _revoked, _mixed),
)
_ON_RELEASES: tuple[Aim, ...] = (_forged, _greedy, _announced_wrongly, _unwilling, _revoked, _mixed)
_TURN: tuple[Aim, ...] = (
    *(_withheld, _called_old, _announced("announce-wrongly"), _old_keys, _announced("close-early"), _repeated),
    _announced("two-halves"),
)
_RARE: tuple[Aim, ...] = (*_TURN, _killed, *_TURN, _killed, *_TURN, _unheard_sums)
_REACHING: tuple[Aim, ...] = (_late_abort, _unclosed, _odd_client, _restored)
