"""All kinds of faults. Those of machines, links, the broker and owners are here.

`tampering` has those of a malicious broker, which changes messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.effects import Channel, Effect, Persist
from dca_proto.protocol.facts import Acknowledged
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire.messages import Announcement, Invitation
from emulator.sim.broker import Memory
from emulator.sim.process import KillPoint, Process, Where, usual_options
from emulator.trials.fault import DELIVERED, END, HANDLED, KILLED, REPORTED, Injection, Kinds, Make, Steps
from emulator.trials.tampering import TAMPERING
from emulator.wire import body_of, contributions_in

ACTORS = ("client", "compute", "trainer")
_CLIENT, _BROKER, _MEMBER = ("client",), ("broker",), ("client", "compute")
_HOUR_MS = 3_600_000.0
_MS, _SHARE, _COUNT = "milliseconds", "a probability", "how many messages"
_AWAY_MS = 1_500
_STORED: dict[str, Any] = {module.ROUNDS: module.StoredRound for module in (client_round, compute_round, trainer_round)}
_KINDS = Kinds()
Strike = Callable[[Injection, Process], None]


def _each(strike: Strike, undo: Strike) -> Make:
    """Return steps that strike each target, and undo that at the end."""

    def steps(it: Injection) -> Steps:
        for process in it.targets:
            it.reached(process)
            strike(it, process)
        yield END
        for process in it.targets:
            undo(it, process)

    return steps


# --- kills ------------------------------------------------------------------------------------------------------------


def _vanishes_at(moment: str, phase: str, applies: Callable[[Any], bool]) -> Make:
    """Kill a client at a moment of a round, after it has handled its current events. It comes back late, or never."""

    def steps(it: Injection) -> Steps:
        while True:
            process, seen = yield moment
            if applies(seen):
                break
        it.reached(process, phase)
        it.simulator.at(it.simulator.now_ms, process.kill, it.fault.kind)
        if it.fault.for_ms:
            it.revive_after(it.fault.for_ms, process)
        if moment == DELIVERED:
            process.kill(it.fault.kind)
        yield END

    return steps


def _entered(effects: Sequence[Effect]) -> list[str]:
    """Return the phases that these effects store, in order; `COLLECTING` for a contribution or release alone."""
    stored = [effect for effect in effects if isinstance(effect, Persist) and effect.table in _STORED]
    if stored:
        return [msgspec.msgpack.decode(write.value, type=_STORED[write.table]).phase for write in stored]
    keeping = (trainer_round.RELEASES, compute_round.CONTRIBUTIONS)
    keeps = any(isinstance(effect, Persist) and effect.table in keeping for effect in effects)
    return [compute_round.COLLECTING] if keeps else []


def _killed_at(where: Where, *, vanishes: bool = False) -> Make:
    """Kill a process once as a round enters a phase, at `where` in the transaction, and restart it later.

    vanishes: kill a client in the transaction that pays for a contribution; it comes back late, or never.
    """

    def steps(it: Injection) -> Steps:
        while True:
            process, effects = yield HANDLED
            phases = _entered(effects)
            strikes = not vanishes or contributions_in(effects)
            if phases and strikes and it.fault.phase in ("", *phases):
                break
        process.plan_kill(KillPoint(process.disk.transactions, where))
        (process,) = yield KILLED
        it.reached(process, it.fault.phase or phases[-1])
        if it.fault.for_ms or not vanishes:
            it.revive_after(it.fault.for_ms or _AWAY_MS, process)
        yield END

    return steps


_SEEN: dict[str, Any] = {"waits": True, "early": True, "promise": "seen"}
_KINDS.add("vanish-before-sending", "vanishes when the announcement arrives", _CLIENT,
           _vanishes_at(DELIVERED, "new", lambda payload: isinstance(body_of(payload), Announcement | Invitation)),
           **_SEEN)  # fmt: skip
_KINDS.add("vanish-sending", "vanishes after paying, before or after sending", _CLIENT,
           _killed_at("between", vanishes=True), **_SEEN)  # fmt: skip
_KINDS.add("vanish-after-receipt", "vanishes when it gets its receipt", _CLIENT,
           _vanishes_at(REPORTED, "kept", lambda fact: isinstance(fact, Acknowledged)), **_SEEN)  # fmt: skip


@_KINDS.kind("crash", "is killed at the given time", ACTORS, promise="seen")
def _crash(it: Injection) -> Steps:
    for process in it.targets:
        if process.is_up:
            it.reached(process)
            process.kill(it.fault.kind)
    yield END
    for process in it.targets:
        if not process.is_up:
            process.restart()


_TRANSITION: dict[str, Any] = {"heals": True, "phases": True, **_SEEN}
_KINDS.add("kill-before", "is killed before a transition is stored", ACTORS, _killed_at("before"), **_TRANSITION)
_KINDS.add("kill-torn", "is killed while a transition is stored", ACTORS, _killed_at("torn"), **_TRANSITION)
_KINDS.add("kill-after", "is killed after a transition is stored", ACTORS, _killed_at("after"), **_TRANSITION)
_KINDS.add("kill-between", "is killed between a transition's messages", ACTORS, _killed_at("between"), **_TRANSITION)


# --- machines and links -----------------------------------------------------------------------------------------------


def _machine(worse: Callable[[int], dict[str, int]]) -> Make:
    """Replace options of a machine by those for the fault's amount; restore them at the end."""

    def strike(it: Injection, process: Process) -> None:
        process.options = msgspec.structs.replace(process.options, **worse(int(it.amount)))

    def undo(it: Injection, process: Process) -> None:
        usual = {name: getattr(usual_options(process.role), name) for name in worse(0)}
        process.options = msgspec.structs.replace(process.options, **usual)

    return _each(strike, undo)


