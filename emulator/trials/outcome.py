"""The outcome of a trial, as a record. `--json` writes it, the terminal and the page show it, a sweep counts it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, TypedDict

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.results.figure import Amount, about
from dca_proto.results.round import Traffic
from dca_proto.wording import JsonObject
from emulator.shape import Shape
from emulator.sim.trace import TraceEntry
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.noise import NoiseChecker
from emulator.trials.fault import FaultOutcome
from emulator.trials.scenario import Changes, to_plain
from emulator.trials.world import TrialRound, TrialWorld

LIVENESS, LIVENESS_NAME = 0, "live after healing"
"""Replace the number and name of an invariant if a trial did not become live."""
UNREPORTED = "the round ended, but the trainer never reported how"
FACTS_SHOWN = 40
REASONS_MAX = 16
_ROUND = re.compile(r"\bround ([0-9a-f]{8})\b")


class RoundOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one round. Times are milliseconds since the scenario's start."""

    round_id: Annotated[str, about("In hexadecimal.")]
    result: Annotated[str, about("`completed`, `aborted`, `refused` (the trainer rejected the request) or `open`.")]
    reason: Annotated[str | None, about("Why it did not complete.")] = None
    clients: Annotated[int | None, about("N.")] = None
    contributors: Annotated[int | None, about("In the sum; without Compute nodes, releases or reports.")] = None
    needed: Annotated[int | None, about("The fewest that may be in it; 1 without Compute nodes.")] = None
    epsilon: Annotated[float | None, about("As announced.")] = None
    noise_variance: Annotated[
        float | None, about("Of the noise in the sum; without Compute nodes, in one release or report.")
    ] = None
    noise_floor: Annotated[float | None, about("The least that privacy needs.")] = None
    declined: Annotated[int, about("Number of clients that declined.")] = 0
    why_declined: Annotated[
        dict[str, int], about("Their reasons, the most frequent first, each with the number of clients.")
    ] = {}
    everybody_declined: Annotated[bool, about("Whether no invited client did anything else.")] = False
    phases: Annotated[
        dict[str, tuple[int, int]], about("From when to when, in ms, for each phase that the round reached.")
    ] = {}


class InvariantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a checker."""

    number: Annotated[int, about("Of the invariant.")]
    name: Annotated[str, about("Of the invariant.")]
    checked: Annotated[int, about("Number of facts checked.")]
    ok: Annotated[bool, about("Whether no fact broke it.")]
    detail: Annotated[str | None, about("The first that did.")] = None
    facts: Annotated[tuple[str, ...], about("The facts of that round before the break, as text.")] = ()


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A client that was invited but is not in the result. `at_ms`: when it was last killed; else the round's end."""

    client: Annotated[int, about("Its number.")]
    at_ms: Annotated[int, about("When it was last killed; else the round's end.", unit="ms")]
    phase: Annotated[str, about("The phase of the round then.")]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of a trial and its liveness."""

    result: Annotated[str, about("`ok` or `broken`.")]
    rounds: Annotated[tuple[RoundOutcome, ...], about("In order.")]
    live: Annotated[
        bool | None, about("Whether all rounds ended in time, and the further round completed if it was due.")
    ] = None
    further: Annotated[str | None, about("The outcome of the further round, or why none was due.")] = None
    why: Annotated[tuple[str, ...], about("The reasons if it is not live.")] = ()


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a trial."""

    ok: Annotated[bool, about("Whether all invariants held, and the trial became live.")]
    digest: Annotated[str, about("Of the trace.")]
    ended: Annotated[Ended, about("The rounds and the trial's liveness.")] = msgspec.field(name="outcome")
    invariants: Annotated[tuple[InvariantOutcome, ...], about("The result of each checker.")]
    seed: Annotated[int | str | None, about("Of the scenario.")] = None
    faults: Annotated[tuple[FaultOutcome, ...], about("As planned, and whether they happened.")] = ()
    drops: Annotated[tuple[Drop, ...], about("The clients that were invited but are not in a result.")] = ()
    spoils: Annotated[tuple[str, ...], about("What the scenario's adversaries may spoil.")] = ()
    options: Annotated[JsonObject, about("The scenario as plain data.")] = {}
    traffic: Annotated[dict[str, Traffic], about("Sent by each role.")] = {}
    last_facts: Annotated[tuple[str, ...], about("The end of the trace, as text.")] = ()
    wall_s: Annotated[Amount | None, about("Its duration in real time.", unit="s")] = None
    virtual_s: Annotated[Amount | None, about("Its duration in virtual time.", unit="s")] = None
    transitions: Annotated[tuple[str, ...], about("Entries of the actors' tables that were taken.")] = ()
    refusals: Annotated[tuple[str, ...], about("Places where an actor refused something.")] = ()
    replay: Annotated[str | None, about("The command that repeats the trial.")] = None
    shrunk: Annotated[JsonObject | None, about("A smaller scenario in which the same invariant breaks.")] = None
    shape: Annotated[Shape, about("Counts of all noise, which a sweep adds up; not in JSON.")] = msgspec.field(
        default_factory=Shape
    )
    kind: Annotated[str, about("The kind of run.")] = "emulation"

    @property
    def broken(self) -> dict[int, str]:
        """The details of each failure by the number of its invariant; `LIVENESS` if the trial did not become live."""
        failures = {invariant.number: invariant.detail or "" for invariant in self.invariants if not invariant.ok}
        return failures if self.ended.live else {**failures, LIVENESS: "; ".join(self.ended.why)}

    def facts_before(self, number: int) -> tuple[str, ...]:
        """Return the facts before that invariant broke; for `LIVENESS`, the last facts of the trial."""
        return next((invariant.facts for invariant in self.invariants if invariant.number == number), self.last_facts)

    def to_json(self) -> JsonObject:
        """Return plain data."""
        plain: JsonObject = msgspec.to_builtins(self)
        del plain["shape"]
        return {name: value for name, value in plain.items() if name != "shrunk" or value is not None}


def outcome_of(
    world: TrialWorld, checkers: Sequence[Checker], why: list[str], further: str, transitions: Iterable[str],
    wall_s: float,
) -> Outcome:  # fmt: skip
    """Return the outcome of a finished trial. `why`, `further`: as in `Ended`."""
    invariants = tuple(
        InvariantOutcome(
            number=checker.number,
            name=checker.name,
            checked=checker.checked,
            ok=not checker.broken,
            detail=checker.broken[0] if checker.broken else None,
            facts=_evidence(world, checker.before, checker.broken[0]) if checker.broken else (),
        )
        for checker in sorted(checkers, key=lambda checker: checker.number)
    )
    ok, simulator = not why and all(invariant.ok for invariant in invariants), world.simulator
    rounds = tuple(_round(world, log) for log in world.rounds)
    sent: dict[str, list[tuple[int, int]]] = {}  # by role: whole messages and payload bytes
    for process in simulator.processes.values():
        sent.setdefault(process.role.value, []).append((process.traffic.messages_sent, process.traffic.bytes_sent))
    drops = [
        Drop(client=world.client_number(client), at_ms=at_ms - simulator.start_ms, phase="collect")
        for log in world.rounds
        if isinstance(log.ended, RoundCompleted)
        for client in set(log.request.invited or world.actors.clients).difference(log.contributors)
        for at_ms in [min(world.killed_ms.get(client, 1 << 60), log.ended_ms or 0)]
    ]
    return Outcome(
        ok=ok,
        digest=simulator.trace.digest(),
        ended=Ended(result="ok" if ok else "broken", rounds=rounds, live=not why, further=further, why=tuple(why)),
        invariants=invariants,
        seed=world.scenario.seed,
        faults=tuple(world.faults),
        drops=tuple(sorted(drops, key=lambda drop: (drop.at_ms, drop.client))),
        spoils=tuple(sorted(world.spoils())),
        options=to_plain(world.scenario),
        traffic={role: Traffic(*map(sum, zip(*counts, strict=True))) for role, counts in sent.items()},
        last_facts=_as_text(world, simulator.trace.entries),
        wall_s=wall_s,
        virtual_s=(simulator.now_ms - simulator.start_ms) / 1000,
        transitions=tuple(sorted(transitions)),
        replay=f"dca emulate replay {world.scenario.seed}",
        shape=next((checker.shape for checker in checkers if isinstance(checker, NoiseChecker)), Shape()),
    )


