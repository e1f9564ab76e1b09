"""All kinds of faults, in the table `FAULTS`, and what those of machines, links, the broker and owners do.

`tampering` has what a malicious broker does to messages, `owners` what owners do to files and limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dca_proto.protocol.effects import Channel, Persist
from dca_proto.protocol.facts import Acknowledged
from dca_proto.protocol.restore import kept_in_backup
from dca_proto.protocol.wire.messages import Announcement, Invitation
from emulator.sim.broker import BrokerMemory
from emulator.sim.disk import Disk
from emulator.sim.process import KillPoint, Process, Where, usual_options
from emulator.trials import neighbours, owners, tampering
from emulator.trials.fault import DELIVERED, END, HANDLED, KILLED, REPORTED, FaultKind, Injection, Steps
from emulator.trials.phases import entered
from emulator.trials.scenario import Changes
from emulator.wire import body_of, contributions_in

ACTORS = ("client", "compute", "trainer")
_HOUR_MS = 3_600_000.0
_LEAP_MS = 1e9
EPOCHS = "milliseconds, an epoch or more"
MOST = "a probability, near 1 where it is drawn"
_AWAY_MS = 1_500
Make = Callable[[Injection], Steps]
Strike = Callable[[Injection, Process], None]


def _each(strike: Strike, undo: Strike) -> Make:
    """Return steps that strike each target, and undo that at the end."""

    def steps(injection: Injection) -> Steps:
        for process in injection.targets:
            injection.reached(process)
            strike(injection, process)
        yield END
        for process in injection.targets:
            undo(injection, process)

    return steps


# --- kills ------------------------------------------------------------------------------------------------------------


def _vanishes_at(moment: str, phase: str, applies: Callable[[Any], bool]) -> Make:
    """Kill a client at a moment of a round, after it has handled its current events. It comes back late, or never."""

    def steps(injection: Injection) -> Steps:
        while True:
            process, seen = yield moment
            if applies(seen):
                break
        injection.reached(process, phase)
        injection.simulator.at(injection.simulator.now_ms, process.kill, injection.fault.kind)
        if injection.fault.for_ms:
            injection.revive_after(injection.fault.for_ms, process)
        if moment == DELIVERED:
            process.kill(injection.fault.kind)
        yield END

    return steps


def _killed_at(where: Where, *, vanishes: bool = False) -> Make:
    """Kill a process once as a round enters a phase, at `where` in the transaction, and restart it later.

    vanishes: kill a client in the transaction that pays for a contribution; it comes back late, or never.
    """

    def steps(injection: Injection) -> Steps:
        while True:
            process, effects = yield HANDLED
            phases = entered(effects)
            strikes = not vanishes or contributions_in(effects)
            if phases and strikes and injection.fault.phase in ("", *phases):
                break
        process.plan_kill(KillPoint(process.disk.transactions, where))
        (process,) = yield KILLED
        injection.reached(process, injection.fault.phase or phases[-1])
        if injection.fault.for_ms or not vanishes:
            injection.revive_after(injection.fault.for_ms or _AWAY_MS, process)
        yield END

    return steps


def _crash(injection: Injection) -> Steps:
    for process in injection.targets:
        if process.is_up:
            injection.reached(process)
            process.kill(injection.fault.kind)
    yield END
    for process in injection.targets:
        if not process.is_up:
            process.restart()


def _flap(injection: Injection) -> Steps:
    """Kill and restart by turns, each for `amount` milliseconds."""
    away_ms = max(int(injection.amount), 100)

    def turn() -> None:
        if not injection.is_on:
            return
        for process in injection.targets:
            if process.is_up:
                injection.reached(process)
                process.kill(injection.fault.kind)
            else:
                process.restart()
        injection.simulator.after(away_ms, turn)

    turn()
    injection.stop_after(injection.fault.for_ms or 20 * away_ms)
    yield END
    for process in injection.targets:
        if not process.is_up:
            process.restart()


# --- machines and links -----------------------------------------------------------------------------------------------


def _machine(worse: Callable[[int], dict[str, int]]) -> Make:
    """Replace options of a machine by those for the fault's amount; restore them at the end."""

    def strike(injection: Injection, process: Process) -> None:
        process.options = msgspec.structs.replace(process.options, **worse(int(injection.amount)))

    def undo(injection: Injection, process: Process) -> None:
        usual = {name: getattr(usual_options(process.role), name) for name in worse(0)}
        process.options = msgspec.structs.replace(process.options, **usual)

    return _each(strike, undo)