_KINDS.add("slow", "is slow to handle each batch and write", ACTORS,
           _machine(lambda ms: {"work_ms": ms, "commit_ms": ms}), amount=_MS, amounts=(0, 60_000), tardy=20,
           outlasts=(20, 0))  # fmt: skip
_KINDS.add("clock-ahead", "its clock is ahead", ACTORS, _machine(lambda ms: {"skew_ms": ms}), amount=_MS,
           amounts=(0, _HOUR_MS), tardy=1, promise="beyond")  # fmt: skip
_KINDS.add("clock-behind", "its clock is behind", ACTORS, _machine(lambda ms: {"skew_ms": -ms}), amount=_MS,
           amounts=(0, _HOUR_MS), tardy=1, promise="beyond")  # fmt: skip
_KINDS.add("cramped", "has room for few waiting messages", ACTORS,
           _machine(lambda most: dict.fromkeys(("inbox_events_max", "publishing_max", "unacknowledged_max"),
                                               max(1, most))), amount=_COUNT, amounts=(0, 1e6))  # fmt: skip


@_KINDS.kind("disk-full", "its disk is full", ACTORS, heals=True, **_SEEN)
def _disk_full(it: Injection) -> Steps:
    """The next transaction fails and stops the process. Later the disk has room again and the process restarts."""
    for process in it.targets:
        process.disk.is_full = True
    try:
        while True:
            (process,) = yield KILLED
            if process.disk.is_full:
                it.reached(process)
                it.stop_after(it.fault.for_ms or 1_000)
    finally:
        for process in it.targets:
            process.disk.is_full = False
            if it.record.reached and not process.is_up:
                process.restart()


def _partition(*, up: bool, down: bool) -> Make:
    """Cut the link in the given directions until the fault ends."""

    def strike(it: Injection, process: Process) -> None:
        it.simulator.broker.cut(process, up=up, down=down)
        it.note("cut off", process)

    def undo(it: Injection, process: Process) -> None:
        it.simulator.broker.mend(process)
        it.note("mended", process)

    return _each(strike, undo)


def _link(worse: Callable[[Injection], dict[str, float]]) -> Make:
    """Replace options of a link; restore them at the end."""

    def strike(it: Injection, process: Process) -> None:
        process.link.options = msgspec.structs.replace(process.link.options, **worse(it))

    def undo(it: Injection, process: Process) -> None:
        process.link.options = it.world.scenario.network

    return _each(strike, undo)


_KINDS.add("partition", "is cut off", ACTORS, _partition(up=True, down=True))
_KINDS.add("partition-up", "nothing that it sends arrives", ACTORS, _partition(up=True, down=False))
_KINDS.add("partition-down", "nothing sent to it arrives", ACTORS, _partition(up=False, down=True))
_KINDS.add("congested", "each of its packets is delayed", ACTORS,
           _link(lambda it: {"delay_ms": it.world.scenario.network.delay_ms + it.amount}), amount=_MS,
           amounts=(0, 600_000), outlasts=(2, 0))  # fmt: skip
_KINDS.add("lossy", "its link loses, repeats and reorders packets", ACTORS,
           _link(lambda it: {"loss": it.amount, "duplicate": 0.3, "reorder": 0.3, "reorder_ms": 2_000.0}),
           amount=_SHARE, amounts=(0, 0.95), outlasts=(0, 10_000))  # fmt: skip
_KINDS.add("narrow", "its link has little bandwidth", ACTORS, _link(lambda it: {"bandwidth_bytes_s": it.amount}),
           amount="bytes a second", amounts=(100, 1e9), promise="beyond")  # fmt: skip


# --- the broker -------------------------------------------------------------------------------------------------------


def _broker_down(left: Callable[[Injection], Memory | None]) -> Make:
    """Stop the broker, and start it again with the memory that `left` returns now; None keeps all.

    `broker-kill` stops it `amount` milliseconds after that memory was taken.
    """

    def steps(it: Injection) -> Steps:
        memory = left(it)

        def go_down() -> None:
            if it.is_on:
                it.simulator.broker.stop(memory)
                it.reached(None, "up")
                it.note("the broker goes down")
                it.stop_after(it.fault.for_ms or 2_000)

        if it.fault.kind == "broker-kill":
            it.simulator.after(int(it.amount), go_down)
        else:
            go_down()
        yield END
        it.simulator.broker.start()
        it.note("the broker is back")

    return steps


