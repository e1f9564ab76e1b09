"""What came of a trial, as the command line prints it, the report reads it, and a sweep counts it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.facts import RoundCompleted
from emulator.sim.trace import Entry
from emulator.trials.scenario import to_plain
from emulator.trials.world import RoundLog, TrialWorld

FACTS_SHOWN = 40
_ROUND = re.compile(r"\bround ([0-9a-f]{8})\b")


class RoundOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one round ended. Times are milliseconds since the scenario's start.

    Attributes:
        result: `completed`, `aborted`, `refused` (the trainer did not take it) or `open`. reason: of the last three.
        clients: N. contributors, needed: |S| and n_min. epsilon: of the announcement.
        noise_variance, noise_floor: in the sum, and of what privacy needs. Without Compute nodes, contributors are the
            data nodes that released, or the clients that reported, of which one is needed; the noise is that of each.
        phases: name -> (from, to), as far as the round came.
    """

    round_id: str
    result: str
    reason: str | None = None
    clients: int | None = None
    contributors: int | None = None
    needed: int | None = None
    epsilon: float | None = None
    noise_variance: float | None = None
    noise_floor: float | None = None
    phases: dict[str, tuple[int, int]] = {}


class FaultOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a fault. Times are milliseconds since the scenario's start."""

    kind: str
    actor: str
    role: str
    at_ms: int
    until_ms: int | None
    reached: bool
    phase: str


class InvariantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a checker found: how often it looked, and the first thing that was broken.

    `facts`: what was told before that, in words, of the round that it was in.
    """

    number: int
    name: str
    checked: int
    ok: bool
    detail: str | None = None
    facts: tuple[str, ...] = ()


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A client that was asked and is not in the result: since when it was away, or else when the round ended."""

    client: int
    at_ms: int
    phase: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a trial.

    Attributes:
        seed: of the scenario. digest: of the trace. result: `ok` or `broken`. live: whether all rounds ended in time,
            and one more came about. further: how that one went, or why none was due. why: what was not live.
        rounds, invariants, faults, drops: as in their types. spoils: what the scenario's adversaries may spoil, as
            documented in `hostile`. options: the scenario as plain data.
        transitions: the entries of the actors' tables that were taken.
        traffic: role -> messages and payload bytes that left it. last_facts: of the trace, in words.
        wall_s, virtual_s: how long it took, here and there.
    """

    seed: int
    digest: str
    result: str
    live: bool
    further: str
    why: tuple[str, ...]
    rounds: tuple[RoundOutcome, ...]
    invariants: tuple[InvariantOutcome, ...]
    faults: tuple[FaultOutcome, ...]
    drops: tuple[Drop, ...]
    spoils: tuple[str, ...]
    options: dict[str, Any]
    traffic: dict[str, dict[str, int]]
    last_facts: tuple[str, ...]
    wall_s: float
    virtual_s: float
    transitions: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything that was promised held."""
        return self.result == "ok"

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json` and for the report."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        outcome = {name: plain.pop(name) for name in ("result", "live", "further", "why", "rounds")}
        return {
            "kind": "emulation",
            "ok": self.ok,
            **plain,
            "outcome": outcome,
            "replay": f"dca emulate replay {self.seed}",
        }


def rounds_of(world: TrialWorld) -> tuple[RoundOutcome, ...]:
    """How each round ended."""
    return tuple(_round(world, log) for log in world.rounds)


def _round(world: TrialWorld, log: RoundLog) -> RoundOutcome:
    known: dict[str, Any] = {
        "round_id": log.id.hex(),
        "epsilon": log.request.epsilon,
        "phases": _phases(world, log),
        "clients": log.request.answers_expected or len(world.clients),
    }
    if log.refused:
        return RoundOutcome(result="refused", reason=log.refused, **known)
    if isinstance(log.ended, RoundCompleted):
        return RoundOutcome(result="completed", **known, **_noise(log.ended.aggregate))
    if log.ended is not None:
        fact = log.ended
        return RoundOutcome(
            result="aborted", reason=fact.reason, contributors=fact.contributors, needed=fact.needed, **known
        )
    open_at = world.open_at(log)
    return RoundOutcome(result="open" if open_at else "aborted", reason="; ".join(open_at) or "ended untold", **known)


def _noise(aggregate: NoisyAggregate) -> dict[str, Any]:
    if aggregate.nodes:
        own, floor = min(node.noise_variance for node in aggregate.nodes), aggregate.sigma_local**2
        return {"contributors": aggregate.clients, "needed": 1, "noise_variance": own, "noise_floor": floor}
    if aggregate.reports is not None:
        own = aggregate.noise_variance / aggregate.clients  # which is all that its privacy needs
        return {"contributors": aggregate.clients, "needed": 1, "noise_variance": own, "noise_floor": own}
    return {
        "contributors": aggregate.contributors,
        "needed": aggregate.fewest,
        "noise_variance": float(aggregate.noise_variance),
        "noise_floor": (aggregate.fewest - 1 - aggregate.colluders) * aggregate.sigma_local**2,
    }


def _phases(world: TrialWorld, log: RoundLog) -> dict[str, tuple[int, int]]:
    """When each phase began and ended, as far as it came; from one mark to the next."""
    marks = (("collect", log.announced_ms), ("commit", log.closed_ms), ("end", log.ended_ms))
    start_ms = world.simulator.start_ms
    there = [(name, at_ms - start_ms) for name, at_ms in marks if at_ms is not None]
    return {name: (begins, max(begins, ends)) for (name, begins), (_, ends) in itertools.pairwise(there)}


def drops_of(world: TrialWorld) -> tuple[Drop, ...]:
    """Who was asked, and is not in the result."""
    drops = []
    for log in world.rounds:
        if not isinstance(log.ended, RoundCompleted):
            continue
        for client in set(log.request.invited or world.cast.clients).difference(log.contributors):
            at_ms = min(world.killed_ms.get(client, 1 << 60), log.ended_ms or 0) - world.simulator.start_ms
            drops.append(Drop(client=world.client_number(client), at_ms=at_ms, phase="collect"))
    drops.sort(key=lambda drop: (drop.at_ms, drop.client))
    return tuple(drops)


def faults_of(world: TrialWorld) -> tuple[FaultOutcome, ...]:
    """What became of each fault."""
    start_ms = world.simulator.start_ms
    return tuple(
        FaultOutcome(
            kind=one.kind,
            actor=one.actor,
            role=one.role,
            at_ms=fault.at_ms if one.at_ms is None else one.at_ms - start_ms,
            until_ms=None if one.until_ms is None else one.until_ms - start_ms,
            reached=one.reached,
            phase=one.phase,
        )
        for one, fault in zip(world.faults, world.scenario.faults, strict=True)
    )


def traffic_of(world: TrialWorld) -> dict[str, dict[str, int]]:
    """Whole messages and payload bytes that left each role."""
    traffic: dict[str, dict[str, int]] = {}
    for process in world.simulator.processes.values():
        total = traffic.setdefault(process.role.value, {"messages": 0, "bytes": 0})
        total["messages"] += process.traffic.messages_sent
        total["bytes"] += process.traffic.bytes_sent
    return traffic


def facts_of(world: TrialWorld) -> tuple[str, ...]:
    """The last facts in words: when, who, what."""
    return _told(world, world.simulator.trace.entries)


def evidence(world: TrialWorld, before: Iterable[Entry], detail: str) -> tuple[str, ...]:
    """Of the facts before a break, the last ones in words: those of its round, and what the emulator did; or all."""
    found = _ROUND.search(detail)
    if found is None:
        return _told(world, before)
    begins = bytes.fromhex(found[1])
    return _told(world, (entry for entry in before if getattr(entry.fact, "round_id", begins).startswith(begins)))


def _told(world: TrialWorld, entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(_in_words(world, entry) for entry in list(entries)[-FACTS_SHOWN:])


def _in_words(world: TrialWorld, entry: Entry) -> str:
    process = world.simulator.processes.get(entry.actor)
    after_s = (entry.at_ms - world.simulator.start_ms) / 1000
    who = world.name_of(process) if process is not None else "emulator"
    return f"{after_s:9.3f} s  {who:12} {entry.fact!r}"


def options_of(world: TrialWorld) -> dict[str, Any]:
    """The scenario as plain data."""
    return to_plain(world.scenario)