def _disk_full(injection: Injection) -> Steps:
    """The next transaction fails and stops the process. Later the disk has room again and the process restarts."""
    for process in injection.targets:
        process.disk.is_full = True
    try:
        while True:
            (process,) = yield KILLED
            if process.disk.is_full:
                injection.reached(process)
                injection.stop_after(injection.fault.for_ms or 1_000)
    finally:
        for process in injection.targets:
            process.disk.is_full = False
            if injection.record.reached and not process.is_up:
                process.restart()


def _partition(*, up: bool, down: bool) -> Make:
    """Cut the link in the given directions until the fault ends."""

    def strike(injection: Injection, process: Process) -> None:
        injection.simulator.broker.cut(process, up=up, down=down)
        injection.note("cut off", process)

    def undo(injection: Injection, process: Process) -> None:
        injection.simulator.broker.mend(process)
        injection.note("mended", process)

    return _each(strike, undo)


def _link(worse: Callable[[Injection], dict[str, float]]) -> Make:
    """Replace options of a link; restore them at the end."""

    def strike(injection: Injection, process: Process) -> None:
        process.link.options = msgspec.structs.replace(process.link.options, **worse(injection))

    def undo(injection: Injection, process: Process) -> None:
        process.link.options = injection.world.scenario.network

    return _each(strike, undo)


# --- the broker -------------------------------------------------------------------------------------------------------


def _broker_down(left: Callable[[Injection], BrokerMemory | None]) -> Make:
    """Stop the broker, and start it again with the memory that `left` returns now; None keeps all.

    `broker-kill` stops it `amount` milliseconds after that memory was taken.
    """

    def steps(injection: Injection) -> Steps:
        memory = left(injection)

        def go_down() -> None:
            if injection.is_on:
                injection.simulator.broker.stop(memory)
                injection.reached(None, "up")
                injection.note("the broker goes down")
                injection.stop_after(injection.fault.for_ms or 2_000)

        if injection.fault.kind == "broker-kill":
            injection.simulator.after(int(injection.amount), go_down)
        else:
            go_down()
        yield END
        injection.simulator.broker.start()
        injection.note("the broker is back")

    return steps


def _overflow(injection: Injection) -> Steps:
    """Cut off receivers while sessions hold few messages. The broker acknowledges further messages and drops them."""
    broker = injection.simulator.broker
    lost = broker.dropped["queue full"]
    broker.options = msgspec.structs.replace(broker.options, queue_messages_max=max(1, int(injection.amount)))
    for process in injection.targets:
        broker.cut(process, up=False, down=True)
    injection.stop_after(injection.fault.for_ms or 10_000)
    yield END
    if broker.dropped["queue full"] > lost:
        injection.reached(injection.targets[0])
    broker.options = injection.world.scenario.broker
    for process in injection.targets:
        broker.mend(process)