_KINDS.add("broker-restart", "goes down and comes back", _BROKER, _broker_down(lambda it: None), heals=True)
_KINDS.add("broker-loss", "goes down and comes back empty", _BROKER, _broker_down(lambda it: Memory()), heals=True)
_KINDS.add("broker-kill", "is killed and comes back with its last snapshot", _BROKER,
           _broker_down(lambda it: it.simulator.broker.memory), heals=True, amount=_MS,
           amounts=(0, _HOUR_MS))  # fmt: skip


@_KINDS.kind("overflow", "its session overflows while it is away", ACTORS, heals=True, amount=_COUNT, amounts=(0, 1e6))
def _overflow(it: Injection) -> Steps:
    """Cut off receivers while sessions hold few messages. The broker acknowledges further messages and drops them."""
    broker = it.simulator.broker
    lost = broker.dropped["queue full"]
    broker.options = msgspec.structs.replace(broker.options, queue_messages_max=max(1, int(it.amount)))
    for process in it.targets:
        broker.cut(process, up=False, down=True)
    it.stop_after(it.fault.for_ms or 10_000)
    yield END
    if broker.dropped["queue full"] > lost:
        it.reached(it.targets[0])
    broker.options = it.world.scenario.broker
    for process in it.targets:
        broker.mend(process)


@_KINDS.kind("reconnect-storm", "half of the swarm reconnects at once", _CLIENT, heals=True)
def _reconnect_storm(it: Injection) -> Steps:
    clients = [process for process in it.targets if process.is_up]
    away: list[Process] = it.stream.sample(clients, k=(len(clients) + 1) // 2)
    for process in away:
        it.simulator.broker.cut(process, up=True, down=True)
        it.reached(process)
    it.note(f"{len(away)} clients lose their connection")
    it.stop_after(it.fault.for_ms or 3_000)
    yield END
    for process in away:
        it.simulator.broker.mend(process)


# --- owners -----------------------------------------------------------------------------------------------------------


@_KINDS.kind("duplicate-instance", "a copy of it runs beside it", _MEMBER, is_of_one=True, once=True, promise="beyond")
def _duplicate_instance(it: Injection) -> Steps:
    """Run a second process with the same identity and a copy of the disk; each takes over the other's session."""
    (original,) = it.targets
    copy = it.world.duplicate(original)
    it.reached(original)
    it.note("a second process with this identity", original)
    yield END
    copy.kill("the copy is gone")


@_KINDS.kind("restore", "its store is replaced by an old copy", _MEMBER, heals=True, is_of_one=True,
             once=True, promise="beyond")  # fmt: skip
def _restore(it: Injection) -> Steps:
    """Copy the store now, and restart the process with that copy later: it forgets what it stored since."""
    (process,) = it.targets
    copy = process.disk.copy()
    it.stop_after(it.fault.for_ms or 5_000)
    yield END
    (it.world.restored if process.role is Channel.CLIENT else it.world.duplicated).add(process.id)
    it.reached(process)
    process.restore(copy)
    process.restart()


def _renew(it: Injection, process: Process) -> None:
    it.world.actors.ends_ms.pop(process.id, None)
    process.restart()


def _raise_floors(it: Injection, process: Process) -> None:
    it.world.actors.refusing.add(process.id)
    process.restart()


def _lower_floors(it: Injection, process: Process) -> None:
    it.world.actors.refusing.discard(process.id)
    process.restart()


# `TrialFederation.ends_ms` made the certificate end at this time. Its owner renews it and restarts the client.
_KINDS.add("certificate-ends", "its certificate ends", _CLIENT, _each(lambda it, process: None, _renew),
           promise="beyond")  # fmt: skip
_KINDS.add("floors", "it raises its floors above every round", ("compute",), _each(_raise_floors, _lower_floors),
           promise="beyond")  # fmt: skip
_KINDS.add("data-fail", "its data cannot be read", _CLIENT,
           _each(lambda it, process: it.world.actors.failing.add(process.id),
                 lambda it, process: it.world.actors.failing.discard(process.id)), promise="harmless")  # fmt: skip


@_KINDS.kind("epoch-turn", "an epoch ends", _BROKER, heals=True, once=True, promise="harmless")
def _epoch_turn(it: Injection) -> Steps:
    """`Scenario.start_ms` sets the clocks so that the epoch ends now; all keys change in mid-round."""
    it.reached(it.world.trainer)
    it.note("an epoch ends")
    it.stop_after(0)
    yield END


FAULTS: Kinds = Kinds({**_KINDS, **TAMPERING})
"""All kinds, by name."""
