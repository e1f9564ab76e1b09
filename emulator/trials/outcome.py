"""The outcome of a trial, as a record. `--json` writes it, the terminal and the page show it, a sweep counts it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.facts import RoundCompleted
from emulator.results import Amount, Traffic
from emulator.sim.trace import Entry
from emulator.trials.checkers.base import Checker
from emulator.trials.fault import FaultOutcome
from emulator.trials.scenario import to_plain
from emulator.trials.world import RoundLog, TrialWorld

LIVENESS, LIVENESS_NAME = 0, "live after healing"
"""Replace the number and name of an invariant if a trial did not become live."""
UNREPORTED = "the round ended, but the trainer never reported how"
FACTS_SHOWN = 40
_ROUND = re.compile(r"\bround ([0-9a-f]{8})\b")


class RoundOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one round. Times are milliseconds since the scenario's start.

    Attributes:
        result: `completed`, `aborted`, `refused` (the trainer rejected the request) or `open`.
        reason: why it did not complete.
        clients: N. contributors, needed: |A| and n_min. epsilon: as announced.
        noise_variance, noise_floor: variance of the noise in the sum, and the least that privacy needs. In a round
            without Compute nodes, both are of one release or report, contributors counts these, and one is needed.
        phases: name -> (from, to) of each phase that the round reached.
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


class InvariantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a checker.

    Attributes:
        checked: number of facts checked. ok: no fact broke the invariant. detail: the first that did.
        facts: the facts of that round before the break, as text.
    """

    number: int
    name: str
    checked: int
    ok: bool
    detail: str | None = None
    facts: tuple[str, ...] = ()


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A client that was invited but is not in the result. `at_ms`: when it was last killed; else the round's end."""

    client: int
    at_ms: int
    phase: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of a trial and its liveness.

    Attributes:
        result: `ok` or `broken`. rounds: outcome of each. further: outcome of the further round, or why none was due.
        live: all rounds ended in time, and the further round completed if it was due. why: the reasons if not.
    """

    result: str
    rounds: tuple[RoundOutcome, ...]
    live: bool | None = None
    further: str | None = None
    why: tuple[str, ...] = ()


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a trial.

    Attributes:
        ok: all invariants held, and the trial became live. seed: of the scenario. digest: of the trace.
        ended: see `Ended`; named `outcome` in JSON.
        spoils: what the scenario's adversaries may spoil. options: the scenario as plain data.
        transitions: entries of the actors' tables that were taken. traffic: messages and bytes sent, by role.
        last_facts: end of the trace, as text. wall_s, virtual_s: duration in real and virtual time.
        replay: the command that repeats the trial. shrunk: a smaller scenario in which the same invariant breaks.
    """

    ok: bool
    digest: str
    ended: Ended = msgspec.field(name="outcome")
    invariants: tuple[InvariantOutcome, ...]
    seed: int | str | None = None
    faults: tuple[FaultOutcome, ...] = ()
    drops: tuple[Drop, ...] = ()
    spoils: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    traffic: dict[str, Traffic] = {}
    last_facts: tuple[str, ...] = ()
    wall_s: Amount | None = None
    virtual_s: Amount | None = None
    transitions: tuple[str, ...] = ()
    replay: str | None = None
    shrunk: dict[str, Any] | None = None
    kind: str = "emulation"

    @property
    def broken(self) -> dict[int, str]:
        """The details of each failure by the number of its invariant; `LIVENESS` if the trial did not become live."""
        failures = {invariant.number: invariant.detail or "" for invariant in self.invariants if not invariant.ok}
        return failures if self.ended.live else {**failures, LIVENESS: "; ".join(self.ended.why)}

    def facts_before(self, number: int) -> tuple[str, ...]:
        """Return the facts before that invariant broke; for `LIVENESS`, the last facts of the trial."""
        return next((invariant.facts for invariant in self.invariants if invariant.number == number), self.last_facts)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
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
    )


def _round(world: TrialWorld, log: RoundLog) -> RoundOutcome:
    fields: dict[str, Any] = {"result": "aborted"}
    if log.refused:
        fields = {"result": "refused", "reason": log.refused}
    elif isinstance(log.ended, RoundCompleted):
        fields = {"result": "completed", **_noise(log.ended.aggregate)}
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
        **fields,
    )


def _noise(aggregate: NoisyAggregate) -> dict[str, Any]:
    if aggregate.nodes:
        own, floor = min(node.noise_variance for node in aggregate.nodes), aggregate.sigma_local**2
        return {"contributors": aggregate.clients, "needed": 1, "noise_variance": own, "noise_floor": floor}
    if aggregate.reports is not None:
        own = aggregate.noise_variance / aggregate.clients  # exactly what its privacy needs
        return {"contributors": aggregate.clients, "needed": 1, "noise_variance": own, "noise_floor": own}
    return {
        "contributors": aggregate.contributors,
        "needed": aggregate.fewest,
        "noise_variance": float(aggregate.noise_variance),
        "noise_floor": (aggregate.fewest - 1 - aggregate.colluders) * aggregate.sigma_local**2,
    }


def _evidence(world: TrialWorld, before: Iterable[Entry], detail: str) -> tuple[str, ...]:
    """Return the facts before a break: those of its round and the emulator's, or all if `detail` names no round."""
    match = _ROUND.search(detail)
    if match is None:
        return _as_text(world, before)
    prefix = bytes.fromhex(match[1])
    return _as_text(world, (entry for entry in before if getattr(entry.fact, "round_id", prefix).startswith(prefix)))


def _as_text(world: TrialWorld, entries: Iterable[Entry]) -> tuple[str, ...]:
    lines = []
    for entry in list(entries)[-FACTS_SHOWN:]:
        process = world.simulator.processes.get(entry.actor)
        who = world.name_of(process) if process is not None else "emulator"
        lines.append(f"{(entry.at_ms - world.simulator.start_ms) / 1000:9.3f} s  {who:12} {entry.fact!r}")
    return tuple(lines)