def _reconnect_storm(injection: Injection) -> Steps:
    clients = [process for process in injection.targets if process.is_up]
    away: list[Process] = injection.stream.sample(clients, k=(len(clients) + 1) // 2)
    for process in away:
        injection.simulator.broker.cut(process, up=True, down=True)
        injection.reached(process)
    injection.note(f"{len(away)} clients lose their connection")
    injection.stop_after(injection.fault.for_ms or 3_000)
    yield END
    for process in away:
        injection.simulator.broker.mend(process)


# --- owners -----------------------------------------------------------------------------------------------------------


def _duplicate_instance(injection: Injection) -> Steps:
    """Run a second process with the same identity and a copy of the disk; each takes over the other's session."""
    (original,) = injection.targets
    copy = injection.world.duplicate(original)
    injection.reached(original)
    injection.note("a second process with this identity", original)
    yield END
    copy.kill("the copy is gone")


def _restore(injection: Injection) -> Steps:
    """Copy the store now, and restart the process with that copy later: it forgets what it stored since."""
    (process,) = injection.targets
    copy = process.disk.copy()
    injection.stop_after(injection.fault.for_ms or 5_000)
    yield END
    (injection.world.restored if process.role is Channel.CLIENT else injection.world.duplicated).add(process.id)
    injection.reached(process)
    process.restore(copy)
    process.restart()


def _from_backup(injection: Injection) -> Steps:
    """Make a backup now, lose the store later, and restart with one that is made from the backup."""
    (process,) = injection.targets
    role, backup_ms = process.role.value, process.now_ms
    given = injection.world.actors.federation
    policy = injection.world.actors.policy_of(process.id) if process.role is Channel.CLIENT else None
    backup = kept_in_backup(role, process.disk.load(), given, backup_ms, policy)
    injection.stop_after(injection.fault.for_ms or 5_000)
    yield END
    injection.world.backed_up.add(process.id)
    injection.reached(process)
    made = Disk()
    made.commit([Persist(*row) for row in backup])
    process.restore(made)
    process.restart()


def _renew(injection: Injection, process: Process) -> None:
    """Renew a certificate, which `TrialFederation.ends_ms` made end at the time of the fault."""
    injection.world.actors.ends_ms.pop(process.id, None)
    process.restart()


def _epoch_turn(injection: Injection) -> Steps:
    """`Scenario.start_ms` sets the clocks so that the epoch ends now; all keys change in mid-round."""
    injection.reached(injection.world.trainer)
    injection.note("an epoch ends")
    injection.stop_after(0)
    yield END


# --- all kinds --------------------------------------------------------------------------------------------------------

_CLIENT, _BROKER, _MEMBER, _ALL = ("client",), ("broker",), ("client", "compute"), (*ACTORS, "broker")
_SERVER = ("compute", "trainer")
_SEEN: Changes = {"waits": True, "early": True, "promise": "seen"}
_TRANSITION = {"heals": True, "phases": True, **_SEEN}
_MS: Changes = {"amount": "milliseconds"}
_SHARE: Changes = {"amount": "a probability"}
_COUNT: Changes = {"amount": "how many messages"}
_EPOCHS: Changes = {"amount": EPOCHS}
_TAMPERED = {**_SHARE, "amounts": (0, 1)}
_INJECTED_COUNT = {**_COUNT, "amounts": (0, 1_000), "heals": True}
_INJECTED = {**_INJECTED_COUNT, "promise": "harmless"}
_BEYOND: Changes = {"promise": "beyond"}
# fmt: off
FAULTS: dict[str, FaultKind] = {
    "vanish-before-sending": FaultKind("vanishes when the announcement arrives", _CLIENT, _vanishes_at(
        DELIVERED, "new", lambda payload: isinstance(body_of(payload), Announcement | Invitation)), **_SEEN),
    "vanish-sending": FaultKind("vanishes after paying, before or after sending", _CLIENT,
        _killed_at("between", vanishes=True), **_SEEN),
    "vanish-after-receipt": FaultKind("vanishes when it gets its receipt", _CLIENT, _vanishes_at(
        REPORTED, "kept", lambda fact: isinstance(fact, Acknowledged)), **_SEEN),
    "crash": FaultKind("is killed at the given time", ACTORS, _crash, promise="seen"),
    "kill-before": FaultKind("is killed before a transition is stored", ACTORS, _killed_at("before"), **_TRANSITION),
    "kill-torn": FaultKind("is killed while a transition is stored", ACTORS, _killed_at("torn"), **_TRANSITION),
    "kill-after": FaultKind("is killed after a transition is stored", ACTORS, _killed_at("after"), **_TRANSITION),
    "kill-between": FaultKind("is killed between a transition's messages", ACTORS, _killed_at("between"),
        **_TRANSITION),

    "flapping": FaultKind("is killed and restarted again and again", _SERVER, _flap, amounts=(0, 60_000), weight=4,
        **_MS, promise="seen"),

    "slow": FaultKind("is slow to handle each batch and write", ACTORS,
        _machine(lambda ms: {"work_ms": ms, "commit_ms": ms}), amounts=(0, 60_000), tardy=20, outlasts=(20, 0), **_MS),
    "clock-ahead": FaultKind("its clock is ahead", ACTORS, _machine(lambda ms: {"skew_ms": ms}),
        amounts=(0, _HOUR_MS), tardy=1, **_MS, **_BEYOND),
    "clock-behind": FaultKind("its clock is behind", ACTORS, _machine(lambda ms: {"skew_ms": -ms}),
        amounts=(0, _HOUR_MS), tardy=1, **_MS, **_BEYOND),
    "clock-leap": FaultKind("its clock runs an epoch or more ahead, and is set back", ACTORS,
        _machine(lambda ms: {"skew_ms": ms}), amounts=(0, _LEAP_MS), tardy=2, **_EPOCHS, weight=5, **_BEYOND),
    "clock-back": FaultKind("its clock is set back by an epoch or more", ACTORS,
        _machine(lambda ms: {"skew_ms": -ms}), amounts=(0, _LEAP_MS), tardy=2, **_EPOCHS, weight=5, **_BEYOND),
    "cramped": FaultKind("has room for few waiting messages", ACTORS, _machine(lambda most: dict.fromkeys(
        ("inbox_events_max", "publishing_max", "unacknowledged_max"), max(1, most))), amounts=(0, 1e6), **_COUNT),
    "disk-full": FaultKind("its disk is full", ACTORS, _disk_full, heals=True, **_SEEN),
    "partition": FaultKind("is cut off", ACTORS, _partition(up=True, down=True)),
    "partition-up": FaultKind("nothing that it sends arrives", ACTORS, _partition(up=True, down=False)),
    "partition-down": FaultKind("nothing sent to it arrives", ACTORS, _partition(up=False, down=True)),
    "isolated": FaultKind("nothing passes between it and the trainer", ("compute",), tampering.isolate, weight=4),
    "congested": FaultKind("each of its packets is delayed", ACTORS,
        _link(lambda injection: {"delay_ms": injection.world.scenario.network.delay_ms + injection.amount}),
        amounts=(0, 600_000), outlasts=(2, 0), **_MS),
    "lossy": FaultKind("its link loses, repeats and reorders packets", ACTORS,
        _link(lambda injection: {"loss": injection.amount, "duplicate": 0.3, "reorder": 0.3, "reorder_ms": 2_000.0}),
        amounts=(0, 0.95), outlasts=(0, 10_000), **_SHARE),
    "narrow": FaultKind("its link has little bandwidth", ACTORS,
        _link(lambda injection: {"bandwidth_bytes_s": injection.amount}),
        amount="bytes a second", amounts=(100, 1e9), **_BEYOND),

    "broker-restart": FaultKind("goes down and comes back", _BROKER, _broker_down(lambda _: None), heals=True),
    "broker-loss": FaultKind("goes down and comes back empty", _BROKER, _broker_down(lambda _: BrokerMemory()),
        heals=True),
    "broker-kill": FaultKind("is killed and comes back with its last snapshot", _BROKER,
        _broker_down(lambda injection: injection.simulator.broker.memory), heals=True, amounts=(0, _HOUR_MS), **_MS),
    "overflow": FaultKind("its session overflows while it is away", ACTORS, _overflow,
        heals=True, amounts=(0, 1e6), **_COUNT),
    "reconnect-storm": FaultKind("half of the swarm reconnects at once", _CLIENT, _reconnect_storm, heals=True),

    "duplicate-instance": FaultKind("a copy of it runs beside it", _MEMBER, _duplicate_instance,
        is_of_one=True, once=True, **_BEYOND),
    "restore": FaultKind("its store is replaced by an old copy", _MEMBER, _restore,
        heals=True, is_of_one=True, once=True, **_BEYOND),
    "from-backup": FaultKind("its store is lost, and made anew from a backup", _CLIENT, _from_backup,
        heals=True, is_of_one=True, weight=6, **_BEYOND),
    "certificate-ends": FaultKind("its certificate ends", _CLIENT, _each(lambda *_: None, _renew), **_BEYOND),
    "floors": FaultKind("its floors forbid every round", ("compute",), owners.strict_floors, early=True,
        **_BEYOND),
    "policy": FaultKind("its policy forbids the rounds", _CLIENT, owners.strict_policy, **_TAMPERED, weight=8,
        early=True, **_BEYOND),
    "new-file": FaultKind("gets a newer federation file", _SERVER, owners.new_file, is_of_one=True, at_all=True,
        weight=2, **_BEYOND),
    "new-p": FaultKind("gets a federation file that states another p", _SERVER, owners.new_p, is_of_one=True,
        at_all=True, weight=4, **_BEYOND),
    "revoke": FaultKind("is revoked", ACTORS, owners.revoke, is_of_one=True, at_all=True, phases=True, waits=True,
        weight=7, **_BEYOND),
    "two-files": FaultKind("follows another federation file of the same number", ACTORS, owners.two_files,
        is_of_one=True, at_all=True, weight=2, **_BEYOND),
    "wrong-files": FaultKind("federation files come that members must refuse", _BROKER, owners.wrong_files,
        at_all=True, **_INJECTED_COUNT, weight=4, **_BEYOND),
    "withhold-files": FaultKind("a newer federation file reaches one server, and nobody else", _BROKER,
        owners.withhold_files, at_all=True, weight=1, **_BEYOND),
    "neighbour": FaultKind("messages come of a federation of the same name and members, with another enrolment key",
        _BROKER, neighbours.neighbour, weight=2, **_INJECTED),
    "data-fail": FaultKind("its data cannot be read", _CLIENT, _each(
        lambda injection, process: injection.world.actors.failing.add(process.id),
        lambda injection, process: injection.world.actors.failing.discard(process.id)), promise="harmless"),
    "epoch-turn": FaultKind("an epoch ends", _BROKER, _epoch_turn, heals=True, once=True, promise="harmless"),

    "swallow": FaultKind("its messages are acknowledged and lost", ACTORS, tampering.swallow, early=True,
        amount=MOST, amounts=(0, 1), lasts_ms=(0, 60_000)),  # briefly or seldom, it would meet no message
    "false-receipts": FaultKind("its contributions are lost, and receipts come that nobody sent", _CLIENT,
        tampering.false_receipts),
    "flip-bits": FaultKind("its messages are damaged", ACTORS, tampering.flip_bits, **_TAMPERED),
    "truncate": FaultKind("its messages are cut short", ACTORS, tampering.truncate, **_TAMPERED),
    "relay": FaultKind("invitations reach everybody", _BROKER, tampering.relay, early=True, promise="harmless"),
    "replay": FaultKind("its messages are repeated soon after", _ALL, tampering.replay, **_INJECTED),
    "replay-elsewhere": FaultKind("its messages are repeated rounds and epochs later", _ALL, tampering.replay_later,
        **_INJECTED),
    "forge": FaultKind("forged messages come in its name, signed with another key", _ALL, tampering.forge, **_INJECTED),
    "mix-parts": FaultKind("parts of its messages carry pieces of others", ACTORS, tampering.mix_parts, early=True,
        **_TAMPERED),
    "spoof": FaultKind("its messages come under another's name", _ALL, tampering.spoof, **_INJECTED),
    "misdirect": FaultKind("its messages go to others", _ALL, tampering.misdirect, **_INJECTED),
    "garbage": FaultKind("random bytes come from unknown senders", _BROKER, tampering.garbage, **_INJECTED),
}
# fmt: on
"""All kinds: name -> description, roles, what happens, and how drawing, checking and the promise treat it."""