def _round(world: TrialWorld, log: TrialRound) -> RoundOutcome:
    fields: Changes = {"result": "aborted"}
    if log.refused:
        fields = {"result": "refused", "reason": log.refused}
    elif isinstance(log.ended, RoundCompleted):
        fields = {"result": "completed", **_contents(log.ended.aggregate)}
    elif log.ended is not None:
        fields |= {name: getattr(log.ended, name) for name in ("reason", "contributors", "needed")}
    elif open_at := world.open_at(log):
        fields = {"result": "open", "reason": "; ".join(open_at)}
    else:
        fields["reason"] = UNREPORTED
    marks = (("collect", log.announced_ms), ("commit", log.closed_ms), ("end", log.ended_ms))
    reached = [(name, at_ms - world.simulator.start_ms) for name, at_ms in marks if at_ms is not None]
    return RoundOutcome(
        round_id=log.id.hex(),
        epsilon=log.request.epsilon,
        phases={name: (begins, max(begins, ends)) for (name, begins), (_, ends) in itertools.pairwise(reached)},
        clients=log.request.answers_expected or len(world.clients),
        declined=len(log.declined),
        why_declined=_reasons(log),
        everybody_declined=log.declined.keys() >= set(log.request.invited or world.actors.clients),
        **fields,
    )


def _reasons(log: TrialRound) -> dict[str, int]:
    """Return the reasons for which clients declined, the most frequent first, with the number of clients."""
    texts = (f"{fact.reason}: found {fact.found}; accepts {fact.expected}" for fact in log.declined.values())
    return dict(Counter(texts).most_common(REASONS_MAX))


class _Contents(TypedDict):
    """The fields of `RoundOutcome` that follow from a result."""

    contributors: int
    needed: int
    noise_variance: float
    noise_floor: float


def _contents(aggregate: NoisyAggregate) -> _Contents:
    if aggregate.nodes:
        own, floor = min(node.noise_variance for node in aggregate.nodes), aggregate.sigma_local**2
        return {"contributors": aggregate.clients, "needed": 1, "noise_variance": own, "noise_floor": floor}
    if aggregate.reports is not None:
        own = aggregate.noise_variance / aggregate.clients  # exactly what its privacy needs
        return {"contributors": aggregate.clients, "needed": 1, "noise_variance": own, "noise_floor": own}
    return {
        "contributors": aggregate.contributors,
        "needed": aggregate.n_min,
        "noise_variance": float(aggregate.noise_variance),
        "noise_floor": (aggregate.n_min - 1 - aggregate.colluders) * aggregate.sigma_local**2,
    }


def _evidence(world: TrialWorld, before: Iterable[TraceEntry], detail: str) -> tuple[str, ...]:
    """Return the facts before a break: those of its round and the emulator's, or all if `detail` names no round."""
    match = _ROUND.search(detail)
    if match is None:
        return _as_text(world, before)
    prefix = bytes.fromhex(match[1])
    return _as_text(world, (entry for entry in before if getattr(entry.fact, "round_id", prefix).startswith(prefix)))


def _as_text(world: TrialWorld, entries: Iterable[TraceEntry]) -> tuple[str, ...]:
    lines = []
    for entry in list(entries)[-FACTS_SHOWN:]:
        process = world.simulator.processes.get(entry.actor)
        who = world.name_of(process) if process is not None else "emulator"
        lines.append(f"{(entry.at_ms - world.simulator.start_ms) / 1000:9.3f} s  {who:12} {entry.fact!r}")
    return tuple(lines)
